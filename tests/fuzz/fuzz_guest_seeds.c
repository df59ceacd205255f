// SPDX-License-Identifier: Apache-2.0
/* Writes inputs from which the fuzz targets of the guest protocol start: fuzz_guest_seeds DIRECTORY. Each is
 * a byte of behaviour and some frames that belong together. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/guest/protocol.h"

static const struct proto_id k1 = { { 1 } }, k2 = { { 2 } };
static uint8_t buf[1 << 14];
static struct proto_out o;
static const char *directory;
static int n_seeds;

static void begin(uint8_t behaviour)
{
    o = (struct proto_out){ buf, sizeof(buf), 1, false };
    buf[0] = behaviour;
}

static void end(void)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/seed-%03d", directory, n_seeds++);
    f = fopen(path, "w");
    if (!f)
        return;
    fwrite(buf, 1, o.len, f);
    fclose(f);
}

#define PUT(type, tag, ...) do { __VA_ARGS__; proto_encode(&o, type, tag, &m); } while (0)

static void put_spawn(uint32_t flags, uint64_t tag)
{
    PUT(PROTO_SPAWN, tag, struct proto_spawn m = { .key = k1, .flags = flags, .timeout_ms = 1000, .grace_ms = 10,
        .argv = { "echo", 1, 5 }, .env = { "A=b\0C=d", 2, 8 }, .label = proto_str_of("a/b/c/d") });
    PUT(PROTO_ATTACH, tag + 1, struct proto_attach m = { .key = k1 });
}

static void put_rest(void)
{
    PUT(PROTO_STDIN, 0, struct proto_stdin m = { k1, 0, 0, { (const uint8_t *)"abc", 3 } });
    PUT(PROTO_STDIN, 0, struct proto_stdin m = { k1, 3, 1, { NULL, 0 } });
    PUT(PROTO_OUTPUT_ACK, 0, struct proto_output_ack m = { k1, 5, 3 });
    PUT(PROTO_SIGNAL, 3, struct proto_signal m = { k1, 10, PROTO_SCOPE_TREE });
    PUT(PROTO_KILL, 4, struct proto_kill m = { k1, 0 });
    PUT(PROTO_RESIZE, 5, struct proto_resize m = { k1, 80, 25 });
    PUT(PROTO_LIST, 6, struct proto_list_jobs m = { 0 });
    PUT(PROTO_PING, 7, struct proto_ping m = { 1 });
    PUT(PROTO_ACK, 0, struct proto_ack m = { 3, { (const uint8_t *)"\x04\0\0\0\0\0\0\0", 8 } });
    PUT(PROTO_FORGET, 8, struct proto_forget m = { k1 });
    PUT(PROTO_STOP, 9, struct proto_stop m = { 100 });
    PUT(PROTO_GOODBYE, 0, struct proto_goodbye m = { { -5, proto_str_of("why") } });
}

static void host_seeds(void)
{
    static const uint32_t flags[] = { 0, PROTO_SPAWN_STDIN, PROTO_SPAWN_TTY | PROTO_SPAWN_STDIN, PROTO_SPAWN_SHELL };

    for (unsigned b = 0; b < 256; b += 29)
        for (unsigned f = 0; f < 4; f++) {
            begin((uint8_t)b);
            put_spawn(flags[f], 1);
            put_rest();
            end();
        }
}

/* In the order of the link's requests: SPAWN 1, its ATTACH and the other's, SIGNAL, LIST, PING. */
static void put_answers(uint64_t first, uint64_t out_first)
{
    PUT(PROTO_SPAWN | PROTO_ANSWER, 1, struct proto_spawn_answer m = { .pid = 7, .start_ms = 5 });
    for (uint64_t tag = first; tag < first + 6; tag++)
        PUT(PROTO_ATTACH | PROTO_ANSWER, tag, struct proto_attach_answer m = { .state = PROTO_JOB_RUNNING, .pid = 7,
            .out_first = tag == first ? 0 : out_first, .stdin_limit = 65536 });
}

static void put_events(const struct proto_id *k, uint64_t at)
{
    PUT(PROTO_OUTPUT, 0, struct proto_output m = { *k, 0, at, 0, { (const uint8_t *)"hello", 5 } });
    PUT(PROTO_OUTPUT, 0, struct proto_output m = { *k, 1, 0, 5, { (const uint8_t *)"err", 3 } });
    PUT(PROTO_STDIN_ROOM, 0, struct proto_stdin_room m = { *k, 10, 65546, 0 });
    PUT(PROTO_EXIT, 0, struct proto_exit m = { .key = *k, .kind = PROTO_END_EXITED, .out_total = at + 5, .err_total = 3,
        .text = proto_str_of("") });
    PUT(PROTO_TAKEN, 0, struct proto_taken m = { *k });
}

static void put_list(uint64_t tag)
{
    uint8_t jobs[256];
    struct proto_out list = { jobs, sizeof(jobs), 0, false };
    struct proto_job j = { .key = k1, .state = PROTO_JOB_ENDED, .label = proto_str_of("x") };

    proto_job_put(&list, &j);
    PUT(PROTO_LIST | PROTO_ANSWER, tag, struct proto_list_answer m = { .jobs = { jobs, (uint32_t)list.len } });
    PUT(PROTO_SIGNAL | PROTO_ANSWER, tag, struct proto_plain_answer m = { { -3, proto_str_of("gone") } });
    PUT(PROTO_PING | PROTO_ANSWER, tag, struct proto_ping_answer m = { .cookie = 1 });
}

static void guest_seeds(void)
{
    for (unsigned b = 1; b < 256; b += 27)
        for (unsigned first = 2; first < 6; first++) {
            begin((uint8_t)b);
            put_answers(first, b & 8 ? 5 : 0);
            put_list(first);
            put_events(&k1, 0);
            put_events(&k2, 5);
            end();
        }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    directory = argv[1];
    host_seeds();
    guest_seeds();
    printf("%d seeds\n", n_seeds);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* A guest that lies: the link cuts it off, gives it up after a few times, and everybody else goes on. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/guest/protocol.h"
#include "tests/unit/test_link_fixture.h"

/* ── a guest made of lies ── */

struct fake {
    int  fd;
    void (*behave)(struct fake *f);
    atomic_uint *connections;
    uint64_t seed;
    struct proto_host_hello host;
};

static bool get(int fd, uint8_t *p, size_t n)
{
    while (n) {
        ssize_t r = read(fd, p, n);

        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

static void put_raw(struct fake *f, const void *p, size_t n)
{
    ssize_t r = send(f->fd, p, n, MSG_NOSIGNAL);

    (void)r;
}

static void put(struct fake *f, uint16_t type, uint64_t tag, const void *msg)
{
    static _Thread_local uint8_t buf[1 << 20];
    struct proto_out o = { buf, sizeof(buf), 0, false };

    proto_encode(&o, type, tag, msg);
    if (!o.full)
        put_raw(f, buf, o.len);
}

/* The next frame's type, and its tag; 0: the host hung up. */
static uint16_t next_frame(struct fake *f, uint64_t *tag)
{
    static _Thread_local uint8_t buf[PROTO_TO_GUEST_MAX_BYTES];
    struct proto_head h;

    if (!get(f->fd, buf, PROTO_HEAD_BYTES) || proto_head_decode(buf, 16, sizeof(buf), &h) != 0 ||
        !get(f->fd, buf + 16, h.size_bytes - 16))
        return 0;
    *tag = h.tag;
    return h.type;
}

/* Waits for a frame of this type; its tag. */
static uint64_t await(struct fake *f, uint16_t type)
{
    uint64_t tag;
    uint16_t got;

    while ((got = next_frame(f, &tag)) != 0)
        if (got == type)
            return tag;
    return 1;
}

static void hello(struct fake *f)
{
    struct proto_guest_hello m = {
        .magic = PROTO_GUEST_MAGIC, .version = 1, .features = ~0ull, .instance = { { 1 } }, .nonce = { { 2 } },
        .max_frame_bytes = PROTO_TO_GUEST_MAX_BYTES, .pid = 1, .program = proto_str_of("evil\n\x1b[31m guest"),
    };

    put(f, PROTO_GUEST_HELLO, 0, &m);
}

static const struct proto_id key = { { 1 } };

/* Answers SPAWN (which comes on the first connection alone) and ATTACH as it should, for the job with
 * the key 1. */
static void start_job(struct fake *f, uint64_t first)
{
    struct proto_spawn_answer s = { .pid = 7 };
    struct proto_attach_answer a = { .state = PROTO_JOB_RUNNING, .pid = 7, .out_first = first, .stdin_limit = 65536 };
    uint64_t tag;
    uint16_t type;

    hello(f);
    while ((type = next_frame(f, &tag)) != 0 && type != PROTO_ATTACH)
        if (type == PROTO_SPAWN)
            put(f, PROTO_SPAWN | PROTO_ANSWER, tag, &s);
    if (type)
        put(f, PROTO_ATTACH | PROTO_ANSWER, tag, &a);
}

static void *run_fake(void *arg)
{
    struct fake *f = arg;
    char c;

    f->behave(f);
    while (read(f->fd, &c, 1) > 0) /* until the host cuts it off */
        ;
    close(f->fd);
    free(f);
    return NULL;
}

static atomic_uint connections;

static int dial_fake(struct host_side *h)
{
    struct fake *f = calloc(1, sizeof(*f));
    int pair[2];
    pthread_t thread;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    f->fd = pair[1];
    f->behave = (void (*)(struct fake *))h->dial_arg;
    f->seed = atomic_fetch_add(&connections, 1);
    pthread_create(&thread, NULL, run_fake, f);
    pthread_detach(thread);
    return pair[0];
}

/* Whether a guest that is given up has had the job. */
enum asked { NEVER, PERHAPS, SURELY };

/* A job on this guest ends as lost, and so does the link, after as many connections. */
static void assert_given_up(void (*behave)(struct fake *), unsigned after, enum asked asked, const char *why)
{
    struct link_spawn s = { .script = "true", .stdin_pipe = true };
    struct host_side h;
    struct tjob t;

    atomic_store(&connections, 0);
    host_start_with(&h, NULL, 1, dial_fake, (void *)behave);
    tjob_init(&t, &h, 1);
    t.hold[0] = true;
    tjob_spawn(&t, &s);
    link_job_stdin(t.job, 0, "x", 1, false);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_LOST);
    assert_int_equal(t.exit.code, -EPROTO);
    if (asked != PERHAPS)
        assert_int_equal(t.exit.unasked, asked == NEVER);
    if (why && !strstr(t.text, why))
        fail_msg("\"%s\" does not say \"%s\"", t.text, why);
    assert_true(link_state(h.link, NULL) == LINK_LOST);
    assert_int_equal(atomic_load(&connections), after);
    tjob_release(&t);
    tjob_finish(&t);
    host_stop(&h);
}

/* ── lies ── */

static void noise(struct fake *f)
{
    static const char text[] = "OCI runtime exec failed: exec failed: unable to start container process\r\n";

    put_raw(f, text, sizeof(text));
}

static void other_version(struct fake *f)
{
    struct proto_guest_hello m = { .magic = PROTO_GUEST_MAGIC, .version = 2, .max_frame_bytes = PROTO_TO_GUEST_MAX_BYTES,
                                   .program = proto_str_of("") };

    put(f, PROTO_GUEST_HELLO, 0, &m);
}

static void huge_frame(struct fake *f)
{
    static const uint8_t head[16] = { 0xff, 0xff, 0xff, 0x7f, 0x24, 0x01 };

    hello(f);
    put_raw(f, head, sizeof(head));
}

static void unasked_answer(struct fake *f)
{
    struct proto_plain_answer m = { { 0, proto_str_of("") } };

    hello(f);
    await(f, PROTO_SPAWN);
    put(f, PROTO_KILL | PROTO_ANSWER, 999, &m);
}

static void answer_of_another_type(struct fake *f)
{
    struct proto_plain_answer m = { { 0, proto_str_of("") } };

    hello(f);
    put(f, PROTO_KILL | PROTO_ANSWER, await(f, PROTO_SPAWN), &m);
}

static void host_frame(struct fake *f)
{
    struct proto_ping m = { 1 };

    hello(f);
    put(f, PROTO_PING, 1, &m);
}

static void second_hello(struct fake *f)
{
    hello(f);
    hello(f);
}

static void output_with_a_gap(struct fake *f)
{
    struct proto_output m = { key, 0, 5, 0, { (const uint8_t *)"x", 1 } };

    start_job(f, 0);
    put(f, PROTO_OUTPUT, 0, &m);
}

static void output_twice_in_the_log(struct fake *f)
{
    struct proto_output m = { key, 0, 0, 10, { (const uint8_t *)"x", 1 } };

    start_job(f, 0);
    put(f, PROTO_OUTPUT, 0, &m);
    m.offset = 1;
    put(f, PROTO_OUTPUT, 0, &m);
}

static void output_without_end(struct fake *f)
{
    static const uint8_t data[PROTO_CHUNK_MAX_BYTES];
    struct proto_output m = { key, 0, 0, 0, { data, sizeof(data) } };

    start_job(f, 0);
    for (int i = 0; i < 5; i++, m.offset += sizeof(data), m.log_offset += sizeof(data))
        put(f, PROTO_OUTPUT, 0, &m);
}

static void exit_before_all_output(struct fake *f)
{
    struct proto_exit m = { .key = key, .kind = PROTO_END_EXITED, .out_total = 3, .text = proto_str_of("") };

    start_job(f, 0);
    put(f, PROTO_EXIT, 0, &m);
}

static void input_that_was_never_sent(struct fake *f)
{
    struct proto_stdin_room m = { key, 1000, 66000, 0 };

    start_job(f, 0);
    await(f, PROTO_STDIN);
    put(f, PROTO_STDIN_ROOM, 0, &m);
}

static void streams_that_went_back(struct fake *f)
{
    start_job(f, f->seed == 0 ? 5 : 4);
    if (f->seed == 0)
        shutdown(f->fd, SHUT_RDWR);
}

static void lies_are_found_out_and_given_up(void **state)
{
    static const struct { void (*behave)(struct fake *); unsigned after; enum asked asked; const char *why; } lies[] = {
        { noise, 5, NEVER, "no greeting" },
        { other_version, 1, NEVER, "another version" },
        { huge_frame, 5, PERHAPS, "a malformed frame" },
        { unasked_answer, 5, SURELY, "KILL answer" },
        { answer_of_another_type, 5, SURELY, "KILL answer" },
        { host_frame, 5, PERHAPS, "PING" },
        { second_hello, 5, PERHAPS, "GUEST_HELLO" },
        { output_with_a_gap, 5, SURELY, "a malformed frame" },
        { output_twice_in_the_log, 5, SURELY, NULL },
        { output_without_end, 5, SURELY, NULL },
        { exit_before_all_output, 5, SURELY, "EXIT" },
        { input_that_was_never_sent, 5, SURELY, "STDIN_ROOM" },
        { streams_that_went_back, 6, SURELY, "ATTACH answer" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        print_message("lie %zu\n", i);
        assert_given_up(lies[i].behave, lies[i].after, lies[i].asked, lies[i].why);
    }
}

/* ── no lies, but odd ── */

static void odd_but_allowed(struct fake *f)
{
    struct proto_output other = { { { 99 } }, 0, 0, 0, { (const uint8_t *)"not yours", 9 } };
    struct proto_stdin_room room = { { { 99 } }, 5, 5, 0 };
    struct proto_exit x = { .key = { { 99 } }, .kind = PROTO_END_EXITED, .out_total = 8, .text = proto_str_of("") };
    struct proto_output m = { key, 1, 0, 0, { (const uint8_t *)"y", 1 } };

    start_job(f, 0);
    put(f, PROTO_OUTPUT, 0, &other);
    put(f, PROTO_STDIN_ROOM, 0, &room);
    put(f, PROTO_EXIT, 0, &x);
    put(f, PROTO_OUTPUT, 0, &m);
    x = (struct proto_exit){ .key = key, .kind = PROTO_END_EXITED, .code = 300, .err_total = 1, .text = proto_str_of("\x1b") };
    put(f, PROTO_EXIT, 0, &x);
    put(f, PROTO_EXIT, 0, &x);
}

static void frames_about_unknown_jobs_are_passed_over(void **state)
{
    struct link_spawn s = { .script = "true" };
    struct link_guest g;
    struct host_side h;
    struct tjob t;

    (void)state;
    host_start_with(&h, NULL, 1, dial_fake, (void *)odd_but_allowed);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &s);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_EXITED);
    assert_int_equal(t.len[1], 1);
    link_state(h.link, &g);
    assert_string_equal(g.program, "evil??[31m guest");
    tjob_release(&t);
    tjob_finish(&t);
    host_stop(&h);
}

/* Frames that are nearly right, and streams that end anywhere. */
static void nearly_right(struct fake *f)
{
    static const uint8_t data[300] = { 1 };
    struct proto_output out = { key, 0, 0, 0, { data, sizeof(data) } };
    struct proto_exit x = { .key = key, .kind = PROTO_END_EXITED, .text = proto_str_of("x") };
    struct proto_stdin_room room = { key, 1, 65537, 0 };
    uint8_t buf[2048];
    struct proto_out o = { buf, sizeof(buf), 0, false };

    start_job(f, 0);
    proto_encode(&o, PROTO_STDIN_ROOM, 0, &room);
    proto_encode(&o, PROTO_OUTPUT, 0, &out);
    proto_encode(&o, PROTO_EXIT, 0, &x);
    for (int i = 0; i < 3; i++) {
        f->seed = f->seed * 6364136223846793005u + 1442695040888963407u;
        buf[(f->seed >> 33) % o.len] = (uint8_t)(f->seed >> 50);
    }
    put_raw(f, buf, o.len - (f->seed >> 20) % 16);
    if (f->seed >> 40 & 1)
        shutdown(f->fd, SHUT_RDWR);
}

static void a_thousand_broken_guests_break_nothing_here(void **state)
{
    struct link_spawn s = { .script = "true", .stdin_pipe = true };

    (void)state;
    atomic_store(&connections, 1);
    while (atomic_load(&connections) < 1000) {
        struct host_side h;
        struct tjob t;
        bool over = false;

        host_start_with(&h, NULL, 1, dial_fake, (void *)nearly_right);
        tjob_init(&t, &h, 1);
        tjob_spawn(&t, &s);
        link_job_stdin(t.job, 0, "x", 1, false);
        for (int i = 0; i < 100 && !over; i++) {
            usleep(500);
            pthread_mutex_lock(&t.lock);
            over = t.exited;
            pthread_mutex_unlock(&t.lock);
        }
        tjob_forget(&t);
        tjob_finish(&t);
        host_stop(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_found_out_and_given_up),
        cmocka_unit_test(frames_about_unknown_jobs_are_passed_over),
        cmocka_unit_test(a_thousand_broken_guests_break_nothing_here),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

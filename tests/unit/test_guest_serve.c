// SPDX-License-Identifier: Apache-2.0
/* The guest as a program: where it runs, who may speak to it, and what it does to hosts that break the
 * rules. Speaks the protocol by hand. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/guest/protocol.h"
#include "tests/unit/test_link_fixture.h"

#define PATIENCE_MS 60000

static struct sandbox box;

static int setup(void **state)
{
    (void)state;
    sandbox_start(&box);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sandbox_stop(&box, SIGTERM);
    return 0;
}

/* ── a host by hand ── */

struct raw {
    int fd;
    struct proto_guest_hello hello;
    uint8_t buf[1 << 20];
    uint8_t *payload;
    uint32_t payload_len;
};

/* Reads exactly n bytes; false at the end of the stream. */
static bool get(int fd, uint8_t *p, size_t n)
{
    while (n) {
        struct pollfd w = { fd, POLLIN, 0 };
        ssize_t r = poll(&w, 1, PATIENCE_MS) == 1 ? read(fd, p, n) : -2;

        if (r == -2)
            fail_msg("the guest says nothing");
        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

/* The next frame's type; 0: the guest hung up. */
static uint16_t next_frame(struct raw *r, uint64_t *tag)
{
    struct proto_head h;

    if (!get(r->fd, r->buf, PROTO_HEAD_BYTES))
        return 0;
    assert_int_equal(proto_head_decode(r->buf, PROTO_HEAD_BYTES, sizeof(r->buf), &h), 0);
    r->payload = r->buf + PROTO_HEAD_BYTES;
    r->payload_len = h.size_bytes - PROTO_HEAD_BYTES;
    assert_true(get(r->fd, r->payload, r->payload_len));
    if (tag)
        *tag = h.tag;
    return h.type;
}

static void put(struct raw *r, uint16_t type, uint64_t tag, const void *msg)
{
    static uint8_t frame[1 << 21];
    struct proto_out o = { frame, sizeof(frame), 0, false };

    proto_encode(&o, type, tag, msg);
    assert_false(o.full);
    assert_int_equal(send(r->fd, frame, o.len, MSG_NOSIGNAL), o.len);
}

static struct raw *dial(int fd)
{
    struct raw *r = calloc(1, sizeof(*r));

    assert_true(fd >= 0);
    r->fd = fd;
    assert_int_equal(next_frame(r, NULL), PROTO_GUEST_HELLO);
    assert_int_equal(proto_decode(PROTO_GUEST_HELLO, r->payload, r->payload_len, &r->hello), 0);
    return r;
}

static struct proto_host_hello greeting(const struct raw *r, uint8_t host, uint8_t epoch)
{
    return (struct proto_host_hello){
        .magic = PROTO_HOST_MAGIC, .version = PROTO_VERSION, .features = PROTO_FEATURE_JOBS, .nonce = r->hello.nonce,
        .host = { { host } }, .epoch = { { epoch } }, .max_frame_bytes = PROTO_TO_HOST_MAX_BYTES,
    };
}

static struct raw *greeted(uint8_t host, uint8_t epoch)
{
    struct raw *r = dial(sandbox_dial(&box));
    struct proto_host_hello m = greeting(r, host, epoch);

    put(r, PROTO_HOST_HELLO, 0, &m);
    return r;
}

static void hang_up(struct raw *r)
{
    close(r->fd);
    free(r);
}

/* The guest says GOODBYE with this text, or (NULL) any, and hangs up. */
static void assert_thrown_out(struct raw *r, const char *why)
{
    struct proto_goodbye m;

    assert_int_equal(next_frame(r, NULL), PROTO_GOODBYE);
    assert_int_equal(proto_decode(PROTO_GOODBYE, r->payload, r->payload_len, &m), 0);
    if (why)
        assert_string_equal(m.why.text.s, why);
    assert_int_equal(next_frame(r, NULL), 0);
    hang_up(r);
}

static struct proto_status status_of(const struct raw *r, uint16_t type)
{
    union { struct proto_status s; uint8_t room[512]; } m;

    assert_int_equal(proto_decode(type, r->payload, r->payload_len, &m), 0);
    return m.s;
}

/* Asks and waits for the answer, passing over other frames. */
static int ask(struct raw *r, uint16_t type, uint64_t tag, const void *msg)
{
    uint64_t got;

    put(r, type, tag, msg);
    for (;;) {
        uint16_t t = next_frame(r, &got);

        assert_int_not_equal(t, 0);
        if (t == (type | PROTO_ANSWER) && got == tag)
            return status_of(r, t).code;
    }
}

/* ── greeting ── */

static void a_guest_greets_first_and_says_who_it_is(void **state)
{
    struct raw *a = dial(sandbox_dial(&box)), *b = dial(sandbox_dial(&box));

    (void)state;
    assert_int_equal(a->hello.version, 1);
    assert_int_equal(a->hello.features, PROTO_FEATURE_JOBS);
    assert_int_equal(a->hello.pid, box.pid);
    assert_true(proto_id_equal(&a->hello.instance, &b->hello.instance));
    assert_false(proto_id_equal(&a->hello.nonce, &b->hello.nonce));
    hang_up(a);
    hang_up(b);
}

static void a_greeting_that_is_none_is_refused(void **state)
{
    struct proto_host_hello m;
    struct raw *r;

    (void)state;
    /* What a dead daemon has left in a pipe does not know the number of this connection. */
    r = dial(sandbox_dial(&box));
    m = greeting(r, 9, 1);
    m.nonce.b[3] ^= 1;
    put(r, PROTO_HOST_HELLO, 0, &m);
    assert_thrown_out(r, "not a greeting of this protocol");

    r = dial(sandbox_dial(&box));
    m = greeting(r, 9, 1);
    m.version = 2;
    put(r, PROTO_HOST_HELLO, 0, &m);
    assert_thrown_out(r, "this guest speaks version 1 of the protocol only");

    r = dial(sandbox_dial(&box));
    struct proto_ping ping = { 1 };
    put(r, PROTO_PING, 1, &ping);
    assert_thrown_out(r, "not a greeting of this protocol");

    r = dial(sandbox_dial(&box));
    assert_int_equal(write(r->fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    assert_thrown_out(r, NULL);
}

static void who_does_not_greet_makes_room_for_others(void **state)
{
    struct raw *first[20], *r;

    (void)state;
    for (int i = 0; i < 20; i++)
        first[i] = dial(sandbox_dial(&box));
    r = greeted(9, 1);
    struct proto_ping ping = { 7 };
    assert_int_equal(ask(r, PROTO_PING, 1, &ping), 0);
    hang_up(r);
    for (int i = 0; i < 20; i++)
        hang_up(first[i]);
}

static void the_same_host_replaces_its_connection_and_another_does_not(void **state)
{
    struct raw *a = greeted(1, 1), *b = greeted(2, 1), *c;
    struct proto_ping ping = { 7 };

    (void)state;
    assert_int_equal(ask(a, PROTO_PING, 1, &ping), 0);
    assert_int_equal(ask(b, PROTO_PING, 1, &ping), 0);
    c = greeted(1, 2);
    assert_thrown_out(a, "this host has connected anew");
    assert_int_equal(ask(b, PROTO_PING, 2, &ping), 0);
    assert_int_equal(ask(c, PROTO_PING, 1, &ping), 0);
    hang_up(b);
    hang_up(c);
}

/* ── requests ── */

static struct proto_spawn spawn_of(uint64_t key, const char *script)
{
    struct proto_spawn m = { .flags = PROTO_SPAWN_SHELL, .argv = { script, 1, (uint32_t)strlen(script) + 1 } };

    memcpy(m.key.b, &key, sizeof(key));
    return m;
}

static void a_request_of_the_future_is_refused_and_the_rest_goes_on(void **state)
{
    struct raw *r = greeted(1, 1);
    uint8_t frame[24] = { 24, 0, 0, 0, 0x34, 0x02, 0, 0, 5 };
    struct proto_ping ping = { 7 };
    struct proto_plain_answer a;
    uint64_t tag;

    (void)state;
    assert_int_equal(write(r->fd, frame, sizeof(frame)), sizeof(frame));
    assert_int_equal(next_frame(r, &tag), 0x0234 | PROTO_ANSWER);
    assert_int_equal(tag, 5);
    assert_int_equal(proto_decode(PROTO_KILL | PROTO_ANSWER, r->payload, r->payload_len, &a), 0);
    assert_int_equal(a.status.code, -ENOSYS);
    assert_int_equal(ask(r, PROTO_PING, 6, &ping), 0);
    hang_up(r);
}

/* The answer of the first connection was never read: the second asks again with the same number. */
static void a_repeated_request_gets_the_old_answer(void **state)
{
    struct raw *r = greeted(1, 77);
    struct proto_spawn m = spawn_of(501, "exit 0");
    struct proto_spawn_answer first, again;
    struct proto_ack ack = { 0, { (const uint8_t *)"\x01\0\0\0\0\0\0", 8 } };

    (void)state;
    assert_int_equal(ask(r, PROTO_SPAWN, 1, &m), 0);
    assert_int_equal(proto_decode(PROTO_SPAWN | PROTO_ANSWER, r->payload, r->payload_len, &first), 0);
    assert_int_equal(first.existed, 0);
    hang_up(r);
    r = greeted(1, 77);
    assert_int_equal(ask(r, PROTO_SPAWN, 1, &m), 0);
    assert_int_equal(proto_decode(PROTO_SPAWN | PROTO_ANSWER, r->payload, r->payload_len, &again), 0);
    assert_int_equal(again.existed, 0);
    assert_int_equal(again.pid, first.pid);
    put(r, PROTO_ACK, 0, &ack);
    /* Acknowledged: now it is a new request, and the key decides. */
    assert_int_equal(ask(r, PROTO_SPAWN, 1, &m), 0);
    assert_int_equal(proto_decode(PROTO_SPAWN | PROTO_ANSWER, r->payload, r->payload_len, &again), 0);
    assert_int_equal(again.existed, 1);
    hang_up(r);
}

static void answers_that_nobody_acknowledges_have_a_limit(void **state)
{
    struct raw *r = greeted(1, 78);
    struct proto_forget m = { { { 99 } } };

    (void)state;
    for (uint64_t tag = 1; tag <= PROTO_TAG_WINDOW; tag++)
        assert_int_equal(ask(r, PROTO_FORGET, tag, &m), 0);
    put(r, PROTO_FORGET, PROTO_TAG_WINDOW + 1, &m);
    assert_thrown_out(r, "too many answers that were not acknowledged");
    r = greeted(1, 79); /* another life has nothing to repeat */
    assert_int_equal(ask(r, PROTO_FORGET, 1, &m), 0);
    hang_up(r);
}

static void everything_below_the_floor_is_acknowledged(void **state)
{
    struct raw *r = greeted(1, 80);
    struct proto_forget m = { { { 99 } } };
    struct proto_ack ack = { 0, { NULL, 0 } };

    (void)state;
    for (uint64_t tag = 1; tag <= 3 * PROTO_TAG_WINDOW; tag++) {
        assert_int_equal(ask(r, PROTO_FORGET, tag, &m), 0);
        ack.below = tag;
        if (tag % 100 == 0)
            put(r, PROTO_ACK, 0, &ack);
    }
    hang_up(r);
}

static void output_comes_only_to_who_has_attached(void **state)
{
    struct raw *r = greeted(1, 1);
    struct proto_spawn m = spawn_of(502, "echo hello");
    struct proto_attach at = { .key = m.key };
    struct proto_ping ping = { 7 };
    struct proto_output out;
    struct proto_exit x;

    (void)state;
    put(r, PROTO_SPAWN, 1, &m);
    for (uint64_t tag = 2; tag < 20; tag++) { /* no OUTPUT, no EXIT between */
        put(r, PROTO_PING, tag, &ping);
        uint16_t t = next_frame(r, NULL);
        assert_true(t == (PROTO_SPAWN | PROTO_ANSWER) || t == (PROTO_PING | PROTO_ANSWER));
        usleep(2000);
    }
    assert_int_equal(ask(r, PROTO_ATTACH, 100, &at), 0);
    assert_int_equal(next_frame(r, NULL), PROTO_OUTPUT);
    assert_int_equal(proto_decode(PROTO_OUTPUT, r->payload, r->payload_len, &out), 0);
    assert_int_equal(out.data.len, 6);
    assert_memory_equal(out.data.p, "hello\n", 6);
    assert_int_equal(next_frame(r, NULL), PROTO_EXIT);
    assert_int_equal(proto_decode(PROTO_EXIT, r->payload, r->payload_len, &x), 0);
    assert_int_equal(x.out_total, 6);
    at.out_offset = 3;
    assert_int_equal(ask(r, PROTO_ATTACH, 101, &at), 0);
    assert_int_equal(next_frame(r, NULL), PROTO_OUTPUT);
    assert_int_equal(proto_decode(PROTO_OUTPUT, r->payload, r->payload_len, &out), 0);
    assert_memory_equal(out.data.p, "lo\n", 3);
    assert_int_equal(out.offset, 3);
    assert_int_equal(out.log_offset, 3);
    at.out_offset = 7;
    assert_int_equal(ask(r, PROTO_ATTACH, 102, &at), -EINVAL);
    hang_up(r);
}

/* ── hosts that break the rules ── */

static void acknowledging_what_was_not_sent_ends_the_connection(void **state)
{
    struct raw *r = greeted(1, 1);
    struct proto_spawn m = spawn_of(503, "exit 0");
    struct proto_attach at = { .key = m.key };
    struct proto_output_ack ack = { m.key, 1, 0 };

    (void)state;
    assert_int_equal(ask(r, PROTO_SPAWN, 50, &m), 0);
    assert_int_equal(ask(r, PROTO_ATTACH, 51, &at), 0);
    assert_int_equal(next_frame(r, NULL), PROTO_EXIT);
    put(r, PROTO_OUTPUT_ACK, 0, &ack);
    assert_thrown_out(r, "output was acknowledged that had not been sent");
}

static void input_beyond_its_limit_or_with_a_gap_ends_the_connection(void **state)
{
    static uint8_t data[PROTO_STDIN_WINDOW_BYTES + 1];
    struct proto_spawn m = spawn_of(504, "sleep 100");
    struct proto_attach at = { .key = m.key };
    struct proto_stdin in = { m.key, 1, 0, { data, 1 } };
    struct proto_kill kill = { m.key, 0 };
    struct raw *r = greeted(1, 1);

    (void)state;
    m.flags |= PROTO_SPAWN_STDIN;
    assert_int_equal(ask(r, PROTO_SPAWN, 60, &m), 0);
    assert_int_equal(ask(r, PROTO_ATTACH, 61, &at), 0);
    put(r, PROTO_STDIN, 0, &in);
    assert_thrown_out(r, "standard input with a gap or beyond its limit");
    r = greeted(1, 1);
    assert_int_equal(ask(r, PROTO_ATTACH, 62, &at), 0);
    in = (struct proto_stdin){ m.key, 0, 0, { data, sizeof(data) } };
    put(r, PROTO_STDIN, 0, &in);
    assert_thrown_out(r, "standard input with a gap or beyond its limit");
    r = greeted(1, 1);
    assert_int_equal(ask(r, PROTO_KILL, 63, &kill), 0);
    hang_up(r);
}

static void nonsense_ends_the_connection_and_nothing_else(void **state)
{
    uint64_t seed = 7;
    struct raw *good = greeted(2, 1);
    struct proto_ping ping = { 7 };
    struct proto_spawn spawn = spawn_of(505, "exit 0");

    (void)state;
    for (int i = 0; i < 300; i++) {
        struct raw *r = greeted(3, (uint8_t)i);
        uint8_t frame[512];
        struct proto_out o = { frame, sizeof(frame), 0, false };

        proto_encode(&o, PROTO_SPAWN, 1 + (uint64_t)i, &spawn);
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            frame[(seed >> 33) % o.len] = (uint8_t)(seed >> 50);
        }
        for (size_t at = 0; at < o.len; at += 7)
            if (send(r->fd, frame + at, o.len - at < 7 ? o.len - at : 7, MSG_NOSIGNAL) < 0)
                break;
        hang_up(r);
        assert_int_equal(ask(good, PROTO_PING, 1000 + (uint64_t)i, &ping), 0);
    }
    hang_up(good);
}

static void a_host_that_does_not_read_blocks_nobody(void **state)
{
    struct raw *deaf = greeted(3, 1), *good = greeted(2, 1);
    struct proto_spawn m = spawn_of(506, "yes");
    struct proto_attach at = { .key = m.key };
    struct proto_kill kill = { m.key, 0 };
    struct proto_ping ping = { 7 };

    (void)state;
    put(deaf, PROTO_SPAWN, 1, &m);
    put(deaf, PROTO_ATTACH, 2, &at);
    for (uint64_t tag = 3; tag < 2000; tag++) {
        uint8_t frame[64];
        struct proto_out o = { frame, sizeof(frame), 0, false };

        proto_encode(&o, PROTO_PING, tag, &ping);
        if (send(deaf->fd, frame, o.len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
    }
    for (uint64_t tag = 1; tag < 200; tag++)
        assert_int_equal(ask(good, PROTO_PING, tag, &ping), 0);
    assert_int_equal(ask(good, PROTO_KILL, 300, &kill), 0);
    hang_up(deaf);
    hang_up(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_greets_first_and_says_who_it_is),
        cmocka_unit_test(a_greeting_that_is_none_is_refused),
        cmocka_unit_test(who_does_not_greet_makes_room_for_others),
        cmocka_unit_test(the_same_host_replaces_its_connection_and_another_does_not),
        cmocka_unit_test(a_request_of_the_future_is_refused_and_the_rest_goes_on),
        cmocka_unit_test(a_repeated_request_gets_the_old_answer),
        cmocka_unit_test(answers_that_nobody_acknowledges_have_a_limit),
        cmocka_unit_test(everything_below_the_floor_is_acknowledged),
        cmocka_unit_test(output_comes_only_to_who_has_attached),
        cmocka_unit_test(acknowledging_what_was_not_sent_ends_the_connection),
        cmocka_unit_test(input_beyond_its_limit_or_with_a_gap_ends_the_connection),
        cmocka_unit_test(nonsense_ends_the_connection_and_nothing_else),
        cmocka_unit_test(a_host_that_does_not_read_blocks_nobody),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

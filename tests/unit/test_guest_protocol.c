// SPDX-License-Identifier: Apache-2.0
/* The codec: every message comes back as it was sent, and nothing else is accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "backends/guest/protocol.h"
#include "backends/guest/wire.h"

#define STR(s) { s, sizeof(s) - 1 }
#define KEY { { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } }
#define OK_STATUS { 0, STR("") }

static const uint8_t two_groups[] = { 10, 0, 0, 0, 0x44, 0x33, 0x22, 0x11 };
static const uint8_t two_tags[16] = { 7, 0, 0, 0, 0, 0, 0, 0, 9 };
static const uint8_t some_bytes[] = { 0, 255, 10, 13, 0 };

static const struct proto_guest_hello guest_hello = {
    PROTO_GUEST_MAGIC, 1, 0x8000000000000001, KEY, KEY, PROTO_TO_GUEST_MAX_BYTES, 1, 1000, 1700000000000, STR("wsm-guest 9"),
    { some_bytes, 5 },
};
static const struct proto_host_hello host_hello = {
    PROTO_HOST_MAGIC, 1, 1, KEY, KEY, KEY, PROTO_TO_HOST_MAX_BYTES, { NULL, 0 },
};
static const struct proto_goodbye goodbye = { { -EPROTO, STR("no, thank you") } };
static const struct proto_ack ack = { 5, { two_tags, sizeof(two_tags) } };
static const struct proto_ping ping = { 0x1122334455667788 };
static const struct proto_ping_answer ping_answer = { OK_STATUS, 0x1122334455667788, 3, 2 };
static const struct proto_stop stop = { 10000 };
static const struct proto_plain_answer refused = { { -ESRCH, STR("the job has ended") } };
static const struct proto_plain_answer granted = { OK_STATUS };
static const struct proto_spawn spawn = {
    KEY, PROTO_SPAWN_STDIN | PROTO_SPAWN_IDS, 1000, 1001, 60000, 10000, 80, 25, { two_groups, 2 }, STR("alice/coder/s1/test"),
    STR("/workspace/sub dir"), STR("app:www"), { "echo\0\0\xff\xfe\n", 3, 10 }, { "A=1\0B=", 2, 7 },
};
static const struct proto_spawn_answer spawn_answer = { OK_STATUS, 1, 4711, 1700000000001 };
static const struct proto_spawn_answer spawn_refused = { .status = { -EAGAIN, STR("full") } };
static const struct proto_attach attach = { KEY, 1ull << 40, 3 };
static const struct proto_attach_answer attach_answer = {
    OK_STATUS, PROTO_JOB_ENDING, 4711, 1700000000001, 1ull << 40, 3, 12, 65548, 1,
};
static const struct proto_list_jobs list = { 17 };
static const struct proto_signal sig = { KEY, 10, PROTO_SCOPE_TREE };
static const struct proto_kill kill_msg = { KEY, 0 };
static const struct proto_resize resize = { KEY, 120, 40 };
static const struct proto_forget forget = { KEY };
static const struct proto_output output = { KEY, PROTO_STDERR, 5, 1ull << 33, { some_bytes, 5 } };
static const struct proto_output_ack output_ack = { KEY, 1, 2 };
static const struct proto_stdin input = { KEY, 3, 1, { some_bytes, 5 } };
static const struct proto_stdin input_end = { KEY, 3, 1, { NULL, 0 } };
static const struct proto_stdin_room room = { KEY, 3, 65539, 0 };
static const struct proto_exit exit_msg = {
    KEY, PROTO_END_FAILED, -ENOENT, 0, 1, 2, 1700000000001, 1700000000002, STR("/nowhere: No such file"),
};
static const struct proto_taken taken = { KEY };

static const struct example {
    uint16_t type;
    const void *msg;
    bool open_ended; /* its last field takes whatever follows */
} examples[] = {
    { PROTO_GUEST_HELLO, &guest_hello, true }, { PROTO_HOST_HELLO, &host_hello, true },
    { PROTO_GOODBYE, &goodbye, false }, { PROTO_ACK, &ack, true }, { PROTO_PING, &ping, false },
    { PROTO_STOP, &stop, false }, { PROTO_SPAWN, &spawn, false }, { PROTO_ATTACH, &attach, false },
    { PROTO_LIST, &list, false }, { PROTO_SIGNAL, &sig, false }, { PROTO_KILL, &kill_msg, false },
    { PROTO_RESIZE, &resize, false }, { PROTO_FORGET, &forget, false }, { PROTO_OUTPUT, &output, true },
    { PROTO_OUTPUT_ACK, &output_ack, false }, { PROTO_STDIN, &input, true }, { PROTO_STDIN, &input_end, true },
    { PROTO_STDIN_ROOM, &room, false }, { PROTO_EXIT, &exit_msg, false }, { PROTO_TAKEN, &taken, false },
    { PROTO_PING | PROTO_ANSWER, &ping_answer, false }, { PROTO_STOP | PROTO_ANSWER, &granted, false },
    { PROTO_SIGNAL | PROTO_ANSWER, &refused, false }, { PROTO_KILL | PROTO_ANSWER, &granted, false },
    { PROTO_RESIZE | PROTO_ANSWER, &refused, false }, { PROTO_FORGET | PROTO_ANSWER, &granted, false },
    { PROTO_SPAWN | PROTO_ANSWER, &spawn_answer, false }, { PROTO_SPAWN | PROTO_ANSWER, &spawn_refused, false },
    { PROTO_ATTACH | PROTO_ANSWER, &attach_answer, false },
};
#define EXAMPLES (sizeof(examples) / sizeof(examples[0]))

union any {
    struct proto_guest_hello guest_hello;
    struct proto_host_hello host_hello;
    struct proto_spawn spawn;
    struct proto_exit exit;
    struct proto_list_answer list_answer;
    struct proto_attach_answer attach_answer;
    uint8_t room[512];
};

static size_t encode(uint16_t type, const void *msg, uint8_t *buf, size_t size)
{
    struct proto_out o = { buf, size, 0, false };

    proto_encode(&o, type, 77, msg);
    assert_false(o.full);
    return o.len;
}

/* Decodes a whole frame of `len` bytes and encodes it again: 0 when it is the same, else the decoder's
 * error. Never accepts what it would not itself produce. */
static int there_and_back(const uint8_t *frame, size_t len)
{
    struct proto_head h;
    union any m;
    uint8_t again[2048];
    int r = proto_head_decode(frame, len, PROTO_TO_GUEST_MAX_BYTES, &h);

    if (r == 0 && h.size_bytes != len)
        r = -EBADMSG;
    if (r == 0)
        r = proto_decode(h.type, frame + PROTO_HEAD_BYTES, len - PROTO_HEAD_BYTES, &m);
    if (r != 0)
        return r;
    struct proto_out o = { again, sizeof(again), 0, false };
    proto_encode(&o, h.type, h.tag, &m);
    assert_false(o.full);
    assert_int_equal(o.len, len);
    assert_memory_equal(again, frame, len);
    return 0;
}

static void every_message_comes_back_as_it_was_sent(void **state)
{
    uint8_t buf[2048];

    (void)state;
    for (size_t i = 0; i < EXAMPLES; i++) {
        size_t n = encode(examples[i].type, examples[i].msg, buf, sizeof(buf));

        assert_int_equal(there_and_back(buf, n), 0);
    }
}

static void every_type_has_an_example(void **state)
{
    (void)state;
    for (size_t t = 0; proto_type_at(t); t++) {
        bool found = proto_type_at(t) == (PROTO_LIST | PROTO_ANSWER);

        assert_true(proto_msg_size(proto_type_at(t)) <= sizeof(union any));
        for (size_t i = 0; i < EXAMPLES; i++)
            found |= examples[i].type == proto_type_at(t);
        if (!found)
            fail_msg("%s", proto_type_name(proto_type_at(t)));
    }
}

static void counting_says_what_encoding_needs(void **state)
{
    uint8_t buf[2048];

    (void)state;
    for (size_t i = 0; i < EXAMPLES; i++) {
        struct proto_out count = { NULL, 0, 0, false }, tight;
        size_t n = encode(examples[i].type, examples[i].msg, buf, sizeof(buf));

        proto_encode(&count, examples[i].type, 77, examples[i].msg);
        assert_int_equal(count.len, n);
        tight = (struct proto_out){ buf, n - 1, 0, false };
        proto_encode(&tight, examples[i].type, 77, examples[i].msg);
        assert_true(tight.full);
    }
}

static void a_frame_that_was_cut_is_refused(void **state)
{
    uint8_t buf[2048];

    (void)state;
    for (size_t i = 0; i < EXAMPLES; i++) {
        size_t n = encode(examples[i].type, examples[i].msg, buf, sizeof(buf));

        for (size_t cut = PROTO_HEAD_BYTES; cut < n; cut++) {
            wire_put32(buf, (uint32_t)cut);
            int r = there_and_back(buf, cut);
            if (!examples[i].open_ended)
                assert_int_equal(r, -EBADMSG);
        }
    }
}

static void a_byte_too_many_is_refused(void **state)
{
    uint8_t buf[2048];

    (void)state;
    for (size_t i = 0; i < EXAMPLES; i++) {
        size_t n = encode(examples[i].type, examples[i].msg, buf, sizeof(buf));

        if (examples[i].open_ended)
            continue;
        buf[n] = 0;
        wire_put32(buf, (uint32_t)n + 1);
        assert_int_equal(there_and_back(buf, n + 1), -EBADMSG);
    }
}

static void any_changed_byte_is_refused_or_means_exactly_what_it_says(void **state)
{
    uint8_t buf[2048], changed[2048];

    (void)state;
    for (size_t i = 0; i < EXAMPLES; i++) {
        size_t n = encode(examples[i].type, examples[i].msg, buf, sizeof(buf));

        for (size_t at = 0; at < n; at++)
            for (int v = 0; v < 256; v++) {
                memcpy(changed, buf, n);
                changed[at] = (uint8_t)v;
                there_and_back(changed, n);
            }
    }
}

static void heads_have_bounds(void **state)
{
    uint8_t b[PROTO_HEAD_BYTES] = { 16 };
    struct proto_head h;

    (void)state;
    for (size_t n = 0; n < PROTO_HEAD_BYTES; n++)
        assert_int_equal(proto_head_decode(b, n, 100, &h), -EAGAIN);
    assert_int_equal(proto_head_decode(b, 16, 100, &h), 0);
    b[0] = 15;
    assert_int_equal(proto_head_decode(b, 16, 100, &h), -EBADMSG);
    b[0] = 101;
    assert_int_equal(proto_head_decode(b, 16, 100, &h), -EBADMSG);
    b[0] = 100;
    assert_int_equal(proto_head_decode(b, 16, 100, &h), 0);
    b[6] = 1;
    assert_int_equal(proto_head_decode(b, 16, 100, &h), -EBADMSG);
}

/* What docs/guest-protocol.md shows. */
static void the_bytes_are_those_of_the_specification(void **state)
{
    static const uint8_t want[] = {
        0x36, 0, 0, 0, 0x20, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,          /* 54 bytes, OUTPUT, no tag */
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,             /* the job */
        1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0,                 /* stderr, offset 5, in the log at 2^33 */
        0, 255, 10, 13, 0,
    };
    static const uint8_t signal_want[] = {
        0x25, 0, 0, 0, 0x04, 0x01, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 10, 0, 0, 0, 2,
    };
    uint8_t buf[256];
    struct proto_out o = { buf, sizeof(buf), 0, false };

    (void)state;
    proto_encode(&o, PROTO_OUTPUT, 0, &output);
    assert_int_equal(o.len, sizeof(want));
    assert_memory_equal(buf, want, sizeof(want));
    assert_int_equal(encode(PROTO_SIGNAL, &sig, buf, sizeof(buf)), sizeof(signal_want));
    assert_memory_equal(buf, signal_want, sizeof(signal_want));
}

static void output_can_be_read_before_its_data_has_come(void **state)
{
    uint8_t buf[256];
    struct proto_out o = { buf, sizeof(buf), 0, false };
    struct proto_head h;
    struct proto_output m;

    (void)state;
    proto_encode_split(&o, PROTO_OUTPUT, 0, &output);
    assert_int_equal(o.len, PROTO_OUTPUT_HEAD_BYTES);
    assert_int_equal(proto_head_decode(buf, o.len, 1000, &h), 0);
    assert_int_equal(h.size_bytes, PROTO_OUTPUT_HEAD_BYTES + 5);
    assert_int_equal(proto_output_decode(&h, buf, &m), 0);
    assert_int_equal(m.data.len, 5);
    assert_int_equal(m.stream, PROTO_STDERR);
    assert_int_equal(m.offset, 5);
    h.size_bytes = PROTO_OUTPUT_HEAD_BYTES;
    assert_int_equal(proto_output_decode(&h, buf, &m), -EBADMSG);
    h.size_bytes = PROTO_OUTPUT_HEAD_BYTES + PROTO_CHUNK_MAX_BYTES + 1;
    assert_int_equal(proto_output_decode(&h, buf, &m), -EBADMSG);
    h.size_bytes = PROTO_OUTPUT_HEAD_BYTES + 1;
    buf[32] = 2; /* no such stream */
    assert_int_equal(proto_output_decode(&h, buf, &m), -EBADMSG);
}

static void encoding_refuses_what_decoding_would(void **state)
{
    uint8_t buf[4096];
    struct proto_spawn s = spawn;
    struct proto_out o;
    static char long_text[8192];

    (void)state;
#define REFUSED() do { o = (struct proto_out){ buf, sizeof(buf), 0, false }; proto_encode(&o, PROTO_SPAWN, 1, &s); \
        assert_true(o.full); s = spawn; } while (0)
    s.flags = PROTO_SPAWN_FLAGS_ALL + 1; REFUSED();
    s.argv.count = 2; REFUSED();
    s.argv.size = 9; REFUSED();
    s.argv = (struct proto_list){ NULL, 0, 0 }; REFUSED();
    s.cwd = (struct proto_str){ "a\0b", 3 }; REFUSED();
    memset(long_text, 'x', sizeof(long_text));
    s.cwd = (struct proto_str){ long_text, PROTO_CWD_MAX_BYTES + 1 }; REFUSED();
    s.groups.count = PROTO_GROUPS_MAX_COUNT + 1; REFUSED();
    s.timeout_ms = PROTO_TIMEOUT_MAX_MS + 1; REFUSED();
#undef REFUSED
    o = (struct proto_out){ buf, sizeof(buf), 0, false };
    proto_encode(&o, 0x7777, 1, &s);
    assert_true(o.full);
    assert_int_equal(proto_decode(0x7777, buf, 0, &s), -ENOSYS);
}

static void a_list_of_jobs_comes_back(void **state)
{
    struct proto_job j = { KEY, PROTO_JOB_RUNNING, 1, 12, 1700000000001, 1, 2, 3, 4, STR("alice/coder/s1/test") }, back;
    struct proto_list_answer a = { OK_STATUS, 99, { NULL, 0 } }, got;
    uint8_t jobs[1024], frame[2048];
    struct proto_out o = { jobs, sizeof(jobs), 0, false };
    size_t pos = 0, n;

    (void)state;
    proto_job_put(&o, &j);
    j.label = (struct proto_str)STR("");
    proto_job_put(&o, &j);
    a.jobs = (struct proto_data){ jobs, (uint32_t)o.len };
    n = encode(PROTO_LIST | PROTO_ANSWER, &a, frame, sizeof(frame));
    assert_int_equal(proto_decode(PROTO_LIST | PROTO_ANSWER, frame + 16, n - 16, &got), 0);
    assert_int_equal(got.next, 99);
    assert_int_equal(proto_job_next(&got.jobs, &pos, &back), 1);
    assert_string_equal(back.label.s, "alice/coder/s1/test");
    assert_int_equal(back.err_total, 4);
    assert_int_equal(proto_job_next(&got.jobs, &pos, &back), 1);
    assert_string_equal(back.label.s, "");
    assert_int_equal(proto_job_next(&got.jobs, &pos, &back), 0);
    got.jobs.len--;
    pos = 0;
    assert_int_equal(proto_job_next(&got.jobs, &pos, &back), 1);
    assert_int_equal(proto_job_next(&got.jobs, &pos, &back), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was_sent),
        cmocka_unit_test(every_type_has_an_example),
        cmocka_unit_test(counting_says_what_encoding_needs),
        cmocka_unit_test(a_frame_that_was_cut_is_refused),
        cmocka_unit_test(a_byte_too_many_is_refused),
        cmocka_unit_test(any_changed_byte_is_refused_or_means_exactly_what_it_says),
        cmocka_unit_test(heads_have_bounds),
        cmocka_unit_test(the_bytes_are_those_of_the_specification),
        cmocka_unit_test(output_can_be_read_before_its_data_has_come),
        cmocka_unit_test(encoding_refuses_what_decoding_would),
        cmocka_unit_test(a_list_of_jobs_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

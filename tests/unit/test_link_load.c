// SPDX-License-Identifier: Apache-2.0
/* Much at once: many jobs, endless output, a reader that stands still, long input. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/test_link_fixture.h"

#define MANY 1000
#define MIB (1u << 20)

static struct sandbox box;
static struct host_side host;
static uint64_t next_key = 1;

static int setup(void **state)
{
    (void)state;
    sandbox_start(&box);
    host_start(&host, &box, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    host_stop(&host);
    sandbox_stop(&box, SIGTERM);
    return 0;
}

/* One number from /proc/PID/status, in KiB. */
static long status_kib(pid_t pid, const char *name)
{
    char path[64], line[256];
    long kib = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (!strncmp(line, name, strlen(name)))
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    fclose(f);
    return kib;
}

static bool is_sanitized(void)
{
    return strstr(getenv("WSM_GUEST"), "hosted") || strstr(getenv("WSM_GUEST"), "asan");
}

static void done(struct tjob *t)
{
    tjob_forget(t);
    tjob_finish(t);
}

static void an_idle_guest_is_small(void **state)
{
    (void)state;
    host_wait_up(&host);
    if (is_sanitized())
        skip();
    assert_true(status_kib(box.pid, "VmRSS:") <= 1024);
}

/* All of them run at the same time: each waits for its input, which comes when all have started. */
static void a_thousand_jobs_run_at_once(void **state)
{
    struct link_spawn s = { .stdin_pipe = true, .env_guest = true,
                            .script = "echo up; read x; echo \"got $x\"; echo e >&2; exit 7" };
    struct tjob *t = calloc(MANY, sizeof(*t));
    char line[32], want[64];

    (void)state;
    for (int i = 0; i < MANY; i++) {
        tjob_init(&t[i], &host, next_key++);
        tjob_spawn(&t[i], &s);
    }
    for (int i = 0; i < MANY; i++)
        tjob_wait_output(&t[i], 0, 3);
    for (int i = 0; i < MANY; i++) {
        int n = snprintf(line, sizeof(line), "%d\n", i);
        assert_false(tjob_has_exited(&t[i]));
        assert_true(tjob_feed(&t[i], 0, line, (size_t)n, true));
    }
    for (int i = 0; i < MANY; i++) {
        tjob_wait_exit(&t[i]);
        assert_int_equal(t[i].exit.kind, LINK_END_EXITED);
        assert_int_equal(t[i].exit.code, 7);
        snprintf(want, sizeof(want), "up\ngot %d\n", i);
        assert_int_equal(t[i].len[0], strlen(want));
        assert_memory_equal(t[i].data[0], want, strlen(want));
        assert_int_equal(t[i].len[1], 2);
        done(&t[i]);
    }
    free(t);
}

static void a_thousand_jobs_are_killed_at_once(void **state)
{
    struct link_spawn s = { .script = "sleep 1000 & sleep 1000", .env_guest = true };
    struct tjob *t = calloc(MANY, sizeof(*t));

    (void)state;
    for (int i = 0; i < MANY; i++) {
        tjob_init(&t[i], &host, next_key++);
        tjob_spawn(&t[i], &s);
    }
    for (int i = 0; i < MANY; i++)
        tjob_wait_started(&t[i]);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(link_job_kill(t[i].job, 5000, NULL, NULL), 0);
    for (int i = 0; i < MANY; i++) {
        tjob_wait_exit(&t[i]);
        assert_int_equal(t[i].exit.kind, LINK_END_SIGNALED);
        done(&t[i]);
    }
    free(t);
}

/* More than the pipe holds in which children say it, between others that run; each is told its own reason. */
static void a_thousand_failures_are_told_apart(void **state)
{
    struct tjob *t = calloc(MANY, sizeof(*t));
    char name[32], want[64];

    (void)state;
    for (int i = 0; i < MANY; i++) {
        const char *const argv[] = { i % 4 ? name : "true", NULL };
        struct link_spawn s = { .argv = argv, .cwd = i % 4 == 3 ? name : NULL };

        snprintf(name, sizeof(name), "/nowhere/%d", i);
        tjob_init(&t[i], &host, next_key++);
        tjob_spawn(&t[i], &s);
    }
    for (int i = 0; i < MANY; i++) {
        tjob_wait_exit(&t[i]);
        snprintf(want, sizeof(want), "/nowhere/%d: No such file or directory", i);
        assert_string_equal(t[i].text, i % 4 ? want : "");
        assert_int_equal(t[i].exit.kind, i % 4 == 3 ? LINK_END_FAILED : LINK_END_EXITED);
        assert_int_equal(t[i].exit.code, i % 4 == 3 ? -ENOENT : i % 4 ? 127 : 0);
        assert_int_equal(t[i].len[1], i % 4 == 3 || i % 4 == 0 ? 0 : strlen("wsm: \n") + strlen(want));
        done(&t[i]);
    }
    free(t);
}

/* One job prints without end, another one's output is never taken; small jobs are not kept waiting,
 * and neither side's memory grows. */
static void endless_output_disturbs_nobody(void **state)
{
    struct link_spawn endless = { .script = "exec head -c 100000000000 /dev/zero", .env_guest = true };
    struct tjob fast, held, small;
    long rss;

    (void)state;
    tjob_init(&fast, &host, next_key++);
    fast.discard = true;
    tjob_spawn(&fast, &endless);
    tjob_init(&held, &host, next_key++);
    held.discard = held.hold[0] = true;
    tjob_spawn(&held, &endless);
    tjob_wait_output(&fast, 0, 64 * MIB);
    tjob_wait_output(&held, 0, MIB / 2);
    for (int i = 0; i < 100; i++) {
        run_sh(&small, &host, next_key++, "echo small; exit 3", 3);
        assert_int_equal(small.len[0], 6);
        tjob_finish(&small);
    }
    tjob_wait_output(&fast, 0, 2048ull * MIB);
    assert_false(tjob_has_exited(&fast));
    assert_true(tjob_total(&held, 0) <= MIB);
    rss = status_kib(box.pid, "VmHWM:");
    if (!is_sanitized() && rss > 24 * 1024)
        fail_msg("the guest has used %ld KiB", rss);
    link_job_kill(fast.job, 1000, NULL, NULL);
    link_job_kill(held.job, 1000, NULL, NULL);
    tjob_wait_exit(&fast);
    assert_int_equal(fast.exit.code, SIGTERM);
    assert_int_equal(fast.exit.total[0], fast.total[0]);
    assert_false(tjob_has_exited(&held)); /* its last bytes are still to be fetched */
    tjob_let_flow(&held, 0);
    tjob_wait_exit(&held);
    assert_int_equal(held.exit.code, SIGTERM);
    done(&fast);
    done(&held);
}

static void a_large_output_is_whole(void **state)
{
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_sh(&t, "seq 1 9000000 | tee /dev/stderr | cksum; seq 1 3000000");
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 0);
    assert_int_equal(t.len[1], 9 * 2 + 90 * 3 + 900 * 4 + 9000 * 5 + 90000 * 6 + 900000 * 7 + 8000001ull * 8);
    for (size_t at = 0, i = 1; at < t.len[1]; i++) {
        char want[16];
        size_t n = (size_t)sprintf(want, "%zu\n", i);

        if (memcmp(t.data[1] + at, want, n) != 0)
            fail_msg("line %zu is wrong", i);
        at += n;
    }
    char *log = tjob_log(&t);
    free(log);
    done(&t);
}

static void a_quarter_of_a_gibibyte_of_input_arrives(void **state)
{
    struct link_spawn s = { .script = "cksum", .stdin_pipe = true, .env_guest = true };
    unsigned char *piece = malloc(MIB);
    struct tjob t;

    (void)state;
    memset(piece, 'z', MIB);
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    for (uint64_t i = 0; i < 256; i++)
        assert_true(tjob_feed(&t, i * MIB, piece, MIB, i == 255));
    tjob_wait_exit(&t);
    assert_int_equal(t.len[0], strlen("4155398538 268435456\n"));
    if (memcmp(t.data[0] + t.len[0] - 11, " 268435456\n", 11) != 0)
        fail_msg("%.*s", (int)t.len[0], t.data[0]);
    free(piece);
    done(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_guest_is_small),
        cmocka_unit_test(a_thousand_jobs_run_at_once),
        cmocka_unit_test(a_thousand_jobs_are_killed_at_once),
        cmocka_unit_test(a_thousand_failures_are_told_apart),
        cmocka_unit_test(endless_output_disturbs_nobody),
        cmocka_unit_test(a_large_output_is_whole),
        cmocka_unit_test(a_quarter_of_a_gibibyte_of_input_arrives),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

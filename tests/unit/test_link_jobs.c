// SPDX-License-Identifier: Apache-2.0
/* Commands in a real guest: how they start, what they get, how they end. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/test_link_fixture.h"

#define SCRIPT_MAX (1u << 20)

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

static void assert_stream(const struct tjob *t, int stream, const char *want)
{
    if (t->len[stream] != strlen(want) || memcmp(t->data[stream], want, t->len[stream]) != 0)
        fail_msg("stream %d is \"%.*s\", not \"%s\"", stream, (int)t->len[stream], t->data[stream], want);
}

static void assert_contains(const struct tjob *t, int stream, const char *want)
{
    if (!memmem(t->data[stream], t->len[stream], want, strlen(want)))
        fail_msg("stream %d is \"%.*s\", without \"%s\"", stream, (int)t->len[stream], t->data[stream], want);
}

static void assert_end(const struct tjob *t, enum link_end kind, int code)
{
    if (t->exit.kind != kind || t->exit.code != code)
        fail_msg("ended with kind %d, code %d, \"%s\"", t->exit.kind, t->exit.code, t->text);
}

/* Spawns *s and waits for its end. The caller forgets it. */
static void run(struct tjob *t, struct link_spawn *s)
{
    tjob_init(t, &host, next_key++);
    tjob_spawn(t, s);
    tjob_wait_exit(t);
}

static void done(struct tjob *t)
{
    tjob_forget(t);
    tjob_finish(t);
}

static void a_script_has_two_streams_and_an_exit_code(void **state)
{
    struct tjob t;

    (void)state;
    run_sh(&t, &host, next_key++, "echo out; echo err >&2; exit 3", 3);
    assert_stream(&t, 0, "out\n");
    assert_stream(&t, 1, "err\n");
    assert_int_equal(t.exit.total[0], 4);
    assert_true(t.exit.end_ms >= t.exit.start_ms && t.exit.start_ms > 1600000000000);
    assert_false(t.exit.timed_out);
    tjob_finish(&t);
}

static void a_signal_is_told_from_an_exit_code(void **state)
{
    struct link_spawn s = { .script = "kill -9 $$" };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_end(&t, LINK_END_SIGNALED, SIGKILL);
    done(&t);
}

static void arguments_keep_every_byte(void **state)
{
    const char *const argv[] = { "printf", "[%s]", "", "a b", "\xff\xfe\n\t'\"$HOME*", "-n", NULL };
    struct link_spawn s = { .argv = argv, .env_guest = true };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_stream(&t, 0, "[][a b][\xff\xfe\n\t'\"$HOME*][-n]");
    done(&t);
}

static void what_cannot_be_executed_says_so_as_a_shell_would(void **state)
{
    const struct { const char *name; int code; const char *text; } cases[] = {
        { "no-such-command-here", 127, "wsm: no-such-command-here: command not found\n" },
        { "/no/such/file", 127, "wsm: /no/such/file: No such file or directory\n" },
        { "/etc/passwd", 126, "wsm: /etc/passwd: Permission denied\n" },
        { "/etc", 126, "wsm: /etc: Permission denied\n" },
        { "", 127, "" },
    };
    struct tjob t;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const argv[] = { cases[i].name, NULL };
        struct link_spawn s = { .argv = argv };

        run(&t, &s);
        assert_end(&t, LINK_END_EXITED, cases[i].code);
        if (*cases[i].text)
            assert_stream(&t, 1, cases[i].text);
        assert_true(strlen(t.text) > 0);
        done(&t);
    }
}

static void a_command_is_looked_up_in_the_path_of_the_job(void **state)
{
    const char *const argv[] = { "true", NULL }, *const env[] = { "PATH=/nowhere:/etc", NULL };
    struct link_spawn s = { .argv = argv, .env = env };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_end(&t, LINK_END_EXITED, 127);
    done(&t);
    s.env = NULL;
    run(&t, &s);
    assert_end(&t, LINK_END_EXITED, 0);
    done(&t);
}

static void a_directory_is_where_the_job_begins_or_why_it_does_not(void **state)
{
    struct link_spawn s = { .script = "pwd", .cwd = "/usr/share" };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_stream(&t, 0, "/usr/share\n");
    done(&t);
    s.cwd = "/no/such/directory";
    run(&t, &s);
    assert_end(&t, LINK_END_FAILED, -ENOENT);
    assert_string_equal(t.text, "/no/such/directory: No such file or directory");
    done(&t);
}

static void the_environment_is_what_was_said_and_nothing_else(void **state)
{
    const char *const env[] = { "B=2", "A=x y\nz", NULL };
    const char *const argv[] = { "/usr/bin/env", "-0", NULL };
    struct link_spawn s = { .argv = argv, .env = env };
    struct tjob t;
    static const char want[] = "B=2\0A=x y\nz\0PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\0HOME=/";

    (void)state;
    run(&t, &s);
    assert_int_equal(t.len[0], sizeof(want));
    assert_memory_equal(t.data[0], want, sizeof(want));
    done(&t);
}

static void the_environment_of_the_image_lies_below_that_of_the_job(void **state)
{
    const char *const env[] = { "HOME=/tmp", NULL };
    struct link_spawn s = { .script = "echo $WSM_TEST_MARK $HOME", .env = env, .env_guest = true };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_stream(&t, 0, "of-the-guest /tmp\n");
    done(&t);
}

static void a_user_is_found_by_name_or_number_inside(void **state)
{
    struct link_spawn s = { .script = "id -u; id -g; id -G; echo $HOME $USER", .user = "nobody" };
    struct tjob t;

    (void)state;
    if (getuid() != 0)
        skip();
    run(&t, &s);
    assert_stream(&t, 0, "65534\n65534\n65534\n/nonexistent nobody\n");
    done(&t);
    s.script = "id -u; id -g; id -G";
    s.user = "1234:daemon";
    run(&t, &s);
    assert_stream(&t, 0, "1234\n1\n1\n");
    done(&t);
    s.user = "no-such-user";
    run(&t, &s);
    assert_end(&t, LINK_END_FAILED, -EINVAL);
    assert_string_equal(t.text, "no-such-user: the sandbox has no such user or group");
    done(&t);
}

static void numbers_of_user_and_groups_need_no_names(void **state)
{
    const uint32_t groups[] = { 70000, 70001 };
    struct link_spawn s = { .script = "id -u; id -g; id -G", .ids = true, .uid = 54321, .gid = 54322,
                            .groups = groups, .n_groups = 2 };
    struct tjob t;

    (void)state;
    if (getuid() != 0)
        skip();
    run(&t, &s);
    assert_stream(&t, 0, "54321\n54322\n54322 70000 70001\n");
    done(&t);
}

static void rights_can_be_taken_away(void **state)
{
    struct link_spawn s = { .script = "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status",
                            .no_new_privs = true, .drop_caps = true };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_contains(&t, 0, "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n");
    assert_contains(&t, 0, "NoNewPrivs:\t1\n");
    if (getuid() == 0)
        assert_contains(&t, 0, "CapBnd:\t0000000000000000\n");
    done(&t);
}

static void the_guest_is_closed_to_its_jobs(void **state)
{
    struct link_spawn s = { .drop_caps = true, .env_guest = true,
        .script = "cat /proc/$PPID/environ /proc/$PPID/mem; readlink /proc/$PPID/fd/*; ls -l /proc/self/fd | grep -c '[0-9] ->'" };
    struct tjob t;

    (void)state;
    run(&t, &s);
    assert_stream(&t, 0, "4\n"); /* 0, 1, 2 and the directory itself */
    assert_contains(&t, 1, "environ: Permission denied");
    assert_contains(&t, 1, "mem: Permission denied");
    done(&t);
    /* A job cannot speak to the guest as a host. */
    s.script = "$WSM_GUEST connect $SOCKET | wc -c";
    const char *const env[] = { "X=1", NULL };
    s.env = env;
    setenv("SOCKET", box.path, 1);
    char set[256];
    snprintf(set, sizeof(set), "SOCKET=%s", box.path);
    const char *const with_socket[] = { set, NULL };
    s.env = with_socket;
    run(&t, &s);
    assert_stream(&t, 0, "0\n");
    done(&t);
}

static void without_input_there_is_an_end_of_file_at_once(void **state)
{
    struct tjob t;

    (void)state;
    run_sh(&t, &host, next_key++, "read x; echo \"got $x\"; cat", 0);
    assert_stream(&t, 0, "got \n");
    tjob_finish(&t);
}

static void input_reaches_the_job_byte_by_byte_equal(void **state)
{
    struct link_spawn s = { .script = "cat", .stdin_pipe = true };
    size_t size = 8u << 20;
    unsigned char *data = malloc(size);
    struct tjob t;

    (void)state;
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    assert_true(tjob_feed(&t, 0, data, 1, false));
    assert_true(tjob_feed(&t, 1, data + 1, size - 1, true));
    tjob_wait_exit(&t);
    assert_int_equal(t.len[0], size);
    assert_memory_equal(t.data[0], data, size);
    assert_int_equal(link_job_stdin(t.job, size, "x", 1, false), -EPIPE);
    free(data);
    done(&t);
}

static void an_empty_input_ends_too(void **state)
{
    struct link_spawn s = { .script = "wc -c", .stdin_pipe = true };
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    assert_true(tjob_feed(&t, 0, "", 0, true));
    tjob_wait_exit(&t);
    assert_stream(&t, 0, "0\n");
    done(&t);
}

static void who_stops_reading_is_a_broken_pipe(void **state)
{
    struct link_spawn s = { .script = "head -c 10; exec 0<&-; echo; for i in $(seq 6000); do [ ! -e $MARK ] || break; sleep 0.01; done", .stdin_pipe = true };
    char mark[128], set[160];
    const char *const env[] = { set, NULL };
    char *data = calloc(1, 1u << 20);
    struct tjob t;
    bool ok = true;

    (void)state;
    snprintf(mark, sizeof(mark), "%s/mark", box.dir);
    snprintf(set, sizeof(set), "MARK=%s", mark);
    s.env = env;
    memset(data, 'x', 1u << 20);
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    for (uint64_t at = 0; ok && at < 64; at++)
        ok = tjob_feed(&t, at << 20, data, 1u << 20, false);
    assert_false(ok);
    FILE *f = fopen(mark, "w");
    fclose(f);
    tjob_wait_exit(&t);
    unlink(mark);
    assert_stream(&t, 0, "xxxxxxxxxx\n");
    free(data);
    done(&t);
}

static void a_script_of_one_mebibyte_runs_and_leaves_input_alone(void **state)
{
    static const char line[] = "n=$((n+1)) # some text that fills the line up to exactly sixty-four\n";
    size_t lines = (SCRIPT_MAX - 100) / (sizeof(line) - 1);
    char *script = malloc(SCRIPT_MAX + 2), want[64];
    struct link_spawn s = { .script = script, .stdin_pipe = true };
    struct tjob t;

    (void)state;
    script[0] = '\0';
    char *at = script;
    for (size_t i = 0; i < lines; i++, at += sizeof(line) - 1)
        memcpy(at, line, sizeof(line));
    strcpy(at, "read x; echo \"$n $x $# $0\"");
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    assert_true(tjob_feed(&t, 0, "hello\n", 6, true));
    tjob_wait_exit(&t);
    snprintf(want, sizeof(want), "%zu hello 0 sh\n", lines);
    assert_stream(&t, 0, want);
    done(&t);

    struct err e = { 0 };
    memset(script, 'x', SCRIPT_MAX + 1);
    script[SCRIPT_MAX + 1] = '\0';
    assert_int_equal(link_job_spawn(host.link, &s, NULL, NULL, &t.job, &e), -EINVAL);
    assert_string_equal(e.text, "the script is longer than 1 MiB");
    free(script);
}

static void a_script_may_begin_with_a_minus(void **state)
{
    struct tjob t;

    (void)state;
    run_sh(&t, &host, next_key++, "-x; echo still here", 0);
    assert_stream(&t, 0, "still here\n");
    tjob_finish(&t);
}

static void both_or_neither_of_script_and_arguments_are_refused(void **state)
{
    const char *const argv[] = { "true", NULL }, *const none[] = { NULL };
    struct link_spawn s = { .script = "true", .argv = argv };
    struct link_job *j;
    struct err e;

    (void)state;
    assert_int_equal(link_job_spawn(host.link, &s, NULL, NULL, &j, &e), -EINVAL);
    s = (struct link_spawn){ 0 };
    assert_int_equal(link_job_spawn(host.link, &s, NULL, NULL, &j, &e), -EINVAL);
    s.argv = none;
    assert_int_equal(link_job_spawn(host.link, &s, NULL, NULL, &j, &e), -EINVAL);
}

static void a_terminal_has_a_size_that_can_be_changed(void **state)
{
    struct link_spawn s = { .tty = true, .cols = 101, .rows = 37, .env_guest = true,
        .script = "trap 'stty size; exit' WINCH; test -t 0 && test -t 1 && test -t 2 && stty size; while :; do sleep 0.05; done" };
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, strlen("37 101\r\n"));
    assert_stream(&t, 0, "37 101\r\n");
    assert_int_equal(link_job_resize(t.job, 55, 66, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), 0);
    tjob_wait_exit(&t);
    assert_stream(&t, 0, "37 101\r\n66 55\r\n");
    done(&t);
}

static void a_terminal_passes_on_input_its_end_and_interrupts(void **state)
{
    struct link_spawn s = { .tty = true, .cols = 80, .rows = 25, .script = "stty -echo; echo go; cat; echo end" };
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, 4);
    assert_true(tjob_feed(&t, 0, "line\n", 5, true));
    tjob_wait_exit(&t);
    assert_stream(&t, 0, "go\r\nline\r\nend\r\n");
    done(&t);

    const char *const cat[] = { "cat", NULL };
    s.script = NULL;
    s.argv = cat;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    assert_true(tjob_feed(&t, 0, "line\n", 5, false));
    tjob_wait_output(&t, 0, 12); /* echoed, and read */
    assert_true(tjob_feed(&t, 5, "\003", 1, false));
    tjob_wait_exit(&t);
    assert_end(&t, LINK_END_SIGNALED, SIGINT);
    done(&t);
}

static void what_has_no_terminal_has_no_size(void **state)
{
    struct link_spawn s = { .script = "cat", .stdin_pipe = true };
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    assert_int_equal(link_job_resize(t.job, 1, 1, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), -ENOTTY);
    tjob_feed(&t, 0, "", 0, true);
    tjob_wait_exit(&t);
    assert_int_equal(link_job_signal(t.job, SIGINT, LINK_SCOPE_GROUP, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 2), -ESRCH);
    done(&t);
}

/* The job writes the next piece only when the test has seen the last, so the order is certain. */
static void the_log_has_both_streams_in_order(void **state)
{
    struct link_spawn s = { .stdin_pipe = true,
        .script = "echo a; read x; echo b >&2; read x; echo c; echo d; read x; echo e >&2; read x; echo f" };
    struct tjob t;
    uint64_t fed = 0;

    (void)state;
    tjob_init(&t, &host, next_key++);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, 2);
    tjob_feed(&t, fed++, "\n", 1, false);
    tjob_wait_output(&t, 1, 2);
    tjob_feed(&t, fed++, "\n", 1, false);
    tjob_wait_output(&t, 0, 6);
    tjob_feed(&t, fed++, "\n", 1, false);
    tjob_wait_output(&t, 1, 4);
    tjob_feed(&t, fed++, "\n", 1, true);
    tjob_wait_exit(&t);
    char *log = tjob_log(&t);
    assert_string_equal(log, "a\nb\nc\nd\ne\nf\n");
    free(log);
    done(&t);
}

static void binary_output_is_kept(void **state)
{
    struct tjob t;

    (void)state;
    run_sh(&t, &host, next_key++, "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done", 0);
    assert_int_equal(t.len[0], 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal((unsigned char)t.data[0][i], i);
    tjob_finish(&t);
}

static void a_job_may_close_its_streams_and_go_on(void **state)
{
    struct tjob t;

    (void)state;
    run_sh(&t, &host, next_key++, "echo a; exec >&- 2>&- <&-; /bin/sleep 0.05; exit 7", 7);
    assert_stream(&t, 0, "a\n");
    tjob_finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_script_has_two_streams_and_an_exit_code),
        cmocka_unit_test(a_signal_is_told_from_an_exit_code),
        cmocka_unit_test(arguments_keep_every_byte),
        cmocka_unit_test(what_cannot_be_executed_says_so_as_a_shell_would),
        cmocka_unit_test(a_command_is_looked_up_in_the_path_of_the_job),
        cmocka_unit_test(a_directory_is_where_the_job_begins_or_why_it_does_not),
        cmocka_unit_test(the_environment_is_what_was_said_and_nothing_else),
        cmocka_unit_test(the_environment_of_the_image_lies_below_that_of_the_job),
        cmocka_unit_test(a_user_is_found_by_name_or_number_inside),
        cmocka_unit_test(numbers_of_user_and_groups_need_no_names),
        cmocka_unit_test(rights_can_be_taken_away),
        cmocka_unit_test(the_guest_is_closed_to_its_jobs),
        cmocka_unit_test(without_input_there_is_an_end_of_file_at_once),
        cmocka_unit_test(input_reaches_the_job_byte_by_byte_equal),
        cmocka_unit_test(an_empty_input_ends_too),
        cmocka_unit_test(who_stops_reading_is_a_broken_pipe),
        cmocka_unit_test(a_script_of_one_mebibyte_runs_and_leaves_input_alone),
        cmocka_unit_test(a_script_may_begin_with_a_minus),
        cmocka_unit_test(both_or_neither_of_script_and_arguments_are_refused),
        cmocka_unit_test(a_terminal_has_a_size_that_can_be_changed),
        cmocka_unit_test(a_terminal_passes_on_input_its_end_and_interrupts),
        cmocka_unit_test(what_has_no_terminal_has_no_size),
        cmocka_unit_test(the_log_has_both_streams_in_order),
        cmocka_unit_test(binary_output_is_kept),
        cmocka_unit_test(a_job_may_close_its_streams_and_go_on),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

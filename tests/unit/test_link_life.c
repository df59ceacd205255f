// SPDX-License-Identifier: Apache-2.0
/* How jobs are ended, found again, and lost: process trees, several hosts, a host that dies, a guest
 * that dies. */
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/test_link_fixture.h"

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

static void spawn(struct tjob *t, struct link_spawn *s)
{
    tjob_init(t, &host, next_key++);
    s->env_guest = true;
    tjob_spawn(t, s);
}

static void done(struct tjob *t)
{
    tjob_forget(t);
    tjob_finish(t);
}

static bool has_line(struct tjob *t, int n)
{
    int lines = 0;

    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->len[0]; i++)
        lines += t->data[0][i] == '\n';
    pthread_mutex_unlock(&t->lock);
    return lines >= n;
}

static bool three_lines(void *t) { return has_line(t, 3); }
static bool one_line(void *t) { return has_line(t, 1); }

/* Each number in the output is a process that is gone. */
static void assert_all_gone(const struct tjob *t)
{
    char text[512];

    snprintf(text, sizeof(text), "%.*s", (int)t->len[0], t->data[0]);
    for (char *at = text, *save; (at = strtok_r(at, "\n", &save)); at = NULL) {
        pid_t pid = (pid_t)strtol(at, NULL, 10);

        if (pid > 1 && kill(pid, 0) == 0)
            fail_msg("process %d is left", (int)pid);
    }
}

/* A shell with a child that ignores TERM, and one that left the session, was orphaned and ignores it. */
static const char family[] =
    "echo $$; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & "
    "setsid sh -c 'trap \"\" TERM; (echo $$; while :; do sleep 1; done) & exit' & "
    "trap 'exit 9' TERM; while :; do sleep 0.02; done";

static void a_timeout_ends_the_whole_tree_and_keeps_the_output(void **state)
{
    /* Long enough for three lines, and for a trap, on a busy machine. */
    struct link_spawn s = { .script = family, .timeout_ms = 2000, .grace_ms = 2000 };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(three_lines, &t);
    tjob_wait_exit(&t);
    assert_true(t.exit.timed_out);
    assert_int_equal(t.exit.kind, LINK_END_EXITED);
    assert_int_equal(t.exit.code, 9);
    assert_all_gone(&t);
    done(&t);
}

static void a_kill_ends_the_whole_tree(void **state)
{
    struct link_spawn s = { .script = family };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(three_lines, &t);
    assert_int_equal(link_job_kill(t.job, 200, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), 0);
    tjob_wait_exit(&t);
    assert_false(t.exit.timed_out);
    assert_all_gone(&t);
    assert_int_equal(link_job_kill(t.job, 200, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 2), -ESRCH);
    done(&t);
}

static void a_kill_without_grace_is_a_kill(void **state)
{
    struct link_spawn s = { .script = "trap '' TERM; echo $$; while :; do sleep 1; done" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(one_line, &t);
    link_job_kill(t.job, 0, NULL, NULL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_SIGNALED);
    assert_int_equal(t.exit.code, SIGKILL);
    assert_all_gone(&t);
    done(&t);
}

/* It may not have executed anything yet, nor have a group of its own. */
static void a_signal_right_behind_the_start_arrives(void **state)
{
    struct link_spawn s = { .script = "exec sleep 1000" };
    struct tjob t[48];
    const int n = sizeof(t) / sizeof(t[0]);

    (void)state;
    for (int i = 0; i < n; i++) {
        spawn(&t[i], &s);
        if (i % 3 == 2)
            assert_int_equal(link_job_kill(t[i].job, 3600 * 1000, tjob_done, &t[i]), 0);
        else
            assert_int_equal(link_job_signal(t[i].job, SIGTERM, i % 3 ? LINK_SCOPE_GROUP : LINK_SCOPE_TREE, tjob_done,
                                             &t[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(tjob_wait_done(&t[i], 1), 0);
        tjob_wait_exit(&t[i]);
        assert_int_equal(t[i].exit.kind, LINK_END_SIGNALED);
        assert_int_equal(t[i].exit.code, SIGTERM);
        done(&t[i]);
    }
}

static void term_comes_before_kill(void **state)
{
    struct link_spawn s = { .script = "trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.02; done" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(one_line, &t);
    link_job_kill(t.job, 20000, NULL, NULL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_EXITED);
    assert_true(t.len[0] >= 4 && !memcmp(t.data[0] + t.len[0] - 4, "bye\n", 4));
    done(&t);
}

static void a_stopped_job_can_be_killed(void **state)
{
    struct link_spawn s = { .script = "echo $$; kill -STOP $$; sleep 100" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(one_line, &t);
    link_job_kill(t.job, 20000, NULL, NULL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, SIGTERM);
    done(&t);
}

static void a_fork_bomb_is_ended(void **state)
{
    struct link_spawn s = { .script = "echo $$; ulimit -u 2>/dev/null; n=0; while [ $n -lt 40 ]; do "
        "(while :; do (sleep 0.01; :) & sleep 0.01; done) & n=$((n+1)); done; wait" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    wait_until(one_line, &t);
    link_job_kill(t.job, 0, NULL, NULL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, SIGKILL);
    done(&t);
}

static void signals_reach_the_group_or_the_tree(void **state)
{
    struct link_spawn s = { .script = "trap 'echo main' USR1; echo $$; "
        "setsid sh -c 'trap \"echo child\" USR1; echo $$; while :; do sleep 0.02; done' & while :; do sleep 0.02; done" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    while (!has_line(&t, 2))
        usleep(1000);
    assert_int_equal(link_job_signal(t.job, SIGUSR1, LINK_SCOPE_MAIN, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), 0);
    wait_until(three_lines, &t);
    assert_int_equal(link_job_signal(t.job, SIGUSR1, LINK_SCOPE_TREE, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 2), 0);
    while (!has_line(&t, 5))
        usleep(1000);
    assert_non_null(memmem(t.data[0], t.len[0], "child", 5));
    assert_int_equal(link_job_signal(t.job, 0, LINK_SCOPE_TREE, tjob_done, &t), -EINVAL);
    link_job_kill(t.job, 0, NULL, NULL);
    tjob_wait_exit(&t);
    done(&t);
}

/* The child stays, and what it prints later hurts nobody. */
static void what_an_ended_job_left_behind_goes_on(void **state)
{
    struct link_spawn s = { .script = "(while [ -d $BOX ] && [ ! -e $BOX/go ]; do sleep 0.01; done; echo late; echo late; echo $? > $BOX/late) & echo $!; exit 4" };
    char set[128], late[128], go[128];
    const char *const env[] = { set, NULL };
    struct tjob t;
    struct stat st;

    (void)state;
    snprintf(set, sizeof(set), "BOX=%s", box.dir);
    snprintf(late, sizeof(late), "%s/late", box.dir);
    snprintf(go, sizeof(go), "%s/go", box.dir);
    s.env = env;
    spawn(&t, &s);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 4);
    pid_t child = (pid_t)strtol(t.data[0], NULL, 10);
    assert_int_equal(kill(child, 0), 0);
    done(&t);
    fclose(fopen(go, "w"));
    while (stat(late, &st) != 0 || st.st_size == 0)
        usleep(1000);
    FILE *f = fopen(late, "r");
    assert_int_equal(fgetc(f), '0');
    fclose(f);
    unlink(late);
    unlink(go);
}

static void a_key_starts_one_command(void **state)
{
    char script[256];
    struct tjob t, u;

    (void)state;
    snprintf(script, sizeof(script), "echo x >> %s/count; echo hello", box.dir);
    tjob_init(&t, &host, 7777);
    tjob_sh(&t, script);
    tjob_wait_exit(&t);
    assert_false(t.start.existed);
    tjob_release(&t);
    tjob_init(&u, &host, 7777);
    tjob_sh(&u, script);
    tjob_wait_exit(&u);
    assert_true(u.start.existed);
    assert_int_equal(u.exit.code, 0);
    /* Bytes that the first one had time to acknowledge are gone, others come again. */
    assert_int_equal(u.start.first[0] + u.len[0], 6);
    assert_int_equal(u.start.pid, t.start.pid);
    tjob_forget(&u);
    tjob_finish(&t);
    tjob_finish(&u);
    snprintf(script, sizeof(script), "wc -l < %s/count; rm %s/count", box.dir, box.dir);
    run_sh(&t, &host, next_key++, script, 0);
    assert_memory_equal(t.data[0], "1\n", 2);
    tjob_finish(&t);
}

static void a_forgotten_job_is_not_there(void **state)
{
    const uint64_t from[2] = { 0, 0 };
    struct tjob t, u;

    (void)state;
    run_sh(&t, &host, 8888, "exit 0", 0);
    tjob_finish(&t);
    tjob_init(&u, &host, 8888);
    tjob_attach(&u, from);
    tjob_wait_exit(&u);
    assert_int_equal(u.exit.kind, LINK_END_LOST);
    assert_int_equal(u.exit.code, -ENOENT);
    tjob_release(&u);
    tjob_finish(&u);
}

/* What `lines` prints. */
static const char lines[] = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo err >&2";

static char *all_lines(size_t *len)
{
    char *text = malloc(20000 * 12), *at = text;

    for (int i = 0; i < 20000; i++)
        at += sprintf(at, "line %d\n", i);
    *len = (size_t)(at - text);
    return text;
}

static void output_waits_for_the_host_that_comes_back(void **state)
{
    struct host_side later;
    struct tjob t, u;
    uint64_t from[2];
    size_t len;
    char *want = all_lines(&len);

    (void)state;
    tjob_init(&t, &host, 9001);
    t.hold[0] = true;
    tjob_sh(&t, lines);
    tjob_wait_output(&t, 0, 1000);
    tjob_release(&t);
    from[0] = t.total[0] - 7; /* what the first host had not stored is sent again */
    from[1] = t.total[1];
    host_start(&later, &box, 2);
    tjob_init(&u, &later, 9001);
    tjob_attach(&u, from);
    tjob_wait_exit(&u);
    assert_int_equal(u.start.first[0], from[0]);
    assert_int_equal(u.exit.total[0], len);
    assert_memory_equal(u.data[0], want + from[0], len - from[0]);
    tjob_forget(&u);
    tjob_finish(&t);
    tjob_finish(&u);
    host_stop(&later);
    free(want);
}

/* A second life of the same host: it drops the first one's connection and finds its jobs. */
static void a_restarted_host_takes_over(void **state)
{
    const uint64_t from[2] = { 0, 0 };
    struct host_side again;
    struct link_spawn s = { .script = "cat; echo end", .stdin_pipe = true };
    struct tjob t, u;

    (void)state;
    spawn(&t, &s);
    t.hold[0] = t.hold[1] = true;
    tjob_feed(&t, 0, "first ", 6, false);
    tjob_wait_output(&t, 0, 6);
    host_start(&again, &box, 1);
    host_wait_up(&again);
    tjob_init(&u, &again, 0);
    u.key = t.key;
    tjob_attach(&u, from);
    tjob_wait_started(&u);
    assert_int_equal(u.start.stdin_offset, 6);
    tjob_release(&t);
    host_stop(&host); /* it would go on taking the connection back */
    assert_true(tjob_feed(&u, 6, "second", 6, true));
    tjob_wait_exit(&u);
    assert_int_equal(u.len[0], 16);
    assert_memory_equal(u.data[0], "first secondend\n", 16);
    tjob_forget(&u);
    tjob_finish(&t);
    tjob_finish(&u);
    host_stop(&again);
    host_start(&host, &box, 1);
}

static void two_hosts_live_side_by_side_until_one_takes_a_job(void **state)
{
    const uint64_t from[2] = { 0, 0 };
    struct host_side other;
    struct link_spawn s = { .script = "cat", .stdin_pipe = true };
    struct tjob t, u, v;

    (void)state;
    host_start(&other, &box, 2);
    spawn(&t, &s);
    tjob_wait_started(&t);
    run_sh(&v, &other, next_key++, "echo beside", 0);
    tjob_finish(&v);
    tjob_init(&u, &other, 0);
    u.key = t.key;
    tjob_attach(&u, from);
    tjob_wait_started(&u);
    tjob_wait_taken(&t);
    tjob_release(&t);
    assert_true(tjob_feed(&u, 0, "x", 1, true));
    tjob_wait_exit(&u);
    assert_memory_equal(u.data[0], "x", 1);
    tjob_forget(&u);
    tjob_finish(&t);
    tjob_finish(&u);
    host_stop(&other);
}

struct listing {
    struct tjob done;
    int n, mine, ended;
    char label[64];
};

static void each(void *arg, const struct link_listed *j)
{
    struct listing *l = arg;

    if (strncmp(j->label, "alice/", 6) != 0)
        return;
    l->n++;
    l->mine += j->mine;
    l->ended += j->ended;
    if (j->ended)
        snprintf(l->label, sizeof(l->label), "%s", j->label);
}

static void listed(void *arg, int status, const char *text) { tjob_done(&((struct listing *)arg)->done, status, text); }

static void all_jobs_are_listed_with_their_labels(void **state)
{
    struct link_spawn s = { .script = "cat", .stdin_pipe = true, .label = "alice/coder/s1\nslow" };
    struct link_spawn quick = { .script = "exit 0", .label = "alice/coder/s1\nquick" };
    struct listing l = { .n = 0 };
    struct tjob t[300], q;

    (void)state;
    spawn(&q, &quick);
    tjob_wait_exit(&q);
    for (int i = 0; i < 300; i++)
        spawn(&t[i], &s);
    for (int i = 0; i < 300; i++)
        tjob_wait_started(&t[i]);
    tjob_init(&l.done, &host, 0);
    assert_int_equal(link_list(host.link, each, listed, &l), 0);
    assert_int_equal(tjob_wait_done(&l.done, 1), 0);
    assert_int_equal(l.n, 301);
    assert_int_equal(l.mine, 301);
    assert_int_equal(l.ended, 1);
    assert_string_equal(l.label, "alice/coder/s1\nquick");
    for (int i = 0; i < 300; i++)
        tjob_feed(&t[i], 0, "", 0, true);
    for (int i = 0; i < 300; i++) {
        tjob_wait_exit(&t[i]);
        done(&t[i]);
    }
    done(&q);
    tjob_finish(&l.done);
}

/* Else an ended job stays in a guest that lives on for another host. */
static void a_job_is_forgotten_though_its_link_is_closed_right_behind(void **state)
{
    struct link_spawn s = { .script = "exit 0", .label = "alice/coder/s1\nlast" };
    struct listing l = { .n = 1 };
    struct host_side h;
    struct tjob t;

    (void)state;
    host_start(&h, &box, 8);
    tjob_init(&t, &h, next_key++);
    tjob_spawn(&t, &s);
    tjob_wait_exit(&t);
    link_job_forget(t.job);
    host_stop(&h);
    tjob_init(&l.done, &host, 0);
    for (unsigned i = 1; l.n && i <= 500; i++) { /* the guest may read our question first */
        l.n = 0;
        assert_int_equal(link_list(host.link, each, listed, &l), 0);
        assert_int_equal(tjob_wait_done(&l.done, i), 0);
        if (l.n)
            usleep(2000);
    }
    assert_int_equal(l.n, 0);
    tjob_finish(&t);
    tjob_finish(&l.done);
}

static void an_open_request_of_a_released_job_is_answered(void **state)
{
    struct link_spawn s = { .script = "sleep 100" };
    struct tjob t;

    (void)state;
    spawn(&t, &s);
    tjob_wait_started(&t);
    link_job_signal(t.job, SIGKILL, LINK_SCOPE_MAIN, tjob_done, &t);
    tjob_release(&t);
    assert_int_equal(t.done_calls, 1);
    assert_true(t.done_status == 0 || t.done_status == -ECANCELED);
    tjob_finish(&t);
}

static sem_t within, released;

static void use_it_after_the_release(struct link_job *j, struct tjob *t)
{
    sem_post(&within);
    sem_wait(&released);
    link_job_stdin(j, 0, "x", 1, false);
    link_job_signal(j, SIGKILL, LINK_SCOPE_MAIN, tjob_done, t);
}

static void a_job_is_let_go_of_while_its_callback_uses_it(void **state)
{
    struct link_spawn s = { .script = "echo x; cat", .stdin_pipe = true, .env_guest = true };
    void (*const ways[])(struct link_job *) = { link_job_release, link_job_forget };

    (void)state;
    sem_init(&within, 0, 0);
    sem_init(&released, 0, 0);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct tjob t;
        tjob_init(&t, &host, next_key++);
        t.within_output = use_it_after_the_release;
        tjob_spawn(&t, &s);
        sem_wait(&within);
        ways[i](t.job);
        sem_post(&released);
        tjob_wait_released(&t);
        assert_int_equal(t.done_calls, 1);
        tjob_finish(&t);
    }
    sem_destroy(&within);
    sem_destroy(&released);
}

static void held_output_stops_its_own_stream_alone(void **state)
{
    struct link_spawn s = { .script = "yes >&2 & while read x; do echo got $x; done; kill $!", .stdin_pipe = true };
    struct tjob t;
    uint64_t before;

    (void)state;
    tjob_init(&t, &host, next_key++);
    t.hold[1] = true;
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 1, 65536);
    do { /* until it stands still */
        before = tjob_total(&t, 1);
        usleep(100000);
    } while (before != tjob_total(&t, 1));
    assert_true(before <= 1u << 20);
    tjob_feed(&t, 0, "a\n", 2, false);
    tjob_wait_output(&t, 0, 6);
    assert_true(tjob_total(&t, 1) <= 1u << 20);
    tjob_let_flow(&t, 1);
    tjob_wait_output(&t, 1, 4u << 20);
    tjob_feed(&t, 2, "", 0, true);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 0);
    done(&t);
}

static void ping_done(void *arg, int status, int64_t took_ns)
{
    assert_true(took_ns >= 0);
    tjob_done(arg, status, "");
}

static void a_guest_answers_pings(void **state)
{
    struct tjob t;

    (void)state;
    tjob_init(&t, &host, 0);
    assert_int_equal(link_ping(host.link, ping_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), 0);
    tjob_finish(&t);
}

/* ── guests that end ── */

static void a_guest_that_is_stopped_delivers_what_its_jobs_still_say(void **state)
{
    struct link_spawn s = { .script = "trap 'echo bye; exit 5' TERM; echo $$; while :; do sleep 0.02; done", .env_guest = true };
    struct sandbox other_box;
    struct host_side h;
    struct tjob t;

    (void)state;
    sandbox_start(&other_box);
    host_start(&h, &other_box, 1);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &s);
    wait_until(one_line, &t);
    assert_int_equal(link_stop(h.link, 20000, tjob_done, &t), 0);
    assert_int_equal(tjob_wait_done(&t, 1), 0);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 5);
    assert_memory_equal(t.data[0] + t.len[0] - 4, "bye\n", 4);
    tjob_release(&t);
    tjob_finish(&t);
    sandbox_stop(&other_box, SIGTERM);
    host_stop(&h);
}

static void a_guest_that_is_made_anew_is_another_one(void **state)
{
    struct link_spawn s = { .script = "sleep 100" };
    struct sandbox one, two;
    struct host_side h;
    struct tjob t, u;

    (void)state;
    sandbox_start(&one);
    host_start(&h, &one, 1);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &s);
    tjob_wait_started(&t);
    sandbox_start(&two);
    host_move(&h, &two);
    sandbox_stop(&one, SIGKILL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_LOST);
    assert_string_equal(t.text, "the sandbox was restarted and its jobs are gone");
    assert_true(link_state(h.link, NULL) == LINK_LOST);
    tjob_init(&u, &h, 2);
    tjob_sh(&u, "exit 0");
    tjob_wait_exit(&u);
    assert_int_equal(u.exit.kind, LINK_END_LOST);
    tjob_forget(&u);
    tjob_release(&t);
    tjob_finish(&t);
    tjob_finish(&u);
    host_stop(&h);
    sandbox_stop(&two, SIGTERM);
}

static void a_job_that_must_not_run_elsewhere_does_not(void **state)
{
    struct link_id elsewhere = { { 1, 2, 3 } };
    struct link_guest g;
    char script[128];
    struct link_spawn s = { .script = script, .instance = &elsewhere };
    struct tjob t;

    (void)state;
    snprintf(script, sizeof(script), "echo x > %s/ran", box.dir);
    host_wait_up(&host);
    spawn(&t, &s);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_LOST);
    done(&t);
    assert_true(link_state(host.link, &g) == LINK_UP);
    snprintf(script, sizeof(script), "test ! -e %s/ran", box.dir);
    s.instance = &g.instance;
    spawn(&t, &s);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_EXITED);
    assert_int_equal(t.exit.code, 0);
    done(&t);
}

static sem_t may_connect;

static int dial_later(struct host_side *h)
{
    sem_wait(&may_connect);
    return sandbox_dial(h->sandbox);
}

static void what_was_asked_of_a_job_that_must_not_run_there_is_answered(void **state)
{
    struct link_id elsewhere = { { 1, 2, 3 } };
    struct link_spawn s = { .script = "exit 0", .instance = &elsewhere };
    struct host_side h;
    struct tjob t;

    (void)state;
    sem_init(&may_connect, 0, 0);
    host_start_with(&h, &box, 7, dial_later, NULL);
    tjob_init(&t, &h, next_key++);
    tjob_spawn(&t, &s);
    assert_int_equal(link_job_signal(t.job, SIGTERM, LINK_SCOPE_MAIN, tjob_done, &t), 0);
    sem_post(&may_connect); /* which guest it is comes out now */
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_LOST);
    assert_int_equal(tjob_wait_done(&t, 1), -ENXIO);
    tjob_forget(&t);
    tjob_finish(&t);
    host_stop(&h);
    sem_destroy(&may_connect);
}

static int dial_nobody(struct host_side *h)
{
    (void)h;
    return -ENXIO;
}

static void a_sandbox_that_is_gone_for_good_is_lost(void **state)
{
    struct host_side h;
    struct tjob t;

    (void)state;
    host_start_with(&h, &box, 3, dial_nobody, NULL);
    tjob_init(&t, &h, 1);
    tjob_sh(&t, "exit 0");
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.kind, LINK_END_LOST);
    assert_string_equal(host_wait_lost(&h), "dial: No such device or address");
    tjob_release(&t);
    tjob_finish(&t);
    host_stop(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeout_ends_the_whole_tree_and_keeps_the_output),
        cmocka_unit_test(a_kill_ends_the_whole_tree),
        cmocka_unit_test(a_kill_without_grace_is_a_kill),
        cmocka_unit_test(a_signal_right_behind_the_start_arrives),
        cmocka_unit_test(term_comes_before_kill),
        cmocka_unit_test(a_stopped_job_can_be_killed),
        cmocka_unit_test(a_fork_bomb_is_ended),
        cmocka_unit_test(signals_reach_the_group_or_the_tree),
        cmocka_unit_test(what_an_ended_job_left_behind_goes_on),
        cmocka_unit_test(a_key_starts_one_command),
        cmocka_unit_test(a_forgotten_job_is_not_there),
        cmocka_unit_test(output_waits_for_the_host_that_comes_back),
        cmocka_unit_test(a_restarted_host_takes_over),
        cmocka_unit_test(two_hosts_live_side_by_side_until_one_takes_a_job),
        cmocka_unit_test(all_jobs_are_listed_with_their_labels),
        cmocka_unit_test(a_job_is_forgotten_though_its_link_is_closed_right_behind),
        cmocka_unit_test(an_open_request_of_a_released_job_is_answered),
        cmocka_unit_test(a_job_is_let_go_of_while_its_callback_uses_it),
        cmocka_unit_test(held_output_stops_its_own_stream_alone),
        cmocka_unit_test(a_guest_answers_pings),
        cmocka_unit_test(a_guest_that_is_stopped_delivers_what_its_jobs_still_say),
        cmocka_unit_test(a_guest_that_is_made_anew_is_another_one),
        cmocka_unit_test(a_job_that_must_not_run_elsewhere_does_not),
        cmocka_unit_test(what_was_asked_of_a_job_that_must_not_run_there_is_answered),
        cmocka_unit_test(a_sandbox_that_is_gone_for_good_is_lost),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}

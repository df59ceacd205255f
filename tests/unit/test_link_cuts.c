// SPDX-License-Identifier: Apache-2.0
/* The stream between host and guest is cut at random bytes, a thousand times and in both directions,
 * while jobs print, read and are signalled: nothing may be lost, doubled or out of order, and nothing may
 * be executed twice. Then the same with hosts that die. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/test_link_fixture.h"

#ifndef CUTS
#define CUTS 1000 /* fewer where a sanitizer makes all of it slow */
#endif
#define JOBS 8

static struct sandbox box;

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* ── a stream that breaks ── */

/* Carries bytes between the link and the guest until `budget` of them have passed, then drops both
 * ends with whatever is under way. */
struct cutter {
    int       link_fd, guest_fd;
    long      budget;
};

static atomic_uint cuts;
static atomic_bool calm; /* no more cuts */
static uint64_t seed = 42, cut_seed = 43; /* the test's, and the dialling thread's */

/* Moves what is there from one end to the other. False: the end. */
static bool pass(int from, int to, long *budget)
{
    char buf[16384];
    size_t most = *budget >= 0 && (size_t)*budget < sizeof(buf) ? (size_t)*budget : sizeof(buf);
    ssize_t n = most ? read(from, buf, most) : 0, done = 0;

    if (n <= 0)
        return false;
    if (*budget >= 0)
        *budget -= n;
    while (done < n) {
        ssize_t w = send(to, buf + done, (size_t)(n - done), MSG_NOSIGNAL);

        if (w <= 0)
            return false;
        done += w;
    }
    return true;
}

static void *carry(void *arg)
{
    struct cutter *c = arg;
    bool go_on = true;

    while (go_on) {
        struct pollfd p[2] = { { c->link_fd, POLLIN, 0 }, { c->guest_fd, POLLIN, 0 } };

        poll(p, 2, -1);
        if (p[0].revents)
            go_on = pass(c->link_fd, c->guest_fd, &c->budget);
        if (go_on && p[1].revents)
            go_on = pass(c->guest_fd, c->link_fd, &c->budget);
        if (c->budget == 0) {
            atomic_fetch_add(&cuts, 1);
            go_on = false;
        }
    }
    close(c->link_fd);
    close(c->guest_fd);
    free(c);
    return NULL;
}

/* Short and long lives, so that greetings, answers and output are all hit. */
static long random_budget(void)
{
    uint32_t kind = next_random(&cut_seed) % 4;
    uint32_t most = kind == 0 ? 300 : kind == 1 ? 3000 : kind == 2 ? 30000 : 300000;

    return 1 + (long)(next_random(&cut_seed) % most);
}

static int dial_through_cutter(struct host_side *h)
{
    struct cutter *c = malloc(sizeof(*c));
    int pair[2], guest = sandbox_dial(h->sandbox);
    pthread_t thread;

    if (guest < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        free(c);
        return guest < 0 ? guest : -errno;
    }
    *c = (struct cutter){ pair[1], guest, atomic_load(&calm) ? -1 : random_budget() };
    pthread_create(&thread, NULL, carry, c);
    pthread_detach(thread);
    return pair[0];
}

/* ── jobs whose output is known ── */

/* Prints `count` numbered lines, every third to stderr. */
static void counting_script(char *script, size_t size, int job, int count)
{
    snprintf(script, size, "echo x >> %s/ran-%d; i=0; while [ $i -lt %d ]; do echo \"job %d line $i of some length\"; "
             "i=$((i+1)); [ $((i%%3)) = 0 ] && echo \"job %d error $i\" >&2; done; exit %d",
             box.dir, job, count, job, job, job);
}

static void check_counting(const struct tjob *t, int job, int count)
{
    char *want[2] = { malloc((size_t)count * 64), malloc((size_t)count * 64) };
    size_t len[2] = { 0, 0 };

    for (int i = 0; i < count; i++) {
        len[0] += (size_t)sprintf(want[0] + len[0], "job %d line %d of some length\n", job, i);
        if ((i + 1) % 3 == 0)
            len[1] += (size_t)sprintf(want[1] + len[1], "job %d error %d\n", job, i + 1);
    }
    for (int s = 0; s < 2; s++) {
        assert_int_equal(t->len[s], len[s]);
        assert_memory_equal(t->data[s], want[s], len[s]);
        free(want[s]);
    }
    assert_int_equal(t->exit.kind, LINK_END_EXITED);
    assert_int_equal(t->exit.code, job);
}

static void check_ran_once(int job)
{
    char path[160];
    FILE *f;

    snprintf(path, sizeof(path), "%s/ran-%d", box.dir, job);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fgetc(f), 'x');
    assert_int_equal(fgetc(f), '\n');
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    unlink(path);
}

static uint64_t key_of(int round, int job) { return (uint64_t)round * 1000 + (uint64_t)job + 1; }

/* ── the tests ── */

/* A job that reads much: fed by a thread of its own. */
struct feeder {
    struct tjob t;
    unsigned char *data;
    size_t size;
};

static void *feed(void *arg)
{
    struct feeder *f = arg;

    tjob_feed(&f->t, 0, f->data, f->size, true);
    return NULL;
}

static void start_feeder(struct feeder *f, struct host_side *h, pthread_t *thread)
{
    struct link_spawn s = { .script = "cat", .stdin_pipe = true };

    f->size = 1u << 20;
    f->data = malloc(f->size);
    for (size_t i = 0; i < f->size; i++)
        f->data[i] = (unsigned char)(i * 2654435761u >> 11);
    tjob_init(&f->t, h, 900000 + next_random(&seed));
    tjob_spawn(&f->t, &s);
    pthread_create(thread, NULL, feed, f);
}

static void check_feeder(struct feeder *f, pthread_t thread)
{
    pthread_join(thread, NULL);
    tjob_wait_exit(&f->t);
    assert_int_equal(f->t.len[0], f->size);
    assert_memory_equal(f->t.data[0], f->data, f->size);
    tjob_forget(&f->t);
    tjob_finish(&f->t);
    free(f->data);
}

/* Counts the signals that it gets: each request must arrive once. Signals do not queue, so the next is
 * only sent when the last was seen. */
static const char signal_counter[] = "trap 'n=$((n+1)); echo $n' USR1; n=0; echo 0; while [ $n -lt 20 ]; do sleep 0.01; done";

static void *signal_job(void *arg)
{
    struct tjob *t = arg;
    char want[16];
    size_t seen = 2;

    for (unsigned i = 1; i <= 20; i++) {
        tjob_wait_output(t, 0, seen);
        link_job_signal(t->job, SIGUSR1, LINK_SCOPE_MAIN, tjob_done, t);
        tjob_wait_done(t, i);
        seen += (size_t)snprintf(want, sizeof(want), "%u\n", i);
    }
    return NULL;
}

static void run_round(struct host_side *h, int round)
{
    struct tjob t[JOBS], counter;
    struct feeder f;
    pthread_t feeding, signalling;
    char script[512];

    for (int i = 0; i < JOBS; i++) {
        tjob_init(&t[i], h, key_of(round, i));
        counting_script(script, sizeof(script), i, 1500);
        tjob_sh(&t[i], script);
    }
    start_feeder(&f, h, &feeding);
    tjob_init(&counter, h, key_of(round, 999));
    tjob_sh(&counter, signal_counter);
    pthread_create(&signalling, NULL, signal_job, &counter);
    for (int i = 0; i < JOBS; i++) {
        tjob_wait_exit(&t[i]);
        check_counting(&t[i], i, 1500);
        char *log = tjob_log(&t[i]); /* no gap in it */
        free(log);
        check_ran_once(i);
        tjob_forget(&t[i]);
        tjob_finish(&t[i]);
    }
    check_feeder(&f, feeding);
    pthread_join(signalling, NULL);
    tjob_wait_exit(&counter);
    assert_int_equal(counter.len[0], 2 + 9 * 2 + 11 * 3);
    tjob_forget(&counter);
    tjob_finish(&counter);
}

static void a_thousand_cuts_lose_and_double_nothing(void **state)
{
    struct host_side h;
    int round = 1;

    (void)state;
    sandbox_start(&box);
    host_start_with(&h, &box, 1, dial_through_cutter, NULL);
    while (atomic_load(&cuts) < CUTS)
        run_round(&h, round++);
    atomic_store(&calm, true);
    run_round(&h, round);
    assert_true(link_state(h.link, NULL) != LINK_LOST);
    print_message("%u cuts in %d rounds\n", atomic_load(&cuts), round);
    host_stop(&h);
    sandbox_stop(&box, SIGTERM);
}

/* A host that spawns jobs and dies at a random moment; the next one does the same again with the same keys,
 * having "stored" nothing. */
static int die_as_host(int round, unsigned life_us)
{
    struct host_side h;
    struct tjob *t = calloc(JOBS, sizeof(*t));
    char script[512];

    host_start(&h, &box, 1);
    for (int i = 0; i < JOBS; i++) {
        tjob_init(&t[i], &h, key_of(round, i));
        t[i].hold[0] = t[i].hold[1] = true;
        counting_script(script, sizeof(script), i, 300);
        tjob_sh(&t[i], script);
    }
    usleep(life_us);
    kill(getpid(), SIGKILL);
    return 1;
}

/* By a program of its own: a thread of ours that has just ended may still be there at a fork, after which none
 * can be made under a sanitizer. */
static void dying_host(int round, unsigned life_us)
{
    char numbers[2][16];
    pid_t pid;

    snprintf(numbers[0], sizeof(numbers[0]), "%d", round);
    snprintf(numbers[1], sizeof(numbers[1]), "%u", life_us);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "dying-host", box.dir, numbers[0], numbers[1], (char *)NULL);
        _exit(126);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void a_host_that_dies_at_any_moment_starts_nothing_twice(void **state)
{
    char script[512];

    (void)state;
    sandbox_start(&box);
    for (int round = 5000; round < 5030; round++) {
        struct host_side h;
        struct tjob t[JOBS];

        for (int lives = 0; lives < 2; lives++)
            dying_host(round, next_random(&seed) % 20000);
        host_start(&h, &box, 1);
        for (int i = 0; i < JOBS; i++) {
            tjob_init(&t[i], &h, key_of(round, i));
            counting_script(script, sizeof(script), i, 300);
            tjob_sh(&t[i], script);
        }
        for (int i = 0; i < JOBS; i++) {
            tjob_wait_exit(&t[i]);
            check_counting(&t[i], i, 300);
            check_ran_once(i);
            tjob_forget(&t[i]);
            tjob_finish(&t[i]);
        }
        host_stop(&h);
    }
    sandbox_stop(&box, SIGTERM);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_cuts_lose_and_double_nothing),
        cmocka_unit_test(a_host_that_dies_at_any_moment_starts_nothing_twice),
    };

    if (argc == 4) {
        snprintf(box.dir, sizeof(box.dir), "%s", argv[1]);
        snprintf(box.path, sizeof(box.path), "%s/socket", argv[1]);
        return die_as_host(atoi(argv[2]), (unsigned)atoi(argv[3]));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/base/pool.h"

#define N_TASKS 2000

/* A gate that tasks stand at until the test opens it. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    unsigned        waiting;
    bool            open;
};
#define GATE {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}

static void gate_pass(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void gate_await(struct gate *g, unsigned n)
{
    pthread_mutex_lock(&g->lock);
    while (g->waiting < n)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

struct job {
    struct task   task;
    struct pool  *pool;
    struct gate  *gate;
    _Atomic int  *count;
    _Atomic int   again; /* how often it queues itself once more */
    pthread_t     thread;
    bool          signals_blocked;
};

static void run_job(struct task *t)
{
    struct job *j = container_of(t, struct job, task);
    sigset_t now;

    j->thread = pthread_self();
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    j->signals_blocked = sigismember(&now, SIGTERM) && sigismember(&now, SIGUSR1);
    if (j->gate)
        gate_pass(j->gate);
    atomic_fetch_add(j->count, 1);
    if (atomic_fetch_sub(&j->again, 1) > 0)
        pool_add(j->pool, &j->task);
}

static struct job *make_jobs(struct pool *p, struct gate *g, _Atomic int *count, size_t n)
{
    struct job *jobs = calloc(n, sizeof(*jobs));

    assert_non_null(jobs);
    for (size_t i = 0; i < n; i++) {
        jobs[i].task.run = run_job;
        jobs[i].pool = p;
        jobs[i].gate = g;
        jobs[i].count = count;
    }
    return jobs;
}

static void destroy_runs_all_that_is_queued(void **state)
{
    struct pool *p = pool_create(4, 0);
    _Atomic int count = 0;
    struct job *jobs = make_jobs(p, NULL, &count, N_TASKS);

    (void)state;
    for (size_t i = 0; i < N_TASKS; i++)
        pool_add(p, &jobs[i].task);
    pool_destroy(p);
    assert_int_equal(count, N_TASKS);
    free(jobs);
}

static void a_task_may_queue_itself_again(void **state)
{
    struct pool *p = pool_create(3, 0);
    _Atomic int count = 0;
    struct job *jobs = make_jobs(p, NULL, &count, 10);

    (void)state;
    for (size_t i = 0; i < 10; i++) {
        jobs[i].again = 50;
        pool_add(p, &jobs[i].task);
    }
    pool_destroy(p);
    assert_int_equal(count, 10 * 51);
    free(jobs);
}

static void hanging_tasks_delay_no_other(void **state)
{
    struct pool *p = pool_create(4, 64 * 1024);
    struct gate hang = GATE, done = GATE;
    _Atomic int hung = 0, count = 0;
    struct job *stuck = make_jobs(p, &hang, &hung, 3), *one = make_jobs(p, &done, &count, 1);

    (void)state;
    for (size_t i = 0; i < 3; i++)
        pool_add(p, &stuck[i].task);
    gate_await(&hang, 3);
    pool_add(p, &one[0].task);
    gate_await(&done, 1);
    assert_int_equal(hung, 0);
    gate_open(&done);
    gate_open(&hang);
    pool_destroy(p);
    assert_int_equal(hung, 3);
    free(stuck);
    free(one);
}

static void no_more_threads_than_allowed(void **state)
{
    struct pool *p = pool_create(2, 0);
    struct gate hang = GATE;
    _Atomic int count = 0;
    struct job *jobs = make_jobs(p, &hang, &count, 20);
    size_t distinct = 0;

    (void)state;
    for (size_t i = 0; i < 20; i++)
        pool_add(p, &jobs[i].task);
    gate_await(&hang, 2);
    gate_open(&hang);
    pool_destroy(p);
    assert_int_equal(count, 20);
    for (size_t i = 0; i < 20; i++) {
        size_t k = 0;
        while (!pthread_equal(jobs[k].thread, jobs[i].thread))
            k++;
        distinct += k == i;
    }
    assert_in_range(distinct, 1, 2);
    free(jobs);
}

static void threads_block_all_signals_and_the_caller_keeps_its_mask(void **state)
{
    struct pool *p = pool_create(1, 0);
    _Atomic int count = 0;
    struct job *jobs = make_jobs(p, NULL, &count, 1);
    sigset_t now;

    (void)state;
    pool_add(p, &jobs[0].task);
    pool_destroy(p);
    assert_true(jobs[0].signals_blocked);
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    assert_false(sigismember(&now, SIGTERM));
    free(jobs);
}

static void a_stack_that_cannot_be_had_lets_the_caller_work(void **state)
{
    struct pool *p = pool_create(4, (size_t)1 << 50);
    _Atomic int count = 0;
    struct job *jobs = make_jobs(p, NULL, &count, 5);

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        pool_add(p, &jobs[i].task);
        assert_int_equal(count, (int)i + 1);
        assert_true(pthread_equal(jobs[i].thread, pthread_self()));
    }
    pool_destroy(p);
    free(jobs);
}

struct feeder {
    struct pool *pool;
    struct job  *jobs;
    size_t       n;
};

static void *feed(void *arg)
{
    struct feeder *f = arg;

    for (size_t i = 0; i < f->n; i++)
        pool_add(f->pool, &f->jobs[i].task);
    return NULL;
}

static void many_callers_add_at_once(void **state)
{
    struct pool *p = pool_create(8, 0);
    _Atomic int count = 0;
    struct feeder f[4];
    pthread_t t[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        f[i] = (struct feeder){p, make_jobs(p, NULL, &count, N_TASKS), N_TASKS};
        assert_int_equal(pthread_create(&t[i], NULL, feed, &f[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    pool_destroy(p);
    assert_int_equal(count, 4 * N_TASKS);
    for (size_t i = 0; i < 4; i++)
        free(f[i].jobs);
}

static void draining_waits_for_all_but_not_for_ever(void **state)
{
    struct pool *p = pool_create(2, 0);
    struct gate hang = GATE;
    _Atomic int count = 0;
    struct job *quick = make_jobs(p, NULL, &count, N_TASKS), *stuck = make_jobs(p, &hang, &count, 1);

    (void)state;
    assert_true(pool_drain(p, 0));
    for (size_t i = 0; i < N_TASKS; i++)
        pool_add(p, &quick[i].task);
    assert_true(pool_drain(p, 100000000000));
    assert_int_equal(count, N_TASKS);
    pool_add(p, &stuck[0].task);
    assert_false(pool_drain(p, 1000000));
    gate_open(&hang);
    assert_true(pool_drain(p, 100000000000));
    pool_destroy(p);
    free(quick);
    free(stuck);
}

static void destroying_an_unused_pool_or_none_is_fine(void **state)
{
    (void)state;
    pool_destroy(pool_create(1, 0));
    pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(destroy_runs_all_that_is_queued),
        cmocka_unit_test(a_task_may_queue_itself_again),
        cmocka_unit_test(hanging_tasks_delay_no_other),
        cmocka_unit_test(no_more_threads_than_allowed),
        cmocka_unit_test(threads_block_all_signals_and_the_caller_keeps_its_mask),
        cmocka_unit_test(a_stack_that_cannot_be_had_lets_the_caller_work),
        cmocka_unit_test(many_callers_add_at_once),
        cmocka_unit_test(draining_waits_for_all_but_not_for_ever),
        cmocka_unit_test(destroying_an_unused_pool_or_none_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/base/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "fs/base/cleanup.h"

#define IDLE_S   5
#define NS_PER_S 1000000000LL

struct pool {
    /* Guards all below; a leaf of the order: nothing is called with it held. */
    pthread_mutex_t lock;
    pthread_cond_t  work;  /* something was queued, or the end was asked for */
    pthread_cond_t  ended; /* a thread has ended or is idle */
    struct list     queue;
    unsigned queued;
    unsigned threads;      /* running, or being made */
    unsigned idle;         /* of these, waiting for work */
    bool     ending;
    unsigned max_threads;
    size_t   stack_bytes;
};

struct pool *pool_create(unsigned max_threads, size_t stack_bytes)
{
    struct pool *p = calloc(1, sizeof(*p));
    pthread_condattr_t monotonic;

    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->work, &monotonic);
    pthread_cond_init(&p->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    list_init(&p->queue);
    p->max_threads = max_threads ? max_threads : 1;
    p->stack_bytes = stack_bytes;
    return p;
}

static struct task *take_locked(struct pool *p)
{
    struct task *t;

    if (list_empty(&p->queue))
        return NULL;
    t = container_of(p->queue.next, struct task, links);
    list_remove(&t->links);
    p->queued--;
    return t;
}

/* Waits for work; NULL when this thread should end. */
static struct task *next_locked(struct pool *p)
{
    struct timespec until;
    struct task *t;
    int r = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_S;
    while (!(t = take_locked(p)) && !p->ending && r != ETIMEDOUT) {
        p->idle++;
        pthread_cond_broadcast(&p->ended);
        r = pthread_cond_timedwait(&p->work, &p->lock, &until);
        p->idle--;
    }
    return t;
}

static void *pool_thread(void *arg)
{
    struct pool *p = arg;
    struct task *t;

    pthread_mutex_lock(&p->lock);
    while ((t = next_locked(p))) {
        pthread_mutex_unlock(&p->lock);
        t->run(t);
        pthread_mutex_lock(&p->lock);
    }
    p->threads--;
    pthread_cond_broadcast(&p->ended);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Detached, all signals blocked: they are for the thread that main has for them. */
static int start_thread(struct pool *p)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int r;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (p->stack_bytes)
        pthread_attr_setstacksize(&attr, p->stack_bytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&thread, &attr, pool_thread, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return r;
}

/* No thread could be made. Where there is no other either, nobody else will do the work. */
static void thread_failed(struct pool *p)
{
    struct task *t;

    pthread_mutex_lock(&p->lock);
    p->threads--;
    pthread_cond_broadcast(&p->ended);
    while (p->threads == 0 && (t = take_locked(p))) {
        pthread_mutex_unlock(&p->lock);
        t->run(t);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

void pool_add(struct pool *p, struct task *t)
{
    bool grow;

    pthread_mutex_lock(&p->lock);
    list_append(&p->queue, &t->links);
    p->queued++;
    grow = p->queued > p->idle && p->threads < p->max_threads;
    if (grow)
        p->threads++;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (grow && start_thread(p) != 0)
        thread_failed(p);
}

bool pool_drain(struct pool *p, int64_t timeout_ns)
{
    struct timespec until;
    int r = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ns % NS_PER_S;
    until.tv_sec += timeout_ns / NS_PER_S + until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    scoped_lock(&p->lock);
    while ((p->queued || p->threads > p->idle) && r != ETIMEDOUT)
        r = pthread_cond_timedwait(&p->ended, &p->lock, &until);
    return !p->queued && p->threads == p->idle;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->work);
    while (p->threads > 0)
        pthread_cond_wait(&p->ended, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

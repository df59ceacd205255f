// SPDX-License-Identifier: Apache-2.0
#include "fs/base/timers.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "fs/base/cleanup.h"

#define NS_PER_S 1000000000LL

struct timers {
    /* Guards all below and the members of armed timers; a leaf of the order: no fire() is called
     * with it held. */
    pthread_mutex_t lock;
    pthread_cond_t  changed; /* another timer is the first now, or the end was asked for */
    pthread_cond_t  fired;   /* a fire() has returned */
    struct timer *root;      /* the next one due */
    struct timer *firing;    /* only ever compared: its memory may be gone */
    bool      ending;
    pthread_t thread;
};

static int64_t read_clock(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t clock_ns(void) { return read_clock(CLOCK_MONOTONIC); }
int64_t wall_ms(void) { return read_clock(CLOCK_REALTIME) / 1000000; }

/* ── a pairing heap; `prev` is the left neighbour, or for a first child the parent ────────── */

static struct timer *meld(struct timer *a, struct timer *b)
{
    if (!a || !b)
        return a ? a : b;
    if (b->due_ns < a->due_ns) {
        struct timer *swap = a;
        a = b;
        b = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (b->next)
        b->next->prev = b;
    a->child = b;
    a->next = a->prev = NULL;
    return a;
}

/* Melds neighbours in pairs from the left, then the pairs from the right: what makes removal
 * O(log n) amortised. */
static struct timer *meld_siblings(struct timer *first)
{
    struct timer *pairs = NULL, *all = NULL;

    while (first) {
        struct timer *a = first, *b = a->next;
        first = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b)
            b->next = b->prev = NULL;
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct timer *rest = pairs->next;
        pairs->next = NULL;
        all = meld(all, pairs);
        pairs = rest;
    }
    return all;
}

static void heap_add(struct timers *ts, struct timer *t, int64_t due_ns)
{
    t->due_ns = due_ns;
    t->child = t->next = t->prev = NULL;
    t->armed = true;
    ts->root = meld(ts->root, t);
}

static void heap_remove(struct timers *ts, struct timer *t)
{
    struct timer *below = meld_siblings(t->child);

    if (ts->root == t) {
        ts->root = below;
    } else {
        if (t->prev->child == t)
            t->prev->child = t->next;
        else
            t->prev->next = t->next;
        if (t->next)
            t->next->prev = t->prev;
        ts->root = meld(ts->root, below);
    }
    t->child = t->next = t->prev = NULL;
    t->armed = false;
}

/* ── the thread ──────────────────────────────────────────────────────────────────────────── */

static void fire_locked(struct timers *ts, struct timer *t)
{
    heap_remove(ts, t);
    ts->firing = t;
    pthread_mutex_unlock(&ts->lock);
    t->fire(t);
    pthread_mutex_lock(&ts->lock);
    ts->firing = NULL;
    pthread_cond_broadcast(&ts->fired);
}

static void sleep_locked(struct timers *ts)
{
    if (!ts->root) {
        pthread_cond_wait(&ts->changed, &ts->lock);
        return;
    }
    struct timespec until = {
        .tv_sec = ts->root->due_ns / NS_PER_S,
        .tv_nsec = ts->root->due_ns % NS_PER_S,
    };
    pthread_cond_timedwait(&ts->changed, &ts->lock, &until);
}

static void *timers_thread(void *arg)
{
    struct timers *ts = arg;

    pthread_mutex_lock(&ts->lock);
    while (!ts->ending) {
        if (ts->root && ts->root->due_ns <= clock_ns())
            fire_locked(ts, ts->root);
        else
            sleep_locked(ts);
    }
    pthread_mutex_unlock(&ts->lock);
    return NULL;
}

static int start_thread(struct timers *ts)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&ts->thread, NULL, timers_thread, ts);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static void timers_free(struct timers *ts)
{
    pthread_cond_destroy(&ts->changed);
    pthread_cond_destroy(&ts->fired);
    pthread_mutex_destroy(&ts->lock);
    free(ts);
}

struct timers *timers_create(void)
{
    struct timers *ts = calloc(1, sizeof(*ts));
    pthread_condattr_t monotonic;

    if (!ts)
        return NULL;
    pthread_mutex_init(&ts->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ts->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&ts->fired, NULL);
    if (start_thread(ts) != 0) {
        timers_free(ts);
        return NULL;
    }
    return ts;
}

void timers_stop(struct timers *ts)
{
    bool again;

    pthread_mutex_lock(&ts->lock);
    again = ts->ending;
    ts->ending = true;
    pthread_cond_signal(&ts->changed);
    pthread_mutex_unlock(&ts->lock);
    if (!again)
        pthread_join(ts->thread, NULL);
}

void timers_destroy(struct timers *ts)
{
    if (!ts)
        return;
    timers_stop(ts);
    timers_free(ts);
}

void timer_set(struct timers *ts, struct timer *t, int64_t due_ns)
{
    scoped_lock(&ts->lock);
    if (t->cancels)
        return;
    if (t->armed)
        heap_remove(ts, t);
    heap_add(ts, t, due_ns);
    if (ts->root == t)
        pthread_cond_signal(&ts->changed);
}

bool timer_cancel(struct timers *ts, struct timer *t)
{
    bool armed;

    scoped_lock(&ts->lock);
    armed = t->armed;
    if (armed)
        heap_remove(ts, t);
    if (pthread_equal(pthread_self(), ts->thread))
        return armed;
    t->cancels++;
    while (ts->firing == t)
        pthread_cond_wait(&ts->fired, &ts->lock);
    t->cancels--;
    return armed;
}

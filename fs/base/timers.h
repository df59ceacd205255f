// SPDX-License-Identifier: Apache-2.0
/* One thread that sleeps until the next deadline of a heap of timers: no polling, no scan. */
#ifndef WSMFS_BASE_TIMERS_H
#define WSMFS_BASE_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timers;

/* Lives inside its owner; all zero but `fire` before the first use. */
struct timer {
    void   (*fire)(struct timer *t); /* on the timer thread, no lock held; must not block */
    int64_t  due_ns;
    bool     armed;
    unsigned cancels; /* threads in timer_cancel() */
    /* Its place in a pairing heap: arming needs no memory, so it cannot fail. */
    struct timer *child, *next, *prev;
};

/* CLOCK_MONOTONIC in nanoseconds (CLOCK_BOOTTIME is not wanted: a suspended machine is idle for
 * nobody). */
int64_t clock_ns(void);
/* CLOCK_REALTIME in milliseconds since the epoch, for what users read. */
int64_t wall_ms(void);

struct timers *timers_create(void);
/* Ends the thread: no timer fires any more, but they may still be set and cancelled. */
void timers_stop(struct timers *ts);
/* timers_stop() if need be, and frees. NULL is fine. */
void timers_destroy(struct timers *ts);

/* Arms `t` for `due_ns` (clock_ns time), or moves it there when it is armed. Any thread, also from
 * a fire(). O(log n), amortised. */
void timer_set(struct timers *ts, struct timer *t, int64_t due_ns);

/* Disarms `t` and waits until a fire() in progress on another thread has returned; afterwards the
 * memory may be freed. True when it was armed (so it will not have fired). From t's own fire() it
 * does not wait. Not with a lock held that fire() takes. A timer_set() meanwhile, such as that of a
 * fire() in progress, is in vain. */
bool timer_cancel(struct timers *ts, struct timer *t);

#endif

// SPDX-License-Identifier: Apache-2.0
#include "fs/wait.h"

#include <errno.h>

#include "fs/base/cleanup.h"

void wait_put(struct wait *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1)
        w->free(w);
}

/* Waits until libfuse's callback is not running and will not run. */
void wait_answer(struct wait *w)
{
    fuse_req_interrupt_func(w->req, NULL, NULL);
}

/* Answers EINTR if it still waits; what it waited for goes on for others. */
static void give_up(struct wait *w)
{
    if (!waiter_cancel(w->fs->manager, &w->waiter))
        return;
    wait_answer(w);
    fuse_reply_err(w->req, EINTR);
    wait_put(w);
}

static void run_interruption(struct task *t)
{
    struct wait *w = container_of(t, struct wait, interruption);
    give_up(w);
    wait_put(w);
}

/* Called by libfuse with a lock of the request held: must not answer here. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct wait *w = data;
    (void)req;
    if (atomic_exchange(&w->interrupted, true))
        return;
    atomic_fetch_add(&w->refs, 1);
    pool_add(w->fs->pool, &w->interruption);
}

static void on_wake(struct waiter *waiter, int status)
{
    struct wait *w = container_of(waiter, struct wait, waiter);
    atomic_fetch_add(&w->refs, 1);
    if (status == 0 && atomic_load(&w->interrupted))
        status = -EINTR;
    w->woken(w, status);
    wait_put(w);
}

void wait_begin(struct wait *w, struct fs *fs, fuse_req_t req, void (*woken)(struct wait *, int),
                void (*free)(struct wait *))
{
    *w = (struct wait){.fs = fs, .req = req, .woken = woken, .free = free};
    w->waiter.wake = on_wake;
    w->interruption.run = run_interruption;
    atomic_init(&w->refs, 2);
    fuse_req_interrupt_func(req, on_interrupt, w);
}

void wait_queued(struct wait *w)
{
    if (atomic_load(&w->interrupted))
        give_up(w);
}

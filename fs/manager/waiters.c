// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/internal.h"

void waiters_add(struct manager *m, struct list *q, struct waiter *w)
{
    scoped_lock(&m->wait_lock);

    if (!w)
        return;
    w->queue = q;
    list_append(q, &w->links);
}

void waiters_take(struct manager *m, struct list *q, int status, struct list *out)
{
    scoped_lock(&m->wait_lock);

    list_for_each(pos, q) {
        struct waiter *w = container_of(pos, struct waiter, links);
        w->queue = NULL;
        w->status = status;
    }
    list_splice(out, q);
}

static void wake_one(struct task *t)
{
    struct waiter *w = container_of(t, struct waiter, task);

    w->wake(w, w->status);
}

void waiters_wake(struct manager *m, struct list *out)
{
    while (!list_empty(out)) {
        struct waiter *w = container_of(out->next, struct waiter, links);
        list_remove(&w->links);
        w->task.run = wake_one;
        pool_add(m->pool, &w->task);
    }
}

void waiters_finish(struct manager *m, struct list *q, int status)
{
    struct list out;

    list_init(&out);
    waiters_take(m, q, status, &out);
    waiters_wake(m, &out);
}

bool waiter_cancel(struct manager *m, struct waiter *w)
{
    scoped_lock(&m->wait_lock);

    if (!w->queue)
        return false;
    w->queue = NULL;
    list_remove(&w->links);
    return true;
}

// SPDX-License-Identifier: Apache-2.0
/* Closing many workspaces at once, with one waiter for all. */
#include <errno.h>
#include <stdlib.h>

#include "fs/manager/internal.h"

struct many {
    struct manager      *manager;
    struct close_request request;
    bool                 past_ttl; /* only what is past its ttl */
    atomic_size_t        pending;  /* closings, and one for the caller that still adds */
    atomic_int           status;   /* the first failure */
    struct list          waiters;  /* wait_lock */
};

struct one {
    struct waiter waiter; /* first */
    struct many  *many;
};

static void many_done(struct many *all)
{
    struct manager *m = all->manager;

    if (atomic_fetch_sub(&all->pending, 1) > 1)
        return;
    waiters_finish(m, &all->waiters, atomic_load(&all->status));
    free(all);
    manager_job_end(m);
}

static void one_ended(struct many *all, int status)
{
    int none = 0;

    if (status < 0)
        atomic_compare_exchange_strong(&all->status, &none, status);
    many_done(all);
}

static void one_woken(struct waiter *w, int status)
{
    struct one *o = container_of(w, struct one, waiter);
    struct many *all = o->many;

    free(o);
    one_ended(all, status);
}

static void close_one(struct workspace *ws, void *arg)
{
    struct many *all = arg;
    struct close_request req = all->request;
    int64_t ttl_s = workspace_ttl_s(ws);
    struct one *o;
    int r;

    if (all->past_ttl)
        req.idle_since_ns = clock_ns() - ttl_s * NS_PER_S;
    if (all->past_ttl && (ttl_s == 0 || atomic_load(&ws->last_access_ns) > req.idle_since_ns))
        return;
    o = calloc(1, sizeof(*o));
    if (!o)
        return;
    o->waiter.wake = one_woken;
    o->many = all;
    atomic_fetch_add(&all->pending, 1);
    r = workspace_close(ws, &req, &o->waiter, NULL);
    if (r == MANAGER_WAIT)
        return;
    free(o);
    one_ended(all, r == -EAGAIN ? 0 : r);
}

int close_many(struct manager *m, const struct close_request *req, bool past_ttl, struct waiter *w, struct err *e)
{
    struct many *all = calloc(1, sizeof(*all));

    if (!all)
        return err_set(e, -ENOMEM, "out of memory");
    all->manager = m;
    all->request = *req;
    all->past_ttl = past_ttl;
    atomic_init(&all->pending, 1);
    list_init(&all->waiters);
    manager_job_begin(m);
    waiters_add(m, &all->waiters, w);
    live_each(m, close_one, all);
    many_done(all);
    return MANAGER_WAIT;
}

int sweeper_sweep(struct manager *m, struct waiter *w, struct err *e)
{
    const struct close_request req = { .why = CLOSE_EVICTED, .if_idle = true };

    return close_many(m, &req, true, w, e);
}

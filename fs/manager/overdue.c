// SPDX-License-Identifier: Apache-2.0
/* Attempts that take too long, are no longer wanted, or must wait for an earlier one that is still in
 * the backend: for one workspace no two callbacks ever run at once. */
#include <errno.h>

#include "fs/manager/internal.h"

/* ── waiting before the backend ──────────────────────────────────────────────────────────── */

bool attempt_park_locked(struct attempt *a)
{
    if (!a->ws->stale)
        return false;
    a->behind = true;
    attempt_arm(a);
    return true;
}

/* ws->lock held: takes out of its queue what waits for room or for an earlier attempt. */
static bool unpark_locked(struct attempt *a)
{
    if (!a->behind)
        return !a->inside && admit_cancel(a);
    a->behind = false;
    return true;
}

static void task_start(struct task *t)
{
    attempt_start(container_of(t, struct attempt, task), NULL);
}

void attempt_stale_ended(struct workspace *ws)
{
    struct attempt *next = NULL;

    pthread_mutex_lock(&ws->lock);
    ws->stale = NULL;
    if (ws->attempt && ws->attempt->behind && unpark_locked(ws->attempt))
        next = ws->attempt;
    pthread_mutex_unlock(&ws->lock);
    if (next) {
        next->task.run = task_start;
        pool_add(ws->manager->pool, &next->task);
    }
    closing_go_on(ws);
}

struct attempt *attempt_cancel_locked(struct workspace *ws)
{
    struct attempt *a = ws->attempt;

    atomic_store(&a->cancelled, true);
    if (!unpark_locked(a))
        return NULL;
    ws->attempt = NULL;
    return a;
}

/* ── the time limit ──────────────────────────────────────────────────────────────────────── */

void attempt_give_up_locked(struct workspace *ws)
{
    if (!ws->attempt)
        return;
    atomic_store(&ws->attempt->cancelled, true);
    ws->stale = ws->attempt;
    ws->attempt = NULL;
}

static int64_t limit_s(const struct workspace *ws)
{
    return ws->manager->config->provision_timeout_s;
}

/* ws->lock held: the thread inside is on its own from now on. False: it has ended meanwhile, or a
 * closing waits for it and says what there is to say. */
static bool time_out_locked(struct attempt *a, struct err *e, struct list *out)
{
    struct workspace *ws = a->ws;

    if (ws->attempt != a)
        return false;
    attempt_give_up_locked(ws);
    if (ws->closing)
        return false;
    err_set(e, -ETIMEDOUT,
            "provisioning took longer than provision_timeout (%lld s); it is being given up, and the next try "
            "begins when it has ended",
            (long long)limit_s(ws));
    workspace_back_off_locked(ws, e);
    waiters_take(ws->manager, &ws->waiters, e->code, out);
    return true;
}

static void task_late(struct task *t)
{
    struct attempt *a = container_of(t, struct attempt, late);
    struct workspace *ws = a->ws;
    struct list out;
    struct err e;
    bool late;

    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    late = time_out_locked(a, &e, &out);
    pthread_mutex_unlock(&ws->lock);
    if (late)
        workspace_say_failed(ws, &e);
    waiters_wake(ws->manager, &out);
    attempt_unref(a);
}

static void task_no_room(struct task *t)
{
    struct attempt *a = container_of(t, struct attempt, late);
    struct err e;

    err_set(&e, -ETIMEDOUT, "no room was made within provision_timeout (%lld s)", (long long)limit_s(a->ws));
    attempt_refuse(a, &e);
}

static void task_still_behind(struct task *t)
{
    struct attempt *a = container_of(t, struct attempt, late);
    struct err e;

    err_set(&e, -ETIMEDOUT,
            "an earlier provisioning, which was given up, has not ended within another %lld s "
            "(provision_timeout); none begins beside it",
            (long long)limit_s(a->ws));
    attempt_refuse(a, &e);
}

/* ws->lock held: what is to be done about an attempt whose time is over; NULL: nothing. */
static void (*overdue_locked(struct attempt *a))(struct task *t)
{
    bool behind = a->behind;

    if (a->ws->attempt != a)
        return NULL;
    if (a->inside) {
        atomic_fetch_add(&a->refs, 1);
        return task_late;
    }
    if (!unpark_locked(a))
        return NULL;
    return behind ? task_still_behind : task_no_room;
}

void attempt_fire(struct timer *t)
{
    struct attempt *a = container_of(t, struct attempt, timer);
    struct manager *m = a->ws->manager;
    void (*run)(struct task *t);

    pthread_mutex_lock(&a->ws->lock);
    run = overdue_locked(a);
    pthread_mutex_unlock(&a->ws->lock);
    if (!run)
        return;
    a->late.run = run;
    pool_add(m->pool, &a->late);
}

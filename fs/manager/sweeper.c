// SPDX-License-Identifier: Apache-2.0
/* The sweeper: each live workspace has a timer for its own next deadline, so nothing is scanned and
 * nothing polls. At the deadline the kernel's entries of the root are expired; a request within the
 * next moment shows that it is in use after all. */
#include <errno.h>
#include <stdlib.h>

#include "fs/manager/internal.h"

#define PROBE_MOST_NS    (60 * NS_PER_S)
#define LEFTOVER_NEXT_NS (60 * NS_PER_S)

/* INT64_MAX: never. */
static int64_t ttl_deadline(struct workspace *ws)
{
    int64_t ttl_s = workspace_ttl_s(ws);

    return ttl_s > 0 ? atomic_load(&ws->last_access_ns) + ttl_s * NS_PER_S : INT64_MAX;
}

static int64_t age_deadline(struct workspace *ws)
{
    int64_t max_s = ws->manager->config->max_age_s;

    return max_s > 0 ? ws->created_ns + max_s * NS_PER_S : INT64_MAX;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void arm_at_locked(struct workspace *ws, int64_t due_ns)
{
    due_ns = earlier(due_ns, age_deadline(ws));
    if (due_ns != INT64_MAX)
        timer_set(ws->manager->timers, &ws->timer, due_ns);
}

static bool open_locked(struct workspace *ws)
{
    return atomic_load(&ws->gate) & GATE_OPEN;
}

void sweeper_arm_locked(struct workspace *ws)
{
    ws->probing = false;
    if (ws->closing) /* the end of that says */
        return;
    if (open_locked(ws))
        arm_at_locked(ws, ttl_deadline(ws));
    else if (ws->leftover)
        timer_set(ws->manager->timers, &ws->timer, clock_ns() + LEFTOVER_NEXT_NS);
}

void sweeper_changed(struct workspace *ws)
{
    scoped_lock(&ws->lock);

    sweeper_arm_locked(ws);
}

/* What is to be done at a deadline. */
enum due { DUE_NOTHING, DUE_PROBE, DUE_EVICT, DUE_MAX_AGE };

/* ws->lock held. In use beyond question: looked at again a ttl later, which is no later than its
 * next deadline can be, since the end of an open file counts as a use. */
static bool held_locked(struct workspace *ws, int64_t now_ns)
{
    if (!workspace_busy(ws) && !workspace_inside(ws) && !atomic_load(&ws->pinned))
        return false;
    ws->probing = false;
    arm_at_locked(ws, now_ns + workspace_ttl_s(ws) * NS_PER_S);
    return true;
}

/* ws->lock held. */
static enum due probe_locked(struct workspace *ws)
{
    ws->probing = true;
    ws->probed_access_ns = atomic_load(&ws->last_access_ns);
    return DUE_PROBE;
}

/* ws->lock held. */
static enum due due_locked(struct workspace *ws)
{
    int64_t now_ns = clock_ns();

    if (!open_locked(ws))
        return ws->leftover ? DUE_EVICT : DUE_NOTHING;
    if (age_deadline(ws) <= now_ns)
        return DUE_MAX_AGE;
    if (ttl_deadline(ws) > now_ns) {
        sweeper_arm_locked(ws);
        return DUE_NOTHING;
    }
    if (held_locked(ws, now_ns))
        return DUE_NOTHING;
    return ws->probing ? DUE_EVICT : probe_locked(ws);
}

/* What runs there is in use: looked at again a ttl later. */
static void hold(struct workspace *ws)
{
    scoped_lock(&ws->lock);

    ws->probing = false;
    if (open_locked(ws))
        arm_at_locked(ws, clock_ns() + workspace_ttl_s(ws) * NS_PER_S);
}

static void evict(struct workspace *ws)
{
    struct close_request req = { .why = CLOSE_EVICTED, .if_idle = true };
    bool open;

    pthread_mutex_lock(&ws->lock);
    open = open_locked(ws);
    req.idle_since_ns = open ? ws->probed_access_ns : INT64_MAX;
    pthread_mutex_unlock(&ws->lock);
    if (open && workspace_look_running(ws)) {
        hold(ws);
        return;
    }
    if (workspace_close(ws, &req, NULL, NULL) != -EAGAIN)
        return;
    sweeper_changed(ws); /* used in this very moment */
}

/* The time in which a request may show begins when the kernel has been told. */
static void probe(struct workspace *ws)
{
    struct manager *m = ws->manager;

    if (m->hooks.expire)
        m->hooks.expire(ws, m->hooks_arg);
    pthread_mutex_lock(&ws->lock);
    if (ws->probing && open_locked(ws))
        arm_at_locked(ws, clock_ns() + earlier(workspace_ttl_s(ws) * NS_PER_S / 10, PROBE_MOST_NS));
    pthread_mutex_unlock(&ws->lock);
}

/* On the pool. */
static void task_sweep(struct task *t)
{
    struct workspace *ws = container_of(t, struct workspace, sweep);
    struct manager *m = ws->manager;
    const struct close_request aged = { .why = CLOSE_MAX_AGE };
    enum due due;

    pthread_mutex_lock(&ws->lock);
    ws->sweep_queued = false;
    due = due_locked(ws);
    pthread_mutex_unlock(&ws->lock);
    if (due == DUE_PROBE)
        probe(ws);
    else if (due == DUE_EVICT)
        evict(ws);
    else if (due == DUE_MAX_AGE)
        workspace_close(ws, &aged, NULL, NULL);
    workspace_unref(ws);
    manager_job_end(m);
}

void sweeper_fire(struct timer *t)
{
    struct workspace *ws = container_of(t, struct workspace, timer);
    bool first;

    pthread_mutex_lock(&ws->lock);
    first = !ws->sweep_queued;
    ws->sweep_queued = true;
    if (first) {
        workspace_ref(ws);
        manager_job_begin(ws->manager);
    }
    pthread_mutex_unlock(&ws->lock);
    if (!first)
        return;
    ws->sweep.run = task_sweep;
    pool_add(ws->manager->pool, &ws->sweep);
}

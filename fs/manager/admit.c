// SPDX-License-Identifier: Apache-2.0
/* Admission: how many workspaces may be live, and who makes room. */
#include <errno.h>
#include <string.h>

#include "fs/manager/internal.h"

/* Whose places are counted: everybody's, or one user's. */
struct scope {
    const char *user;  /* NULL: everybody's */
    unsigned    limit; /* 0: none */
};

static unsigned user_limit(struct manager *m, const char *user)
{
    struct user_config u;

    if (config_user(m->config, user, &u) && u.max_live)
        return u.max_live;
    return m->config->max_live_per_user;
}

static bool in_scope(const struct workspace *ws, const struct scope *s)
{
    return !s->user || strcmp(ws->user, s->user) == 0;
}

/* What stands in a scope; live_lock held. A pass over all live ones, made only where a limit is set
 * and (for everybody's) reached. */
struct census {
    size_t live, waiting;
    size_t closing;           /* and not in use again meanwhile */
    size_t passing;           /* such as the next, but for a request, or a close with its files in use again, that is
                               * under way */
    struct workspace *idlest; /* ready, not busy, not pinned; borrowed */
};

static bool may_go(struct workspace *ws)
{
    return !workspace_busy(ws) && !atomic_load(&ws->pinned) && !workspace_left_running(ws);
}

static bool is_open(struct workspace *ws) { return atomic_load(&ws->gate) & GATE_OPEN; }

static void count_locked(struct manager *m, const struct scope *s, struct census *c)
{
    int64_t oldest = INT64_MAX;

    *c = (struct census){ 0 };
    list_for_each(pos, &m->live) {
        struct workspace *ws = container_of(pos, struct workspace, live);
        enum workspace_state state = workspace_state(ws);
        if (!in_scope(ws, s))
            continue;
        c->live++;
        c->closing += state == WS_CLOSING && !is_open(ws);
        int64_t used = atomic_load_explicit(&ws->last_access_ns, memory_order_relaxed);
        if ((state != WS_READY && !(state == WS_CLOSING && is_open(ws))) || !may_go(ws))
            continue;
        if (state == WS_CLOSING || workspace_inside(ws)) {
            c->passing++;
        } else if (used < oldest) {
            oldest = used;
            c->idlest = ws;
        }
    }
    list_for_each(pos, &m->admitting)
        c->waiting += in_scope(container_of(pos, struct attempt, admitting)->ws, s);
}

static void add_locked(struct workspace *ws)
{
    struct manager *m = ws->manager;

    if (ws->is_live)
        return;
    ws->is_live = true;
    list_append(&m->live, &ws->live);
    m->n_live++;
    workspace_ref(ws);
}

static int refuse(const struct scope *s, struct err *e)
{
    if (s->user)
        return err_set(e, -EDQUOT,
                       "max_live_per_user: %u workspaces of %s are live and none of them is idle", s->limit,
                       s->user);
    return err_set(e, -EDQUOT, "max_live: %u workspaces are live and none of them is idle", s->limit);
}

/* live_lock held. 0: there is room. MANAGER_WAIT: queued; *victim (referenced) is to be closed
 * first unless NULL. */
static int scope_locked(struct attempt *a, const struct scope *s, struct workspace **victim, struct err *e)
{
    struct manager *m = a->ws->manager;
    struct census c;

    if (!s->limit || (!s->user && m->n_live < s->limit))
        return 0;
    count_locked(m, s, &c);
    if (c.passing && !c.idlest) {
        /* Counted once more: from here on who leaves tells us. */
        atomic_store(&m->room_wanted, true);
        count_locked(m, s, &c);
    }
    if (c.live < s->limit)
        return 0;
    if (!c.idlest && !c.closing && !c.passing)
        return refuse(s, e);
    if (a->no_wait)
        return -EAGAIN;
    /* One closing makes room for one of those that wait. */
    if (c.closing <= c.waiting && c.idlest) {
        *victim = c.idlest;
        workspace_ref(*victim);
    }
    list_append(&m->admitting, &a->admitting);
    attempt_arm(a);
    return MANAGER_WAIT;
}

static int admit_locked(struct attempt *a, const struct scope scopes[2], struct workspace **victim,
                        struct err *e)
{
    int r = 0;

    /* Under this lock: whoever was let in before is among those that the shutdown closes, or keeps. */
    if (atomic_load(&a->ws->manager->stopping))
        return err_set(e, -ESHUTDOWN, "the mount is ending");
    if (a->ws->is_live) /* what a failed closing may have left */
        return 0;
    for (int i = 0; i < 2 && r == 0; i++)
        r = scope_locked(a, &scopes[i], victim, e);
    if (r == 0)
        add_locked(a->ws);
    return r;
}

/* Closes who is to make room. False: look again. */
static bool make_room(struct attempt *a, struct workspace *victim)
{
    const struct close_request req = {
        .why = CLOSE_ROOM,
        .if_idle = true,
        .idle_since_ns = INT64_MAX,
    };
    int r = workspace_look_running(victim) ? -EAGAIN : workspace_close(victim, &req, NULL, NULL);

    /* It was used in this moment, or has gone already: look again, unless somebody else has taken
     * us out of the queue to try. */
    return r == MANAGER_WAIT || !admit_cancel(a);
}

static int admit_once(struct attempt *a, const struct scope scopes[2], struct err *e, bool *settled)
{
    struct manager *m = a->ws->manager;
    struct workspace *victim = NULL;
    int r;

    pthread_mutex_lock(&m->live_lock);
    r = admit_locked(a, scopes, &victim, e);
    pthread_mutex_unlock(&m->live_lock);
    *settled = !victim || make_room(a, victim);
    if (victim)
        workspace_unref(victim);
    return r;
}

int admit(struct attempt *a, struct err *e)
{
    struct manager *m = a->ws->manager;
    const struct scope scopes[2] = {
        { NULL, m->config->max_live },
        { a->ws->user, user_limit(m, a->ws->user) },
    };
    bool settled;
    int  r;

    atomic_fetch_add(&a->refs, 1); /* once queued it may come to its end on another thread */
    do
        r = admit_once(a, scopes, e, &settled);
    while (!settled);
    attempt_unref(a);
    return r;
}

bool admit_cancel(struct attempt *a)
{
    scoped_lock(&a->ws->manager->live_lock);
    bool queued = !list_empty(&a->admitting);

    list_remove(&a->admitting);
    return queued;
}

bool live_add(struct workspace *ws)
{
    scoped_lock(&ws->manager->live_lock);

    if (atomic_load(&ws->manager->stopping))
        return false;
    add_locked(ws);
    return true;
}

bool live_has(struct workspace *ws)
{
    scoped_lock(&ws->manager->live_lock);

    return ws->is_live;
}

static void task_retry(struct task *t)
{
    attempt_start(container_of(t, struct attempt, task), NULL);
}

void admit_again(struct manager *m)
{
    struct list all;

    list_init(&all);
    pthread_mutex_lock(&m->live_lock);
    atomic_store(&m->room_wanted, false);
    while (!list_empty(&m->admitting)) {
        struct attempt *a = container_of(m->admitting.next, struct attempt, admitting);
        list_remove(&a->admitting);
        a->task.run = task_retry;
        list_append(&all, &a->task.links);
    }
    pthread_mutex_unlock(&m->live_lock);
    while (!list_empty(&all)) {
        struct task *t = container_of(all.next, struct task, links);
        list_remove(&t->links);
        pool_add(m->pool, t);
    }
}

void admit_left(struct manager *m)
{
    if (atomic_load(&m->room_wanted))
        admit_again(m);
}

void live_remove(struct workspace *ws)
{
    struct manager *m = ws->manager;
    bool was;

    pthread_mutex_lock(&m->live_lock);
    was = ws->is_live;
    if (was) {
        ws->is_live = false;
        list_remove(&ws->live);
        m->n_live--;
        pthread_cond_broadcast(&m->live_less);
    }
    pthread_mutex_unlock(&m->live_lock);
    admit_again(m);
    if (!was)
        return;
    timer_cancel(m->timers, &ws->timer); /* such as one that a failed close had set: nobody keeps the workspace for it */
    workspace_unref(ws);
}

void live_each(struct manager *m, void (*fn)(struct workspace *ws, void *arg), void *arg)
{
    struct workspace **all;
    size_t n = 0;

    pthread_mutex_lock(&m->live_lock);
    all = calloc(m->n_live + 1, sizeof(struct workspace *));
    list_for_each(pos, &m->live) {
        if (!all)
            break;
        all[n] = container_of(pos, struct workspace, live);
        workspace_ref(all[n++]);
    }
    pthread_mutex_unlock(&m->live_lock);
    for (size_t i = 0; i < n; i++) {
        fn(all[i], arg);
        workspace_unref(all[i]);
    }
    free(all);
}

// SPDX-License-Identifier: Apache-2.0
/* From ready to absent: when nobody is inside any more the files are let go of, then the sandbox
 * (and for destroy the files) go, on a thread that may take long. Host files wait for none of that: once they have been
 * let go of the next use opens them again, and the sandbox is made anew behind it when the old one has gone. */
#include <errno.h>
#include <stdlib.h>

#include "fs/manager/internal.h"

struct closing {
    struct backend_progress progress; /* first; of a destroy */
    struct workspace *ws; /* referenced */
    struct list  waiters; /* wait_lock */
    atomic_uint  refs;    /* its steps, and a time-out that is being handled */
    struct task  task;
    struct task  late;
    struct timer timer;   /* ends the wait for an attempt that does not end */
    enum close_why why;
    bool         started;   /* nobody is inside, no attempt runs; ws->lock */
    bool         lets_in;   /* the files were let go of, and may be opened again; ws->lock */
    bool         anew;      /* they were, and then another close came: all begins again … */
    enum close_why next;    /* … for that reason; both ws->lock */
    atomic_bool  destroy;   /* asked for; set under ws->lock */
    bool         destroyed; /* done */
    bool         left;      /* the sandbox is in use by another mount, to which it was left */
    struct err   err;       /* how it went */
};

static void closing_fire(struct timer *t);

static struct closing *closing_new(struct workspace *ws, const struct close_request *req)
{
    struct closing *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->ws = ws;
    c->timer.fire = closing_fire;
    atomic_init(&c->refs, 1);
    c->why = req->why;
    atomic_init(&c->destroy, req->destroy);
    list_init(&c->waiters);
    list_init(&c->task.links);
    workspace_ref(ws);
    manager_job_begin(ws->manager);
    return c;
}

/* ── the beginning ───────────────────────────────────────────────────────────────────────── */

/* ws->lock held: shuts the way in. False: `if_idle` was asked for and somebody uses it. */
static bool shut_gate_locked(struct workspace *ws, const struct close_request *req)
{
    unsigned gate = atomic_fetch_and_explicit(&ws->gate, ~GATE_OPEN, memory_order_acq_rel);

    if (!req->if_idle || !(gate & GATE_OPEN))
        return true;
    if ((gate & ~GATE_OPEN) == 0 && !workspace_busy(ws) &&
        atomic_load(&ws->last_access_ns) <= req->idle_since_ns)
        return true;
    atomic_fetch_or_explicit(&ws->gate, GATE_OPEN, memory_order_release);
    return false;
}

/* ws->lock held: is there nothing that a closing would have to do? As long as it is being asked what an earlier
 * life has left there may be a sandbox. */
static bool nothing_to_close_locked(struct workspace *ws, const struct close_request *req)
{
    enum workspace_state s = workspace_state(ws);

    return (s == WS_ABSENT || s == WS_FAILED) && !(atomic_load(&ws->gate) & GATE_OPEN) && !ws->leftover &&
           !ws->hung && !ws->stale && !req->destroy && !atomic_load(&ws->manager->listing);
}

/* ws->lock held: cancels an attempt. Who waits for a sandbox that is being made is told, since it may
 * be what hung that is closed, and to begin again would undo the close; who waits for host files, which
 * hang never, waits for the end of the closing and comes again. */
static struct attempt *cancel_locked(struct workspace *ws, struct list *out)
{
    if (ws->manager->backend->files_wait || ws->attempt->files_open)
        waiters_take(ws->manager, &ws->waiters, -ECANCELED, out);
    return attempt_cancel_locked(ws);
}

/* ws->lock held. *ended is an attempt that had not reached the backend; waiters to be woken are moved
 * to `out`. */
static int begin_locked(struct workspace *ws, struct closing *c, const struct close_request *req,
                        struct list *out, struct attempt **ended)
{
    enum workspace_state s = workspace_state(ws);
    bool open = atomic_load(&ws->gate) & GATE_OPEN;

    if (req->if_idle && (s == WS_PROVISIONING || !(open || ws->leftover) || atomic_load(&ws->pinned)))
        return -EAGAIN;
    if (nothing_to_close_locked(ws, req)) {
        ws->backoff_ns = 0;
        workspace_fail_locked(ws, NULL);
        if (s == WS_FAILED)
            workspace_set_state_locked(ws, WS_ABSENT);
        return 0;
    }
    if (!shut_gate_locked(ws, req))
        return -EAGAIN;
    if (ws->attempt)
        *ended = cancel_locked(ws, out);
    if (ws->attempt || ws->stale)
        timer_set(ws->manager->timers, &c->timer, clock_ns() + ws->manager->config->grace_s * NS_PER_S);
    ws->closing = c;
    workspace_set_state_locked(ws, WS_CLOSING);
    return MANAGER_WAIT;
}

/* ws->lock held: another closing is under way; the waiter joins it. */
static int join_locked(struct workspace *ws, const struct close_request *req, struct waiter *w)
{
    if (req->if_idle)
        return -EAGAIN;
    if (atomic_fetch_and_explicit(&ws->gate, ~GATE_OPEN, memory_order_acq_rel) & GATE_OPEN) {
        ws->closing->anew = true;
        ws->closing->next = req->why;
    }
    if (req->destroy)
        atomic_store(&ws->closing->destroy, true);
    if (req->destroy || req->why == CLOSE_SHUTDOWN || ws->closing->anew)
        ws->closing->lets_in = false;
    waiters_add(ws->manager, &ws->closing->waiters, w);
    return MANAGER_WAIT;
}

static void closing_unref(struct closing *c)
{
    struct manager *m = c->ws->manager;

    if (atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    timer_cancel(m->timers, &c->timer);
    workspace_unref(c->ws);
    free(c);
    manager_job_end(m);
}

int workspace_close(struct workspace *ws, const struct close_request *req, struct waiter *w,
                    struct err *e)
{
    struct closing *c = closing_new(ws, req);
    struct attempt *ended = NULL;
    struct list out;
    int r;

    if (!c)
        return err_set(e, -ENOMEM, "out of memory");
    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    if (ws->closing) {
        r = join_locked(ws, req, w);
    } else {
        r = begin_locked(ws, c, req, &out, &ended);
        if (r == MANAGER_WAIT) {
            waiters_add(ws->manager, &c->waiters, w);
            c = NULL;
        }
    }
    pthread_mutex_unlock(&ws->lock);
    waiters_wake(ws->manager, &out);
    if (ended)
        attempt_unref(ended);
    if (c)
        closing_unref(c);
    else
        closing_go_on(ws);
    return r;
}

/* ── the work ────────────────────────────────────────────────────────────────────────────── */

static void closing_finish(struct closing *c);
static void task_release(struct task *t);

static void next_step(struct closing *c, struct pool *pool, void (*run)(struct task *t))
{
    c->task.run = run;
    pool_add(pool, &c->task);
}

static void task_files(struct task *t);

/* Nobody has asked for the end of what another mount may be using. */
static bool may_leave(const struct closing *c)
{
    return (c->why == CLOSE_EVICTED || c->why == CLOSE_ROOM || c->why == CLOSE_SHUTDOWN) && !atomic_load(&c->destroy);
}

static void release(struct closing *c)
{
    struct manager *m = c->ws->manager;

    if (m->backend->close || atomic_load(&c->destroy))
        next_step(c, m->provisioners, task_release);
    else
        closing_finish(c);
}

/* On a thread that may take long: whoever still works in the sandbox ends. */
static void task_stop(struct task *t)
{
    struct closing *c = container_of(t, struct closing, task);
    struct manager *m = c->ws->manager;

    c->left = may_leave(c) && m->hooks.leave_jobs && m->hooks.leave_jobs(c->ws, m->hooks_arg);
    if (!c->left)
        m->hooks.stop_jobs(c->ws, m->hooks_arg);
    if (m->backend->files_wait)
        next_step(c, m->pool, task_files);
    else
        release(c);
}

static bool stops_jobs(struct manager *m) { return m->hooks.stop_jobs && manager_runs_jobs(m); }

/* Who waits for host files comes again. What is not live was never admitted, or has failed: its next use begins with
 * that. */
static void let_in(struct closing *c)
{
    struct workspace *ws = c->ws;
    struct list out;

    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    c->lets_in = !atomic_load(&c->destroy) && c->why != CLOSE_ROOM && c->why != CLOSE_SHUTDOWN && live_has(ws);
    if (c->lets_in)
        waiters_take(ws->manager, &ws->waiters, 0, &out);
    pthread_mutex_unlock(&ws->lock);
    waiters_wake(ws->manager, &out);
}

/* On the pool, nobody inside: fs/ drops what it holds, then the files are let go of. */
static void task_files(struct task *t)
{
    struct closing *c = container_of(t, struct closing, task);
    struct workspace *ws = c->ws;
    struct manager *m = ws->manager;

    timer_cancel(m->timers, &ws->timer);
    if (ws->files_fd >= 0) {
        if (m->hooks.closed)
            m->hooks.closed(ws, m->hooks_arg);
        close(ws->files_fd);
        ws->files_fd = -1;
    }
    if (!m->backend->files_wait)
        let_in(c);
    if (!m->backend->files_wait && stops_jobs(m))
        next_step(c, m->provisioners, task_stop);
    else
        release(c);
}

/* Remote files may be what the jobs write to the end. */
static void first_step(struct closing *c)
{
    struct manager *m = c->ws->manager;

    if (m->backend->files_wait && stops_jobs(m))
        next_step(c, m->provisioners, task_stop);
    else
        next_step(c, m->pool, task_files);
}

void closing_go_on(struct workspace *ws)
{
    struct closing *c = NULL;

    pthread_mutex_lock(&ws->lock);
    if (ws->closing && !ws->closing->started && !ws->attempt && !ws->stale &&
        workspace_inside(ws) == 0) {
        c = ws->closing;
        c->started = true;
    }
    pthread_mutex_unlock(&ws->lock);
    if (!c)
        return;
    workspace_event(ws, LOG_LEVEL_DEBUG, "closing", NULL);
    first_step(c);
}

/* ── host files that are used meanwhile ──────────────────────────────────────────────────── */

bool closing_lets_in_locked(const struct workspace *ws)
{
    return ws->closing && ws->closing->lets_in && !(atomic_load(&ws->gate) & GATE_OPEN) &&
           !atomic_load(&ws->manager->stopping);
}

bool closing_has_begun(struct workspace *ws)
{
    scoped_lock(&ws->lock);

    return ws->closing && ws->closing->started;
}

void closing_reopen(struct workspace *ws)
{
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    bool taken = false;
    struct err e;
    int fd;

    workspace_describe(ws, &w, dir);
    fd = m->backend->files_open(m->backend_state, &w, &e);
    pthread_mutex_lock(&ws->lock);
    if (closing_lets_in_locked(ws)) {
        taken = fd >= 0;
        if (taken)
            workspace_open_locked(ws, fd);
        else
            ws->closing->lets_in = false;
    }
    pthread_mutex_unlock(&ws->lock);
    if (taken) /* it makes no room any more: who waits for that looks for another one */
        admit_again(m);
    else if (fd >= 0)
        close(fd);
}

void workspace_files_gone(struct workspace *ws)
{
    static const struct close_request gone = { .why = CLOSE_GONE };

    workspace_close(ws, &gone, NULL, NULL);
}

void workspace_left_slow(struct workspace *ws)
{
    closing_go_on(ws);
}

static void task_emptied(struct task *t)
{
    struct closing *c = container_of(t, struct closing, task);
    struct manager *m = c->ws->manager;

    if (m->hooks.emptied)
        m->hooks.emptied(c->ws, m->hooks_arg);
    closing_finish(c);
}

static void closing_step(struct backend_progress *p, const char *step, const char *text,
                         uint64_t done_bytes, uint64_t total_bytes)
{
    progress_line(container_of(p, struct closing, progress)->ws, step, text, done_bytes, total_bytes);
}

/* A destroy that has begun goes on to its end. */
static bool closing_cancelled(struct backend_progress *p)
{
    return atomic_load(&container_of(p, struct closing, progress)->ws->manager->stopping);
}

static int destroy(struct closing *c, const struct backend_workspace *w)
{
    struct manager *m = c->ws->manager;

    c->progress.step = closing_step;
    c->progress.cancelled = closing_cancelled;
    if (!m->backend->destroy)
        return err_set(&c->err, -EOPNOTSUPP, "this backend cannot remove a workspace's files");
    return m->backend->destroy(m->backend_state, w, &c->progress, &c->err);
}

/* Whose files are in use is destroyed when all has begun again. */
static bool wants_destroy(struct closing *c)
{
    scoped_lock(&c->ws->lock);

    return atomic_load(&c->destroy) && !c->anew;
}

/* On a thread that may take long. */
static void task_release(struct task *t)
{
    struct closing *c = container_of(t, struct closing, task);
    struct manager *m = c->ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    bool wanted;
    int r = 0;

    err_clear(&c->err);
    workspace_describe(c->ws, &w, dir);
    if (m->backend->close && (!c->left || atomic_load(&c->destroy)))
        r = m->backend->close(m->backend_state, &w, &c->err);
    wanted = wants_destroy(c);
    if (r == 0 && wanted)
        r = destroy(c, &w);
    if (r < 0 && c->err.code == 0)
        err_sys(&c->err, r, "closing failed");
    c->destroyed = r == 0 && wanted;
    if (wanted) /* also when it failed half-way */
        next_step(c, m->pool, task_emptied);
    else
        closing_finish(c);
}

/* ── the end ─────────────────────────────────────────────────────────────────────────────── */

static void say_closed(struct closing *c)
{
    static const struct {
        const char *event, *counter, *text;
    } words[] = {
        [CLOSE_ASKED] = { "closed", "wsmfs_closes_total", NULL },
        [CLOSE_EVICTED] = { "evicted", "wsmfs_evictions_total", "idle for its ttl" },
        [CLOSE_ROOM] = { "evicted", "wsmfs_evictions_total", "to make room (max_live)" },
        [CLOSE_MAX_AGE] = { "expired", "wsmfs_expirations_total", "max_age" },
        [CLOSE_SHUTDOWN] = { "closed", "wsmfs_closes_total", "the mount ends" },
        [CLOSE_LOST] = { "closed", "wsmfs_closes_total", "its sandbox was gone" },
        [CLOSE_NO_FILES] = { "closed", "wsmfs_closes_total", "its files were gone" },
        [CLOSE_GONE] = { "closed", "wsmfs_closes_total", "its directory was removed behind the mount" },
    };
    struct workspace *ws = c->ws;

    if (c->err.code < 0) {
        manager_count(ws->manager, "wsmfs_close_failures_total", 1);
        workspace_event(ws, LOG_LEVEL_WARNING, "failed", c->err.text);
        return;
    }
    manager_count(ws->manager, words[c->why].counter, 1);
    workspace_event(ws, LOG_LEVEL_INFO, words[c->why].event,
                    c->left ? "its sandbox stays: jobs of another mount run in it" : words[c->why].text);
    if (c->destroyed)
        workspace_event(ws, LOG_LEVEL_INFO, "destroyed", NULL);
}

/* ws->lock held: what every closing that is through leaves. */
static void end_locked(struct workspace *ws, const struct closing *c)
{
    ws->closing = NULL;
    ws->probing = false;
    ws->leftover = c->err.code < 0;
    ws->hung = ws->hung && ws->leftover;
    if (c->destroyed)
        atomic_store(&ws->has_files, false);
    workspace_fail_locked(ws, &c->err);
    ws->backoff_ns = 0;
    ws->retry_ns = 0;
}

/* ws->lock held: … and the state, where nobody uses the files. */
static void end_state_locked(struct workspace *ws, const struct closing *c)
{
    end_locked(ws, c);
    workspace_set_state_locked(ws, ws->leftover ? WS_FAILED : WS_ABSENT);
    if (ws->leftover) {
        if (live_has(ws))
            sweeper_arm_locked(ws);
        return;
    }
    atomic_store(&ws->created_ms, 0);
    adopt_closed_locked(ws);
}

/* ws->lock held: … and where they are used again: as after an access. The caller starts the attempt. */
static struct attempt *end_open_locked(struct workspace *ws, const struct closing *c)
{
    struct manager *m = ws->manager;
    struct attempt *a = NULL;

    end_locked(ws, c);
    if (ws->leftover) {
        workspace_set_state_locked(ws, WS_FAILED);
        sweeper_arm_locked(ws);
        return NULL;
    }
    if (m->backend->provision && m->config->provision == PROVISION_ACCESS && !atomic_load(&m->stopping))
        a = attempt_begin_locked(ws);
    ws->sandboxed = false;
    if (!a)
        workspace_ready_locked(ws);
    return a;
}

/* What becomes of a closing whose work is done. */
enum outcome { OUTCOME_CLOSED, OUTCOME_OPEN, OUTCOME_DESTROY, OUTCOME_ANEW };

/* ws->lock held. */
static enum outcome outcome_locked(const struct closing *c)
{
    if (c->anew)
        return OUTCOME_ANEW;
    if (atomic_load(&c->destroy) && !c->destroyed && c->err.code == 0) /* it came meanwhile */
        return OUTCOME_DESTROY;
    return atomic_load(&c->ws->gate) & GATE_OPEN ? OUTCOME_OPEN : OUTCOME_CLOSED;
}

/* From here on nobody opens the files again: what comes of it is changed by another close alone. */
static enum outcome foresee(struct closing *c)
{
    scoped_lock(&c->ws->lock);

    c->lets_in = false;
    return outcome_locked(c);
}

/* ws->lock held. */
static void begin_anew_locked(struct closing *c)
{
    c->anew = c->started = false;
    c->why = c->next;
    atomic_fetch_add(&c->refs, 1); /* it may be through before we have come to its beginning */
}

/* What is left behind stays live, so that it is tried again, at the end of the mount too. */
static void count_out(struct closing *c, enum outcome how)
{
    if (c->err.code < 0)
        live_add(c->ws);
    else if (how == OUTCOME_CLOSED) /* while nobody can begin to provision it again */
        live_remove(c->ws);
}

static void say_end(struct closing *c, enum outcome how, const struct attempt *next)
{
    say_closed(c);
    if (how == OUTCOME_OPEN && c->err.code == 0 && !next)
        workspace_event(c->ws, LOG_LEVEL_INFO, "ready", NULL);
    if (how == OUTCOME_OPEN || c->err.code < 0) /* who waits for room looks for another one */
        admit_again(c->ws->manager);
}

static void closing_finish(struct closing *c)
{
    struct workspace *ws = c->ws;
    struct manager *m = ws->manager;
    struct attempt *a = NULL;
    struct list out;
    enum outcome how = foresee(c);

    list_init(&out);
    count_out(c, how);
    pthread_mutex_lock(&ws->lock);
    how = outcome_locked(c);
    if (how == OUTCOME_OPEN)
        a = end_open_locked(ws, c);
    else if (how == OUTCOME_CLOSED)
        end_state_locked(ws, c);
    else if (how == OUTCOME_ANEW)
        begin_anew_locked(c);
    if (how == OUTCOME_OPEN || how == OUTCOME_CLOSED) {
        waiters_take(m, &c->waiters, c->err.code, &out);
        waiters_take(m, &ws->waiters, 0, &out);
    }
    pthread_mutex_unlock(&ws->lock);
    if (how == OUTCOME_ANEW) {
        closing_go_on(ws);
        closing_unref(c);
        return;
    }
    if (how == OUTCOME_DESTROY) {
        next_step(c, m->provisioners, task_release);
        return;
    }
    say_end(c, how, a);
    workspace_store(ws);
    workspace_release(ws);
    waiters_wake(m, &out);
    if (a)
        attempt_start(a, NULL);
    closing_unref(c);
}

/* ── giving up ───────────────────────────────────────────────────────────────────────────── */

/* ws->lock held: the files stay usable if they were; what the attempt makes is released when it ends. */
static void abandon_locked(struct closing *c, struct list *out)
{
    struct workspace *ws = c->ws;

    err_set(&c->err, -ETIMEDOUT,
            "the provisioning that was under way does not end; what it makes will be released");
    attempt_give_up_locked(ws);
    ws->closing = NULL;
    if (ws->files_fd >= 0)
        atomic_fetch_or_explicit(&ws->gate, GATE_OPEN, memory_order_release);
    workspace_back_off_locked(ws, &c->err);
    waiters_take(ws->manager, &c->waiters, c->err.code, out);
    waiters_take(ws->manager, &ws->waiters, c->err.code, out);
}

/* A mount that ends waits for the attempt as long as for all else: nobody would close the workspace again. */
static bool waits_too_long_locked(const struct closing *c)
{
    return c->ws->closing == c && !c->started && (c->ws->attempt || c->ws->stale) &&
           !atomic_load(&c->ws->manager->stopping);
}

static void task_late(struct task *t)
{
    struct closing *c = container_of(t, struct closing, late);
    struct workspace *ws = c->ws;
    struct list out;
    bool late;

    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    late = waits_too_long_locked(c);
    if (late)
        abandon_locked(c, &out);
    pthread_mutex_unlock(&ws->lock);
    if (late) {
        workspace_say_failed(ws, &c->err);
        closing_unref(c);
    }
    waiters_wake(ws->manager, &out);
    closing_unref(c);
}

/* On the timer's thread, which must not be held up. */
static void closing_fire(struct timer *t)
{
    struct closing *c = container_of(t, struct closing, timer);
    struct manager *m = c->ws->manager;
    bool late;

    pthread_mutex_lock(&c->ws->lock);
    late = waits_too_long_locked(c);
    if (late)
        atomic_fetch_add(&c->refs, 1);
    pthread_mutex_unlock(&c->ws->lock);
    if (!late)
        return;
    c->late.run = task_late;
    pool_add(m->pool, &c->late);
}

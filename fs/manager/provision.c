// SPDX-License-Identifier: Apache-2.0
/* From absent to ready: single flight, time limit, back-off. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

#define BACKOFF_FIRST_NS (1 * NS_PER_S)
#define BACKOFF_MOST_NS  (30 * NS_PER_S)

static void attempt_inside(struct attempt *a);

/* ── entering ────────────────────────────────────────────────────────────────────────────── */

static int copy_failure_locked(struct workspace *ws, struct err *e)
{
    if (!ws->failure)
        return err_set(e, -EIO, "provisioning failed");
    return err_set(e, ws->failure->code, "%s", ws->failure->text);
}

/* What a caller wants of a workspace. */
enum want { WANT_FILES, WANT_SANDBOX };

bool workspace_lacks_sandbox_locked(const struct workspace *ws)
{
    const struct manager *m = ws->manager;

    return m->config->provision == PROVISION_JOBS && m->backend->provision && !m->backend->files_wait && !ws->sandboxed;
}

/* ws->lock held: is it there already? */
static bool have_locked(struct workspace *ws, enum want want)
{
    if (want == WANT_SANDBOX)
        return workspace_state(ws) == WS_READY && !workspace_lacks_sandbox_locked(ws);
    if (!(atomic_load(&ws->gate) & GATE_OPEN))
        return false;
    atomic_fetch_add_explicit(&ws->gate, 1, memory_order_acquire);
    workspace_touch(ws);
    return true;
}

/* ws->lock held. 0: there (files: entered). MANAGER_WAIT: queued, or with *a: the caller starts the
 * attempt. -EAGAIN: it would have to wait and has no waiter. Else it has failed. */
static int obtain_locked(struct workspace *ws, enum want want, bool force, struct waiter *w,
                         struct attempt **a, struct err *e)
{
    enum workspace_state s = workspace_state(ws);

    if (have_locked(ws, want))
        return 0;
    if (!w && want == WANT_FILES && (s == WS_PROVISIONING || s == WS_CLOSING))
        return -EAGAIN;
    if (s == WS_PROVISIONING || s == WS_CLOSING) {
        waiters_add(ws->manager, &ws->waiters, w);
        return MANAGER_WAIT;
    }
    if (atomic_load(&ws->manager->stopping)) /* first: what has failed may have been cancelled for that */
        return err_set(e, -ESHUTDOWN, "the mount is ending");
    if (s == WS_FAILED && !force && clock_ns() < ws->retry_ns)
        return copy_failure_locked(ws, e);
    if (!w && want == WANT_FILES && (ws->manager->backend->files_wait || ws->stale))
        return -EAGAIN;
    *a = attempt_begin_locked(ws);
    if (!*a)
        return err_set(e, -ENOMEM, "out of memory");
    (*a)->no_wait = !w && want == WANT_FILES;
    if (attempt_park_locked(*a)) {
        *a = NULL;
        waiters_add(ws->manager, &ws->waiters, w);
    }
    return MANAGER_WAIT;
}

static int obtain(struct workspace *ws, enum want want, bool force, struct waiter *w, struct err *e)
{
    for (;;) {
        struct attempt *a = NULL;
        pthread_mutex_lock(&ws->lock);
        bool reopen = want == WANT_FILES && closing_lets_in_locked(ws);
        int r = reopen ? 0 : obtain_locked(ws, want, force, w, &a, e);
        pthread_mutex_unlock(&ws->lock);
        if (!reopen && !a)
            return r;
        if (reopen)
            closing_reopen(ws);
        else if ((r = attempt_start(a, e)) < 0)
            return r;
        force = false;
    }
}

int workspace_enter_slow(struct workspace *ws, struct waiter *w, struct err *e)
{
    return obtain(ws, WANT_FILES, false, w, e);
}

int workspace_provision(struct workspace *ws, struct waiter *w, bool force, struct err *e)
{
    return obtain(ws, WANT_SANDBOX, force, w, e);
}

bool workspace_has_sandbox(struct workspace *ws)
{
    scoped_lock(&ws->lock);

    return have_locked(ws, WANT_SANDBOX);
}

/* ── an attempt's life ───────────────────────────────────────────────────────────────────── */

static void attempt_step(struct backend_progress *p, const char *step, const char *text,
                         uint64_t done_bytes, uint64_t total_bytes)
{
    progress_line(container_of(p, struct attempt, progress)->ws, step, text, done_bytes, total_bytes);
}

static bool attempt_cancelled(struct backend_progress *p)
{
    return atomic_load(&container_of(p, struct attempt, progress)->cancelled);
}

struct attempt *attempt_begin_locked(struct workspace *ws)
{
    struct attempt *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->progress.step = attempt_step;
    a->progress.cancelled = attempt_cancelled;
    a->ws = ws;
    a->files_open = atomic_load(&ws->gate) & GATE_OPEN;
    atomic_init(&a->refs, 1);
    a->timer.fire = attempt_fire;
    a->start_ns = clock_ns();
    list_init(&a->admitting);
    list_init(&a->task.links);
    workspace_ref(ws);
    manager_job_begin(ws->manager);
    ws->attempt = a;
    ws->leftover = false;
    ws->look_again = false;
    ws->sandboxed = false;
    workspace_set_state_locked(ws, WS_PROVISIONING);
    return a;
}

void attempt_unref(struct attempt *a)
{
    if (atomic_fetch_sub(&a->refs, 1) > 1)
        return;
    struct manager *m = a->ws->manager;
    timer_cancel(m->timers, &a->timer);
    workspace_unref(a->ws);
    free(a);
    manager_job_end(m);
}

void attempt_arm(struct attempt *a)
{
    struct manager *m = a->ws->manager;

    if (m->config->provision_timeout_s > 0)
        timer_set(m->timers, &a->timer, a->start_ns + m->config->provision_timeout_s * NS_PER_S);
}

void workspace_back_off_locked(struct workspace *ws, const struct err *e)
{
    ws->backoff_ns = ws->backoff_ns ? ws->backoff_ns * 2 : BACKOFF_FIRST_NS;
    if (ws->backoff_ns > BACKOFF_MOST_NS)
        ws->backoff_ns = BACKOFF_MOST_NS;
    ws->retry_ns = clock_ns() + ws->backoff_ns;
    workspace_fail_locked(ws, e);
    workspace_set_state_locked(ws, WS_FAILED);
    sweeper_arm_locked(ws);
}

void workspace_say_failed(struct workspace *ws, const struct err *e)
{
    /* What a mount that ends gives up is nobody's trouble. */
    bool given_up = (e->code == -ECANCELED || e->code == -ESHUTDOWN) && atomic_load(&ws->manager->stopping);

    manager_count(ws->manager, "wsmfs_provision_failures_total", 1);
    progress_end(ws);
    workspace_event(ws, given_up ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING, "failed", e->text);
}

/* ws->lock held: no back-off after a refusal, since room may be there at any moment. -EAGAIN: its
 * caller comes again to wait, and so does whoever waits already. */
static void refuse_locked(struct workspace *ws, const struct err *e, struct list *out)
{
    bool again = e->code == -EAGAIN;

    if (e->code == -ETIMEDOUT) {
        workspace_back_off_locked(ws, e);
    } else {
        workspace_fail_locked(ws, again ? NULL : e);
        workspace_set_state_locked(ws, WS_ABSENT);
    }
    waiters_take(ws->manager, &ws->waiters, again ? 0 : e->code, out);
}

int attempt_refuse(struct attempt *a, const struct err *e)
{
    struct workspace *ws = a->ws;
    bool closing, given_up;
    struct list out;

    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    given_up = ws->stale == a;
    closing = ws->closing != NULL;
    if (!given_up)
        ws->attempt = NULL;
    if (!given_up && !closing)
        refuse_locked(ws, e, &out);
    pthread_mutex_unlock(&ws->lock);
    if (given_up)
        attempt_stale_ended(ws);
    else if (closing)
        closing_go_on(ws);
    else if (e->code != -EAGAIN && e->code != -ESHUTDOWN)
        workspace_say_failed(ws, e);
    waiters_wake(ws->manager, &out);
    attempt_unref(a);
    return e->code;
}

static void task_inside(struct task *t)
{
    attempt_inside(container_of(t, struct attempt, task));
}

static void task_sandbox(struct task *t);

/* On a thread that may hang, under the time limit. */
static void go_behind(struct attempt *a, void (*run)(struct task *t))
{
    attempt_arm(a);
    a->task.run = run;
    pool_add(a->ws->manager->provisioners, &a->task);
}

/* Admitted: with host files on this thread, else on one that may hang. */
static void attempt_go(struct attempt *a)
{
    struct manager *m = a->ws->manager;

    workspace_event(a->ws, LOG_LEVEL_DEBUG, "provisioning", NULL);
    pthread_mutex_lock(&a->ws->lock);
    a->inside = true;
    pthread_mutex_unlock(&a->ws->lock);
    if (a->files_open)
        go_behind(a, task_sandbox);
    else if (m->backend->files_wait)
        go_behind(a, task_inside);
    else
        attempt_inside(a);
}

int attempt_start(struct attempt *a, struct err *e)
{
    struct err own;
    int r;

    err_clear(&own);
    r = a->files_open ? 0 : admit(a, &own);
    if (r == 0)
        attempt_go(a);
    if (r >= 0) /* MANAGER_WAIT: queued under the time limit; it may be gone by now */
        return 0;
    own.code = r;
    if (e)
        *e = own;
    return attempt_refuse(a, &own);
}

void attempt_adopt(struct workspace *ws, int64_t created_ms, int64_t last_access_ms)
{
    struct attempt *a = NULL;

    pthread_mutex_lock(&ws->lock);
    if (workspace_state(ws) == WS_ABSENT && !adopt_was_closed_locked(ws))
        a = attempt_begin_locked(ws);
    if (a) {
        a->created_ms = created_ms;
        a->last_access_ms = last_access_ms;
    }
    pthread_mutex_unlock(&ws->lock);
    if (!a)
        return;
    if (live_add(ws))
        attempt_go(a);
    else
        attempt_refuse(a, &(struct err){ .code = -ESHUTDOWN, .text = "the mount is ending" });
}

/* ── inside the backend ──────────────────────────────────────────────────────────────────── */

/* ws->lock held: clocks of a workspace that has just become usable. */
static void start_clocks_locked(struct workspace *ws, const struct attempt *a)
{
    int64_t now_ns = clock_ns(), now_ms = wall_ms();
    int64_t age_ms = a->created_ms ? now_ms - a->created_ms : 0;
    int64_t idle_ms = a->last_access_ms ? now_ms - a->last_access_ms : 0;

    atomic_store(&ws->created_ms, now_ms - (age_ms > 0 ? age_ms : 0));
    ws->created_ns = now_ns - (age_ms > 0 ? age_ms : 0) * NS_PER_MS;
    atomic_store(&ws->last_access_ns, now_ns - (idle_ms > 0 ? idle_ms : 0) * NS_PER_MS);
}

/* ws->lock held: the files are there; callers may come in. */
static void open_gate_locked(struct workspace *ws, const struct attempt *a, int fd)
{
    ws->files_fd = fd;
    start_clocks_locked(ws, a);
    atomic_fetch_or_explicit(&ws->gate, GATE_OPEN, memory_order_release);
}

void workspace_open_locked(struct workspace *ws, int fd)
{
    const struct attempt none = { .created_ms = 0 };

    open_gate_locked(ws, &none, fd);
}

void workspace_ready_locked(struct workspace *ws)
{
    ws->backoff_ns = 0;
    atomic_store(&ws->has_files, true);
    workspace_fail_locked(ws, NULL);
    workspace_set_state_locked(ws, WS_READY);
    sweeper_arm_locked(ws);
}

static void say_ready(struct attempt *a)
{
    struct workspace *ws = a->ws;

    metrics_provisioned(ws->manager, a->start_ns);
    workspace_forget_errors(ws);
    workspace_store(ws);
    progress_end(ws);
    workspace_event(ws, LOG_LEVEL_INFO, "ready", a->created_ms ? "taken over" : NULL);
    notice_ready(ws);
}

/* Whether somebody's jobs run in a sandbox for which nobody waits any more: it may have been there before. Ours do
 * where it had been halted; another mount's are asked for. May take long. */
static bool runs_jobs(const struct attempt *a)
{
    struct workspace *ws = a->ws;
    struct manager *m = ws->manager;

    if (a->files_open && atomic_load(&ws->running_jobs) > 0)
        return true;
    if (!m->hooks.leave_jobs || atomic_load(&m->stopping)) /* then the hooks are going */
        return false;
    if (m->hooks.leave_jobs(ws, m->hooks_arg))
        return true;
    if (m->hooks.stop_jobs)
        m->hooks.stop_jobs(ws, m->hooks_arg);
    return false;
}

/* A time limit was over, or a close had given up on it: what came after all is released again. */
static void end_stale(struct attempt *a, const struct err *how, int fd)
{
    struct workspace *ws = a->ws;
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    struct err e;

    if (fd >= 0)
        close(fd);
    workspace_describe(ws, &w, dir);
    if (how->code == 0 && m->backend->close && !runs_jobs(a) && m->backend->close(m->backend_state, &w, &e) < 0)
        workspace_event(ws, LOG_LEVEL_WARNING, "failed", e.text);
    if (!a->files_open)
        live_remove(ws);
    attempt_stale_ended(ws);
}

/* What has become of an attempt while it was inside. */
enum fate { FATE_WANTED, FATE_STALE, FATE_CLOSING };

/* ws->lock held: the workspace takes over the result, in the way its present state asks for. */
static enum fate settle_locked(struct attempt *a, int fd, const struct err *e, struct list *out)
{
    struct workspace *ws = a->ws;

    if (ws->stale == a)
        return FATE_STALE;
    ws->attempt = NULL;
    if (ws->closing) {
        if (!a->files_open)
            ws->files_fd = fd < 0 ? -1 : fd;
        return FATE_CLOSING;
    }
    if (e->code == 0 && !a->files_open)
        open_gate_locked(ws, a, fd);
    ws->sandboxed = e->code == 0 && a->sandboxed;
    if (e->code == 0)
        workspace_ready_locked(ws);
    else
        workspace_back_off_locked(ws, e);
    waiters_take(ws->manager, &ws->waiters, e->code, out);
    return FATE_WANTED;
}

static void attempt_end(struct attempt *a, int fd, const struct err *e)
{
    struct workspace *ws = a->ws;
    struct list out;
    enum fate fate;

    list_init(&out);
    if (e->code < 0 && !a->files_open) /* while nobody can begin another one */
        live_remove(ws);
    pthread_mutex_lock(&ws->lock);
    fate = settle_locked(a, fd, e, &out);
    pthread_mutex_unlock(&ws->lock);
    if (fate == FATE_STALE)
        end_stale(a, e, fd);
    else if (fate == FATE_CLOSING)
        closing_go_on(ws);
    else if (e->code == 0)
        say_ready(a);
    else
        workspace_say_failed(ws, e);
    waiters_wake(ws->manager, &out);
    attempt_unref(a);
}

void attempt_agreed_errno(struct err *e, int r)
{
    static const int agreed[] = { EHOSTUNREACH, EACCES, ENXIO, EINVAL, EDQUOT, ETIMEDOUT, ECANCELED };

    if (e->code == 0)
        err_sys(e, r, "provisioning failed");
    for (size_t i = 0; i < array_size(agreed); i++)
        if (e->code == -agreed[i])
            return;
    e->code = -EIO;
}

/* A guest that hangs would be found again. */
static int release_hung(struct workspace *ws, const struct backend_workspace *w, struct err *e)
{
    struct manager *m = ws->manager;
    bool hung;
    int r;

    pthread_mutex_lock(&ws->lock);
    hung = ws->hung;
    pthread_mutex_unlock(&ws->lock);
    if (!hung || !m->backend->close)
        return 0;
    r = m->backend->close(m->backend_state, w, e);
    if (r < 0)
        return r;
    pthread_mutex_lock(&ws->lock);
    ws->hung = false;
    pthread_mutex_unlock(&ws->lock);
    return 0;
}

static int provision(struct attempt *a, const struct backend_workspace *w, struct err *e)
{
    struct manager *m = a->ws->manager;
    int r;

    if (atomic_load(&a->cancelled))
        return err_set(e, -ECANCELED, "closed while it was being provisioned");
    r = release_hung(a->ws, w, e);
    if (r == 0 && m->backend->provision)
        r = m->backend->provision(m->backend_state, w, &a->progress, e);
    a->sandboxed = r == 0;
    if (r < 0)
        attempt_agreed_errno(e, r);
    return r;
}

/* Remote files: the sandbox first, then they can be opened. */
static int inside_remote(struct attempt *a, const struct backend_workspace *w, struct err *e)
{
    struct manager *m = a->ws->manager;
    int r = provision(a, w, e);

    return r < 0 ? r : m->backend->files_open(m->backend_state, w, e);
}

/* A failure always has an errno and a sentence; -EAGAIN has a meaning of its own here. */
static void complete(struct err *e, int r)
{
    if (e->code == 0)
        err_sys(e, r, "provisioning failed");
    if (e->code == -EAGAIN)
        e->code = -EIO;
}

/* The sandbox of host files that are in use already. */
static void task_sandbox(struct task *t)
{
    struct attempt *a = container_of(t, struct attempt, task);
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    struct err e;

    err_clear(&e);
    workspace_describe(a->ws, &w, dir);
    int r = provision(a, &w, &e);
    if (r < 0)
        complete(&e, r);
    attempt_end(a, -1, &e);
}

/* Host files are open: their callers wait for nothing, the sandbox is made behind them. False:
 * there is no sandbox to make, or the attempt is no longer wanted. */
static bool go_on_behind(struct attempt *a, int fd)
{
    struct workspace *ws = a->ws;
    struct manager *m = ws->manager;
    struct list out;

    if (m->backend->files_wait || !m->backend->provision || m->config->provision != PROVISION_ACCESS)
        return false;
    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    if (!ws->closing && ws->attempt == a) {
        open_gate_locked(ws, a, fd);
        a->files_open = true;
        waiters_take(m, &ws->waiters, 0, &out);
    }
    pthread_mutex_unlock(&ws->lock);
    if (!a->files_open)
        return false;
    waiters_wake(m, &out);
    go_behind(a, task_sandbox);
    return true;
}

/* What was to be taken over has no files: it was destroyed, perhaps in this moment and by another mount, and
 * they do not come back by that. What there is of its sandbox goes. */
static void attempt_forgo(struct attempt *a)
{
    static const struct close_request left = { .why = CLOSE_NO_FILES, .if_idle = true, .idle_since_ns = INT64_MAX };
    struct workspace *ws = a->ws;
    struct manager *m = ws->manager;
    struct list out;
    bool closing;

    list_init(&out);
    pthread_mutex_lock(&ws->lock);
    closing = ws->closing;
    ws->attempt = NULL;
    if (!closing) {
        workspace_set_state_locked(ws, WS_ABSENT);
        ws->leftover = true;
        waiters_take(m, &ws->waiters, 0, &out);
    }
    pthread_mutex_unlock(&ws->lock);
    workspace_store(ws);
    progress_end(ws);
    if (closing)
        closing_go_on(ws);
    else
        workspace_close(ws, &left, NULL, NULL);
    waiters_wake(m, &out);
    attempt_unref(a);
}

static void attempt_inside(struct attempt *a)
{
    struct manager *m = a->ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    struct err e;
    int fd;

    err_clear(&e);
    workspace_describe(a->ws, &w, dir);
    w.adopt = a->created_ms != 0 && !m->backend->files_wait;
    if (m->backend->files_wait)
        fd = inside_remote(a, &w, &e);
    else
        fd = m->backend->files_open(m->backend_state, &w, &e);
    if (fd == -ENOENT && w.adopt) {
        attempt_forgo(a);
        return;
    }
    if (fd < 0)
        complete(&e, fd);
    if (fd < 0 || !go_on_behind(a, fd))
        attempt_end(a, fd, &e);
}

// SPDX-License-Identifier: Apache-2.0
/* What others do to sandboxes behind our back: the backend is told of something, and looks at what has become
 * of the sandbox. A look changes nothing, so any number of needless ones does no harm: that is why nobody has to
 * know which of an engine's events are the consequences of our own doings. */
#include <errno.h>

#include "fs/manager/internal.h"

/* What a look leads to. */
enum finding { FOUND_NOTHING, FOUND_LOST, FOUND_BACK, FOUND_HALTED_IN_USE };

/* ws->lock held: may a look change anything? */
static bool is_watched_locked(struct workspace *ws)
{
    enum workspace_state s = workspace_state(ws);

    return !ws->attempt && !ws->closing &&
           ((s == WS_READY && !workspace_lacks_sandbox_locked(ws)) || (s == WS_FAILED && ws->lost));
}

/* ── what was found ──────────────────────────────────────────────────────────────────────── */

/* ws->lock held. The next use provisions it at once: whoever ended it has done nothing that failed. */
static void lose_locked(struct workspace *ws, const struct err *e)
{
    ws->backoff_ns = 0;
    ws->retry_ns = 0;
    workspace_fail_locked(ws, e);
    workspace_set_state_locked(ws, WS_FAILED);
    ws->lost = true;
    sweeper_arm_locked(ws);
}

/* ws->lock held: somebody has let it go on. */
static void regain_locked(struct workspace *ws)
{
    workspace_fail_locked(ws, NULL);
    workspace_set_state_locked(ws, WS_READY);
    sweeper_arm_locked(ws);
}

/* ws->lock held. *a: an attempt that the caller starts. */
static enum finding settle_locked(struct workspace *ws, int r, const struct err *e, struct attempt **a)
{
    bool was_lost = ws->lost;

    if (r == 0 && was_lost) {
        regain_locked(ws);
        return FOUND_BACK;
    }
    if (r == -EHOSTDOWN && atomic_load(&ws->running_jobs) > 0 && (*a = attempt_begin_locked(ws)))
        return FOUND_HALTED_IN_USE;
    if (r != -ENXIO && r != -EHOSTDOWN)
        return FOUND_NOTHING;
    lose_locked(ws, e);
    return was_lost ? FOUND_NOTHING : FOUND_LOST;
}

static void say_lost(struct workspace *ws, int r, const struct err *e)
{
    static const struct close_request gone = { .why = CLOSE_LOST };
    struct manager *m = ws->manager;

    manager_count(m, "wsmfs_sandboxes_lost_total", 1);
    workspace_step(ws, "lost", e->text);
    workspace_event(ws, LOG_LEVEL_INFO, "lost", e->text);
    if (r == -ENXIO && m->hooks.sandbox_lost)
        m->hooks.sandbox_lost(ws, m->hooks_arg);
    if (r == -ENXIO && m->backend->files_wait) /* its files went with it: they are opened anew */
        workspace_close(ws, &gone, NULL, NULL);
}

static void act(struct workspace *ws, enum finding f, int r, const struct err *e, struct attempt *a)
{
    switch (f) {
    case FOUND_LOST:
        say_lost(ws, r, e);
        break;
    case FOUND_BACK:
        workspace_store(ws);
        workspace_event(ws, LOG_LEVEL_INFO, "ready", "it goes on");
        break;
    case FOUND_HALTED_IN_USE:
        workspace_step(ws, "halted", e->text);
        workspace_event(ws, LOG_LEVEL_INFO, "halted", e->text);
        attempt_start(a, NULL);
        break;
    case FOUND_NOTHING:
        break;
    }
}

/* ── looking ─────────────────────────────────────────────────────────────────────────────── */

static int look(struct workspace *ws, struct err *e)
{
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    int r;

    err_clear(e);
    workspace_describe(ws, &w, dir);
    r = m->backend->look(m->backend_state, &w, e);
    if (r < 0 && e->code == 0)
        err_sys(e, r, "the sandbox is gone");
    err_escape(e);
    return r;
}

/* ws->lock held. True: the caller looks (once more). */
static bool begin_locked(struct workspace *ws)
{
    ws->look_again = ws->looking || ws->attempt;
    if (ws->looking || !is_watched_locked(ws))
        return false;
    ws->looking = true;
    return true;
}

/* A look that saw another life of the workspace than the present one says nothing of it. */
static int look_and_settle(struct workspace *ws, struct err *e)
{
    enum finding f = FOUND_NOTHING;
    struct attempt *a = NULL;
    uint64_t moves;
    int r;

    pthread_mutex_lock(&ws->lock);
    moves = ws->moves;
    pthread_mutex_unlock(&ws->lock);
    r = look(ws, e);
    pthread_mutex_lock(&ws->lock);
    if (ws->moves == moves && is_watched_locked(ws) && !atomic_load(&ws->manager->stopping)) /* then the hooks are going */
        f = settle_locked(ws, r, e, &a);
    pthread_mutex_unlock(&ws->lock);
    act(ws, f, r, e, a);
    return r;
}

/* On a thread that may take long. */
static void task_look(struct task *t)
{
    struct workspace *ws = container_of(t, struct workspace, look);
    struct manager *m = ws->manager;
    bool again = true;

    while (again) {
        struct err e;
        pthread_mutex_lock(&ws->lock);
        ws->look_again = false;
        pthread_mutex_unlock(&ws->lock);
        look_and_settle(ws, &e);
        pthread_mutex_lock(&ws->lock);
        ws->looking = false;
        again = ws->look_again && !atomic_load(&m->stopping) && begin_locked(ws);
        pthread_mutex_unlock(&ws->lock);
    }
    workspace_unref(ws);
    manager_job_end(m);
}

/* The caller has begun an activity of the manager's. */
static void look_soon(struct workspace *ws, bool asked)
{
    struct manager *m = ws->manager;
    bool begun;

    if (!m->backend->look)
        return;
    pthread_mutex_lock(&ws->lock);
    begun = (asked || ws->look_again) && begin_locked(ws);
    pthread_mutex_unlock(&ws->lock);
    if (!begun)
        return;
    workspace_ref(ws);
    manager_job_begin(m);
    ws->look.run = task_look;
    pool_add(m->provisioners, &ws->look);
}

/* ── a guest that hangs ──────────────────────────────────────────────────────────────────── */

/* A backend that looks finds that the sandbox runs, which is right and no help: it is not asked. */
void workspace_sandbox_hangs(struct workspace *ws, const struct err *e)
{
    bool lost;

    pthread_mutex_lock(&ws->lock);
    lost = !ws->attempt && !ws->closing && workspace_state(ws) == WS_READY && !atomic_load(&ws->manager->stopping);
    if (lost) {
        lose_locked(ws, e);
        ws->lost = false;
        ws->hung = true;
    }
    pthread_mutex_unlock(&ws->lock);
    if (lost)
        say_lost(ws, -ENXIO, e);
}

void notice_ready(struct workspace *ws) { look_soon(ws, false); }

void notice_stream(struct workspace *ws)
{
    struct manager *m = ws->manager;

    manager_job_begin(m);
    if (!atomic_load(&m->stopping))
        look_soon(ws, true);
    manager_job_end(m);
}

int notice_check(struct workspace *ws, struct err *e)
{
    int r = look_and_settle(ws, e);

    if (r == 0 || r == -ENXIO || r == -EHOSTDOWN)
        return 0;
    attempt_agreed_errno(e, r);
    return e->code;
}

/* ── being told ──────────────────────────────────────────────────────────────────────────── */

static void noticed_one(struct workspace *ws, void *arg)
{
    const char *text = arg;

    if (text) {
        workspace_step(ws, "noticed", text);
        workspace_event(ws, LOG_LEVEL_INFO, "noticed", text);
    }
    look_soon(ws, true);
}

static void noticed_id(struct manager *m, const char *id, const char *text)
{
    struct workspace *ws;

    pthread_mutex_lock(&m->names_lock);
    ws = workspace_find_locked(m, id);
    if (ws)
        workspace_ref(ws);
    pthread_mutex_unlock(&m->names_lock);
    if (!ws)
        return;
    noticed_one(ws, (void *)text);
    workspace_unref(ws);
}

/* A manager that ends waits for those who have begun, and whoever begins after that sees that it ends. */
void manager_noticed(void *core, const char *id, const char *text)
{
    struct manager *m = core;

    manager_job_begin(m);
    if (!atomic_load(&m->stopping)) {
        if (id)
            noticed_id(m, id, text);
        else
            live_each(m, noticed_one, NULL);
    }
    manager_job_end(m);
}

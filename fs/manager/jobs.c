// SPDX-License-Identifier: Apache-2.0
/* What the manager knows of jobs: how many run where, and how a sandbox's guest is reached. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/manager/internal.h"

/* ── counting ────────────────────────────────────────────────────────────────────────────── */

static int over_limit(unsigned limit, unsigned running, const char *name, struct err *e)
{
    if (limit == 0 || running < limit)
        return 0;
    return err_set(e, -EDQUOT, "%s: %u jobs run, which is the limit", name, running);
}

/* names_lock held. */
static int room_locked(struct session *s, struct err *e)
{
    struct manager *m = s->node.pub.manager;
    int r = over_limit(m->config->max_jobs, atomic_load(&m->running_jobs), "max_jobs", e);

    return r < 0 ? r : over_limit(m->config->max_jobs_per_workspace, atomic_load(&s->ws->running_jobs),
                                  "max_jobs_per_workspace", e);
}

int session_job_check(struct place *session, struct err *e)
{
    struct manager *m = session->manager;

    if (!m->backend->stream)
        return err_set(e, -EOPNOTSUPP, "the backend %s runs no jobs", m->backend->name);
    if (m->config->read_only)
        return err_set(e, -EROFS, "the mount is read-only");
    scoped_lock(&m->names_lock);
    return room_locked(session_of(session), e);
}

int session_job_begin(struct place *session, bool force, struct workspace **out, struct err *e)
{
    struct session *s = session_of(session);
    struct manager *m = session->manager;
    int r = session_know(s);

    if (r < 0)
        return err_set(e, r, "this session was forgotten: open its directory again");
    if (!force && (r = session_job_check(session, e)) < 0)
        return r;
    scoped_lock(&m->names_lock);
    r = force ? 0 : room_locked(s, e);
    if (r == 0 && !force && s->rebinding) /* it would be counted here, and run there */
        r = err_set(e, -EBUSY, "this session is being bound to another workspace: try again");
    if (r == 0 && !node_attached_locked(&s->node))
        r = err_set(e, -ENOENT, "this session was forgotten: open its directory again");
    if (r < 0)
        return r;
    s->running_jobs++;
    atomic_fetch_add(&s->ws->running_jobs, 1);
    atomic_fetch_add(&m->running_jobs, 1);
    workspace_ref(s->ws);
    workspace_touch(s->ws);
    *out = s->ws;
    return 0;
}

void session_job_end(struct place *session, struct workspace *ws)
{
    struct manager *m = session->manager;

    workspace_touch(ws);
    pthread_mutex_lock(&m->names_lock);
    session_of(session)->running_jobs--;
    atomic_fetch_sub(&ws->running_jobs, 1);
    atomic_fetch_sub(&m->running_jobs, 1);
    pthread_mutex_unlock(&m->names_lock);
    workspace_unref(ws);
}

unsigned session_running_jobs(struct session *s)
{
    scoped_lock(&s->node.pub.manager->names_lock);

    return s->running_jobs;
}

/* ── the sandbox ─────────────────────────────────────────────────────────────────────────── */

/* One that is being closed lets users of its files in (closing_reopen), and is then nobody's sandbox: the close may have
 * begun since it was seen to be there. */
static int enter_sandbox(struct workspace *ws, struct waiter *w, struct err *e)
{
    for (;;) {
        int r = workspace_provision(ws, w, false, e);
        if (r == 0)
            r = workspace_enter(ws, w, e);
        if (r != 0 || !closing_has_begun(ws))
            return r;
        workspace_leave(ws);
    }
}

int session_enter_sandbox(struct place *session, struct waiter *w, struct workspace **out, struct err *e)
{
    struct session *s = session_of(session);
    struct workspace *ws;
    int r = session_know(s);

    if (r < 0)
        return err_set(e, r, "this session was forgotten: open its directory again");
    ws = session_workspace(session);
    r = enter_sandbox(ws, w, e);
    if (r == 0)
        *out = ws;
    else
        workspace_unref(ws);
    return r;
}

void **workspace_jobs_data(struct workspace *ws) { return &ws->jobs_data; }

int workspace_stream(struct workspace *ws, bool start, struct err *e)
{
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    int r;

    if (!m->backend->stream)
        return err_set(e, -ENXIO, "the backend %s runs no jobs", m->backend->name);
    workspace_describe(ws, &w, dir);
    r = m->backend->stream(m->backend_state, &w, start, e);
    if (r < 0 || start) /* what was seen of an earlier sandbox may be settled after this one has come */
        notice_stream(ws);
    return r;
}

void workspace_job_root(struct workspace *ws, char *out, size_t size)
{
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;

    snprintf(out, size, "/workspace");
    if (!m->backend->job_root)
        return;
    workspace_describe(ws, &w, dir);
    m->backend->job_root(m->backend_state, &w, out, size);
}

bool manager_runs_jobs(struct manager *m) { return m->backend->stream != NULL; }

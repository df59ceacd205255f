// SPDX-License-Identifier: Apache-2.0
/* What provisioning is doing, as JSON lines that readers follow. */
#include "fs/manager/internal.h"
#include "fs/manager/json.h"

/* What is kept of it; older lines go first. */
#define PROGRESS_BYTES (16 << 10)

struct events *workspace_progress(struct workspace *ws)
{
    scoped_lock(&ws->lock);

    if (!ws->progress)
        ws->progress = events_create(PROGRESS_BYTES);
    return ws->progress;
}

void progress_line(struct workspace *ws, const char *step, const char *text, uint64_t done_bytes,
                   uint64_t total_bytes)
{
    struct events *ev = workspace_progress(ws);
    struct json_object *o = ev ? json_object_new_object() : NULL;
    char time[JSON_TIME_MAX];

    if (!o)
        return;
    json_put_text(o, "time", json_time(wall_ms(), time));
    json_put_text(o, "step", step);
    json_put_text(o, "text", text);
    if (done_bytes || total_bytes) {
        json_put_int(o, "done_bytes", (int64_t)done_bytes);
        json_put_int(o, "total_bytes", (int64_t)total_bytes);
    }
    events_add_line(ev, json_line(o));
    json_object_put(o);
}

void workspace_step(struct workspace *ws, const char *step, const char *text)
{
    progress_line(ws, step, text, 0, 0);
    progress_end(ws);
}

void progress_end(struct workspace *ws)
{
    struct events *ev;

    pthread_mutex_lock(&ws->lock);
    ev = ws->progress;
    pthread_mutex_unlock(&ws->lock);
    if (ev)
        events_poke(ev);
}

size_t session_progress_read(struct place *session, uint64_t *pos, char *buf, size_t size, bool *more)
{
    struct workspace *ws = session_workspace(session);
    struct events *ev;
    size_t n = 0;

    /* The state first: what is added before it changes is then read below. */
    *more = workspace_state(ws) == WS_PROVISIONING;
    pthread_mutex_lock(&ws->lock);
    ev = ws->progress;
    pthread_mutex_unlock(&ws->lock);
    if (ev)
        n = events_read(ev, pos, buf, size);
    workspace_unref(ws);
    return n;
}

void session_progress_listen(struct place *session, struct events_listener *l)
{
    struct workspace *ws = session_workspace(session);
    struct events *ev = workspace_progress(ws);

    l->owner = NULL;
    list_init(&l->links);
    if (!ev) {
        workspace_unref(ws);
        return;
    }
    l->owner = ws;
    events_listen(ev, l);
}

void session_progress_unlisten(struct place *session, struct events_listener *l)
{
    struct workspace *ws = l->owner;

    (void)session; /* it may have another workspace by now */
    if (!ws)
        return;
    events_unlisten(ws->progress, l);
    l->owner = NULL;
    workspace_unref(ws);
}

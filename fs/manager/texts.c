// SPDX-License-Identifier: Apache-2.0
/* The control files with fixed content. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"
#include "fs/manager/json.h"

/* ── small texts of a session ────────────────────────────────────────────────────────────── */

/* `line` with its newline; nothing at all for NULL. */
static char *text_line(const char *line, size_t *size)
{
    char *text = NULL;
    int   n;

    if (!line) {
        *size = 0;
        return calloc(1, 1);
    }
    n = asprintf(&text, "%s\n", line);
    if (n < 0)
        return NULL;
    *size = (size_t)n;
    return text;
}

char *session_text_id(struct place *session, size_t *size, int64_t *changed_ms)
{
    scoped_lock(&session->manager->names_lock);
    struct session *s = session_of(session);

    *changed_ms = s->bound_ms;
    return text_line(s->ws->id, size);
}

char *session_text_state(struct place *session, size_t *size, int64_t *changed_ms)
{
    struct workspace *ws = session_workspace(session);
    char *text;

    pthread_mutex_lock(&ws->lock);
    text = text_line(workspace_state_name(workspace_state(ws)), size);
    *changed_ms = ws->state_ms;
    pthread_mutex_unlock(&ws->lock);
    workspace_unref(ws);
    return text;
}

/* A copy of the newer of a session's own failure and its workspace's; NULL when there is none. */
static char *newest_failure(struct place *session, int64_t *changed_ms)
{
    struct session *s = session_of(session);
    char *own = NULL, *text = NULL;
    struct workspace *ws;

    *changed_ms = 0;
    pthread_mutex_lock(&session->manager->names_lock);
    ws = s->ws;
    workspace_ref(ws);
    if (s->failure) {
        own = strdup(s->failure->text);
        *changed_ms = s->failure->when_ms;
    }
    pthread_mutex_unlock(&session->manager->names_lock);
    pthread_mutex_lock(&ws->lock);
    if (ws->failure && ws->failure->when_ms >= *changed_ms) {
        text = strdup(ws->failure->text);
        *changed_ms = ws->failure->when_ms;
    }
    if (*changed_ms == 0)
        *changed_ms = ws->state_ms;
    pthread_mutex_unlock(&ws->lock);
    workspace_unref(ws);
    if (!text)
        return own;
    free(own);
    return text;
}

char *session_text_error(struct place *session, size_t *size, int64_t *changed_ms)
{
    cleanup_free char *failure = newest_failure(session, changed_ms);

    return text_line(failure, size);
}

/* ── status of a session ─────────────────────────────────────────────────────────────────── */

/* What `status` and `workspaces` show of a workspace, taken at one moment. */
struct view {
    enum workspace_state state;
    int64_t created_ms, last_access_ms, idle_s, ttl_s, expires_ms; /* 0: none */
    bool    pinned;
};

static struct view view_of(struct workspace *ws)
{
    int64_t last_ns = atomic_load(&ws->last_access_ns);
    struct view v = {
        .state = workspace_state(ws),
        .created_ms = atomic_load(&ws->created_ms),
        .last_access_ms = workspace_last_access_ms(ws),
        .ttl_s = workspace_ttl_s(ws),
        .pinned = atomic_load(&ws->pinned),
    };

    if (last_ns != 0) {
        int64_t idle_ms = (clock_ns() - last_ns) / NS_PER_MS;
        v.idle_s = idle_ms > 0 ? idle_ms / 1000 : 0;
    }
    if (v.created_ms && v.ttl_s && !v.pinned)
        v.expires_ms = v.last_access_ms + v.ttl_s * 1000;
    return v;
}

static struct json_object *sharing_sessions(struct workspace *ws)
{
    scoped_lock(&ws->manager->names_lock);
    struct json_object *all = json_object_new_array();
    char path[3 * (NAME_MAX_BYTES + 1)];

    list_for_each(pos, &ws->sessions) {
        struct session *s = container_of(pos, struct session, in_ws);
        struct place_names n = place_names(&s->node.pub);
        if (!atomic_load(&s->node.known))
            continue;
        snprintf(path, sizeof(path), "%s/%s/%s", n.user, n.agent, n.session);
        json_object_array_add(all, json_object_new_string(path));
    }
    return all;
}

static void put_sandbox(struct json_object *o, struct workspace *ws)
{
    struct manager *m = ws->manager;
    char name[BACKEND_SANDBOX_SIZE];

    workspace_sandbox_name(ws, name);
    json_put_text_or_null(o, "sandbox", m->backend->provision ? name : NULL);
}

static void put_clocks(struct json_object *o, const struct view *v)
{
    json_put_time(o, "created", v->created_ms);
    json_put_time(o, "last_access", v->last_access_ms);
    json_put_int(o, "idle_s", v->idle_s);
    json_put_int(o, "ttl_s", v->ttl_s);
    json_put_time(o, "expires", v->expires_ms);
}

char *session_text_status(struct place *session, size_t *size, int64_t *changed_ms)
{
    struct place_names n = place_names(session);
    struct workspace *ws = session_workspace(session);
    struct json_object *o = json_object_new_object();
    struct view v = view_of(ws);
    int64_t when_ms;
    cleanup_free char *failure = newest_failure(session, &when_ms);
    char *text;

    json_put_text(o, "id", ws->id);
    json_put_text(o, "user", n.user);
    json_put_text(o, "agent", n.agent);
    json_put_text(o, "session", n.session);
    json_object_object_add(o, "sessions", sharing_sessions(ws));
    json_put_text(o, "backend", ws->manager->backend->name);
    put_sandbox(o, ws);
    json_put_text(o, "state", workspace_state_name(v.state));
    put_clocks(o, &v);
    json_put_int(o, "open_files", atomic_load(&ws->open_files));
    json_put_int(o, "running_jobs", atomic_load(&ws->running_jobs));
    json_put_bool(o, "pinned", v.pinned);
    json_put_text_or_null(o, "error", failure);
    text = text_line(json_line(o), size);
    json_object_put(o);
    workspace_unref(ws);
    *changed_ms = wall_ms();
    return text;
}

/* ── the manager's ───────────────────────────────────────────────────────────────────────── */

void manager_note(struct manager *m, const char *key, const char *value)
{
    struct note *n = calloc(1, sizeof(*n));
    char *copy = strdup(value), *name = strdup(key), *old = NULL;

    if (n && copy && name) {
        scoped_lock(&m->notes_lock);
        struct note *at = m->notes;
        while (at && strcmp(at->key, key) != 0)
            at = at->next;
        if (at) {
            old = at->value;
            at->value = steal_ptr(&copy);
        } else {
            *n = (struct note){ m->notes, steal_ptr(&name), steal_ptr(&copy) };
            m->notes = steal_ptr(&n);
        }
    }
    free(n);
    free(name);
    free(copy);
    free(old);
}

static void put_notes(struct manager *m, struct json_object *o)
{
    scoped_lock(&m->notes_lock);

    for (struct note *n = m->notes; n; n = n->next)
        json_put_text(o, n->key, n->value);
}

char *manager_text_status(struct manager *m, size_t *size, int64_t *changed_ms)
{
    struct json_object *o = json_object_new_object(), *states = json_object_new_object();
    char *text;

    for (int s = 0; s < WS_STATES; s++)
        json_put_int(states, workspace_state_name((enum workspace_state)s), (int64_t)atomic_load(&m->by_state[s]));
    json_put_text(o, "version", WSMFS_VERSION);
    json_put_text(o, "backend", m->backend->name);
    json_put_text(o, "isolation", identity_policy(m->config->isolation));
    json_object_object_add(o, "workspaces", states);
    json_put_int(o, "sessions", (int64_t)atomic_load(&m->known_sessions));
    json_put_int(o, "running_jobs", atomic_load(&m->running_jobs));
    json_put_time(o, "started", m->start_ms);
    json_put_int(o, "uptime_s", (wall_ms() - m->start_ms) / 1000);
    json_put_int(o, "pid", getpid());
    json_put_text(o, "instance", m->base.instance);
    put_notes(m, o);
    text = text_line(json_line(o), size);
    json_object_put(o);
    *changed_ms = wall_ms();
    return text;
}

/* Columns are separated by tabs, which no name can hold. */
static void put_workspace(struct workspace *ws, void *arg)
{
    FILE *out = arg;
    struct view v = view_of(ws);
    struct place *first = workspace_first_session(ws);
    struct place_names n = { ws->user, *ws->agent ? ws->agent : "-", *ws->session ? ws->session : "-" };
    char expires[JSON_TIME_MAX] = "-";

    if (first)
        n = place_names(first);
    if (v.expires_ms)
        json_time(v.expires_ms, expires);
    fprintf(out, "%s\t%s/%s/%s\t%s\t%s\t%" PRId64 "s\t%s\t%u\n", ws->id, n.user, n.agent, n.session,
            ws->manager->backend->name, workspace_state_name(v.state), v.idle_s, expires,
            atomic_load(&ws->running_jobs));
    if (first)
        place_unref(first);
}

char *manager_text_workspaces(struct manager *m, size_t *size, int64_t *changed_ms)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);

    *changed_ms = wall_ms();
    if (!out)
        return NULL;
    live_each(m, put_workspace, out);
    fclose(out);
    return text;
}

char *manager_text_config(struct manager *m, size_t *size, int64_t *changed_ms)
{
    char *text = config_dump(m->config);

    *size = text ? strlen(text) : 0;
    *changed_ms = m->start_ms;
    return text;
}

struct events *manager_events(struct manager *m)
{
    return m->events;
}

// SPDX-License-Identifier: Apache-2.0
/* What an earlier run has left: known names and bindings, pins, and what was live. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

/* A workspace that was live; taken over once the mount is about to answer. */
struct adoption {
    struct adoption  *next;
    struct workspace *ws; /* referenced */
    int64_t created_ms, last_access_ms;
};

/* ── loading ─────────────────────────────────────────────────────────────────────────────── */

static void remember_live(struct manager *m, struct workspace *ws, int64_t created_ms, int64_t last_access_ms)
{
    struct adoption *a = calloc(1, sizeof(*a));

    if (!a)
        return;
    workspace_ref(ws);
    *a = (struct adoption){ m->adoption, ws, created_ms, last_access_ms };
    m->adoption = a;
}

/* A row of another policy or scheme (the file was edited, or copied) would be somebody else's
 * workspace under this one's rules. */
static bool derived_here(struct manager *m, const struct registry_workspace *w)
{
    char id[ID_DERIVED_DIGITS + 1];

    identity_derive(m->config->isolation, m->config->id_scheme, w->user, w->agent, w->session, id);
    return strcmp(id, w->id) == 0;
}

/* names_lock held. Of the names those alone that count, whatever else was written down: its files' place hangs on
 * them. */
static struct workspace *get_locked(struct manager *m, const struct registry_workspace *w)
{
    const struct place_names names = { w->user, w->agent, w->session }, owner = { w->user, "", "" };

    return w->derived ? workspace_home_locked(m, &names) : workspace_get_locked(m, w->id, false, &owner);
}

static void load_workspace(const struct registry_workspace *w, void *arg)
{
    struct manager *m = arg;
    struct workspace *ws;

    if (!identity_valid(w->id) || (w->derived ? !derived_here(m, w) : identity_looks_derived(w->id))) {
        log_warning("the registry's workspace %s is left out: its id is not what its names give", w->id);
        return;
    }
    pthread_mutex_lock(&m->names_lock);
    ws = get_locked(m, w);
    if (ws) {
        atomic_store(&ws->pinned, w->pinned);
        atomic_store(&ws->ttl_s, w->ttl_s);
        workspace_keep_locked(ws);
    }
    pthread_mutex_unlock(&m->names_lock);
    if (!ws)
        return;
    if (w->live)
        remember_live(m, ws, w->created_ms, w->last_access_ms);
    workspace_unref(ws);
}

static void load_binding(struct manager *m, struct session *s, const char *id)
{
    struct workspace *ws, *old = NULL;

    pthread_mutex_lock(&m->names_lock);
    ws = workspace_find_locked(m, id);
    if (ws) {
        workspace_ref(ws);
        old = session_switch_locked(s, ws, true);
        s->bound_ms = m->start_ms;
    }
    pthread_mutex_unlock(&m->names_lock);
    if (old)
        workspace_unref(old);
    else
        log_warning("the registry binds a session to %s, which it does not know; it has its own workspace now", id);
}

/* A binding to a derived id whose session comes later in the table: all names first. */
struct binding {
    struct binding *next;
    struct node    *session; /* referenced */
    char            id[ID_MAX_BYTES + 1];
};

struct loading {
    struct manager *manager;
    struct binding *bindings;
};

static void load_place(const struct registry_place *p, void *arg)
{
    struct loading *l = arg;
    const struct place_names names = { p->user, p->agent, p->session };
    struct node *n;

    if (!name_valid(p->user) || (*p->agent && !name_valid(p->agent)) || (*p->session && !name_valid(p->session)))
        return;
    n = place_restore(l->manager, &names);
    struct binding *b = n && p->bound && n->pub.level == PLACE_SESSION ? calloc(1, sizeof(*b)) : NULL;
    if (b) {
        b->next = l->bindings;
        b->session = n;
        strncpy(b->id, p->bound, ID_MAX_BYTES);
        l->bindings = b;
    } else if (n) {
        place_unref(&n->pub);
    }
}

static void load_workspace_row(const struct registry_workspace *w, void *arg)
{
    load_workspace(w, ((struct loading *)arg)->manager);
}

int adopt_load(struct manager *m, struct err *e)
{
    struct loading l = { .manager = m };
    int r = registry_load(m->registry, load_place, load_workspace_row, &l, e);

    for (struct binding *b = l.bindings, *next; b; b = next) {
        next = b->next;
        load_binding(m, session_of(&b->session->pub), b->id);
        place_unref(&b->session->pub);
        free(b);
    }
    return r;
}

/* ── taking over ─────────────────────────────────────────────────────────────────────────── */

/* Labels are whatever somebody has written there, and names become paths. */
static bool name_none_or_valid(const char *name) { return !*name || name_valid(name); }

static void found(const struct backend_found *f, void *arg)
{
    struct manager *m = arg;
    struct registry_workspace row = {
        .id = f->id,
        .user = f->user,
        .agent = f->agent,
        .session = f->session,
    };
    struct workspace *ws = NULL;

    if (!identity_valid(f->id) || !name_valid(f->user) || !name_none_or_valid(f->agent) || !name_none_or_valid(f->session))
        return;
    row.derived = derived_here(m, &row);
    if (!row.derived && identity_looks_derived(f->id))
        return;
    pthread_mutex_lock(&m->names_lock);
    ws = get_locked(m, &row);
    pthread_mutex_unlock(&m->names_lock);
    if (!ws)
        return;
    attempt_adopt(ws, m->start_ms, m->start_ms);
    workspace_unref(ws);
}

struct closed_id {
    struct closed_id *next;
    char              id[ID_MAX_BYTES + 1];
};

void adopt_closed_locked(struct workspace *ws)
{
    struct manager *m = ws->manager;
    struct closed_id *c;
    scoped_lock(&m->live_lock);

    if (!atomic_load(&m->listing) || !(c = calloc(1, sizeof(*c))))
        return;
    memcpy(c->id, ws->id, sizeof(c->id));
    c->next = m->closed;
    m->closed = c;
}

bool adopt_was_closed_locked(struct workspace *ws)
{
    scoped_lock(&ws->manager->live_lock);
    const struct closed_id *c = ws->manager->closed;

    while (c && strcmp(c->id, ws->id) != 0)
        c = c->next;
    return c;
}

static void end_listing(struct manager *m)
{
    struct closed_id *closed, *next;

    pthread_mutex_lock(&m->live_lock);
    atomic_store(&m->listing, false);
    closed = m->closed;
    m->closed = NULL;
    pthread_mutex_unlock(&m->live_lock);
    for (; closed; closed = next) {
        next = closed->next;
        free(closed);
    }
}

struct listing {
    struct task     task; /* first */
    struct manager *manager;
};

static void task_list(struct task *t)
{
    struct listing *l = container_of(t, struct listing, task);
    struct manager *m = l->manager;
    struct err e;

    err_clear(&e);
    if (m->backend->list(m->backend_state, found, m, &e) < 0)
        log_warning("looking for what an earlier run has left: %s", e.text);
    end_listing(m);
    free(l);
    manager_job_end(m);
}

/* Sandboxes that are not known are adopted, so that idle ones are evicted and none leaks. */
static void start_listing(struct manager *m)
{
    struct listing *l = m->backend->list ? calloc(1, sizeof(*l)) : NULL;

    if (!l)
        return;
    l->manager = m;
    l->task.run = task_list;
    atomic_store(&m->listing, true);
    manager_job_begin(m);
    pool_add(m->provisioners, &l->task);
}

void adopt_start(struct manager *m)
{
    while (m->adoption) {
        struct adoption *a = m->adoption;
        m->adoption = a->next;
        attempt_adopt(a->ws, a->created_ms, a->last_access_ms);
        workspace_unref(a->ws);
        free(a);
    }
    start_listing(m);
}

void adopt_free(struct manager *m)
{
    while (m->adoption) {
        struct adoption *a = m->adoption;
        m->adoption = a->next;
        workspace_unref(a->ws);
        free(a);
    }
}

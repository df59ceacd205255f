// SPDX-License-Identifier: Apache-2.0
/* Explicit ids: binding, unbinding, fresh ones. A binding holds once it is stored: the registry's
 * thread applies each right after its commit, in the order they were asked for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

struct rebind {
    struct registry_op op;     /* first; op.place the session, op.ws a new explicit workspace or NULL */
    struct workspace  *target; /* referenced */
    struct workspace  *old;    /* what it had before; referenced, NULL while not applied */
    bool               bound;
    struct list        waiters; /* wait_lock */
    struct task        task;
    int                status;
};

/* ── applying ────────────────────────────────────────────────────────────────────────────── */

static void rebind_free(struct rebind *b)
{
    struct manager *m = b->op.place->manager;

    if (b->old)
        workspace_release(b->old);
    if (b->old)
        workspace_unref(b->old);
    workspace_unref(b->target);
    if (b->op.ws)
        workspace_unref(b->op.ws);
    place_unref(b->op.place);
    free(b);
    manager_job_end(m);
}

/* On the pool: the kernel forgets what it knows of the session's old files. */
static void task_rebound(struct task *t)
{
    struct rebind *b = container_of(t, struct rebind, task);
    struct place *p = b->op.place;
    struct manager *m = p->manager;

    if (b->status == 0) {
        struct place_names n = place_names(p);
        struct log_fields f = { n.user, n.agent, n.session, b->target->id };
        events_add(m->events, "bound", b->target->id, n.user, n.agent, n.session, NULL);
        log_event(LOG_LEVEL_INFO, &f, b->bound ? "bound" : "unbound");
        if (m->hooks.rebound)
            m->hooks.rebound(p, m->hooks_arg);
    } else {
        struct err e;
        err_sys(&e, b->status, "the binding could not be stored");
        session_fail(session_of(p), &e);
    }
    waiters_finish(m, &b->waiters, b->status);
    rebind_free(b);
}

/* On the registry's thread. */
static void rebind_done(struct registry_op *op, int status)
{
    struct rebind *b = container_of(op, struct rebind, op);
    struct session *s = session_of(op->place);
    struct manager *m = op->place->manager;
    struct workspace *old = NULL;

    pthread_mutex_lock(&m->names_lock);
    s->rebinding--;
    if (status == 0 && !node_attached_locked(&s->node))
        status = -ENOENT;
    if (status == 0) {
        workspace_ref(b->target);
        old = session_switch_locked(s, b->target, b->bound);
    }
    pthread_mutex_unlock(&m->names_lock);
    b->old = old;
    b->status = status;
    b->task.run = task_rebound;
    pool_add(m->pool, &b->task);
}

/* names_lock held. Takes over a reference to `target` unless it fails. */
static int queue_locked(struct session *s, struct workspace *target, bool bound, struct waiter *w,
                        struct err *e)
{
    struct manager *m = s->node.pub.manager;
    struct rebind *b = calloc(1, sizeof(*b));

    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    b->op.kind = REGISTRY_BIND;
    b->op.place = &s->node.pub;
    b->op.done = rebind_done;
    b->op.urgent = true;
    b->target = target;
    b->bound = bound;
    list_init(&b->op.links);
    list_init(&b->waiters);
    list_init(&b->task.links);
    node_ref(&s->node);
    if (bound)
        snprintf(b->op.id, sizeof(b->op.id), "%s", target->id);
    if (bound && !target->derived) {
        b->op.ws = target;
        workspace_ref(target);
        workspace_keep_locked(target); /* from now on it belongs to its first user */
    }
    s->rebinding++;
    manager_job_begin(m);
    waiters_add(m, &b->waiters, w);
    node_know_locked(&s->node, true);
    registry_add(m->registry, &b->op);
    return MANAGER_WAIT;
}

/* ── the rules ───────────────────────────────────────────────────────────────────────────── */

/* names_lock held. The workspace that a valid explicit id means for this session, with a reference;
 * *owner is the user's place that must let the caller in, or NULL when it is the session's own. */
static int resolve_locked(struct session *s, const char *id, struct workspace **out, struct node **owner,
                          struct err *e)
{
    struct manager *m = s->node.pub.manager;
    struct place_names own = place_names(&s->node.pub);
    struct workspace *ws = workspace_find_locked(m, id);

    if (identity_looks_derived(id) && ws != s->home && (!ws || !ws->n_deriving))
        return err_set(e, -EINVAL, "an id of 16 hex digits must be the derived id of a session that is known here, as it "
                       "is once its directory was opened");
    own.agent = own.session = "";
    ws = workspace_get_locked(m, id, false, &own);
    if (!ws)
        return err_set(e, -ENOMEM, "out of memory");
    *owner = NULL;
    if (strcmp(ws->user, own.user) != 0) {
        *owner = node_child_locked(m->root, ws->user);
        if (*owner)
            node_ref(*owner);
    }
    *out = ws;
    return 0;
}

static bool may_share(struct manager *m, struct node *owner, const struct caller *who)
{
    return m->config->bind_across_users || (owner && place_may_enter(&owner->pub, who));
}

/* names_lock held; takes over the reference to `ws`. */
static int switch_to_locked(struct session *s, struct workspace *ws, struct waiter *w, struct err *e)
{
    bool bound = ws != s->home;
    int  r;

    if (!node_attached_locked(&s->node))
        return err_set(e, -ENOENT, "this session was forgotten: open its directory again");
    if (s->ws == ws && s->bound == bound && atomic_load(&s->node.known))
        return 0;
    /* Open files are counted by the workspace, so those of other sessions that share it count too as
     * soon as this one has reached any file: which session a file was opened through is the kernel's
     * knowledge, and a file with two names may have two. */
    if (s->ws != ws && s->running_jobs)
        return err_set(e, -EBUSY, "jobs of this session run (%u)", s->running_jobs);
    if (s->ws != ws && atomic_load(&s->used) && atomic_load(&s->ws->open_files) > 0)
        return err_set(e, -EBUSY, "files of this workspace are open (%u)", atomic_load(&s->ws->open_files));
    workspace_ref(ws);
    r = queue_locked(s, ws, bound, w, e);
    if (r < 0)
        atomic_fetch_sub(&ws->refs, 1); /* the caller holds another one */
    return r;
}

static int switch_to(struct session *s, struct workspace *ws, struct waiter *w, struct err *e)
{
    struct manager *m = s->node.pub.manager;
    bool known;
    int r;

    pthread_mutex_lock(&m->names_lock);
    known = atomic_load(&s->node.known);
    r = switch_to_locked(s, ws, w, e);
    known = !known && atomic_load(&s->node.known);
    pthread_mutex_unlock(&m->names_lock);
    workspace_unref(ws);
    if (known)
        node_tell_known(&s->node);
    return r;
}

static int bind_to(struct session *s, const struct caller *who, const char *id, struct waiter *w, struct err *e)
{
    struct manager *m = s->node.pub.manager;
    struct workspace *ws = NULL;
    struct node *owner = NULL;
    bool allowed;
    int  r;

    pthread_mutex_lock(&m->names_lock);
    r = resolve_locked(s, id, &ws, &owner, e);
    pthread_mutex_unlock(&m->names_lock);
    if (r < 0)
        return r;
    allowed = strcmp(ws->user, place_names(&s->node.pub).user) == 0 || may_share(m, owner, who);
    if (owner)
        place_unref(&owner->pub);
    if (!allowed) {
        workspace_unref(ws);
        return err_set(e, -EPERM, "that workspace belongs to another user");
    }
    return switch_to(s, ws, w, e);
}

/* Without the white space at both ends; false when it is too long to be an id. */
static bool trim(const char *text, char *out)
{
    size_t len;

    text += strspn(text, " \t\r\n");
    len = strlen(text);
    while (len > 0 && strchr(" \t\r\n", text[len - 1]))
        len--;
    if (len > ID_MAX_BYTES)
        return false;
    memcpy(out, text, len);
    out[len] = '\0';
    return true;
}

static int bind_id(struct session *s, const struct caller *who, const char *text, struct waiter *w, struct err *e)
{
    char id[ID_MAX_BYTES + 1];

    if (!trim(text, id) || (*id && !identity_valid(id)))
        return err_set(e, -EINVAL,
                       "an id is 1 to %d characters of a-z, 0-9 and '-', the first and last of them no '-'",
                       ID_MAX_BYTES);
    if (*id && strcmp(id, s->home->id) != 0)
        return bind_to(s, who, id, w, e);
    workspace_ref(s->home);
    return switch_to(s, s->home, w, e);
}

int session_bind(struct place *session, const struct caller *who, const char *id, struct waiter *w, struct err *e)
{
    struct session *s = session_of(session);
    struct err own;
    int r;

    err_clear(&own);
    r = bind_id(s, who, id, w, &own);
    err_escape(&own);
    session_fail(s, &own);
    if (r < 0 && e)
        *e = own;
    return r;
}

int session_fresh(struct place *session, struct waiter *w, struct err *e)
{
    struct session *s = session_of(session);
    struct manager *m = session->manager;
    struct place_names owner = place_names(session);
    char id[ID_MINTED_DIGITS + 1];
    struct workspace *ws;
    int r = identity_mint(id);

    if (r < 0)
        return err_sys(e, r, "no random number");
    owner.agent = owner.session = "";
    pthread_mutex_lock(&m->names_lock);
    ws = workspace_get_locked(m, id, false, &owner);
    if (ws)
        atomic_store(&ws->has_files, false);
    pthread_mutex_unlock(&m->names_lock);
    return ws ? switch_to(s, ws, w, e) : err_set(e, -ENOMEM, "out of memory");
}

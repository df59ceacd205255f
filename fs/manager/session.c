// SPDX-License-Identifier: Apache-2.0
/* Sessions: which workspace they have, and the way in. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/utf8.h"
#include "fs/manager/internal.h"

struct workspace *session_workspace(struct place *session)
{
    scoped_lock(&session->manager->names_lock);
    struct workspace *ws = session_of(session)->ws;

    workspace_ref(ws);
    return ws;
}

static int know(struct node *n)
{
    scoped_lock(&n->pub.manager->names_lock);

    if (!node_attached_locked(n))
        return -ENOENT;
    node_know_locked(n, true);
    return 0;
}

int session_know(struct session *s)
{
    struct node *n = &s->node;
    int r;

    if (atomic_load_explicit(&n->known, memory_order_acquire))
        return 0;
    r = know(n);
    if (r == 0)
        node_tell_known(n);
    return r;
}

int session_enter(struct place *session, struct waiter *w, struct workspace **out, struct err *e)
{
    struct session *s = session_of(session);
    struct workspace *ws;
    int r = session_know(s);

    if (r < 0)
        return err_set(e, r, "this session was forgotten: open its directory again");
    ws = session_workspace(session);
    r = workspace_enter(ws, w, e);
    if (r == 0 && !atomic_load_explicit(&s->used, memory_order_relaxed))
        atomic_store(&s->used, true);
    if (r == 0)
        *out = ws;
    else
        workspace_unref(ws);
    return r;
}

struct workspace *session_switch_locked(struct session *s, struct workspace *ws, bool bound)
{
    struct workspace *old = s->ws;

    list_remove(&s->in_ws);
    s->ws = ws;
    list_append(&ws->sessions, &s->in_ws);
    s->bound = bound;
    atomic_store(&s->used, false);
    s->bound_ms = wall_ms();
    return old;
}

void err_escape(struct err *e)
{
    char   clean[ERR_TEXT_MAX];
    size_t used = 0;

    for (const char *s = e->text; *s;) {
        uint32_t c;
        size_t n = utf8_read(s, &c);
        bool plain = n > 0 && !utf8_is_control(c);
        if (used + (plain ? n : 4) >= sizeof(clean))
            break;
        if (plain)
            memcpy(clean + used, s, n);
        else
            snprintf(clean + used, 5, "\\x%02x", (unsigned char)*s);
        used += plain ? n : 4;
        s += plain ? n : 1;
    }
    memcpy(e->text, clean, used);
    e->text[used] = '\0';
}

static struct failure *failure_new(const struct err *e)
{
    struct failure *f;
    struct err clean;

    if (!e || e->code == 0)
        return NULL;
    clean = *e;
    err_escape(&clean);
    f = malloc(sizeof(*f) + strlen(clean.text) + 1);
    if (!f)
        return NULL;
    f->code = clean.code;
    f->when_ms = wall_ms();
    strcpy(f->text, clean.text);
    return f;
}

void session_fail(struct session *s, const struct err *e)
{
    struct failure *f = failure_new(e), *old;

    pthread_mutex_lock(&s->node.pub.manager->names_lock);
    old = s->failure;
    s->failure = f;
    pthread_mutex_unlock(&s->node.pub.manager->names_lock);
    free(old);
}

void workspace_forget_errors(struct workspace *ws)
{
    scoped_lock(&ws->manager->names_lock);

    list_for_each(pos, &ws->sessions) {
        struct session *s = container_of(pos, struct session, in_ws);
        free(steal_ptr(&s->failure));
    }
}

void session_set_error(struct place *session, const struct err *e)
{
    session_fail(session_of(session), e);
}

void workspace_fail_locked(struct workspace *ws, const struct err *e)
{
    free(ws->failure);
    ws->failure = failure_new(e);
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/call.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/hostdir.h"
#include "fs/wait.h"

/* A call that waits. */
struct parked {
    struct wait wait;
    struct call call;
    struct fuse_file_info fi;
    char        strings[];
};

static struct workspace *workspace_of(struct node *n)
{
    switch (n->kind) {
    case NODE_DIR:
        return container_of(n, struct dir_node, n)->hi->h.hd->ws;
    case NODE_FILE:
        return node_file(n)->h.hd->ws;
    case NODE_LINK:
        return container_of(n, struct link_node, n)->hi->h.hd->ws;
    default:
        return NULL;
    }
}

static struct hostdir *files_of(struct node *n)
{
    switch (n->kind) {
    case NODE_DIR:
        return container_of(n, struct dir_node, n)->hi->h.hd;
    case NODE_FILE:
        return node_file(n)->h.hd;
    case NODE_LINK:
        return container_of(n, struct link_node, n)->hi->h.hd;
    default:
        return NULL;
    }
}

/* The session's directory becomes an alias of the root of these files. */
static void show_root(struct fs *fs, struct dir_node *d, struct hostdir *hd)
{
    hinodes_lock(fs);
    if (d->hi != &hd->root) {
        if (d->hi) {
            list_remove(&d->alias);
            hinode_unref(fs, &d->hi->h);
        }
        d->hi = &hd->root;
        hinode_ref(&hd->root.h);
        list_append(&hd->root.aliases, &d->alias);
    }
    hinodes_unlock(fs);
}

/* A session's directory shows the files of whatever workspace the session has now. */
static int enter_session(struct call *c, struct waiter *w, struct err *e)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    int r = session_enter(d->session, w, &c->ws, e);
    if (r != 0)
        return r;
    c->hd = hostdir_get(c->fs, c->ws);
    if (!c->hd) {
        workspace_leave(c->ws);
        workspace_unref(c->ws);
        return -ENOMEM;
    }
    show_root(c->fs, d, c->hd);
    return 0;
}

static int enter_node(struct call *c, struct waiter *w, struct err *e)
{
    struct hostdir *hd = files_of(c->node);
    if (hd->dead)
        return -ESTALE;
    int r = workspace_enter(hd->ws, w, e);
    if (r != 0)
        return r;
    c->ws = workspace_of(c->node);
    workspace_ref(c->ws);
    c->hd = hd;
    hinodes_lock(c->fs);
    hinode_ref(&hd->root.h);
    hinodes_unlock(c->fs);
    return 0;
}

static int enter(struct call *c, struct waiter *w)
{
    struct err e = {0};
    return c->node->kind == NODE_SESSION ? enter_session(c, w, &e) : enter_node(c, w, &e);
}

void call_leave(struct call *c)
{
    void (*leave)(struct workspace *) = c->leave;
    c->leave = NULL;
    if (leave)
        leave(c->ws);
}

static void run_and_put(struct call *c, void (*leave)(struct workspace *))
{
    struct fs *fs = c->fs;
    struct workspace *ws = c->ws;
    struct hostdir *hd = c->hd;
    c->leave = leave;
    c->run(c);
    call_leave(c);
    hostdir_put(fs, hd);
    workspace_unref(ws);
    if (c->again) {
        c->again = false;
        c->repeats++;
        call_start(c);
    }
}

static void run_and_leave(struct call *c)
{
    run_and_put(c, workspace_leave);
}

static void finish(struct parked *p, int r)
{
    wait_answer(&p->wait);
    if (r < 0)
        fuse_reply_err(p->call.req, -r);
    else
        run_and_leave(&p->call);
    wait_put(&p->wait);
}

/* The caller holds a reference of its own: whoever wakes it may have answered before this returns. */
static void wait_or_run(struct parked *p)
{
    int r = enter(&p->call, &p->wait.waiter);
    if (r == MANAGER_WAIT)
        wait_queued(&p->wait);
    else
        finish(p, r);
}

static void on_woken(struct wait *w, int status)
{
    struct parked *p = container_of(w, struct parked, wait);
    if (status == 0)
        wait_or_run(p);
    else
        finish(p, status);
}

static void free_parked(struct wait *w)
{
    free(container_of(w, struct parked, wait));
}

static char *keep(char **space, const char *data, size_t size)
{
    char *at = *space;
    if (!data)
        return NULL;
    memcpy(at, data, size);
    *space += size;
    return at;
}

static size_t text_size(const char *s)
{
    return s ? strlen(s) + 1 : 0;
}

static void park(struct call *c)
{
    size_t n1 = text_size(c->name), n2 = text_size(c->name2), nd = c->data ? c->size : 0;
    struct parked *p = calloc(1, sizeof *p + n1 + n2 + nd);
    if (!p) {
        fuse_reply_err(c->req, ENOMEM);
        return;
    }
    char *space = p->strings;
    p->call = *c;
    p->call.name = keep(&space, c->name, n1);
    p->call.name2 = keep(&space, c->name2, n2);
    p->call.data = keep(&space, c->data, nd);
    if (c->fi) {
        p->fi = *c->fi;
        p->call.fi = &p->fi;
    }
    wait_begin(&p->wait, c->fs, c->req, on_woken, free_parked);
    wait_or_run(p);
    wait_put(&p->wait);
}

void call_start(struct call *c)
{
    int r = enter(c, NULL);
    if (r == -EAGAIN)
        park(c);
    else if (r < 0)
        fuse_reply_err(c->req, -r);
    else
        run_and_leave(c);
}

bool call_start_peek(struct call *c)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct workspace *ws = session_workspace(d->session);
    bool ready = workspace_peek(ws) == 0;
    if (ready) {
        c->ws = ws;
        c->hd = hostdir_get(c->fs, ws);
        if (c->hd) {
            show_root(c->fs, d, c->hd);
            run_and_put(c, workspace_peek_end);
            return true;
        }
        workspace_peek_end(ws);
    }
    workspace_unref(ws);
    return false;
}

// SPDX-License-Identifier: Apache-2.0
/* Symlinks of a workspace: what readlink gives (contained.c has the rules). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/contained.h"
#include "fs/hostdir/hostdir.h"

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

static bool named(const struct node *n, const char *name)
{
    return !strcmp(container_of(n, struct link_node, n)->name, name);
}

struct node *link_node_for(struct fs *fs, struct dir_node *d, struct hdir *dir, struct hfile *h, const char *name)
{
    struct nodes *ns = &fs->nodes;
    struct node *n = nodes_find(ns, NODE_LINK, dir, d->session, name, named);
    if (n && container_of(n, struct link_node, n)->hi == h) {
        hinode_unref(fs, &h->h);
        return n;
    }
    if (n)
        nodes_unhash(ns, n);
    struct link_node *new = calloc(1, sizeof *new);
    char *copy = new ? strdup(name) : NULL;
    if (copy) {
        new->n = (struct node){.ops = &host_link_ops, .kind = NODE_LINK, .owner = dir, .second = d->session};
        new->name = copy;
        if (nodes_add(ns, &new->n, name, true) == 0) {
            new->hi = h;
            new->dir = dir;
            hinode_ref(&dir->h);
            new->session = d->session;
            place_ref(d->session);
            return &new->n;
        }
    }
    free(copy);
    free(new);
    hinode_unref(fs, &h->h);
    return NULL;
}

void link_node_moved(struct fs *fs, struct place *session, struct hdir *from, const char *name, struct hdir *to,
                     const char *new_name)
{
    struct nodes *ns = &fs->nodes;
    struct node *n = nodes_find(ns, NODE_LINK, from, session, name, named);
    char *copy = n ? strdup(new_name) : NULL;
    if (n)
        nodes_unhash(ns, n);
    if (!copy)
        return; /* its old text until it is looked up again */
    struct link_node *l = container_of(n, struct link_node, n);
    struct node *there = nodes_find(ns, NODE_LINK, to, session, new_name, named);
    if (there)
        nodes_unhash(ns, there);
    free(l->name);
    l->name = copy;
    hinode_ref(&to->h);
    hinode_unref(fs, &l->dir->h);
    l->dir = to;
    n->owner = to;
    nodes_hash(ns, n, new_name);
}

/* The path of a directory below the workspace's root, "" or "a/b/", and its components; -1: it has
 * no place any more. */
static int depth_of(struct fs *fs, const struct hdir *dir, char *path, size_t size)
{
    int depth = 0;
    size_t at = size - 1;
    const struct hinode *d;
    path[at] = '\0';
    hinodes_lock(fs);
    for (d = &dir->h; d && !d->is_root; d = d->parent, depth++) {
        size_t n = d->name ? strlen(d->name) : 0;
        if (!n || n + 1 > at) {
            d = NULL;
            break;
        }
        at -= n + 1;
        memcpy(path + at, d->name, n);
        path[at + n] = '/';
    }
    hinodes_unlock(fs);
    memmove(path, path + at, size - at);
    return d ? depth : -1;
}

/* ── the text ────────────────────────────────────────────────────────────────────────────── */

/* The text on disk. The workspace is entered. */
static int read_target(struct fs *fs, struct hinode *h, char *text)
{
    struct hfd f;
    int r = hinode_fd(fs, h, &f);
    if (r < 0)
        return r;
    ssize_t n = readlinkat(f.fd, "", text, PATH_MAX);
    r = n < 0 ? -errno : n == PATH_MAX ? -ENAMETOOLONG : 0;
    if (r == 0)
        text[n] = '\0';
    hfd_put(fs, &f);
    return r;
}

/* The session's own path, for anchored links. */
static int anchor_of(struct fs *fs, const struct place *session, char *out)
{
    const struct place *agent = session->parent, *user = agent->parent;
    int n = snprintf(out, PATH_MAX, "%s/%s/%s/%s", fs->config->mountpoint, user->name, agent->name, session->name);
    return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* The text that users see, PATH_MAX bytes. */
static int shown_target(struct fs *fs, const struct link_node *l, char *out)
{
    char disk[PATH_MAX], dir[PATH_MAX], anchor[PATH_MAX];
    enum symlinks_rule rule = fs->config->symlinks;
    int r = read_target(fs, &l->hi->h, disk);
    int depth = r < 0 || rule == SYMLINKS_RAW ? -1 : depth_of(fs, l->dir, dir, sizeof dir);
    if (r == 0 && rule == SYMLINKS_ANCHORED)
        r = anchor_of(fs, l->session, anchor);
    if (r < 0)
        return r;
    if (depth < 0) {
        strcpy(out, disk);
        return 0;
    }
    return contained_target(workspace_files_fd(l->hi->h.hd->ws), dir, depth,
                            rule == SYMLINKS_ANCHORED ? anchor : NULL, disk, out);
}

static void run_readlink(struct call *c)
{
    char out[PATH_MAX];
    int r = shown_target(c->fs, container_of(c->node, struct link_node, n), out);
    if (r < 0)
        fuse_reply_err(c->req, -r);
    else
        fuse_reply_readlink(c->req, out);
}

/* A place on this mount that shows this workspace: what stands behind it, else NULL. */
static const char *below_session(struct call *c, const char *target)
{
    const char *mountpoint = c->fs->config->mountpoint;
    struct place *p = manager_root(c->fs->manager), *child;
    size_t n = strlen(mountpoint);
    if (strncmp(target, mountpoint, n) || target[n] != '/')
        return NULL;
    target += n;
    place_ref(p);
    for (int level = 0; level < 3 && p; level++) {
        char name[NAME_MAX + 1];
        target += strspn(target, "/");
        n = strcspn(target, "/");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : 0), target);
        target += n;
        int r = place_lookup(p, name, &child);
        place_unref(p);
        p = r == 0 ? child : NULL;
    }
    struct workspace *ws = p ? session_workspace(p) : NULL;
    bool ours = ws == c->ws;
    if (ws)
        workspace_unref(ws);
    if (p)
        place_unref(p);
    return ours ? target : NULL;
}

/* `../../.wsm/root/etc/x`, as readlink gives it: what stands behind root, else NULL. */
static const char *below_root(const char *target)
{
    static const char form[] = ".wsm/root";
    while (!strncmp(target, "../", 3))
        target += 3 + strspn(target + 3, "/");
    size_t n = strlen(form);
    return strncmp(target, form, n) || (target[n] && target[n] != '/') ? NULL : target + n;
}

/* An anchored link to the sandbox's root, behind the session's own path. */
static const char *below_root_again(const char *rest)
{
    return below_root(rest + strspn(rest, "/"));
}

int host_stored_target(struct call *c, const char *target, char *out)
{
    const char *rest;
    int n;
    if (c->fs->config->symlinks == SYMLINKS_RAW)
        n = snprintf(out, PATH_MAX, "%s", target);
    else if ((rest = below_root(target)) || ((rest = below_session(c, target)) && (rest = below_root_again(rest))))
        n = snprintf(out, PATH_MAX, "%s", *rest ? rest : "/");
    else if ((rest = below_session(c, target)))
        n = snprintf(out, PATH_MAX, "%s%s", INSIDE_ROOT, rest);
    else
        n = snprintf(out, PATH_MAX, "%s", target);
    return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static void host_readlink(struct fs *fs, fuse_req_t req, struct node *n)
{
    struct call c = {.fs = fs, .req = req, .node = n, .run = run_readlink};
    call_start(&c);
}

void host_link_entry_size(struct fs *fs, struct node *n, struct stat *st)
{
    char out[PATH_MAX];
    if (fs->config->symlinks == SYMLINKS_RAW)
        return; /* it is the disk's, and reading the link would change its atime */
    if (n->kind == NODE_LINK && shown_target(fs, container_of(n, struct link_node, n), out) == 0)
        st->st_size = (off_t)strlen(out);
}

void host_link_size(struct call *c, struct stat *st)
{
    host_link_entry_size(c->fs, c->node, st);
}

static void destroy_link(struct fs *fs, struct node *n)
{
    struct link_node *l = container_of(n, struct link_node, n);
    hinodes_lock(fs);
    hinode_unref(fs, &l->hi->h);
    hinode_unref(fs, &l->dir->h);
    hinodes_unlock(fs);
    place_unref(l->session);
    free(l->name);
    free(l);
}

const struct node_ops host_link_ops = {
    .getattr = host_getattr,
    .setattr = host_dir_setattr,
    .readlink = host_readlink,
    .link = host_link,
    .statfs = host_statfs,
    .setxattr = host_setxattr,
    .getxattr = host_getxattr,
    .listxattr = host_listxattr,
    .removexattr = host_removexattr,
    .destroy = destroy_link,
};

// SPDX-License-Identifier: Apache-2.0
/* A session's directory: the root of its workspace's files, with the control directory in it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/hostdir.h"
#include "fs/hostdir/watch.h"
#include "fs/tree/tree.h"

static struct dir_node *of(struct node *n)
{
    return container_of(n, struct dir_node, n);
}

static void lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    if (strcmp(name, CONTROL_NAME)) {
        host_dir_lookup(fs, req, n, name);
        return;
    }
    int r = control_entry(fs, of(n)->session, false, &e);
    reply_entry(fs, req, r, &e);
}

static void run_getattr(struct call *c)
{
    struct dir_node *d = of(c->node);
    struct statx st;
    struct stat out;
    int r = hinode_stat(c->fs, &c->hd->root.h, &st);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    host_attr(c->hd, &st, &out);
    out.st_ino = place_ino(d->session);
    bool covered = watch_covers(c->fs, &c->hd->root.h, &st);
    fuse_reply_attr(c->req, &out, covered ? WATCHED_TIMEOUT_S : HOST_TIMEOUT_S);
}

/* Neither this nor what follows provisions: looking at a session's directory starts nothing. */
static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .fi = fi, .run = run_getattr};
    struct stat st;
    if (call_start_peek(&c))
        return;
    place_stat(of(n)->session, &st);
    fuse_reply_attr(req, &st, 0);
}

static void getxattr_session(struct fs *fs, fuse_req_t req, struct node *n, const char *name, size_t size)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .size = size, .run = host_run_getxattr};
    if (host_is_acl(name))
        fuse_reply_err(req, EOPNOTSUPP);
    else if (!call_start_peek(&c))
        fuse_reply_err(req, ENODATA);
}

static void listxattr_session(struct fs *fs, fuse_req_t req, struct node *n, size_t size)
{
    struct call c = {.fs = fs, .req = req, .node = n, .size = size, .run = host_run_listxattr};
    if (call_start_peek(&c))
        return;
    if (size)
        fuse_reply_buf(req, NULL, 0);
    else
        fuse_reply_xattr(req, 0);
}

static void statfs_session(struct fs *fs, fuse_req_t req, struct node *n)
{
    struct call c = {.fs = fs, .req = req, .node = n, .run = host_run_statfs};
    struct statvfs v = {.f_bsize = 4096, .f_frsize = 4096, .f_namemax = 255};
    if (!call_start_peek(&c))
        fuse_reply_statfs(req, &v);
}

static void detach(struct fs *fs, struct node *n)
{
    (void)fs;
    list_remove(&of(n)->alias);
}

static void destroy(struct fs *fs, struct node *n)
{
    struct dir_node *d = of(n);
    if (d->hi) {
        hinodes_lock(fs);
        hinode_unref(fs, &d->hi->h);
        hinodes_unlock(fs);
    }
    place_unref(d->session);
    free(d);
}

const struct node_ops session_ops = {
    .lookup = lookup,
    .getattr = getattr,
    .setattr = host_dir_setattr,
    .mknod = host_dir_mknod,
    .mkdir = host_dir_mkdir,
    .unlink = host_dir_unlink,
    .rmdir = host_dir_rmdir,
    .symlink = host_dir_symlink,
    .rename = host_dir_rename,
    .link = host_link,
    .create = host_dir_create,
    .opendir = host_dir_opendir,
    .readdir = host_dir_readdir,
    .statfs = statfs_session,
    .setxattr = host_setxattr,
    .getxattr = getxattr_session,
    .listxattr = listxattr_session,
    .removexattr = host_removexattr,
    .detach = detach,
    .destroy = destroy,
};

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/creds.h"
#include "fs/hostdir/hostdir.h"
#include "fs/hostdir/watch.h"

int host_statx(int dirfd, const char *name, struct statx *st)
{
    int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_SYNC_AS_STAT | (*name ? 0 : AT_EMPTY_PATH);
    return statx(dirfd, name, flags, HSTATX_MASK, st) < 0 ? -errno : 0;
}

bool hostdir_tenant(const struct hostdir *hd, uid_t *uid, gid_t *gid)
{
    return workspace_tenant(hd->ws, uid, gid);
}

bool hostdir_foreign(const struct hostdir *hd)
{
    uid_t uid;
    gid_t gid;
    return workspace_foreign_ids(hd->ws) && hostdir_tenant(hd, &uid, &gid);
}

bool hostdir_note_tenant(struct hostdir *hd)
{
    uid_t uid = 0;
    gid_t gid = 0;
    bool tenant = hostdir_tenant(hd, &uid, &gid);
    bool changed = tenant != hd->tenant || uid != hd->uid || gid != hd->gid;
    hd->tenant = tenant;
    hd->uid = uid;
    hd->gid = gid;
    return changed;
}

void hostdir_owner(const struct hostdir *hd, uid_t *uid, gid_t *gid)
{
    struct stat st;
    *uid = 0;
    *gid = 0;
    hostdir_tenant(hd, uid, gid);
    if (hostdir_foreign(hd) && fstat(workspace_files_fd(hd->ws), &st) == 0) {
        *uid = st.st_uid;
        *gid = st.st_gid;
    }
}

static struct timespec time_of(struct statx_timestamp t)
{
    return (struct timespec){.tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec};
}

void host_attr(const struct hostdir *hd, const struct statx *st, struct stat *out)
{
    uid_t uid = st->stx_uid;
    gid_t gid = st->stx_gid;
    hostdir_tenant(hd, &uid, &gid);
    *out = (struct stat){
        .st_ino = st->stx_ino,
        .st_mode = st->stx_mode,
        .st_nlink = st->stx_nlink,
        .st_uid = uid,
        .st_gid = gid,
        .st_rdev = makedev(st->stx_rdev_major, st->stx_rdev_minor),
        .st_size = (off_t)st->stx_size,
        .st_blksize = st->stx_blksize,
        .st_blocks = (blkcnt_t)st->stx_blocks,
        .st_atim = time_of(st->stx_atime),
        .st_mtim = time_of(st->stx_mtime),
        .st_ctim = time_of(st->stx_ctime),
    };
}

struct hdir *call_dir(struct call *c, struct dir_node *d)
{
    return d->n.kind == NODE_SESSION ? &c->hd->root : d->hi;
}

bool call_root_gone(struct call *c)
{
    struct hfd f;
    struct statx st;
    if (hinode_fd(c->fs, &c->hd->root.h, &f) < 0)
        return false;
    bool gone = host_statx(f.fd, "", &st) == 0 && st.stx_nlink == 0;
    hfd_put(c->fs, &f);
    if (gone)
        workspace_files_gone(c->ws);
    return gone;
}

/* The host inode of a call's node. */
static struct hinode *call_hinode(struct call *c)
{
    switch (c->node->kind) {
    case NODE_FILE:
        return &node_file(c->node)->h;
    case NODE_LINK:
        return &container_of(c->node, struct link_node, n)->hi->h;
    default:
        return &call_dir(c, container_of(c->node, struct dir_node, n))->h;
    }
}

/* The size that lstat tells of a link is the length of what readlink gives. */
static void see(struct call *c, const struct statx *st, struct stat *out)
{
    host_attr(c->hd, st, out);
    if (c->node->kind == NODE_SESSION) {
        struct dir_node *d = container_of(c->node, struct dir_node, n);
        out->st_ino = place_ino(d->session);
    } else if (c->node->kind == NODE_LINK) {
        host_link_size(c, out);
    }
}

static double attr_timeout(bool covered, const struct statx *st)
{
    /* a passthrough write clears setuid bits on disk without telling us (fuse.md, section 15); a
     * link's text depends on where it is seen from */
    if (S_ISLNK(st->stx_mode) || (S_ISREG(st->stx_mode) && (st->stx_mode & (S_ISUID | S_ISGID))))
        return 0;
    return covered ? WATCHED_TIMEOUT_S : HOST_TIMEOUT_S;
}

void dir_node_asked(struct fs *fs, struct dir_node *d)
{
    hinodes_lock(fs);
    d->asked = true;
    hinodes_unlock(fs);
}

/* Before attributes are read and before they are answered. */
static void note_asked(struct call *c)
{
    if (c->node->kind == NODE_DIR || c->node->kind == NODE_SESSION)
        dir_node_asked(c->fs, container_of(c->node, struct dir_node, n));
}

static bool is_never_cached(struct call *c)
{
    struct hinode *h = c->node->kind == NODE_FILE ? call_hinode(c) : NULL;
    if (!h)
        return false;
    hinodes_lock(c->fs);
    bool never = h->name && host_never_cached(h->name);
    hinodes_unlock(c->fs);
    return never;
}

/* `covered`: a change since they were read has been told. */
static void reply_attr(struct call *c, int r, const struct statx *st, bool covered)
{
    struct stat out;
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    see(c, st, &out);
    note_asked(c);
    fuse_reply_attr(c->req, &out, is_never_cached(c) ? 0 : attr_timeout(covered, st));
}

static void run_getattr(struct call *c)
{
    struct statx st;
    struct hinode *h = call_hinode(c);
    note_asked(c);
    int r = hinode_stat(c->fs, h, &st);
    reply_attr(c, r, &st, r == 0 && watch_covers(c->fs, h, &st));
}

void host_getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .fi = fi, .run = run_getattr};
    call_start(&c);
}

/* ── setattr ─────────────────────────────────────────────────────────────────────────────── */

/* /proc/self/fd/N: for the calls that take a path where we have an O_PATH descriptor. */
struct fd_name {
    char text[12];
};

static const char *fd_name(struct fd_name *n, int fd)
{
    snprintf(n->text, sizeof n->text, "%d", fd);
    return n->text;
}

/* Else a tenant would make a setuid program of whoever wrote the file in the sandbox. */
static bool is_foreign_setid(struct call *c, int fd)
{
    struct stat st;
    uid_t uid;
    gid_t gid;
    if (!hostdir_tenant(c->hd, &uid, &gid) || !(c->attr.st_mode & (S_ISUID | S_ISGID)) || fstat(fd, &st) < 0)
        return false;
    hostdir_owner(c->hd, &uid, &gid);
    return S_ISREG(st.st_mode) && (st.st_uid != uid || st.st_gid != gid);
}

static int set_mode(struct call *c, int fd)
{
    struct fd_name n;
    if (is_foreign_setid(c, fd))
        return -EPERM;
    creds_raise_fsetid();
    int r = fchmodat(c->fs->proc_fd_dir, fd_name(&n, fd), c->attr.st_mode & 07777, 0) < 0 ? -errno : 0;
    creds_lower_fsetid();
    return r;
}

/* What chown does beside the ids: a file loses its setuid and setgid bits. */
static int clear_setid(struct call *c, int fd)
{
    struct fd_name n;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || !(st.st_mode & (S_ISUID | S_ISGID)))
        return 0;
    mode_t keep = st.st_mode & ~(mode_t)S_ISUID & 07777;
    if (st.st_mode & S_IXGRP)
        keep &= ~(mode_t)S_ISGID;
    return fchmodat(c->fs->proc_fd_dir, fd_name(&n, fd), keep, 0) < 0 ? -errno : 0;
}

static int set_ids(struct call *c, int fd)
{
    uid_t uid = c->to_set & FUSE_SET_ATTR_UID ? c->attr.st_uid : (uid_t)-1;
    gid_t gid = c->to_set & FUSE_SET_ATTR_GID ? c->attr.st_gid : (gid_t)-1;
    uid_t own_uid;
    gid_t own_gid;
    if (!hostdir_tenant(c->hd, &own_uid, &own_gid))
        return fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
    bool own = (uid == (uid_t)-1 || uid == own_uid) && (gid == (gid_t)-1 || gid == own_gid);
    if (!own && fuse_req_ctx(c->req)->uid != 0)
        return -EPERM;
    return clear_setid(c, fd);
}

static int set_size(struct call *c, int fd)
{
    struct fd_name n;
    cleanup_close int own = -1;
    struct handle *h = c->fi ? handle_get(c->fs, c->fi->fh) : NULL;
    int wfd = h ? file_handle_fd(h) : -1;
    if (wfd < 0)
        wfd = own = openat(c->fs->proc_fd_dir, fd_name(&n, fd), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (wfd < 0)
        return -errno;
    return ftruncate(wfd, c->attr.st_size) < 0 ? -errno : 0;
}

static int set_times(struct call *c, int fd)
{
    struct fd_name n;
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    if (c->to_set & FUSE_SET_ATTR_ATIME_NOW)
        t[0].tv_nsec = UTIME_NOW;
    else if (c->to_set & FUSE_SET_ATTR_ATIME)
        t[0] = c->attr.st_atim;
    if (c->to_set & FUSE_SET_ATTR_MTIME_NOW)
        t[1].tv_nsec = UTIME_NOW;
    else if (c->to_set & FUSE_SET_ATTR_MTIME)
        t[1] = c->attr.st_mtim;
    return utimensat(c->fs->proc_fd_dir, fd_name(&n, fd), t, 0) < 0 ? -errno : 0;
}

static int apply(struct call *c, int fd)
{
    int r = 0;
    if (c->to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        r = set_ids(c, fd);
    if (r == 0 && (c->to_set & FUSE_SET_ATTR_SIZE))
        r = set_size(c, fd);
    if (r == 0 && (c->to_set & FUSE_SET_ATTR_MODE))
        r = set_mode(c, fd);
    if (r == 0 && (c->to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
                                FUSE_SET_ATTR_MTIME_NOW)))
        r = set_times(c, fd);
    return r;
}

static void run_setattr(struct call *c)
{
    struct fs *fs = c->fs;
    struct hinode *h = call_hinode(c);
    struct hfd f;
    struct statx st;
    struct notices ns = {0};
    note_asked(c);
    int r = hinode_fd_or_handle(fs, h, &f);
    if (r == 0) {
        r = apply(c, f.fd);
        if (r == 0)
            r = host_statx(f.fd, "", &st);
        hfd_put(fs, &f);
    }
    if (r == 0 && hinode_is_dir(h)) {
        hinodes_lock(fs);
        notices_attributes(&ns, hdir_of(h), container_of(c->node, struct dir_node, n));
        hinodes_unlock(fs);
        coherence_deliver(fs, &ns);
    }
    reply_attr(c, r, &st, r == 0 && watch_covers(fs, h, &st));
}

void host_dir_setattr(struct fs *fs, fuse_req_t req, struct node *n, struct stat *attr, int to_set,
                      struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .attr = *attr, .to_set = to_set, .fi = fi,
                     .run = run_setattr};
    call_start(&c);
}

void host_run_statfs(struct call *c)
{
    struct statvfs v;
    struct hfd f;
    int r = hinode_fd_or_handle(c->fs, call_hinode(c), &f);
    if (r == 0) {
        r = fstatvfs(f.fd, &v) < 0 ? -errno : 0;
        hfd_put(c->fs, &f);
    }
    if (r < 0)
        fuse_reply_err(c->req, -r);
    else
        fuse_reply_statfs(c->req, &v);
}

void host_statfs(struct fs *fs, fuse_req_t req, struct node *n)
{
    struct call c = {.fs = fs, .req = req, .node = n, .run = host_run_statfs};
    call_start(&c);
}

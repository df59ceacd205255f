// SPDX-License-Identifier: Apache-2.0
/* From libfuse's calls to those of the node's kind or the open file's, with an errno for what a
 * kind does not do. ENOSYS never reaches the kernel from here: it would end the operation for the
 * whole mount (fuse.md, section 13). */
#include "fs/ops.h"

#include <errno.h>
#include <poll.h>
#include <sys/statvfs.h>

#include "fs/handle.h"
#include "fs/hostdir/hostdir.h"
#include "fs/refused.h"

static struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* ── counting ────────────────────────────────────────────────────────────────────────────── */

#define REQUESTS(X)                                                                                  \
    X(lookup) X(forget) X(getattr) X(setattr) X(readlink) X(mknod) X(mkdir) X(unlink) X(rmdir)       \
    X(symlink) X(rename) X(link) X(open) X(create) X(read) X(write) X(flush) X(release) X(fsync)     \
    X(opendir) X(readdir) X(readdirplus) X(releasedir) X(statfs) X(setxattr) X(getxattr)             \
    X(listxattr) X(removexattr) X(poll) X(fallocate) X(lseek) X(copy) X(getlk) X(setlk) X(flock)

#define REQUEST_ID(op)   REQ_##op,
#define REQUEST_NAME(op) [REQ_##op] = "wsmfs_requests_total{op=\"" #op "\"}",

enum request { REQUESTS(REQUEST_ID) REQUEST_KINDS };
_Static_assert(REQUEST_KINDS <= REQUEST_KINDS_MAX, "struct fs has room for them");

static const char *const request_names[] = { REQUESTS(REQUEST_NAME) };

static void make_counters(struct fs *fs)
{
    for (size_t i = 0; i < REQUEST_KINDS; i++)
        fs->requests[i] = manager_counter(fs->manager, request_names[i]);
}

static void count(fuse_req_t req, enum request kind)
{
    _Atomic uint64_t *n = fs_of(req)->requests[kind];
    if (n)
        atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

/* ── operations ──────────────────────────────────────────────────────────────────────────── */

/* Counts the request and calls ops->op of the node `ino`, or answers with `otherwise`; an unknown
 * node is from another life of the daemon, and the kernel looks its name up again. */
#define NODE_CALL(op, otherwise, ...) NODE_CALL_AS(op, op, otherwise __VA_OPT__(,) __VA_ARGS__)
#define NODE_CALL_AS(kind, op, otherwise, ...) do {                \
        struct fs *fs = fs_of(req);                                \
        struct node *n = nodes_get(&fs->nodes, ino);               \
        count(req, REQ_##kind);                                    \
        if (!n)                                                    \
            fuse_reply_err(req, ESTALE);                           \
        else if (!n->ops->op)                                      \
            { otherwise; }                                           \
        else                                                       \
            n->ops->op(fs, req, n __VA_OPT__(,) __VA_ARGS__);      \
    } while (0)

#define HANDLE_CALL(op, otherwise, ...) do {                       \
        struct fs *fs = fs_of(req);                                \
        struct handle *h = handle_get(fs, fi->fh);                 \
        (void)ino;                                                 \
        count(req, REQ_##op);                                      \
        if (!h)                                                    \
            fuse_reply_err(req, EBADF);                            \
        else if (!h->ops->op)                                      \
            { otherwise; }                                           \
        else                                                       \
            h->ops->op(fs, req, h __VA_OPT__(,) __VA_ARGS__);      \
    } while (0)

#define ERR(e) fuse_reply_err(req, e)

static void op_lookup(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    NODE_CALL(lookup, ERR(ENOTDIR), name);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    count(req, REQ_forget);
    nodes_forget(fs_of(req), ino, n);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t n_forgets, struct fuse_forget_data *list)
{
    count(req, REQ_forget);
    for (size_t i = 0; i < n_forgets; i++)
        nodes_forget(fs_of(req), list[i].ino, list[i].nlookup);
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    NODE_CALL(getattr, ERR(EIO), fi);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    NODE_CALL(setattr, ERR(EPERM), attr, to_set, fi);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    NODE_CALL(readlink, ERR(EINVAL));
}

static void op_mknod(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode, dev_t rdev)
{
    NODE_CALL(mknod, ERR(EPERM), name, mode, rdev);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode)
{
    if (refused_has(fs_of(req)->refused, fuse_req_ctx(req)->pid, ino, name)) {
        count(req, REQ_mkdir);
        ERR(EPERM);
    } else {
        NODE_CALL(mkdir, ERR(EPERM), name, mode);
    }
}

static void op_unlink(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    NODE_CALL(unlink, ERR(EPERM), name);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    NODE_CALL(rmdir, ERR(EPERM), name);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t ino, const char *name)
{
    NODE_CALL(symlink, ERR(EPERM), target, name);
}

static void refuse_rename(fuse_req_t req, fuse_ino_t to, const char *new_name)
{
    refused_add(fs_of(req)->refused, fuse_req_ctx(req)->pid, to, new_name);
    ERR(EPERM);
}

/* The upper three levels and control directories do not move, nor does anything move there; never
 * EXDEV, which would make mv copy a session and delete the files of all the agent's sessions. */
static void op_rename(fuse_req_t req, fuse_ino_t ino, const char *name, fuse_ino_t to_ino, const char *new_name,
                      unsigned flags)
{
    struct node *to = nodes_get(&fs_of(req)->nodes, to_ino);
    struct node *from = nodes_get(&fs_of(req)->nodes, ino);
    bool across = to && from && (to->kind == NODE_JOB) != (from->kind == NODE_JOB);
    if (!to || !to->ops->rename || across)
        count(req, REQ_rename);
    if (!to)
        ERR(ESTALE);
    else if (across && to->ops->rename && from->ops->rename)
        ERR(EXDEV); /* a file into a job's directory or out of it is copied; directories cannot be made there */
    else if (!to->ops->rename)
        refuse_rename(req, to_ino, new_name);
    else
        NODE_CALL(rename, refuse_rename(req, to_ino, new_name), name, to, new_name, flags);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t to_ino, const char *name)
{
    struct node *to = nodes_get(&fs_of(req)->nodes, to_ino);
    if (!to || !to->ops->link)
        count(req, REQ_link);
    if (!to)
        ERR(ESTALE);
    else if (!to->ops->link)
        ERR(EPERM);
    else
        NODE_CALL(link, ERR(EPERM), to, name);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    NODE_CALL(open, ERR(EACCES), fi);
}

static void op_create(fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    NODE_CALL(create, ERR(EPERM), name, mode, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    HANDLE_CALL(read, ERR(EBADF), size, off, fi);
}

static void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t off,
                         struct fuse_file_info *fi)
{
    HANDLE_CALL(write, ERR(EBADF), in, off, fi);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    HANDLE_CALL(flush, ERR(0), fi);
}

/* drop() alone is what most kinds need. */
static void release_handle(fuse_req_t req, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct handle *h = handle_get(fs, fi->fh);
    if (h && h->ops->release) {
        h->ops->release(fs, req, h, fi);
        return;
    }
    if (h)
        h->ops->drop(fs, h);
    ERR(0);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    count(req, REQ_release);
    release_handle(req, fi);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    count(req, REQ_releasedir);
    release_handle(req, fi);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    HANDLE_CALL(fsync, ERR(0), datasync);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    NODE_CALL(opendir, ERR(ENOTDIR), fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    NODE_CALL(readdir, ERR(ENOTDIR), size, off, fi, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    NODE_CALL_AS(readdirplus, readdir, ERR(ENOTDIR), size, off, fi, true);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs v;
    NODE_CALL(statfs, {
        if (statvfs(fs->config->basedir, &v) < 0)
            ERR(errno);
        else
            fuse_reply_statfs(req, &v);
    });
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
    NODE_CALL(setxattr, ERR(EOPNOTSUPP), name, value, size, flags);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    NODE_CALL(getxattr, ERR(ENODATA), name, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    NODE_CALL(listxattr, {
        if (size)
            fuse_reply_buf(req, NULL, 0);
        else
            fuse_reply_xattr(req, 0);
    }, size);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    NODE_CALL(removexattr, ERR(ENODATA), name);
}

static void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
    HANDLE_CALL(poll, {
        if (ph)
            fuse_pollhandle_destroy(ph);
        fuse_reply_poll(req, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM);
    }, fi, ph);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
    HANDLE_CALL(fallocate, ERR(EOPNOTSUPP), mode, off, len);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    HANDLE_CALL(lseek, ERR(EINVAL), off, whence);
}

static void op_copy(fuse_req_t req, fuse_ino_t ino, off_t off_in, struct fuse_file_info *fi, fuse_ino_t ino_out,
                    off_t off_out, struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct handle *out = handle_get(fs_of(req), fi_out->fh);
    (void)ino_out;
    if (!out)
        count(req, REQ_copy);
    if (!out)
        ERR(EBADF);
    else
        HANDLE_CALL(copy, ERR(EXDEV), off_in, out, off_out, len, flags);
}

static void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lk)
{
    HANDLE_CALL(getlk, ERR(EINVAL), fi, lk);
}

static void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lk, int sleep)
{
    HANDLE_CALL(setlk, ERR(EINVAL), fi, lk, sleep);
}

static void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    HANDLE_CALL(flock, ERR(EINVAL), fi, op);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    make_counters(userdata);
    fs_init_connection(userdata, conn);
}

const struct fuse_lowlevel_ops fs_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .create = op_create,
    .read = op_read,
    .write_buf = op_write_buf,
    .flush = op_flush,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsync,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .poll = op_poll,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
    .copy_file_range = op_copy,
    .getlk = op_getlk,
    .setlk = op_setlk,
    .flock = op_flock,
};

// SPDX-License-Identifier: Apache-2.0
/* Files of a workspace: open ones and their data. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/uio.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/change.h"
#include "fs/hostdir/file.h"
#include "fs/hostdir/lock.h"
#include "fs/loop.h"
#include "fs/tree/tree.h"

/* ── handles ─────────────────────────────────────────────────────────────────────────────── */

static struct open_file *of(struct handle *h)
{
    return container_of(h, struct open_file, h);
}

int file_handle_fd(struct handle *h)
{
    return h->ops == &file_handle_ops ? of(h)->fd : -1;
}

/* What the backing descriptor may be opened with: the kernel has dealt with the rest. */
static int backing_flags(int flags)
{
    return (flags & (O_ACCMODE | O_APPEND | O_TRUNC | O_SYNC | O_DSYNC | O_NOATIME)) | O_NONBLOCK | O_CLOEXEC;
}

/* A description of a regular file for reading or writing, from its O_PATH descriptor: nothing that
 * was put in its place meanwhile (a FIFO, a device) can be opened by this. */
static int reopen(struct fs *fs, int path_fd, int flags)
{
    char name[12];
    snprintf(name, sizeof name, "%d", path_fd);
    int fd = openat(fs->proc_fd_dir, name, backing_flags(flags));
    return fd < 0 ? -errno : fd;
}

/* Takes over fd, also on failure. The file's node is referenced by the request. */
static int make_handle(struct call *c, struct hfile *hi, int fd, struct open_file **out)
{
    struct fs *fs = c->fs;
    struct open_file *fh = calloc(1, sizeof *fh);
    int r = fh ? handle_add(fs, &fh->h, c->fi) : -ENOMEM;
    if (r < 0) {
        close(fd);
        free(fh);
        return r;
    }
    fh->h.ops = &file_handle_ops;
    fh->fd = fd;
    fh->hi = hi;
    fh->ws = c->ws;
    workspace_ref(c->ws);
    workspace_file_opened(c->ws);
    hinodes_lock(fs);
    hinode_ref(&hi->h);
    fh->next = hi->handles;
    hi->handles = &fh->h;
    hinodes_unlock(fs);
    file_choose_mode(c, fh);
    *out = fh;
    return 0;
}

static void unlink_handle(struct open_file *fh)
{
    struct handle **p = &fh->hi->handles;
    while (*p != &fh->h)
        p = &of(*p)->next;
    *p = fh->next;
}

static void drop_file_handle(struct fs *fs, struct handle *h)
{
    struct open_file *fh = of(h);
    handle_remove(fs, h);
    lock_release(fs, fh);
    file_leave_mode(fs, fh);
    hinodes_lock(fs);
    unlink_handle(fh);
    hinode_unref(fs, &fh->hi->h);
    hinodes_unlock(fs);
    close(fh->fd);
    workspace_file_closed(fh->ws);
    workspace_unref(fh->ws);
    free(fh);
}

/* ── open and create ─────────────────────────────────────────────────────────────────────── */

static int open_hinode(struct call *c, struct hfile *hi, struct open_file **out)
{
    struct hfd f;
    int r = hinode_fd(c->fs, &hi->h, &f);
    if (r < 0)
        return r;
    r = reopen(c->fs, f.fd, c->fi->flags);
    hfd_put(c->fs, &f);
    return r < 0 ? r : make_handle(c, hi, r, out);
}

static void run_open(struct call *c)
{
    struct hfile *hi = node_file(c->node);
    struct open_file *fh = NULL;
    int r = S_ISREG(hi->h.type) ? open_hinode(c, hi, &fh) : -ENXIO;
    if (r < 0)
        fuse_reply_err(c->req, -r);
    else if (fuse_reply_open(c->req, c->fi) == -ENOENT)
        drop_file_handle(c->fs, &fh->h);
}

void host_file_open(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .fi = fi, .run = run_open};
    call_start(&c);
}

/* Makes the file, or finds that it is there already: then it is opened like any other. */
static int create_fd(struct call *c, int dir_fd)
{
    struct creds saved;
    creds_assume(c->fs, c->req, c->hd, dir_fd, &c->mode, &saved);
    int flags = (backing_flags(c->fi->flags) & ~O_TRUNC) | O_CREAT | O_EXCL | O_NOFOLLOW, r;
    unsigned waited_ms = 0;
    do {
        int fd = openat(dir_fd, c->name, flags, c->mode);
        r = fd < 0 ? -errno : fd;
    } while (hinodes_room_to_come(c->fs, r, &waited_ms));
    creds_restore(&saved);
    if (r != -EEXIST || (c->fi->flags & O_EXCL))
        return r;
    cleanup_close int path_fd = openat(dir_fd, c->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (path_fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    if (fstat(path_fd, &st) == 0 && !S_ISREG(st.st_mode))
        return -ESTALE; /* the kernel's idea of the name was old: it looks again */
    return reopen(c->fs, path_fd, c->fi->flags);
}

/* The node of what was opened, whatever the name leads to by now: the data go where the node says. */
static int created(struct change *ch, int fd)
{
    struct call *c = ch->c;
    struct open_file *fh;
    int r = change_made(ch, fd);
    if (r < 0) {
        close(fd);
        return r;
    }
    struct node *n = ch->answer.node;
    r = n->kind == NODE_FILE ? make_handle(c, node_file(n), fd, &fh) : -ESTALE;
    if (r < 0) {
        if (n->kind != NODE_FILE)
            close(fd);
        nodes_put(c->fs, n);
        return r;
    }
    ch->answer.kind = ANSWER_CREATE;
    if (fh->passthrough && ch->answer.entry.attr_timeout > HOST_TIMEOUT_S)
        ch->answer.entry.attr_timeout = HOST_TIMEOUT_S; /* see taint() */
    ch->answer.fi = *c->fi;
    ch->answer.handle = &fh->h;
    return 0;
}

static void run_create(struct call *c)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct change ch;
    int r = change_begin(&ch, c, d, NULL);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    ch.side[0].name = c->name;
    r = create_fd(c, ch.side[0].fd.fd);
    if (r >= 0)
        r = created(&ch, r);
    change_end(&ch, r);
}

void host_dir_create(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode,
                     struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .mode = mode, .fi = fi, .run = run_create};
    call_start(&c);
}

/* ── data ────────────────────────────────────────────────────────────────────────────────── */

/* Reads until `size` or the end; from the page cache first, so that only what waits for the disk takes another
 * reader of requests. Bytes or -errno. */
static ssize_t read_all(struct fs *fs, int fd, char *out, size_t size, off_t off)
{
    size_t got = 0;
    int flags = RWF_NOWAIT;
    while (got < size) {
        struct iovec v = {.iov_base = out + got, .iov_len = size - got};
        ssize_t n = preadv2(fd, &v, 1, off + (off_t)got, flags);
        if (n < 0 && flags) {
            flags = 0; /* not in memory, or a file system that cannot tell */
            readers_expect_wait(fs);
        } else if (n < 0 && errno != EINTR) {
            return got ? (ssize_t)got : -errno;
        } else if (n == 0) {
            break;
        } else if (n > 0) {
            got += (size_t)n;
        }
    }
    return (ssize_t)got;
}

static void read_file(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                      struct fuse_file_info *fi)
{
    cleanup_free char *out = malloc(size);
    ssize_t n = out ? read_all(fs, of(h)->fd, out, size, off) : -ENOMEM;
    (void)fi;
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        fuse_reply_buf(req, out, (size_t)n);
}

static void write_file(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                       struct fuse_file_info *fi)
{
    struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
    (void)fs;
    (void)fi;
    out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK | FUSE_BUF_FD_RETRY;
    out.buf[0].fd = of(h)->fd;
    out.buf[0].pos = off;
    unsigned waited_ms = 0;
    ssize_t n;
    do
        n = fuse_buf_copy(&out, in, 0);
    while (hinodes_room_to_come(fs, (int)n, &waited_ms));
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        fuse_reply_write(req, (size_t)n);
}

/* POSIX locks go; and close(2) of a copy, for file systems that tell of failed writes there. */
static void flush_file(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
    lock_flush(fs, of(h), fi->lock_owner);
    if (!fs->close_may_fail) {
        fuse_reply_err(req, 0);
        return;
    }
    int fd = fcntl(of(h)->fd, F_DUPFD_CLOEXEC, 0);
    int r = fd < 0 ? 0 : close(fd);
    fuse_reply_err(req, r < 0 ? errno : 0);
}

static void release_file(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
    (void)fi;
    drop_file_handle(fs, h);
    fuse_reply_err(req, 0);
}

static void fsync_file(struct fs *fs, fuse_req_t req, struct handle *h, int datasync)
{
    (void)fs;
    int r = datasync ? fdatasync(of(h)->fd) : fsync(of(h)->fd);
    fuse_reply_err(req, r < 0 ? errno : 0);
}

static void fallocate_file(struct fs *fs, fuse_req_t req, struct handle *h, int mode, off_t off, off_t len)
{
    (void)fs;
    int r = fallocate(of(h)->fd, mode, off, len);
    fuse_reply_err(req, r < 0 ? errno : 0);
}

static void lseek_file(struct fs *fs, fuse_req_t req, struct handle *h, off_t off, int whence)
{
    (void)fs;
    off_t r = lseek(of(h)->fd, off, whence);
    if (r < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_lseek(req, r);
}

static void copy_file(struct fs *fs, fuse_req_t req, struct handle *in, off_t off_in, struct handle *out,
                      off_t off_out, size_t len, int flags)
{
    (void)fs;
    if (out->ops != &file_handle_ops) {
        fuse_reply_err(req, EXDEV);
        return;
    }
    ssize_t n = copy_file_range(of(in)->fd, &off_in, of(out)->fd, &off_out, len, (unsigned)flags);
    if (n < 0)
        fuse_reply_err(req, errno == ENOSYS ? EOPNOTSUPP : errno);
    else
        fuse_reply_write(req, (size_t)n);
}

const struct handle_ops file_handle_ops = {
    .read = read_file,
    .write = write_file,
    .flush = flush_file,
    .release = release_file,
    .fsync = fsync_file,
    .fallocate = fallocate_file,
    .lseek = lseek_file,
    .copy = copy_file,
    .getlk = lock_get,
    .setlk = lock_set,
    .flock = lock_flock,
    .drop = drop_file_handle,
};

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

static void detach_file(struct fs *fs, struct node *n)
{
    (void)fs;
    node_file(n)->node = NULL;
}

static void destroy_file(struct fs *fs, struct node *n)
{
    hinodes_lock(fs);
    hinode_unref(fs, &node_file(n)->h);
    hinodes_unlock(fs);
    free(n);
}

const struct node_ops host_file_ops = {
    .getattr = host_getattr,
    .setattr = host_dir_setattr,
    .link = host_link,
    .open = host_file_open,
    .statfs = host_statfs,
    .setxattr = host_setxattr,
    .getxattr = host_getxattr,
    .listxattr = host_listxattr,
    .removexattr = host_removexattr,
    .detach = detach_file,
    .destroy = destroy_file,
};

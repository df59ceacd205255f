// SPDX-License-Identifier: Apache-2.0
/* By which way data goes: in the kernel straight to the backing file, or through the daemon. */
#include <fcntl.h>

#include "fs/backing.h"
#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/file.h"
#include "fs/hostdir/watch.h"

/* Joins the way that the file's open handles go; false when none is open. Lock held. */
static bool join(struct open_file *fh)
{
    struct hfile *hi = fh->hi;
    if (hi->opens_passthrough) {
        hi->opens_passthrough++;
        fh->passthrough = true;
        return true;
    }
    if (hi->opens_cached) {
        hi->opens_cached++;
        return true;
    }
    return false;
}

static void first(struct open_file *fh, int backing_id)
{
    if (backing_id > 0) {
        fh->hi->backing_id = backing_id;
        fh->hi->opens_passthrough = 1;
        fh->passthrough = true;
    } else {
        fh->hi->opens_cached = 1;
    }
}

/* What is written through a mapping changes the attributes without our knowledge, from now until
 * the last mapping is gone: those that the kernel has are not to be believed for long. */
static void taint(struct fs *fs, struct hfile *hi, bool is_new)
{
    struct notices ns = {0};
    hinodes_lock(fs);
    if (!hi->tainted && hi->node && !is_new)
        notices_inode(&ns, hi->node->id, true);
    hi->tainted = true;
    hinodes_unlock(fs);
    coherence_deliver(fs, &ns);
}

/* The kernel may keep what it has read over opens as long as a change would be told. */
static bool would_be_told(struct fs *fs, struct open_file *fh)
{
    struct statx st;
    return host_statx(fh->fd, "", &st) == 0 && watch_covers(fs, &fh->hi->h, &st);
}

/* Past the kernel's cache: this handle appends, or another does. */
static bool is_appended(struct fs *fs, struct open_file *fh, int flags)
{
    hinodes_lock(fs);
    fh->hi->appended |= (flags & O_APPEND) != 0;
    bool appended = (flags & O_APPEND) || (fh->hi->appended && fs->direct_mmap);
    hinodes_unlock(fs);
    return appended;
}

void file_choose_mode(struct call *c, struct open_file *fh)
{
    struct fs *fs = c->fs;
    hinodes_lock(fs);
    bool joined = join(fh);
    hinodes_unlock(fs);
    int id = !joined && fs->passthrough ? fuse_passthrough_open(c->req, fh->fd) : 0;
    if (!joined) {
        hinodes_lock(fs);
        joined = join(fh); /* somebody was faster */
        if (!joined)
            first(fh, id);
        hinodes_unlock(fs);
        if (joined && id > 0)
            fuse_passthrough_close(c->req, id);
    }
    /* FLUSH is what releases POSIX locks; what a reader holds goes with its handle */
    if ((c->fi->flags & O_ACCMODE) == O_RDONLY)
        c->fi->noflush = 1;
    if (fh->passthrough)
        c->fi->backing_id = fh->hi->backing_id;
    if (fh->passthrough && (c->fi->flags & O_ACCMODE) != O_RDONLY)
        taint(fs, fh->hi, c->node->kind != NODE_FILE);
    if (!fh->passthrough && (is_appended(fs, fh, c->fi->flags) || (c->fi->flags & O_DIRECT)))
        c->fi->direct_io = 1; /* only the backing file knows where its end is */
    if (!fh->passthrough && !c->fi->direct_io)
        c->fi->keep_cache = would_be_told(fs, fh);
}

void file_leave_mode(struct fs *fs, struct open_file *fh)
{
    struct hfile *hi = fh->hi;
    int id = 0;
    hinodes_lock(fs);
    if (!fh->passthrough) {
        hi->appended = --hi->opens_cached && hi->appended;
    } else if (--hi->opens_passthrough == 0) {
        id = hi->backing_id;
        hi->backing_id = 0;
    }
    hinodes_unlock(fs);
    if (id > 0) /* not through libfuse, which wants a request: a handle may go without one */
        (void)ioctl(fuse_session_fd(fs->session), BACKING_CLOSE, &id);
}

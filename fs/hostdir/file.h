// SPDX-License-Identifier: Apache-2.0
/* Open files, and by which way their data goes. */
#ifndef WSMFS_FS_HOSTDIR_FILE_H
#define WSMFS_FS_HOSTDIR_FILE_H

#include "fs/hostdir/hostdir.h"

struct open_file {
    struct handle     h;
    struct hfile     *hi;   /* referenced */
    struct workspace *ws;   /* referenced, and counted as an open file */
    struct handle    *next; /* of the same file; nodes.lock */
    int               fd;
    bool              passthrough;
};

extern const struct handle_ops file_handle_ops;

/* passthrough.c: chooses the way of an open and sets c->fi accordingly. All handles of a file that
 * are open at the same time go the same way, else the kernel answers EIO (fuse.md, section 8). */
void file_choose_mode(struct call *c, struct open_file *fh);
void file_leave_mode(struct fs *fs, struct open_file *fh);

void host_file_open(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);

#endif

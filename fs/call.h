// SPDX-License-Identifier: Apache-2.0
/* A request that needs its workspace: runs at once when that is ready, else is parked and runs when
 * it has become so, or ends with an errno, or with EINTR when its caller is interrupted. */
#ifndef WSMFS_FS_CALL_H
#define WSMFS_FS_CALL_H

#include <stdatomic.h>

#include "fs/fs_internal.h"

struct hostdir;

/* Arguments and state. Made on the stack of the handler with pointers into libfuse's buffers; copied
 * when it is parked. */
struct call {
    struct fs   *fs;
    fuse_req_t   req;
    struct node *node, *other;
    const char  *name, *name2;
    const char  *data;
    size_t       size;
    mode_t       mode;
    dev_t        rdev;
    unsigned     flags;
    int          to_set;
    struct stat  attr;
    struct fuse_file_info *fi;

    /* Answers the request, or sets `again`: to be entered and run once more. The workspace is entered until
     * it returns. */
    void       (*run)(struct call *c);
    bool         again;
    unsigned     repeats; /* how often that has happened */

    struct workspace *ws;  /* entered */
    struct hostdir   *hd;  /* its files, referenced until run returns */
    void            (*leave)(struct workspace *ws); /* NULL once that is done */
};

/* Enters the workspace of c->node (a directory, file or link of a workspace, or a session's
 * directory) and runs c, now or later. Takes nothing of c's memory after it returns. */
void call_start(struct call *c);

/* Leaves the workspace before run returns: what follows waits for the kernel, and a close of the
 * workspace must not wait for that. */
void call_leave(struct call *c);

/* For attributes of a session's directory: runs c at once when the workspace is ready, without
 * counting as use; false (nothing answered) when it is not. */
bool call_start_peek(struct call *c);

#endif

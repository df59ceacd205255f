// SPDX-License-Identifier: Apache-2.0
/* A request that is held while the manager works, and whose caller may be interrupted meanwhile. */
#ifndef WSMFS_FS_WAIT_H
#define WSMFS_FS_WAIT_H

#include <stdatomic.h>

#include "fs/fs_internal.h"

/* Lives inside something on the heap. One reference belongs to whoever answers the request, one to
 * an interruption that has been queued, one to each function that still looks at it. */
struct wait {
    struct fs    *fs;
    fuse_req_t    req;
    struct waiter waiter;
    struct task   interruption;
    atomic_uint   refs;
    atomic_bool   interrupted;
    /* The manager's wake(): goes on, or answers with `status` (wait_answer first). A pool thread. */
    void        (*woken)(struct wait *w, int status);
    void        (*free)(struct wait *w);
};

/* Sets it up with two references, the answer's and the caller's, and listens to interruptions. */
void wait_begin(struct wait *w, struct fs *fs, fuse_req_t req, void (*woken)(struct wait *, int),
                void (*free)(struct wait *));

/* After w->waiter was queued (MANAGER_WAIT): sees to an interruption that came before that. */
void wait_queued(struct wait *w);

/* Before the answer is sent: nobody else will answer. */
void wait_answer(struct wait *w);

void wait_put(struct wait *w);

#endif

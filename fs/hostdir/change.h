// SPDX-License-Identifier: Apache-2.0
/* The frame in which names change: one change a directory at a time, all sessions told. */
#ifndef WSMFS_FS_HOSTDIR_CHANGE_H
#define WSMFS_FS_HOSTDIR_CHANGE_H

#include "fs/hostdir/coherence.h"
#include "fs/hostdir/creds.h"
#include "fs/hostdir/hostdir.h"

/* One directory that changes. */
struct side {
    struct dir_node *via;   /* the session's view through which the request came */
    struct hdir     *dir;
    struct hfd       fd;
    const char      *name;
    struct statx     st;    /* what the name led to before */
    struct hinode   *h;     /* that, when it is known; referenced */
    struct hfd       held;  /* with it: by this it is reached while its name changes */
};

struct change {
    struct call   *c;
    struct fs     *fs;
    struct side    side[2];
    struct answer  answer;
    struct notices notices;
};

/* Opens and locks the directories (d2 may be NULL). On failure nothing is held. */
int change_begin(struct change *ch, struct call *c, struct dir_node *d1, struct dir_node *d2);

/* What was just made at side 0 becomes the answer's entry: what `fd` is, or with -1 what the name leads to.
 * 0 or -errno, -ESTALE when it has gone already. */
int change_made(struct change *ch, int fd);

/* Unlocks, tells the other sessions when r is 0, and answers: with r when it is negative. */
void change_end(struct change *ch, int r);

#endif

// SPDX-License-Identifier: Apache-2.0
/* The answer to a request whose sending may be somebody else's business (a deadline, a pool). */
#ifndef WSMFS_FS_ANSWER_H
#define WSMFS_FS_ANSWER_H

#include <stdatomic.h>

#include "fs/handle.h"

enum answer_kind { ANSWER_ERR, ANSWER_ENTRY, ANSWER_CREATE };

struct answer {
    struct fs  *fs;
    fuse_req_t  req;
    enum answer_kind kind;
    int         err;                 /* ANSWER_ERR: 0 or a negative errno */
    struct node *node;               /* ENTRY, CREATE: whose reference goes back when not taken */
    struct fuse_entry_param entry;
    struct fuse_file_info   fi;      /* CREATE */
    struct handle          *handle;  /* CREATE */
    atomic_flag             sent;
};

/* Sends it unless that has been done. True for the one who did. Gives the reference and the handle
 * back when the caller is gone. */
bool answer_send(struct answer *a);

#endif

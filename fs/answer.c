// SPDX-License-Identifier: Apache-2.0
#include "fs/answer.h"

#include <errno.h>

bool answer_send(struct answer *a)
{
    struct fs *fs = a->fs;
    struct node *node = a->node;
    struct handle *handle = a->handle;
    int r = 0;
    if (atomic_flag_test_and_set(&a->sent))
        return false;
    switch (a->kind) {
    case ANSWER_ERR:
        fuse_reply_err(a->req, -a->err);
        return true;
    case ANSWER_ENTRY:
        r = fuse_reply_entry(a->req, &a->entry);
        break;
    case ANSWER_CREATE:
        r = fuse_reply_create(a->req, &a->entry, &a->fi);
        break;
    }
    if (r == -ENOENT) {
        if (handle)
            handle->ops->drop(fs, handle);
        nodes_put(fs, node);
    }
    return true;
}

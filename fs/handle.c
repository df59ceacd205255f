// SPDX-License-Identifier: Apache-2.0
#include "fs/handle.h"

#include <errno.h>

int handle_add(struct fs *fs, struct handle *h, struct fuse_file_info *fi)
{
    h->id = idtable_add(fs->handles, h);
    if (!h->id)
        return -ENOMEM;
    fi->fh = h->id;
    return 0;
}

void handle_remove(struct fs *fs, struct handle *h)
{
    idtable_remove(fs->handles, h->id);
}

struct handle *handle_get(struct fs *fs, uint64_t fh)
{
    return idtable_get(fs->handles, fh);
}

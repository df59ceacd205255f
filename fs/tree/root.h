// SPDX-License-Identifier: Apache-2.0
/* `.wsm/root`: what a sandbox has as its root file system. */
#ifndef WSMFS_FS_TREE_ROOT_H
#define WSMFS_FS_TREE_ROOT_H

#include "fs/tree/tree.h"

extern const struct node_ops root_ops;

/* The node of an absolute path inside, counted once for the kernel. `side` tells the two control
 * directories of a session apart. -ENOENT where nothing is shown. */
int root_entry(struct fs *fs, struct place *session, const void *side, const char *inside, struct fuse_entry_param *e);

#endif

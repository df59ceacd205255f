// SPDX-License-Identifier: Apache-2.0
/* `.wsm/root`: what a sandbox has as its root file system. */
#ifndef WSMFS_FS_TREE_ROOT_H
#define WSMFS_FS_TREE_ROOT_H

#include "fs/tree/tree.h"

extern const struct node_ops root_ops;

/* The node of an absolute path inside, counted once for the kernel. `side` tells the two control
 * directories of a session apart. -ENOENT where nothing is shown. */
int root_entry(struct fs *fs, struct place *session, const void *side, const char *inside, struct fuse_entry_param *e);

/* What a link at `inside` with a `..` in its text leads to, judged by the text, relative to the
 * link's directory, which lies `depth` components below the root. `out` has PATH_MAX bytes. */
int root_resolve(const char *inside, const char *text, int depth, char *out);

#endif

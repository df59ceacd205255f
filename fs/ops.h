// SPDX-License-Identifier: Apache-2.0
#ifndef WSMFS_FS_OPS_H
#define WSMFS_FS_OPS_H

#include "fs/fs_internal.h"

/* The table that libfuse calls; userdata is the struct fs. */
extern const struct fuse_lowlevel_ops fs_ops;

#endif

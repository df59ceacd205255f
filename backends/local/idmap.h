// SPDX-License-Identifier: Apache-2.0
/* Mounts that show files under other owners: mount_setattr(2), MOUNT_ATTR_IDMAP. Linux 5.12; the
 * file system below must support it (ext4, xfs, btrfs, from 6.3 also tmpfs; not NFS, nor overlayfs
 * of most kernels). Needs CAP_SYS_ADMIN. */
#ifndef WSMFS_LOCAL_IDMAP_H
#define WSMFS_LOCAL_IDMAP_H

#include <stdint.h>

#include "fs/base/err.h"

/* Makes a detached mount of the directory or file at `fd` (O_PATH does), without what is mounted
 * below it, under whose names every user and group N of the disk is N + `first_id` to the kernel, so
 * that a process with user id `first_id` reads and makes files of the disk's uid 0. Returns the
 * mount's descriptor (for move_mount(2)), which the caller owns; the mount is gone when it is closed
 * unattached. -errno with a sentence; -EOPNOTSUPP where the file system cannot. Forks once. Any
 * thread. */
int idmap_mount(int fd, uint32_t first_id, struct err *e);

#endif

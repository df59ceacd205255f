// SPDX-License-Identifier: Apache-2.0
/* The kernel's interface to backing files (passthrough), which older headers lack.
 * Source: Linux, include/uapi/linux/fuse.h, 6.9. */
#ifndef WSMFS_FS_BACKING_H
#define WSMFS_FS_BACKING_H

#include <stdint.h>
#include <sys/ioctl.h>

struct backing_map {
    int32_t  fd;
    uint32_t flags;
    uint64_t padding;
};

/* Registers map->fd on a /dev/fuse descriptor; the id, above 0. */
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
/* Gives an id back. */
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

#endif

// SPDX-License-Identifier: Apache-2.0
/* What lies at the place of the mount before we mount. */
#ifndef WSMFS_MOUNTPOINT_H
#define WSMFS_MOUNTPOINT_H

#include <stdbool.h>

#include "fs/base/err.h"
#include "fs/config/config.h"

/* One line of /proc/self/mountinfo (proc_pid_mountinfo(5)). */
struct mount_info {
    char *where;  /* the mount point */
    char *type;   /* "fuse.wsmfs" */
    char *source; /* as shown by mount(8) */
};
void mount_info_free(struct mount_info *m);

/* The topmost mount exactly at `path`, or with `covering` the one that `path` lies on. False when
 * there is none. */
bool mount_info_find(const char *path, bool covering, struct mount_info *out);

/* Makes c->mountpoint the one name that the kernel uses for the place, and looks at it: it must be
 * a directory, no live mount of ours, and neither hold nor lie in the base directory, the state
 * directory or the config file. A dead mount of ours at the place is accepted, and with `replace`
 * detached, also several upon each other. Before there are threads. */
int mountpoint_prepare(struct config *c, bool replace, struct err *e);

/* Takes the mount away, also where it is in use: lazily. Asks nothing of its daemon as root; as a user that
 * daemon's connection must have ended. Any thread. 0 or -errno. */
int mountpoint_detach(const char *path);

#endif

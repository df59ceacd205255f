// SPDX-License-Identifier: Apache-2.0
/* Workspaces in plain directories of this host. */
#ifndef WSMFS_BACKENDS_LOCAL_H
#define WSMFS_BACKENDS_LOCAL_H

#include "backends/backend.h"

extern const struct backend local_backend;

/* Moves a directory (path below `base_fd`, the last component by name alone) into a place of its own
 * below `trash_fd` and removes it there: by descriptors, following no link and entering no mount.
 * Missing: 0. Tells its progress every thousand files. -errno with a sentence; what could not be
 * removed stays in the trash, where trash_empty() tries again. */
int trash_remove(int base_fd, const char *path, int trash_fd, struct backend_progress *p, struct err *e);

/* Removes what an interrupted removal has left. */
int trash_empty(int trash_fd, struct backend_progress *p, struct err *e);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Workspaces in plain directories of this host. */
#ifndef WSMFS_BACKENDS_LOCAL_H
#define WSMFS_BACKENDS_LOCAL_H

#include "backends/backend.h"
#include "backends/local/shown.h"

extern const struct backend local_backend;

/* Moves a directory (path below `base_fd`, the last component by name alone) into a place of its own
 * below `trash_fd` and removes it there: by descriptors, following no link and entering no mount.
 * Missing: 0. Tells its progress every thousand files. -errno with a sentence; what could not be
 * removed stays in the trash, where trash_empty() tries again. */
int trash_remove(int base_fd, const char *path, int trash_fd, struct backend_progress *p, struct err *e);

/* Removes what an interrupted removal has left. */
int trash_empty(int trash_fd, struct backend_progress *p, struct err *e);

/* root.c: the callbacks root_look and root_children, over the sandbox's own table. */
void local_root_look(const struct shown *s, const char *inside, struct backend_root_place *out);
void local_root_children(const struct shown *s, const char *inside, void (*each)(const char *name, void *arg),
                         void *arg);

#endif

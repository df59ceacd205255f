// SPDX-License-Identifier: Apache-2.0
/* Workspaces in plain directories of this host. */
#ifndef WSMFS_BACKENDS_LOCAL_H
#define WSMFS_BACKENDS_LOCAL_H

#include "backends/backend.h"
#include "backends/local/shown.h"

extern const struct backend local_backend;

/* root.c: the callbacks root_look and root_children, over the sandbox's own table. */
void local_root_look(const struct shown *s, const char *inside, struct backend_root_place *out);
void local_root_children(const struct shown *s, const char *inside, void (*each)(const char *name, void *arg),
                         void *arg);

#endif

// SPDX-License-Identifier: Apache-2.0
/* What places have to do with the base directory and the configuration. */
#ifndef WSMFS_MANAGER_PLACE_DISK_H
#define WSMFS_MANAGER_PLACE_DISK_H

#include <stdbool.h>

#include "fs/manager/internal.h"

/* True when the layout has a directory for `name` below `parent` and it is there. */
bool place_on_disk(struct place *parent, const char *name);

/* Removes the directory of a forgotten user or agent when it is empty and no workspace's root. */
void place_remove_empty(struct place *parent, const char *name);

/* Says that a place was forgotten. No lock may be held. */
void place_forgotten(struct place *p);

/* An operation of the registry about a place, with a reference; NULL when out of memory. */
struct registry_op *place_op(struct place *p, enum registry_kind kind);

#endif

// SPDX-License-Identifier: Apache-2.0
/* 64-bit ids for objects: a slot and the number of its uses. An id that has been given back is never
 * valid again, and one from an earlier life of the daemon is found to be unknown instead of meaning
 * something else, so a daemon could one day take over a live mount and answer old ids with ESTALE. */
#ifndef WSMFS_FS_IDTABLE_H
#define WSMFS_FS_IDTABLE_H

#include <stdint.h>

struct idtable;

struct idtable *idtable_create(void);
void idtable_destroy(struct idtable *t);

/* Gives `object` an id, never 0 or 1; 0 when out of memory. Any thread. */
uint64_t idtable_add(struct idtable *t, void *object);
/* The object of an id, or NULL. Any thread, takes no lock. */
void *idtable_get(struct idtable *t, uint64_t id);
/* Gives the id back. Any thread. */
void idtable_remove(struct idtable *t, uint64_t id);

/* Calls fn for every object; fn may remove it. Nobody else may use the table meanwhile. */
void idtable_each(struct idtable *t, void (*fn)(void *object, void *arg), void *arg);

#endif

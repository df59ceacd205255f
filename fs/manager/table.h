// SPDX-License-Identifier: Apache-2.0
/* A hash table of strings whose links lie inside the elements. Not locked: its owner's lock guards
 * it. An empty one costs no memory of its own. */
#ifndef WSMFS_MANAGER_TABLE_H
#define WSMFS_MANAGER_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table_link {
    struct table_link *next;
    uint64_t           hash;
};

/* All zero is a valid empty table. */
struct table {
    struct table_link **slots;
    size_t              n_slots; /* a power of two, or 0 */
    size_t              used;
};

/* Makes room for one more element, so that the next table_add cannot fail. -ENOMEM. */
int table_reserve(struct table *t);

/* Adds `l` under `key`, which is not in the table. After a table_reserve. */
void table_add(struct table *t, struct table_link *l, const char *key);

/* Takes `l` out; it must be in the table. */
void table_remove(struct table *t, struct table_link *l);

/* The element for which `is` holds, or NULL. */
struct table_link *table_find(const struct table *t, const char *key,
                              bool (*is)(const struct table_link *l, const char *key));

/* The element after `l` in no particular order, the first one for NULL; NULL at the end. */
struct table_link *table_next(const struct table *t, const struct table_link *l);

/* Frees the table's own memory, not the elements. */
void table_finish(struct table *t);

#endif

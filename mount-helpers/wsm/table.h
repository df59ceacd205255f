// SPDX-License-Identifier: Apache-2.0
/* Text in columns that are as wide as what stands in them. */
#ifndef WSM_TABLE_H
#define WSM_TABLE_H

#include <stddef.h>

#define TABLE_COLUMNS_MAX 10

struct table {
    size_t  columns;
    char ***rows; /* malloc'ed texts; the first row is the heading */
    size_t  n;
};

/* Adds a row of t->columns texts, which are copied. What a terminal must not get is replaced. */
void table_add(struct table *t, const char *const *texts);

/* Prints it on standard output and frees it. */
void table_print(struct table *t);

/* Writes text with control characters and what is no text replaced by "?"; the columns it takes. */
size_t text_print(const char *text);

#endif

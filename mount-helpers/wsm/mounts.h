// SPDX-License-Identifier: Apache-2.0
/* The wsmfs mounts of this machine that can be reached from here. */
#ifndef WSM_MOUNTS_H
#define WSM_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

struct mount {
    char *point; /* where it is mounted */
    char *root;  /* which part of it is: "/" but for bind mounts */
    char  device[32];
};

struct mounts {
    struct mount *list;
    size_t        n;
};

/* Reads /proc/self/mountinfo. Mounts that another one hides are left out. Says what is wrong and
 * returns -1; else 0, and mounts_free is to be called. */
int  mounts_read(struct mounts *m);
void mounts_free(struct mounts *m);

/* The mount that holds the absolute path; NULL when it lies in none. */
const struct mount *mounts_holding(const struct mounts *m, const char *path);

/* Whether `path` is `dir` or below it; `rest` is then what follows, without a slash in front. */
bool path_below(const char *path, const char *dir, const char **rest);

#endif

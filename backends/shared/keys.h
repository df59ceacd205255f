// SPDX-License-Identifier: Apache-2.0
/* The values of [sandbox] keys that mean the same to every backend. Pure functions, but for the one that
 * reads a file. */
#ifndef WSMFS_BACKENDS_SHARED_KEYS_H
#define WSMFS_BACKENDS_SHARED_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "fs/base/err.h"

/* What is allowed; 0: no limit. */
struct sandbox_limits {
    uint64_t memory_bytes; /* no swap beyond it */
    uint32_t cpus_milli;   /* thousandths of a processor's time */
    uint32_t pids;         /* processes and threads, the guest included */
};

/* Takes one key of [sandbox]: "memory" ("2G"), "cpus" ("1.5"), "pids" ("256"). -ENOENT for another
 * key, without a sentence; -EINVAL with one for a value that makes no sense (below 4 MiB, 0.01
 * processors or 8 processes nothing would run). */
int sandbox_limit_parse(struct sandbox_limits *l, const char *key, const char *value, struct err *e);

/* A list that ends with NULL; all of it is malloc'ed. {0} is an empty one, whose list is NULL. */
struct sandbox_words {
    char **list;
    size_t n;
};

/* Adds the words of a value, which blanks separate. -ENOMEM. */
int sandbox_words_add(struct sandbox_words *w, const char *value, struct err *e);
/* The same, where each is to be K=V; else -EINVAL with a sentence. */
int sandbox_env_add(struct sandbox_words *w, const char *value, struct err *e);
/* One a line of a file; empty lines and those with a '#' in front mean nothing. */
int sandbox_env_add_file(struct sandbox_words *w, const char *path, struct err *e);
void sandbox_words_finish(struct sandbox_words *w);

#endif

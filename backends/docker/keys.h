// SPDX-License-Identifier: Apache-2.0
/* What the source, [sandbox] and [backend docker] say. */
#ifndef WSMFS_DOCKER_KEYS_H
#define WSMFS_DOCKER_KEYS_H

#include <stdbool.h>

#include "backends/shared/keys.h"
#include "fs/base/err.h"

struct config_pair;

enum docker_pull { DOCKER_PULL_MISSING, DOCKER_PULL_ALWAYS, DOCKER_PULL_NEVER };

struct docker_keys {
    char *image;     /* NULL: `build` is set */
    enum docker_pull pull;
    char *build;     /* the directory that images are built from; absolute */
    char *build_network; /* of its steps; NULL: that of jobs */
    char *host;      /* NULL: as the docker command finds it */
    char *basedir_on_engine; /* the base directory's path for the engine; NULL: as for us */
    char *network;   /* NULL: none */
    char *user;      /* of jobs; NULL: root of the container, whatever the image says */
    char *runtime;   /* NULL: the engine's default */
    bool  read_only;
    bool  init;      /* the engine's own init is process 1, the guest its child */
    int64_t timeout_ms; /* for one call of the engine */
    struct sandbox_limits limits;
    struct sandbox_words env, binds, mounts, cap_drop, cap_add, security_opt, labels;
};

/* Reads the source ("python:3.12-slim", or "" when `image` or `build` is set) and the pairs; a key that is not known or
 * cannot be honoured is refused by its name. -EINVAL with a sentence. *out is to be finished in any
 * case. */
int docker_keys_read(const char *source, const struct config_pair *pairs, struct docker_keys *out, struct err *e);
void docker_keys_finish(struct docker_keys *k);

/* Says that one of the pairs is refused, and where it stands. Returns `code`. */
int docker_keys_refuse(const struct config_pair *pairs, const char *section, const char *key, int code, const char *why,
                       struct err *e);

/* The ids of jobs as far as the settings tell them: 0 unless `user` is UID or UID:GID. What a name stands for only
 * the image knows. */
void docker_keys_ids(const struct docker_keys *k, uint32_t *uid, uint32_t *gid);

#endif

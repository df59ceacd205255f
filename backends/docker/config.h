// SPDX-License-Identifier: Apache-2.0
/* The files of the docker command: its configuration and contexts
 * ($DOCKER_CONFIG, by default ~/.docker). */
#ifndef WSMFS_DOCKER_CONFIG_H
#define WSMFS_DOCKER_CONFIG_H

#include <json-c/json.h>
#include <stdbool.h>

#include "fs/base/err.h"

/* The directory; malloc'ed, NULL: out of memory. */
char *docker_config_dir(void);

/* What its config.json holds, for the caller to put; NULL: there is none, or it cannot be read. */
struct json_object *docker_config_read(void);

/* The context that `docker context use` set; malloc'ed, NULL: none, which is the default one. */
char *docker_current_context(void);

struct docker_context {
    char *host;
    char *tls_dir;     /* NULL: it has no certificates */
    bool  skip_verify;
};
/* -EINVAL with a sentence, e.g. when there is no such context. *out is to be finished in any case. */
int docker_context_read(const char *name, struct docker_context *out, struct err *e);
void docker_context_finish(struct docker_context *c);

#endif

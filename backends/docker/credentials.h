// SPDX-License-Identifier: Apache-2.0
/* What the docker command's configuration knows of registries' credentials: `auths` (where `docker login` puts
 * them), `credHelpers` and `credsStore` (programs that keep them). */
#ifndef WSMFS_DOCKER_CREDENTIALS_H
#define WSMFS_DOCKER_CREDENTIALS_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/base/err.h"

/* What an image's registry wants to see, as the header "X-Registry-Auth: …"; *out NULL: nothing is known, so
 * anonymous. malloc'ed. A helper that fails is no error, as for the docker command: *trouble says what it said,
 * for the case that the registry refuses us. Blocks on helpers, half a minute at most and until `cancelled` (NULL:
 * never), which is asked several times a second. Any thread. -ECANCELED, -ENOMEM with a sentence. */
int credentials_header(const char *image, bool (*cancelled)(void *arg), void *arg, char **out, struct err *trouble,
                       struct err *e);

/* The same of all registries that the configuration names, as the header "X-Registry-Config: …", for a build, whose
 * base images may come from anywhere. */
int credentials_of_all(bool (*cancelled)(void *arg), void *arg, char **out, struct err *e);

/* Asks `docker-credential-NAME get` about a registry; *out is what it prints, an object with Username and Secret,
 * for the caller to put. The helper's protocol: the README of docker-credential-helpers. It runs in a process group
 * of its own, which is killed when the time is over or `cancelled` says so. -ENOENT: it knows none; -ETIMEDOUT,
 * -ECANCELED, -EACCES (what it said), -EINVAL (a name that no program has), -ENOMEM; with a sentence. */
int credential_helper_ask(const char *helper, const char *registry, int64_t timeout_ms, bool (*cancelled)(void *arg),
                          void *arg, struct json_object **out, struct err *e);

#endif

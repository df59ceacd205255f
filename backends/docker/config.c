// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/config.h"

#include <errno.h>
#include <json-c/json.h>
#include <openssl/evp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

#define SHA256_BYTES 32

static void put_json(struct json_object **o) { json_object_put(*o); }
#define cleanup_json __attribute__((cleanup(put_json)))

char *docker_config_dir(void)
{
    const char *set = getenv("DOCKER_CONFIG"), *home = getenv("HOME");
    struct passwd *pw;
    char *path;

    if (set && *set)
        return strdup(set);
    if (!home || !*home)
        home = (pw = getpwuid(geteuid())) ? pw->pw_dir : "/root";
    return asprintf(&path, "%s/.docker", home) < 0 ? NULL : path;
}

static struct json_object *read_file(const char *dir, const char *name)
{
    cleanup_free char *path = NULL;

    if (asprintf(&path, "%s/%s", dir, name) < 0) {
        path = NULL;
        return NULL;
    }
    return access(path, R_OK) == 0 ? json_object_from_file(path) : NULL;
}

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v = json_object_object_get(o, key);

    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : NULL;
}

/* ── contexts ────────────────────────────────────────────────────────────────────────────── */

struct json_object *docker_config_read(void)
{
    cleanup_free char *dir = docker_config_dir();

    return dir ? read_file(dir, "config.json") : NULL;
}

char *docker_current_context(void)
{
    cleanup_json struct json_object *o = docker_config_read();
    const char *name = text_of(o, "currentContext");

    return name && *name ? strdup(name) : NULL;
}

/* A context's directory is named by the SHA-256 of its name. */
static char *context_dir(const char *kind, const char *name)
{
    cleanup_free char *dir = docker_config_dir();
    unsigned char hash[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1], *path;

    if (!dir || !EVP_Digest(name, strlen(name), hash, NULL, EVP_sha256(), NULL))
        return NULL;
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    return asprintf(&path, "%s/contexts/%s/%s", dir, kind, hex) < 0 ? NULL : path;
}

static int set_tls_dir(struct docker_context *c, const char *name, struct err *e)
{
    cleanup_free char *dir = context_dir("tls", name);

    if (!dir || asprintf(&c->tls_dir, "%s/docker", dir) < 0) {
        c->tls_dir = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    if (access(c->tls_dir, F_OK) < 0)
        free(steal_ptr(&c->tls_dir));
    return 0;
}

int docker_context_read(const char *name, struct docker_context *out, struct err *e)
{
    cleanup_free char *dir = context_dir("meta", name);
    cleanup_json struct json_object *o = dir ? read_file(dir, "meta.json") : NULL;
    struct json_object *docker = json_object_object_get(json_object_object_get(o, "Endpoints"), "docker");
    const char *host = text_of(docker, "Host");

    *out = (struct docker_context){ 0 };
    if (!dir)
        return err_set(e, -ENOMEM, "out of memory");
    if (!host)
        return err_set(e, -EINVAL, "there is no docker context \"%s\" with an engine's address (`docker context ls` lists "
                       "them)", name);
    out->host = strdup(host);
    out->skip_verify = json_object_get_boolean(json_object_object_get(docker, "SkipTLSVerify"));
    return out->host ? set_tls_dir(out, name, e) : err_set(e, -ENOMEM, "out of memory");
}

void docker_context_finish(struct docker_context *c)
{
    free(c->host);
    free(c->tls_dir);
    *c = (struct docker_context){ 0 };
}

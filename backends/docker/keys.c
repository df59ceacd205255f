// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/keys.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/config/config.h"

#define PIDS_BY_ITSELF 4096u
#define TIMEOUT_BY_ITSELF_MS 60000

/* ── kinds of values ─────────────────────────────────────────────────────────────────────── */

static int set_text(char **slot, const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, -EINVAL, "there is nothing");
    free(*slot);
    *slot = strdup(value);
    return *slot ? 0 : err_set(e, -ENOMEM, "out of memory");
}

static int set_flag(bool *slot, const char *value, struct err *e)
{
    bool yes = strcmp(value, "on") == 0 || strcmp(value, "yes") == 0 || strcmp(value, "true") == 0;

    *slot = yes;
    if (yes || strcmp(value, "off") == 0 || strcmp(value, "no") == 0 || strcmp(value, "false") == 0)
        return 0;
    return err_set(e, -EINVAL, "it wants on or off");
}

/* ── [sandbox] ───────────────────────────────────────────────────────────────────────────── */

static int key_env(struct docker_keys *k, const char *v, struct err *e) { return sandbox_env_add(&k->env, v, e); }
static int key_env_file(struct docker_keys *k, const char *v, struct err *e)
{
    return sandbox_env_add_file(&k->env, v, e);
}
static int key_user(struct docker_keys *k, const char *v, struct err *e) { return set_text(&k->user, v, e); }

/* The core runs it, as a job. */
static int key_setup(struct docker_keys *k, const char *v, struct err *e)
{
    (void)k;
    return *v ? 0 : err_set(e, -EINVAL, "there is no command");
}

static int key_network(struct docker_keys *k, const char *v, struct err *e)
{
    if (strncmp(v, "container:", 10) == 0)
        return err_set(e, -EINVAL, "another container's network is not for a workspace");
    return set_text(&k->network, v, e);
}

static int key_bind(struct docker_keys *k, const char *v, struct err *e)
{
    int r = sandbox_words_add(&k->binds, v, e);

    for (size_t i = 0; r == 0 && i < k->binds.n; i++)
        if (k->binds.list[i][0] != '/')
            r = err_set(e, -EINVAL, "\"%s\" is no absolute path", k->binds.list[i]);
    return r;
}

/* ── [backend docker] ────────────────────────────────────────────────────────────────────── */

static int key_image(struct docker_keys *k, const char *v, struct err *e) { return set_text(&k->image, v, e); }
static int key_build(struct docker_keys *k, const char *v, struct err *e)
{
    if (*v && *v != '/')
        return err_set(e, -EINVAL, "\"%s\" is no absolute path", v);
    return set_text(&k->build, v, e);
}
static int key_build_network(struct docker_keys *k, const char *v, struct err *e)
{
    return set_text(&k->build_network, v, e);
}
static int key_host(struct docker_keys *k, const char *v, struct err *e) { return set_text(&k->host, v, e); }
static int key_runtime(struct docker_keys *k, const char *v, struct err *e) { return set_text(&k->runtime, v, e); }
static int key_read_only(struct docker_keys *k, const char *v, struct err *e) { return set_flag(&k->read_only, v, e); }
static int key_init(struct docker_keys *k, const char *v, struct err *e) { return set_flag(&k->init, v, e); }
static int key_cap_drop(struct docker_keys *k, const char *v, struct err *e)
{
    return sandbox_words_add(&k->cap_drop, v, e);
}
static int key_cap_add(struct docker_keys *k, const char *v, struct err *e)
{
    return sandbox_words_add(&k->cap_add, v, e);
}

/* The engine wants the profile itself, where the docker command takes a file. */
static int read_seccomp(char **word, struct err *e)
{
    static const char key[] = "seccomp=";
    const char *file = *word + strlen(key);
    struct json_object *profile;
    char *whole = NULL;

    if (strncmp(*word, key, strlen(key)) != 0 || strcmp(file, "unconfined") == 0 || strcmp(file, "builtin") == 0)
        return 0;
    profile = *file == '/' ? json_object_from_file(file) : NULL;
    if (!profile)
        return err_set(e, -EINVAL, "\"%s\": it wants unconfined, builtin or the absolute path of a profile in JSON", *word);
    if (asprintf(&whole, "%s%s", key, json_object_to_json_string_ext(profile, JSON_C_TO_STRING_PLAIN)) < 0)
        whole = NULL;
    json_object_put(profile);
    if (!whole)
        return err_set(e, -ENOMEM, "out of memory");
    free(*word);
    *word = whole;
    return 0;
}

static int key_security_opt(struct docker_keys *k, const char *v, struct err *e)
{
    size_t before = k->security_opt.n;
    int r = sandbox_words_add(&k->security_opt, v, e);

    for (size_t i = before; r == 0 && i < k->security_opt.n; i++)
        r = read_seccomp(&k->security_opt.list[i], e);
    return r;
}

static int key_mounts(struct docker_keys *k, const char *v, struct err *e) { return sandbox_words_add(&k->mounts, v, e); }

/* By ours containers are found again. */
static int key_labels(struct docker_keys *k, const char *v, struct err *e)
{
    int r = sandbox_env_add(&k->labels, v, e);

    for (size_t i = 0; r == 0 && i < k->labels.n; i++)
        if (strncmp(k->labels.list[i], DOCKER_LABEL, strlen(DOCKER_LABEL)) == 0)
            r = err_set(e, -EINVAL, "\"%s\": what begins with " DOCKER_LABEL " is wsmfs's own", k->labels.list[i]);
    return r;
}

static int key_timeout(struct docker_keys *k, const char *v, struct err *e)
{
    int64_t seconds;

    if (duration_parse(v, &seconds) < 0 || seconds <= 0 || seconds > 3600)
        return err_set(e, -EINVAL, "it wants a duration from 1s to 1h");
    k->timeout_ms = seconds * 1000;
    return 0;
}

static int key_basedir_on_engine(struct docker_keys *k, const char *v, struct err *e)
{
    size_t n = strlen(v);

    while (n > 0 && v[n - 1] == '/')
        n--;
    if (n == 0 || v[0] != '/' || strstr(v, "/../") || strcmp(v + n - (n > 2 ? 3 : 0), "/..") == 0)
        return err_set(e, -EINVAL, "\"%s\" is no absolute path of a directory", v);
    free(k->basedir_on_engine);
    k->basedir_on_engine = strndup(v, n);
    return k->basedir_on_engine ? 0 : err_set(e, -ENOMEM, "out of memory");
}

static int key_pull(struct docker_keys *k, const char *v, struct err *e)
{
    static const char *const words[] = { "missing", "always", "never" };

    for (size_t i = 0; i < array_size(words); i++)
        if (strcmp(v, words[i]) == 0) {
            k->pull = (enum docker_pull)i;
            return 0;
        }
    return err_set(e, -EINVAL, "it wants missing, always or never");
}

/* ── both ────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    const char *section, *key;
    int (*take)(struct docker_keys *k, const char *value, struct err *e);
} keys[] = {
    { "sandbox", "env", key_env }, { "sandbox", "env_file", key_env_file }, { "sandbox", "network", key_network },
    { "sandbox", "user", key_user }, { "sandbox", "bind", key_bind }, { "sandbox", "setup", key_setup },
    { "backend", "image", key_image }, { "backend", "pull", key_pull },
    { "backend", "build", key_build }, { "backend", "build_network", key_build_network },
    { "backend", "host", key_host }, { "backend", "network", key_network },
    { "backend", "runtime", key_runtime }, { "backend", "read_only", key_read_only },
    { "backend", "init", key_init }, { "backend", "cap_drop", key_cap_drop },
    { "backend", "cap_add", key_cap_add }, { "backend", "security_opt", key_security_opt },
    { "backend", "labels", key_labels }, { "backend", "timeout", key_timeout },
    { "backend", "basedir_on_engine", key_basedir_on_engine },
    { "backend", "mounts", key_mounts },
};

/* A section as it stands in the file. */
static const char *title(const char *section) { return strcmp(section, "backend") == 0 ? "backend docker" : section; }

int docker_keys_refuse(const struct config_pair *pairs, const char *section, const char *key, int code, const char *why,
                       struct err *e)
{
    return config_pair_refuse(config_pair_find(pairs, section, key), title(section), code, why, e);
}

static int unknown(const char *key, struct err *e)
{
    struct sandbox_limits none = { 0 };
    const char *section = sandbox_limit_parse(&none, key, "", NULL) == -ENOENT ? NULL : "sandbox";

    for (size_t i = 0; !section && i < array_size(keys); i++)
        if (strcmp(keys[i].key, key) == 0)
            section = keys[i].section;
    return section ? err_set(e, -EINVAL, "it is a key of section [%s]", title(section))
                   : err_set(e, -EINVAL, "the docker backend cannot honour it");
}

static int take(struct docker_keys *k, const struct config_pair *p, struct err *e)
{
    int r;

    for (size_t i = 0; i < array_size(keys); i++)
        if (strcmp(keys[i].section, p->section) == 0 && strcmp(keys[i].key, p->key) == 0)
            return keys[i].take(k, p->value, e);
    r = strcmp(p->section, "sandbox") == 0 ? sandbox_limit_parse(&k->limits, p->key, p->value, e) : -ENOENT;
    return r == -ENOENT ? unknown(p->key, e) : r;
}

/* Where images come from is said once. */
static int check_image(const char *source, const struct config_pair *pairs, const struct docker_keys *k, struct err *e)
{
    if (*source && k->image)
        return err_set(e, -EINVAL, "the image is named twice, in docker:%s and as `image` of section [backend docker]",
                       source);
    if (k->build && (*source || k->image))
        return err_set(e, -EINVAL, "an image is named (%s), and `build` of section [backend docker] would have one built",
                       *source ? source : k->image);
    if (k->build && k->pull == DOCKER_PULL_NEVER)
        return docker_keys_refuse(pairs, "backend", "pull", -EINVAL, "what is built has its base image pulled where the "
                                  "engine lacks it", e);
    if (k->build_network && !k->build)
        return docker_keys_refuse(pairs, "backend", "build_network", -EINVAL, "nothing is built", e);
    if (!*source && !k->image && !k->build)
        return err_set(e, -EINVAL, "no image is named: docker:IMAGE, e.g. docker:python:3.12-slim");
    return 0;
}

int docker_keys_read(const char *source, const struct config_pair *pairs, struct docker_keys *out, struct err *e)
{
    struct err why = { 0 };

    *out = (struct docker_keys){ .limits.pids = PIDS_BY_ITSELF, .timeout_ms = TIMEOUT_BY_ITSELF_MS };
    for (const struct config_pair *p = pairs; p; p = p->next)
        if (take(out, p, &why) < 0)
            return config_pair_refuse(p, title(p->section), why.code, why.text, e);
    if (check_image(source, pairs, out, e) < 0)
        return -EINVAL;
    return *source ? set_text(&out->image, source, e) : 0;
}

static bool id_of(const char *text, char **end, uint32_t *id)
{
    unsigned long v;

    errno = 0;
    v = strtoul(text, end, 10);
    *id = (uint32_t)v;
    return *text >= '0' && *text <= '9' && errno == 0 && v < UINT32_MAX;
}

void docker_keys_ids(const struct docker_keys *k, uint32_t *uid, uint32_t *gid)
{
    uint32_t u, g;
    char *end;

    *uid = *gid = 0;
    if (!k->user || !id_of(k->user, &end, &u) || (*end && *end != ':'))
        return;
    *uid = *gid = u; /* as the guest does where the image names no group of it */
    if (*end == ':' && id_of(end + 1, &end, &g) && !*end)
        *gid = g;
}

void docker_keys_finish(struct docker_keys *k)
{
    struct sandbox_words *lists[] = { &k->env, &k->binds, &k->mounts, &k->cap_drop, &k->cap_add, &k->security_opt, &k->labels };

    for (size_t i = 0; i < array_size(lists); i++)
        sandbox_words_finish(lists[i]);
    free(k->image);
    free(k->build);
    free(k->build_network);
    free(k->host);
    free(k->basedir_on_engine);
    free(k->network);
    free(k->user);
    free(k->runtime);
    *k = (struct docker_keys){ 0 };
}

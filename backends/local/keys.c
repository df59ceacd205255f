// SPDX-License-Identifier: Apache-2.0
#include "backends/local/keys.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/local/sandbox.h"
#include "fs/base/cleanup.h"
#include "fs/config/config.h"

static int key_env(struct local_keys *k, const char *value, struct err *e) { return sandbox_env_add(&k->env, value, e); }

static int key_env_file(struct local_keys *k, const char *value, struct err *e)
{
    return sandbox_env_add_file(&k->env, value, e);
}

static int key_network(struct local_keys *k, const char *value, struct err *e)
{
    k->network_host = strcmp(value, "host") == 0;
    if (k->network_host || strcmp(value, "none") == 0)
        return 0;
    return err_set(e, -EINVAL, "the local backend knows none and host");
}

static int key_user(struct local_keys *k, const char *value, struct err *e)
{
    k->named = true;
    return sandbox_user_parse(value, &k->inside_uid, &k->inside_gid, e);
}

/* Paths separated by blanks. */
static int key_bind(struct local_keys *k, const char *value, struct err *e)
{
    int r = 0;

    for (const char *p = value + strspn(value, " \t"); *p && r == 0; p += strspn(p, " \t")) {
        size_t len = strcspn(p, " \t");
        cleanup_free char *one = strndup(p, len);
        struct shown_bind *more = realloc(k->binds, (k->n_binds + 1) * sizeof(*more));
        if (more)
            k->binds = more;
        if (!one || !more)
            return err_set(e, -ENOMEM, "out of memory");
        r = shown_bind_parse(one, &k->binds[k->n_binds], e);
        k->n_binds += r == 0;
        p += len;
    }
    return r;
}

/* The core runs it, as a job. */
static int key_setup(struct local_keys *k, const char *value, struct err *e)
{
    (void)k;
    return *value ? 0 : err_set(e, -EINVAL, "there is no command");
}

static const struct {
    const char *key;
    int (*take)(struct local_keys *k, const char *value, struct err *e);
} keys[] = {
    { "env", key_env }, { "env_file", key_env_file }, { "network", key_network }, { "user", key_user },
    { "bind", key_bind }, { "setup", key_setup },
};

static int take(struct local_keys *k, const struct config_pair *p, struct err *e)
{
    int r;

    if (strcmp(p->section, "sandbox") != 0)
        return err_set(e, -EINVAL, "the local backend has no setting of its own");
    for (size_t i = 0; i < array_size(keys); i++)
        if (strcmp(keys[i].key, p->key) == 0)
            return keys[i].take(k, p->value, e);
    r = sandbox_limit_parse(&k->limits, p->key, p->value, e);
    k->limited = k->limited || r == 0;
    return r == -ENOENT ? err_set(e, -EINVAL, "the local backend cannot honour it") : r;
}

int local_keys_read(const struct config_pair *pairs, struct local_keys *out, struct err *e)
{
    struct err why = { 0 };

    *out = (struct local_keys){ 0 };
    for (const struct config_pair *p = pairs; p; p = p->next)
        if (take(out, p, &why) < 0)
            return config_pair_refuse(p, strcmp(p->section, "backend") == 0 ? "backend local" : p->section, why.code,
                                      why.text, e);
    return 0;
}

void local_keys_finish(struct local_keys *k)
{
    for (size_t i = 0; i < k->n_binds; i++)
        shown_bind_finish(&k->binds[i]);
    sandbox_words_finish(&k->env);
    free(k->binds);
    *k = (struct local_keys){ 0 };
}

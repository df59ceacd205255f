// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/credentials.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/config.h"
#include "fs/base/cleanup.h"

#define HELPER_MS 30000

static void put_json(struct json_object **o) { json_object_put(*o); }
#define cleanup_json __attribute__((cleanup(put_json)))

/* Who may end the asking. */
struct patience {
    bool (*cancelled)(void *arg);
    void *arg;
};

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v = json_object_object_get(o, key);

    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : NULL;
}

/* ── base 64 ─────────────────────────────────────────────────────────────────────────────── */

/* The form for URLs, as the engine wants it in a header. */
static char *base64(const char *text)
{
    size_t n = strlen(text);
    char *out = malloc(4 * ((n + 2) / 3) + 1);

    if (!out)
        return NULL;
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)n);
    for (char *c = out; *c; c++)
        *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
    return out;
}

static char *unbase64(const char *text)
{
    size_t n = strlen(text);
    char *out = calloc(1, n + 1);
    int got = out ? EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)n) : -1;

    if (got < 0) {
        free(out);
        return NULL;
    }
    out[got] = '\0'; /* padding decodes to NULs, which end the text */
    return out;
}

/* ── of one registry ─────────────────────────────────────────────────────────────────────── */

/* The engine's own registry stands in the configuration by the URL of its first protocol, alone of all. */
static char *default_registry(struct json_object *config)
{
    static const char ending[] = "/v1/";
    struct json_object *auths = json_object_object_get(config, "auths");

    if (!json_object_is_type(auths, json_type_object))
        return NULL;
    json_object_object_foreach(auths, key, value)
    {
        size_t n = strlen(key);
        (void)value;
        if (n > strlen(ending) && strcmp(key + n - strlen(ending), ending) == 0)
            return strdup(key);
    }
    return NULL;
}

/* The registry's name in the configuration: what stands before the first '/', if it is a host. NULL: the default
 * one, and it is not there. */
static char *registry_of(const char *image, struct json_object *config)
{
    size_t n = strcspn(image, "/");
    bool host = image[n] && (memchr(image, '.', n) || memchr(image, ':', n) || (n == 9 && !strncmp(image, "localhost", 9)));

    return host ? strndup(image, n) : default_registry(config);
}

static struct json_object *from_pair(const char *user, const char *secret, const char *registry)
{
    struct json_object *o = json_object_new_object();
    bool token = strcmp(user, "<token>") == 0;

    if (!token)
        json_object_object_add(o, "username", json_object_new_string(user));
    json_object_object_add(o, token ? "identitytoken" : "password", json_object_new_string(secret));
    json_object_object_add(o, "serveraddress", json_object_new_string(registry));
    return o;
}

/* -ENOENT, without a sentence that matters: nothing is kept for it. */
static int from_helper(struct json_object *config, const char *registry, const struct patience *until,
                       struct json_object **out, struct err *e)
{
    const char *helper = text_of(json_object_object_get(config, "credHelpers"), registry), *user, *secret;
    cleanup_json struct json_object *o = NULL;
    int r;

    if (!helper)
        helper = text_of(config, "credsStore");
    if (!helper)
        return -ENOENT;
    r = credential_helper_ask(helper, registry, HELPER_MS, until->cancelled, until->arg, &o, e);
    if (r < 0)
        return r;
    user = text_of(o, "Username");
    secret = text_of(o, "Secret");
    if (!user || !secret)
        return err_set(e, -EACCES, "the credential helper docker-credential-%s names no user and secret", helper);
    *out = from_pair(user, secret, registry);
    return 0;
}

static struct json_object *from_config(struct json_object *config, const char *registry)
{
    struct json_object *entry = json_object_object_get(json_object_object_get(config, "auths"), registry);
    const char *auth = text_of(entry, "auth"), *token = text_of(entry, "identitytoken");
    cleanup_free char *pair = auth && *auth ? unbase64(auth) : NULL;
    char *colon = pair ? strchr(pair, ':') : NULL;

    if (token && *token)
        return from_pair("<token>", token, registry);
    if (!colon)
        return NULL;
    *colon = '\0';
    return from_pair(pair, colon + 1, registry);
}

/* *out NULL: nothing is known, and *trouble says why if that is not simply so. */
static int credentials_of(struct json_object *config, const char *registry, const struct patience *until,
                          struct json_object **out, struct err *trouble, struct err *e)
{
    struct err why = { 0 };
    int r = from_helper(config, registry, until, out, &why);

    if (r == -ECANCELED || r == -ENOMEM)
        return err_set(e, r, "%s", why.text);
    if (r < 0 && r != -ENOENT && trouble)
        *trouble = why;
    if (!*out)
        *out = from_config(config, registry);
    return 0;
}

/* ── headers ─────────────────────────────────────────────────────────────────────────────── */

static int set_header(char **out, const char *name, struct json_object *o, struct err *e)
{
    cleanup_free char *text = base64(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));

    if (text && asprintf(out, "%s: %s", name, text) >= 0)
        return 0;
    *out = NULL;
    return err_set(e, -ENOMEM, "out of memory");
}

int credentials_header(const char *image, bool (*cancelled)(void *arg), void *arg, char **out, struct err *trouble,
                       struct err *e)
{
    const struct patience until = { cancelled, arg };
    cleanup_json struct json_object *config = docker_config_read(), *auth = NULL;
    cleanup_free char *registry = registry_of(image, config);
    int r;

    *out = NULL;
    if (!registry || !config)
        return 0;
    r = credentials_of(config, registry, &until, &auth, trouble, e);
    return r < 0 || !auth ? r : set_header(out, "X-Registry-Auth", auth, e);
}

static int add_all(struct json_object *config, const char *section, const struct patience *until,
                   struct json_object *all, struct err *e)
{
    struct json_object *registries = json_object_object_get(config, section);

    if (!json_object_is_type(registries, json_type_object))
        return 0;
    json_object_object_foreach(registries, registry, value)
    {
        struct json_object *auth = NULL;
        int r = json_object_object_get(all, registry) ? 0 : credentials_of(config, registry, until, &auth, NULL, e);
        (void)value;
        if (r < 0)
            return r;
        if (auth)
            json_object_object_add(all, registry, auth);
    }
    return 0;
}

int credentials_of_all(bool (*cancelled)(void *arg), void *arg, char **out, struct err *e)
{
    const struct patience until = { cancelled, arg };
    cleanup_json struct json_object *config = docker_config_read(), *all = json_object_new_object();
    int r = add_all(config, "auths", &until, all, e);

    *out = NULL;
    if (r == 0)
        r = add_all(config, "credHelpers", &until, all, e);
    return r < 0 || json_object_object_length(all) == 0 ? r : set_header(out, "X-Registry-Config", all, e);
}

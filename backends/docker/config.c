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

char *docker_current_context(void)
{
    cleanup_free char *dir = docker_config_dir();
    cleanup_json struct json_object *o = dir ? read_file(dir, "config.json") : NULL;
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

/* ── credentials ─────────────────────────────────────────────────────────────────────────── */

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

static char *base64(const char *text, bool for_url)
{
    size_t n = strlen(text);
    char *out = malloc(4 * ((n + 2) / 3) + 1);

    if (!out)
        return NULL;
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)n);
    for (char *c = out; for_url && *c; c++)
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

/* Asks `docker-credential-NAME get`; what it prints is an object with Username and Secret. */
static struct json_object *ask_helper(const char *helper, const char *registry)
{
    cleanup_free char *command = NULL;
    char buffer[16384];
    size_t n;
    FILE *f;

    if (helper[strspn(helper, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] ||
        registry[strspn(registry, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/[]")])
        return NULL;
    /* Our own mask is 0: what a helper keeps is for nobody else. */
    if (asprintf(&command, "umask 077; printf %%s '%s' | docker-credential-%s get 2>/dev/null", registry, helper) < 0) {
        command = NULL;
        return NULL;
    }
    f = popen(command, "re");
    if (!f)
        return NULL;
    n = fread(buffer, 1, sizeof(buffer) - 1, f);
    buffer[n] = '\0';
    return pclose(f) == 0 ? json_tokener_parse(buffer) : NULL;
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

static struct json_object *from_helper(struct json_object *config, const char *registry)
{
    const char *helper = text_of(json_object_object_get(config, "credHelpers"), registry);
    const char *user, *secret;

    if (!helper)
        helper = text_of(config, "credsStore");
    cleanup_json struct json_object *o = helper ? ask_helper(helper, registry) : NULL;
    user = text_of(o, "Username");
    secret = text_of(o, "Secret");
    return user && secret ? from_pair(user, secret, registry) : NULL;
}

static struct json_object *from_config(struct json_object *config, const char *registry)
{
    struct json_object *entry = json_object_object_get(json_object_object_get(config, "auths"), registry), *o;
    const char *auth = text_of(entry, "auth"), *token = text_of(entry, "identitytoken");
    cleanup_free char *pair = auth && *auth ? unbase64(auth) : NULL;
    char *colon = pair ? strchr(pair, ':') : NULL;

    if (token && *token)
        return from_pair("<token>", token, registry);
    if (!colon)
        return NULL;
    *colon = '\0';
    o = from_pair(pair, colon + 1, registry);
    return o;
}

int docker_registry_auth(const char *image, char **out, struct err *e)
{
    cleanup_free char *dir = docker_config_dir(), *text = NULL;
    cleanup_json struct json_object *config = dir ? read_file(dir, "config.json") : NULL, *auth = NULL;
    cleanup_free char *registry = registry_of(image, config);

    *out = NULL;
    if (!dir)
        return err_set(e, -ENOMEM, "out of memory");
    if (!registry)
        return 0;
    auth = from_helper(config, registry);
    if (!auth)
        auth = from_config(config, registry);
    if (!auth)
        return 0;
    text = base64(json_object_to_json_string_ext(auth, JSON_C_TO_STRING_PLAIN), true);
    if (!text || asprintf(out, "X-Registry-Auth: %s", text) < 0) {
        *out = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    return 0;
}

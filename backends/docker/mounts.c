// SPDX-License-Identifier: Apache-2.0
/* What is mounted into a container: the workspace, the guest, `bind` of [sandbox] and `mounts` of
 * [backend docker]. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/config/config.h"

/* ── one of them ─────────────────────────────────────────────────────────────────────────── */

/* As the engine is told; the strings lie in `text`. */
struct mount {
    char       *text;
    const char *type, *source, *target; /* "": not said */
    bool        read_only;
    uint64_t    size_bytes;  /* of a tmpfs; 0: not said */
    long        mode;        /* of a tmpfs; -1: not said */
};

static void mount_finish(struct mount *m) { free(m->text); }
#define cleanup_mount __attribute__((cleanup(mount_finish)))

static int take_read_only(struct mount *m, const char *value)
{
    static const char *const yes[] = { "", "true", "1" }, *const no[] = { "false", "0" };

    for (size_t i = 0; i < array_size(yes); i++)
        if (strcmp(value, yes[i]) == 0) {
            m->read_only = true;
            return 0;
        }
    return strcmp(value, no[0]) == 0 || strcmp(value, no[1]) == 0 ? 0 : -EINVAL;
}

static int take_size(struct mount *m, const char *value)
{
    char upper[32];
    size_t n = strlen(value);

    if (n == 0 || n >= sizeof(upper))
        return -EINVAL;
    for (size_t i = 0; i <= n; i++)
        upper[i] = (char)toupper((unsigned char)value[i]); /* the docker command says 64m */
    return size_parse(upper, &m->size_bytes);
}

static int take_mode(struct mount *m, const char *value)
{
    char *end;

    m->mode = strtol(value, &end, 8);
    return isdigit((unsigned char)*value) && !*end && m->mode >= 0 && m->mode <= 07777 ? 0 : -EINVAL;
}

static int take_type(struct mount *m, const char *value)
{
    static const char *const types[] = { "bind", "volume", "tmpfs" };

    m->type = value;
    for (size_t i = 0; i < array_size(types); i++)
        if (strcmp(value, types[i]) == 0)
            return 0;
    return -EINVAL;
}

static int take_source(struct mount *m, const char *value) { m->source = value; return 0; }
static int take_target(struct mount *m, const char *value) { m->target = value; return 0; }

/* The words of `docker run --mount` that mean something here. */
static const struct {
    const char *word;
    int (*take)(struct mount *m, const char *value);
} fields[] = {
    { "type", take_type }, { "source", take_source }, { "src", take_source }, { "target", take_target },
    { "destination", take_target }, { "dst", take_target }, { "readonly", take_read_only }, { "ro", take_read_only },
    { "tmpfs-size", take_size }, { "tmpfs-mode", take_mode },
};

static int take_field(struct mount *m, char *field, struct err *e)
{
    char *value = strchr(field, '=');

    if (value)
        *value++ = '\0';
    for (size_t i = 0; i < array_size(fields); i++) {
        if (strcmp(fields[i].word, field) != 0)
            continue;
        return fields[i].take(m, value ? value : "") == 0 ? 0 : err_set(e, -EINVAL, "%s=%s means nothing", field,
                                                                        value ? value : "");
    }
    return err_set(e, -EINVAL, "there is no \"%s\"; known are type (bind, volume, tmpfs), source, target, readonly, "
                   "tmpfs-size and tmpfs-mode", field);
}

static int out_of_memory(struct err *e) { return err_set(e, -ENOMEM, "out of memory"); }

/* "type=volume,source=cache,target=/cache,readonly". *m is to be finished in any case. */
static int parse(const char *text, struct mount *m, struct err *e)
{
    char *rest;

    *m = (struct mount){ .text = strdup(text), .type = "volume", .source = "", .target = "", .mode = -1 };
    if (!m->text)
        return out_of_memory(e);
    for (char *f = strtok_r(m->text, ",", &rest); f; f = strtok_r(NULL, ",", &rest)) {
        int r = take_field(m, f, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A `bind` of [sandbox]: PATH or PATH:INSIDE, with ":rw" when it may be written. */
static int parse_bind(const char *text, struct mount *m, struct err *e)
{
    char *end, *inside;

    *m = (struct mount){ .text = strdup(text), .type = "bind", .read_only = true, .mode = -1 };
    if (!m->text)
        return out_of_memory(e);
    m->source = m->text;
    end = strrchr(m->text, ':');
    if (end && (strcmp(end, ":rw") == 0 || strcmp(end, ":ro") == 0)) {
        m->read_only = end[2] == 'o';
        *end = '\0';
    }
    inside = strchr(m->text, ':');
    if (inside)
        *inside++ = '\0';
    if (inside && strchr(inside, ':'))
        return err_set(e, -EINVAL, "it is not HOST[:INSIDE][:ro|rw]");
    m->target = inside ? inside : m->text;
    return 0;
}

/* ── whether it makes sense ──────────────────────────────────────────────────────────────── */

static bool lies_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return n == 1 || (strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/'));
}

/* Absolute, and in its shortest form. */
static bool is_plain(const char *path)
{
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return false;
    if (strcmp(path, "/") == 0)
        return true;
    for (size_t n; *path; path += n) {
        n = strcspn(++path, "/");
        if (n == 0 || strncmp(path, ".", n) == 0 || strncmp(path, "..", n) == 0)
            return false;
    }
    return true;
}

static int check_target(const char *target, struct err *e)
{
    static const char *const own[] = { DOCKER_WORKSPACE, "/.wsm", "/proc", "/sys" };

    if (!is_plain(target))
        return err_set(e, -EINVAL, "the target \"%s\" is no absolute path without empty parts, \".\" and \"..\"",
                       target);
    for (size_t i = 0; i < array_size(own); i++)
        if (lies_in(target, own[i]) || lies_in(own[i], target))
            return err_set(e, -EINVAL, "the target %s would hide %s, which is the container's own", target, own[i]);
    return 0;
}

/* Without links; as it is where it is not there. */
static void resolve(const char *path, char out[PATH_MAX])
{
    if (!realpath(path, out))
        snprintf(out, PATH_MAX, "%s", path);
}

/* Where it shows a tenant another one's files, or what the daemon keeps. */
static bool shows(const char *source, const char *secret)
{
    return *secret && (lies_in(source, secret) || lies_in(secret, source));
}

static bool shows_really(const char *source, const char *secret)
{
    char a[PATH_MAX], b[PATH_MAX];

    resolve(source, a);
    resolve(secret, b);
    return shows(a, b);
}

static int check_bind(const struct docker *d, const char *source, struct err *e)
{
    const char *ours[] = { docker_engine_base(d), d->mount.basedir, d->mount.state_dir, d->mount.mountpoint };
    size_t n = d->keys.basedir_on_engine ? 1 : array_size(ours); /* of the others we do not know the engine's path */

    if (!is_plain(source))
        return err_set(e, -EINVAL, "the source \"%s\" is no absolute path without empty parts, \".\" and \"..\"",
                       source);
    for (size_t i = 0; i < n; i++)
        if (shows(source, ours[i]) || (n > 1 && *ours[i] && shows_really(source, ours[i])))
            return err_set(e, -EINVAL, "the source %s would show %s, which no job may see", source, ours[i]);
    return 0;
}

static int check_volume(const char *name, struct err *e)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    if (*name && (!isalnum((unsigned char)*name) || strspn(name, good) != strlen(name)))
        return err_set(e, -EINVAL, "the source \"%s\" is no name of a volume; a path wants type=bind", name);
    return 0;
}

static int check(const struct docker *d, const struct mount *m, struct err *e)
{
    bool tmpfs = strcmp(m->type, "tmpfs") == 0;
    int r = check_target(m->target, e);

    if (r < 0)
        return r;
    if (!tmpfs && (m->size_bytes || m->mode >= 0))
        return err_set(e, -EINVAL, "tmpfs-size and tmpfs-mode are for type=tmpfs");
    if (tmpfs)
        return *m->source ? err_set(e, -EINVAL, "a tmpfs has no source") : 0;
    return strcmp(m->type, "bind") == 0 ? check_bind(d, m->source, e) : check_volume(m->source, e);
}

/* ── all of them ─────────────────────────────────────────────────────────────────────────── */

/* The i-th: those of `bind` come first. 1; 0: there are no more; -errno. *m is to be finished in any case. */
static int get(const struct docker *d, size_t i, struct mount *m, const char **key, const char **text, struct err *e)
{
    const struct sandbox_words *binds = &d->keys.binds, *mounts = &d->keys.mounts;
    bool bind = i < binds->n;
    int r;

    *m = (struct mount){ 0 };
    if (i >= binds->n + mounts->n)
        return 0;
    *key = bind ? "bind" : "mounts";
    *text = bind ? binds->list[i] : mounts->list[i - binds->n];
    r = bind ? parse_bind(*text, m, e) : parse(*text, m, e);
    return r < 0 ? r : 1;
}

static int check_unique(const struct docker *d, const struct mount *m, size_t i, struct err *e)
{
    const char *key, *text;

    for (size_t j = 0; j < i; j++) {
        cleanup_mount struct mount other;
        if (get(d, j, &other, &key, &text, e) == 1 && strcmp(other.target, m->target) == 0)
            return err_set(e, -EINVAL, "the target %s is taken already", m->target);
    }
    return 0;
}

static int refuse(const struct docker *d, const char *key, const char *text, int code, const char *why, struct err *e)
{
    cleanup_free char *about = NULL;

    if (asprintf(&about, "\"%s\": %s", text, why) < 0)
        return out_of_memory(e);
    return docker_keys_refuse(d->mount.pairs, strcmp(key, "bind") == 0 ? "sandbox" : "backend", key, code, about, e);
}

int docker_mounts_check(const struct docker *d, struct err *e)
{
    for (size_t i = 0;; i++) {
        cleanup_mount struct mount m;
        const char *key, *text;
        struct err why = { 0 };
        int r = get(d, i, &m, &key, &text, &why);
        if (r == 0)
            return 0;
        if (r == 1)
            r = check(d, &m, &why);
        if (r == 0)
            r = check_unique(d, &m, i, &why);
        if (r < 0)
            return refuse(d, key, text, r, why.text, e);
    }
}

/* ── as the engine wants them ────────────────────────────────────────────────────────────── */

static void set(struct json_object *o, const char *key, const char *value)
{
    json_object_object_add(o, key, json_object_new_string(value));
}

static void add(struct json_object *mounts, const struct mount *m)
{
    struct json_object *o = json_object_new_object(), *tmpfs = NULL;

    set(o, "Type", m->type);
    if (*m->source)
        set(o, "Source", m->source);
    set(o, "Target", m->target);
    json_object_object_add(o, "ReadOnly", json_object_new_boolean(m->read_only));
    if (m->size_bytes || m->mode >= 0)
        json_object_object_add(o, "TmpfsOptions", tmpfs = json_object_new_object());
    if (m->size_bytes)
        json_object_object_add(tmpfs, "SizeBytes", json_object_new_int64((int64_t)m->size_bytes));
    if (m->mode >= 0)
        json_object_object_add(tmpfs, "Mode", json_object_new_int64(m->mode));
    json_object_array_add(mounts, o);
}

static void add_own(struct json_object *mounts, const char *source, const char *target, bool read_only)
{
    add(mounts, &(struct mount){ .type = "bind", .source = source, .target = target, .read_only = read_only,
                                 .mode = -1 });
}

char *docker_run_on_engine(const struct docker *d, const struct backend_workspace *w)
{
    char *path;

    return asprintf(&path, "%s/.wsmfs/run/%s", docker_engine_base(d), w->id) < 0 ? NULL : path;
}

struct json_object *docker_mounts(const struct docker *d, const struct backend_workspace *w)
{
    struct json_object *mounts = json_object_new_array();
    cleanup_free char *files = NULL, *run = docker_run_on_engine(d, w);
    int r = 1;

    if (asprintf(&files, "%s/%s", docker_engine_base(d), w->host_dir) < 0)
        files = NULL;
    if (files && run) {
        add_own(mounts, files, DOCKER_WORKSPACE, false);
        add_own(mounts, d->guest, "/.wsm/wsm-guest", true);
        add_own(mounts, run, DOCKER_RUN, false);
    }
    for (size_t i = 0; r == 1; i++) {
        cleanup_mount struct mount m;
        const char *key, *text;
        struct err none;
        r = get(d, i, &m, &key, &text, &none);
        if (r == 1)
            add(mounts, &m);
    }
    return mounts;
}

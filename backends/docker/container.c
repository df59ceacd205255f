// SPDX-License-Identifier: Apache-2.0
/* Containers: Engine API, "Container". */
#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define LABEL     DOCKER_LABEL
#define GONE_NS   30000000000ll /* for a removal that is under way */
#define LOOK_NS   20000000
#define MAKING_NS 5000000000ll   /* for one that is being made when that is cancelled */
#define LIST_MAX_BYTES (64u << 20) /* thousands of containers are a few MiB */

/* What a container is allowed by itself: what package managers and chown need, and nothing that reaches
 * out of it. */
static const char *const capabilities[] = { "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID" };

static void put_json(struct json_object **o) { json_object_put(*o); }
#define cleanup_json __attribute__((cleanup(put_json)))
#define cleanup_answer __attribute__((cleanup(engine_answer_finish)))

static bool is_cancelled(void *arg)
{
    struct backend_progress *p = arg;

    return p && p->cancelled(p);
}

/* A call on one container: METHOD /containers/ID TAIL. */
static int call_on(struct docker *d, const char *method, const char *id, const char *tail, struct backend_progress *p,
                   struct engine_answer *a, struct err *e)
{
    cleanup_free char *path = NULL;
    struct engine_request rq = { .method = method, .timeout_ms = d->keys.timeout_ms, .cancelled = is_cancelled, .arg = p };

    *a = (struct engine_answer){ 0 };
    if (asprintf(&path, "/containers/%s%s", id, tail) < 0) {
        path = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    rq.path = path;
    return engine_call(d->engine, &rq, a, e);
}

/* ── what one is made from ───────────────────────────────────────────────────────────────── */

static void set(struct json_object *o, const char *key, const char *value)
{
    json_object_object_add(o, key, json_object_new_string(value));
}

static struct json_object *list_of(const struct sandbox_words *w)
{
    struct json_object *a = json_object_new_array();

    for (size_t i = 0; i < w->n; i++)
        json_object_array_add(a, json_object_new_string(w->list[i]));
    return a;
}

/* As the engine takes them: "chown", "CAP_CHOWN", "ALL". */
static bool is_among(const struct sandbox_words *w, const char *capability)
{
    for (size_t i = 0; i < w->n; i++) {
        const char *word = w->list[i];
        if (strncasecmp(word, "CAP_", 4) == 0)
            word += 4;
        if (strcasecmp(word, capability) == 0 || strcasecmp(word, "ALL") == 0)
            return true;
    }
    return false;
}

static struct json_object *capabilities_of(const struct docker_keys *k)
{
    struct json_object *a = list_of(&k->cap_add);

    for (size_t i = 0; i < array_size(capabilities); i++)
        if (!is_among(&k->cap_drop, capabilities[i]))
            json_object_array_add(a, json_object_new_string(capabilities[i]));
    return a;
}

/* The last word on a thing is the engine's, so ours is only there where nothing is said. */
static struct json_object *security_of(const struct docker_keys *k)
{
    static const char ours[] = "no-new-privileges";
    struct json_object *a = list_of(&k->security_opt);

    for (size_t i = 0; i < k->security_opt.n; i++)
        if (strncmp(k->security_opt.list[i], ours, strlen(ours)) == 0)
            return a;
    json_object_array_add(a, json_object_new_string(ours));
    return a;
}

static struct json_object *host_config(struct docker *d, const struct backend_workspace *w)
{
    const struct docker_keys *k = &d->keys;
    struct json_object *h = json_object_new_object(), *drop = list_of(&k->cap_drop), *log = json_object_new_object();

    json_object_array_add(drop, json_object_new_string("ALL")); /* the others are there for the engine to know them */
    set(log, "Type", "none"); /* nothing is printed there, and the default grows without bound */
    json_object_object_add(h, "Mounts", docker_mounts(d, w));
    set(h, "NetworkMode", k->network ? k->network : "none");
    json_object_object_add(h, "CapDrop", drop);
    json_object_object_add(h, "CapAdd", capabilities_of(k));
    json_object_object_add(h, "SecurityOpt", security_of(k));
    json_object_object_add(h, "LogConfig", log);
    json_object_object_add(h, "ReadonlyRootfs", json_object_new_boolean(k->read_only));
    json_object_object_add(h, "Init", json_object_new_boolean(k->init));
    json_object_object_add(h, "PidsLimit", json_object_new_int64(k->limits.pids));
    if (k->limits.memory_bytes) {
        json_object_object_add(h, "Memory", json_object_new_int64((int64_t)k->limits.memory_bytes));
        json_object_object_add(h, "MemorySwap", json_object_new_int64((int64_t)k->limits.memory_bytes));
    }
    if (k->limits.cpus_milli)
        json_object_object_add(h, "NanoCpus", json_object_new_int64((int64_t)k->limits.cpus_milli * 1000000));
    if (k->runtime)
        set(h, "Runtime", k->runtime);
    return h;
}

static struct json_object *words(const char *const *list)
{
    struct json_object *a = json_object_new_array();

    for (; *list; list++)
        json_object_array_add(a, json_object_new_string(*list));
    return a;
}

static struct json_object *command(const struct docker *d)
{
    char grace[24];
    snprintf(grace, sizeof(grace), "%lld", (long long)d->mount.grace_ms);
    const char *const list[] = { "serve", "--listen", "/.wsm/run/guest.sock", "--peers", "outside", "--grace", grace,
                                 d->keys.user ? "--user" : NULL, d->keys.user, d->keys.user ? "--own" : NULL,
                                 DOCKER_WORKSPACE, NULL };

    return words(list);
}

/* Without labels: those hold the hash of this. */
static struct json_object *config_of(struct docker *d, const struct backend_workspace *w, const char *image)
{
    static const char *const entry[] = { "/.wsm/wsm-guest", NULL }, *const no_check[] = { "NONE", NULL };
    struct json_object *c = json_object_new_object(), *check = json_object_new_object();
    char user[32];

    set(c, "Image", image);
    json_object_object_add(c, "Entrypoint", words(entry));
    json_object_object_add(c, "Cmd", command(d));
    set(c, "WorkingDir", DOCKER_WORKSPACE);
    docker_container_user(d, user);
    set(c, "User", user);
    json_object_object_add(c, "Env", list_of(&d->keys.env));
    json_object_object_add(check, "Test", words(no_check));
    json_object_object_add(c, "Healthcheck", check);
    set(c, "StopSignal", "SIGTERM");
    json_object_object_add(c, "HostConfig", host_config(d, w));
    return c;
}

static void hash(const char *text, char out[24])
{
    unsigned char digest[EVP_MAX_MD_SIZE];

    if (!EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL))
        digest[0] = 0;
    for (int i = 0; i < 8; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void container_spec(struct docker *d, const struct backend_workspace *w, const char *image, char out[24])
{
    cleanup_json struct json_object *c = config_of(d, w, image);

    hash(json_object_to_json_string(c), out);
}

static struct json_object *labels_of(const struct docker *d, const struct backend_workspace *w, const char *spec)
{
    struct json_object *l = json_object_new_object();

    for (size_t i = 0; i < d->keys.labels.n; i++) {
        cleanup_free char *pair = strdup(d->keys.labels.list[i]);
        char *eq = pair ? strchr(pair, '=') : NULL;
        if (!eq)
            continue;
        *eq = '\0';
        set(l, pair, eq + 1);
    }
    set(l, LABEL "instance", d->mount.instance);
    set(l, LABEL "id", w->id);
    set(l, LABEL "user", w->user);
    set(l, LABEL "agent", w->agent);
    set(l, LABEL "session", w->session);
    set(l, LABEL "isolation", d->mount.isolation);
    set(l, LABEL "spec", spec);
    set(l, LABEL "version", WSMFS_VERSION);
    return l;
}

/* ── looking ─────────────────────────────────────────────────────────────────────────────── */

static const char *text_at(struct json_object *o, const char *a, const char *b)
{
    struct json_object *v = json_object_object_get(o, a);

    if (b)
        v = json_object_object_get(v, b);
    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

static enum container_state state_of(const char *status)
{
    static const struct {
        const char *word;
        enum container_state state;
    } states[] = { { "created", CONTAINER_CREATED }, { "running", CONTAINER_RUNNING }, { "paused", CONTAINER_PAUSED },
                   { "exited", CONTAINER_EXITED }, { "dead", CONTAINER_EXITED } };

    for (size_t i = 0; i < array_size(states); i++)
        if (strcmp(status, states[i].word) == 0)
            return states[i].state;
    return CONTAINER_GOING;
}

/* By the convention of shells, which the engine follows. */
static void describe_end(int code, struct container *out)
{
    if (code == 128 + SIGKILL)
        snprintf(out->trouble, sizeof(out->trouble), "it was killed (code %d)", code);
    else
        snprintf(out->trouble, sizeof(out->trouble), "it ended with code %d", code);
}

static void describe(const struct docker *d, const struct backend_workspace *w, struct json_object *o,
                     struct container *out)
{
    struct json_object *state = json_object_object_get(o, "State"),
                       *labels = json_object_object_get(json_object_object_get(o, "Config"), "Labels");
    const char *error = text_at(state, "Error", NULL);

    out->state = state_of(text_at(state, "Status", NULL));
    out->ours = strcmp(text_at(labels, LABEL "instance", NULL), d->mount.instance) == 0 &&
                strcmp(text_at(labels, LABEL "id", NULL), w->id) == 0;
    snprintf(out->id, sizeof(out->id), "%s", text_at(o, "Id", NULL));
    snprintf(out->spec, sizeof(out->spec), "%s", text_at(labels, LABEL "spec", NULL));
    if (out->state == CONTAINER_GOING)
        snprintf(out->trouble, sizeof(out->trouble), "it was removed");
    else if (*error)
        snprintf(out->trouble, sizeof(out->trouble), "%s", error);
    else if (json_object_get_boolean(json_object_object_get(state, "OOMKilled")))
        snprintf(out->trouble, sizeof(out->trouble), "its memory was full (OOM)");
    else
        describe_end(json_object_get_int(json_object_object_get(state, "ExitCode")), out);
}

static bool is_id(const char *id)
{
    size_t n = strlen(id);

    return n > 0 && n < CONTAINER_ID_SIZE && strspn(id, "0123456789abcdef") == n;
}

/* Whether an answer describes a container: what is concluded from less could be that one is foreign, or gone. */
static bool is_container(struct json_object *o)
{
    struct json_object *labels = json_object_object_get(json_object_object_get(o, "Config"), "Labels");

    return is_id(text_at(o, "Id", NULL)) && *text_at(o, "State", "Status") &&
           json_object_is_type(json_object_object_get(o, "Config"), json_type_object) &&
           (!labels || json_object_is_type(labels, json_type_object));
}

int container_look(struct docker *d, const struct backend_workspace *w, struct backend_progress *p,
                   struct container *out, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r;

    *out = (struct container){ 0 };
    r = call_on(d, "GET", w->sandbox, "/json", p, &a, e);
    if (r < 0 || engine_misses(&a))
        return r;
    if (a.status != 200)
        return engine_refused(&a, w->sandbox, e);
    if (!is_container(a.json))
        return err_set(e, -EPROTO, "%s: the Docker engine's answer describes no container", w->sandbox);
    describe(d, w, a.json, out);
    return 0;
}

/* An engine that is left alone while it makes a container makes it all the same, in a moment when nobody looks for
 * it any more: so a cancelled one is waited for, but not for ever, and removed by whoever has asked for it. */
struct patience {
    struct backend_progress *progress;
    int64_t end_ns; /* 0: it is not cancelled */
};

static bool is_out_of_patience(void *arg)
{
    struct patience *p = arg;

    if (p->end_ns == 0 && is_cancelled(p->progress))
        p->end_ns = clock_ns() + MAKING_NS;
    return p->end_ns && clock_ns() >= p->end_ns;
}

static bool is_taken(const struct engine_answer *a)
{
    return a->status == 409 || (a->status == 500 && strstr(a->text, "already in use"));
}

int container_create(struct docker *d, const struct backend_workspace *w, const char *image, struct backend_progress *p,
                     char id[CONTAINER_ID_SIZE], struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    cleanup_json struct json_object *c = config_of(d, w, image);
    char path[128], spec[24];
    struct patience patience = { .progress = p };
    const struct engine_request rq = { .method = "POST", .path = path, .body = c, .timeout_ms = d->keys.timeout_ms,
                                       .cancelled = is_out_of_patience, .arg = &patience };
    int r;

    if (is_cancelled(p))
        return err_set(e, -ECANCELED, "cancelled");
    hash(json_object_to_json_string(c), spec);
    json_object_object_add(c, "Labels", labels_of(d, w, spec));
    snprintf(path, sizeof(path), "/containers/create?name=%s", w->sandbox);
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0)
        return r;
    if (a.status == 201 && is_id(text_at(a.json, "Id", NULL))) {
        snprintf(id, CONTAINER_ID_SIZE, "%s", text_at(a.json, "Id", NULL));
        return 0;
    }
    if (a.status == 404 && strstr(a.text, "No such image"))
        return err_set(e, -ENOENT, "the image %s is not at the engine", image);
    if (is_taken(&a))
        return err_set(e, -EEXIST, "the container's name %s is taken", w->sandbox);
    if (a.status == 400 && strstr(a.text, "bind source path does not exist"))
        return docker_bind_missing(d, a.text, e);
    return engine_refused(&a, "a container cannot be made", e);
}

int container_start(struct docker *d, const char *id, struct backend_progress *p, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r = call_on(d, "POST", id, "/start", p, &a, e);

    if (r < 0 || a.status == 204 || a.status == 304)
        return r;
    if (engine_misses(&a) && strcasestr(a.text, "no such container")) /* and not, e.g., a network */
        return -ENOENT;
    r = engine_refused(&a, "the container cannot be started", e);
    if (r != -ENXIO)
        return r;
    if (e)
        e->code = -EIO;
    return -EIO;
}

int container_unpause(struct docker *d, const char *id, struct backend_progress *p, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r = call_on(d, "POST", id, "/unpause", p, &a, e);

    return r < 0 || a.status == 204 ? r : engine_refused(&a, "the container cannot be unpaused", e);
}

int container_path(struct docker *d, const char *id, const char *path, struct backend_progress *p, char *out, size_t size,
                   struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    char tail[128];
    int r;

    snprintf(tail, sizeof(tail), "/archive?path=%s", path);
    r = call_on(d, "HEAD", id, tail, p, &a, e);
    if (r < 0)
        return r;
    if (a.status != 200 && a.status != 404)
        return engine_refused(&a, path, e);
    snprintf(out, size, "%s", a.status == 200 ? a.path_stat : "");
    return 0;
}

/* ── ending ──────────────────────────────────────────────────────────────────────────────── */

static int stop(struct docker *d, const char *id, int64_t grace_ms, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int64_t seconds = (grace_ms + 999) / 1000 + 1; /* the guest's own grace comes first */
    cleanup_free char *path = NULL;
    struct engine_request rq = { .method = "POST", .timeout_ms = seconds * 1000 + d->keys.timeout_ms };
    int r;

    if (asprintf(&path, "/containers/%s/stop?t=%lld", id, (long long)seconds) < 0) {
        path = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    rq.path = path;
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0 || a.status == 204 || a.status == 304 || engine_misses(&a))
        return r;
    /* It may be paused, or on its way: what follows kills it. */
    return 0;
}

/* Waits until a container that is being removed by somebody is gone. */
static int wait_gone(struct docker *d, const char *id, struct err *e)
{
    struct timespec nap = { .tv_nsec = LOOK_NS };

    for (int64_t end_ns = clock_ns() + GONE_NS; clock_ns() < end_ns; nanosleep(&nap, NULL)) {
        cleanup_answer struct engine_answer a = { 0 };
        int r = call_on(d, "GET", id, "/json", NULL, &a, e);
        if (r < 0 || engine_misses(&a))
            return r;
    }
    return err_set(e, -EIO, "the container %.12s is being removed, and that does not end", id);
}

int container_end(struct docker *d, const char *id, int64_t grace_ms, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r = stop(d, id, grace_ms, e);

    if (r == 0)
        r = call_on(d, "DELETE", id, "?force=1&v=1", NULL, &a, e);
    if (r < 0 || a.status == 204 || engine_misses(&a))
        return r;
    if (a.status == 409)
        return wait_gone(d, id, e);
    return engine_refused(&a, "the container cannot be removed", e);
}

/* ── all of them ─────────────────────────────────────────────────────────────────────────── */

/* Of this instance; of one workspace where `id` is not NULL. The answer is a list. */
static int list(struct docker *d, const char *id, struct engine_answer *a, struct err *e)
{
    cleanup_free char *filter = NULL, *escaped = NULL, *path = NULL;
    struct engine_request rq = { .method = "GET", .timeout_ms = d->keys.timeout_ms, .most_bytes = LIST_MAX_BYTES };
    int r;

    if (asprintf(&filter, "{\"label\":[\"" LABEL "instance=%s\"%s%s%s]}", d->mount.instance,
                 id ? ",\"" LABEL "id=" : "", id ? id : "", id ? "\"" : "") < 0)
        filter = NULL;
    escaped = filter ? engine_escape(filter) : NULL;
    if (!escaped || asprintf(&path, "/containers/json?all=1&filters=%s", escaped) < 0) {
        path = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    rq.path = path;
    r = engine_call(d->engine, &rq, a, e);
    if (r < 0)
        return r;
    if (a->status != 200 || !json_object_is_type(a->json, json_type_array))
        return engine_refused(a, "the list of containers", e);
    return 0;
}

static bool is_labelled(const struct docker *d, struct json_object *labels, const char *id)
{
    return strcmp(text_at(labels, LABEL "instance", NULL), d->mount.instance) == 0 &&
           (id ? strcmp(text_at(labels, LABEL "id", NULL), id) == 0 : *text_at(labels, LABEL "id", NULL) != '\0');
}

int container_list(struct docker *d, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r = list(d, NULL, &a, e);

    for (size_t i = 0; r == 0 && i < json_object_array_length(a.json); i++) {
        struct json_object *l = json_object_object_get(json_object_array_get_idx(a.json, i), "Labels");
        const struct backend_found f = { text_at(l, LABEL "id", NULL), text_at(l, LABEL "user", NULL),
                                         text_at(l, LABEL "agent", NULL), text_at(l, LABEL "session", NULL) };
        if (is_labelled(d, l, NULL))
            found(&f, arg);
    }
    return r;
}

/* Labels go along when somebody makes an image of a container of ours and runs that; where its guest listens does
 * not. */
static bool has_its_run(const struct docker *d, const struct backend_workspace *w, struct json_object *container)
{
    struct json_object *mounts = json_object_object_get(container, "Mounts");
    cleanup_free char *run = docker_run_on_engine(d, w);

    for (size_t i = 0; run && json_object_is_type(mounts, json_type_array) && i < json_object_array_length(mounts); i++) {
        struct json_object *m = json_object_array_get_idx(mounts, i);
        if (strcmp(text_at(m, "Destination", NULL), DOCKER_RUN) == 0 && strcmp(text_at(m, "Source", NULL), run) == 0)
            return true;
    }
    return false;
}

int container_end_renamed(struct docker *d, const struct backend_workspace *w, int64_t grace_ms, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    int r = list(d, w->id, &a, e);

    for (size_t i = 0; r == 0 && i < json_object_array_length(a.json); i++) {
        struct json_object *o = json_object_array_get_idx(a.json, i);
        const char *id = text_at(o, "Id", NULL);
        if (is_id(id) && is_labelled(d, json_object_object_get(o, "Labels"), w->id) && has_its_run(d, w, o))
            r = container_end(d, id, grace_ms, e);
    }
    return r;
}

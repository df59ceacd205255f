// SPDX-License-Identifier: Apache-2.0
/* Pulling: Engine API, "Create an image". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/config.h"
#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"

#define LAYERS_MAX 256
#define STALL_MS   300000 /* without a word: an engine tells of each half MiB, and gives up registries that are silent */
#define ALONE_MS   300000 /* for a pull that nobody can cancel: the close of the workspace waits for it */
#define cleanup_answer __attribute__((cleanup(engine_answer_finish)))

struct layer {
    char id[20];
    uint64_t done_bytes, total_bytes;
    bool complete;
};

struct pull {
    struct backend_progress *progress;
    struct layer layers[LAYERS_MAX];
    size_t n;
    char failure[ERR_TEXT_MAX]; /* what a line said; a pull that answers 200 may still fail */
};

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v = json_object_object_get(o, key);

    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

static struct layer *layer_of(struct pull *p, const char *id)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->layers[i].id, id) == 0)
            return &p->layers[i];
    if (p->n == LAYERS_MAX)
        return NULL;
    snprintf(p->layers[p->n].id, sizeof(p->layers[0].id), "%s", id);
    return &p->layers[p->n++];
}

static void tell(struct pull *p)
{
    uint64_t done = 0, total = 0;
    size_t complete = 0;
    char text[64];

    for (size_t i = 0; i < p->n; i++) {
        done += p->layers[i].done_bytes;
        total += p->layers[i].total_bytes;
        complete += p->layers[i].complete;
    }
    snprintf(text, sizeof(text), "%zu of %zu layers", complete, p->n);
    if (p->progress)
        p->progress->step(p->progress, "pull", text, done, total);
}

static uint64_t bytes_of(struct json_object *o, const char *key)
{
    int64_t n = json_object_get_int64(json_object_object_get(o, key));

    return n > 0 ? (uint64_t)n : 0;
}

static void take_layer(struct pull *p, struct json_object *o, const char *status)
{
    struct json_object *detail = json_object_object_get(o, "progressDetail");
    struct layer *l = layer_of(p, text_of(o, "id"));

    if (!l)
        return;
    if (strcmp(status, "Downloading") == 0) {
        l->done_bytes = bytes_of(detail, "current");
        l->total_bytes = bytes_of(detail, "total");
    }
    if (strcmp(status, "Download complete") == 0 || strcmp(status, "Pull complete") == 0 ||
        strcmp(status, "Already exists") == 0) {
        l->done_bytes = l->total_bytes;
        l->complete = true;
    }
    tell(p);
}

static bool on_line(void *arg, struct json_object *o)
{
    struct pull *p = arg;
    struct json_object *detail = json_object_object_get(o, "errorDetail"), *error = json_object_object_get(o, "error");
    const char *status = text_of(o, "status"), *text = text_of(detail, "message");

    if (!*text)
        text = text_of(o, "error");
    if (detail || error)
        snprintf(p->failure, sizeof(p->failure), "%s", *text ? text : "the engine does not say why");
    else if (*text_of(o, "id") && strncmp(status, "Pulling from", 12) != 0)
        take_layer(p, o, status);
    return true;
}

static bool is_cancelled(void *arg)
{
    struct pull *p = arg;

    return p->progress && p->progress->cancelled(p->progress);
}

/* Where the tag or digest begins; without one it is "latest": an engine would pull all tags. */
static size_t repository_length(const char *image, const char **tag)
{
    const char *at = strchr(image, '@'), *slash = strrchr(image, '/'), *colon = strrchr(slash ? slash : image, ':');
    const char *end = at ? at : colon;

    *tag = end ? end + 1 : "latest";
    return end ? (size_t)(end - image) : strlen(image);
}

static char *path_of(const char *image)
{
    const char *tag;
    cleanup_free char *repository = strndup(image, repository_length(image, &tag));
    cleanup_free char *r = repository ? engine_escape(repository) : NULL, *t = engine_escape(tag);
    char *path;

    return r && t && asprintf(&path, "/images/create?fromImage=%s&tag=%s", r, t) >= 0 ? path : NULL;
}

static int refused(const char *image, const char *message, struct err *e)
{
    bool denied = strstr(message, "denied") || strstr(message, "unauthorized") || strstr(message, "authentication");

    return err_set(e, denied ? -EACCES : -ENXIO, "the image %s cannot be pulled: %s", image, message);
}

int image_pull(struct docker *d, struct backend_progress *progress, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    cleanup_free char *path = path_of(d->keys.image), *auth = NULL;
    struct pull *p = calloc(1, sizeof(*p));
    struct engine_request rq = { .method = "POST", .path = path, .line = on_line, .cancelled = is_cancelled, .arg = p };
    int r = path && p ? docker_registry_auth(d->keys.image, &auth, e) : err_set(e, -ENOMEM, "out of memory");

    if (r == 0) {
        p->progress = progress;
        rq.header = auth;
        rq.timeout_ms = progress ? 0 : ALONE_MS;
        rq.stall_ms = STALL_MS;
        r = engine_call(d->engine, &rq, &a, e);
    }
    if (r == 0 && (a.status == 400 || a.status == 503 || !a.said) && a.status != 200)
        r = engine_refused(&a, d->keys.image, e);
    else if (r == 0 && a.status != 200)
        r = refused(d->keys.image, a.text, e);
    else if (r == 0 && *p->failure)
        r = refused(d->keys.image, p->failure, e);
    free(p);
    return r;
}

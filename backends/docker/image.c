// SPDX-License-Identifier: Apache-2.0
/* Pulling: Engine API, "Create an image". */
#include "backends/docker/image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/docker/credentials.h"
#include "backends/docker/flight.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define STALL_MS 300000 /* without a word: an engine tells of each half MiB, and gives up registries that are silent */
#define TELL_MS  250    /* between two words on bytes: an engine has one for each layer ten times a second */
#define cleanup_answer __attribute__((cleanup(engine_answer_finish)))

/* ── what an engine says meanwhile ───────────────────────────────────────────────────────── */

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v = json_object_object_get(o, key);

    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

static struct image_layer *layer_of(struct image_stream *s, const char *id)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->layers[i].id, id) == 0)
            return &s->layers[i];
    if (s->n == LAYERS_MAX)
        return NULL;
    snprintf(s->layers[s->n].id, sizeof(s->layers[0].id), "%s", id);
    return &s->layers[s->n++];
}

static void tell(struct image_stream *s)
{
    uint64_t done = 0, total = 0;
    size_t complete = 0;
    char text[64];

    for (size_t i = 0; i < s->n; i++) {
        done += s->layers[i].done_bytes;
        total += s->layers[i].total_bytes;
        complete += s->layers[i].complete;
    }
    snprintf(text, sizeof(text), "%zu of %zu layers", complete, s->n);
    s->progress->step(s->progress, "pull", text, done, total);
}

static uint64_t bytes_of(struct json_object *o, const char *key)
{
    int64_t n = json_object_get_int64(json_object_object_get(o, key));

    return n > 0 ? (uint64_t)n : 0;
}

static bool is_time(struct image_stream *s)
{
    int64_t now_ms = clock_ns() / 1000000;

    if (s->told_ms && now_ms - s->told_ms < TELL_MS)
        return false;
    s->told_ms = now_ms;
    return true;
}

static void take_layer(struct image_stream *s, struct json_object *o, const char *status)
{
    struct json_object *detail = json_object_object_get(o, "progressDetail");
    size_t before = s->n;
    struct image_layer *l = layer_of(s, text_of(o, "id"));
    bool was_complete = l && l->complete;

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
    if (s->n > before || l->complete != was_complete || is_time(s))
        tell(s);
}

/* Copies the first line that is not empty, without escape sequences and other control characters. */
static void copy_line(char *out, size_t size, const char *from)
{
    size_t n = 0;

    for (; *from && n + 1 < size && !(n && *from == '\n'); from++) {
        if (*from == '\033' && from[1] == '[') {
            from += 2;
            from += strspn(from, "0123456789;?");
            if (!*from)
                break;
        } else if ((unsigned char)*from >= ' ' && *from != 0x7f) {
            out[n++] = *from;
        }
    }
    out[n] = '\0';
}

/* A line of a build: the beginning of a step, or what the step prints. */
static void take_output(struct image_stream *s, const char *text)
{
    char line[sizeof(s->step)];

    copy_line(line, sizeof(line), text);
    if (strncmp(line, "Step ", 5) == 0) {
        memcpy(s->step, line, sizeof(line));
        *s->said = '\0';
        s->progress->step(s->progress, "build", s->step, 0, 0);
    } else if (*line && strncmp(line, " ---> ", 6) != 0 && strncmp(line, "Removing intermediate ", 22) != 0) {
        copy_line(s->said, sizeof(s->said), text);
    }
}

bool image_stream_line(void *arg, struct json_object *o)
{
    struct image_stream *s = arg;
    struct json_object *detail = json_object_object_get(o, "errorDetail"), *error = json_object_object_get(o, "error");
    const char *status = text_of(o, "status"), *text = text_of(detail, "message");

    if (!*text)
        text = text_of(o, "error");
    if (detail || error)
        copy_line(s->failure, sizeof(s->failure), *text ? text : "the engine does not say why");
    else if (*text_of(o, "stream"))
        take_output(s, text_of(o, "stream"));
    else if (*text_of(o, "id") && strncmp(status, "Pulling from", 12) != 0)
        take_layer(s, o, status);
    return true;
}

bool image_stream_cancelled(void *arg)
{
    struct image_stream *s = arg;

    return s->progress->cancelled(s->progress);
}

bool image_is_denied(const char *message)
{
    static const char *const words[] = { "denied", "unauthorized", "authentication", "no basic auth credentials" };

    for (size_t i = 0; i < array_size(words); i++)
        if (strstr(message, words[i]))
            return true;
    return false;
}

/* ── pulling ─────────────────────────────────────────────────────────────────────────────── */

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

/* Why there were no credentials is only of interest to who would have needed them. */
static int refused(const char *image, const char *message, const char *trouble, struct err *e)
{
    bool denied = image_is_denied(message);
    const char *more = denied && *trouble ? trouble : "";

    return err_set(e, denied ? -EACCES : -ENXIO, "the image %s cannot be pulled: %s%s%s%s", image, message,
                   *more ? " (" : "", more, *more ? ")" : "");
}

static int pull(struct docker *d, struct backend_progress *progress, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    cleanup_free char *path = path_of(d->keys.image), *auth = NULL;
    cleanup_free struct image_stream *s = calloc(1, sizeof(*s));
    struct engine_request rq = { .method = "POST", .path = path, .line = image_stream_line,
                                 .cancelled = image_stream_cancelled, .arg = s };
    struct err trouble = { 0 };
    int r;

    if (!path || !s)
        return err_set(e, -ENOMEM, "out of memory");
    s->progress = progress;
    r = credentials_header(d->keys.image, image_stream_cancelled, s, &auth, &trouble, e);
    if (r < 0)
        return r;
    rq.header = auth;
    rq.stall_ms = STALL_MS;
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0)
        return r;
    if (a.status != 200 && (a.status == 400 || a.status == 503 || !a.said))
        return engine_refused(&a, d->keys.image, e);
    if (a.status != 200)
        return refused(d->keys.image, a.text, trouble.text, e);
    return *s->failure ? refused(d->keys.image, s->failure, trouble.text, e) : 0;
}

/* ── either way ──────────────────────────────────────────────────────────────────────────── */

struct wish {
    struct docker *d;
    const char *name;
};

static int fetch(void *arg, struct backend_progress *p, struct err *e)
{
    struct wish *w = arg;

    return w->d->keys.build ? image_build(w->d, w->name, p, e) : pull(w->d, p, e);
}

int image_name(struct docker *d, struct backend_progress *p, char built[IMAGE_BUILT_SIZE], const char **out, struct err *e)
{
    int r = d->keys.build ? image_build_name(d, p, built, e) : 0;

    if (r == 0)
        *out = d->keys.build ? built : d->keys.image;
    return r;
}

int image_fetch(struct docker *d, const char *name, struct backend_progress *p, struct err *e)
{
    struct wish w = { d, name };

    return flights_join(d->flights, name, p, fetch, &w, e);
}

// SPDX-License-Identifier: Apache-2.0
/* What happens to containers behind our back: Engine API, "Monitor events". The engine's delivery is best effort
 * and its stream ends when it restarts, so what an event says is believed in one point alone: it is time to look. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define PAUSE_FIRST_MS 100
#define PAUSE_MOST_MS  10000
#define PING_MS        10000

struct docker_watch {
    struct docker *docker;
    struct engine_stopper *stopper;
    pthread_t thread;
    int64_t   since_ns; /* wall clock of the engine, which is on this host: what came before has been told */
};

static int64_t wall_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v = json_object_object_get(o, key);

    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

/* One event. */
static bool on_event(void *arg, struct json_object *o)
{
    struct docker_watch *w = arg;
    const struct backend_mount *m = &w->docker->mount;
    struct json_object *labels = json_object_object_get(json_object_object_get(o, "Actor"), "Attributes");
    const char *action = text_of(o, "Action"), *id = text_of(labels, DOCKER_LABEL "id");
    int64_t time_ns = json_object_get_int64(json_object_object_get(o, "timeNano"));

    if (time_ns >= w->since_ns)
        w->since_ns = time_ns + 1;
    if (strcmp(text_of(labels, DOCKER_LABEL "instance"), m->instance) != 0 || !*id)
        return true;
    log_debug("the engine tells of the container of %s: %s", id, action);
    m->noticed(m->core, id, strcmp(action, "oom") == 0 ? "its memory was full, and a process in it was killed (OOM)" : NULL);
    return true;
}

/* The path of the request; malloc'ed. `remove` is Podman's word for `destroy`. */
static char *events_path(const struct docker_watch *w)
{
    cleanup_free char *filters = NULL, *escaped = NULL;
    char *path;

    if (asprintf(&filters, "{\"type\":[\"container\"],\"label\":[\"" DOCKER_LABEL "instance=%s\"],"
                 "\"event\":[\"die\",\"oom\",\"pause\",\"unpause\",\"destroy\",\"remove\"]}", w->docker->mount.instance) < 0)
        filters = NULL;
    escaped = filters ? engine_escape(filters) : NULL;
    if (!escaped || asprintf(&path, "/events?since=%lld.%09lld&filters=%s", (long long)(w->since_ns / 1000000000),
                             (long long)(w->since_ns % 1000000000), escaped) < 0)
        return NULL;
    return path;
}

static bool answers(struct docker_watch *w)
{
    const struct engine_request rq = { .method = "GET", .path = "/_ping", .timeout_ms = PING_MS, .stopper = w->stopper };
    struct engine_answer a = { 0 };
    bool good = engine_call(w->docker->engine, &rq, &a, NULL) == 0 && a.status == 200;

    engine_answer_finish(&a);
    return good;
}

/* Until the stream ends. True: there was one. Whatever happened while nothing was heard is found by looking at
 * all; what happens from then on is in the stream, which begins in the past. */
static bool follow(struct docker_watch *w)
{
    const struct backend_mount *m = &w->docker->mount;
    cleanup_free char *path = events_path(w);
    const struct engine_request rq = { .method = "GET", .path = path, .line = on_event, .arg = w, .stopper = w->stopper };
    struct engine_answer a = { 0 };
    struct err e = { 0 };
    bool good;
    int r;

    if (!path || !answers(w))
        return false;
    m->noticed(m->core, NULL, NULL);
    r = engine_call(w->docker->engine, &rq, &a, &e);
    good = a.status == 200 || (r < 0 && r != -ECANCELED);
    log_debug("the stream of the engine's events ended: %s", r < 0 ? e.text : a.status == 200 ? "by the engine" : a.text);
    engine_answer_finish(&a);
    return good;
}

static void *run(void *arg)
{
    struct docker_watch *w = arg;
    int pause_ms = PAUSE_FIRST_MS;

    do {
        if (follow(w))
            pause_ms = PAUSE_FIRST_MS;
        else
            pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
    } while (engine_stopper_wait(w->stopper, pause_ms));
    return NULL;
}

static int start_thread(struct docker_watch *w)
{
    sigset_t all, old;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = -pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

int docker_watch_start(struct docker *d)
{
    struct docker_watch *w;
    int r;

    if (!d->mount.noticed || d->watch)
        return 0;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->docker = d;
    w->since_ns = wall_ns();
    w->stopper = engine_stopper_create();
    r = w->stopper ? start_thread(w) : -ENOMEM;
    if (r < 0) {
        engine_stopper_destroy(w->stopper);
        free(w);
        return r;
    }
    d->watch = w;
    return 0;
}

void docker_watch_stop(struct docker *d)
{
    struct docker_watch *w = d->watch;

    if (!w)
        return;
    engine_stop(w->stopper);
    pthread_join(w->thread, NULL);
    engine_stopper_destroy(w->stopper);
    free(w);
    d->watch = NULL;
}

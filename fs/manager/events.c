// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/events.h"

#include <json-c/json.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/base/timers.h"
#include "fs/manager/json.h"

#define FIRST_BYTES 512

struct events {
    /* Guards all below; a leaf of the order: no listener is called with it held. */
    pthread_mutex_t lock;
    pthread_cond_t  called; /* a listener's call has returned */
    char    *buf;           /* whole lines from position `base` on */
    size_t   used, allocated, max_bytes;
    uint64_t base;
    struct list listeners;
    uint64_t  changes;      /* what listeners have or have not been told */
    bool      notifying;    /* a thread goes through the listeners */
    struct events_listener *running;
    pthread_t notifier;
};

struct events *events_create(size_t max_bytes)
{
    struct events *ev = calloc(1, sizeof(*ev));

    if (!ev)
        return NULL;
    pthread_mutex_init(&ev->lock, NULL);
    pthread_cond_init(&ev->called, NULL);
    list_init(&ev->listeners);
    ev->max_bytes = max_bytes;
    return ev;
}

void events_destroy(struct events *ev)
{
    if (!ev)
        return;
    pthread_cond_destroy(&ev->called);
    pthread_mutex_destroy(&ev->lock);
    free(ev->buf);
    free(ev);
}

/* Drops the oldest lines until `need` more bytes fit, and a quarter of the ring beyond, so that not
 * every line moves all the others. */
static void drop_oldest(struct events *ev, size_t need)
{
    size_t keep = ev->max_bytes - ev->max_bytes / 4;
    size_t cut = 0;

    if (ev->used + need <= ev->max_bytes)
        return;
    keep = keep > need ? keep - need : 0;
    while (ev->used - cut > keep) {
        const char *nl = memchr(ev->buf + cut, '\n', ev->used - cut);
        cut = nl ? (size_t)(nl - ev->buf) + 1 : ev->used;
    }
    memmove(ev->buf, ev->buf + cut, ev->used - cut);
    ev->used -= cut;
    ev->base += cut;
}

static bool make_room(struct events *ev, size_t need)
{
    size_t size = ev->allocated ? ev->allocated : FIRST_BYTES;
    char  *bigger;

    if (need > ev->max_bytes)
        return false;
    drop_oldest(ev, need);
    while (size < ev->used + need)
        size *= 2;
    if (size == ev->allocated)
        return true;
    bigger = realloc(ev->buf, size);
    if (!bigger)
        return false;
    ev->buf = bigger;
    ev->allocated = size;
    return true;
}

/* The next listener that has not been told of the last change. */
static struct events_listener *next_listener(struct events *ev)
{
    list_for_each(pos, &ev->listeners) {
        struct events_listener *l = container_of(pos, struct events_listener, links);
        if (l->told != ev->changes)
            return l;
    }
    return NULL;
}

/* Tells all listeners; `lock` is held at the call and at the return. One thread at a time does it:
 * what others add meanwhile it tells as well. */
static void notify_locked(struct events *ev)
{
    struct events_listener *l;

    ev->changes++;
    if (ev->notifying)
        return;
    ev->notifying = true;
    ev->notifier = pthread_self();
    while ((l = next_listener(ev))) {
        l->told = ev->changes;
        ev->running = l;
        pthread_mutex_unlock(&ev->lock);
        l->more(l);
        pthread_mutex_lock(&ev->lock);
        ev->running = NULL;
        pthread_cond_broadcast(&ev->called);
    }
    ev->notifying = false;
}

void events_add_line(struct events *ev, const char *line)
{
    size_t len = strlen(line);
    scoped_lock(&ev->lock);

    if (!make_room(ev, len + 1))
        return;
    memcpy(ev->buf + ev->used, line, len);
    ev->buf[ev->used + len] = '\n';
    ev->used += len + 1;
    notify_locked(ev);
}

void events_poke(struct events *ev)
{
    scoped_lock(&ev->lock);

    notify_locked(ev);
}

void events_add(struct events *ev, const char *event, const char *id, const char *user,
                const char *agent, const char *session, const char *text)
{
    struct json_object *o = json_object_new_object();
    char time[JSON_TIME_MAX];

    if (!o)
        return;
    json_put_text(o, "time", json_time(wall_ms(), time));
    json_put_text(o, "event", event);
    json_put_text(o, "id", id);
    json_put_text(o, "user", user);
    json_put_text(o, "agent", agent);
    json_put_text(o, "session", session);
    json_put_text(o, "text", text);
    events_add_line(ev, json_line(o));
    json_object_put(o);
}

uint64_t events_end(struct events *ev)
{
    scoped_lock(&ev->lock);

    return ev->base + ev->used;
}

/* How much of the `n` bytes at `from` is whole lines within `size`; all of `size` when not even one
 * line fits. */
static size_t whole_lines(const char *from, size_t n, size_t size)
{
    const char *last;

    if (n <= size)
        return n;
    last = memrchr(from, '\n', size);
    return last ? (size_t)(last - from) + 1 : size;
}

/* Says that `bytes` were lost, where that fits. */
static size_t say_lost(uint64_t bytes, char *buf, size_t size)
{
    char time[JSON_TIME_MAX];
    int  n = snprintf(buf, size, "{\"time\":\"%s\",\"event\":\"lost\",\"bytes\":%llu}\n",
                      json_time(wall_ms(), time), (unsigned long long)bytes);

    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

size_t events_read(struct events *ev, uint64_t *pos, char *buf, size_t size)
{
    size_t lost = 0, n;
    scoped_lock(&ev->lock);

    if (*pos < ev->base) {
        lost = say_lost(ev->base - *pos, buf, size);
        *pos = ev->base;
    }
    if (*pos >= ev->base + ev->used)
        return lost;
    size_t at = (size_t)(*pos - ev->base);
    n = whole_lines(ev->buf + at, ev->used - at, size - lost);
    memcpy(buf + lost, ev->buf + at, n);
    *pos += n;
    return lost + n;
}

void events_listen(struct events *ev, struct events_listener *l)
{
    scoped_lock(&ev->lock);

    l->told = ev->changes;
    list_append(&ev->listeners, &l->links);
}

void events_unlisten(struct events *ev, struct events_listener *l)
{
    scoped_lock(&ev->lock);

    list_remove(&l->links);
    while (ev->running == l && !pthread_equal(ev->notifier, pthread_self()))
        pthread_cond_wait(&ev->called, &ev->lock);
}

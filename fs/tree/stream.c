// SPDX-License-Identifier: Apache-2.0
/* Streams: files whose reader waits for what comes next. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/base/cleanup.h"
#include "fs/tree/control.h"

#define READ_MAX_BYTES 65536

struct stream {
    struct handle h;
    struct fs    *fs;
    const struct stream_source *source;
    struct place *place;          /* referenced; NULL: the manager */
    struct events_listener listener;
    struct task   task;           /* serves the readers after news */
    atomic_uint   refs;           /* the open file, a queued task, each waiting reader's interruption */
    atomic_bool   queued;         /* the task is */
    pthread_mutex_t lock;         /* guards what follows; a leaf but for the source's own */
    uint64_t      pos;
    struct list   readers;        /* struct stream_read */
    struct fuse_pollhandle *poll; /* the newest; NULL: nobody polls */
};

/* A read that waits. */
struct stream_read {
    struct list    links;
    struct stream *stream;
    fuse_req_t     req;
    size_t         size;
    struct task    interruption;
    atomic_uint    refs;         /* the list's, a queued interruption's */
    atomic_bool    interrupted;
};

static void stream_put(struct stream *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    if (s->place)
        place_unref(s->place);
    if (s->poll)
        fuse_pollhandle_destroy(s->poll);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void read_put(struct stream_read *r)
{
    struct stream *s = r->stream;
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    free(r);
    stream_put(s);
}

/* ── interruption ────────────────────────────────────────────────────────────────────────── */

static void run_interruption(struct task *t)
{
    struct stream_read *r = container_of(t, struct stream_read, interruption);
    struct stream *s = r->stream;
    pthread_mutex_lock(&s->lock);
    bool waiting = !list_empty(&r->links);
    list_remove(&r->links);
    pthread_mutex_unlock(&s->lock);
    if (waiting) {
        fuse_req_interrupt_func(r->req, NULL, NULL);
        fuse_reply_err(r->req, EINTR);
        read_put(r);
    }
    read_put(r);
}

/* As in wait.c: a lock of the request is held. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct stream_read *r = data;
    (void)req;
    if (atomic_exchange(&r->interrupted, true))
        return;
    atomic_fetch_add(&r->refs, 1);
    pool_add(r->stream->fs->pool, &r->interruption);
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

/* Lock held. True when a reader gets an answer now, be it the end. */
static bool fetch(struct stream *s, uint64_t *pos, char *buf, size_t size, size_t *n)
{
    bool more = false;
    *n = s->source->read(s->fs, s->place, pos, buf, size, &more);
    return *n || !more;
}

static void wait_for_more(struct stream *s, fuse_req_t req, size_t size)
{
    struct stream_read *r = calloc(1, sizeof *r);
    if (!r) {
        pthread_mutex_unlock(&s->lock);
        fuse_reply_err(req, ENOMEM);
        return;
    }
    r->stream = s;
    r->req = req;
    r->size = size;
    r->interruption.run = run_interruption;
    atomic_init(&r->refs, 2);
    atomic_fetch_add(&s->refs, 1);
    list_append(&s->readers, &r->links);
    pthread_mutex_unlock(&s->lock);
    /* it may have been answered meanwhile, but our reference keeps the request's memory only if we
     * look first */
    pthread_mutex_lock(&s->lock);
    if (!list_empty(&r->links))
        fuse_req_interrupt_func(req, on_interrupt, r);
    pthread_mutex_unlock(&s->lock);
    read_put(r);
}

static void read_stream(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                        struct fuse_file_info *fi)
{
    struct stream *s = container_of(h, struct stream, h);
    size_t n, room = size < READ_MAX_BYTES ? size : READ_MAX_BYTES;
    cleanup_free char *buf = malloc(room);
    (void)fs;
    (void)off;
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    pthread_mutex_lock(&s->lock);
    bool done = fetch(s, &s->pos, buf, room, &n);
    if (!done && !(fi->flags & O_NONBLOCK)) {
        wait_for_more(s, req, room); /* unlocks */
        return;
    }
    pthread_mutex_unlock(&s->lock);
    if (done)
        fuse_reply_buf(req, buf, n);
    else
        fuse_reply_err(req, EAGAIN);
}

/* The first reader and what it gets; NULL when nobody waits or there is nothing yet. */
static struct stream_read *next_served(struct stream *s, char *buf, size_t *n)
{
    scoped_lock(&s->lock);
    if (list_empty(&s->readers))
        return NULL;
    struct stream_read *r = container_of(s->readers.next, struct stream_read, links);
    if (!fetch(s, &s->pos, buf, r->size, n))
        return NULL;
    list_remove(&r->links);
    return r;
}

static void tell_poller(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    struct fuse_pollhandle *ph = steal_ptr(&s->poll);
    pthread_mutex_unlock(&s->lock);
    if (!ph)
        return;
    fuse_lowlevel_notify_poll(ph);
    fuse_pollhandle_destroy(ph);
}

static void serve(struct task *t)
{
    struct stream *s = container_of(t, struct stream, task);
    cleanup_free char *buf = malloc(READ_MAX_BYTES);
    size_t n;
    atomic_store(&s->queued, false);
    for (struct stream_read *r; buf && (r = next_served(s, buf, &n));) {
        fuse_req_interrupt_func(r->req, NULL, NULL);
        fuse_reply_buf(r->req, buf, n);
        read_put(r);
    }
    tell_poller(s);
    stream_put(s);
}

static void on_more(struct events_listener *l)
{
    struct stream *s = container_of(l, struct stream, listener);
    if (atomic_exchange(&s->queued, true))
        return;
    atomic_fetch_add(&s->refs, 1);
    pool_add(s->fs->pool, &s->task);
}

static void poll_stream(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi,
                        struct fuse_pollhandle *ph)
{
    struct stream *s = container_of(h, struct stream, h);
    struct fuse_pollhandle *old = ph;
    char buf[4096];
    size_t n;
    (void)fs;
    (void)fi;
    pthread_mutex_lock(&s->lock);
    uint64_t pos = s->pos;
    if (ph) {
        old = s->poll;
        s->poll = ph;
    }
    bool ready = fetch(s, &pos, buf, sizeof buf, &n);
    pthread_mutex_unlock(&s->lock);
    if (old)
        fuse_pollhandle_destroy(old);
    fuse_reply_poll(req, ready ? POLLIN | POLLRDNORM : 0);
}

/* ── life ────────────────────────────────────────────────────────────────────────────────── */

static void drop_stream(struct fs *fs, struct handle *h)
{
    struct stream *s = container_of(h, struct stream, h);
    handle_remove(fs, h);
    s->source->unlisten(fs, s->place, &s->listener);
    stream_put(s);
}

static const struct handle_ops stream_ops = {
    .read = read_stream,
    .poll = poll_stream,
    .drop = drop_stream,
};

void stream_open(struct fs *fs, fuse_req_t req, const struct stream_source *source, struct place *p,
                 struct fuse_file_info *fi)
{
    struct stream *s = calloc(1, sizeof *s);
    int r = s ? handle_add(fs, &s->h, fi) : -ENOMEM;
    if (r < 0) {
        free(s);
        fuse_reply_err(req, -r);
        return;
    }
    s->h.ops = &stream_ops;
    s->fs = fs;
    s->source = source;
    s->place = p;
    if (p)
        place_ref(p);
    s->listener.more = on_more;
    s->task.run = serve;
    atomic_init(&s->refs, 1);
    list_init(&s->readers);
    pthread_mutex_init(&s->lock, NULL);
    s->pos = source->start(fs, p);
    source->listen(fs, p, &s->listener);
    fi->direct_io = 1;
    fi->nonseekable = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        drop_stream(fs, &s->h);
}

/* ── sources ─────────────────────────────────────────────────────────────────────────────── */

static uint64_t start_progress(struct fs *fs, struct place *p)
{
    (void)fs;
    (void)p;
    return 0;
}

static size_t read_progress(struct fs *fs, struct place *p, uint64_t *pos, char *buf, size_t size, bool *more)
{
    (void)fs;
    return session_progress_read(p, pos, buf, size, more);
}

static void listen_progress(struct fs *fs, struct place *p, struct events_listener *l)
{
    (void)fs;
    session_progress_listen(p, l);
}

static void unlisten_progress(struct fs *fs, struct place *p, struct events_listener *l)
{
    (void)fs;
    session_progress_unlisten(p, l);
}

static uint64_t start_events(struct fs *fs, struct place *p)
{
    (void)p;
    return events_end(manager_events(fs->manager));
}

static size_t read_events(struct fs *fs, struct place *p, uint64_t *pos, char *buf, size_t size, bool *more)
{
    (void)p;
    *more = true;
    return events_read(manager_events(fs->manager), pos, buf, size);
}

static void listen_events(struct fs *fs, struct place *p, struct events_listener *l)
{
    (void)p;
    events_listen(manager_events(fs->manager), l);
}

static void unlisten_events(struct fs *fs, struct place *p, struct events_listener *l)
{
    (void)p;
    events_unlisten(manager_events(fs->manager), l);
}

const struct stream_source progress_source = {start_progress, read_progress, listen_progress, unlisten_progress};
const struct stream_source events_source = {start_events, read_events, listen_events, unlisten_events};

// SPDX-License-Identifier: Apache-2.0
/* Open files whose users wait for the job: its streams and `exit` for what comes, `stdin` for room. A
 * request that waits is parked and answered from a thread of the pool, or where its output arrives. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/base/cleanup.h"
#include "fs/tree/jobs.h"

#define READ_MAX_BYTES (1u << 20)

/* What a request is answered with. */
struct outcome {
    int    err;     /* 0 or positive */
    char  *text;    /* malloc'ed; of a read */
    size_t size;
    bool   written;
};

struct follow;

struct follow_kind {
    /* True: *out is the answer now. Lock held; `size` is the request's. */
    bool (*fetch)(struct follow *f, size_t size, struct outcome *out);
    short (*ready)(struct follow *f); /* poll(2)'s events; lock held */
};

struct follow {
    struct handle h;
    struct fs    *fs;
    struct job   *job;   /* referenced */
    const struct follow_kind *kind;
    struct job_listener listener;
    struct job_reader   reader;   /* of a stream */
    atomic_uint     refs;         /* the open file, each interruption, each running more() */
    /* Guards what follows: who reads, and how far. Held while bytes of the spool are fetched, since two
     * readers of one open file come one behind the other; only they wait. */
    pthread_mutex_t lock;
    size_t          exit_at;      /* of `exit`: read so far */
    struct list     parked;       /* struct parked */
    struct fuse_pollhandle *poll; /* the newest; NULL: nobody polls */
};

/* A request that waits. */
struct parked {
    struct list    links;
    struct follow *follow;
    fuse_req_t     req;
    size_t         size;
    struct task    interruption;
    atomic_uint    refs;         /* the list's, a queued interruption's, who parks it */
    atomic_bool    interrupted;
};

static struct follow *of(struct handle *h)
{
    return container_of(h, struct follow, h);
}

static void follow_put(struct follow *f)
{
    if (atomic_fetch_sub(&f->refs, 1) != 1)
        return;
    job_unref(f->job);
    if (f->poll)
        fuse_pollhandle_destroy(f->poll);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void parked_put(struct parked *p)
{
    struct follow *f = p->follow;
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    free(p);
    follow_put(f);
}

static void answer(fuse_req_t req, const struct outcome *o)
{
    if (o->err)
        fuse_reply_err(req, o->err);
    else if (o->written)
        fuse_reply_write(req, o->size);
    else
        fuse_reply_buf(req, o->text, o->size);
    free(o->text);
}

/* ── interruption ────────────────────────────────────────────────────────────────────────── */

/* A write's bytes have been taken: then it has succeeded. */
static void answer_interrupted(struct parked *p)
{
    bool write = p->follow->h.ops->write;
    const struct outcome o = {.err = write ? 0 : EINTR, .written = write, .size = p->size};
    fuse_req_interrupt_func(p->req, NULL, NULL);
    answer(p->req, &o);
    parked_put(p);
}

static void run_interruption(struct task *t)
{
    struct parked *p = container_of(t, struct parked, interruption);
    struct follow *f = p->follow;
    pthread_mutex_lock(&f->lock);
    bool waiting = !list_empty(&p->links);
    list_remove(&p->links);
    pthread_mutex_unlock(&f->lock);
    if (waiting)
        answer_interrupted(p);
    parked_put(p);
}

/* As in wait.c: a lock of the request is held. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct parked *p = data;
    (void)req;
    if (atomic_exchange(&p->interrupted, true))
        return;
    atomic_fetch_add(&p->refs, 1);
    pool_add(p->follow->fs->pool, &p->interruption);
}

/* ── waiting ─────────────────────────────────────────────────────────────────────────────── */

/* Lock held: whether anybody waits. */
static void settle_waits_locked(struct follow *f)
{
    atomic_store(&f->listener.waits, f->poll || !list_empty(&f->parked));
}

/* Lock held; NULL: out of memory. */
static struct parked *park_locked(struct follow *f, fuse_req_t req, size_t size)
{
    struct parked *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->follow = f;
    p->req = req;
    p->size = size;
    p->interruption.run = run_interruption;
    atomic_init(&p->refs, 2);
    atomic_fetch_add(&f->refs, 1);
    list_append(&f->parked, &p->links);
    return p;
}

/* Answers now, or parks. */
static void serve_or_park(struct follow *f, fuse_req_t req, size_t size, bool nonblock)
{
    struct outcome o = {0};
    struct parked *p = NULL;
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->listener.waits, true);
    bool done = f->kind->fetch(f, size, &o);
    if (!done && !nonblock)
        p = park_locked(f, req, size);
    settle_waits_locked(f);
    pthread_mutex_unlock(&f->lock);
    if (!p) {
        if (!done)
            o.err = nonblock ? EAGAIN : ENOMEM;
        answer(req, &o);
        return;
    }
    /* it may have been answered meanwhile, but our reference keeps the memory; the request's own lives
     * only as long as it is in the list */
    pthread_mutex_lock(&f->lock);
    if (!list_empty(&p->links))
        fuse_req_interrupt_func(req, on_interrupt, p);
    pthread_mutex_unlock(&f->lock);
    parked_put(p);
}

static struct parked *next_served(struct follow *f, struct outcome *o)
{
    scoped_lock(&f->lock);
    if (list_empty(&f->parked))
        return NULL;
    struct parked *p = container_of(f->parked.next, struct parked, links);
    if (!f->kind->fetch(f, p->size, o))
        return NULL;
    list_remove(&p->links);
    settle_waits_locked(f);
    return p;
}

static void tell_poller(struct follow *f)
{
    pthread_mutex_lock(&f->lock);
    struct fuse_pollhandle *ph = f->poll && f->kind->ready(f) ? steal_ptr(&f->poll) : NULL;
    settle_waits_locked(f);
    pthread_mutex_unlock(&f->lock);
    if (!ph)
        return;
    fuse_lowlevel_notify_poll(ph);
    fuse_pollhandle_destroy(ph);
}

static void on_more(struct job_listener *l)
{
    struct follow *f = container_of(l, struct follow, listener);
    struct outcome o = {0};
    for (struct parked *p; (p = next_served(f, &o)); o = (struct outcome){0}) {
        fuse_req_interrupt_func(p->req, NULL, NULL);
        answer(p->req, &o);
        parked_put(p);
    }
    tell_poller(f);
}

/* The first reader and how much it gets of these bytes; NULL when nobody waits for just them. */
static struct parked *next_offered(struct follow *f, uint64_t at, size_t *size)
{
    scoped_lock(&f->lock);
    if (list_empty(&f->parked))
        return NULL;
    struct parked *p = container_of(f->parked.next, struct parked, links);
    if (p->size < *size)
        *size = p->size;
    if (!job_reader_take(f->job, &f->reader, at, *size))
        return NULL;
    list_remove(&p->links);
    settle_waits_locked(f);
    return p;
}

static void on_offer(struct job_listener *l, uint64_t at, const void *data, size_t size)
{
    struct parked *p = next_offered(container_of(l, struct follow, listener), at, &size);
    if (!p)
        return;
    fuse_req_interrupt_func(p->req, NULL, NULL);
    fuse_reply_buf(p->req, data, size);
    parked_put(p);
}

static void hold(struct job_listener *l)
{
    atomic_fetch_add(&container_of(l, struct follow, listener)->refs, 1);
}

static void put(struct job_listener *l)
{
    follow_put(container_of(l, struct follow, listener));
}

static void poll_follow(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi,
                        struct fuse_pollhandle *ph)
{
    struct follow *f = of(h);
    struct fuse_pollhandle *old = NULL;
    (void)fs;
    (void)fi;
    pthread_mutex_lock(&f->lock);
    if (ph) {
        old = f->poll;
        f->poll = ph;
    }
    settle_waits_locked(f); /* before the look */
    short events = f->kind->ready(f);
    pthread_mutex_unlock(&f->lock);
    if (old)
        fuse_pollhandle_destroy(old);
    fuse_reply_poll(req, (unsigned)events);
}

/* ── streams ─────────────────────────────────────────────────────────────────────────────── */

static bool fetch_stream(struct follow *f, size_t size, struct outcome *out)
{
    if (!job_reader_ready(f->job, &f->reader))
        return false;
    out->text = malloc(size ? size : 1);
    ssize_t n = out->text ? job_reader_read(f->job, &f->reader, out->text, size) : -ENOMEM;
    if (n == -EAGAIN) {
        free(steal_ptr(&out->text));
        return false;
    }
    out->err = n < 0 ? (int)-n : 0;
    out->size = n < 0 ? 0 : (size_t)n;
    return true;
}

static short ready_stream(struct follow *f)
{
    return job_reader_ready(f->job, &f->reader) ? POLLIN | POLLRDNORM : 0;
}

static bool fetch_exit(struct follow *f, size_t size, struct outcome *out)
{
    size_t all = 0;
    int64_t changed_ms;
    cleanup_free char *text = job_exit_text(f->job, &all, &changed_ms);
    if (!text)
        return false;
    out->size = all - f->exit_at < size ? all - f->exit_at : size;
    out->text = malloc(out->size + 1);
    if (!out->text) {
        out->err = ENOMEM;
        return true;
    }
    for (size_t i = 0; i < out->size; i++)
        out->text[i] = text[f->exit_at + i];
    f->exit_at += out->size;
    return true;
}

static short ready_exit(struct follow *f)
{
    return job_state(f->job) == JOB_ENDED ? POLLIN | POLLRDNORM : 0;
}

/* A pipe has no place: the offset means nothing while the job runs. */
static void read_follow(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                        struct fuse_file_info *fi)
{
    (void)fs;
    (void)off;
    serve_or_park(of(h), req, size < READ_MAX_BYTES ? size : READ_MAX_BYTES, fi->flags & O_NONBLOCK);
}

/* ── stdin ───────────────────────────────────────────────────────────────────────────────── */

/* The bytes have been taken; the writer goes on when most of them have been handed on. */
static bool fetch_room(struct follow *f, size_t size, struct outcome *out)
{
    *out = (struct outcome){.written = true, .size = size};
    return job_stdin_ready(f->job);
}

static short ready_room(struct follow *f)
{
    if (job_stdin_broken(f->job))
        return POLLERR | POLLOUT | POLLWRNORM;
    return job_stdin_ready(f->job) ? POLLOUT | POLLWRNORM : 0;
}

static void write_stdin(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                        struct fuse_file_info *fi)
{
    struct follow *f = of(h);
    bool nonblock = fi->flags & O_NONBLOCK;
    struct err e = {0};
    size_t size;
    (void)fs;
    (void)off;
    if (nonblock && !job_stdin_ready(f->job)) {
        fuse_reply_err(req, EAGAIN);
        return;
    }
    cleanup_free char *data = job_write_bytes(req, in, &size);
    if (!data)
        return;
    int r = job_stdin_write(f->job, data, size, &e);
    if (r < 0) {
        if (r != -EPIPE) /* which says it all */
            job_say(job_session(f->job), &e);
        fuse_reply_err(req, -r);
    } else if (nonblock)
        fuse_reply_write(req, size);
    else
        serve_or_park(f, req, size, false);
}

/* ── life ────────────────────────────────────────────────────────────────────────────────── */

static const struct follow_kind stream_kind = {fetch_stream, ready_stream};
static const struct follow_kind exit_kind = {fetch_exit, ready_exit};
static const struct follow_kind stdin_kind = {fetch_room, ready_room};

/* Who still waits, waits in vain: the mount ends. */
static void end_parked(struct follow *f)
{
    for (;;) {
        struct parked *p = NULL;
        pthread_mutex_lock(&f->lock);
        if (!list_empty(&f->parked)) {
            p = container_of(f->parked.next, struct parked, links);
            list_remove(&p->links);
        }
        pthread_mutex_unlock(&f->lock);
        if (!p)
            return;
        answer_interrupted(p);
    }
}

static void drop_follow(struct fs *fs, struct handle *h)
{
    struct follow *f = of(h);
    handle_remove(fs, h);
    job_unlisten(f->job, &f->listener);
    end_parked(f);
    if (f->kind == &stream_kind)
        job_reader_remove(f->job, &f->reader);
    if (f->kind == &stdin_kind)
        job_stdin_release(f->job);
    follow_put(f);
}

static const struct handle_ops read_ops = {
    .read = read_follow,
    .poll = poll_follow,
    .drop = drop_follow,
};

static const struct handle_ops write_ops = {
    .write = write_stdin,
    .poll = poll_follow,
    .drop = drop_follow,
};

static void begin(struct follow *f, const struct job_node *jn)
{
    f->h.ops = jn->file->kind == JOB_KIND_STDIN ? &write_ops : &read_ops;
    f->kind = jn->file->kind == JOB_KIND_STDIN ? &stdin_kind : jn->file->kind == JOB_KIND_EXIT ? &exit_kind
                                                                                              : &stream_kind;
    f->job = jn->job;
    job_ref(f->job);
    f->listener.more = on_more;
    f->listener.offer = on_offer;
    f->listener.hold = hold;
    f->listener.drop = put;
    f->listener.stream = f->kind == &stream_kind ? jn->file->which : -1;
    atomic_init(&f->refs, 1);
    list_init(&f->parked);
    pthread_mutex_init(&f->lock, NULL);
    if (f->kind == &stream_kind)
        job_reader_add(f->job, &f->reader, (enum job_stream)jn->file->which);
    if (f->kind == &stdin_kind)
        job_stdin_open(f->job);
    job_listen(f->job, &f->listener);
}

void job_open_follow(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi)
{
    struct follow *f = calloc(1, sizeof *f);
    int r = f ? handle_add(fs, &f->h, fi) : -ENOMEM;
    if (r < 0) {
        free(f);
        fuse_reply_err(req, -r);
        return;
    }
    f->fs = fs;
    begin(f, jn);
    fi->direct_io = 1;
    fi->nonseekable = 1;
    fi->noflush = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        drop_follow(fs, &f->h);
}

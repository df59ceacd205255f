// SPDX-License-Identifier: Apache-2.0
/* The life of a link: connecting, breaking, being lost, being closed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "fs/link/internal.h"

void link_set_state(struct link *l, enum link_state s)
{
    scoped_lock(&l->lock);
    l->state = s;
}

enum link_state link_state(struct link *l, struct link_guest *g)
{
    scoped_lock(&l->lock);
    if (g)
        *g = l->guest;
    return l->state;
}

/* ── connecting ── */

static void on_connected(struct link_call *c);

static void connect_run(struct task *t)
{
    struct link *l = container_of(t, struct link, connect_task);

    err_clear(&l->connect_err);
    l->connect_result = l->ops->connect(l->arg, &l->connect_err);
    link_loop_call(l->loop, &l->connected_call);
}

void link_start_connect(struct link *l)
{
    l->retry_ns = 0;
    if (l->connecting || l->closing || l->state == LINK_LOST)
        return;
    l->connecting = true;
    l->refs++;
    l->connected_call.run = on_connected;
    pool_add(l->loop->pool, &l->connect_task);
}

static int watch(struct link *l, int fd)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = l };
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        epoll_ctl(l->loop->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
        return -errno;
    return 0;
}

static void use_stream(struct link *l, int fd)
{
    int r = watch(l, fd);

    if (r != 0) {
        close(fd);
        link_break(l, r, "the stream cannot be watched");
        return;
    }
    l->fd = fd;
    l->readable = l->writable = true;
    l->greeted = l->progress = false;
    l->up_ns = l->heard_ns = link_now_ns();
    link_wake_at(l->loop, l->up_ns + QUIET_NS);
    link_busy(l);
}

static void on_connected(struct link_call *c)
{
    struct link *l = container_of(c, struct link, connected_call);
    int fd = l->connect_result;

    l->connecting = false;
    if (l->closing || l->state == LINK_LOST) {
        if (fd >= 0)
            close(fd);
    } else if (fd >= 0) {
        use_stream(l, fd);
    } else if (fd == -ENXIO) {
        link_lose(l, fd, l->connect_err.text);
    } else {
        link_break(l, fd, l->connect_err.text);
    }
    link_unref(l);
}

/* ── breaking ── */

static void close_stream(struct link *l)
{
    if (l->fd < 0)
        return;
    epoll_ctl(l->loop->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL); /* whoever else has the stream open */
    close(l->fd);
    l->fd = -1;
    l->readable = l->writable = l->greeted = l->asks = false;
    free(steal_ptr(&l->partial));
    l->partial_len = 0;
    l->in = (struct incoming){ 0 };
    l->out_pos = l->out_len = 0;
    l->n_acks = 0;
    l->ping_ns = 0;
    requests_rewind(l);
    jobs_disconnected(l);
}

static void plan_retry(struct link *l)
{
    if (l->progress || !l->pause_ns)
        l->pause_ns = RETRY_FIRST_NS;
    l->progress = false;
    l->retry_ns = link_now_ns() + l->pause_ns;
    l->pause_ns = l->pause_ns * 2 < RETRY_MAX_NS ? l->pause_ns * 2 : RETRY_MAX_NS;
    link_wake_at(l->loop, l->retry_ns);
}

static void tell(struct link *l, void (*fn)(struct link *, void *, const struct err *), int code, const char *why)
{
    struct err e = { 0 };

    err_set(&e, code, "%s", why);
    if (fn)
        fn(l, l->arg, &e);
}

void link_break(struct link *l, int code, const char *why)
{
    if (l->closing || l->state == LINK_LOST)
        return;
    if (l->fd >= 0 && l->greeted && link_now_ns() - l->up_ns > GOOD_NS)
        l->bad = 0;
    close_stream(l);
    if (l->state == LINK_UP)
        link_set_state(l, LINK_BROKEN);
    plan_retry(l);
    tell(l, l->ops->down, code, why);
}

void link_bad(struct link *l, const char *why)
{
    char text[ERR_TEXT_MAX];

    snprintf(text, sizeof(text), "the guest broke its protocol: %s", why);
    if (++l->bad >= LINK_BAD_MAX)
        link_lose(l, -EPROTO, text);
    else
        link_break(l, -EPROTO, text);
}

void link_lose(struct link *l, int code, const char *why)
{
    if (l->closing || l->state == LINK_LOST)
        return;
    close_stream(l);
    link_set_state(l, LINK_LOST);
    l->retry_ns = 0;
    jobs_lose(l, code, why);
    request_fail_all(l, code, why);
    tell(l, l->ops->lost, code, why);
}

/* ── deadlines ── */

static void ping_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    (void)r, (void)status, (void)text, (void)msg;
    l->ping_ns = 0;
}

static void ping_quiet(struct link *l, int64_t now)
{
    struct proto_ping m = { 0 };
    struct request *r = request_new(PROTO_PING, &m);

    if (!r)
        return;
    l->ping_ns = now;
    r->once = true;
    r->answered = ping_answered;
    request_queue(l, r);
}

/* Whether anybody waits for something that the guest is to say. */
static bool is_awaited(const struct link *l)
{
    if (!list_empty(&l->sent) || !list_empty(&l->unsent))
        return true;
    list_for_each(pos, &l->jobs)
        if (!container_of(pos, struct link_job, all)->exited)
            return true;
    return false;
}

void link_expect(struct link *l)
{
    int64_t now = link_now_ns();

    if (l->fd < 0 || !l->greeted || l->ping_ns || now - l->heard_ns < QUIET_NS)
        return;
    l->heard_ns = now - QUIET_NS; /* the silence so far says nothing: nothing was asked */
    link_wake_at(l->loop, now);
}

/* One that is slow for once is slow; one that stays silent is halted, or has lost its wits. */
static void silence(struct link *l, const char *why)
{
    if (++l->silent >= LINK_SILENT_MAX)
        link_lose(l, -ETIMEDOUT, "the sandbox hangs: its guest has not answered for more than a minute");
    else
        link_break(l, -ETIME, why);
}

static void check_quiet(struct link *l, int64_t now)
{
    if (!l->greeted) {
        if (now - l->up_ns >= HELLO_NS)
            silence(l, "the guest does not greet");
        else
            link_wake_at(l->loop, l->up_ns + HELLO_NS);
        return;
    }
    if (now - l->heard_ns >= 2 * QUIET_NS && l->ping_ns) {
        silence(l, "the guest does not answer");
        return;
    }
    if (now - l->heard_ns >= QUIET_NS && !l->ping_ns) {
        if (!is_awaited(l))
            return; /* both sides sleep until link_expect() */
        ping_quiet(l, now);
    }
    link_wake_at(l->loop, l->heard_ns + (l->ping_ns ? 2 : 1) * QUIET_NS);
}

void link_deadlines(struct link *l, int64_t now)
{
    if (l->retry_ns && now >= l->retry_ns)
        link_start_connect(l);
    else if (l->retry_ns)
        link_wake_at(l->loop, l->retry_ns);
    if (l->fd >= 0)
        check_quiet(l, now);
}

/* ── opening and closing ── */

void link_unref(struct link *l)
{
    struct link_loop *loop = l->loop;

    if (--l->refs > 0)
        return;
    list_remove(&l->all);
    list_remove(&l->busy);
    l->ops->closed(l->arg);
    pthread_mutex_destroy(&l->lock);
    free(l->out);
    free(l);
    scoped_lock(&loop->lock);
    if (atomic_fetch_sub(&loop->n_links, 1) == 1)
        pthread_cond_broadcast(&loop->none);
}

static void on_open(struct link_call *c)
{
    struct link *l = container_of(c, struct link, open_call);

    list_append(&l->loop->links, &l->all);
    link_start_connect(l);
}

/* A job that was let go of just before takes two calls to go (job.c), and so does this: what it asks for last, which
 * is to be forgotten, is sent. */
static void on_close(struct link_call *c)
{
    struct link *l = container_of(c, struct link, close_call);

    if (!l->close_made) {
        l->close_made = true;
        link_loop_call(l->loop, &l->close_call);
        return;
    }
    link_send(l);
    l->closing = true;
    close_stream(l);
    l->retry_ns = 0;
    request_fail_all(l, -ESHUTDOWN, "the sandbox was let go of");
    link_unref(l);
}

static void on_hurry(struct link_call *c)
{
    struct link *l = container_of(c, struct link, hurry_call);

    {
        scoped_lock(&l->loop->lock);
        l->hurry_queued = false;
    }
    if (l->retry_ns)
        link_start_connect(l);
}

static struct link *alloc_link(struct link_loop *loop, const struct link_setup *s)
{
    struct link *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->loop = loop;
    l->ops = s->ops;
    l->arg = s->arg;
    l->refs = 1;
    l->fd = -1;
    l->next_tag = 1;
    l->connect_task.run = connect_run;
    pthread_mutex_init(&l->lock, NULL);
    list_init(&l->all);
    list_init(&l->busy);
    list_init(&l->unsent);
    list_init(&l->sent);
    list_init(&l->jobs);
    list_init(&l->dirty);
    if (s->instance) {
        l->guest.instance = *s->instance;
        l->pinned = true;
    }
    return l;
}

struct link *link_open(struct link_loop *loop, const struct link_setup *s)
{
    struct link *l = alloc_link(loop, s);

    if (!l)
        return NULL;
    l->open_call.run = on_open;
    l->close_call.run = on_close;
    l->hurry_call.run = on_hurry;
    atomic_fetch_add(&loop->n_links, 1);
    link_loop_call(loop, &l->open_call);
    return l;
}

void link_hurry(struct link *l)
{
    bool queue;

    {
        scoped_lock(&l->loop->lock);
        queue = !l->hurry_queued;
        l->hurry_queued = true;
    }
    if (queue)
        link_loop_call(l->loop, &l->hurry_call);
}

void link_close(struct link *l) { link_loop_call(l->loop, &l->close_call); }

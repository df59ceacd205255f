// SPDX-License-Identifier: Apache-2.0
/* Connections: accepting, greeting, reading frames. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/guest/guest.h"

/* ── who may connect ── */

/* Whether `pid` is a descendant of the guest: then it is a job, and a job must not act as a host. Where
 * /proc is missing nobody is found to be one. */
static bool is_job(const struct guest *g, pid_t pid)
{
    for (int depth = 0; pid > 0 && depth < 4096; depth++) {
        if (pid == g->pid)
            return true;
        pid = tree_parent(pid);
    }
    return false;
}

static bool may_connect(const struct guest *g, int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
        return false;
    /* A pid of a namespace that does not hold it is 0: nobody in here, who could be a job. */
    if (g->outside_only)
        return peer.pid == 0;
    /* A socket inside is for `connect` inside: pid 0 would be somebody else's sandbox or the host, who
     * share the names of abstract sockets when they share the network. */
    if (g->listens_inside && (peer.pid == 0 || (peer.uid != 0 && peer.uid != geteuid())))
        return false;
    return peer.pid == 0 || !is_job(g, peer.pid);
}

/* ── closing ── */

static void detach_jobs(struct guest *g, struct host *h)
{
    list_for_each(pos, &g->jobs) {
        struct job *j = container_of(pos, struct job, all);

        if (j->host != h)
            continue;
        j->attached = false;
        list_remove(&j->ready);
    }
}

static void drop_answers(struct conn *c)
{
    while (!list_empty(&c->answers)) {
        struct record *r = container_of(c->answers.next, struct record, unsent);

        list_remove(&r->unsent);
        if (!r->kept)
            free(r);
    }
}

void conn_close(struct guest *g, struct conn *c)
{
    if (c->state == CONN_FREE)
        return;
    drop_answers(c);
    if (c->host && c->host->conn == c) {
        c->host->conn = NULL;
        detach_jobs(g, c->host);
    }
    source_close(g, &c->src);
    free(c->in);
    free(c->out);
    *c = (struct conn){ .src = { -1, NULL } };
}

/* ── reading ── */

static bool greet(struct guest *g, struct conn *c, const struct proto_head *head, const uint8_t *payload)
{
    struct proto_host_hello m;
    struct host *h;

    if (head->type != PROTO_HOST_HELLO ||
        proto_decode(head->type, payload, head->size_bytes - PROTO_HEAD_BYTES, &m) != 0 ||
        m.max_frame_bytes < PROTO_FRAME_MIN_BYTES || !proto_id_equal(&m.nonce, &c->nonce)) {
        conn_goodbye(g, c, -EPROTO, "not a greeting of this protocol");
        return false;
    }
    if (m.version != PROTO_VERSION) {
        conn_goodbye(g, c, -EPROTO, "this guest speaks version 1 of the protocol only");
        return false;
    }
    h = host_enter(g, &m.host, &m.epoch);
    if (!h) {
        conn_goodbye(g, c, -EAGAIN, "too many hosts are connected to this guest");
        return false;
    }
    h->conn = c;
    c->host = h;
    c->state = CONN_OPEN;
    g->lonely_ns = 0;
    return true;
}

static bool frame(struct guest *g, struct conn *c, const struct proto_head *head, const uint8_t *payload)
{
    return c->state == CONN_OPEN ? request_frame(g, c, head, payload) : greet(g, c, head, payload);
}

/* Makes the buffer `size` bytes large. */
static bool resize_in(struct conn *c, uint32_t size)
{
    uint8_t *in = realloc(c->in, size);

    if (!in)
        return false;
    c->in = in;
    c->in_size = size;
    return true;
}

/* Handles all whole frames in the buffer. False: the connection was closed. */
static bool frames(struct guest *g, struct conn *c)
{
    struct proto_head head;
    uint32_t at = 0, max = c->state == CONN_OPEN ? PROTO_TO_GUEST_MAX_BYTES : 8192, want = IN_BUF_BYTES;
    int r;

    while ((r = proto_head_decode(c->in + at, c->in_len - at, max, &head)) == 0 &&
           head.size_bytes <= c->in_len - at) {
        if (!frame(g, c, &head, c->in + at + PROTO_HEAD_BYTES))
            return false;
        at += head.size_bytes;
        max = PROTO_TO_GUEST_MAX_BYTES;
    }
    if (r == -EBADMSG) {
        conn_goodbye(g, c, -EPROTO, "a frame of impossible size");
        return false;
    }
    if (r == 0 && head.size_bytes > want)
        want = head.size_bytes;
    memmove(c->in, c->in + at, c->in_len - at);
    c->in_len -= at;
    if (want != c->in_size && !resize_in(c, want)) {
        conn_goodbye(g, c, -ENOMEM, "no memory for a frame");
        return false;
    }
    return true;
}

void conn_read(struct guest *g, struct conn *c)
{
    for (int i = 0; c->readable && i < READS; i++) {
        ssize_t n = read(c->src.fd, c->in + c->in_len, c->in_size - c->in_len);

        if (n < 0 && errno == EAGAIN) {
            c->readable = false;
            return;
        }
        if (n <= 0) {
            conn_close(g, c);
            return;
        }
        c->in_len += (uint32_t)n;
        if (!frames(g, c))
            return;
    }
}

static void ready(struct guest *g, struct source *s, uint32_t events)
{
    struct conn *c = (struct conn *)(void *)s;

    (void)g;
    if (events & EPOLLOUT)
        c->writable = true;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        c->readable = true;
}

/* ── accepting ── */

/* A free place; when there is none, that of the oldest one that has not greeted. */
static struct conn *free_conn(struct guest *g)
{
    struct conn *oldest = NULL;

    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &g->conns[i];

        if (c->state == CONN_FREE)
            return c;
        if (c->state == CONN_GREETING && (!oldest || c->hello_by_ns < oldest->hello_by_ns))
            oldest = c;
    }
    if (oldest)
        conn_close(g, oldest);
    return oldest;
}

static bool open_conn(struct guest *g, struct conn *c, int fd)
{
    int size = 1 << 20;

    *c = (struct conn){ .src = { fd, ready }, .state = CONN_GREETING, .writable = true };
    list_init(&c->answers);
    list_init(&c->ready);
    c->out = malloc(OUT_BUF_BYTES);
    c->hello_by_ns = guest_now_ns() + HELLO_MS * 1000000ll;
    guest_wake_at(g, c->hello_by_ns);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    return c->out && resize_in(c, IN_BUF_BYTES) && guest_watch(g, &c->src, EPOLLIN | EPOLLOUT | EPOLLRDHUP) == 0;
}

void conn_accept(struct guest *g, struct source *s, uint32_t events)
{
    struct conn *c;
    int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);

    (void)events;
    if (fd < 0)
        return;
    if (!may_connect(g, fd) || !(c = free_conn(g))) {
        close(fd);
        return;
    }
    if (!open_conn(g, c, fd)) {
        conn_close(g, c);
        return;
    }
    conn_hello(g, c);
}

// SPDX-License-Identifier: Apache-2.0
/* A job's standard output or error on its way: pipe, ring, connection. The ring keeps every byte until
 * the host has stored it, so a connection may break at any time; when it is full the job waits at its
 * pipe, and nobody else. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define RUNS_FIRST 8
#define PIPE_BYTES (1 << 20)
#define STARVED_NS 200000000
#define RING_REST_NS (RING_REST_MS * 1000000ll)

/* Wants a turn of reading. Edge-triggered: must be called until the pipe was found empty. */
static void want_read(struct guest *g, struct output *o)
{
    if (list_empty(&o->readable))
        list_append(&g->readable, &o->readable);
}

/* Empty, and nobody has it open for writing. */
static void at_end(struct guest *g, struct output *o)
{
    list_remove(&o->readable);
    source_close(g, &o->src);
    if (o->job->reaped)
        job_advance(g, o->job);
}

static void ready(struct guest *g, struct source *s, uint32_t events)
{
    struct output *o = (struct output *)(void *)((char *)s - offsetof(struct output, src));

    if (events & EPOLLIN)
        want_read(g, o);
    else if (events & (EPOLLHUP | EPOLLERR))
        at_end(g, o);
    if (o->job->tty && (events & EPOLLOUT))
        input_write(g, o->job);
}

void output_init(struct output *o, struct job *j)
{
    *o = (struct output){ .src = { -1, ready }, .job = j, .end_at = UINT64_MAX };
    list_init(&o->readable);
    list_init(&o->grown);
}

int output_open(struct guest *g, struct output *o, int fd)
{
    o->src.fd = fd;
    return guest_watch(g, &o->src, o->job->tty ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void output_finish(struct guest *g, struct output *o)
{
    list_remove(&o->readable);
    list_remove(&o->grown);
    source_close(g, &o->src);
    ring_free(g, &o->ring);
    free(o->runs);
    o->runs = NULL;
    o->n_runs = o->max_runs = 0;
}

bool output_done(const struct output *o) { return o->src.fd < 0 || o->ring.head >= o->end_at; }

/* Makes room for one more run. */
static bool more_runs(struct output *o)
{
    uint32_t max = o->max_runs ? o->max_runs * 2 : RUNS_FIRST;
    struct run *runs;

    if (o->n_runs < o->max_runs)
        return true;
    if (max > RUNS_MAX || !(runs = realloc(o->runs, max * sizeof(*runs))))
        return false;
    o->runs = runs;
    o->max_runs = max;
    return true;
}

/* Whether the next bytes go on in the log where the last ones of this stream ended. */
static bool goes_on(const struct output *o)
{
    const struct run *last = o->n_runs ? &o->runs[o->n_runs - 1] : NULL;

    return last && last->log_offset + (o->ring.head - last->offset) == o->job->log_head;
}

static bool may_take(struct output *o) { return goes_on(o) || more_runs(o); }

/* Bytes have been read to the ring's head. */
static void took(struct output *o, uint32_t len)
{
    if (!goes_on(o))
        o->runs[o->n_runs++] = (struct run){ o->ring.head, o->job->log_head };
    o->ring.head += len;
    o->job->log_head += len;
    if (o->ring.size_bytes > RING_MIN_BYTES && !o->wide) {
        o->wide = true;
        fcntl(o->src.fd, F_SETPIPE_SZ, PIPE_BYTES); /* it prints much: fewer, larger turns */
    }
    conn_ready_job(o->job);
}

/* No memory for a ring: nothing will wake this stream, so it looks again in a while. */
static ssize_t starve(struct guest *g)
{
    g->starved = true;
    guest_wake_at(g, guest_now_ns() + STARVED_NS);
    return -ENOMEM;
}

/* Reads at most `max` bytes into the ring behind its head. -ENOBUFS: there is no room. */
static ssize_t read_some(struct guest *g, struct output *o, uint64_t max)
{
    struct iovec iov[2];
    uint32_t room;

    if (!may_take(o))
        return -ENOBUFS;
    room = ring_room(g, &o->ring);
    if (!room)
        return o->ring.buf ? -ENOBUFS : starve(g);
    if (max > TURN_BYTES)
        max = TURN_BYTES;
    if (room > max)
        room = (uint32_t)max;
    ssize_t n = readv(o->src.fd, iov, ring_pieces(&o->ring, o->ring.head, room, iov));
    return n < 0 ? -errno : n;
}

void output_read(struct guest *g, struct output *o)
{
    ssize_t n;

    list_remove(&o->readable);
    if (output_done(o))
        return;
    n = read_some(g, o, o->end_at - o->ring.head);
    if (n > 0) {
        took(o, (uint32_t)n);
        want_read(g, o);
    } else if (n == -EAGAIN && o->last) {
        o->end_at = o->ring.head;
    } else if (n == 0 || (n != -EAGAIN && n != -ENOBUFS && n != -ENOMEM)) {
        source_close(g, &o->src); /* end of file; EIO from a terminal that nobody has open */
    }
    if (o->job->reaped && output_done(o))
        job_advance(g, o->job);
}

/* What lies in a pipe is there at once, so the rest has a length. A terminal's line discipline may
 * still be carrying bytes, but a read fetches those first: all was read when it finds none. */
void output_last(struct guest *g, struct output *o)
{
    struct pollfd p = { o->src.fd, POLLIN, 0 };
    int waiting = 0;

    o->last = true;
    if (o->src.fd < 0 || (poll(&p, 1, 0) == 1 && !(p.revents & POLLIN))) {
        list_remove(&o->readable);
        source_close(g, &o->src);
        return;
    }
    if (!o->job->tty && ioctl(o->src.fd, FIONREAD, &waiting) == 0)
        o->end_at = o->ring.head + (uint64_t)waiting;
    want_read(g, o);
}

void output_retry(struct guest *g, struct output *o)
{
    if (o->src.fd >= 0)
        want_read(g, o);
}

/* Runs that lie before the ring's tail are not needed any more. */
static void drop_runs(struct output *o)
{
    uint32_t n = 0;

    while (n + 1 < o->n_runs && o->runs[n + 1].offset <= o->ring.tail)
        n++;
    if (n == 0)
        return;
    o->n_runs -= n;
    memmove(o->runs, o->runs + n, o->n_runs * sizeof(*o->runs));
}

/* A job that prints much fills it again at once: to give the memory back each time and take it anew costs more
 * than copying what goes through it. */
static void emptied(struct guest *g, struct output *o)
{
    if (o->src.fd < 0) {
        ring_free(g, &o->ring);
    } else if (o->ring.size_bytes > RING_MIN_BYTES) {
        o->empty_ns = guest_now_ns();
        if (list_empty(&o->grown))
            list_append(&g->grown, &o->grown);
        guest_wake_at(g, o->empty_ns + RING_REST_NS);
    }
}

bool output_acknowledge(struct guest *g, struct output *o, uint64_t offset)
{
    if (offset > o->sent)
        return false;
    if (offset <= o->ring.tail)
        return true;
    o->ring.tail = offset;
    drop_runs(o);
    if (o->ring.tail == o->ring.head)
        emptied(g, o);
    if (o->src.fd >= 0)
        want_read(g, o);
    return true;
}

uint32_t output_next(const struct output *o, uint64_t *log_offset)
{
    uint64_t end = o->ring.head;
    uint32_t lo = 0, hi = o->n_runs;

    if (o->sent >= end)
        return 0;
    while (hi - lo > 1) { /* the last run that begins at or before `sent` */
        uint32_t mid = lo + (hi - lo) / 2;

        if (o->runs[mid].offset <= o->sent)
            lo = mid;
        else
            hi = mid;
    }
    if (lo + 1 < o->n_runs)
        end = o->runs[lo + 1].offset;
    *log_offset = o->runs[lo].log_offset + (o->sent - o->runs[lo].offset);
    return end - o->sent < TURN_BYTES ? (uint32_t)(end - o->sent) : TURN_BYTES;
}

void output_say(struct guest *g, struct output *o, const char *text)
{
    uint64_t head = o->ring.head;
    uint32_t n;

    if (!may_take(o))
        return;
    n = ring_put(g, &o->ring, (const uint8_t *)text, (uint32_t)strlen(text));
    o->ring.head = head;
    if (n)
        took(o, n);
}

void output_trim(struct guest *g, struct output *o)
{
    if (o->ring.buf && o->ring.tail == o->ring.head)
        ring_free(g, &o->ring);
}

void outputs_trim(struct guest *g, int64_t now_ns)
{
    list_for_each_safe(pos, &g->grown) {
        struct output *o = container_of(pos, struct output, grown);
        bool empty = o->ring.tail == o->ring.head;

        if (empty && now_ns < o->empty_ns + RING_REST_NS) {
            guest_wake_at(g, o->empty_ns + RING_REST_NS);
            continue;
        }
        list_remove(&o->grown);
        if (empty)
            ring_free(g, &o->ring);
    }
}

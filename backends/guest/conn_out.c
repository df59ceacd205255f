// SPDX-License-Identifier: Apache-2.0
/* Connections: what is written, and in which order. Answers and short frames come first and are copied
 * into a buffer; then each job with something to send has its turn, so that none can hold up another.
 * Long output is written straight from its ring. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#ifndef WSMFS_VERSION
#define WSMFS_VERSION "?"
#endif

void conn_ready_job(struct job *j)
{
    if (j->attached && list_empty(&j->ready))
        list_append(&j->host->conn->ready, &j->ready);
}

bool conn_has_output(const struct conn *c)
{
    return c->out_pos < c->out_len || c->big || !list_empty(&c->answers) || !list_empty(&c->ready);
}

void conn_drop_job(struct guest *g, struct job *j)
{
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &g->conns[i];

        if (c->state != CONN_FREE && c->big && c->big->job == j)
            conn_close(g, c);
    }
}

struct record *conn_queue(struct conn *c, uint16_t type, uint64_t tag, const void *msg)
{
    struct proto_out size = { 0 }, out;
    struct record *r;

    proto_encode(&size, type, tag, msg);
    r = size.full ? NULL : malloc(sizeof(*r) + size.len);
    if (!r)
        return NULL;
    *r = (struct record){ .tag = tag, .len = (uint32_t)size.len };
    out = (struct proto_out){ r->frame, size.len, 0, false };
    proto_encode(&out, type, tag, msg);
    list_init(&r->unsent);
    list_append(&c->answers, &r->unsent);
    return r;
}

/* Appends a frame to the buffer; false: it does not fit now. */
static bool put(struct conn *c, uint16_t type, const void *msg)
{
    struct proto_out o = { c->out, OUT_BUF_BYTES, c->out_len, false };

    proto_encode(&o, type, 0, msg);
    if (!o.full)
        c->out_len = (uint32_t)o.len;
    return !o.full;
}

void conn_hello(struct guest *g, struct conn *c)
{
    struct proto_guest_hello m = {
        .magic = PROTO_GUEST_MAGIC, .version = PROTO_VERSION, .features = PROTO_FEATURE_JOBS,
        .instance = g->instance, .max_frame_bytes = PROTO_TO_GUEST_MAX_BYTES, .pid = (uint32_t)g->pid,
        .uid = geteuid(), .start_ms = g->start_ms, .program = proto_str_of("wsm-guest " WSMFS_VERSION),
    };

    if (getrandom(c->nonce.b, sizeof(c->nonce.b), 0) != sizeof(c->nonce.b)) {
        conn_goodbye(g, c, -EIO, "no random numbers");
        return;
    }
    m.nonce = c->nonce;
    put(c, PROTO_GUEST_HELLO, &m);
}

void conn_goodbye(struct guest *g, struct conn *c, int code, const char *why)
{
    struct proto_goodbye m = { { code, proto_str_of(why) } };

    c->closing = true;
    if (!c->big) /* else, or without room for it, the host sees a plain end */
        put(c, PROTO_GOODBYE, &m);
    conn_write(g, c);
    if (c->state != CONN_FREE)
        conn_close(g, c);
}

/* ── what to write next ── */

/* Moves answers into the buffer until it is full. */
static void put_answers(struct conn *c)
{
    while (!list_empty(&c->answers)) {
        struct record *r = container_of(c->answers.next, struct record, unsent);

        if (OUT_BUF_BYTES - c->out_len < r->len)
            return;
        memcpy(c->out + c->out_len, r->frame, r->len);
        c->out_len += r->len;
        list_remove(&r->unsent);
        if (!r->kept)
            free(r);
    }
}

static bool put_room(struct conn *c, struct job *j)
{
    struct proto_stdin_room m = { j->key, j->in.ring.head, j->in.limit, j->in.closed };

    if (!j->in.tell)
        return true;
    j->in.tell = !put(c, PROTO_STDIN_ROOM, &m);
    return !j->in.tell;
}

static bool put_exit(struct conn *c, struct job *j)
{
    struct proto_exit m = {
        .key = j->key, .kind = j->end_kind, .code = j->end_code, .timed_out = j->timed_out,
        .out_total = j->out[PROTO_STDOUT].ring.head, .err_total = j->out[PROTO_STDERR].ring.head,
        .start_ms = j->start_ms, .end_ms = j->end_ms, .text = proto_str_of(j->end_text),
    };

    if (!job_ended(j) || j->exit_sent)
        return true;
    j->exit_sent = put(c, PROTO_EXIT, &m);
    return j->exit_sent;
}

/* The stream whose next byte is older in the log; NULL: nothing to send. */
static struct output *next_output(struct job *j, uint32_t *len, uint64_t *log_offset)
{
    uint64_t at[PROTO_STREAMS];
    uint32_t n[PROTO_STREAMS];
    int first;

    for (int i = 0; i < PROTO_STREAMS; i++)
        n[i] = output_next(&j->out[i], &at[i]);
    if (!n[PROTO_STDOUT] && !n[PROTO_STDERR])
        return NULL;
    first = !n[PROTO_STDERR] || (n[PROTO_STDOUT] && at[PROTO_STDOUT] < at[PROTO_STDERR]) ? PROTO_STDOUT : PROTO_STDERR;
    *len = n[first];
    *log_offset = at[first];
    return &j->out[first];
}

static void copy_out(struct conn *c, const struct output *o, uint32_t len)
{
    struct iovec iov[2];
    int n = ring_pieces(&o->ring, o->sent, len, iov);

    for (int i = 0; i < n; i++) {
        memcpy(c->out + c->out_len, iov[i].iov_base, iov[i].iov_len);
        c->out_len += (uint32_t)iov[i].iov_len;
    }
}

/* Puts one piece of output. False: no room now. */
static bool put_output(struct conn *c, struct output *o, uint32_t len, uint64_t log_offset)
{
    struct proto_output m = {
        .key = o->job->key, .stream = (uint8_t)(o - o->job->out), .offset = o->sent, .log_offset = log_offset,
        .data = { NULL, len },
    };
    struct proto_out out = { c->out, OUT_BUF_BYTES, c->out_len, false };

    if (len <= COPY_MAX_BYTES && OUT_BUF_BYTES - c->out_len < PROTO_OUTPUT_HEAD_BYTES + len)
        return false;
    proto_encode_split(&out, PROTO_OUTPUT, 0, &m);
    if (out.full)
        return false;
    c->out_len = (uint32_t)out.len;
    if (len <= COPY_MAX_BYTES) {
        copy_out(c, o, len);
    } else {
        c->big = o;
        c->big_offset = o->sent;
        c->big_len = len;
    }
    o->sent += len;
    return true;
}

/* A job's turn. False: the buffer is full, it keeps its place. Nothing may follow a long piece in the
 * buffer, since its data is written after that. */
static bool put_job(struct conn *c, struct job *j)
{
    uint64_t log_offset;
    uint32_t len;
    struct output *o;

    if (!put_room(c, j))
        return false;
    for (int i = 0; (o = next_output(j, &len, &log_offset)) && i < TURN_PIECES; i++) {
        if (!put_output(c, o, len, log_offset))
            return false;
        if (c->big)
            break;
    }
    if (!o && !put_exit(c, j))
        return false;
    list_remove(&j->ready);
    if (o)
        list_append(&c->ready, &j->ready); /* there may be more: at the end of the queue */
    return true;
}

static void fill(struct conn *c)
{
    c->out_pos = c->out_len = 0;
    put_answers(c);
    if (!list_empty(&c->answers))
        return; /* a job's output never overtakes the answer that announces it */
    while (!c->big && !list_empty(&c->ready))
        if (!put_job(c, container_of(c->ready.next, struct job, ready)))
            return;
}

/* ── writing ── */

/* The rest of what was filled in. 0 pieces: nothing is left. -1: the host acknowledged what it was not
 * sent yet. */
static int pieces(struct conn *c, struct iovec iov[3])
{
    int n = 0;

    if (c->out_pos < c->out_len)
        iov[n++] = (struct iovec){ c->out + c->out_pos, c->out_len - c->out_pos };
    if (!c->big)
        return n;
    if (c->big_offset < c->big->ring.tail || c->big_offset + c->big_len > c->big->ring.head)
        return -1;
    return n + ring_pieces(&c->big->ring, c->big_offset, c->big_len, iov + n);
}

static void wrote(struct conn *c, size_t n)
{
    size_t small = c->out_len - c->out_pos;

    if (n < small)
        small = n;
    c->out_pos += (uint32_t)small;
    if (!c->big)
        return;
    c->big_offset += n - small;
    c->big_len -= (uint32_t)(n - small);
    if (c->big_len == 0)
        c->big = NULL;
}

void conn_write(struct guest *g, struct conn *c)
{
    struct iovec iov[3];
    int n;

    for (int turn = 0; c->state != CONN_FREE && c->writable && turn < WRITES; turn++) {
        if (c->out_pos == c->out_len && !c->big && !c->closing)
            fill(c);
        n = pieces(c, iov);
        if (n == 0)
            return;
        struct msghdr m = { .msg_iov = iov, .msg_iovlen = (size_t)(n > 0 ? n : 0) };
        ssize_t done = n < 0 ? -1 : sendmsg(c->src.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && n > 0 && errno == EAGAIN)
            c->writable = false;
        else if (done < 0)
            conn_close(g, c);
        else
            wrote(c, (size_t)done);
    }
}

// SPDX-License-Identifier: Apache-2.0
/* What goes to the guest: one buffer that is filled from what is due and written as the stream takes
 * it. All that is lost with a connection can be made again from the link's state. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/guest/wire.h"
#include "fs/link/internal.h"

#define WRITES 8

bool link_has_output(const struct link *l)
{
    return l->out_pos < l->out_len || l->n_acks || (l->greeted && !list_empty(&l->dirty)) ||
           (l->greeted && !list_empty(&l->unsent) && l->n_sent < IN_FLIGHT_MAX);
}

/* Makes room for `len` more bytes. A buffer in which something waits does not grow. */
static bool room(struct link *l, size_t len)
{
    size_t size = len > OUT_BUF_BYTES ? len : OUT_BUF_BYTES;
    uint8_t *out;

    if (l->out_size - l->out_len >= len)
        return true;
    if (l->out_len > 0)
        return false;
    out = realloc(l->out, size);
    if (!out)
        return false;
    l->out = out;
    l->out_size = (uint32_t)size;
    return true;
}

static bool put(struct link *l, uint16_t type, const void *msg)
{
    struct proto_out o = { NULL, 0, 0, false };

    proto_encode(&o, type, 0, msg);
    if (o.full || !room(l, o.len))
        return false;
    o = (struct proto_out){ l->out, l->out_size, l->out_len, false };
    proto_encode(&o, type, 0, msg);
    l->out_len = (uint32_t)o.len;
    return true;
}

void link_put_hello(struct link *l, const struct proto_id *nonce)
{
    struct proto_host_hello m = {
        .magic = PROTO_HOST_MAGIC, .version = PROTO_VERSION, .features = PROTO_FEATURE_JOBS, .nonce = *nonce,
        .host = l->loop->host, .epoch = l->loop->epoch, .max_frame_bytes = PROTO_TO_HOST_MAX_BYTES,
    };

    if (!put(l, PROTO_HOST_HELLO, &m))
        link_break(l, -ENOMEM, "out of memory");
}

static bool put_request(struct link *l, struct request *r)
{
    if (!room(l, r->len))
        return false;
    if (!r->tag)
        r->tag = l->next_tag++;
    wire_put64(r->frame + 8, r->tag);
    memcpy(l->out + l->out_len, r->frame, r->len);
    l->out_len += r->len;
    list_remove(&r->links);
    list_append(&l->sent, &r->links);
    l->n_sent++;
    if (r->type == PROTO_SPAWN && r->job) {
        l->asks = true;
        job_spawn_sent(r->job);
    }
    return true;
}

static bool put_requests(struct link *l)
{
    while (!list_empty(&l->unsent) && l->n_sent < IN_FLIGHT_MAX)
        if (!put_request(l, container_of(l->unsent.next, struct request, links)))
            return false;
    return true;
}

static bool put_acks(struct link *l)
{
    struct proto_ack m = { requests_floor(l), { l->acks, l->n_acks * 8 } };

    if (l->n_acks && !put(l, PROTO_ACK, &m))
        return false;
    l->n_acks = 0;
    return true;
}

/* ── jobs ── */

static bool put_attach(struct link *l, struct link_job *j)
{
    struct request *r;

    if (!j->attach_due)
        return true;
    r = job_attach_request(j);
    if (!r) {
        link_break(l, -ENOMEM, "out of memory");
        return false;
    }
    if (!put_request(l, r)) {
        free(r);
        return false;
    }
    j->attach_due = false;
    j->attaching = true;
    return true;
}

static bool put_output_ack(struct link *l, struct link_job *j)
{
    struct proto_output_ack m;

    if (!room(l, 128))
        return false;
    return !job_take_acks(j, &m) || put(l, PROTO_OUTPUT_ACK, &m);
}

static bool put_stdin(struct link *l, struct link_job *j)
{
    uint8_t data[STDIN_CHUNK_BYTES];
    struct proto_stdin m;

    for (;;) {
        if (!room(l, STDIN_CHUNK_BYTES + 256))
            return false;
        if (!stdin_take(j, &m, data))
            return true;
        if (!put(l, PROTO_STDIN, &m))
            return false;
    }
}

/* False: the buffer is full, or the link broke. */
static bool put_job(struct link *l, struct link_job *j)
{
    list_remove(&j->dirty);
    list_append(&l->dirty, &j->dirty); /* whoever does not get all out now comes last */
    if (!put_attach(l, j) || (j->attached && (!put_output_ack(l, j) || !put_stdin(l, j))))
        return false;
    list_remove(&j->dirty);
    return true;
}

/* A tag's window counts what is sent and what is not yet acknowledged, so acknowledgements go first. */
static void fill(struct link *l)
{
    l->out_pos = l->out_len = 0;
    if (l->out_size > OUT_BUF_BYTES) {
        free(steal_ptr(&l->out));
        l->out_size = 0;
    }
    if (!l->greeted || !put_acks(l) || !put_requests(l))
        return;
    while (!list_empty(&l->dirty))
        if (!put_job(l, container_of(l->dirty.next, struct link_job, dirty)))
            return;
}

/* Of what lies in the buffer some has been written: the guest may have it. */
static void note_asked(struct link *l)
{
    if (!l->asks)
        return;
    l->asks = false;
    list_for_each(pos, &l->sent) {
        struct request *r = container_of(pos, struct request, links);
        if (r->type == PROTO_SPAWN && r->job)
            r->job->asked = true;
    }
}

void link_send(struct link *l)
{
    for (int turn = 0; l->fd >= 0 && l->writable && turn < WRITES; turn++) {
        ssize_t n;

        if (l->out_pos == l->out_len)
            fill(l);
        if (l->fd < 0 || l->out_pos == l->out_len)
            return;
        n = send(l->fd, l->out + l->out_pos, l->out_len - l->out_pos, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            l->out_pos += (uint32_t)n;
            note_asked(l);
        } else if (errno == EAGAIN) {
            l->writable = false;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            /* what it had said before it hung up is still to be read, such as how a job has ended */
            l->writable = false;
            l->readable = true;
        } else if (errno != EINTR) {
            link_break(l, -errno, "the stream to the guest broke");
        }
    }
}

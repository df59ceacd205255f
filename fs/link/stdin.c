// SPDX-License-Identifier: Apache-2.0
/* A job's standard input on this side: a ring that keeps what the guest has not got yet. */
#include <errno.h>
#include <string.h>

#include "fs/link/internal.h"

static void on_stdin(struct link_call *c)
{
    struct link_job *j = container_of(c, struct link_job, stdin_call);

    {
        scoped_lock(&j->link->loop->lock);
        j->stdin_queued = false;
    }
    if (j->attached)
        job_dirty(j);
}

void stdin_init(struct link_job *j, bool pipe, bool known)
{
    pthread_mutex_init(&j->in_lock, NULL);
    j->stdin_call.run = on_stdin;
    j->in_pipe = pipe;
    j->in_known = known;
}

void stdin_finish(struct link_job *j)
{
    free(j->in_buf);
    pthread_mutex_destroy(&j->in_lock);
}

/* Returns whether somebody waits to hear of it. */
static bool close_locked(struct link_job *j)
{
    j->in_closed = true;
    free(steal_ptr(&j->in_buf));
    bool hungry = j->in_hungry;
    j->in_hungry = false;
    return hungry;
}

static void tell_room(struct link_job *j)
{
    if (j->ops->stdin_room && !j->link->closing && !j->quiet)
        j->ops->stdin_room(j, j->arg);
}

void stdin_close(struct link_job *j)
{
    bool hungry;

    {
        scoped_lock(&j->in_lock);
        hungry = close_locked(j);
    }
    if (hungry)
        tell_room(j);
}

/* ── taking ── */

/* Copies into the ring, or out of it. */
static void put(struct link_job *j, const uint8_t *p, size_t len)
{
    size_t at = j->in_head % STDIN_BUF_BYTES, first = STDIN_BUF_BYTES - at < len ? STDIN_BUF_BYTES - at : len;

    memcpy(j->in_buf + at, p, first);
    memcpy(j->in_buf, p + first, len - first);
    j->in_head += len;
}

static void get(const struct link_job *j, uint64_t offset, uint8_t *p, size_t len)
{
    size_t at = offset % STDIN_BUF_BYTES, first = STDIN_BUF_BYTES - at < len ? STDIN_BUF_BYTES - at : len;

    memcpy(p, j->in_buf + at, first);
    memcpy(p + first, j->in_buf, len - first);
}

/* 0, or why nothing is taken. */
static int refusal_locked(const struct link_job *j, uint64_t offset)
{
    if (!j->in_pipe)
        return -EINVAL;
    if (j->in_closed)
        return -EPIPE;
    if (!j->in_known)
        return -EAGAIN;
    return offset != j->in_head || j->in_end ? -EINVAL : 0;
}

/* What the guest got in an earlier life of the daemon is given here once more and passed over. */
static size_t skip_locked(struct link_job *j, size_t len)
{
    size_t n = j->in_tail > j->in_head ? (size_t)(j->in_tail - j->in_head) : 0;

    if (n > len)
        n = len;
    j->in_head += n;
    return n;
}

static ssize_t take_locked(struct link_job *j, const uint8_t *p, size_t len, bool end)
{
    size_t skipped = skip_locked(j, len), n = len - skipped, room;

    if (n && !j->in_buf && !(j->in_buf = malloc(STDIN_BUF_BYTES)))
        return -ENOMEM;
    room = n ? STDIN_BUF_BYTES - (size_t)(j->in_head - j->in_tail) : 0;
    if (n > room)
        n = room;
    if (n)
        put(j, p + skipped, n);
    if (skipped + n < len)
        j->in_hungry = true;
    else
        j->in_end = end;
    return (ssize_t)(skipped + n);
}

ssize_t link_job_stdin(struct link_job *j, uint64_t offset, const void *data, size_t len, bool end)
{
    ssize_t n;
    bool queue;

    {
        scoped_lock(&j->in_lock);
        n = refusal_locked(j, offset);
        if (n == 0)
            n = take_locked(j, data, len, end);
    }
    if (n < 0 || (n == 0 && !end))
        return n;
    {
        scoped_lock(&j->link->loop->lock);
        queue = !j->stdin_queued;
        j->stdin_queued = true;
    }
    if (queue)
        link_loop_call(j->link->loop, &j->stdin_call);
    return n;
}

/* ── sending ── */

bool stdin_take(struct link_job *j, struct proto_stdin *m, uint8_t *data)
{
    scoped_lock(&j->in_lock);
    uint64_t upto = j->in_head < j->in_limit ? j->in_head : j->in_limit;
    size_t n = upto > j->in_sent ? (size_t)(upto - j->in_sent) : 0;

    if (j->in_closed)
        return false;
    if (n > STDIN_CHUNK_BYTES)
        n = STDIN_CHUNK_BYTES;
    *m = (struct proto_stdin){ .key = j->key, .offset = j->in_sent, .data = { data, (uint32_t)n } };
    m->end = j->in_end && j->in_sent + n >= j->in_head;
    if (n == 0 && (!m->end || j->in_end_sent))
        return false;
    if (n)
        get(j, j->in_sent, data, n);
    j->in_sent += n;
    j->in_end_sent = m->end;
    return true;
}

/* ── what the guest says ── */

static bool advance_locked(struct link_job *j, uint64_t received, uint64_t limit)
{
    bool hungry = j->in_hungry && received > j->in_tail;

    if (received > j->in_tail)
        j->in_tail = received;
    j->in_limit = limit;
    if (hungry)
        j->in_hungry = false;
    return hungry;
}

/* On a new connection all that the guest has not got is sent again. */
static bool attached_locked(struct link_job *j, const struct proto_attach_answer *m, bool *hungry)
{
    uint64_t received = m->stdin_received;

    if (!j->in_known)
        j->in_head = received;
    else if (received < j->in_tail)
        return false;
    *hungry = advance_locked(j, received, m->stdin_limit) || (!j->in_known && j->in_hungry);
    j->in_known = true;
    j->in_sent = received;
    j->in_end_sent = false;
    if (m->stdin_closed)
        *hungry = close_locked(j) || *hungry;
    return true;
}

bool stdin_attached(struct link_job *j, const struct proto_attach_answer *m)
{
    bool hungry = false, ok;

    {
        scoped_lock(&j->in_lock);
        ok = attached_locked(j, m, &hungry);
    }
    if (hungry)
        tell_room(j);
    return ok;
}

bool stdin_room(struct link *l, const struct proto_stdin_room *m)
{
    struct link_job *j = link_find_job(l, &m->key);
    bool hungry;

    if (!j || !j->attached)
        return true;
    {
        scoped_lock(&j->in_lock);
        if (m->received > j->in_sent && !m->closed)
            return false;
        hungry = m->closed ? close_locked(j) : advance_locked(j, m->received, m->limit);
    }
    if (hungry)
        tell_room(j);
    job_dirty(j);
    return true;
}

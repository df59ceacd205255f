// SPDX-License-Identifier: Apache-2.0
/* A job's standard input: frames, ring, pipe (or terminal). The host may send up to a limit that moves
 * on as the job reads. */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

#include "backends/guest/guest.h"

static struct job *job_of(struct source *s)
{
    return (struct job *)(void *)((char *)s - offsetof(struct job, in.src));
}

static int in_fd(const struct job *j) { return j->tty ? j->out[PROTO_STDOUT].src.fd : j->in.src.fd; }

static void tell(struct job *j)
{
    j->in.tell = true;
    conn_ready_job(j);
}

/* Nobody reads any more: what was and will be sent is thrown away. */
static void give_up(struct guest *g, struct job *j)
{
    struct input *in = &j->in;

    if (in->closed)
        return;
    in->closed = true;
    in->ring.tail = in->ring.head;
    ring_free(g, &in->ring);
    source_close(g, &in->src);
    tell(j);
}

static void ready(struct guest *g, struct source *s, uint32_t events)
{
    struct job *j = job_of(s);

    if (events & EPOLLERR)
        give_up(g, j);
    else
        input_write(g, j);
}

int input_open(struct guest *g, struct job *j, int fd)
{
    j->in.src = (struct source){ fd, ready };
    return guest_watch(g, &j->in.src, EPOLLOUT);
}

void input_close(struct guest *g, struct job *j) { give_up(g, j); }

/* A terminal has no end: its line discipline turns a character into one. The first sends off an
 * unfinished line, the second is the end. */
static void end_terminal(int fd)
{
    struct termios t;

    if (tcgetattr(fd, &t) == 0 && (t.c_lflag & ICANON)) {
        char twice[2] = { (char)t.c_cc[VEOF], (char)t.c_cc[VEOF] };
        ssize_t n = write(fd, twice, sizeof(twice));
        (void)n;
    }
}

/* All was written and the end was sent. */
static void finish(struct guest *g, struct job *j)
{
    if (j->tty)
        end_terminal(in_fd(j));
    give_up(g, j);
}

/* Moves the limit on, and tells the host when that, or what has arrived, is worth a frame. */
static void move_limit(struct guest *g, struct job *j)
{
    struct input *in = &j->in;
    uint64_t limit;

    if (in->ring.buf)
        ring_room(g, &in->ring); /* grows one that is full */
    limit = in->ring.tail + (in->ring.buf ? in->ring.size_bytes : RING_MIN_BYTES);
    if (limit - in->limit < RING_MIN_BYTES / 2 && in->ring.head - in->told < RING_MIN_BYTES / 2)
        return;
    in->limit = limit;
    in->told = in->ring.head;
    tell(j);
}

void input_write(struct guest *g, struct job *j)
{
    struct input *in = &j->in;
    struct iovec iov[2];

    while (!in->closed && in->ring.head > in->ring.tail) {
        uint32_t len = (uint32_t)(in->ring.head - in->ring.tail);
        ssize_t n = writev(in_fd(j), iov, ring_pieces(&in->ring, in->ring.tail, len, iov));

        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            give_up(g, j);
            return;
        }
        in->ring.tail += (uint64_t)n;
    }
    if (in->closed)
        return;
    if (in->ended && in->ring.head == in->ring.tail)
        finish(g, j);
    else
        move_limit(g, j);
}

bool input_receive(struct guest *g, struct job *j, const struct proto_stdin *m)
{
    struct input *in = &j->in;
    uint64_t end = m->offset + m->data.len, skip;

    if (m->offset > in->ring.head || (!in->closed && end > in->limit) || (in->ended && end > in->ring.head))
        return false;
    skip = in->ring.head - m->offset;
    if (in->closed)
        in->ring.head = in->ring.tail = end > in->ring.head ? end : in->ring.head;
    else if (skip < m->data.len)
        ring_put(g, &in->ring, m->data.p + skip, m->data.len - (uint32_t)skip);
    if (m->end && in->ring.head == end)
        in->ended = true;
    input_write(g, j);
    return true;
}

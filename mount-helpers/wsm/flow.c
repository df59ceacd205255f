// SPDX-License-Identifier: Apache-2.0
#include "flow.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "files.h"
#include "wsm.h"

#define ROUNDS_MAX 16

void flow_init(struct flow *f, int from, int to, size_t piece_bytes)
{
    *f = (struct flow){ .from = from, .to = to, .piece_bytes = piece_bytes, .buf = take_memory(FLOW_BYTES, 1) };
}

static void drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void flow_finish(struct flow *f)
{
    if (!f->buf)
        return;
    drop(&f->from);
    drop(&f->to);
    free(f->buf);
    f->buf = NULL;
}

bool flow_done(const struct flow *f)
{
    return f->from < 0 && f->at == f->end;
}

void flow_poll(const struct flow *f, struct pollfd *list, size_t *n)
{
    if (f->at < f->end)
        list[(*n)++] = (struct pollfd){ .fd = f->to, .events = POLLOUT };
    else if (f->from >= 0)
        list[(*n)++] = (struct pollfd){ .fd = f->from, .events = POLLIN };
}

static bool later(int error)
{
    return error == EAGAIN || error == EINTR;
}

/* poll's word is asked for again: a descriptor that may block must not be read without it. */
static bool readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, 0) > 0;
}

static bool blocks(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && !(flags & O_NONBLOCK);
}

static void fill(struct flow *f)
{
    ssize_t n;

    if (blocks(f->from) && !readable(f->from))
        return;
    n = read(f->from, f->buf, FLOW_BYTES);
    if (n > 0) {
        f->at = 0;
        f->end = (size_t)n;
    } else if (n == 0 || !later(errno)) {
        f->read_error = n < 0 ? errno : 0;
        drop(&f->from);
    }
}

static void spill(struct flow *f, bool stop)
{
    size_t  left = f->end - f->at;
    ssize_t n = -1;

    if (f->to >= 0)
        n = write(f->to, f->buf + f->at, f->piece_bytes && left > f->piece_bytes ? f->piece_bytes : left);
    if (n >= 0) {
        f->at += (size_t)n;
        return;
    }
    if (f->to >= 0 && later(errno))
        return;
    f->write_error = f->to >= 0 ? errno : f->write_error;
    f->at = f->end;
    drop(&f->to);
    if (stop)
        drop(&f->from);
}

void flow_step(struct flow *f, bool stop)
{
    /* Some rounds without asking poll, which costs as much as a read; not so many that others starve. */
    for (int i = 0; i < ROUNDS_MAX; i++) {
        if (f->at == f->end && f->from >= 0)
            fill(f);
        if (f->at == f->end)
            break;
        spill(f, stop);
        if (f->at < f->end)
            break;
    }
    if (flow_done(f))
        drop(&f->to);
}

int flow_output(int fd, size_t *piece_bytes)
{
    char name[32];
    struct stat st;
    int  own;

    *piece_bytes = 0;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (fstat(fd, &st) < 0)
        return -1;
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
        own = file_open(AT_FDCWD, name, O_WRONLY | O_NONBLOCK | O_NOCTTY);
        if (own >= 0)
            return own;
    }
    /* poll says of a pipe, a socket and a terminal that so much will fit */
    if (!S_ISREG(st.st_mode))
        *piece_bytes = PIPE_BUF;
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

// SPDX-License-Identifier: Apache-2.0
/* `wsm-guest connect`: joins its standard input and output to the running serve. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/guest/address.h"
#include "backends/guest/guest.h"

#define WAY_BYTES (128u << 10)

/* One direction: at most one buffer is under way. */
struct way {
    int      from, to;
    uint32_t pos, len;
    bool     over;   /* nothing more comes */
    uint8_t  buf[WAY_BYTES];
};

static bool waits_to_read(const struct way *w) { return !w->over && w->pos == w->len; }

/* Moves what it can. False: it is broken. */
static bool move(struct way *w)
{
    ssize_t n;

    if (waits_to_read(w)) {
        n = read(w->from, w->buf, sizeof(w->buf));
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        w->over = n == 0;
        w->pos = 0;
        w->len = (uint32_t)n;
    }
    while (w->pos < w->len) {
        n = write(w->to, w->buf + w->pos, w->len - w->pos);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        w->pos += (uint32_t)n;
    }
    return true;
}

/* Until the guest closes its side; the end of our input is passed on. */
static int join(struct way *in, struct way *out)
{
    bool shut = false;

    while (!(out->over && out->pos == out->len)) {
        struct pollfd p[] = {
            { waits_to_read(in) ? in->from : -1, POLLIN, 0 },
            { in->pos < in->len ? in->to : -1, POLLOUT, 0 },
            { waits_to_read(out) ? out->from : -1, POLLIN, 0 },
            { out->pos < out->len ? out->to : -1, POLLOUT, 0 },
        };

        if (poll(p, 4, -1) < 0 && errno != EINTR)
            return 1;
        if ((p[0].revents || p[1].revents) && !move(in))
            return 1;
        if ((p[2].revents || p[3].revents) && !move(out))
            return 1;
        if (in->over && in->pos == in->len && !shut) {
            shut = true;
            shutdown(in->to, SHUT_WR);
        }
    }
    return 0;
}

static int dial(const char *to)
{
    struct sockaddr_un a;
    socklen_t len;
    int r = address_parse(to, &a, &len), fd;

    if (r != 0)
        return r;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&a, len) == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0)
        return fd;
    r = -errno;
    close(fd);
    return r;
}

int connect_main(const char *to)
{
    static struct way in, out;
    int fd;

    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* whoever may trace us could speak as the host */
    fd = dial(to);
    if (fd < 0) {
        fprintf(stderr, "wsm-guest: %s: %s\n", to, strerror(-fd));
        return 1;
    }
    in.from = STDIN_FILENO;
    in.to = out.from = fd;
    out.to = STDOUT_FILENO;
    return join(&in, &out);
}

// SPDX-License-Identifier: Apache-2.0
#include "lines.h"

#include <errno.h>
#include <string.h>

#include "wsm.h"

#define PIECE_BYTES (64 << 10)

static void hand_on(struct lines *l, void (*line)(const char *line, void *arg), void *arg)
{
    char *from = l->buf, *end;

    while ((end = memchr(from, '\n', l->used - (size_t)(from - l->buf)))) {
        *end = '\0';
        line(from, arg);
        from = end + 1;
    }
    l->used -= (size_t)(from - l->buf);
    memmove(l->buf, from, l->used);
}

int lines_read(struct lines *l, int fd, void (*line)(const char *line, void *arg), void *arg)
{
    ssize_t n;

    for (;;) {
        if (l->size - l->used < PIECE_BYTES) {
            l->size = l->used + PIECE_BYTES;
            l->buf = more_memory(l->buf, l->size, 1);
        }
        n = read(fd, l->buf + l->used, PIECE_BYTES);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 1 : -errno;
        if (n == 0)
            return 0;
        l->used += (size_t)n;
        hand_on(l, line, arg);
    }
}

void lines_free(struct lines *l)
{
    free(l->buf);
}

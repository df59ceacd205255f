// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "wsm.h"

#define READ_BYTES 4096

int file_open(int dir, const char *name, int flags)
{
    int fd;

    do
        fd = openat(dir, name, flags | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static ssize_t read_on(int fd, char *to, size_t size)
{
    ssize_t n;

    do
        n = read(fd, to, size);
    while (n < 0 && errno == EINTR);
    return n;
}

/* All of it, or what there is up to the end of a line. */
static char *read_text(int dir, const char *name, bool a_line)
{
    cleanup_close int fd = file_open(dir, name, O_RDONLY | O_NOFOLLOW);
    char   *text = NULL;
    size_t  used = 0;
    ssize_t n;

    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    do {
        text = more_memory(text, used + READ_BYTES + 1, 1);
        n = read_on(fd, text + used, READ_BYTES);
        used += n > 0 ? (size_t)n : 0;
    } while (n > 0 && !(a_line && text[used - 1] == '\n'));
    text[used] = '\0';
    if (n >= 0)
        return text;
    free(text);
    return NULL;
}

char *file_read(int dir, const char *name) { return read_text(dir, name, false); }

char *file_read_line(int dir, const char *name)
{
    char *text = read_text(dir, name, true);

    if (text)
        text[strcspn(text, "\n")] = '\0';
    return text;
}

int file_write_once(int fd, const char *data, size_t size)
{
    ssize_t n = write(fd, data, size);

    if (n < 0)
        return -errno;
    return (size_t)n == size ? 0 : -EIO;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno != EINTR)
            return -errno;
        data += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int file_write(int dir, const char *name, const char *data, size_t size)
{
    int fd = file_open(dir, name, O_WRONLY | O_NOFOLLOW), r;

    if (fd < 0)
        return fd;
    r = write_all(fd, data, size);
    /* After EINTR it is closed all the same. */
    if (close(fd) < 0 && r == 0 && errno != EINTR)
        r = -errno;
    return r;
}

void wait_ms(int ms)
{
    poll(NULL, 0, ms);
}

void wait_readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    poll(&p, 1, -1);
}

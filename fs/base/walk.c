// SPDX-License-Identifier: Apache-2.0
#include "fs/base/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_DIR  (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define NAME_SIZE 256

static int open_component(int dir, const char *name, bool make)
{
    int fd = openat(dir, name, OPEN_DIR);

    if (fd >= 0)
        return fd;
    if (errno != ENOENT || !make)
        return -errno;
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    fd = openat(dir, name, OPEN_DIR);
    return fd >= 0 ? fd : -errno;
}

/* Whether the first `len` bytes are a name that leads down, or stays. */
static bool is_way_down(const char *name, size_t len)
{
    return len > 0 && len < NAME_SIZE && !(len == 2 && name[0] == '.' && name[1] == '.');
}

int walk_open(int fd, const char *path, bool make)
{
    int at = fd;

    do {
        char   name[NAME_SIZE];
        size_t len = strcspn(path, "/");
        int    next = -EINVAL;
        if (is_way_down(path, len)) {
            memcpy(name, path, len);
            name[len] = '\0';
            next = open_component(at, name, make);
        }
        if (at != fd)
            close(at);
        if (next < 0)
            return next;
        at = next;
        path += len + (path[len] == '/');
    } while (*path);
    return at;
}

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/jobs/internal.h"

void spares_init(struct spares *s) { pthread_mutex_init(&s->lock, NULL); }
void spares_finish(struct spares *s) { pthread_mutex_destroy(&s->lock); }

void spares_take(struct spares *s, int dir_fd, const char *name)
{
    char spare[SPARE_NAME_BYTES];

    {
        scoped_lock(&s->lock);
        if (s->n == 0)
            return;
        memcpy(spare, s->names[--s->n], sizeof(spare));
    }
    if (renameat(dir_fd, spare, dir_fd, name) < 0)
        unlinkat(dir_fd, spare, 0);
}

static bool add(struct spares *s, const char *name)
{
    scoped_lock(&s->lock);

    if (s->n == SPARES_MAX)
        return false;
    snprintf(s->names[s->n++], SPARE_NAME_BYTES, "%s", name);
    return true;
}

static int empty(int dir_fd, const char *name)
{
    cleanup_close int fd = openat(dir_fd, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? -errno : 0;
}

int spares_give(struct spares *s, int dir_fd, const char *name)
{
    int r = empty(dir_fd, name);

    if (r == 0 && add(s, name))
        return 0;
    return r != -ENOENT && unlinkat(dir_fd, name, 0) < 0 ? -errno : 0;
}

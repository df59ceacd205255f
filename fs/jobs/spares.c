// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/jobs/internal.h"

#define PREFIX     "spare."
#define NAME_BYTES 32

void spares_init(struct spares *s) { pthread_mutex_init(&s->lock, NULL); }
void spares_finish(struct spares *s) { pthread_mutex_destroy(&s->lock); }

bool spares_is(const char *name) { return strncmp(name, PREFIX, strlen(PREFIX)) == 0; }

static void name_of(char to[NAME_BYTES], uint64_t number)
{
    snprintf(to, NAME_BYTES, PREFIX "%llu", (unsigned long long)number);
}

void spares_take(struct spares *s, int dir_fd, const char *name)
{
    char spare[NAME_BYTES];

    {
        scoped_lock(&s->lock);
        if (s->n == 0)
            return;
        name_of(spare, s->numbers[--s->n]);
    }
    if (renameat(dir_fd, spare, dir_fd, name) < 0)
        unlinkat(dir_fd, spare, 0);
}

/* False: there are enough. */
static bool wanted(struct spares *s, uint64_t *number)
{
    scoped_lock(&s->lock);

    *number = ++s->last;
    return s->n < SPARES_MAX;
}

static bool empty(int dir_fd, const char *name)
{
    cleanup_close int fd = openat(dir_fd, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);

    return fd >= 0;
}

/* Its own name goes first: whoever dies now has removed it. */
int spares_give(struct spares *s, int dir_fd, const char *name)
{
    char spare[NAME_BYTES];
    uint64_t number;

    if (!wanted(s, &number))
        return unlinkat(dir_fd, name, 0) < 0 ? -errno : 0;
    name_of(spare, number);
    if (renameat(dir_fd, name, dir_fd, spare) < 0)
        return -errno;
    if (empty(dir_fd, spare)) {
        scoped_lock(&s->lock);
        if (s->n < SPARES_MAX) {
            s->numbers[s->n++] = number;
            return 0;
        }
    }
    return unlinkat(dir_fd, spare, 0) < 0 ? -errno : 0;
}

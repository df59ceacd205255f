// SPDX-License-Identifier: Apache-2.0
/* The way down holds one directory open and knows the numbers of those above it: the way back is "..", believed only
 * where it leads to where we came from. */
#include "backends/shared/give.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

#define OPEN_DIR   (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define NAMES_SIZE 256 /* at first */
#define TRIES      10

/* A directory on the way from the top to where we are. */
struct level {
    struct level *above;
    ino_t  ino;
    char  *names; /* subdirectories to be gone into, each with its NUL, one behind the other */
    size_t size, room, at;
};

struct way {
    give_fn *give;
    void    *arg;
    bool     all; /* also into what was given before */
    dev_t    dev;
    int      fd;  /* of `level` */
    struct level *level;
};

/* ── one directory ───────────────────────────────────────────────────────────────────────── */

static int remember(struct level *l, const char *name)
{
    size_t len = strlen(name) + 1;

    if (l->size + len > l->room) {
        size_t room = l->room ? l->room * 2 : NAMES_SIZE;
        char *more = realloc(l->names, room);
        if (!more)
            return -ENOMEM;
        l->names = more;
        l->room = room;
    }
    memcpy(l->names + l->size, name, len);
    l->size += len;
    return 0;
}

static int give_one(struct way *w, int dir, const char *name)
{
    struct stat st;
    int r;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != w->dev)
        return 0;
    r = w->give(w->arg, dir, name, &st);
    return r >= 0 && S_ISDIR(st.st_mode) && (r > 0 || w->all) ? remember(w->level, name) : r < 0 ? r : 0;
}

/* What is not there any more, or cannot be entered, is passed over. */
static int unless_passed_over(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ELOOP || error == EACCES ? 0 : -error;
}

static int list(struct way *w)
{
    int fd = openat(w->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (!d) {
        r = errno;
        if (fd >= 0)
            close(fd);
        return unless_passed_over(r);
    }
    while (r == 0 && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = give_one(w, dirfd(d), e->d_name);
    return r;
}

/* ── down and up ─────────────────────────────────────────────────────────────────────────── */

static void stand_in(struct way *w, int fd)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = fd;
}

/* Takes over fd. */
static int enter(struct way *w, int fd)
{
    struct level *l;
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_dev != w->dev) {
        close(fd);
        return 0;
    }
    l = calloc(1, sizeof(*l));
    if (!l) {
        close(fd);
        return -ENOMEM;
    }
    l->above = w->level;
    l->ino = st.st_ino;
    w->level = l;
    stand_in(w, fd);
    return list(w);
}

static int go_down(struct way *w)
{
    const char *name = w->level->names + w->level->at;
    int fd = openat(w->fd, name, OPEN_DIR);

    w->level->at += strlen(name) + 1;
    return fd < 0 ? unless_passed_over(errno) : enter(w, fd);
}

static void drop_level(struct way *w)
{
    struct level *l = w->level;

    w->level = l->above;
    free(l->names);
    free(l);
}

static int go_up(struct way *w)
{
    cleanup_close int fd = -1;
    struct stat st;

    drop_level(w);
    if (!w->level)
        return 0;
    fd = openat(w->fd, "..", OPEN_DIR);
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != w->dev || st.st_ino != w->level->ino)
        return -ESTALE;
    stand_in(w, steal_fd(&fd));
    return 0;
}

static int give_below(int top, bool all, give_fn *give, void *arg)
{
    struct way w = { .give = give, .arg = arg, .all = all, .fd = -1 };
    int fd = openat(top, ".", OPEN_DIR);
    struct stat st;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    w.dev = st.st_dev;
    r = enter(&w, fd);
    while (r == 0 && w.level)
        r = w.level->at < w.level->size ? go_down(&w) : go_up(&w);
    while (w.level)
        drop_level(&w);
    stand_in(&w, -1);
    return r;
}

int give_tree(int top, give_fn *give, void *arg)
{
    struct stat st;
    int r = -ESTALE;

    for (int i = 0; r == -ESTALE && i < TRIES; i++) /* what was given stays given */
        r = give_below(top, true, give, arg);
    if (r == 0 && fstat(top, &st) < 0)
        r = -errno;
    if (r == 0)
        r = give(arg, top, "", &st);
    if (r < 0)
        return r;
    give_below(top, false, give, arg);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Removing trees of any depth with two descriptors: a subdirectory is not entered where it stands but
 * moved up into the removal's own directory first. A rename of a mount point fails, so no other file
 * system is ever entered; names are always of one component, so no link is ever followed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/shared/files.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

#define OPEN_DIR   (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define STEP_FILES 1000
#define NAME_SIZE  256
#define REMOVAL_TRIES 100

/* One removal: all it works on lies in one directory of its own. */
struct removal {
    int      top_fd; /* the directory of its own */
    uint64_t moved;  /* subdirectories so far: the next one's name */
    uint64_t files;
    uint64_t changes; /* what was removed or moved: while it grows there is something to do */
    struct backend_progress *progress; /* or NULL */
    struct err err;  /* the first thing that could not be removed */
};

static void count_file(struct removal *r)
{
    r->files++;
    r->changes++;
    if (r->progress && r->files % STEP_FILES == 0) {
        char text[64];
        snprintf(text, sizeof(text), "%llu files removed", (unsigned long long)r->files);
        r->progress->step(r->progress, "remove", text, 0, 0);
    }
}

static void remember(struct removal *r, const char *what, const char *name)
{
    if (r->err.code == 0)
        err_sys(&r->err, -errno, "%s \"%s\" could not be removed", what, name);
}

/* Lets an ordinary user's own directory be emptied, whatever its mode. */
static void make_writable(int dir, const char *name)
{
    cleanup_close int fd = openat(dir, name, OPEN_DIR);
    char path[64];

    if (fd < 0)
        return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    chmod(path, 0700); /* fails where it is not ours: then what follows says so */
}

/* A name in the removal's own directory that is free. */
static void next_name(struct removal *r, char *out)
{
    struct stat st;

    do
        snprintf(out, NAME_SIZE, "%llu", (unsigned long long)r->moved++);
    while (fstatat(r->top_fd, out, &st, AT_SYMLINK_NOFOLLOW) == 0);
}

static void remove_subdirectory(struct removal *r, int dir, const char *name)
{
    char to[NAME_SIZE];

    if (unlinkat(dir, name, AT_REMOVEDIR) == 0) {
        count_file(r);
        return;
    }
    next_name(r, to);
    int moved = renameat(dir, name, r->top_fd, to);
    if (moved < 0 && errno == EACCES) {
        make_writable(dir, name);
        moved = renameat(dir, name, r->top_fd, to);
    }
    if (moved < 0)
        remember(r, "the directory", name);
    else
        r->changes++;
}

static void remove_entry(struct removal *r, int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0)
        count_file(r);
    else if (errno == EISDIR || errno == EPERM)
        remove_subdirectory(r, dir, name);
    else if (errno != ENOENT)
        remember(r, "the file", name);
}

static DIR *open_listing(int dir, const char *name)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(dir, name, flags);

    if (fd < 0 && errno == EACCES) {
        make_writable(dir, name);
        fd = openat(dir, name, flags);
    }
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    return d;
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Empties one directory of the removal's own (its subdirectories move up beside it) and removes it. */
static void remove_flat(struct removal *r, const char *name)
{
    if (geteuid() != 0)
        make_writable(r->top_fd, name);
    cleanup_dir DIR *d = open_listing(r->top_fd, name);
    if (!d) {
        if (errno == ENOTDIR)
            unlinkat(r->top_fd, name, 0);
        else if (errno != ENOENT)
            remember(r, "the directory", name);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (!is_dot(e->d_name))
            remove_entry(r, dirfd(d), e->d_name);
    if (unlinkat(r->top_fd, name, AT_REMOVEDIR) == 0)
        count_file(r);
    else if (errno != ENOENT)
        remember(r, "the directory", name);
}

/* Removes all that is in the removal's own directory, in passes: each takes away at least one level,
 * or nothing is left that can go. */
static void remove_all(struct removal *r)
{
    uint64_t before = UINT64_MAX;

    while (before != r->changes) {
        cleanup_dir DIR *d = open_listing(r->top_fd, ".");
        before = r->changes;
        for (struct dirent *e; d && (e = readdir(d));) {
            if (!is_dot(e->d_name))
                remove_flat(r, e->d_name);
        }
    }
}

/* Opens a removal's own directory and locks it, so that whoever empties the trash, here or for another
 * mount of this base directory, leaves it to us. -EWOULDBLOCK: it is somebody else's; -ENOENT: it was. */
static int open_removal(int trash_fd, const char *name)
{
    cleanup_close int fd = openat(trash_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) /* any other failure: no locks on this file system */
        return -EWOULDBLOCK;
    if (fstatat(trash_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return steal_fd(&fd);
}

/* Removes `name` of the trash, which is the removal's own directory `top_fd`. */
static int finish_removal(int trash_fd, const char *name, int top_fd, struct backend_progress *p, struct err *e)
{
    struct removal r = { .top_fd = top_fd, .progress = p };

    remove_all(&r);
    if (r.err.code == 0 && unlinkat(trash_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        remember(&r, "the directory", name);
    if (r.err.code == 0)
        return 0;
    return err_set(e, r.err.code, "%s; it has left its workspace and waits in .wsmfs/trash", r.err.text);
}

/* Makes a removal's own directory and opens it. One that was just made is empty, and may be taken away. */
static int make_removal(int trash_fd, char *name, struct err *e)
{
    uint64_t random;
    int      fd = -EAGAIN;

    for (int i = 0; i < REMOVAL_TRIES && (fd == -EAGAIN || fd == -ENOENT); i++) {
        if (getrandom(&random, sizeof(random), 0) < 0)
            return err_sys(e, -errno, "no random number");
        snprintf(name, NAME_SIZE, "%016llx", (unsigned long long)random);
        if (mkdirat(trash_fd, name, 0700) < 0)
            return err_sys(e, -errno, "the trash cannot be written");
        fd = open_removal(trash_fd, name);
    }
    return fd < 0 ? err_sys(e, fd, "the trash cannot be opened") : fd;
}

/* Opens the directory that holds the last component of `path`, which is left in *last. */
static int open_parent(int base_fd, const char *path, const char **last)
{
    const char *slash = strrchr(path, '/');
    char above[3 * NAME_SIZE];

    *last = slash ? slash + 1 : path;
    if (!slash)
        return walk_open(base_fd, ".", false);
    snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
    return walk_open(base_fd, above, false);
}

int trash_remove(int base_fd, const char *path, int trash_fd, struct backend_progress *p, struct err *e)
{
    char        own[NAME_SIZE];
    const char *last;
    cleanup_close int parent = open_parent(base_fd, path, &last);
    cleanup_close int top = -1;

    if (parent == -ENOENT)
        return 0;
    if (parent < 0)
        return err_sys(e, parent, "%s cannot be opened", path);
    top = make_removal(trash_fd, own, e);
    if (top < 0)
        return top;
    if (renameat(parent, last, top, "0") < 0) {
        int r = -errno;
        unlinkat(trash_fd, own, AT_REMOVEDIR);
        return r == -ENOENT ? 0 : err_sys(e, r, "%s cannot be moved away", path);
    }
    return finish_removal(trash_fd, own, top, p, e);
}

static int empty_one(int trash_fd, const char *name, struct backend_progress *p, struct err *e)
{
    cleanup_close int top = open_removal(trash_fd, name);

    if (top == -EWOULDBLOCK || top == -ENOENT)
        return 0;
    if (top < 0)
        return err_sys(e, top, "the trash cannot be opened");
    return finish_removal(trash_fd, name, top, p, e);
}

int trash_empty(int trash_fd, struct backend_progress *p, struct err *e)
{
    cleanup_dir DIR *d = open_listing(trash_fd, ".");
    int r = 0;

    for (struct dirent *entry; d && (entry = readdir(d));) {
        struct err one;
        if (is_dot(entry->d_name))
            continue;
        err_clear(&one);
        int this = empty_one(trash_fd, entry->d_name, p, &one);
        if (this < 0 && r == 0) {
            r = this;
            if (e)
                *e = one;
        }
    }
    return r;
}

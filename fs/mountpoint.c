// SPDX-License-Identifier: Apache-2.0
#include "fs/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define STACKED_MAX 64 /* dead mounts upon each other that we take away */

extern char **environ;

/* ── mountinfo ───────────────────────────────────────────────────────────────────────────── */

void mount_info_free(struct mount_info *m)
{
    free(m->where);
    free(m->type);
    free(m->source);
    *m = (struct mount_info){0};
}

/* Blanks, tabs, newlines and backslashes are written as three octal digits. */
static void unescape(char *text)
{
    char *to = text;

    for (const char *from = text; *from; to++) {
        unsigned c;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &c) == 1) {
            *to = (char)c;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* "36 35 98:0 /root /where opts… - type source superopts" */
static bool parse_line(char *line, struct mount_info *out)
{
    char *save, *where = NULL, *type, *source, *tail = strstr(line, " - ");

    if (!tail)
        return false;
    *tail = '\0';
    for (int i = 0; i < 5; i++)
        where = strtok_r(i ? NULL : line, " ", &save);
    type = strtok_r(tail + 3, " ", &save);
    source = strtok_r(NULL, " ", &save);
    if (!where || !type || !source)
        return false;
    unescape(where);
    unescape(source);
    *out = (struct mount_info){.where = strdup(where), .type = strdup(type), .source = strdup(source)};
    return out->where && out->type && out->source;
}

/* Is `path` the directory `dir` or in it? Both absolute and without links. */
static bool is_within(const char *path, const char *dir)
{
    size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);

    return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

bool mount_info_find(const char *path, bool covering, struct mount_info *out)
{
    cleanup_file FILE *f = fopen("/proc/self/mountinfo", "re");
    cleanup_free char *line = NULL;
    size_t size = 0;
    bool found = false;

    *out = (struct mount_info){0};
    while (f && getline(&line, &size, f) > 0) {
        struct mount_info m = {0};
        /* Later lines lie upon earlier ones; the longest name is the nearest. */
        if (parse_line(line, &m) &&
            (covering ? is_within(path, m.where) && (!found || strlen(m.where) >= strlen(out->where))
                      : strcmp(path, m.where) == 0)) {
            mount_info_free(out);
            *out = m;
            found = true;
        } else {
            mount_info_free(&m);
        }
    }
    return found;
}

static bool is_ours(const struct mount_info *m)
{
    return strcmp(m->type, "fuse.wsmfs") == 0 || strcmp(m->type, "wsmfs") == 0;
}

/* ── names ───────────────────────────────────────────────────────────────────────────────── */

/* The name without links of what exists of `path`, the rest behind it as it is. A dead mount is
 * not looked into: its parent gives the name. malloc'ed. */
static char *real_name(const char *path)
{
    cleanup_free char *head = strdup(path), *parent = NULL;
    char *real = realpath(path, NULL), *slash, *joined;

    if (real || !head || (errno != ENOENT && errno != ENOTCONN && errno != EACCES && errno != ENOTDIR))
        return real;
    slash = strrchr(head, '/');
    if (!slash || slash[1] == '\0' || strcmp(slash + 1, "..") == 0)
        return NULL;
    *slash = '\0';
    parent = real_name(slash == head ? "/" : head);
    if (!parent || asprintf(&joined, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, slash + 1) < 0)
        return NULL;
    return joined;
}

/* ── dead mounts ─────────────────────────────────────────────────────────────────────────── */

/* Runs `fusermount3 -uz`, which is setuid root and lets a user take away what is his. */
static int fusermount_detach(const char *path)
{
    char *argv[] = {"fusermount3", "-u", "-z", "--", (char *)path, NULL};
    int status = 0, r;
    pid_t pid;

    r = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
    if (r != 0)
        return -r;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

int mountpoint_detach(const char *path)
{
    if (geteuid() != 0)
        return fusermount_detach(path);
    return umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0 ? -errno : 0;
}

static int ask(int dir, const char *path, mode_t *mode);

/* By a descriptor of the very mount that is dead: another start may have taken it away in this moment, and what stands
 * at `path` now may be its own, which lives. An ordinary user's helper knows names alone. 1: done; 0: whoever asked
 * looks again. */
static int detach_only_dead(const char *path)
{
    cleanup_close int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char by_fd[40];
    mode_t mode;

    if (fd < 0)
        return -errno;
    if (ask(fd, "", &mode) != -ENOTCONN)
        return 0;
    if (geteuid() != 0) {
        int r = mountpoint_detach(path);
        return r < 0 ? r : 1;
    }
    snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", fd);
    if (umount2(by_fd, MNT_DETACH) == 0)
        return 1;
    return errno == EINVAL ? 0 : -errno; /* EINVAL: it is mounted no more */
}

/* Takes away the dead mount of ours that is the topmost one at `path`. */
static int detach_dead(const char *path, struct err *e)
{
    struct mount_info m;
    mode_t mode;
    int r;

    if (!mount_info_find(path, false, &m)) {
        if (ask(AT_FDCWD, path, &mode) != -ENOTCONN)
            return 0; /* another start has just taken it away */
        return err_set(e, -ENOTCONN, "%s lies in a mount whose daemon has died: unmount that first", path);
    }
    if (is_ours(&m))
        r = detach_only_dead(path);
    else
        r = -EBUSY;
    if (r == -EBUSY)
        err_set(e, r, "%s is a dead mount of type %s, which is not ours: umount -l %s", path, m.type, path);
    else if (r < 0)
        err_sys(e, r, "cannot take away the dead mount on %s (try umount -l)", path);
    else if (r > 0)
        log_info("took away a dead mount of %s on %s", m.source, path);
    mount_info_free(&m);
    return r < 0 ? r : 0;
}

static int say_why(const char *path, int r, struct err *e)
{
    struct mount_info m;

    if (r == -ENOENT)
        return err_set(e, r, "the mount point %s does not exist: mkdir -p %s", path, path);
    /* Without allow_other not even root may look into a user's mount, dead or live. */
    if (r == -EACCES && mount_info_find(path, false, &m)) {
        err_set(e, r, "%s is a mount of another user (type %s): unmount it first", path, m.type);
        mount_info_free(&m);
        return r;
    }
    return err_sys(e, r, "the mount point %s", path);
}

/* The kernel answers for a dead mount from its caches: ask for what the daemon would say. Dying in
 * this very moment it is ECONNABORTED. */
static int ask(int dir, const char *path, mode_t *mode)
{
    struct statx stx;

    if (statx(dir, path, AT_STATX_FORCE_SYNC | (*path ? 0 : AT_EMPTY_PATH), STATX_TYPE, &stx) < 0)
        return errno == ECONNABORTED ? -ENOTCONN : -errno;
    *mode = stx.stx_mode;
    return 0;
}

/* Looks at the place, through as many dead mounts as there are. Without `replace` one says that it
 * is dead. */
static int look(const char *path, bool replace, bool *dead, struct err *e)
{
    mode_t mode = 0;
    int r;

    *dead = false;
    for (int i = 0; (r = ask(AT_FDCWD, path, &mode)) < 0; i++) {
        if (r == -ENOTCONN && !replace) {
            *dead = true;
            return 0;
        }
        if (r == -ENOTCONN && i < STACKED_MAX)
            r = detach_dead(path, e);
        else
            r = say_why(path, r, e);
        if (r < 0)
            return r;
    }
    if (!S_ISDIR(mode))
        return err_set(e, -ENOTDIR, "the mount point %s is not a directory", path);
    return 0;
}

/* ── the whole ───────────────────────────────────────────────────────────────────────────── */

static int refuse_live(const char *path, struct err *e)
{
    struct mount_info m;
    int r = 0;

    if (mount_info_find(path, false, &m) && is_ours(&m))
        r = err_set(e, -EBUSY, "%s is a live mount of wsmfs already (of %s): unmount it first", path, m.source);
    mount_info_free(&m);
    return r;
}

/* A daemon that needs its own mount to answer a request would wait for itself. */
static int refuse_overlap(const struct config *c, struct err *e)
{
    const struct {
        const char *what, *path;
        bool        may_hold; /* may the mount point lie in it? */
    } places[] = {
        {"base directory", c->basedir, false},
        {"state directory", c->state_dir, false},
        {"config file", c->config_file, true},
    };

    for (size_t i = 0; i < array_size(places); i++) {
        cleanup_free char *real = places[i].path ? real_name(places[i].path) : NULL;
        if (real && is_within(real, c->mountpoint))
            return err_set(e, -EINVAL, "the %s %s lies in the mount point %s, which would hide it",
                           places[i].what, real, c->mountpoint);
        if (real && !places[i].may_hold && is_within(c->mountpoint, real))
            return err_set(e, -EINVAL, "the mount point %s lies in the %s %s", c->mountpoint, places[i].what,
                           real);
    }
    return 0;
}

int mountpoint_prepare(struct config *c, bool replace, struct err *e)
{
    char *real = real_name(c->mountpoint);
    bool dead;
    int r;

    if (!real)
        return err_sys(e, -errno, "the mount point %s", c->mountpoint);
    free(c->mountpoint);
    c->mountpoint = real;
    r = look(real, replace, &dead, e);
    if (r == 0 && !dead)
        r = refuse_live(real, e);
    return r < 0 ? r : refuse_overlap(c, e);
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/statedir.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/base/timers.h"
#include "fs/manager/basedir.h"

#define LOCK_TEXT_MAX  8192
#define LOOK_AGAIN_NS  50000000
#define UNSAID_WAIT_MS 3000  /* for the other to write who it is */
#define DEAD_WAIT_MS   10000 /* for the last of what it had forked */
#define ENDING_WAIT_MS 2000  /* its mount may be gone already, and this not be written yet */
#define CLOSING_MORE_S 30    /* beyond its shutdown_timeout */

/* What the lock file says about who holds it. */
struct holder {
    long pid;
    bool closing;
    int  shutdown_timeout_s;
    char mountpoint[4096];
};

/* ── the text of the lock ────────────────────────────────────────────────────────────────── */

static int say(struct statedir *s, const char *state)
{
    char text[LOCK_TEXT_MAX];
    int  n = snprintf(text, sizeof(text), "pid %ld\nstate %s\nshutdown_timeout_s %lld\nmountpoint %s\n",
                      (long)getpid(), state, (long long)s->config->shutdown_timeout_s,
                      s->config->mountpoint ? s->config->mountpoint : "");

    if (n < 0 || (size_t)n >= sizeof(text))
        return -ENAMETOOLONG;
    /* Never shorter than what it replaces while somebody reads: written first, cut afterwards. */
    if (pwrite(s->lock_fd, text, (size_t)n, 0) != n || ftruncate(s->lock_fd, n) < 0)
        return errno ? -errno : -EIO;
    return 0;
}

static bool read_holder(int fd, struct holder *h)
{
    char    text[LOCK_TEXT_MAX];
    char    state[16];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return false;
    text[n] = '\0';
    h->mountpoint[0] = '\0';
    if (sscanf(text, "pid %ld state %15s shutdown_timeout_s %d mountpoint %4095[^\n]", &h->pid, state,
               &h->shutdown_timeout_s, h->mountpoint) < 3)
        return false;
    h->closing = strcmp(state, "closing") == 0;
    return true;
}

/* ── taking it ───────────────────────────────────────────────────────────────────────────── */

/* As the kernel has it in mind: nobody is asked who may not answer. */
static bool is_mounted(const char *path)
{
    struct statx st;

    if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW, 0, &st) < 0)
        return errno != ENOENT;
    return !(st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) || (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

static int busy(const struct statedir *s, const struct holder *h, bool known, struct err *e)
{
    if (!known)
        return err_set(e, -EBUSY, "another wsmfs has just begun to use the state directory %s", s->path);
    if (h->closing)
        return err_set(e, -EBUSY,
                       "the wsmfs of process %ld (%s) is still closing its workspaces and did not end in time",
                       h->pid, h->mountpoint);
    if (!is_mounted(h->mountpoint))
        return err_set(e, -EBUSY,
                       "process %ld still serves the mount that was on %s to another mount namespace (of a container, "
                       "say), with the state directory %s: end what has it there, or the process with kill %ld; or give "
                       "this mount another one with -o state_dir=DIR",
                       h->pid, h->mountpoint, s->path, h->pid);
    return err_set(e, -EBUSY,
                   "%s is mounted by process %ld with the state directory %s: give this mount another one with "
                   "-o state_dir=DIR",
                   h->mountpoint, h->pid, s->path);
}

/* A process that was killed while it started a sandbox: what it had forked has the lock until its exec. */
static bool has_died(const struct holder *h)
{
    return h->pid > 0 && kill((pid_t)h->pid, 0) < 0 && errno == ESRCH;
}

/* How long a holder of this kind is waited for. */
static int64_t patience_ms(const struct holder *h, bool known)
{
    if (!known)
        return UNSAID_WAIT_MS;
    if (has_died(h))
        return DEAD_WAIT_MS;
    return h->closing ? (h->shutdown_timeout_s + CLOSING_MORE_S) * INT64_C(1000) : ENDING_WAIT_MS;
}

static int take_lock(struct statedir *s, struct err *e)
{
    const struct timespec pause = { .tv_nsec = LOOK_AGAIN_NS };
    int64_t start_ms = wall_ms();
    bool    said = false;

    while (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        struct holder h = { 0 };
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_sys(e, -errno, "%s/lock cannot be locked", s->path);
        bool known = read_holder(s->lock_fd, &h);
        if (wall_ms() - start_ms >= patience_ms(&h, known))
            return busy(s, &h, known, e);
        if (known && h.closing && !said)
            log_info("waiting for process %ld, which is still closing %s", h.pid, h.mountpoint);
        said = said || (known && h.closing);
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int open_dir(struct statedir *s, struct err *e)
{
    cleanup_close int fd = -1;
    int r = basedir_make_path(s->path, 0700);

    if (r < 0)
        return err_sys(e, r, "the state directory %s cannot be made (-o state_dir=DIR names another one)", s->path);
    fd = open(s->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, -errno, "the state directory %s cannot be opened", s->path);
    r = basedir_check_private(fd, "the state directory", s->path, e);
    if (r < 0)
        return r;
    s->lock_fd = openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_sys(e, -errno, "%s/lock cannot be opened", s->path);
    return 0;
}

static char *default_path(const char *instance)
{
    cleanup_free char *dir = config_default_dir();
    char *path;

    return dir && asprintf(&path, "%s/%s", dir, instance) >= 0 ? path : NULL;
}

int statedir_open(struct statedir *s, const struct config *c, const char *instance, struct err *e)
{
    int r;

    *s = (struct statedir){ .lock_fd = -1, .config = c };
    s->path = c->state_dir ? strdup(c->state_dir) : default_path(instance);
    if (!s->path)
        return err_set(e, -ENOENT, "there is no home directory for a state directory: name one with -o state_dir=DIR");
    r = open_dir(s, e);
    if (r == 0)
        r = take_lock(s, e);
    if (r == 0) {
        r = say(s, "live");
        if (r < 0)
            err_sys(e, r, "%s/lock cannot be written", s->path);
    }
    if (r < 0)
        statedir_close(s);
    return r;
}

void statedir_say_closing(struct statedir *s)
{
    int r = say(s, "closing");

    if (r < 0)
        log_warning("%s/lock cannot be written: %s", s->path, strerror(-r));
}

void statedir_close(struct statedir *s)
{
    if (s->lock_fd >= 0) {
        /* So that the next one does not read who held it. */
        if (s->path && flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(s->lock_fd, 0) < 0)
            log_debug("%s/lock was not emptied", s->path);
        close(s->lock_fd);
    }
    s->lock_fd = -1;
    free(s->path);
    s->path = NULL;
}

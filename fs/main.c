// SPDX-License-Identifier: Apache-2.0
/* wsmfs: the daemon from its arguments to its exit status:
 *
 *   0    the mount ended in the usual way, and what was to be closed is closed
 *   1    wrong usage, or it could not be mounted
 *   75   detached: all workspaces are kept, the next start takes them over
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/backends.h"
#include "fs/background.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/check.h"
#include "fs/commandline.h"
#include "fs/fs.h"
#include "fs/mountpoint.h"
#include "fs/signals.h"

#define EXIT_CANNOT_MOUNT 1
#define EXIT_DETACHED     75

#define POOL_THREADS_MAX 64
#define POOL_STACK_BYTES (256 * 1024)
/* At the end: for answers that are under way while the kernel still takes them, */
#define ANSWERS_NS       1000000000LL
/* and for tasks that nobody waits for any more. */
#define DRAIN_NS         5000000000LL

/* What a running daemon is made of, in the order in which it is made. */
struct daemon {
    struct config  *config;
    struct background background;
    struct backend backend;
    struct timers  *timers;
    struct pool    *pool;
    struct manager *manager;
    struct fs      *fs;
    struct signals *signals;
    atomic_bool     mounted; /* the mount has answered */
};

/* The mount answers; on a thread that serves it. */
static void on_ready(void *arg)
{
    struct daemon *d = arg;

    atomic_store(&d->mounted, true);
    background_ready(&d->background);
    log_info("%s is mounted on %s (process %d)", d->config->source_full, d->config->mountpoint, (int)getpid());
}

/* A descriptor that is opened later must not become one of the standard streams. */
static void fill_standard_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static void raise_limits(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
    umask(0); /* modes come from callers, who have applied their own */
}

static int start(struct daemon *d, struct err *e)
{
    struct manager_setup setup = {.config = d->config, .backend = &d->backend,
                                  .mount_uid = getuid(), .mount_gid = getgid()};
    int r;

    raise_limits();
    d->timers = setup.timers = timers_create();
    d->pool = setup.pool = pool_create(POOL_THREADS_MAX, POOL_STACK_BYTES);
    if (!d->timers || !d->pool)
        return err_set(e, -ENOMEM, "cannot start threads: out of memory");
    r = manager_create(&setup, &d->manager, e);
    if (r == 0)
        r = fs_create(d->config, d->manager, d->pool, d->timers, &d->fs, e);
    if (r == 0)
        r = signals_start(d->config, d->manager, d->fs, &d->signals, e);
    if (r == 0)
        r = fs_mount(d->fs, e);
    if (r == 0)
        manager_start(d->manager);
    return r;
}

/* Everything in the reverse order. Where a task hangs in a backend, what it uses must stay: the
 * process ends with it. */
static int release(struct daemon *d, int status)
{
    signals_finish(d->signals);
    if (d->timers)
        timers_stop(d->timers);
    if (d->pool && !pool_drain(d->pool, DRAIN_NS)) {
        log_warning("tasks still run at the end; leaving them");
        _exit(status);
    }
    fs_destroy(d->fs);
    manager_destroy(d->manager);
    pool_destroy(d->pool);
    timers_destroy(d->timers);
    background_finish(&d->background);
    return status;
}

static int fail(struct daemon *d, const char *text)
{
    background_fail(&d->background, text);
    if (d->fs)
        fs_unmount(d->fs);
    if (d->manager && manager_shutdown(d->manager, true) > 0)
        _exit(EXIT_CANNOT_MOUNT); /* as in finish() */
    return release(d, EXIT_CANNOT_MOUNT);
}

/* The mount has ended: closes what is to be closed. */
static int finish(struct daemon *d)
{
    bool detach = signals_detach(d->signals);
    int status = detach ? EXIT_DETACHED : 0, left;

    signals_mount_ended(d->signals);
    background_notify(&d->background, "STOPPING=1");
    pool_drain(d->pool, ANSWERS_NS);
    fs_unmount(d->fs);
    log_info(detach ? "%s is unmounted; all workspaces are kept" : "%s is unmounted; closing workspaces",
             d->config->mountpoint);
    left = manager_shutdown(d->manager, detach);
    if (left > 0) {
        log_error("%d workspaces could not be closed in time; the next start looks after them", left);
        _exit(status);
    }
    log_info("ended");
    return release(d, status);
}

static int serve(struct daemon *d)
{
    struct err e = {0};
    int r = start(d, &e);

    if (r == 0) {
        r = fs_run(d->fs, on_ready, d, &e);
        if (r == 0 && !atomic_load(&d->mounted))
            r = err_set(&e, -EIO, "the mount on %s ended before it answered", d->config->mountpoint);
    }
    if (!atomic_load(&d->mounted))
        return fail(d, e.text);
    if (r < 0)
        log_error("%s", e.text);
    return finish(d);
}

/* What can be refused on the terminal itself. */
static int prepare(struct daemon *d, struct err *e)
{
    int r = mountpoint_prepare(d->config, true, e);

    if (r < 0)
        return r;
    r = backend_find(d->config->backend, &d->backend, e);
    return r == 0 ? background_start(&d->background, d->config->foreground, e) : r;
}

static int run_mount(struct config *c)
{
    struct daemon d = {.config = c, .background.parent_fd = -1};
    struct err e = {0};

    if (prepare(&d, &e) < 0)
        return fail(&d, e.text);
    return serve(&d);
}

/* Each returns the exit status. */
static int (*const actions[])(struct config *c) = {
    [ACTION_MOUNT] = run_mount,
    [ACTION_CHECK] = check_run,
    [ACTION_HELP] = commandline_help,
    [ACTION_VERSION] = commandline_version,
    [ACTION_DUMP_BACKEND] = commandline_dump_backend,
};

int main(int argc, char **argv)
{
    struct config *c = config_create();
    struct err e = {0};
    enum action action;
    int status = EXIT_CANNOT_MOUNT;

    fill_standard_streams();
    log_open(LOG_TARGET_STDERR);
    if (!c || commandline_parse(argc, argv, c, &action, &e) < 0) {
        fprintf(stderr, "wsmfs: %s\n", c ? e.text : "out of memory");
    } else {
        log_set_level((enum log_level)c->log_level);
        status = actions[action](c);
    }
    config_destroy(c);
    return status;
}

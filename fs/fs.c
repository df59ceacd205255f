// SPDX-License-Identifier: Apache-2.0
/* The mount: made, served, ended. */
#include "fs/fs.h"

#include <errno.h>
#include <linux/magic.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "fs/backing.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/creds.h"
#include "fs/hostdir/hostdir.h"
#include "fs/hostdir/lock.h"
#include "fs/hostdir/watch.h"
#include "fs/jobs/jobs.h"
#include "fs/loop.h"
#include "fs/mountpoint.h"
#include "fs/ops.h"
#include "fs/refused.h"
#include "fs/tree/tree.h"

#define READERS_DEFAULT   10
#define OVERLAYFS_MAGIC   0x794c7630
#define ANSWERS_NS        5000000000

/* ── what kernel and daemon agree on ─────────────────────────────────────────────────────── */

static long type_of_fs(const char *path)
{
    struct statfs v;
    return statfs(path, &v) == 0 ? (long)v.f_type : 0;
}

static bool on_overlayfs(const char *path)
{
    return type_of_fs(path) == OVERLAYFS_MAGIC;
}

/* Those of this machine's disks and memory do not; of all others it is assumed. */
static bool close_may_fail(const char *path)
{
    static const long local[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC, OVERLAYFS_MAGIC};
    long type = type_of_fs(path);
    for (size_t i = 0; i < array_size(local); i++)
        if (type == local[i])
            return false;
    return true;
}

void fs_init_connection(struct fs *fs, struct fuse_conn_info *conn)
{
    fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
    if (conn->max_write > READERS_WRITE_MAX)
        conn->max_write = READERS_WRITE_MAX;
    fs->expire_only = fuse_set_feature_flag(conn, FUSE_CAP_EXPIRE_ONLY);
    fs->direct_mmap = fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    fs->killpriv = fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
    fs->passthrough = fs->config->passthrough != TRI_OFF && fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
    /* one level more is what a container's overlay takes; it forbids stacking on this mount */
    if (fs->passthrough && on_overlayfs(fs->config->basedir))
        conn->max_backing_stack_depth = 1;
}

/* Whether this kernel and these privileges let a backing file be registered: tried, once. */
static int try_passthrough(struct fs *fs)
{
    struct backing_map map = {0};
    int dev = fuse_session_fd(fs->session);
    cleanup_close int fd = open(fs->config->basedir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    map.fd = fd;
    int id = ioctl(dev, BACKING_OPEN, &map);
    if (id <= 0)
        return -errno;
    (void)ioctl(dev, BACKING_CLOSE, &id);
    return 0;
}

static void start_watching(struct fs *fs)
{
    const char *why;
    fs->watcher = watcher_create(fs, &why);
    if (!fs->watcher)
        log_info("changes behind the mount are not told to us (%s): names and attributes are asked for "
                 "every second", why);
    manager_note(fs->manager, "watching", fs->watcher ? "on" : "off");
}

/* After INIT was answered. */
static void settle(struct fs *fs)
{
    const char *why = "the kernel does not offer it";
    int r = 0;
    if (fs->config->passthrough == TRI_OFF) {
        why = "passthrough=off";
    } else if (fs->passthrough && (r = try_passthrough(fs)) < 0) {
        why = strerror(-r);
        fs->passthrough = false;
    }
    if (fs->passthrough)
        log_info("file data goes straight to the backing files (passthrough)");
    else if (fs->config->passthrough == TRI_ON)
        err_set(&fs->refusal, -EOPNOTSUPP, "passthrough=on cannot be had here (%s)", why);
    else
        log_info("file data goes through the daemon: no passthrough (%s)", why);
    if (fs->refusal.code < 0) {
        fs_stop(fs);
        return;
    }
    manager_note(fs->manager, "passthrough", fs->passthrough ? "on" : "off");
    start_watching(fs);
    if (fs->jobs)
        jobs_take_over(fs->jobs);
    if (fs->ready)
        fs->ready(fs->ready_arg);
}

/* ── making ──────────────────────────────────────────────────────────────────────────────── */

/* As main's own signal: it ends the mount and keeps what is live. */
static void on_detach(void *arg)
{
    (void)arg;
    kill(getpid(), SIGUSR1);
}

static int on_reload(void *arg, struct err *e)
{
    return fs_reload(arg, e);
}

int fs_reload(struct fs *fs, struct err *e)
{
    cleanup_free char *kept = NULL;
    int r = config_reload(fs->config, &kept, e);
    if (r < 0)
        return r;
    if (kept)
        log_warning("these options change only with a new mount: %s", kept);
    manager_config_changed(fs->manager);
    tree_reloaded(fs);
    return 0;
}

static void on_stop_jobs(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    if (fs->jobs)
        jobs_stop_workspace(fs->jobs, ws);
}

static bool on_leave_jobs(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    return fs->jobs && jobs_leave_workspace(fs->jobs, ws);
}

static void on_sandbox_lost(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    if (fs->jobs)
        jobs_sandbox_lost(fs->jobs, ws);
}

static const struct manager_hooks hooks = {
    .stop_jobs = on_stop_jobs,
    .leave_jobs = on_leave_jobs,
    .sandbox_lost = on_sandbox_lost,
    .closed = hostdir_closed,
    .emptied = hostdir_emptied,
    .rebound = tree_rebound,
    .known = tree_known,
    .forgotten = tree_forgotten,
    .expire = hostdir_expire,
    .detach = on_detach,
    .reload = on_reload,
};

/* Half of what the process may have open is for directories; the rest for files in use. */
static unsigned max_cached_fds(void)
{
    struct rlimit l = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &l);
    return l.rlim_cur / 2 < 4096 ? (unsigned)(l.rlim_cur / 2) : 4096;
}

static unsigned n_readers(const struct fs *fs)
{
    return fs->config->readers ? fs->config->readers : READERS_DEFAULT;
}

static int make_parts(struct fs *fs)
{
    unsigned delivering = n_readers(fs) > 2 ? n_readers(fs) - 2 : 0;
    fs->handles = idtable_create();
    fs->refused = refused_create();
    fs->hinodes = hinodes_create(max_cached_fds());
    fs->coherence = coherence_create(fs, delivering);
    fs->lockers = lockers_create();
    fs->readers = readers_create();
    if (!fs->handles || !fs->refused || !fs->hinodes || !fs->coherence || !fs->lockers || !fs->readers || nodes_init(&fs->nodes) < 0)
        return -ENOMEM;
    return tree_init(fs);
}

/* On a thread of the pool: what a job wrote is there for everybody. */
static void sync_watch(void *arg)
{
    struct fs *fs = arg;
    if (fs->watcher)
        watch_sync(fs);
}

static int make_jobs(struct fs *fs, struct err *e)
{
    const struct jobs_setup setup = {.config = fs->config, .manager = fs->manager, .pool = fs->pool,
                                     .timers = fs->timers, .sync = sync_watch, .arg = fs};
    return manager_runs_jobs(fs->manager) ? jobs_create(&setup, &fs->jobs, e) : 0;
}

int fs_create(struct config *c, struct manager *m, struct pool *pool, struct timers *timers,
              struct fs **out, struct err *e)
{
    struct fs *fs = calloc(1, sizeof *fs);
    *out = NULL;
    if (!fs)
        return err_set(e, -ENOMEM, "out of memory");
    fs->config = c;
    fs->manager = m;
    fs->pool = pool;
    fs->timers = timers;
    fs->mount_uid = getuid();
    fs->mount_gid = getgid();
    fs->as_callers = geteuid() == 0;
    fs->close_may_fail = close_may_fail(c->basedir);
    fs->proc_fd_dir = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fs->proc_fd_dir < 0) {
        free(fs);
        return err_set(e, -ENXIO, "/proc is not mounted: wsmfs reaches open files through it");
    }
    int r = make_parts(fs);
    if (r < 0)
        err_set(e, r, "out of memory");
    else
        r = make_jobs(fs, e);
    if (r < 0) {
        fs_destroy(fs);
        return r;
    }
    manager_set_hooks(m, &hooks, fs);
    *out = fs;
    return 0;
}

static void drop_handle(void *object, void *arg)
{
    struct handle *h = object;
    h->ops->drop(arg, h);
}

void fs_destroy(struct fs *fs)
{
    if (!fs)
        return;
    if (fs->handles)
        idtable_each(fs->handles, drop_handle, fs);
    if (fs->nodes.ids) {
        nodes_drain(fs);
        if (fs->nodes.root)
            fs->nodes.root->ops->destroy(fs, fs->nodes.root);
        hostdirs_drain(fs);
        nodes_finish(&fs->nodes);
    }
    /* Both end requests that still wait, whose answers need the session though nobody reads them. */
    jobs_destroy(fs->jobs);
    lockers_destroy(fs->lockers);
    pool_drain(fs->pool, ANSWERS_NS);
    coherence_destroy(fs->coherence);
    watcher_destroy(fs->watcher);
    if (fs->session)
        fuse_session_destroy(fs->session);
    hinodes_destroy(fs->hinodes);
    idtable_destroy(fs->handles);
    refused_destroy(fs->refused);
    readers_destroy(fs->readers);
    close(fs->proc_fd_dir);
    free(fs);
}

/* ── mounting ────────────────────────────────────────────────────────────────────────────── */

/* In an option of libfuse a comma and a backslash are written behind a backslash. */
static void print_escaped(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == ',' || *text == '\\')
            fputc('\\', f);
        fputc(*text, f);
    }
}

static char *mount_options(const struct config *c)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fputs("default_permissions,nosuid,nodev,subtype=wsmfs,fsname=", f);
    print_escaped(f, c->source_full);
    if (c->allow_other)
        fputs(",allow_other", f);
    if (c->read_only)
        fputs(",ro", f);
    if (c->fuse_opts && *c->fuse_opts)
        fprintf(f, ",%s", c->fuse_opts);
    if (c->debug_fuse)
        fputs(",debug", f);
    return fclose(f) == 0 ? text : NULL;
}

static void on_libfuse_log(enum fuse_log_level level, const char *fmt, va_list ap)
{
    char text[512];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_event(level <= FUSE_LOG_ERR ? LOG_LEVEL_ERROR
              : level == FUSE_LOG_WARNING ? LOG_LEVEL_WARNING
              : level == FUSE_LOG_DEBUG ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
              NULL, "libfuse: %s", text);
}

static int make_session(struct fs *fs, struct err *e)
{
    cleanup_free char *options = mount_options(fs->config);
    char *argv[] = {"wsmfs", "-o", options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    if (!options)
        return err_set(e, -ENOMEM, "out of memory");
    fuse_set_log_func(on_libfuse_log);
    fs->session = fuse_session_new(&args, &fs_ops, sizeof fs_ops, fs);
    fuse_opt_free_args(&args);
    if (!fs->session)
        return err_set(e, -EINVAL, "libfuse does not accept the mount options %s", options);
    return 0;
}

/* The number of what is mounted there, as the kernel has it in mind: nobody answers here. 0: none. */
static unsigned number_at(const char *mountpoint)
{
    struct statx st;
    return statx(AT_FDCWD, mountpoint, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) == 0 && st.stx_dev_major == 0
               ? st.stx_dev_minor : 0;
}

int fs_mount(struct fs *fs, struct err *e)
{
    int r = make_session(fs, e);
    if (r < 0)
        return r;
    /* before any thread of the loop exists, since each inherits it */
    creds_drop_fsetid();
    if (fuse_session_mount(fs->session, fs->config->mountpoint) != 0)
        return err_set(e, -EIO, "cannot mount on %s: see the line above; `wsmfs --check` tells what is missing",
                       fs->config->mountpoint);
    fs->mounted = true;
    fs->connection = number_at(fs->config->mountpoint);
    return 0;
}

int fs_run(struct fs *fs, void (*ready)(void *arg), void *arg, struct err *e)
{
    fs->ready = ready;
    fs->ready_arg = arg;
    int r = readers_run(fs, n_readers(fs), fs->config->spin_us, settle);
    if (r < 0)
        return err_sys(e, r, "the mount ended");
    return fs->refusal.code < 0 ? err_set(e, fs->refusal.code, "%s", fs->refusal.text) : 0;
}

void fs_stop(struct fs *fs)
{
    readers_stop(fs);
}

static bool has_ended(struct fs *fs)
{
    struct pollfd p = {.fd = fuse_session_fd(fs->session)};
    return poll(&p, 1, 0) > 0 && p.revents & POLLERR;
}

/* By the control file of the connection, where those are mounted; its owner may. */
static bool abort_connection(const struct fs *fs)
{
    char path[64];
    snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort", fs->connection);
    cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "1", 1) == 1;
}

void fs_cut_off(struct fs *fs)
{
    const char *where = fs->config->mountpoint;
    if (!fs->mounted || !fs->connection || has_ended(fs))
        return;
    bool there = number_at(where) == fs->connection; /* and not detached before, with another one in its place */
    if (abort_connection(fs)) {
        if (there)
            mountpoint_detach(where);
    } else if (there && geteuid() == 0) {
        umount2(where, MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW);
    }
}

void fs_unmount(struct fs *fs)
{
    if (!fs->mounted)
        return;
    fuse_session_exit(fs->session); /* an answer that comes after this goes nowhere, which is no complaint */
    fs_cut_off(fs); /* first: what follows waits for threads that may tell the kernel something */
    if (fs->jobs)
        jobs_mount_ended(fs->jobs);
    watcher_stop(fs->watcher); /* it stays: requests that were parked may still be run, and look at directories */
    fuse_session_unmount(fs->session);
    fs->mounted = false;
}

// SPDX-License-Identifier: Apache-2.0
/* Between fork and exec. The process that forked has threads, so there are only system calls here:
 * no memory, no stdio, no lock. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/local/sandbox_internal.h"

/* Descriptors wait above these numbers while their places are emptied. */
#define PARKED_FROM 100
#define OPEN_FILES_SOFT 1024 /* what programs expect; the daemon's own is far higher */
#define JOIN_NEW_SESSION_KEYRING 1 /* keyctl(2): KEYCTL_JOIN_SESSION_KEYRING */

static void fail(int status_fd, enum sandbox_step step) __attribute__((noreturn));
static void fail(int status_fd, enum sandbox_step step)
{
    struct sandbox_failure f = {.step = (int)step, .error = errno};

    (void)!write(status_fd, &f, sizeof(f));
    _exit(127);
}

/* What the daemon has set for itself and a job must not inherit. */
static void reset_signals(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t none;

    for (int i = 1; i < NSIG; i++)
        sigaction(i, &standard, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* A service manager may protect the daemon from the out-of-memory killer; that is not for jobs. */
static void reset_oom_score(void)
{
    char first = 0;
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return;
    if (read(fd, &first, 1) == 1 && first == '-')
        (void)!pwrite(fd, "0\n", 2, 0);
    close(fd);
}

/* A core of exactly one byte means: neither a file nor a start of the host's crash handler, which
 * would read a tenant's memory as root (core(5)). */
static void reset_limits(const struct sandbox_plan *p)
{
    struct rlimit no_core = {.rlim_cur = 1, .rlim_max = 1};
    struct rlimit files;

    if (p->kind != SANDBOX_OFF)
        setrlimit(RLIMIT_CORE, &no_core);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > OPEN_FILES_SOFT) {
        files.rlim_cur = OPEN_FILES_SOFT;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static void reset_process(void)
{
    setsid();
    reset_signals();
    reset_oom_score();
    umask(022);
    /* Else a job possesses the keys of the daemon's session. */
    syscall(SYS_keyctl, JOIN_NEW_SESSION_KEYRING, NULL);
}

static bool join_groups(const struct sandbox_plan *p)
{
    for (size_t i = 0; i < p->n_join_fds; i++)
        if (write(p->join_fds[i], "0\n", 2) != 2)
            return false;
    return true;
}

static bool attach(const struct sandbox_tree *t)
{
    int fd;

    if (t->directory) {
        if (mkdir(t->path, 0755) < 0)
            return false;
    } else {
        fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            return false;
        close(fd);
    }
    return move_mount(t->fd, "", AT_FDCWD, t->path, MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

/* A mount namespace of its own, in which what lies below closed directories has a path that whoever
 * this process becomes can walk. A slave of the host's: an unmount there is not held up here. */
static void stage(const struct sandbox_plan *p, int status_fd)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        fail(status_fd, SANDBOX_STEP_NAMESPACE);
    if (mount("wsm", p->stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") < 0)
        fail(status_fd, SANDBOX_STEP_STAGE);
    for (size_t i = 0; i < p->n_trees; i++)
        if (!attach(&p->trees[i]))
            fail(status_fd, SANDBOX_STEP_ATTACH);
}

static bool drop(const struct sandbox_plan *p)
{
    return !p->drop || (setgroups(p->n_groups, p->groups) == 0 && setresgid(p->gid, p->gid, p->gid) == 0 &&
                        setresuid(p->uid, p->uid, p->uid) == 0);
}

/* Gives every descriptor its place and closes all others, whatever the daemon has open. */
static bool place_fds(const struct sandbox_plan *p, int *status_fd)
{
    int parked[SANDBOX_FD_N];

    for (int i = 0; i < SANDBOX_FD_N; i++) {
        bool used_up = i == SANDBOX_FD_INFO && p->detach;
        int fd = used_up ? -1 : i == SANDBOX_FD_STATUS ? *status_fd : p->fds[i];
        parked[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, PARKED_FROM);
        if (fd >= 0 && parked[i] < 0)
            return false;
    }
    *status_fd = parked[SANDBOX_FD_STATUS];
    close_range(0, PARKED_FROM - 1, 0);
    for (int i = 0; i < SANDBOX_FD_N; i++)
        if (parked[i] >= 0 && dup3(parked[i], i, i >= SANDBOX_FD_STATUS ? O_CLOEXEC : 0) < 0)
            return false;
    *status_fd = SANDBOX_FD_STATUS;
    return close_range(SANDBOX_FD_N, ~0u, 0) == 0;
}

/* The process that lives on is nobody's child, so nobody need wait for it. */
static void detach(const struct sandbox_plan *p, int status_fd)
{
    pid_t pid = fork();

    if (pid < 0)
        fail(status_fd, SANDBOX_STEP_FORK);
    if (pid == 0)
        return;
    (void)!write(p->fds[SANDBOX_FD_INFO], &pid, sizeof(pid));
    _exit(0);
}

static void become(const struct sandbox_plan *p)
{
    if (p->exec_path)
        execve(p->exec_path, p->argv, p->envp);
    else
        syscall(SYS_execveat, SANDBOX_FD_EXEC, "", p->argv, p->envp, AT_EMPTY_PATH);
}

void sandbox_child(const struct sandbox_plan *p)
{
    int status_fd = p->fds[SANDBOX_FD_STATUS];

    if (p->detach)
        detach(p, status_fd);
    reset_process();
    if (!join_groups(p))
        fail(status_fd, SANDBOX_STEP_JOIN);
    if (p->stage)
        stage(p, status_fd);
    if ((p->cwd_fd >= 0 ? fchdir(p->cwd_fd) : chdir("/")) < 0)
        fail(status_fd, SANDBOX_STEP_CHDIR);
    if (!place_fds(p, &status_fd))
        fail(status_fd, SANDBOX_STEP_FDS);
    reset_limits(p);
    if (!drop(p))
        fail(status_fd, SANDBOX_STEP_DROP);
    become(p);
    fail(status_fd, SANDBOX_STEP_EXEC);
}

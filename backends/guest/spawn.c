// SPDX-License-Identifier: Apache-2.0
/* Starting a command. The child is a plain fork, and nobody waits for its execve: on a busy machine that takes
 * as long as the child waits for a processor, and meanwhile the guest has others to serve. What went wrong
 * the child says in a pipe that all children share; it is read when a child has died (job.c), so that one
 * that executes costs nothing more. All that needs memory is prepared before (plan.c). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/guest/guest.h"
#include "backends/guest/plan.h"

#define CAPS_MAX 63
#ifndef PR_CAP_AMBIENT
#define PR_CAP_AMBIENT 47
#define PR_CAP_AMBIENT_CLEAR_ALL 4
#endif
#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

struct fds {
    int child[3];  /* what becomes 0, 1, 2 */
    int ours[3];
};

/* All that a child has: of struct guest it has nothing (serve.c). */
struct child {
    struct plan      *plan;
    const struct fds *fds;
    struct rlimit     files_limit;
    uint64_t          tag;
    int               reports; /* where it says what failed */
    int               step;    /* what it is doing */
};

/* What a child says that could not execute its command, in one write. */
struct report {
    uint64_t       tag; /* whose child: numbers of processes come again */
    struct spawned s;
};
_Static_assert(sizeof(struct report) <= PIPE_BUF, "one that another child's may lie in the midst of");

enum step { STEP_EXEC, STEP_SESSION, STEP_TERMINAL, STEP_STREAMS, STEP_RIGHTS, STEP_CWD };
static const char *const step_text[] = {
    [STEP_EXEC] = "cannot be executed", [STEP_SESSION] = "no session of its own", [STEP_TERMINAL] = "no terminal",
    [STEP_STREAMS] = "standard streams", [STEP_RIGHTS] = "cannot become the user", [STEP_CWD] = "directory",
};

/* ── in the child ── */

static int become_user(const struct user *u)
{
    if (!u->set)
        return 0;
    if (syscall(SYS_setgroups, (size_t)u->n_groups, u->groups) != 0 &&
        (errno != EPERM || (u->uid != geteuid() && (u->n_groups || getgroups(0, NULL) != 0))))
        return -errno;
    if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) != 0 || syscall(SYS_setresuid, u->uid, u->uid, u->uid) != 0)
        return -errno;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* which the change may have set; it holds the guest's descriptors */
    return 0;
}

static int drop_caps(void)
{
    struct cap_head head = { CAP_VERSION_3, 0 };
    struct cap_data none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };

    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, none) == 0 ? 0 : -errno;
}

static int take_rights(const struct plan *p)
{
    int r;

    if (p->flags & PROTO_SPAWN_DROP_CAPS)
        for (int c = 0; c <= CAPS_MAX; c++)
            if (prctl(PR_CAPBSET_DROP, c, 0, 0, 0) != 0)
                break; /* that was the last one; or CAP_SETPCAP is missing, and no_new_privs must do */
    r = become_user(&p->user);
    if (r == 0 && (p->flags & PROTO_SPAWN_NO_NEW_PRIVS))
        r = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : -errno;
    if (r == 0 && (p->flags & PROTO_SPAWN_DROP_CAPS))
        r = drop_caps();
    return r;
}

static int take_streams(const struct fds *f)
{
    for (int i = 0; i < 3; i++)
        if (dup2(f->child[i], i) < 0)
            return -errno;
    return 0;
}

/* Not only by the execve, which may have to wait for a filesystem: others wait for the end of an input or of a
 * connection that this process has, too, and must not wait for it. */
static void leave_others(int keep, int also)
{
    unsigned low = (unsigned)(also >= 0 && also < keep ? also : keep), high = (unsigned)(also > keep ? also : keep);

    if (low > 3)
        syscall(SYS_close_range, 3u, low - 1, 0u);
    if (high > low + 1)
        syscall(SYS_close_range, low + 1, high - 1, 0u);
    syscall(SYS_close_range, high + 1, ~0u, 0u);
}

static int set_limits(const struct child *c)
{
    struct rlimit tag;

    if (getrlimit(RLIMIT_LOCKS, &tag) == 0 && c->tag <= tag.rlim_max) {
        tag.rlim_cur = c->tag;
        setrlimit(RLIMIT_LOCKS, &tag);
    }
    setrlimit(RLIMIT_NOFILE, &c->files_limit);
    return 0;
}

/* The first candidate that can be executed; of the failures the one that says most. */
static int execute(struct plan *p)
{
    int error = ENOENT;

    for (const char *path = p->candidates; *path; path += strlen(path) + 1) {
        execve(path, p->argv, p->envp);
        if (errno == E2BIG && p->script_fd >= 0 && fcntl(p->script_fd, F_SETFD, 0) == 0)
            execve(path, p->file_argv, p->envp);
        if (errno != ENOENT && errno != ENOTDIR)
            error = errno;
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
            break;
    }
    return -error;
}

static int steps(struct child *c)
{
    int r;

    c->step = STEP_SESSION;
    if (setsid() < 0)
        return -errno;
    c->step = STEP_TERMINAL;
    if ((c->plan->flags & PROTO_SPAWN_TTY) && ioctl(c->fds->child[0], TIOCSCTTY, 0) != 0)
        return -errno;
    c->step = STEP_STREAMS;
    if ((r = take_streams(c->fds)) != 0)
        return r;
    leave_others(c->reports, c->plan->script_fd);
    set_limits(c);
    c->step = STEP_RIGHTS;
    if ((r = take_rights(c->plan)) != 0)
        return r;
    c->step = STEP_CWD;
    if (c->plan->cwd && chdir(c->plan->cwd) != 0)
        return -errno;
    c->step = STEP_EXEC;
    return execute(c->plan);
}

/* ── streams ── */

static void close_fds(int fd[3])
{
    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

static int open_terminal(const struct plan *p, struct fds *f)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlocked = 0, slave;

    if (master < 0)
        return -errno;
    f->ours[1] = master;
    if (ioctl(master, TIOCSPTLCK, &unlocked) != 0)
        return -errno;
    slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return -errno;
    for (int i = 0; i < 3; i++)
        f->child[i] = i ? fcntl(slave, F_DUPFD_CLOEXEC, 3) : slave;
    return spawn_resize(master, p->cols, p->rows);
}

static int open_pipe(int *read_end, int *write_end)
{
    int fd[2];

    if (pipe2(fd, O_CLOEXEC) != 0)
        return -errno;
    *read_end = fd[0];
    *write_end = fd[1];
    return 0;
}

/* Without /dev/null the child reads from a pipe that nobody writes to. */
static int open_empty(struct guest *g, struct fds *f)
{
    int r = 0;

    f->child[0] = g->null_fd;
    if (f->child[0] >= 0)
        return 0;
    r = open_pipe(&f->child[0], &f->ours[0]);
    if (r == 0)
        close(steal_fd(&f->ours[0]));
    return r;
}

static int open_streams(struct guest *g, const struct plan *p, struct fds *f)
{
    int r;

    if (p->flags & PROTO_SPAWN_TTY)
        return open_terminal(p, f);
    r = p->flags & PROTO_SPAWN_STDIN ? open_pipe(&f->child[0], &f->ours[0]) : open_empty(g, f);
    if (r == 0)
        r = open_pipe(&f->ours[1], &f->child[1]);
    if (r == 0)
        r = open_pipe(&f->ours[2], &f->child[2]);
    return r;
}

int spawn_open_reports(struct guest *g)
{
    if (pipe2(g->reports, O_CLOEXEC) != 0 || fcntl(g->reports[0], F_SETFL, O_NONBLOCK) != 0)
        return -errno;
    return 0;
}

bool spawn_report(struct guest *g, uint64_t *tag, struct spawned *s)
{
    struct report r;

    if (read(g->reports[0], &r, sizeof(r)) != sizeof(r))
        return false;
    *tag = r.tag;
    *s = r.s;
    return true;
}

int spawn_resize(int fd, uint16_t cols, uint16_t rows)
{
    struct winsize w = { .ws_col = cols, .ws_row = rows };

    return ioctl(fd, TIOCSWINSZ, &w) == 0 ? 0 : -errno;
}

/* ── starting ── */

static bool refuse(struct spawned *s, int error, int exit_code, const char *what, const char *why)
{
    s->error = error;
    s->exit_code = exit_code;
    snprintf(s->text, sizeof(s->text), "%.200s: %s", what, why);
    return false;
}

static bool explain(struct spawned *s, const struct child *c, int error)
{
    const char *name = c->plan->argv[0];

    if (c->step == STEP_CWD)
        return refuse(s, error, 0, c->plan->cwd, strerror(-error));
    if (c->step == STEP_RIGHTS && error == -EINVAL) /* an id that the user namespace does not know */
        return refuse(s, error, 0, step_text[c->step], "the sandbox has no such user or group id");
    if (c->step != STEP_EXEC)
        return refuse(s, error, 0, step_text[c->step], strerror(-error));
    if (c->plan->flags & PROTO_SPAWN_SHELL)
        name = "/bin/sh";
    if (error == -ENOENT && strchr(name, '/') == NULL)
        return refuse(s, error, 127, name, "command not found");
    return refuse(s, error, error == -ENOENT ? 127 : 126, name, strerror(-error));
}

/* The child's life. No signal has a handler here: one that comes before the execve does what it would do to the
 * command. */
static _Noreturn void child_main(struct child *c)
{
    struct report r = { .tag = c->tag, .s = { .pid = getpid(), .in = -1, .out = -1, .err = -1 } };
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    explain(&r.s, c, steps(c));
    ssize_t n = write(c->reports, &r, sizeof(r));
    (void)n;
    _exit(127);
}

static bool run(struct child *c, struct spawned *s)
{
    s->pid = fork();
    if (s->pid == 0)
        child_main(c);
    return s->pid > 0 || refuse(s, -errno, 0, "no process could be started", strerror(errno));
}

bool spawn_command(struct guest *g, const struct proto_spawn *m, uint64_t tag, struct spawned *s)
{
    struct plan plan;
    struct fds fds = { { -1, -1, -1 }, { -1, -1, -1 } };
    struct child c = { &plan, &fds, g->files_limit, tag, g->reports[1], STEP_SESSION };
    bool ok = false;
    int r;

    *s = (struct spawned){ .in = -1, .out = -1, .err = -1 };
    r = plan_make(&plan, g, m, s->text, sizeof(s->text));
    if (r != 0)
        s->error = r;
    else if ((r = open_streams(g, &plan, &fds)) != 0)
        refuse(s, r, 0, plan.flags & PROTO_SPAWN_TTY ? "no terminal" : "no pipe", strerror(-r));
    else
        ok = run(&c, s);
    if (fds.child[0] == g->null_fd)
        fds.child[0] = -1; /* it stays */
    close_fds(fds.child);
    if (ok) {
        s->in = fds.ours[0];
        s->out = fds.ours[1];
        s->err = fds.ours[2];
    } else {
        close_fds(fds.ours);
    }
    plan_free(&plan);
    return ok;
}

// SPDX-License-Identifier: Apache-2.0
/* From the fork until the guest runs.
 *
 * bubblewrap splits in two: a monitor, our child, and the sandbox's first process, whose pid the
 * monitor tells. That process sets the sandbox up and becomes the guest by exec; until then a failure
 * ends both, with a word on stderr. Afterwards the monitor has no use and is ended: the sandbox then
 * is nobody's child, and the private mount namespace in which the monitor still was is gone. */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define START_TIMEOUT_NS (30ll * 1000 * 1000 * 1000)
#define LOOK_FIRST_NS    (200ll * 1000)       /* how often we look whether the guest runs: at first */
#define LOOK_LAST_NS     (5ll * 1000 * 1000)  /* and in the end */
#define INFO_MAX 1024
#define COMM_MAX 64
#define GUEST_NAME "wsm-guest" /* the last part of SHOWN_GUEST */

/* One start under way. Descriptors are its own, -1 when there are none. */
struct start {
    struct sandbox_plan plan;
    pid_t   child;    /* the monitor; for one that is not confined, who forks the guest */
    int     child_fd; /* its pidfd */
    int     status_r, info_r;
    int64_t until_ns; /* clock_ns() */
};

static void start_finish(struct start *s)
{
    sandbox_plan_finish(&s->plan);
    if (s->child_fd >= 0)
        close(s->child_fd);
    if (s->status_r >= 0)
        close(s->status_r);
    if (s->info_r >= 0)
        close(s->info_r);
}

/* ── waiting ─────────────────────────────────────────────────────────────────────────────── */

/* Waits until `fd` is readable or the given time has come; true when it is. */
static bool wait_readable(int fd, int64_t until_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    for (;;) {
        int64_t left = until_ns - clock_ns();
        struct timespec ts = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        if (left < 0)
            ts = (struct timespec){0};
        int r = ppoll(&p, 1, &ts, NULL);
        if (r >= 0 || errno != EINTR)
            return r > 0;
    }
}

/* Reads up to the end of file; the number of bytes, or -ETIMEDOUT, -errno. */
static ssize_t read_all(int fd, void *buf, size_t size, int64_t until_ns)
{
    size_t done = 0;

    while (done < size) {
        if (!wait_readable(fd, until_ns))
            return -ETIMEDOUT;
        ssize_t n = read(fd, (char *)buf + done, size - done);
        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)done;
}

static void reap(const struct start *s, int *status)
{
    while (waitpid(s->child, status, 0) < 0 && errno == EINTR)
        ;
}

/* ── the fork ────────────────────────────────────────────────────────────────────────────── */

static int open_pipe(int *read_end, int *write_end)
{
    int p[2];

    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    *read_end = p[0];
    *write_end = p[1];
    return 0;
}

/* Makes the writer of a pipe a reader of it too. Bubblewrap would else die of SIGPIPE when we are killed
 * before it writes, and its other half would wait for it for ever. As it is the sandbox comes up, and its
 * guest ends when nobody comes. */
static int keep_open(int *write_end)
{
    char path[32];
    int fd;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", *write_end);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    close(*write_end);
    *write_end = fd;
    return 0;
}

static int fork_child(struct start *s, struct err *e)
{
    int *fds = s->plan.fds;
    int r = open_pipe(&s->status_r, &fds[SANDBOX_FD_STATUS]);

    if (r == 0)
        r = open_pipe(&s->info_r, &fds[SANDBOX_FD_INFO]);
    if (r == 0)
        r = keep_open(&fds[SANDBOX_FD_INFO]);
    if (r < 0)
        return err_sys(e, r, "no pipe for the sandbox");
    s->child = fork();
    if (s->child < 0)
        return err_sys(e, -errno, "no process can be made for the sandbox");
    if (s->child == 0)
        sandbox_child(&s->plan);
    s->child_fd = pidfd_open(s->child, 0);
    close(steal_fd(&fds[SANDBOX_FD_STATUS]));
    close(steal_fd(&fds[SANDBOX_FD_INFO]));
    return 0;
}

/* Waits until the program has been started by exec: 0, or the step that failed. */
static int wait_exec(struct start *s, struct err *e)
{
    struct sandbox_failure f;
    ssize_t n = read_all(s->status_r, &f, sizeof(f), s->until_ns);

    if (n == 0)
        return 0;
    if (n == (ssize_t)sizeof(f))
        return sandbox_say_step(&f, &s->plan, e);
    return err_set(e, n < 0 ? (int)n : -EIO, "the sandbox's process was not started in time");
}

/* ── the first process ───────────────────────────────────────────────────────────────────── */

/* What --info-fd gave: {"child-pid": N, …}. 0 when it is not there. */
static pid_t read_child_pid(const char *text)
{
    struct json_object *all = json_tokener_parse(text), *pid;
    int64_t n = 0;

    if (all && json_object_object_get_ex(all, "child-pid", &pid))
        n = json_object_get_int64(pid);
    json_object_put(all);
    return n > 0 && n <= INT32_MAX ? (pid_t)n : 0;
}

static int say_timeout(struct err *e)
{
    return err_set(e, -ETIMEDOUT, "the sandbox was not ready within half a minute");
}

/* Takes hold of the process `pid` if it is still the child of `parent`, and not a later one that has
 * got the same number. */
static bool take_pid(pid_t pid, pid_t parent, struct sandbox *out)
{
    struct sandbox s = {.pid = pid, .pid_fd = pidfd_open(pid, 0)};
    pid_t actual;
    char state;

    if (s.pid_fd < 0)
        return false;
    if (!sandbox_read_stat(pid, &actual, &s.start_ticks, &state) || (parent > 0 && actual != parent)) {
        close(s.pid_fd);
        return false;
    }
    *out = s;
    return true;
}

static int find_confined(struct start *s, struct sandbox *out, struct err *e)
{
    char text[INFO_MAX];
    ssize_t n = read_all(s->info_r, text, sizeof(text) - 1, s->until_ns);

    if (n < 0)
        return say_timeout(e);
    text[n] = '\0';
    pid_t pid = read_child_pid(text);
    if (pid && take_pid(pid, s->child, out))
        return 0;
    wait_readable(s->child_fd, s->until_ns); /* its last words */
    return sandbox_say_refused(s->plan.fds[SANDBOX_FD_ERR], e);
}

static bool read_comm(pid_t pid, char comm[COMM_MAX])
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, comm, COMM_MAX - 1);
    comm[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The guest runs once the first process has its name: the kernel gives it at the exec, and anybody
 * may read it. (Any other name will not do: bubblewrap hands what is no program to a shell.) */
static int wait_guest(struct start *s, const struct sandbox *sandbox, struct err *e)
{
    char comm[COMM_MAX];

    for (int64_t pause_ns = LOOK_FIRST_NS; clock_ns() < s->until_ns;) {
        if (wait_readable(s->child_fd, clock_ns() + pause_ns))
            return sandbox_say_refused(s->plan.fds[SANDBOX_FD_ERR], e);
        if (read_comm(sandbox->pid, comm) && strcmp(comm, GUEST_NAME "\n") == 0)
            return 0;
        pause_ns = pause_ns * 3 / 2 < LOOK_LAST_NS ? pause_ns * 3 / 2 : LOOK_LAST_NS;
    }
    return say_timeout(e);
}

static int start_confined(struct start *s, struct sandbox *out, struct err *e)
{
    int r = find_confined(s, out, e);

    if (r == 0)
        r = wait_guest(s, out, e);
    if (r < 0 && out->pid > 0)
        pidfd_send_signal(out->pid_fd, SIGKILL, NULL, 0);
    kill(s->child, SIGKILL);
    reap(s, NULL);
    return r;
}

/* The process between us and the guest has told its pid and ended. */
static int start_unconfined(struct start *s, struct sandbox *out, struct err *e)
{
    pid_t pid = 0;

    reap(s, NULL);
    if (read_all(s->info_r, &pid, sizeof(pid), s->until_ns) != (ssize_t)sizeof(pid))
        return err_set(e, -EIO, "the guest was not started");
    if (!take_pid(pid, 0, out))
        return err_set(e, -EIO, "the guest ended as soon as it was started");
    return 0;
}

/* Nobody reads what comes behind: no more is taken. */
static void seal_stderr(const struct start *s)
{
    fcntl(s->plan.fds[SANDBOX_FD_ERR], F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
}

static int run_start(struct start *s, struct sandbox *out, struct err *e)
{
    int r = fork_child(s, e);

    if (r < 0)
        return r;
    r = wait_exec(s, e);
    if (r < 0) {
        kill(s->child, SIGKILL);
        reap(s, NULL);
        return r;
    }
    return s->plan.kind == SANDBOX_OFF ? start_unconfined(s, out, e) : start_confined(s, out, e);
}

static struct start start_init(void)
{
    return (struct start){.child_fd = -1, .status_r = -1, .info_r = -1, .until_ns = clock_ns() + START_TIMEOUT_NS};
}

int sandbox_start(const struct sandbox_spec *spec, struct sandbox *out, struct err *e)
{
    struct start s = start_init();
    int r = sandbox_plan_make(spec, true, &s.plan, e);

    *out = (struct sandbox){.pid_fd = -1};
    if (r == 0)
        r = run_start(&s, out, e);
    if (r == 0)
        seal_stderr(&s);
    start_finish(&s);
    if (r < 0 && out->pid_fd >= 0) {
        close(out->pid_fd);
        *out = (struct sandbox){.pid_fd = -1};
    }
    return r;
}

/* ── the trial ───────────────────────────────────────────────────────────────────────────── */

static int wait_trial(struct start *s, struct err *e)
{
    int status = 0;

    if (s->child_fd < 0 || !wait_readable(s->child_fd, s->until_ns)) {
        kill(s->child, SIGKILL);
        reap(s, NULL);
        return say_timeout(e);
    }
    reap(s, &status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return sandbox_say_refused(s->plan.fds[SANDBOX_FD_ERR], e);
}

int sandbox_check(const struct sandbox_spec *spec, struct err *e)
{
    struct start s = start_init();
    int r = sandbox_plan_make(spec, false, &s.plan, e);

    if (r == 0)
        r = fork_child(&s, e);
    if (r == 0)
        r = wait_exec(&s, e);
    if (s.child > 0 && r < 0) {
        kill(s.child, SIGKILL);
        reap(&s, NULL);
    } else if (r == 0) {
        r = wait_trial(&s, e);
    }
    start_finish(&s);
    return r;
}

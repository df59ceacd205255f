// SPDX-License-Identifier: Apache-2.0
/* `wsm-guest serve`: makes the process what its jobs and hosts rely on, runs the loop, and ends it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/guest/address.h"
#include "backends/guest/guest.h"

#define MS 1000000ll
#define STOP_LOOK_MS 50
#define LONELY_MS    10000

extern char **environ;

static int complain(int error, const char *what)
{
    fprintf(stderr, "wsm-guest: %s: %s\n", what, strerror(-error));
    return error;
}

/* ── children and signals ── */

static void reap(struct guest *g)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        job_reap(g, pid, status);
    if (pid < 0 && errno == ECHILD && g->stopping)
        guest_stop_step(g);
}

/* As the first process of a sandbox the guest is told to end from outside alone, where the sender has
 * no number in here (pid_namespaces(7)); a job's kill of process 1 is not for it to decide. */
static bool may_end_us(const struct signalfd_siginfo *info)
{
    return info->ssi_signo != SIGCHLD && (getpid() != 1 || info->ssi_pid == 0);
}

static void on_signals(struct guest *g, struct source *s, uint32_t events)
{
    struct signalfd_siginfo info[8];
    ssize_t n;

    (void)events;
    while ((n = read(s->fd, info, sizeof(info))) > 0)
        for (size_t i = 0; i < (size_t)n / sizeof(info[0]); i++)
            if (may_end_us(&info[i]))
                guest_stop(g, g->stop_grace_ms);
    reap(g);
}

/* All signals are blocked for good, so that none interrupts or ends the guest; those that matter come
 * as a descriptor. */
static int open_signals(struct guest *g)
{
    sigset_t all, wanted;

    for (int s = 1; s < 32; s++)
        signal(s, SIG_DFL); /* what was ignored would be ignored in jobs */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGPWR); /* some engines stop a container with it */
    g->signals = (struct source){ signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), on_signals };
    return g->signals.fd < 0 ? -errno : guest_watch(g, &g->signals, EPOLLIN);
}

/* ── stopping ── */

void guest_stop(struct guest *g, uint32_t grace_ms)
{
    int64_t kill_ns = guest_now_ns() + grace_ms * MS;

    if (!g->stopping || kill_ns < g->stop_kill_ns)
        g->stop_kill_ns = kill_ns;
    if (!g->stopping && grace_ms)
        tree_signal_all(g, SIGTERM);
    g->stopping = true;
    guest_wake_at(g, guest_now_ns());
}

/* Whether hosts have been told everything, and have stored it. */
static bool all_told(const struct guest *g)
{
    list_for_each(pos, &g->jobs) {
        const struct job *j = container_of(pos, struct job, all);

        if (!job_ended(j) || (j->attached && !j->exit_sent))
            return false;
    }
    for (unsigned i = 0; i < CONNS_MAX; i++)
        if (g->conns[i].state == CONN_OPEN && conn_has_output(&g->conns[i]))
            return false;
    return true;
}

void guest_stop_step(struct guest *g)
{
    int64_t now = guest_now_ns();
    bool empty = waitid(P_ALL, 0, &(siginfo_t){ 0 }, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;

    if (now >= g->stop_kill_ns && !empty)
        tree_signal_all(g, SIGKILL);
    if (empty && !g->stop_end_ns)
        g->stop_end_ns = now + FLUSH_MS * MS;
    if (empty && (all_told(g) || now >= g->stop_end_ns))
        g->over = true;
    guest_wake_at(g, now + STOP_LOOK_MS * MS);
    if (now < g->stop_kill_ns)
        guest_wake_at(g, g->stop_kill_ns);
}

/* ── starting ── */

static void init(struct guest *g)
{
    memset(g, 0, sizeof(*g));
    g->listener.fd = g->signals.fd = g->null_fd = g->epoll_fd = g->reports[0] = g->reports[1] = -1;
    for (unsigned i = 0; i < CONNS_MAX; i++)
        g->conns[i].src.fd = -1;
    list_init(&g->jobs);
    list_init(&g->dead);
    list_init(&g->readable);
    list_init(&g->grown);
    list_init(&g->drains);
    list_init(&g->dead_drains);
    g->environ = environ;
    g->pid = getpid();
    g->start_ms = guest_wall_ms();
}

/* Descriptors 0 to 2 must be taken, so that no stream of a job gets one of these numbers. */
static void fill_standard_fds(struct guest *g)
{
    int fd[2];

    do
        fd[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd[0] >= 0 && fd[0] <= 2 && fcntl(fd[0], F_SETFD, 0) == 0);
    g->null_fd = fd[0];
    if (g->null_fd >= 0)
        return;
    while (pipe2(fd, O_CLOEXEC) == 0) {
        bool low = fd[0] <= 2;

        if (fd[1] > 2)
            close(fd[1]);
        if (!low) {
            close(fd[0]);
            return;
        }
    }
}

/* Whatever else was left open by who started us is not for jobs to find. */
static void close_others(int keep)
{
    if (keep > 3)
        syscall(SYS_close_range, 3u, (unsigned)keep - 1, 0u);
    syscall(SYS_close_range, keep >= 3 ? (unsigned)keep + 1 : 3u, ~0u, 0u);
}

/* The whole pages of it, that is: a fork would make each cost a fault. */
static void keep_from_children(struct guest *g)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)g + page - 1) & ~(page - 1), to = (uintptr_t)(g + 1) & ~(page - 1);

    madvise((void *)from, to - from, MADV_DONTFORK);
}

static int prepare(struct guest *g)
{
    struct rlimit most;
    uint32_t seed[5];
    int r;

    /* A job of the same user could else trace us and take our descriptors. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    umask(022); /* what a login has, and not what a daemon that serves files needs */
    if (getrlimit(RLIMIT_NOFILE, &g->files_limit) == 0) {
        most = g->files_limit;
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
    }
    if (getrandom(seed, sizeof(seed), 0) != sizeof(seed))
        return complain(-EIO, "no random numbers");
    memcpy(g->instance.b, seed, sizeof(g->instance.b));
    g->tag_base = (seed[4] & 0x3fffffffu) | 0x20000000u;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (g->epoll_fd < 0)
        return complain(-errno, "epoll");
    return (r = spawn_open_reports(g)) == 0 ? 0 : complain(r, "no pipe");
}

/* Takes a name; a path that a dead predecessor has left there is taken over. */
static int bind_name(int fd, const struct sockaddr_un *a, socklen_t len)
{
    cleanup_close int probe = -1;

    if (bind(fd, (const struct sockaddr *)a, len) == 0)
        return 0;
    if (errno != EADDRINUSE || a->sun_path[0] == '\0')
        return -errno;
    probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0 || connect(probe, (const struct sockaddr *)a, len) == 0 || errno != ECONNREFUSED)
        return -EADDRINUSE;
    if (unlink(a->sun_path) != 0 || bind(fd, (const struct sockaddr *)a, len) != 0)
        return -errno;
    return 0;
}

static int listen_inside(struct guest *g, const char *name)
{
    struct sockaddr_un a;
    socklen_t len;
    int r = address_parse(name, &a, &len);

    if (r != 0)
        return complain(r, name);
    g->listens_inside = true;
    g->listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    r = g->listener.fd < 0 ? -errno : bind_name(g->listener.fd, &a, len);
    if (r == 0 && listen(g->listener.fd, CONNS_MAX) != 0)
        r = -errno;
    return r == 0 ? 0 : complain(r, name);
}

/* Whoever handed over the socket died before it could write down that there is a guest: nobody would
 * ever come. */
void guest_lonely(struct guest *g, int64_t now_ns)
{
    if (now_ns >= g->lonely_ns)
        guest_stop(g, 0);
    else
        guest_wake_at(g, g->lonely_ns);
}

static int open_listener(struct guest *g, const struct serve_options *o)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = &g->listener };
    int r = 0;

    g->listener = (struct source){ o->fd, conn_accept };
    if (o->fd < 0)
        r = listen_inside(g, o->listen);
    else
        guest_wake_at(g, g->lonely_ns = guest_now_ns() + LONELY_MS * MS);
    if (r != 0)
        return r;
    fcntl(g->listener.fd, F_SETFD, FD_CLOEXEC);
    if (fcntl(g->listener.fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->listener.fd, &e) != 0)
        return complain(-errno, "the listening socket");
    return 0;
}

int serve(const struct serve_options *o)
{
    static struct guest g; /* large; this is main's */
    int r;

    init(&g);
    keep_from_children(&g);
    close_others(o->fd);
    fill_standard_fds(&g);
    g.stop_grace_ms = o->grace_ms;
    g.outside_only = o->outside;
    g.default_user = o->user;
    r = prepare(&g);
    if (r == 0)
        r = open_listener(&g, o);
    if (r == 0 && o->own && o->user) /* who connects meanwhile waits, and knows that somebody listens */
        own_directory(o->own, o->user);
    if (r == 0 && (r = open_signals(&g)) != 0)
        complain(r, "signals");
    if (r == 0 && (r = guest_loop(&g)) != 0)
        complain(r, "the loop");
    return r == 0 ? 0 : 1;
}

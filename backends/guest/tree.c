// SPDX-License-Identifier: Apache-2.0
/* Which processes belong to a job. A child may leave its process group and session and lose its parent,
 * so neither says it. What it cannot lose by accident is a resource limit: each job's processes have
 * their own number as the soft limit of RLIMIT_LOCKS, which Linux has not enforced since 2.4
 * (getrlimit(2)), which is inherited by every fork and exec, and which everybody may read in
 * /proc/PID/limits. One that changes it on purpose is still found as a descendant of another one, or
 * when the sandbox ends. Without /proc there is only the job's process group. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define SCAN_SHARE 10 /* looking takes at most this part of the guest's time */
#define UNLIMITED UINT64_MAX

struct proc {
    pid_t    pid, parent, group, session;
    bool     zombie, member;
    uint64_t tag;
};

uint64_t tree_tag(const struct guest *g, uint64_t serial)
{
    return (uint64_t)g->tag_base << 32 | (serial & 0xffffffffu);
}

static bool is_tag(const struct guest *g, uint64_t limit) { return limit >> 32 == g->tag_base; }

/* ── reading /proc ── */

static bool read_file(pid_t pid, const char *name, char *buf, size_t size)
{
    char path[64];
    cleanup_close int fd = -1;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (n <= 0)
        return false;
    buf[n] = '\0';
    return true;
}

/* proc(5): "pid (name) state ppid pgrp session …"; the name may hold anything. */
static bool read_stat(pid_t pid, struct proc *p)
{
    char buf[512], *at;

    if (!read_file(pid, "stat", buf, sizeof(buf)) || !(at = strrchr(buf, ')')) || strlen(at) < 4)
        return false;
    p->zombie = at[2] == 'Z' || at[2] == 'X';
    at += 3;
    p->pid = pid;
    p->parent = (pid_t)strtol(at, &at, 10);
    p->group = (pid_t)strtol(at, &at, 10);
    p->session = (pid_t)strtol(at, &at, 10);
    return true;
}

static uint64_t read_limit(pid_t pid)
{
    char buf[2048], *at;

    if (!read_file(pid, "limits", buf, sizeof(buf)) || !(at = strstr(buf, "Max file locks")))
        return UNLIMITED;
    at += sizeof("Max file locks") - 1;
    while (*at == ' ')
        at++;
    return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UNLIMITED;
}

pid_t tree_parent(pid_t pid)
{
    struct proc p;

    return read_stat(pid, &p) ? p.parent : 0;
}

static bool add_proc(struct guest *g, const struct proc *p)
{
    if (g->n_procs == g->max_procs) {
        unsigned max = g->max_procs ? g->max_procs * 2 : 64;
        struct proc *procs = realloc(g->procs, max * sizeof(*procs));

        if (!procs)
            return false;
        g->procs = procs;
        g->max_procs = max;
    }
    g->procs[g->n_procs++] = *p;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    const struct proc *p = a, *q = b;

    return (p->pid > q->pid) - (p->pid < q->pid);
}

static bool read_all(struct guest *g)
{
    cleanup_dir DIR *d = opendir("/proc");
    struct dirent *e;
    struct proc p = { 0 };

    g->n_procs = 0;
    while (d && (e = readdir(d))) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

        if (pid <= 0 || pid == g->pid || !read_stat(pid, &p))
            continue;
        p.tag = read_limit(pid);
        if (!add_proc(g, &p))
            break;
    }
    if (g->n_procs)
        qsort(g->procs, g->n_procs, sizeof(*g->procs), by_pid);
    return g->n_procs > 0 || tree_parent(g->pid) != 0 || g->pid == 1;
}

/* Looks at all processes, unless that has been done in this turn: many jobs that are killed together
 * share one look. False: there is no /proc. */
static bool scan(struct guest *g)
{
    int64_t begin = guest_now_ns();
    bool ok;

    if (g->procs)
        return true;
    ok = read_all(g);
    g->scan_ns = guest_now_ns();
    g->scan_cost_ns = g->scan_ns - begin;
    return ok;
}

int64_t tree_next_look(const struct guest *g) { return g->scan_ns + g->scan_cost_ns * SCAN_SHARE; }

void tree_forget(struct guest *g)
{
    free(g->procs);
    g->procs = NULL;
    g->n_procs = g->max_procs = 0;
}

/* ── membership ── */

static bool is_member_pid(const struct guest *g, pid_t pid)
{
    struct proc key = { .pid = pid };
    const struct proc *p = bsearch(&key, g->procs, g->n_procs, sizeof(key), by_pid);

    return p && p->member;
}

/* Children of members are members, and theirs. */
static void spread(struct guest *g)
{
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < g->n_procs; i++) {
            struct proc *p = &g->procs[i];

            if (p->member || !is_member_pid(g, p->parent))
                continue;
            p->member = more = true;
        }
    }
}

/* The main process's number stays that of its group and session while these have members, but is free
 * again afterwards: another job's process that has got it is told by its tag. */
static bool is_own(const struct guest *g, const struct job *j, const struct proc *p)
{
    if (p->tag == tree_tag(g, j->serial))
        return true;
    if (is_tag(g, p->tag))
        return false;
    return (p->pid == j->pid && !j->reaped) || p->group == j->pid || p->session == j->pid;
}

static void mark(struct guest *g, const struct job *j)
{
    for (unsigned i = 0; i < g->n_procs; i++)
        g->procs[i].member = is_own(g, j, &g->procs[i]);
    spread(g);
}

static void mark_all(struct guest *g)
{
    for (unsigned i = 0; i < g->n_procs; i++)
        g->procs[i].member = g->procs[i].parent == g->pid;
    spread(g);
}

/* ── signals ── */

/* A child that has just been forked has no group of its own yet. */
int tree_kill_group(const struct job *j, int signo)
{
    if (kill(-j->pid, signo) == 0)
        return 0;
    return !j->reaped && errno == ESRCH && kill(j->pid, signo) == 0 ? 0 : -errno;
}

/* KILL goes to whole groups, which no fork escapes. A stopped process learns of TERM only when it goes
 * on. */
static void send(const struct proc *p, int signo)
{
    if (signo == SIGKILL && p->group > 1 && p->group != getpgrp())
        kill(-p->group, SIGKILL);
    kill(p->pid, signo);
    if (signo == SIGTERM)
        kill(p->pid, SIGCONT);
}

static unsigned signal_members(struct guest *g, int signo, pid_t skip_group)
{
    unsigned n = 0;

    for (unsigned i = 0; i < g->n_procs; i++) {
        const struct proc *p = &g->procs[i];

        if (!p->member || p->zombie)
            continue;
        n++;
        if (signo && p->group != skip_group)
            send(p, signo);
    }
    return n;
}

void tree_signal_group(const struct job *j, int signo)
{
    if (!j->pid || j->reaped) /* afterwards the number may be another's */
        return;
    tree_kill_group(j, signo);
    if (signo == SIGTERM)
        tree_kill_group(j, SIGCONT);
}

unsigned tree_signal(struct guest *g, struct job *j, int signo, bool skip_group)
{
    if (!j->pid)
        return 0;
    if (!scan(g))
        return tree_kill_group(j, signo) == 0;
    mark(g, j);
    return signal_members(g, signo, skip_group ? j->pid : 0);
}

void tree_signal_all(struct guest *g, int signo)
{
    if (g->pid == 1) {
        kill(-1, signo);
        if (signo == SIGTERM)
            kill(-1, SIGCONT);
        return;
    }
    if (scan(g)) {
        mark_all(g);
        signal_members(g, signo, 0);
        return;
    }
    list_for_each(pos, &g->jobs) {
        struct job *j = container_of(pos, struct job, all);

        if (j->pid && !job_ended(j))
            tree_kill_group(j, signo);
    }
}

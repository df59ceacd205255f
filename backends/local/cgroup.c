// SPDX-License-Identifier: Apache-2.0
#include "backends/local/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/local/cgroup_internal.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define TOP_GROUP   "wsmfs"  /* of root's v2 groups, when the unit has no subgroup for the daemon */
#define OWN_GROUP   "daemon" /* into which a daemon moves that may not stay beside its groups */
#define REMOVE_MS   1000     /* the kernel may need a moment after the last process */
#define PAUSE_MS    2
#define MAKE_TRIES  3

/* The group in one hierarchy. */
struct part {
    char    *dir;
    bool     v2;
    unsigned controllers; /* of the hierarchy */
};

struct cgroup {
    struct part parts[CGROUP_PARTS_MAX];
    size_t n;
};

/* ── files ───────────────────────────────────────────────────────────────────────────────── */

static int open_file(const char *dir, const char *name, int flags)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = n < 0 || (size_t)n >= sizeof(path) ? -1 : open(path, flags | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

static int write_file(const char *dir, const char *name, const char *text)
{
    cleanup_close int fd = open_file(dir, name, O_WRONLY);

    if (fd < 0)
        return fd;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000l}, NULL);
}

/* ── v2: the place for groups, and its controllers ───────────────────────────────────────── */

/* One at a time: a controller that is not there must not hold up the others. */
static int enable_controllers(const char *dir, unsigned controllers)
{
    static const char *const words[] = {"+memory", "+cpu", "+pids"};
    int r = 0;

    for (size_t i = 0; i < array_size(words) && r == 0; i++)
        if (controllers & (1u << i))
            r = write_file(dir, "cgroup.subtree_control", words[i]);
    return r;
}

/* A group with controllers for its subgroups may hold no process itself ("no internal processes",
 * cgroups(7)). */
static int leave_own_group(const char *own)
{
    cleanup_free char *dir = NULL;

    if (asprintf(&dir, "%s/" OWN_GROUP, own) < 0)
        return -ENOMEM;
    if (mkdir(dir, 0755) < 0 && errno != EEXIST)
        return -errno;
    return write_file(dir, "cgroup.procs", "0");
}

static int make_top_group(const struct cgroup_hierarchy *h, unsigned controllers, const char *dir)
{
    int r = enable_controllers(h->mount, controllers);

    if (r == 0 && mkdir(dir, 0755) < 0 && errno != EEXIST)
        r = -errno;
    return r;
}

/* The directory in which groups of this hierarchy are made: malloc'ed, NULL when out of memory. */
static char *home_of(const struct cgroups *cs, const struct cgroup_hierarchy *h)
{
    char *dir;
    int n;

    if (h->v2 && cs->home == CGROUP_IN_PARENT)
        n = asprintf(&dir, "%.*s", (int)(strrchr(h->own, '/') - h->own), h->own);
    else if (h->v2 && cs->home == CGROUP_IN_TOP)
        n = asprintf(&dir, "%s/" TOP_GROUP, h->mount);
    else
        n = asprintf(&dir, "%s", h->own);
    return n < 0 ? NULL : dir;
}

/* Makes a v2 home fit for groups with these controllers. */
static int prepare_home(const struct cgroups *cs, const struct cgroup_hierarchy *h, unsigned controllers,
                        const char *home)
{
    int r = 0;

    if (cs->home == CGROUP_IN_TOP)
        r = make_top_group(h, controllers, home);
    else if (cs->home == CGROUP_IN_OWN && controllers)
        r = leave_own_group(h->own);
    return r == 0 ? enable_controllers(home, controllers) : r;
}

/* ── making one ──────────────────────────────────────────────────────────────────────────── */

static void drop_part(struct cgroup *c)
{
    free(c->parts[--c->n].dir);
}

static int try_make(const struct cgroups *cs, const struct cgroup_hierarchy *h, const char *name,
                    unsigned controllers, char **dir)
{
    cleanup_free char *home = home_of(cs, h);
    int r = home ? 0 : -ENOMEM;

    if (r == 0 && h->v2)
        r = prepare_home(cs, h, controllers, home);
    if (r < 0)
        return r;
    if (asprintf(dir, "%s/%s", home, name) < 0) {
        *dir = NULL;
        return -ENOMEM;
    }
    return mkdir(*dir, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/* Another daemon may remove the place that they share in this very moment. */
static int make_part(const struct cgroups *cs, const struct cgroup_hierarchy *h, const char *name,
                     unsigned controllers, struct cgroup *c)
{
    char *dir = NULL;
    int r = -ENOENT;

    for (int tries = 0; r == -ENOENT && tries < MAKE_TRIES; tries++) {
        free(dir);
        dir = NULL;
        r = try_make(cs, h, name, controllers, &dir);
    }
    if (r < 0) {
        free(dir);
        return r;
    }
    c->parts[c->n++] = (struct part){.dir = dir, .v2 = h->v2, .controllers = h->controllers};
    return 0;
}

static int write_limits(const struct part *p, const struct sandbox_limits *l, const char **file)
{
    unsigned needed = cgroup_needed(l);

    for (const struct cgroup_file *f = cgroup_files(); f->name; f++) {
        char text[64];
        bool set = (needed & f->controller) != 0;
        if (f->v2 != p->v2 || !(p->controllers & f->controller))
            continue;
        if (set)
            f->format(l, text);
        int r = write_file(p->dir, f->name, set ? text : f->unlimited);
        *file = f->name;
        if (r < 0 && set && !f->optional)
            return r;
    }
    return 0;
}

static const struct part *find_part(const struct cgroup *c, const struct cgroup_hierarchy *h)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->parts[i].v2 == h->v2 && c->parts[i].controllers == h->controllers)
            return &c->parts[i];
    return NULL;
}

/* The controllers that this hierarchy must provide: v2 comes before v1 where both could. */
static unsigned wanted_of(const struct cgroups *cs, const struct cgroup_hierarchy *h, unsigned needed)
{
    unsigned v2 = 0;

    for (size_t i = 0; i < cs->n; i++)
        if (cs->list[i].v2)
            v2 = cs->list[i].controllers;
    return h->v2 ? needed & v2 : needed & h->controllers & ~v2;
}

static int say_failed(struct err *e, int r, const char *keys)
{
    if (r == -EBUSY)
        return err_set(e, -EOPNOTSUPP, "%s cannot be limited: the daemon's control group holds other processes too; "
                       "start it as a service with Delegate=yes", keys);
    if (r == -EACCES || r == -EPERM || r == -EROFS)
        return err_set(e, -EOPNOTSUPP, "%s cannot be limited: control groups cannot be made here (%s); start the "
                       "daemon as root, or as a service with Delegate=yes", keys, strerror(-r));
    return err_sys(e, r, "%s cannot be limited by a control group", keys);
}

/* "memory, cpus" */
static const char *name_keys(unsigned controllers, char text[64])
{
    size_t n = 0;

    text[0] = '\0';
    for (unsigned bit = 1; bit <= CGROUP_PIDS; bit <<= 1)
        if (controllers & bit)
            n += (size_t)snprintf(text + n, 64 - n, "%s%s", n ? ", " : "", cgroup_key(bit));
    return text;
}

/* One hierarchy's part: made where it is missing, limits set. */
static int provide_part(const struct cgroups *cs, const struct cgroup_hierarchy *h, const char *name,
                        const struct sandbox_limits *l, struct cgroup *c, struct err *e)
{
    unsigned wanted = wanted_of(cs, h, cgroup_needed(l));
    const struct part *p = find_part(c, h);
    bool made = !p && wanted;
    const char *file = "";
    char keys[64];
    int r = made ? -ENOENT : p ? write_limits(p, l, &file) : 0;

    /* The place that daemons share may have been removed, and made by one that needs no limits, just before ours was
     * made in it: then it has no files for them. */
    for (int tries = 0; made && r == -ENOENT && tries < MAKE_TRIES; tries++) {
        if (tries)
            drop_part(c);
        r = make_part(cs, h, name, wanted, c);
        if (r < 0)
            return say_failed(e, r, name_keys(wanted, keys));
        r = write_limits(&c->parts[c->n - 1], l, &file);
    }
    return r < 0 ? err_sys(e, r, "%s cannot be limited: %s of the control group", name_keys(wanted, keys), file) : 0;
}

static int check_all_found(const struct cgroups *cs, unsigned needed, struct err *e)
{
    char keys[64];

    for (size_t i = 0; i < cs->n; i++)
        needed &= ~cs->list[i].controllers;
    if (!needed)
        return 0;
    return err_set(e, -EOPNOTSUPP, "%s cannot be limited on this machine: no control group controller for it is to "
                   "be had", name_keys(needed, keys));
}

/* To find the processes again: v2, which can end them at once, else any hierarchy will do. */
static void make_for_tracking(const struct cgroups *cs, const char *name, struct cgroup *c)
{
    for (size_t i = 0; i < cs->n; i++)
        if (cs->list[i].v2 && !find_part(c, &cs->list[i]))
            (void)make_part(cs, &cs->list[i], name, 0, c);
    for (size_t i = 0; c->n == 0 && i < cs->n; i++)
        (void)make_part(cs, &cs->list[i], name, 0, c);
}

static int provide(const struct cgroups *cs, const char *name, const struct sandbox_limits *l, struct cgroup *c,
                   struct err *e)
{
    int r = check_all_found(cs, cgroup_needed(l), e);

    for (size_t i = 0; r == 0 && i < cs->n; i++)
        r = provide_part(cs, &cs->list[i], name, l, c, e);
    if (r == 0)
        make_for_tracking(cs, name, c);
    return r;
}

int cgroup_create(struct cgroups *cs, const char *name, const struct sandbox_limits *l, struct cgroup **out,
                  struct err *e)
{
    struct cgroup *c = calloc(1, sizeof(*c));
    int r = c ? provide(cs, name, l, c, e) : err_set(e, -ENOMEM, "out of memory");

    if (r < 0) {
        if (c)
            (void)cgroup_remove(c, NULL);
        cgroup_destroy(c);
        return r;
    }
    *out = c;
    return 0;
}

/* ── finding one again ───────────────────────────────────────────────────────────────────── */

static void find_parts(const struct cgroups *cs, const char *name, const char *text, struct cgroup *c)
{
    for (size_t i = 0; i < cs->n; i++) {
        char *dir = cgroup_directory(&cs->list[i], text);
        const char *last = dir ? strrchr(dir, '/') : NULL;
        if (last && strcmp(last + 1, name) == 0)
            c->parts[c->n++] = (struct part){.dir = dir, .v2 = cs->list[i].v2, .controllers = cs->list[i].controllers};
        else
            free(dir);
    }
}

int cgroup_adopt(struct cgroups *cs, const char *name, pid_t pid, const struct sandbox_limits *l,
                 struct cgroup **out, struct err *e)
{
    struct cgroup *c = calloc(1, sizeof(*c));
    cleanup_free char *text = NULL;
    char path[64];
    int r;

    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    text = c ? cgroup_read(path) : NULL;
    if (!text) {
        free(c);
        return err_sys(e, c ? -errno : -ENOMEM, "the sandbox's control group cannot be found");
    }
    find_parts(cs, name, text, c);
    r = provide(cs, name, l, c, e);
    if (r == 0)
        r = cgroup_add(c, pid, e); /* into the parts that are new; for the others it changes nothing */
    if (r < 0) {
        cgroup_destroy(c);
        return r;
    }
    *out = c;
    return 0;
}

void cgroup_destroy(struct cgroup *c)
{
    while (c && c->n > 0)
        drop_part(c);
    free(c);
}

/* ── the trial ───────────────────────────────────────────────────────────────────────────── */

static int try_key(struct cgroups *cs, const struct sandbox_limits *l, struct err *e)
{
    struct cgroup *c;
    unsigned random;
    char name[64];
    int r;

    /* Not by our process's number: one in another container may have the same. */
    if (getrandom(&random, sizeof(random), 0) < 0)
        return err_sys(e, -errno, "no random number");
    snprintf(name, sizeof(name), "wsmfs-check-%08x", random);
    r = cgroup_create(cs, name, l, &c, e);
    if (r < 0)
        return r;
    r = cgroup_remove(c, e);
    cgroup_destroy(c);
    return r;
}

int cgroups_check(struct cgroups *cs, const struct sandbox_limits *l, struct err *e)
{
    const struct sandbox_limits each[] = {
        {.memory_bytes = l->memory_bytes}, {.cpus_milli = l->cpus_milli}, {.pids = l->pids},
    };
    unsigned failed = 0;
    struct err why = {0};
    char keys[64];

    for (size_t i = 0; i < array_size(each); i++)
        if (cgroup_needed(&each[i]) && try_key(cs, &each[i], failed ? NULL : &why) < 0)
            failed |= 1u << i;
    if (!failed)
        return 0;
    return err_set(e, -EOPNOTSUPP, "[sandbox] %s cannot be honoured here: %s", name_keys(failed, keys), why.text);
}

/* ── its processes ───────────────────────────────────────────────────────────────────────── */

int cgroup_join_fds(const struct cgroup *c, int fds[CGROUP_PARTS_MAX], struct err *e)
{
    for (size_t i = 0; i < c->n; i++) {
        fds[i] = open_file(c->parts[i].dir, "cgroup.procs", O_WRONLY);
        if (fds[i] >= 0)
            continue;
        int r = fds[i];
        while (i > 0)
            close(fds[--i]);
        return err_sys(e, r, "the control group cannot be joined");
    }
    return (int)c->n;
}

int cgroup_add(const struct cgroup *c, pid_t pid, struct err *e)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)pid);
    for (size_t i = 0; i < c->n; i++) {
        int r = write_file(c->parts[i].dir, "cgroup.procs", text);
        if (r < 0)
            return err_sys(e, r, "process %d cannot be put into its control group", (int)pid);
    }
    return 0;
}

/* Sends SIGKILL to all of the part; the number of processes that were in it, or -errno. A process is
 * only in the list while it lives, so its number cannot be somebody else's by more than bad luck
 * between two system calls; v2 has a file for it. */
static int kill_listed(const struct part *p)
{
    cleanup_close int fd = open_file(p->dir, "cgroup.procs", O_RDONLY);
    cleanup_file FILE *f = fd < 0 ? NULL : fdopen(fd, "re");
    int pid, n = 0;

    if (!f)
        return fd == -ENOENT ? 0 : -EIO;
    steal_fd(&fd);
    for (; fscanf(f, "%d", &pid) == 1; n++)
        if (pid > 0) /* 0: one of another pid namespace */
            kill(pid, SIGKILL);
    return n;
}

/* Those that fork faster than they are killed must not win. */
static void forbid_forks(const struct cgroup *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->parts[i].controllers & CGROUP_PIDS)
            (void)write_file(c->parts[i].dir, "pids.max", "0");
}

static int kill_part(const struct part *p, int64_t until_ns, struct err *e)
{
    for (;;) {
        if (p->v2)
            (void)write_file(p->dir, "cgroup.kill", "1"); /* Linux 5.14; else by the list below */
        int n = kill_listed(p);
        if (n < 0)
            return err_sys(e, n, "the control group %s cannot be read", p->dir);
        if (n == 0)
            return 0;
        if (clock_ns() > until_ns)
            return err_set(e, -ETIMEDOUT, "%d processes of the workspace do not end", n);
        pause_ms(PAUSE_MS);
    }
}

/* v2 first: when its file has done it, the lists of the others are empty. */
int cgroup_kill(const struct cgroup *c, int timeout_ms, struct err *e)
{
    int64_t until_ns = clock_ns() + (int64_t)timeout_ms * 1000000;
    int r = 0;

    forbid_forks(c);
    for (int v2 = 1; v2 >= 0; v2--)
        for (size_t i = 0; r == 0 && i < c->n; i++)
            if (c->parts[i].v2 == v2)
                r = kill_part(&c->parts[i], until_ns, e);
    return r;
}

static int remove_part(const struct part *p)
{
    int64_t until_ns = clock_ns() + REMOVE_MS * 1000000ll;

    while (rmdir(p->dir) < 0) {
        if (errno == ENOENT)
            return 0;
        if (errno != EBUSY || clock_ns() > until_ns)
            return -errno;
        pause_ms(PAUSE_MS);
    }
    return 0;
}

/* The place that root's v2 groups share goes with the last of them. */
static void remove_top(const struct part *p)
{
    char *end = strrchr(p->dir, '/');
    size_t len = (size_t)(end - p->dir), n = strlen("/" TOP_GROUP);
    char path[4096];

    if (!p->v2 || len < n || len >= sizeof(path) || strncmp(end - n, "/" TOP_GROUP, n) != 0)
        return;
    memcpy(path, p->dir, len);
    path[len] = '\0';
    rmdir(path);
}

int cgroup_remove(const struct cgroup *c, struct err *e)
{
    int r = 0;

    for (size_t i = 0; i < c->n; i++) {
        int one = remove_part(&c->parts[i]);
        if (one < 0 && r == 0)
            r = err_sys(e, one, "the control group %s cannot be removed", c->parts[i].dir);
        remove_top(&c->parts[i]);
    }
    return r;
}

int cgroups_remove(struct cgroups *cs, const char *name, struct err *e)
{
    struct cgroup c = {.n = 0};
    int r = 0;

    for (size_t i = 0; i < cs->n; i++) {
        cleanup_free char *home = home_of(cs, &cs->list[i]);
        char *dir;
        if (!home || asprintf(&dir, "%s/%s", home, name) < 0)
            r = err_set(e, -ENOMEM, "out of memory");
        else
            c.parts[c.n++] = (struct part){.dir = dir, .v2 = cs->list[i].v2};
    }
    if (r == 0)
        r = cgroup_remove(&c, e);
    while (c.n > 0)
        drop_part(&c);
    return r;
}

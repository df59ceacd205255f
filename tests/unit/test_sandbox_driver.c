// SPDX-License-Identifier: Apache-2.0
/* The sandbox's functions as a command, for tests/system/test_sandbox.py.
 *
 *     driver check|start|hold KEY=VALUE...     "hold" stays until it is killed
 *     driver crowd count=N KEY=VALUE...        N at once, on threads: sockets c0, c1, … and their workspaces
 *     driver adopt|end MARK
 *     driver limits memory=… cpus=… pids=…
 *     driver group-end|group-set NAME PID [memory=… …]
 *     driver group-remove NAME
 *
 * Prints what it made as KEY=VALUE lines; a failure is "error=CODE SENTENCE" and exit status 1. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/local/cgroup.h"
#include "backends/local/sandbox.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

#define LIST_MAX 32

/* What the command line said. */
struct order {
    const char *guest, *base, *workspace, *sockets, *name, *group, *count;
    struct sandbox_spec spec;
    struct sandbox_limits limits;
    const char *env[LIST_MAX + 1];
    size_t n_env;
    struct shown_bind binds[LIST_MAX];
    size_t n_binds;
    const char *secrets[LIST_MAX + 1];
    size_t n_secrets;
    gid_t groups[LIST_MAX];
};

static void fail(int r, const struct err *e) __attribute__((noreturn));
static void fail(int r, const struct err *e)
{
    printf("error=%d %s\n", -r, e->text);
    exit(1);
}

static void set_ids(const char *text, uint32_t *uid, uint32_t *gid)
{
    if (sscanf(text, "%u:%u", uid, gid) != 2)
        abort();
}

static void set_groups(struct order *o, const char *text)
{
    while (*text) {
        char *end;
        o->groups[o->spec.n_groups++] = (gid_t)strtoul(text, &end, 10);
        text = end + (*end == ',');
    }
    o->spec.groups = o->groups;
}

static void set_bind(struct order *o, const char *text)
{
    struct err e;
    int r = shown_bind_parse(text, &o->binds[o->n_binds++], &e);

    if (r < 0)
        fail(r, &e);
}

static void set_limit(struct order *o, const char *key, const char *value)
{
    struct err e = {0};
    int r = sandbox_limit_parse(&o->limits, key, value, &e);

    if (r < 0)
        fail(r, &e);
}

static void take(struct order *o, const char *key, const char *value)
{
    struct sandbox_spec *s = &o->spec;
    const struct { const char *key; const char **to; } strings[] = {
        {"guest", &o->guest}, {"base", &o->base}, {"workspace", &o->workspace}, {"sockets", &o->sockets},
        {"name", &o->name}, {"group", &o->group}, {"count", &o->count},
    };

    for (size_t i = 0; i < array_size(strings); i++) {
        if (strcmp(key, strings[i].key) != 0)
            continue;
        *strings[i].to = value;
        return;
    }
    if (strcmp(key, "confine") == 0)
        s->confine = strcmp(value, "on") == 0;
    else if (strcmp(key, "network") == 0)
        s->network_host = strcmp(value, "host") == 0;
    else if (strcmp(key, "nesting") == 0)
        s->no_nesting = strcmp(value, "no") == 0;
    else if (strcmp(key, "tenant") == 0)
        s->tenant = true, set_ids(value, &s->uid, &s->gid);
    else if (strcmp(key, "groups") == 0)
        set_groups(o, value);
    else if (strcmp(key, "mapped") == 0)
        s->mapped_id = (uint32_t)strtoul(value, NULL, 10);
    else if (strcmp(key, "inside") == 0)
        s->named = true, set_ids(value, &s->inside_uid, &s->inside_gid);
    else if (strcmp(key, "env") == 0)
        o->env[o->n_env++] = value;
    else if (strcmp(key, "bind") == 0)
        set_bind(o, value);
    else if (strcmp(key, "secret") == 0)
        o->secrets[o->n_secrets++] = value;
    else
        set_limit(o, key, value);
}

static void read_order(struct order *o, char **words)
{
    *o = (struct order){.spec = {.confine = true, .listen_fd = -1, .workspace_fd = -1}, .name = "s"};
    for (; *words; words++) {
        char *eq = strchr(*words, '=');
        if (!eq)
            abort();
        *eq = '\0';
        take(o, *words, eq + 1);
    }
    o->spec.guest = o->guest;
    o->spec.env = o->env;
}

static int open_directory(const char *path)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0) {
        perror(path);
        exit(2);
    }
    return fd;
}

static void open_workspace(struct order *o)
{
    struct err e;
    int base = open_directory(o->base);

    o->spec.workspace_fd = walk_open(base, o->workspace, true);
    if (o->spec.workspace_fd < 0)
        fail(o->spec.workspace_fd, (err_sys(&e, o->spec.workspace_fd, "workspace"), &e));
    close(base);
}

static struct shown *make_shown(struct order *o)
{
    struct shown *s;
    struct err e;
    int root = open_directory("/");
    int r = shown_create(root, o->binds, o->n_binds, o->secrets, &s, &e);

    close(root);
    if (r < 0)
        fail(r, &e);
    return s;
}

static void join_group(struct order *o, int fds[CGROUP_PARTS_MAX])
{
    struct cgroups *cs;
    struct cgroup *c;
    struct err e;
    int r = cgroups_create(NULL, NULL, &cs, &e);

    if (r == 0)
        r = cgroup_create(cs, o->group, &o->limits, &c, &e);
    if (r == 0)
        r = cgroup_join_fds(c, fds, &e);
    if (r < 0)
        fail(r, &e);
    o->spec.join_fds = fds;
    o->spec.n_join_fds = (size_t)r;
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

static void start(struct order *o)
{
    char mark[SANDBOX_MARK_SIZE];
    struct sandbox s;
    struct err e;
    int sockets = open_directory(o->sockets), r;

    o->spec.listen_fd = sandbox_listen(sockets, o->name, &e);
    if (o->spec.listen_fd < 0)
        fail(o->spec.listen_fd, &e);
    r = sandbox_start(&o->spec, &s, &e);
    if (r < 0)
        fail(r, &e);
    close(o->spec.listen_fd);
    close(sockets);
    sandbox_mark(&s, mark);
    printf("pid=%d\nmark=%s\n", (int)s.pid, mark);
    close(s.pid_fd);
}

/* One of many: its own name, socket and workspace, all else shared. */
struct member {
    struct order order;
    pthread_t    thread;
    int          sockets, base;
    char         name[16], workspace[64];
    struct sandbox sandbox;
    struct err   err;
    int          result;
};

static void *member_thread(void *arg)
{
    struct member *m = arg;
    struct sandbox_spec *spec = &m->order.spec;

    spec->workspace_fd = walk_open(m->base, m->workspace, false);
    spec->listen_fd = sandbox_listen(m->sockets, m->name, &m->err);
    m->result = spec->listen_fd < 0 ? spec->listen_fd : sandbox_start(spec, &m->sandbox, &m->err);
    close(spec->workspace_fd);
    close(spec->listen_fd);
    return NULL;
}

static void member_begin(struct member *m, const struct order *o, int i, int base, int sockets)
{
    m->order = *o;
    m->base = base;
    m->sockets = sockets;
    snprintf(m->name, sizeof(m->name), "c%d", i);
    snprintf(m->workspace, sizeof(m->workspace), "%s%d", o->workspace, i);
    if (pthread_create(&m->thread, NULL, member_thread, m) != 0)
        abort();
}

static void member_end(struct member *m, int i)
{
    char mark[SANDBOX_MARK_SIZE];

    pthread_join(m->thread, NULL);
    if (m->result < 0)
        fail(m->result, &m->err);
    sandbox_mark(&m->sandbox, mark);
    printf("pid%d=%d\nmark%d=%s\n", i, (int)m->sandbox.pid, i, mark);
    close(m->sandbox.pid_fd);
}

static void crowd(char **words)
{
    struct order o;
    struct member *members;
    struct shown *shown;
    int n, base, sockets;

    read_order(&o, words);
    n = atoi(o.count);
    members = calloc((size_t)n, sizeof(*members));
    if (!members)
        abort();
    o.spec.shown = shown = make_shown(&o);
    base = open_directory(o.base);
    sockets = open_directory(o.sockets);
    for (int i = 0; i < n; i++)
        member_begin(&members[i], &o, i, base, sockets);
    for (int i = 0; i < n; i++)
        member_end(&members[i], i);
    close(base);
    close(sockets);
    shown_destroy(shown);
    free(members);
}

static void make(const char *verb, char **words)
{
    struct order o;
    struct err e;
    int fds[CGROUP_PARTS_MAX];
    bool check = strcmp(verb, "check") == 0;
    struct shown *shown;

    read_order(&o, words);
    open_workspace(&o);
    o.spec.shown = shown = make_shown(&o);
    if (o.group)
        join_group(&o, fds);
    if (check) {
        int r = sandbox_check(&o.spec, &e);
        if (r < 0)
            fail(r, &e);
    } else {
        start(&o);
    }
    for (size_t i = 0; i < o.spec.n_join_fds; i++)
        close(fds[i]);
    for (size_t i = 0; i < o.n_binds; i++)
        shown_bind_finish(&o.binds[i]);
    shown_destroy(shown);
    close(o.spec.workspace_fd);
    puts("good");
    fflush(stdout);
    if (strcmp(verb, "hold") == 0)
        for (;;)
            pause();
}

static void adopt(const char *mark, bool end)
{
    struct sandbox s;
    struct err e = {0};
    int r = sandbox_adopt(mark, &s);

    if (r < 0)
        fail(r, &e);
    if (end)
        r = sandbox_end(&s, 10000, &e);
    if (r < 0)
        fail(r, &e);
    if (s.pid_fd >= 0)
        close(s.pid_fd);
    puts("good");
}

static struct cgroups *hierarchies(void)
{
    struct cgroups *cs;
    struct err e;
    int r = cgroups_create(NULL, NULL, &cs, &e);

    if (r < 0)
        fail(r, &e);
    return cs;
}

static void limits(char **words)
{
    struct cgroups *cs = hierarchies();
    struct order o;
    struct err e;
    int r;

    read_order(&o, words);
    r = cgroups_check(cs, &o.limits, &e);
    if (r < 0)
        fail(r, &e);
    cgroups_destroy(cs);
    puts("good");
}

/* group-end NAME PID: finds the group by a process in it, ends all of it and removes it.
 * group-set NAME PID memory=…: sets other limits.  group-remove NAME: it must hold no process. */
static void group(const char *verb, const char *name, const char *pid, char **words)
{
    struct cgroups *cs = hierarchies();
    struct cgroup *c;
    struct order o;
    struct err e;
    int r;

    read_order(&o, words);
    if (strcmp(verb, "group-remove") == 0) {
        c = NULL;
        r = cgroups_remove(cs, name, &e);
    } else {
        r = cgroup_adopt(cs, name, (pid_t)atoi(pid), &o.limits, &c, &e);
    }
    if (r == 0 && strcmp(verb, "group-end") == 0)
        r = cgroup_kill(c, 10000, &e);
    if (r == 0 && strcmp(verb, "group-end") == 0)
        r = cgroup_remove(c, &e);
    if (r < 0)
        fail(r, &e);
    cgroup_destroy(c);
    cgroups_destroy(cs);
    puts("good");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    if (strncmp(argv[1], "group-", 6) == 0)
        group(argv[1], argv[2], argc > 3 ? argv[3] : "0", argc > 4 ? argv + 4 : argv + argc);
    else if (strcmp(argv[1], "limits") == 0)
        limits(argv + 2);
    else if (strcmp(argv[1], "adopt") == 0 || strcmp(argv[1], "end") == 0)
        adopt(argv[2], argv[1][0] == 'e');
    else if (strcmp(argv[1], "crowd") == 0)
        crowd(argv + 2);
    else
        make(argv[1], argv + 2);
    return 0;
}

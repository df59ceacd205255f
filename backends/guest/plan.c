// SPDX-License-Identifier: Apache-2.0
#include "backends/guest/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define SHELLS "/bin/sh\0/usr/bin/sh\0"
#define PART_BYTES (120u << 10) /* below the kernel's MAX_ARG_STRLEN, 32 pages (execve(2)) */
#define EXTRA_ENV 4

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif

/* ── the command ── */

/* A shell script that no single argument can hold is handed over in parts, which a line in front joins:
 * that needs no file, no /proc and no further program, and leaves standard input alone. It reads
 * `eval "set --\n${1}${2}…"`, so that the script sees no arguments. */
static int long_script(struct plan *p, const char *script, size_t len)
{
    size_t n = (len + PART_BYTES - 1) / PART_BYTES, at = 0;
    char *join, *parts;

    p->argv = calloc(n + 6, sizeof(char *));
    p->texts = malloc(len + n + 32 + n * 8);
    if (!p->argv || !p->texts)
        return -ENOMEM;
    parts = p->texts;
    join = p->texts + len + n;
    p->argv[at++] = (char *)"sh";
    p->argv[at++] = (char *)"-c";
    p->argv[at++] = (char *)"--";
    p->argv[at++] = join;
    p->argv[at++] = (char *)"sh";
    join += sprintf(join, "eval \"set --\n");
    for (size_t i = 0; i < n; i++) {
        size_t size = len - i * PART_BYTES < PART_BYTES ? len - i * PART_BYTES : PART_BYTES;

        memcpy(parts, script + i * PART_BYTES, size);
        parts[size] = '\0';
        p->argv[at++] = parts;
        parts += size + 1;
        join += sprintf(join, "${%zu}", i + 1);
    }
    sprintf(join, "\"");
    return 0;
}

/* The same script as a file, for a sandbox whose stack limit allows even fewer arguments. */
static void script_file(struct plan *p, const char *script, size_t len)
{
    int fd = memfd_create("script", MFD_CLOEXEC);

    if (fd < 0)
        return;
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, script + at, len - at);

        if (n <= 0) {
            close(fd);
            return;
        }
        at += (size_t)n;
    }
    p->script_fd = fd;
    snprintf(p->script_path, sizeof(p->script_path), "/proc/self/fd/%d", fd);
    p->file_argv[0] = (char *)"sh";
    p->file_argv[1] = p->script_path;
}

static int shell_command(struct plan *p, const struct proto_list *argv)
{
    size_t len = argv->size - 1;

    p->candidates = malloc(sizeof(SHELLS));
    if (!p->candidates)
        return -ENOMEM;
    memcpy(p->candidates, SHELLS, sizeof(SHELLS));
    if (len > PART_BYTES) {
        script_file(p, argv->s, len);
        return long_script(p, argv->s, len);
    }
    p->argv = calloc(5, sizeof(char *));
    if (!p->argv)
        return -ENOMEM;
    p->argv[0] = (char *)"sh";
    p->argv[1] = (char *)"-c";
    p->argv[2] = (char *)"--"; /* a script may begin with a minus */
    p->argv[3] = (char *)argv->s;
    return 0;
}

static char **pointers(const struct proto_list *l, size_t extra)
{
    char **v = calloc(l->count + extra + 1, sizeof(char *));
    const char *at = l->s;

    for (uint32_t i = 0; v && i < l->count; i++) {
        v[i] = (char *)at;
        at += strlen(at) + 1;
    }
    return v;
}

/* Where a command without a slash may be: each directory of `path` with it. */
static char *candidates(const char *name, const char *path)
{
    size_t len = strlen(name), dirs = 1, size;
    char *all, *to;

    if (strchr(name, '/') || !*name)
        path = NULL;
    for (const char *at = path; at && *at; at++)
        dirs += *at == ':';
    size = path ? strlen(path) + dirs * (len + 3) + 1 : len + 2;
    to = all = malloc(size);
    if (!all)
        return NULL;
    if (!path) {
        memcpy(all, name, len + 1);
        all[len + 1] = '\0';
        return all;
    }
    for (const char *at = path, *end; ; at = end + 1) {
        end = strchrnul(at, ':');
        to += sprintf(to, "%.*s/%s", end == at ? 1 : (int)(end - at), end == at ? "." : at, name) + 1;
        if (!*end)
            break;
    }
    *to = '\0';
    return all;
}

/* ── the environment ── */

/* Whether `entry` (K=V) sets the same variable as `name` (K, or K=V). */
static bool same_name(const char *entry, const char *name)
{
    size_t n = strcspn(name, "=");

    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

static const char *lookup(char **env, const char *name)
{
    for (; *env; env++)
        if (same_name(*env, name))
            return *env + strcspn(name, "=") + 1;
    return NULL;
}

static void add_if_missing(char **env, size_t *n, char *entry)
{
    if (!lookup(env, entry))
        env[(*n)++] = entry;
}

/* HOME and the like as the sandbox's user has them. */
static void add_user(struct plan *p, size_t *n)
{
    const struct user *u = &p->user;
    const struct { const char *name, *value; } own[] = {
        { "HOME", u->home[0] ? u->home : "/" }, { "USER", u->name }, { "LOGNAME", u->name },
    };
    char *at = p->env_texts, *end = p->env_texts + sizeof(p->env_texts);

    for (size_t i = 0; i < array_size(own); i++) {
        int len = snprintf(at, (size_t)(end - at), "%s=%s", own[i].name, own[i].value);

        if (!*own[i].value || len >= end - at)
            continue;
        add_if_missing(p->envp, n, at);
        at += len + 1;
    }
}

static int environment(struct plan *p, struct guest *g, const struct proto_spawn *m)
{
    size_t own = 0, n = m->env.count;
    bool inherit = (m->flags & PROTO_SPAWN_ENV_GUEST) != 0;

    while (g->environ[own])
        own++;
    p->envp = pointers(&m->env, own + EXTRA_ENV);
    if (!p->envp)
        return -ENOMEM;
    if (p->user.set && !p->user.name[0] && !lookup(p->envp, "HOME"))
        user_complete(&p->user);
    if (p->user.set)
        add_user(p, &n);
    for (size_t i = 0; inherit && i < own; i++)
        add_if_missing(p->envp, &n, g->environ[i]);
    add_if_missing(p->envp, &n, (char *)"PATH=" DEFAULT_PATH);
    if (!p->user.set)
        add_if_missing(p->envp, &n, (char *)"HOME=/");
    return 0;
}

/* ── all of it ── */

static int find_user(struct plan *p, const struct guest *g, const struct proto_spawn *m)
{
    if (m->flags & PROTO_SPAWN_IDS) {
        p->user.set = true;
        p->user.uid = m->uid;
        p->user.gid = m->gid;
        p->user.n_groups = m->groups.count;
        for (uint32_t i = 0; i < m->groups.count; i++)
            p->user.groups[i] = proto_word(&m->groups, i);
        return 0;
    }
    if (m->user.len)
        return user_find(m->user.s, &p->user);
    return g->default_user ? user_find(g->default_user, &p->user) : 0;
}

static int say(int error, char *why, size_t size, const char *what)
{
    snprintf(why, size, "%s", what);
    return error;
}

static int find_command(struct plan *p, const struct proto_spawn *m)
{
    const char *path = lookup(p->envp, "PATH");

    if (m->flags & PROTO_SPAWN_SHELL)
        return shell_command(p, &m->argv);
    p->argv = pointers(&m->argv, 0);
    p->candidates = p->argv ? candidates(p->argv[0], path ? path : DEFAULT_PATH) : NULL;
    return p->candidates ? 0 : -ENOMEM;
}

int plan_make(struct plan *p, struct guest *g, const struct proto_spawn *m, char *why, size_t why_size)
{
    *p = (struct plan){ .flags = m->flags, .cols = m->cols, .rows = m->rows, .script_fd = -1,
                        .cwd = m->cwd.len ? m->cwd.s : NULL };
    if ((m->flags & PROTO_SPAWN_SHELL) && m->argv.count != 1)
        return say(-EINVAL, why, why_size, "a shell job has exactly one script");
    if (find_user(p, g, m) != 0) {
        snprintf(why, why_size, "%s: the sandbox has no such user or group", m->user.len ? m->user.s : g->default_user);
        return -EINVAL;
    }
    if (environment(p, g, m) != 0 || find_command(p, m) != 0)
        return say(-ENOMEM, why, why_size, "the guest is out of memory");
    return 0;
}

void plan_free(struct plan *p)
{
    free(p->argv);
    free(p->envp);
    free(p->candidates);
    free(p->texts);
    if (p->script_fd >= 0)
        close(p->script_fd);
}

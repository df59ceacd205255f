// SPDX-License-Identifier: Apache-2.0
/* Which hierarchies there are, and where the daemon is in them: proc(5), cgroups(7). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/local/cgroup_internal.h"
#include "backends/local/shown_bind.h"
#include "fs/base/cleanup.h"

/* Named by the v1 mount's options, by v2's cgroup.controllers and by v1 lines of /proc/PID/cgroup. */
static const struct {
    const char *name;
    unsigned    controller;
} names[] = {{"memory", CGROUP_MEMORY}, {"cpu", CGROUP_CPU}, {"pids", CGROUP_PIDS}};

/* The subgroup in which systemd puts the daemon when its unit says DelegateSubgroup=daemon. */
#define DAEMON_GROUP "/daemon"

char *cgroup_read(const char *path)
{
    cleanup_file FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;

    if (!f)
        return NULL;
    if (getdelim(&text, &room, '\0', f) >= 0)
        return text;
    free(text);
    return strdup("");
}

/* The controllers among words that are parted by `separators`. */
static unsigned find_controllers(const char *words, size_t len, const char *separators)
{
    unsigned found = 0;

    for (size_t at = 0, n; at < len; at += n + 1) {
        n = strcspn(words + at, separators);
        if (n > len - at)
            n = len - at;
        for (size_t i = 0; i < array_size(names); i++)
            if (n == strlen(names[i].name) && strncmp(words + at, names[i].name, n) == 0)
                found |= names[i].controller;
    }
    return found;
}

/* mountinfo writes blanks in paths as \040 and the like. */
static void unescape(char *path)
{
    char *to = path;

    for (const char *from = path; *from; to++) {
        unsigned c;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", &c) == 1) {
            *to = (char)c;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* ── from the name of a group to its directory ───────────────────────────────────────────── */

/* A line is ID:CONTROLLERS:PATH, "0::PATH" for v2. */
static bool line_is_of(const struct cgroup_hierarchy *h, const char *line, const char **path)
{
    const char *words = strchr(line, ':');
    const char *end = words ? strchr(words + 1, ':') : NULL;

    if (!end)
        return false;
    *path = end + 1;
    if (h->v2)
        return strncmp(line, "0::", 3) == 0;
    return (find_controllers(words + 1, (size_t)(end - words - 1), ",") & h->controllers) != 0;
}

/* `path` as it lies below the mount; NULL where the mount does not show it. */
static char *join(const struct cgroup_hierarchy *h, const char *path)
{
    const char *below = path;
    char *all;

    if (strstr(path, "/..") || path[0] != '/')
        return NULL;
    if (strcmp(h->root, "/") != 0) {
        if (!shown_lies_in(path, h->root))
            return NULL;
        below += strlen(h->root);
    }
    if (strcmp(below, "/") == 0)
        below = "";
    return asprintf(&all, "%s%s", h->mount, below) < 0 ? NULL : all;
}

char *cgroup_directory(const struct cgroup_hierarchy *h, const char *text)
{
    cleanup_free char *copy = strdup(text);
    char *rest = copy;

    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *path;
        if (line_is_of(h, line, &path))
            return join(h, path);
    }
    return NULL;
}

/* ── the list ────────────────────────────────────────────────────────────────────────────── */

static void hierarchy_finish(struct cgroup_hierarchy *h)
{
    free(h->mount);
    free(h->root);
    free(h->own);
}

/* Reads a line of mountinfo: ID PARENT DEV ROOT MOUNT OPTIONS … - TYPE SOURCE SUPER-OPTIONS. False
 * when it is no hierarchy of ours. */
static bool read_mount(const char *line, struct cgroup_hierarchy *h)
{
    const char *dash = strstr(line, " - ");
    char type[16], options[256];

    if (!dash || sscanf(dash, " - %15s %*s %255s", type, options) != 2 || strncmp(type, "cgroup", 6) != 0)
        return false;
    h->v2 = strcmp(type, "cgroup2") == 0;
    h->controllers = h->v2 ? 0 : find_controllers(options, strlen(options), ",");
    if ((!h->v2 && !h->controllers) || sscanf(line, "%*s %*s %*s %ms %ms", &h->root, &h->mount) != 2)
        return false;
    unescape(h->root);
    unescape(h->mount);
    return true;
}

static bool known(const struct cgroups *cs, const struct cgroup_hierarchy *h)
{
    for (size_t i = 0; i < cs->n; i++)
        if (cs->list[i].v2 == h->v2 && (h->v2 || (cs->list[i].controllers & h->controllers)))
            return true;
    return false;
}

static void add_mount(struct cgroups *cs, const char *line, const char *own)
{
    struct cgroup_hierarchy h = {0};

    if (read_mount(line, &h) && cs->n < CGROUP_PARTS_MAX && !known(cs, &h)) {
        h.own = cgroup_directory(&h, own);
        if (h.own) {
            cs->list[cs->n++] = h;
            return;
        }
    }
    hierarchy_finish(&h);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What the v2 hierarchy offers is what the group offers in whose place ours are made. */
static void look_at_v2(struct cgroups *cs, struct cgroup_hierarchy *h)
{
    cleanup_free char *path = NULL, *words = NULL;
    int n;

    cs->home = ends_with(h->own, DAEMON_GROUP) ? CGROUP_IN_PARENT : geteuid() == 0 ? CGROUP_IN_TOP : CGROUP_IN_OWN;
    if (cs->home == CGROUP_IN_PARENT)
        n = asprintf(&path, "%.*s/cgroup.controllers", (int)(strlen(h->own) - strlen(DAEMON_GROUP)), h->own);
    else
        n = asprintf(&path, "%s/cgroup.controllers", cs->home == CGROUP_IN_TOP ? h->mount : h->own);
    if (n >= 0 && (words = cgroup_read(path)))
        h->controllers = find_controllers(words, strlen(words), " \n");
}

static int fill(struct cgroups *cs, const char *mountinfo, const char *own_path, struct err *e)
{
    cleanup_free char *mounts = cgroup_read(mountinfo);
    cleanup_free char *own = mounts ? cgroup_read(own_path) : NULL;
    char *rest = mounts;

    if (!own)
        return err_sys(e, -errno, "%s cannot be read", mounts ? own_path : mountinfo);
    for (char *line; (line = strsep(&rest, "\n"));)
        add_mount(cs, line, own);
    for (size_t i = 0; i < cs->n; i++)
        if (cs->list[i].v2)
            look_at_v2(cs, &cs->list[i]);
    return 0;
}

int cgroups_create(const char *mountinfo, const char *own, struct cgroups **out, struct err *e)
{
    struct cgroups *cs = calloc(1, sizeof(*cs));
    int r;

    if (!cs)
        return err_set(e, -ENOMEM, "out of memory");
    r = fill(cs, mountinfo ? mountinfo : "/proc/self/mountinfo", own ? own : "/proc/self/cgroup", e);
    if (r < 0) {
        cgroups_destroy(cs);
        return r;
    }
    *out = cs;
    return 0;
}

void cgroups_destroy(struct cgroups *cs)
{
    for (size_t i = 0; cs && i < cs->n; i++)
        hierarchy_finish(&cs->list[i]);
    free(cs);
}

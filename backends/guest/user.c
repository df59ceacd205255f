// SPDX-License-Identifier: Apache-2.0
/* Names of users and groups, by the sandbox's own /etc/passwd and /etc/group. Both are hostile text, and
 * may be anything but a file: opening must not wait. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define FILE_MAX_BYTES (1 << 20)
#define FIELDS_MAX 7

/* The whole file, NUL-terminated; NULL when it is missing, no file or too large. */
static char *slurp(const char *path)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    char *text = NULL;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX_BYTES)
        return NULL;
    text = malloc((size_t)st.st_size + 1);
    n = text ? read(fd, text, (size_t)st.st_size) : -1;
    if (n < 0) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

/* Cuts one line into fields; returns their number. */
static int split(char *line, char *fields[FIELDS_MAX])
{
    int n = 0;

    while (n < FIELDS_MAX) {
        fields[n++] = line;
        line = strchr(line, ':');
        if (!line)
            break;
        *line++ = '\0';
    }
    return n;
}

static bool number(const char *s, uint32_t *v)
{
    char *end;
    unsigned long n;

    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    n = strtoul(s, &end, 10);
    *v = (uint32_t)n;
    return !*end && !errno && n < UINT32_MAX;
}

/* Calls `line` for each line with at least `min` fields until it returns true; true then. */
static bool each_line(const char *path, int min, bool (*line)(char *fields[], void *arg), void *arg)
{
    cleanup_free char *text = slurp(path);
    char *fields[FIELDS_MAX], *next;

    for (char *at = text; at && *at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        if (split(at, fields) >= min && line(fields, arg))
            return true;
    }
    return false;
}

static void copy(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);

    if (n >= size)
        n = size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

/* ── passwd: name:password:uid:gid:gecos:home:shell ── */

struct wanted {
    struct user *u;
    const char  *name;   /* NULL: by uid */
    bool         text_only; /* take over name, home and shell, not the numbers */
};

static bool passwd_line(char *f[], void *arg)
{
    struct wanted *w = arg;
    uint32_t uid, gid;

    if (!number(f[2], &uid) || !number(f[3], &gid))
        return false;
    if (w->name ? strcmp(f[0], w->name) != 0 : uid != w->u->uid)
        return false;
    if (!w->text_only) {
        w->u->uid = uid;
        w->u->gid = gid;
    }
    copy(w->u->name, sizeof(w->u->name), f[0]);
    copy(w->u->home, sizeof(w->u->home), f[5]);
    copy(w->u->shell, sizeof(w->u->shell), f[6]);
    return true;
}

void user_complete(struct user *u)
{
    struct wanted w = { u, NULL, true };

    each_line("/etc/passwd", FIELDS_MAX, passwd_line, &w);
}

/* ── group: name:password:gid:member,member ── */

struct group_wanted {
    const char *name;
    uint32_t    gid;
};

static bool group_line(char *f[], void *arg)
{
    struct group_wanted *w = arg;

    return strcmp(f[0], w->name) == 0 && number(f[2], &w->gid);
}

static bool is_in_list(const char *members, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = members; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || !at[n]))
            return true;
    }
    return false;
}

static bool member_line(char *f[], void *arg)
{
    struct user *u = arg;
    uint32_t gid;

    if (u->n_groups < USER_GROUPS_MAX && number(f[2], &gid) && is_in_list(f[3], u->name))
        u->groups[u->n_groups++] = gid;
    return false;
}

int user_find(const char *text, struct user *u)
{
    char name[PROTO_USER_MAX_BYTES + 1], *group;
    struct wanted by_name = { u, name, false }, by_uid = { u, NULL, false };
    struct group_wanted g;

    *u = (struct user){ .set = true };
    copy(name, sizeof(name), text);
    group = strchr(name, ':');
    if (group)
        *group++ = '\0';
    if (!each_line("/etc/passwd", FIELDS_MAX, passwd_line, &by_name)) {
        if (!number(name, &u->uid))
            return -ENOENT;
        u->gid = u->uid; /* what nobody has named: the usual pairing */
        each_line("/etc/passwd", FIELDS_MAX, passwd_line, &by_uid);
    }
    if (group) {
        g.name = group;
        if (!each_line("/etc/group", 3, group_line, &g) && !number(group, &g.gid))
            return -ENOENT;
        u->gid = g.gid;
    } else if (u->name[0]) {
        each_line("/etc/group", 4, member_line, u);
    }
    return 0;
}

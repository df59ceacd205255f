// SPDX-License-Identifier: Apache-2.0
#include "backends/local/shown.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/local/shown_bind.h"
#include "fs/base/cleanup.h"

struct shown {
    struct shown_entry *list;
    size_t n;
};

/* The host's programs and libraries; a link among them that leads into a shown tree stays a link. */
static const char *const top_paths[] = {
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/libo32",
};

/* What programs need of /etc and what tells nothing that a tenant should not know: shadow, keys,
 * sudoers and the configuration of services are not here, nor is the private half of /etc/ssl. */
static const char *const etc_paths[] = {
    "/etc/alternatives", "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/gai.conf", "/etc/group",
    "/etc/host.conf", "/etc/hosts", "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/login.defs", "/etc/mime.types", "/etc/nsswitch.conf",
    "/etc/os-release", "/etc/passwd", "/etc/profile", "/etc/protocols", "/etc/resolv.conf",
    "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone",
};

/* Of these the names carry versions. Java keeps its whole configuration there and ends without. */
static const char *const etc_patterns[] = {"python3*", "java-*", "ld-musl-*.path"};

/* ── paths as text ───────────────────────────────────────────────────────────────────────── */

static const struct shown_entry *find_exact(const struct shown *s, const char *inside)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->list[i].inside, inside) == 0)
            return &s->list[i];
    return NULL;
}

/* The line that says most about `inside`: the longest that it is, or lies in. */
static const struct shown_entry *find_over(const struct shown *s, const char *inside)
{
    const struct shown_entry *best = NULL;

    for (size_t i = 0; i < s->n; i++)
        if (shown_lies_in(inside, s->list[i].inside) &&
            (!best || strlen(s->list[i].inside) > strlen(best->inside)))
            best = &s->list[i];
    return best;
}

static bool find_below(const struct shown *s, const char *inside)
{
    for (size_t i = 0; i < s->n; i++)
        if (shown_lies_in(s->list[i].inside, inside))
            return true;
    return false;
}

/* What a link at `at` with this text leads to, as text: "/etc/os-release" and "../usr/lib/x" give
 * "/usr/lib/x". False when it does not fit. */
static bool link_leads_to(const char *at, const char *text, char out[PATH_MAX])
{
    size_t len = text[0] == '/' ? 0 : (size_t)(strrchr(at, '/') - at);

    if (len + strlen(text) + 2 > PATH_MAX)
        return false;
    memcpy(out, at, len);
    for (size_t n; *text; text += n + (text[n] == '/')) {
        n = strcspn(text, "/");
        if (n == 2 && strncmp(text, "..", 2) == 0) {
            while (len > 0 && out[--len] != '/')
                ;
        } else if (n > 0 && !(n == 1 && text[0] == '.')) {
            out[len++] = '/';
            memcpy(out + len, text, n);
            len += n;
        }
    }
    out[len] = '\0';
    return len > 0;
}

/* ── making the table ────────────────────────────────────────────────────────────────────── */

static void entry_finish(struct shown_entry *e)
{
    free(e->inside);
    free(e->host);
    free(e->target);
}

static int out_of_memory(struct err *e)
{
    return err_set(e, -ENOMEM, "out of memory");
}

/* Takes the strings of `new`, also on failure; one that stands at the same place is replaced. */
static int add(struct shown *s, struct shown_entry new, struct err *e)
{
    struct shown_entry *list = reallocarray(s->list, s->n + 1, sizeof(*list));

    if (list)
        s->list = list;
    if (!list || !new.inside || !(new.kind == SHOWN_LINK ? new.target : new.host)) {
        entry_finish(&new);
        return out_of_memory(e);
    }
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(list[i].inside, new.inside) != 0)
            continue;
        entry_finish(&list[i]);
        list[i] = new;
        return 0;
    }
    list[s->n++] = new;
    return 0;
}

/* Adds a path of the host under its own name: as a link where it is one and leads to what the table
 * shows already, else as a tree. What the host has not is left out. */
static int add_host_path(struct shown *s, int root_fd, const char *path, struct err *e)
{
    char text[PATH_MAX], to[PATH_MAX];
    struct stat st;
    ssize_t n;

    if (fstatat(root_fd, path + 1, &st, 0) < 0)
        return 0;
    n = readlinkat(root_fd, path + 1, text, sizeof(text) - 1);
    if (n > 0) {
        text[n] = '\0';
        const struct shown_entry *over = link_leads_to(path, text, to) ? find_over(s, to) : NULL;
        if (over && over->kind == SHOWN_TREE)
            return add(s, (struct shown_entry){.inside = strdup(path), .kind = SHOWN_LINK, .target = strdup(text)}, e);
    }
    return add(s, (struct shown_entry){.inside = strdup(path), .kind = SHOWN_TREE, .host = strdup(path)}, e);
}

static bool matches_pattern(const char *name)
{
    for (size_t i = 0; i < array_size(etc_patterns); i++)
        if (fnmatch(etc_patterns[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

static int add_patterns(struct shown *s, int root_fd, struct err *e)
{
    int fd = openat(root_fd, "etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
    int r = 0;

    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *entry; r == 0 && d && (entry = readdir(d));) {
        char path[PATH_MAX];
        if (!matches_pattern(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "/etc/%s", entry->d_name);
        r = add_host_path(s, root_fd, path, e);
    }
    return r;
}

static int add_host(struct shown *s, int root_fd, struct err *e)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < array_size(top_paths); i++)
        r = add_host_path(s, root_fd, top_paths[i], e);
    for (size_t i = 0; r == 0 && i < array_size(etc_paths); i++)
        r = add_host_path(s, root_fd, etc_paths[i], e);
    return r == 0 ? add_patterns(s, root_fd, e) : r;
}

/* A bind in a tree that is read-only there needs a name to be mounted on. */
static int check_bind_place(const struct shown *s, const struct shown_bind *b, struct err *e)
{
    const struct shown_entry *over = find_over(s, b->inside);
    char host[PATH_MAX];

    if (!over || (over->kind == SHOWN_TREE && strcmp(over->inside, b->inside) == 0))
        return 0;
    if (over->kind == SHOWN_LINK)
        return err_set(e, -EINVAL, "bind: %s cannot be a path inside: %s is a link to %s there", b->inside,
                       over->inside, over->target);
    snprintf(host, sizeof(host), "%s%s", over->host, b->inside + strlen(over->inside));
    if (access(host, F_OK) == 0)
        return 0;
    return err_set(e, -EINVAL, "bind: %s lies in %s, which is shown as it is: make %s on the host, or choose "
                   "a path elsewhere", b->inside, over->inside, host);
}

static int add_bind(struct shown *s, const struct shown_bind *b, struct err *e)
{
    char *real = realpath(b->host, NULL);
    int r = -errno;

    if (!real)
        return err_sys(e, r, "bind: %s", b->host);
    r = check_bind_place(s, b, e);
    if (r < 0) {
        free(real);
        return r;
    }
    return add(s, (struct shown_entry){.inside = strdup(b->inside), .kind = SHOWN_TREE, .host = real,
                                       .writable = b->writable, .bind = true}, e);
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct shown_entry *)a)->inside, ((const struct shown_entry *)b)->inside);
}

static int check_secret(const struct shown *s, const char *secret, struct err *e)
{
    cleanup_free char *real = realpath(secret, NULL);
    const char *path = real ? real : secret;

    for (size_t i = 0; i < s->n; i++) {
        const struct shown_entry *entry = &s->list[i];
        if (entry->kind != SHOWN_TREE)
            continue;
        if (entry->bind && (shown_lies_in(path, entry->host) || shown_lies_in(entry->host, path)))
            return err_set(e, -EINVAL, "bind: %s would show %s to every job", entry->host, secret);
        if (shown_lies_in(path, entry->host))
            return err_set(e, -EINVAL, "%s lies in %s, which every job sees: put it elsewhere", secret, entry->host);
    }
    return 0;
}

static int fill(struct shown *s, int root_fd, const struct shown_bind *binds, size_t n_binds,
                const char *const *secrets, struct err *e)
{
    int r = add_host(s, root_fd, e);

    for (size_t i = 0; r == 0 && i < n_binds; i++)
        r = add_bind(s, &binds[i], e);
    for (; r == 0 && secrets && *secrets; secrets++)
        r = check_secret(s, *secrets, e);
    if (r == 0)
        qsort(s->list, s->n, sizeof(*s->list), compare);
    return r;
}

int shown_create(int root_fd, const struct shown_bind *binds, size_t n_binds, const char *const *secrets,
                 struct shown **out, struct err *e)
{
    struct shown *s = calloc(1, sizeof(*s));
    int r = s ? fill(s, root_fd, binds, n_binds, secrets, e) : out_of_memory(e);

    if (r < 0) {
        shown_destroy(s);
        return r;
    }
    *out = s;
    return 0;
}

void shown_destroy(struct shown *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        entry_finish(&s->list[i]);
    free(s->list);
    free(s);
}

/* ── asking it ───────────────────────────────────────────────────────────────────────────── */

const struct shown_entry *shown_entries(const struct shown *s, size_t *n)
{
    *n = s->n;
    return s->list;
}

static void look_in_tree(const struct shown_entry *over, const char *inside, struct shown_place *out)
{
    const char *rest = inside + strlen(over->inside);
    int n = snprintf(out->host, sizeof(out->host), "%s%s", over->host, rest);

    if (n < 0 || (size_t)n >= sizeof(out->host))
        return;
    out->kind = SHOWN_TREE;
    out->writable = over->writable;
}

void shown_look(const struct shown *s, const char *inside, struct shown_place *out)
{
    const struct shown_entry *over;

    out->kind = SHOWN_NOTHING;
    out->host[0] = '\0';
    out->target = NULL;
    out->writable = false;
    if (!shown_path_is_plain(inside))
        return;
    over = find_over(s, inside);
    if (over && over->kind == SHOWN_TREE) {
        look_in_tree(over, inside, out);
    } else if (over) {
        out->kind = strcmp(over->inside, inside) == 0 ? SHOWN_LINK : SHOWN_NOTHING;
        out->target = out->kind == SHOWN_LINK ? over->target : NULL;
    } else if (strcmp(inside, "/") == 0 || find_below(s, inside)) {
        out->kind = SHOWN_ABOVE;
    }
}

/* The first component of `path` (a line's) behind `dir`, or NULL when it does not lie below it. */
static const char *child_of(const char *path, const char *dir, size_t *len)
{
    size_t skip = strcmp(dir, "/") == 0 ? 0 : strlen(dir);

    if (!shown_lies_in(path, dir) || path[skip] == '\0')
        return NULL;
    *len = strcspn(path + skip + 1, "/");
    return path + skip + 1;
}

/* Does a line before this one have the same first component? */
static bool seen_before(const struct shown *s, size_t i, const char *dir, const char *name, size_t len)
{
    for (size_t j = 0; j < i; j++) {
        size_t other_len;
        const char *other = child_of(s->list[j].inside, dir, &other_len);
        if (other && other_len == len && strncmp(other, name, len) == 0)
            return true;
    }
    return false;
}

void shown_children(const struct shown *s, const char *inside,
                    void (*each)(const char *name, enum shown_kind kind, void *arg), void *arg)
{
    bool in_tree = find_over(s, inside) != NULL;

    for (size_t i = 0; shown_path_is_plain(inside) && i < s->n; i++) {
        char name[NAME_MAX + 1], path[PATH_MAX];
        size_t len;
        const char *child = child_of(s->list[i].inside, inside, &len);
        if (!child || len >= sizeof(name) || seen_before(s, i, inside, child, len))
            continue;
        memcpy(name, child, len);
        name[len] = '\0';
        snprintf(path, sizeof(path), "%s/%s", strcmp(inside, "/") == 0 ? "" : inside, name);
        const struct shown_entry *exact = find_exact(s, path);
        if (exact || !in_tree)
            each(name, exact ? exact->kind : SHOWN_ABOVE, arg);
    }
}

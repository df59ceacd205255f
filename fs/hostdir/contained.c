// SPDX-License-Identifier: Apache-2.0
#include "fs/hostdir/contained.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

#define LINKS_MAX      40 /* as the kernel's own limit, path_resolution(7) */
#define COMPONENTS_MAX (PATH_MAX / 2)

/* A path under construction: absolute inside the sandbox. */
struct walk {
    int    root_fd;
    char   todo[2 * PATH_MAX];           /* what is still to be walked */
    const char *name[COMPONENTS_MAX];    /* the path so far */
    size_t n;
    char   store[3 * PATH_MAX];          /* its components' texts */
    size_t stored;
    int    links;
    size_t dead;                         /* so many components lead nowhere, here or inside; 0: none */
};

static bool has_late_dotdot(const char *text, int *leading)
{
    bool name_seen = false;
    *leading = 0;
    while (*text) {
        size_t n = strcspn(text, "/");
        bool dotdot = n == 2 && text[0] == '.' && text[1] == '.';
        if (dotdot && name_seen)
            return true;
        if (dotdot)
            ++*leading;
        else if (n && !(n == 1 && text[0] == '.'))
            name_seen = true;
        text += n + (text[n] == '/');
    }
    return false;
}

static int push(struct walk *w, const char *name, size_t n)
{
    if (w->n == COMPONENTS_MAX || w->stored + n + 1 > sizeof w->store)
        return -ENAMETOOLONG;
    char *at = w->store + w->stored;
    memcpy(at, name, n);
    at[n] = '\0';
    w->stored += n + 1;
    w->name[w->n++] = at;
    return 0;
}

/* Whether the path so far lies in the workspace, whose root is the first component. */
static bool inside(const struct walk *w)
{
    return w->n && !strcmp(w->name[0], INSIDE_ROOT + 1);
}

/* What is to be walked through at the path so far: the length of a link's text; 0: not a link;
 * -ENOENT, -ENOTDIR: there is nothing to walk through. */
static ssize_t read_link_here(const struct walk *w, char *text)
{
    struct stat st;
    cleanup_close int fd = fcntl(w->root_fd, F_DUPFD_CLOEXEC, 0);
    for (size_t i = 1; fd >= 0 && i < w->n; i++) {
        bool last = i + 1 == w->n;
        int next = openat(fd, w->name[i], O_PATH | O_NOFOLLOW | O_CLOEXEC | (last ? 0 : O_DIRECTORY));
        int error = errno;
        close(fd);
        fd = next;
        errno = error;
    }
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? -errno : 0;
    ssize_t n = w->n < 2 ? -1 : readlinkat(fd, "", text, PATH_MAX - 1);
    if (n >= 0)
        return n;
    return w->n < 2 || fstat(fd, &st) < 0 || S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static bool is_dots(const char *name, size_t n)
{
    return n <= 2 && !memcmp(name, "..", n);
}

/* Puts the text of a link that is walked through in its place. */
static int walk_link(struct walk *w, const char *text, size_t len)
{
    size_t left = strlen(w->todo);
    if (len + 1 + left + 1 > sizeof w->todo)
        return -ENAMETOOLONG;
    memmove(w->todo + len + 1, w->todo, left + 1);
    memcpy(w->todo, text, len);
    w->todo[len] = '/';
    w->n = text[0] == '/' ? 0 : w->n - 1;
    return 0;
}

/* One component of `todo`. Behind one that cannot be walked through no `..` leads back: the text
 * then fails at the same place as the link does. */
static int step(struct walk *w)
{
    char text[PATH_MAX];
    char *rest = w->todo + strcspn(w->todo, "/");
    size_t n = (size_t)(rest - w->todo);
    bool more = *rest == '/', name = n && !is_dots(w->todo, n);
    int r = name ? push(w, w->todo, n) : 0;
    if (n == 2 && !name && !w->dead)
        w->n -= w->n > 0;
    rest += strspn(rest, "/");
    memmove(w->todo, rest, strlen(rest) + 1);
    if (r < 0 || !name || !more || !*w->todo || w->dead || !inside(w))
        return r;
    ssize_t len = read_link_here(w, text);
    if (len < 0 || (len > 0 && ++w->links > LINKS_MAX))
        w->dead = w->n;
    return w->dead || len == 0 ? 0 : walk_link(w, text, (size_t)len);
}

/* Appends to a text of PATH_MAX bytes. */
static int append(char *out, const char *text)
{
    size_t used = strlen(out), n = strlen(text);
    if (used + n + 1 > PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(out + used, text, n + 1);
    return 0;
}

/* The path so far as seen from a directory `depth` below the root, or below the anchor. */
static int express(const struct walk *w, int depth, const char *anchor, char *out)
{
    bool in = inside(w);
    int r = 0;
    out[0] = '\0';
    if (anchor) {
        r = append(out, anchor);
        r = r == 0 ? append(out, "/") : r;
    }
    for (int i = 0; !anchor && i < depth && r == 0; i++)
        r = append(out, "../");
    if (r == 0 && !in)
        r = append(out, ".wsm/root/");
    for (size_t i = in; i < w->n && r == 0; i++) {
        r = append(out, w->name[i]);
        if (r == 0 && i + 1 < w->n)
            r = append(out, "/");
    }
    size_t n = strlen(out);
    if (r == 0 && n == 0)
        return append(out, ".");
    if (r == 0 && n > 1 && out[n - 1] == '/')
        out[n - 1] = '\0';
    return r;
}

static int resolve(struct walk *w, const char *dir, const char *disk)
{
    const char *start = disk[0] == '/' ? "" : INSIDE_ROOT "/";
    size_t need = strlen(start) + strlen(dir) + strlen(disk) + 1;
    if (need > sizeof w->todo)
        return -ENAMETOOLONG;
    strcpy(w->todo, start);
    if (disk[0] != '/')
        strcat(w->todo, dir);
    strcat(w->todo, disk);
    size_t slashes = strspn(w->todo, "/");
    memmove(w->todo, w->todo + slashes, strlen(w->todo + slashes) + 1);
    int r = 0;
    while (r == 0 && w->todo[0])
        r = step(w);
    return r == 0 && w->dead == w->n && w->dead ? push(w, ".", 1) : r;
}

int contained_target(int root_fd, const char *dir, int depth, const char *anchor, const char *disk, char *out)
{
    int leading;
    if (disk[0] != '/' && !has_late_dotdot(disk, &leading) && leading <= (anchor ? 0 : depth)) {
        strcpy(out, disk);
        return 0;
    }
    cleanup_free struct walk *w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->root_fd = root_fd;
    int r = resolve(w, dir, disk);
    return r < 0 ? r : express(w, depth, anchor, out);
}

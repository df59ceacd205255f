// SPDX-License-Identifier: Apache-2.0
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "files.h"
#include "wsm.h"

#define LINKS_MAX 40 /* as many as the kernel follows */
#define SESSION_LEVELS 3

/* ── resolving ───────────────────────────────────────────────────────────────────────────── */

struct resolver {
    const struct mounts *mounts;
    const char *path;     /* as given */
    char       *resolved; /* absolute; "" is the root */
    char       *todo;     /* what is left */
    int         links;
};

/* Goes on with the target of a link in place of its name. */
static int follow(struct resolver *r, const char *target)
{
    char *todo = text_format("%s/%s", target, r->todo);

    free(r->todo);
    r->todo = todo;
    if (++r->links > LINKS_MAX)
        return complain("%s: %s", r->path, strerror(ELOOP));
    *(*target == '/' ? r->resolved : strrchr(r->resolved, '/')) = '\0';
    return 0;
}

/* The last name of what is resolved may be a link. In a wsmfs there is none above a session. */
static int look(struct resolver *r)
{
    char    target[PATH_MAX];
    ssize_t n;

    if (mounts_holding(r->mounts, r->resolved))
        return 0;
    n = readlink(r->resolved, target, sizeof(target) - 1);
    if (n < 0)
        return errno == EINVAL ? 0 : complain("%s: %m", r->path);
    target[n] = '\0';
    return follow(r, target);
}

static int step(struct resolver *r, const char *name)
{
    char *longer, *slash;

    if (!*name || strcmp(name, ".") == 0)
        return 0;
    if (strcmp(name, "..") == 0) {
        slash = strrchr(r->resolved, '/');
        if (slash)
            *slash = '\0';
        return 0;
    }
    longer = text_format("%s/%s", r->resolved, name);
    free(r->resolved);
    r->resolved = longer;
    return look(r);
}

/* The next name, cut off the front of what is left; malloc'ed. */
static char *take_name(struct resolver *r)
{
    size_t n = strcspn(r->todo, "/");
    char  *name = text_format("%.*s", (int)n, r->todo);

    n += r->todo[n] == '/';
    memmove(r->todo, r->todo + n, strlen(r->todo + n) + 1);
    return name;
}

/* malloc'ed; NULL when something is wrong and that was said. */
static char *absolute(const char *path)
{
    cleanup_free char *here = NULL;

    if (!*path) {
        complain("an empty path is none");
        return NULL;
    }
    if (*path == '/')
        return text_format("%s", path);
    here = getcwd(NULL, 0);
    if (here && *here == '/')
        return text_format("%s/%s", here, path);
    complain("the current directory: %s", here ? strerror(ENOENT) : strerror(errno));
    return NULL;
}

/* The path without links on the way to a mount; malloc'ed, NULL: said. */
static char *resolve(const struct mounts *m, const char *path)
{
    struct resolver r = { .mounts = m, .path = path, .todo = absolute(path) };
    int status = 0;

    if (!r.todo)
        return NULL;
    r.resolved = text_format("%s", "");
    while (status == 0 && *r.todo) {
        cleanup_free char *name = take_name(&r);
        status = step(&r, name);
    }
    free(r.todo);
    if (status == 0)
        return *r.resolved ? r.resolved : strcpy(more_memory(r.resolved, 2, 1), "/");
    free(r.resolved);
    return NULL;
}

/* ── names ───────────────────────────────────────────────────────────────────────────────── */

/* Splits a path of the mount's own, without a slash in front, into names and what is inside. */
static void split(const char *inside, struct place *p)
{
    const char *rest = inside, *end = inside;

    if (path_below(inside, ".wsm/sessions", &rest))
        end = rest;
    else if (path_below(inside, ".wsm", &rest))
        rest = end = inside + strlen(inside);
    for (; p->levels < SESSION_LEVELS && *end; p->levels++)
        end = strchrnul(*end == '/' ? end + 1 : end, '/');
    p->names = text_format("%.*s", (int)(end - rest), rest);
    p->rest = text_format("%s", *end == '/' ? end + 1 : end);
}

/* Where the control directory is: below the manager's own where the whole tree is mounted, so that
 * nothing that waits in a session is in the way. NULL: not to be seen here. */
static char *control_path(const struct place *p, const struct mount *m)
{
    cleanup_free char *whole = text_format("/%s", p->names);
    const char *below, *point = strcmp(m->point, "/") == 0 ? "" : m->point;

    if (strcmp(m->root, "/") == 0)
        return p->levels < SESSION_LEVELS ? text_format("%s/.wsm", point)
                                          : text_format("%s/.wsm/sessions/%s", point, p->names);
    if (p->levels < SESSION_LEVELS || !path_below(whole, m->root, &below))
        return NULL;
    return text_format("%s%s%s/.wsm", point, *below ? "/" : "", below);
}

/* ── finding ─────────────────────────────────────────────────────────────────────────────── */

int place_complain(const struct place *p, const char *what, int error)
{
    const char *about = *p->names ? p->names : p->point;

    if (error == ENOTCONN || error == ECONNABORTED)
        return complain("%s: the mount at %s is dead, its daemon has ended: mount it again", about, p->point);
    if (error == ENOENT && !what)
        return complain("%s: no such session in %s (a name that does not exist by itself is made with mkdir)",
                        about, p->point);
    return complain("%s: %s%s%s", about, what ? what : "", what ? ": " : "", strerror(error));
}

static int open_control(struct place *p, const char *path)
{
    if (!p->control)
        return complain("%s: the mount at %s shows only a part of a wsmfs, and no control directory for this",
                        path, p->point);
    p->dir = file_open(AT_FDCWD, p->control, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    return p->dir < 0 ? place_complain(p, NULL, -p->dir) : 0;
}

static int find_in(const struct mounts *mounts, const char *path, struct place *p)
{
    cleanup_free char *resolved = resolve(mounts, path), *inside = NULL;
    const struct mount *m;
    const char *rest = "";

    if (!resolved)
        return -1;
    m = mounts_holding(mounts, resolved);
    if (!m)
        return complain("%s is in no mounted wsmfs", path);
    path_below(resolved, m->point, &rest);
    inside = text_format("%s%s%s", m->root + 1, m->root[1] && *rest ? "/" : "", rest);
    p->point = text_format("%s", m->point);
    split(inside, p);
    p->control = control_path(p, m);
    return open_control(p, path);
}

int place_find(const char *path, struct place *p)
{
    struct mounts mounts;
    int r = mounts_read(&mounts);

    *p = (struct place){ .dir = -1 };
    if (r == 0)
        r = find_in(&mounts, path, p);
    mounts_free(&mounts);
    return r;
}

int session_find(const char *path, struct place *p)
{
    int r = place_find(path, p);

    if (r == 0 && p->levels < SESSION_LEVELS)
        return complain("%s is above a session: name a directory USER/AGENT/SESSION of %s, or anything in it", path,
                        p->point);
    return r;
}

void place_free(struct place *p)
{
    free(p->point);
    free(p->names);
    free(p->rest);
    free(p->control);
    if (p->dir >= 0)
        close(p->dir);
}

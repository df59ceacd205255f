// SPDX-License-Identifier: Apache-2.0
#include "backends/local/shown_bind.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backends/local/shown.h"
#include "fs/base/cleanup.h"

bool shown_path_is_plain(const char *path)
{
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return false;
    if (path[1] == '\0')
        return true;
    for (size_t n; *path; path += n) {
        path++; /* the slash */
        n = strcspn(path, "/");
        if (n == 0 || n > NAME_MAX || (n == 1 && path[0] == '.') || (n == 2 && strncmp(path, "..", 2) == 0))
            return false;
    }
    return true;
}

bool shown_lies_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    if (n == 1)
        return true;
    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* Places that a bind may not have, and whether that holds for all below them. */
static const struct {
    const char *path;
    bool        below;
} taken[] = {
    {"/", false}, {"/bin", false}, {"/dev", true}, {"/etc", false}, {"/lib", false}, {"/lib64", false},
    {"/proc", true}, {"/run", false}, {"/run/wsm", true}, {"/sbin", false}, {"/tmp", false},
    {"/usr", false}, {"/var", false}, {"/var/tmp", true}, {SHOWN_WORKSPACE, true},
};

static bool is_taken(const char *path)
{
    for (size_t i = 0; i < array_size(taken); i++)
        if (strcmp(path, taken[i].path) == 0 || (taken[i].below && shown_lies_in(path, taken[i].path)))
            return true;
    return false;
}

static int check(const struct shown_bind *b, const char *text, struct err *e)
{
    if (!shown_path_is_plain(b->host) || !shown_path_is_plain(b->inside) || strchr(b->inside, ':'))
        return err_set(e, -EINVAL, "bind: \"%s\" is not HOST[:INSIDE][:ro|rw] with absolute paths that have "
                       "no empty part, \".\" or \"..\"", text);
    if (is_taken(b->inside))
        return err_set(e, -EINVAL, "bind: %s is the sandbox's own: choose another path inside, as in %s:/mnt/NAME",
                       b->inside, b->host);
    return 0;
}

/* Takes ":ro" or ":rw" off the end. */
static bool take_mode(char *text)
{
    char *colon = strrchr(text, ':');

    if (!colon || (strcmp(colon, ":ro") != 0 && strcmp(colon, ":rw") != 0))
        return false;
    *colon = '\0';
    return colon[2] == 'w';
}

int shown_bind_parse(const char *text, struct shown_bind *out, struct err *e)
{
    cleanup_free char *copy = strdup(text);
    int r;

    *out = (struct shown_bind){0};
    if (copy) {
        out->writable = take_mode(copy);
        char *colon = strchr(copy, ':');
        if (colon)
            *colon = '\0';
        out->host = strdup(copy);
        out->inside = strdup(colon ? colon + 1 : copy);
    }
    if (!out->host || !out->inside)
        r = err_set(e, -ENOMEM, "out of memory");
    else
        r = check(out, text, e);
    if (r < 0)
        shown_bind_finish(out);
    return r;
}

void shown_bind_finish(struct shown_bind *b)
{
    free(b->host);
    free(b->inside);
    *b = (struct shown_bind){0};
}

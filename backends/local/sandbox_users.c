// SPDX-License-Identifier: Apache-2.0
/* Who a job is to itself: its lines of /etc/passwd and /etc/group. */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"

#define STAND_IN "tenant" /* a name for ids that the host has none for */

/* The third field of a line of passwd or group: the id. */
static bool line_has_id(const char *line, uint32_t id)
{
    const char *colon = strchr(line, ':');
    char *end;

    colon = colon ? strchr(colon + 1, ':') : NULL;
    if (!colon || colon[1] < '0' || colon[1] > '9')
        return false;
    return strtoull(colon + 1, &end, 10) == id && *end == ':';
}

/* Copies the host's file but for the lines of this id; the name of the first of them goes to `name`. */
static void copy_others(FILE *out, const char *file, uint32_t id, char *name, size_t size)
{
    cleanup_file FILE *in = fopen(file, "re");
    cleanup_free char *line = NULL;
    size_t room = 0;
    bool found = false;

    snprintf(name, size, "%s", STAND_IN);
    while (in && getline(&line, &room, in) > 0) {
        if (!line_has_id(line, id)) {
            fputs(line, out);
        } else if (!found) {
            found = true;
            snprintf(name, size, "%.*s", (int)strcspn(line, ":"), line);
        }
    }
}

/* `format` makes the own line from the name; it stands first, so that it is the one that is found. */
static int make_file(const char *file, uint32_t id, const char *rest, struct err *e)
{
    cleanup_free char *others = NULL, *all = NULL;
    char name[256];
    size_t len = 0;
    FILE *f = open_memstream(&others, &len);
    int n, r;

    if (!f)
        return err_set(e, -ENOMEM, "out of memory");
    copy_others(f, file, id, name, sizeof(name));
    if (fclose(f) != 0 || (n = asprintf(&all, "%s:x:%" PRIu32 ":%s\n%s", name, id, rest, others)) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    r = sandbox_memory_file("wsm-users", all, (size_t)n);
    return r < 0 ? err_sys(e, r, "the sandbox's %s cannot be kept in memory", file) : r;
}

int sandbox_passwd(uint32_t uid, uint32_t gid, struct err *e)
{
    char rest[64];

    snprintf(rest, sizeof(rest), "%" PRIu32 "::" SHOWN_WORKSPACE ":/bin/sh", gid);
    return make_file("/etc/passwd", uid, rest, e);
}

int sandbox_group(uint32_t gid, struct err *e)
{
    return make_file("/etc/group", gid, "", e);
}

bool sandbox_inside_ids(const struct sandbox_spec *spec, enum sandbox_kind kind, uint32_t *uid, uint32_t *gid)
{
    *uid = spec->named ? spec->inside_uid : 0;
    *gid = spec->named ? spec->inside_gid : 0;
    return spec->named || kind == SANDBOX_MAPPED;
}

/* ── user = ──────────────────────────────────────────────────────────────────────────────── */

static bool read_id(const char *text, size_t len, uint32_t *id)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);

    if (len == 0 || text[0] < '0' || text[0] > '9' || end != text + len || n >= UINT32_MAX)
        return false;
    *id = (uint32_t)n;
    return true;
}

static int look_up(const char *name, uint32_t *uid, uint32_t *gid, struct err *e)
{
    struct passwd entry, *found = NULL;
    char room[4096];
    int r = getpwnam_r(name, &entry, room, sizeof(room), &found);

    if (!found)
        return err_set(e, -EINVAL, "user: there is no user \"%s\" on this machine%s%s", name, r ? ": " : "",
                       r ? strerror(r) : "");
    *uid = entry.pw_uid;
    *gid = entry.pw_gid;
    return 0;
}

/* The primary group where the machine knows the user, else the same number. */
static uint32_t group_of(uint32_t uid)
{
    struct passwd entry, *found = NULL;
    char room[4096];

    return getpwuid_r(uid, &entry, room, sizeof(room), &found) == 0 && found ? entry.pw_gid : uid;
}

int sandbox_user_parse(const char *text, uint32_t *uid, uint32_t *gid, struct err *e)
{
    size_t len = strcspn(text, ":");
    const char *second = text[len] ? text + len + 1 : NULL;

    if (text[0] < '0' || text[0] > '9')
        return look_up(text, uid, gid, e);
    if (!read_id(text, len, uid) || (second && !read_id(second, strlen(second), gid)))
        return err_set(e, -EINVAL, "user: \"%s\" is neither a user's name nor UID or UID:GID", text);
    if (!second)
        *gid = group_of(*uid);
    return 0;
}

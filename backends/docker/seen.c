// SPDX-License-Identifier: Apache-2.0
/* What the engine sees of the base directory. Paths to be bound are the engine's, not ours: where wsmfs or the
 * engine runs in a container or a mount namespace of its own, the same path may be another directory, and a
 * workspace would look empty and right. So each is compared before a container starts. */
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

#define STAT_TEXT 1024
#define TRIES     5    /* of a directory whose time somebody keeps setting back */

const char *docker_engine_base(const struct docker *d)
{
    return d->keys.basedir_on_engine ? d->keys.basedir_on_engine : d->mount.basedir;
}

/* ── what the engine says of a path ──────────────────────────────────────────────────────── */

/* A file's time may be any that its file system can hold: in nanoseconds that is more than 64 bits. */
typedef __int128 file_time;

/* RFC 3339 with up to nine digits behind the point, in nanoseconds. False: it is none. */
static bool time_of(const char *text, file_time *out)
{
    struct tm t = { 0 };
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &t);
    int64_t ns = 0, unit = 100000000;
    int hours, minutes;
    char sign;

    if (!rest)
        return false;
    if (*rest == '.')
        for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit /= 10)
            ns += (*rest - '0') * unit;
    *out = (file_time)timegm(&t) * 1000000000 + ns;
    if (sscanf(rest, "%c%2d:%2d", &sign, &hours, &minutes) == 3)
        *out -= (sign == '-' ? -1 : 1) * (file_time)(hours * 60 + minutes) * 60000000000;
    return true;
}

/* The header is JSON in base64, and its mtime tells one directory from another: they are fresh, or old and
 * changed at some nanosecond. False: there is none in it. */
static bool mtime_of(const char *header, file_time *out)
{
    unsigned char text[STAT_TEXT];
    size_t n = strlen(header);
    struct json_object *o, *mtime;
    bool good;

    if (n == 0 || n >= sizeof(text) || EVP_DecodeBlock(text, (const unsigned char *)header, (int)n) < 0)
        return false;
    text[n / 4 * 3] = '\0';
    o = json_tokener_parse((char *)text);
    mtime = json_object_object_get(o, "mtime");
    good = json_object_is_type(mtime, json_type_string) && time_of(json_object_get_string(mtime), out);
    json_object_put(o);
    return good;
}

/* ── comparing ───────────────────────────────────────────────────────────────────────────── */

static file_time mtime_here(int fd)
{
    struct stat st;

    return fstat(fd, &st) < 0 ? 0 : (file_time)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* 1: it is the same directory, 0: it is not. Meanwhile it may be changed, by whoever uses the mount. */
static int is_same(struct docker *d, const char *id, const char *inside, int fd, struct backend_progress *p,
                   struct err *e)
{
    char header[STAT_TEXT];

    for (int i = 0; i < TRIES; i++) {
        file_time before = mtime_here(fd), there;
        int r = container_path(d, id, inside, p, header, sizeof(header), e);
        if (r < 0 || !mtime_of(header, &there))
            return r;
        if (there == before || (there > before && there <= mtime_here(fd)))
            return 1;
    }
    return 0;
}

static int elsewhere(struct docker *d, const char *detail, struct err *e)
{
    if (d->keys.basedir_on_engine)
        return err_set(e, -EIO, "the engine does not have the base directory %s at %s, as basedir_on_engine says: %s",
                       d->mount.basedir, d->keys.basedir_on_engine, detail);
    return err_set(e, -EIO, "the engine sees another file system: %s of this one is not what it has there (%s). Say in "
                   "basedir_on_engine which path the base directory has for the engine", d->mount.basedir, detail);
}

int docker_check_seen(struct docker *d, const struct backend_workspace *w, const char *id, struct backend_progress *p,
                      struct err *e)
{
    cleanup_close int run = docker_open_run(d, w);
    cleanup_close int files = walk_open(d->mount.basedir_fd, w->host_dir, false);
    int r;

    if (run < 0 || files < 0)
        return err_sys(e, run < 0 ? run : files, "a directory of the workspace cannot be opened");
    r = is_same(d, id, DOCKER_RUN, run, p, e);
    if (r == 1)
        r = is_same(d, id, DOCKER_WORKSPACE, files, p, e);
    return r < 0 ? r : r == 1 ? 0 : elsewhere(d, "it is another directory of that name", e);
}

/* A path of the administrator's own may be what is missing: then it is for him to mend. */
int docker_bind_missing(struct docker *d, const char *text, struct err *e)
{
    const char *base = docker_engine_base(d), *at = strstr(text, base);

    if (at && at[strlen(base)] == '/')
        return elsewhere(d, text, e);
    return err_set(e, -EINVAL, "the engine misses a path to be bound: %s", text);
}

// SPDX-License-Identifier: Apache-2.0
/* Whose ids the processes of a container have on this host. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

enum { NOT_ASKED, ROOTS, OURS };

/* What is special about an engine stands among its security options. */
static bool has_option(struct json_object *info, const char *option)
{
    struct json_object *options = json_object_object_get(info, "SecurityOptions");

    for (size_t i = 0; json_object_is_type(options, json_type_array) && i < json_object_array_length(options); i++) {
        const char *o = json_object_get_string(json_object_array_get_idx(options, i));
        if (o && strncmp(o, option, strlen(option)) == 0)
            return true;
    }
    return false;
}

/* With userns-remap all ids of its containers begin at one of the host's, which is in the name of its directory:
 * "/var/lib/docker/100000.100000". */
static int learn_shift(struct docker *d, struct json_object *info, struct err *e)
{
    const char *top = json_object_get_string(json_object_object_get(info, "DockerRootDir"));
    const char *slash = top ? strrchr(top, '/') : NULL;
    unsigned uid, gid;

    if (!has_option(info, "name=userns"))
        return 0;
    if (geteuid() != 0)
        return err_set(e, -EINVAL, "the engine gives its containers ids of their own (userns-remap): then only root can "
                       "mount, who may give files to those");
    if (!slash || sscanf(slash, "/%u.%u", &uid, &gid) != 2)
        return err_set(e, -EIO, "the engine gives its containers ids of their own (userns-remap) and does not say which");
    atomic_store(&d->shift_gid, gid);
    atomic_store(&d->shift_uid, uid);
    return 0;
}

int docker_learn_ids(struct docker *d, struct err *e)
{
    const struct engine_request rq = { .method = "GET", .path = "/info", .timeout_ms = d->keys.timeout_ms };
    __attribute__((cleanup(engine_answer_finish))) struct engine_answer a = { 0 };
    int r;

    if (atomic_load(&d->ids) != NOT_ASKED)
        return 0;
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0)
        return r;
    if (a.status != 200)
        return engine_refused(&a, "what the engine is", e);
    if (!json_object_is_type(a.json, json_type_object))
        return err_set(e, -EPROTO, "the Docker engine does not say what it is");
    r = learn_shift(d, a.json, e);
    if (r < 0)
        return r;
    if (geteuid() == 0 || has_option(a.json, "name=rootless")) {
        atomic_store(&d->ids, ROOTS);
        return 0;
    }
    if (d->keys.user)
        return err_set(e, -EINVAL, "user of section [sandbox] cannot be honoured: the engine is root's and this mount an ordinary "
                       "user's, who could not change other users' files. Jobs run as that user");
    atomic_store(&d->ids, OURS);
    return 0;
}

void docker_container_user(struct docker *d, char out[32])
{
    if (atomic_load(&d->ids) == OURS)
        snprintf(out, 32, "%u:%u", (unsigned)geteuid(), (unsigned)getegid());
    else
        snprintf(out, 32, "0:0");
}

/* ── giving files to shifted ids ─────────────────────────────────────────────────────────── */

#define DEPTH_MAX 512 /* a descriptor each */

static void shift_all_in(const struct docker *d, int fd, dev_t dev, unsigned depth);

/* Whoever's it was outside is its owner inside; what is in the range already is left. Links are none to follow. */
static bool shift_one(const struct docker *d, int dir, const char *name, const struct stat *st)
{
    uint32_t uid = atomic_load(&d->shift_uid), gid = atomic_load(&d->shift_gid);

    return st->st_uid < uid &&
           fchownat(dir, name, uid + st->st_uid, gid + st->st_gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0;
}

static void shift_below(const struct docker *d, int dir, const char *name, dev_t dev, unsigned depth)
{
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != dev)
        return;
    shift_one(d, dir, name, &st);
    if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX)
        shift_all_in(d, openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), dev, depth + 1);
}

/* Takes over fd. A directory has been given away before it is listed: what the mount makes in it meanwhile is listed,
 * or belongs to the new owner from the beginning. */
static void shift_all_in(const struct docker *d, int fd, dev_t dev, unsigned depth)
{
    cleanup_dir DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!list && fd >= 0)
        close(fd);
    while (list && (entry = readdir(list)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            shift_below(d, dirfd(list), entry->d_name, dev, depth);
}

void docker_shift_files(const struct docker *d, const struct backend_workspace *w)
{
    struct stat st;
    cleanup_close int top = atomic_load(&d->shift_uid) ? walk_open(d->mount.basedir_fd, w->host_dir, false) : -1;

    if (top >= 0 && fstat(top, &st) == 0 && shift_one(d, top, "", &st))
        shift_all_in(d, openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), st.st_dev, 0);
}

int docker_shift_directory(const struct docker *d, int fd)
{
    struct stat st;

    if (atomic_load(&d->shift_uid) == 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    return st.st_uid >= atomic_load(&d->shift_uid) || shift_one(d, fd, "", &st) ? 0 : -errno;
}

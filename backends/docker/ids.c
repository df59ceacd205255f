// SPDX-License-Identifier: Apache-2.0
/* Whose ids the processes of a container have on this host. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/docker/docker.h"
#include "backends/shared/give.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
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

/* Whoever's it was outside is its owner inside; what is in the range already is left. Links are none to follow. */
static int shift_one(void *arg, int dir, const char *name, const struct stat *st)
{
    const struct docker *d = arg;
    uint32_t uid = atomic_load(&d->shift_uid), gid = atomic_load(&d->shift_gid);

    return st->st_uid < uid &&
           fchownat(dir, name, uid + st->st_uid, gid + st->st_gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0;
}

void docker_shift_files(struct docker *d, const struct backend_workspace *w)
{
    struct stat st;
    cleanup_close int top = atomic_load(&d->shift_uid) ? walk_open(d->mount.basedir_fd, w->host_dir, false) : -1;
    int r;

    if (top < 0 || fstat(top, &st) < 0 || st.st_uid >= atomic_load(&d->shift_uid))
        return;
    r = give_tree(top, shift_one, d);
    if (r < 0)
        log_warning("the files of the workspace %s are not all given to the container's ids yet: %s", w->id, strerror(-r));
}

int docker_shift_directory(struct docker *d, int fd)
{
    struct stat st;

    if (atomic_load(&d->shift_uid) == 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    return st.st_uid >= atomic_load(&d->shift_uid) || shift_one(d, fd, "", &st) == 1 ? 0 : -errno;
}

// SPDX-License-Identifier: Apache-2.0
/* Workspaces whose sandbox is a container of a Docker Engine on this host.
 *
 * The files are directories of the host as those of the local backend, bound into the container at
 * /workspace. Beside them, below <basedir>/.wsmfs, so that an engine which sees the base directory sees all:
 *
 *     guest/wsm-guest-<hash>  the guest program, bound read-only at /.wsm/wsm-guest
 *     run/<id>/               bound at /.wsm/run: the guest listens there on guest.sock, and wsmfs
 *                             connects to that. No exec of the engine is needed, and nothing of the image
 *     run/.turns              locked, a byte for each workspace, by whoever makes, starts or ends its container */
#ifndef WSMFS_DOCKER_DOCKER_H
#define WSMFS_DOCKER_DOCKER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "backends/backend.h"
#include "backends/docker/engine.h"
#include "backends/docker/flight.h"
#include "backends/docker/keys.h"

#define DOCKER_WORKSPACE "/workspace"
#define DOCKER_RUN       "/.wsm/run"
#define DOCKER_LABEL     "wsmfs." /* what our labels begin with */
#define DOCKER_PIDS      1024

struct docker {
    struct backend_mount mount;
    struct docker_keys keys;
    struct engine *engine;
    atomic_int ids;        /* whose a container's are; ids.c */
    atomic_uint shift_uid, shift_gid; /* what is added to those of its processes on this host */
    struct flights *flights; /* of images that are being fetched */
    char  *guest;          /* the program to be bound, as the engine has it; set by docker_place_guest() */
    _Atomic pid_t pids[DOCKER_PIDS]; /* of guests, as last seen; hints, which root.c checks */
    struct docker_watch *watch; /* NULL: not begun */
};

/* ── docker.c, check.c ── */

/* Reads the keys and finds the engine, whatever of d->mount but `basedir_fd` and `noticed` is there. Makes nothing,
 * connects to nothing. -errno with a sentence; what has been set is to be finished in any case. */
int docker_settle(struct docker *d, struct err *e);
/* The callback of this name. */
int docker_check(const struct backend_mount *m, char *found, size_t size, struct err *e);

/* ── place.c ── */

/* Puts the guest program where containers can see it. */
int docker_place_guest(struct docker *d, struct err *e);
/* Makes a workspace's directory for the guest's socket. */
int docker_place_run(struct docker *d, const struct backend_workspace *w, struct err *e);
/* An O_PATH descriptor of it, -errno. */
int docker_open_run(struct docker *d, const struct backend_workspace *w);
/* Removes it, with whatever a container has left there. */
int docker_remove_run(struct docker *d, const struct backend_workspace *w, struct err *e);
/* Waits until it is our turn, among all mounts of this base directory, to make, start or end the workspace's
 * container and what lies here for it: a descriptor, whose close ends the turn, also by the death of whoever has it.
 * Where the file system has no locks there are no turns. -ECANCELED by the progress (or NULL), -ETIMEDOUT. */
int docker_take_turn(struct docker *d, const struct backend_workspace *w, struct backend_progress *p, struct err *e);
/* A connection to the guest. -ENOENT, -ECONNREFUSED: it does not listen (yet, or any more). */
int docker_connect(struct docker *d, const struct backend_workspace *w, struct err *e);

/* ── mounts.c ── */

/* Whether `bind` and `mounts` make sense: -EINVAL with a sentence that names the key. */
int docker_mounts_check(const struct docker *d, struct err *e);
/* All mounts of a workspace's container, as HostConfig.Mounts; the caller puts it. */
struct json_object *docker_mounts(const struct docker *d, const struct backend_workspace *w);

/* The path of the directory where its guest listens, as the engine has it; malloc'ed, NULL: out of memory. */
char *docker_run_on_engine(const struct docker *d, const struct backend_workspace *w);

/* ── root.c ── */

/* The callbacks of these names, over the container's own root. */
void docker_root_look(void *state, const char *inside, struct backend_root_place *out);
void docker_root_children(void *state, const char *inside, void (*each)(const char *name, void *arg), void *arg);
int docker_root_open(void *state, const struct backend_workspace *w);

/* ── seen.c ── */

/* The base directory's path as the engine has it. Borrowed. */
const char *docker_engine_base(const struct docker *d);
/* Whether what the engine binds into a container that is not started, or whose guest is silent, are the
 * directories that are here: asks the engine, which looks at them as the container would. -EIO with a sentence
 * that says what to do; -errno as engine_call(). */
int docker_check_seen(struct docker *d, const struct backend_workspace *w, const char *id, struct backend_progress *p,
                      struct err *e);
/* The error of an engine that misses a path to be bound, `text` being what it says. */
int docker_bind_missing(struct docker *d, const char *text, struct err *e);

/* ── container.c ── */

#define CONTAINER_ID_SIZE 65

enum container_state {
    CONTAINER_ABSENT,
    CONTAINER_CREATED, /* never started, or it could not be */
    CONTAINER_RUNNING,
    CONTAINER_PAUSED,
    CONTAINER_EXITED,
    CONTAINER_GOING,   /* being removed, or being restarted */
};

struct container {
    enum container_state state;
    bool ours;                  /* its labels say this instance and this workspace */
    char id[CONTAINER_ID_SIZE];
    char spec[24];              /* the hash of what it was made from */
    char trouble[200];          /* what the engine says of its end */
};

/* All of them: each call of the engine may take `timeout`, -ETIMEDOUT. Where there is a progress (NULL is fine) its
 * cancellation ends them, -ECANCELED. After these, -EHOSTUNREACH and -EPROTO it is not known what the engine has done.
 *
 * What is there of a workspace's name; CONTAINER_ABSENT, which an engine must have said in so many words, is no
 * error. -EPROTO: the answer describes no container. */
int container_look(struct docker *d, const struct backend_workspace *w, struct backend_progress *p,
                   struct container *out, struct err *e);
/* Makes one of that image. -EEXIST: the name is taken; -ENOENT: no such image; both without a sentence that matters. */
int container_create(struct docker *d, const struct backend_workspace *w, const char *image, struct backend_progress *p,
                     char id[CONTAINER_ID_SIZE], struct err *e);
int container_start(struct docker *d, const char *id, struct backend_progress *p, struct err *e);
/* What the engine says of a path of a container, which need not run: the value of the header, "" when there is no
 * such path. Engine API, "Get information about files in a container". */
int container_path(struct docker *d, const char *id, const char *path, struct backend_progress *p, char *out, size_t size,
                   struct err *e);
int container_unpause(struct docker *d, const char *id, struct backend_progress *p, struct err *e);
/* TERM, after the grace KILL, then away with it. One that is gone: 0. */
int container_end(struct docker *d, const char *id, int64_t grace_ms, struct err *e);
/* The same for all that are this workspace's under another name, which somebody has given them. One of another instance
 * or made by somebody else is left alone. */
int container_end_renamed(struct docker *d, const struct backend_workspace *w, int64_t grace_ms, struct err *e);
/* The hash of what a container of that image would be made from now. */
void container_spec(struct docker *d, const struct backend_workspace *w, const char *image, char out[24]);
/* Calls `found` for every container of this instance. */
int container_list(struct docker *d, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e);

/* ── events.c ── */

/* Follows the engine's events from now on, on a thread of its own, and tells the core (backend_mount.noticed)
 * when something has happened to a container of this instance. Without an engine, or without its events, nothing
 * is told and it is tried again. Once; -errno: no thread or memory. */
int docker_watch_start(struct docker *d);
/* Ends that, at once. Without a start: nothing. */
void docker_watch_stop(struct docker *d);

/* ── ids.c ── */

/* Asks the engine, once, whether its containers' ids are shifted, and whether a container's root is this host's: then an
 * ordinary user's containers must run as that user, who could change nothing of what root writes. Before a container is
 * made or compared. */
int docker_learn_ids(struct docker *d, struct err *e);
/* Gives a workspace's files to the ids that its container's processes have on this host, where those are shifted
 * (userns-remap) and the uppermost directory is not theirs yet, which becomes so last. On a provisioning thread. */
void docker_shift_files(struct docker *d, const struct backend_workspace *w);
/* The same for one directory: 0 also where nothing is shifted; -errno. */
int docker_shift_directory(struct docker *d, int fd);
/* What a container's first process runs as, "UID:GID". */
void docker_container_user(struct docker *d, char out[32]);

/* ── image.c ── */

#define IMAGE_BUILT_SIZE 48

/* What the image is called now; *out is borrowed, from the keys or `built`: of a `build` it says what its directory
 * holds, which is read, so this may take a while. As pack_read(). `p` may be NULL. */
int image_name(struct docker *d, struct backend_progress *p, char built[IMAGE_BUILT_SIZE], const char **out,
               struct err *e);
/* Pulls or builds the image of that name, which image_name() gave; who wants the same at the same time waits for it.
 * -ENXIO: it is not to be had; -EACCES: a registry does not let us; -EAGAIN: its directory changes; -EIO: a step of
 * the build fails. `p` may be NULL. */
int image_fetch(struct docker *d, const char *name, struct backend_progress *p, struct err *e);

#endif

// SPDX-License-Identifier: Apache-2.0
/* What a backend is: the one contract between wsmfs and the place where workspaces live.
 *
 * A backend finds or makes a sandbox for a workspace, says where its files are, and closes it. It
 * is written as plain blocking code: every callback but `files_open` runs on a provisioning thread
 * of its own, never on a thread that serves the mount, and wsmfs holds no lock meanwhile. For one
 * workspace at most one callback runs at a time, where it does not say otherwise; for different workspaces they
 * run in parallel.
 *
 * The life of a workspace, callbacks in capitals:
 *
 *      absent ──access──> provisioning ──PROVISION──> ready ──idle, close──> closing ──CLOSE──> absent
 *                              │ failure, time-out                               │
 *                              └────> failed ──next try──> provisioning          └─DESTROY─> absent, no files
 *
 * STREAM comes while it is ready, whenever a job needs its guest; a job's commands and their output
 * go over that stream and are no business of the backend.
 *
 * Others can end a sandbox, or halt it, behind our back. A backend that is told of such things passes
 * that on by `noticed`; the core then asks LOOK what has become of the sandbox. A ready workspace whose
 * sandbox is gone has failed, with LOOK's sentence, and is provisioned again at its next use; one that
 * was halted while its jobs run is provisioned at once, which lets it go on. LOOK is asked as well when a user
 * writes `provision` for a workspace that is ready, and when STREAM has failed. Without any of this it is found out
 * at the next use, by STREAM.
 *
 * A guest over whose streams nothing comes any more, for a minute and a half, hangs, and what ran with it
 * is given up. Its workspace has failed as well, and at its next use CLOSE comes before PROVISION.
 *
 * FILES_OPEN comes before PROVISION where the files lie on this host anyway (files_wait false): an
 * access then waits for nothing. Where they do not (files_wait true) it comes after it, and callers
 * wait.
 *
 * The core never asks which backend it has. A backend in C is either a folder here, or a shared
 * object that exports `const struct backend *wsmfs_backend(void)` and is named by its path in the
 * mount's source (`wsmfs ./mine.so:ARGS /wsm`). */
#ifndef WSMFS_BACKENDS_BACKEND_H
#define WSMFS_BACKENDS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/err.h"

#define BACKEND_ABI 1
#define BACKEND_GROUPS_MAX 256
#define BACKEND_SANDBOX_SIZE 64

struct config_pair;

/* What the core tells a backend at the start; valid until finish(). */
struct backend_mount {
    const char *source;     /* what stood behind the colon */
    const char *basedir;    /* absolute; opened, checked and locked by the core */
    int         basedir_fd; /* O_PATH; the backend must not close it */
    const char *instance;   /* 16 hex digits or what the administrator said */
    const char *state_dir;  /* absolute, ours alone */
    const struct config_pair *pairs; /* the [backend NAME] and [sandbox] keys */
    int64_t grace_ms;
    bool    read_only;    /* nothing may be made or removed */
    const char *mountpoint; /* absolute */
    bool    confine;      /* false: jobs are plain processes of this host, which somebody said */

    /* To be called with `core` when something may have happened to the sandbox of the workspace `id`
     * (NULL: to any, as after the time in which nothing could be heard). It is no claim: LOOK is asked,
     * where it matters, so calls that were not needed cost little and the backend's own doings need no
     * care. `text`: a sentence for `events`, of what leaves no trace that LOOK would find; else NULL.
     * Any thread of the backend's own, never waits; from the first call of LIST until finish() returns.
     * NULL for check(). */
    void  (*noticed)(void *core, const char *id, const char *text);
    void   *core;

    const char *isolation; /* "per_agent", "per_session" or "per_user": which names count for a workspace */
};

/* Which workspace a callback is about. Strings stay valid during the call. */
struct backend_workspace {
    const char *id;       /* 1 to 40 characters of [a-z0-9-] */
    const char *user;     /* the tenant to whom it belongs */
    const char *agent;    /* "" for per_user and ids that no session derives */
    const char *session;  /* "" but for per_session */
    const char *host_dir; /* path of its files relative to basedir, e.g. "alice/coder" */
    void      **data;     /* the backend's own memory for this workspace; NULL at first */
    bool        tenant;   /* the files belong to this uid and gid: a directory that is made for them
                           * is given to it, those above it are not */
    uint32_t    uid, gid;
    uint32_t    mode;     /* of a directory that is made for the files, e.g. 0700 */
    uint32_t    groups[BACKEND_GROUPS_MAX]; /* the tenant's further groups */
    size_t      n_groups;
    char        sandbox[BACKEND_SANDBOX_SIZE]; /* "wsm-<h>-<id>": what to call it, which no other instance does */
    bool        adopt;    /* FILES_OPEN where the files lie on this host: it was live before, so they are there. None
                           * are made: -ENOENT, and nothing is taken over */
};

/* Lets a long provisioning tell what it does and learn that nobody wants it any more. Both may be
 * called from any thread during the callback. */
struct backend_progress {
    /* One step, e.g. ("pull", "layer 3 of 7", 1048576, 52428800); total 0: not known. */
    void (*step)(struct backend_progress *p, const char *step, const char *text, uint64_t done_bytes,
                 uint64_t total_bytes);
    /* True once the time limit is over or the workspace is being closed: return soon, having
     * released what was made. */
    bool (*cancelled)(struct backend_progress *p);
};

/* A sandbox that was found at the start. */
struct backend_found {
    const char *id, *user, *agent, *session;
};

/* What a path of a sandbox's own root file system stands for. */
enum backend_root_kind {
    BACKEND_ROOT_NOTHING, /* no such name */
    BACKEND_ROOT_ABOVE,   /* a directory that exists because something below it is shown */
    BACKEND_ROOT_HOST,    /* what stands at a path of this host */
    BACKEND_ROOT_LINK,    /* a symbolic link */
    BACKEND_ROOT_OWN,     /* what the running sandbox has there: below what root_open gives */
};
struct backend_root_place {
    enum backend_root_kind kind;
    char host[4096];      /* of HOST: absolute; only its last component may be a link, to be followed */
    char target[4096];    /* of LINK */
};

struct backend {
    uint32_t abi;         /* BACKEND_ABI */
    uint32_t size_bytes;  /* sizeof(struct backend) as the backend was built; members are only ever
                           * added at the end, and one that lies beyond counts as NULL */
    const char *name;     /* one word, as in the source */

    /* True: files are only there once PROVISION has succeeded, and callers wait for it. */
    bool files_wait;

    /* Checks source and keys and connects to nothing yet. *state is handed to every other callback.
     * Refuse a key that cannot be honoured, by name. -errno with a sentence. Called once, before
     * the mount, on the main thread. */
    int (*init)(const struct backend_mount *m, void **state, struct err *e);

    /* Frees *state. After the last callback. Absent: nothing to free. */
    void (*finish)(void *state);

    /* Finds or makes the sandbox, e.g. a container, so that jobs could run and (files_wait) files
     * can be opened. Idempotent: an existing one is adopted. Failures as design 4.3 says:
     * -EHOSTUNREACH, -EACCES, -ENXIO, -EINVAL, -EDQUOT, -ETIMEDOUT, else -EIO; a failed call has
     * released what it made. Absent: the workspace is ready as soon as its files are open. */
    int (*provision)(void *state, const struct backend_workspace *w, struct backend_progress *p,
                     struct err *e);

    /* An O_PATH descriptor of the directory that holds the workspace's files, made (mode 0700) when
     * missing; the caller owns it. For files_wait backends after PROVISION. Otherwise on a thread
     * that serves the mount: plain system calls on the local disk only, nothing that waits for
     * anybody; also beside CLOSE, since host files are used while a sandbox goes; beside DESTROY it
     * may be called for somebody who comes too late, and what it gives is used by nobody. */
    int (*files_open)(void *state, const struct backend_workspace *w, struct err *e);

    /* Stops and releases the sandbox, keeps the files. Also called for one that is gone (succeeds)
     * and after a failed provisioning. Absent: nothing to release. */
    int (*close)(void *state, const struct backend_workspace *w, struct err *e);

    /* Removes the files (and whatever CLOSE keeps). CLOSE has succeeded before. Must only ever act
     * on exactly this workspace. */
    int (*destroy)(void *state, const struct backend_workspace *w, struct backend_progress *p,
                   struct err *e);

    /* Calls `found` for every sandbox that this instance has made and that still exists. Called
     * once at the start on a provisioning thread. Absent: there are none. */
    int (*list)(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg,
                struct err *e);

    /* What the absolute path `inside` of the sandbox's root stands for, for `.wsm/root`. On a thread
     * that serves the mount: looks at no file. Absent: the root is not shown. */
    void (*root_look)(void *state, const char *inside, struct backend_root_place *out);

    /* Calls `each` for every name in the directory `inside` that is not simply one of the host's
     * directory there. As root_look. */
    void (*root_children)(void *state, const char *inside, void (*each)(const char *name, void *arg),
                          void *arg);

    /* A connected descriptor of a byte stream to the workspace's guest (backends/guest), which the
     * caller owns: a socket or a pair of pipes' end that can be polled. With `start` the guest is
     * started in the sandbox when it does not run. -ENXIO: there is none (any more), and without
     * `start` none is made; any other failure is one of this attempt. PROVISION has succeeded before;
     * CLOSE comes when the descriptor has been closed and all jobs were told to end. On a thread of
     * its own, may block. Absent: the backend runs no jobs. */
    int (*stream)(void *state, const struct backend_workspace *w, bool start, struct err *e);

    /* Where the workspace's files are for a job, an absolute path in the sandbox. Any thread, looks at
     * no file. Absent: /workspace. */
    void (*job_root)(void *state, const struct backend_workspace *w, char *out, size_t size);

    /* Whether a process runs in the sandbox besides the guest: what ended jobs have left, for
     * `busy=processes`. Any thread, also one that serves the mount and beside other callbacks for the
     * workspace; must not wait for anybody. False when it cannot be told. Absent: that option is refused. */
    bool (*processes)(void *state, const struct backend_workspace *w);

    /* Whether jobs could run on this machine as `m` says, for --check: really tried. `m` is not complete:
     * basedir_fd is what there is of the base directory, or -1, and what it says of the instance and the state
     * directory may be no more than a guess. Makes and keeps nothing.
     * 0 with a word on what works in `found`, or -errno with a sentence that says how to mend it, and `found`
     * empty when the mount would be refused for it, else a word on what does not work. Absent: nothing can be
     * said. */
    int (*check)(const struct backend_mount *m, char *found, size_t size, struct err *e);

    /* True: what runs in the sandbox has user ids of its own, and writes files as those. The mount then shows all
     * files as the tenant's (`owner = auto`), and what is made through it belongs on disk to whoever the directory
     * belongs to in which it is made: FILES_OPEN, or the sandbox, gives the uppermost one to the jobs' user. */
    bool foreign_ids;

    /* An O_PATH descriptor of the root directory of the workspace's sandbox, which the caller owns, for what
     * root_look calls OWN. The caller goes down from there alone, follows no link and opens regular files only.
     * -ENXIO: no sandbox runs, or its root is out of reach; another sandbox's root is never given. On a thread
     * that serves the mount, beside other callbacks for the workspace; must not wait for anybody. Absent:
     * root_look never says OWN. */
    int (*root_open)(void *state, const struct backend_workspace *w);

    /* What has become of the sandbox that PROVISION has made, beside other callbacks for the workspace: changes
     * nothing. 0: it runs. -ENXIO: it is gone, or has ended, with a sentence that says how; what ran in it is
     * lost. -EHOSTDOWN: it was halted, with a sentence, and PROVISION lets it go on. Anything else: it cannot be
     * told, which changes nothing. May block. Absent: `noticed` does nothing but tell its text. */
    int (*look)(void *state, const struct backend_workspace *w, struct err *e);
};

#endif

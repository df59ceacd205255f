// SPDX-License-Identifier: Apache-2.0
/* The manager: which names exist, which workspace a session has, what state it is in, when it is
 * closed. Knows nothing of FUSE; fs/ drives it and is told through hooks what to make the kernel
 * forget. All functions may be called from any thread unless they say otherwise, and none blocks on
 * a backend, on the registry or on another workspace: what takes time ends in a waiter. */
#ifndef WSMFS_MANAGER_MANAGER_H
#define WSMFS_MANAGER_MANAGER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backends/backend.h"
#include "fs/base/err.h"
#include "fs/base/list.h"
#include "fs/base/pool.h"
#include "fs/base/timers.h"
#include "fs/config/config.h"
#include "fs/manager/events.h"
#include "fs/manager/identity.h"

struct manager;
struct workspace;

/* ── waiting ─────────────────────────────────────────────────────────────────────────────── */

/* What a function returns that has queued the waiter instead of finishing. */
#define MANAGER_WAIT 1

/* One caller that waits. Lives with the caller until woken or cancelled. Zero it before its first
 * use. */
struct waiter {
    struct list links;  /* the manager's */
    void       *queue;  /* the manager's: where it is queued, NULL when it is not */
    struct task task;   /* the manager's: carries wake() to a thread of the pool */
    int         status; /* the manager's: what wake() will be told */
    /* Called exactly once unless cancelled, on a thread of the pool, no lock held, the waiter no
     * longer queued: it may be reused or freed. `status` 0: what was waited for is done (for
     * *_enter: call it again); negative errno: it failed. */
    void (*wake)(struct waiter *w, int status);
};

/* Takes `w` out of its queue. True: wake() will not be called. False: it has been or is about to
 * be. What was waited for goes on for others. */
bool waiter_cancel(struct manager *m, struct waiter *w);

/* ── places: the upper three levels of the tree ──────────────────────────────────────────── */

enum place_level { PLACE_ROOT, PLACE_USER, PLACE_AGENT, PLACE_SESSION };

/* A user, agent or session. Counted references; the named members never change. A place that was
 * forgotten (rmdir, `forget`) is detached: a later lookup of its name makes another one. */
struct place {
    enum place_level level;
    struct place    *parent;  /* NULL for the root; referenced */
    const char      *name;    /* "" for the root */
    struct manager  *manager;
};

/* Who asks. */
struct caller {
    uid_t uid;
    gid_t gid;
    pid_t pid;
};

struct place *manager_root(struct manager *m); /* borrowed */
void place_ref(struct place *p);
void place_unref(struct place *p);

/* Finds `name` below `parent`. -ENOENT: not a valid name, or does not exist by itself and was not
 * made, bound, configured or found on disk (that needs one fstatat in the base directory, done with
 * no lock held). On success *out is a new reference. Makes nothing known. */
int place_lookup(struct place *parent, const char *name, struct place **out);

/* mkdir: registers a name. -EINVAL: not valid. -EEXIST: exists by itself or is known. -EPERM:
 * users = listed and not configured. *out is a new reference. Survives restarts (written behind). */
int place_make(struct place *parent, const char *name, struct place **out, struct err *e);

/* rmdir: forgets a name. Sessions: the binding and the registration go, files stay. -EBUSY while
 * it has running jobs; -ENOTEMPTY for a user or agent with known names (on disk counts only for
 * sessions that are known); -ENOENT when not known and not found. A user or agent that still exists
 * on disk and holds files comes back at its next lookup. */
int place_forget(struct place *parent, const char *name, struct err *e);

/* Calls fn for each *known* child (provisioned or used, bound, made, configured, found on disk at
 * the start), in no order, with no lock held; stops when fn returns false. `ino` as place_ino. */
void place_each(struct place *p, bool (*fn)(const char *name, uint64_t ino, void *arg), void *arg);

/* The number that users see. For a session that of its workspace, so it is the same in all sessions
 * that share one and does not change when it is provisioned. Bit 63 is set, so it never equals a
 * number of a host file system. */
uint64_t place_ino(struct place *p);

/* Who may enter: uid, gid and mode (type bits not included) of a user's directory and of all agents
 * and sessions in it. The root: the mounting user, 0755. */
void place_access(struct place *p, uid_t *uid, gid_t *gid, mode_t *mode);

/* When it last changed (a child became known or was forgotten), wall clock, milliseconds. */
int64_t place_mtime_ms(struct place *p);

/* True for a caller who may enter `p`'s user directory by the bits of place_access. */
bool place_may_enter(struct place *p, const struct caller *who);

/* ── workspaces ──────────────────────────────────────────────────────────────────────────── */

enum workspace_state { WS_ABSENT, WS_PROVISIONING, WS_READY, WS_CLOSING, WS_FAILED };

const char *workspace_state_name(enum workspace_state s);
const char *workspace_id(struct workspace *ws);   /* valid as long as ws is referenced */
void workspace_ref(struct workspace *ws);
void workspace_unref(struct workspace *ws);

/* The workspace a session has now (explicit binding, else derived): no I/O, makes nothing known.
 * New reference; never NULL. */
struct workspace *session_workspace(struct place *session);

/* An access to the files of a session's workspace. Makes the session known, provisions what is
 * absent (single flight), resets the idle clock.
 *   0            *out is a new reference and entered: its files are usable until workspace_leave().
 *   MANAGER_WAIT `w` is queued; after wake(0) call again. *out untouched.
 *   -errno       design 4.3, with the sentence; within the back-off the same one at once.
 * Only backends with files_wait, the moment in which a close lets go of the files (where it makes room
 * or the mount ends: all of it) and admission (max_live: something idle is closed first) ever wait. With `w` NULL
 * nothing is queued or started where it would have to wait: -EAGAIN then (the caller comes again with a waiter
 * that outlives the call). */
int session_enter(struct place *session, struct waiter *w, struct workspace **out, struct err *e);

/* The same for a caller that already has a node of the workspace: no reference is added. `w` NULL
 * as above. */
int workspace_enter(struct workspace *ws, struct waiter *w, struct err *e);
/* The reference it was entered with must outlive the call. */
void workspace_leave(struct workspace *ws);

/* Somebody has removed the directory of its files behind the mount: it is closed, so that the next access
 * makes another one. By a caller that is inside, so never one that was opened since; no lock held. */
void workspace_files_gone(struct workspace *ws);

/* Enters when it is ready, provisions nothing and leaves the idle clock alone (attributes of the
 * session directory). 0, to be undone by workspace_peek_end(); else -EAGAIN. Never waits. */
int workspace_peek(struct workspace *ws);
void workspace_peek_end(struct workspace *ws);

/* The O_PATH descriptor of the root of the files; only between enter and leave, borrowed. */
int workspace_files_fd(struct workspace *ws);

/* Open regular files: what makes a workspace busy. Only between enter and leave; closed() any
 * time. */
void workspace_file_opened(struct workspace *ws);
void workspace_file_closed(struct workspace *ws);

/* Memory of fs/ for this workspace; guarded by a lock of fs/, never touched by the manager. */
void **workspace_fs_data(struct workspace *ws);

/* The uid, gid the workspace's files belong to as shown, and on disk unless the sandbox has ids of its own, when
 * owner = tenant applies to it; false: native. */
bool workspace_tenant(struct workspace *ws, uid_t *uid, gid_t *gid);
/* Whether the sandbox has user ids of its own, so that those on disk are not the tenant's. */
bool workspace_foreign_ids(struct workspace *ws);

/* The sandbox's own root file system, for `.wsm/root`: whether the backend shows one, and its
 * callbacks root_look and root_children. */
bool manager_has_root(struct manager *m);
void manager_root_look(struct manager *m, const char *inside, struct backend_root_place *out);
void manager_root_children(struct manager *m, const char *inside, void (*each)(const char *name, void *arg), void *arg);
/* Whether it is a sandbox's own, which comes, changes and goes; and the callback root_open for a session's
 * workspace. */
bool manager_root_moves(struct manager *m);
int session_root_open(struct place *session);

/* Resets the idle clock, provisions nothing. */
void session_used(struct place *session);
/* A lookup in a sandbox's root: resets the idle clock, and where only a running sandbox has one it is
 * an access, which waits for nothing. */
void session_root_used(struct place *session);

/* ── control files ───────────────────────────────────────────────────────────────────────── */

/* One control file with fixed content: the text now, malloc'ed, with its newline; *changed_ms is
 * when it last changed (wall clock). None provisions or counts as activity. */
typedef char *session_text_fn(struct place *session, size_t *size, int64_t *changed_ms);
session_text_fn session_text_id, session_text_state, session_text_status, session_text_error;

typedef char *manager_text_fn(struct manager *m, size_t *size, int64_t *changed_ms);
manager_text_fn manager_text_status, manager_text_workspaces, manager_text_metrics, manager_text_config;

/* Reads progress lines from *pos on like events_read. *more tells whether further lines may come
 * (it is provisioning); a listener is then told. */
size_t session_progress_read(struct place *session, uint64_t *pos, char *buf, size_t size, bool *more);
void session_progress_listen(struct place *session, struct events_listener *l);
void session_progress_unlisten(struct place *session, struct events_listener *l);

/* Runs one line of a session's `ctl` (no newline in it). 0: done; MANAGER_WAIT: `w` is queued and
 * woken with the result; -EINVAL for anything malformed, other errnos as design 3 and 4 say; the
 * sentence goes to `.wsm/error` as well as to *e. `provision nowait` never waits. */
int session_verb(struct place *session, const struct caller *who, const char *line, struct waiter *w,
                 struct err *e);

/* Whether a line is well formed, so that a write of many lines can be refused before any of them
 * runs. 0 or -EINVAL with the sentence. Pure. */
int session_verb_check(const char *line, struct err *e);
int manager_verb_check(const char *line, struct err *e);

/* Writes `.wsm/id`: binds the session to an explicit id, an empty line unbinds. Waits until the
 * binding is stored. -EINVAL, -EPERM, -EBUSY as design 2 and 3 say. */
int session_bind(struct place *session, const struct caller *who, const char *id, struct waiter *w,
                 struct err *e);

/* Lets a malformed write (too long, a NUL) show in `.wsm/error`. NULL: something has succeeded, which is to be empty. */
void session_set_error(struct place *session, const struct err *e);
/* The same as NULL for all sessions that share a workspace: it is as they need it. */
void workspace_forget_errors(struct workspace *ws);

/* One line of the manager's `ctl`: close ID, close-all, sweep, reload, detach, log-level L. */
int manager_verb(struct manager *m, const struct caller *who, const char *line, struct waiter *w,
                 struct err *e);

struct events *manager_events(struct manager *m);

/* ── jobs ────────────────────────────────────────────────────────────────────────────────── */

bool manager_runs_jobs(struct manager *m);

/* Whether a job of this session could begin now: 0, -EDQUOT (max_jobs, max_jobs_per_workspace),
 * -EROFS, -EOPNOTSUPP. */
int session_job_check(struct place *session, struct err *e);
/* A job of this session runs (or is about to) in its workspace, which is busy, and the session keeps
 * it, until session_job_end(). *out is a new reference, which session_job_end() drops. `force`: no
 * limit holds (it ran before a restart). As above, -ENOENT, and -EBUSY while the session is being bound. */
int session_job_begin(struct place *session, bool force, struct workspace **out, struct err *e);
void session_job_end(struct place *session, struct workspace *ws);

/* As session_enter(), but it is the sandbox that is wanted, where the backend makes it ahead of its
 * first job. */
int session_enter_sandbox(struct place *session, struct waiter *w, struct workspace **out, struct err *e);

/* A connected descriptor of the workspace's guest, which the caller owns; `start`: the guest is
 * started when it does not run, else -ENXIO. -errno with a sentence. Blocks: on a thread that may
 * take long. Not while the workspace is being provisioned or closed but from hooks.stop_jobs and
 * leave_jobs. */
int workspace_stream(struct workspace *ws, bool start, struct err *e);
/* Its guest hangs for good, as `e` says, and what ran there was given up: the workspace has failed, and its next
 * use makes the sandbox anew. Any thread, does not wait. */
void workspace_sandbox_hangs(struct workspace *ws, const struct err *e);
/* A line of `progress`; `text` may come from a sandbox. */
void workspace_step(struct workspace *ws, const char *step, const char *text);
/* Where the workspace's files are for a job. */
void workspace_job_root(struct workspace *ws, char *out, size_t size);
/* Memory of whoever keeps the guests, guarded by a lock of his; NULL at first. */
void **workspace_jobs_data(struct workspace *ws);

/* ── what the manager asks of fs/ ────────────────────────────────────────────────────────── */

/* All are called on a thread of the pool with no lock held, and may block on the kernel. */
struct manager_hooks {
    /* The workspace's files fd is about to be closed (nobody is inside): drop what was opened
     * beneath it. Nodes stay; they are found again by name. */
    void (*closed)(struct workspace *ws, void *arg);
    /* The place is known now: what is above it has got new mtimes. Any thread, never blocks; `p` may have been
     * forgotten again. */
    void (*known)(struct place *p, void *arg);
    /* Its files are gone for good (destroy): every node below the root is dead. */
    void (*emptied)(struct workspace *ws, void *arg);
    /* The session has another workspace than before (bind, unbind, fresh). */
    void (*rebound)(struct place *session, void *arg);
    /* A place is forgotten other than by the kernel's own rmdir (`forget`). */
    void (*forgotten)(struct place *p, void *arg);
    /* At the deadline of an idle workspace: expire the kernel's entries in its root, so that use
     * which the kernel answers from its caches shows as a request. */
    void (*expire)(struct workspace *ws, void *arg);
    /* `detach` or `reload` was written to the manager's ctl. */
    void (*detach)(void *arg);
    int  (*reload)(void *arg, struct err *e);
    /* Any thread, never blocks: nobody refers to the workspace any more. Frees what
     * workspace_fs_data() held, which is not NULL. */
    void (*gone)(void *fs_data, void *arg);
    /* The workspace is being closed, its host files may be in use again; or its sandbox was made when nobody waited
     * for it any more: its jobs are told to end, and it returns when they have and nothing uses the sandbox any more.
     * On a thread that may take long. */
    void (*stop_jobs)(struct workspace *ws, void *arg);
    /* Before stop_jobs, where nobody has asked for the end of what runs in the sandbox: when jobs of another mount
     * run in it, and none of this one, lets go of it and returns true. Else false, and nothing was done. Thread as
     * stop_jobs. */
    bool (*leave_jobs)(struct workspace *ws, void *arg);
    /* Its sandbox was lost, mostly since somebody else has ended it: what holds a stream to it finds that out now. */
    void (*sandbox_lost)(struct workspace *ws, void *arg);
};

/* ── life of the manager ─────────────────────────────────────────────────────────────────── */

struct manager_setup {
    struct config        *config;   /* borrowed, outlives the manager */
    const struct backend *backend;
    struct pool          *pool;     /* for wake-ups, hooks and verbs; borrowed */
    struct timers        *timers;   /* borrowed */
    uid_t mount_uid;                /* the mounting user */
    gid_t mount_gid;
};

/* Opens and checks the base directory (missing: made 0700; must be a directory of the daemon's uid,
 * mode 0700, writable unless `ro`), reads or makes <basedir>/.wsmfs/{instance,policy}, refuses another policy
 * with a sentence that says what to do, locks the state directory (made 0700; another live mount on
 * it: -EBUSY naming its mount point and pid; one that is closing is waited for), opens the registry,
 * initialises the backend, loads what was known. On failure *out is NULL. Main thread. */
int manager_create(const struct manager_setup *s, struct manager **out, struct err *e);

/* Before the mount answers. `arg` goes to every hook. */
void manager_set_hooks(struct manager *m, const struct manager_hooks *h, void *arg);

/* Starts sweeping, takes over what a detached or killed predecessor left live. */
void manager_start(struct manager *m);

/* Closes every workspace in parallel within shutdown_timeout (those that are not done then are
 * logged), or with `detach` (or keep_on_exit) keeps them all and records what is live. Writes the registry out. Returns the number of
 * workspaces that could not be closed. Main thread, after the mount has ended. */
int manager_shutdown(struct manager *m, bool detach);

/* Frees everything and unlocks the state directory. NULL is fine. */
void manager_destroy(struct manager *m);

/* After config_reload: ttl and users may have changed. */
void manager_config_changed(struct manager *m);

const char *manager_state_dir(struct manager *m);

/* Says a value in `status`, e.g. ("passthrough", "on"); copies both. */
void manager_note(struct manager *m, const char *key, const char *value);
/* Adds to a counter in `metrics`, e.g. "wsmfs_requests_total"; `name` must be a literal. Any thread. */
void manager_count(struct manager *m, const char *name, uint64_t n);

/* The counter of that name, made at zero when it is new, for what is counted too often to search for
 * it each time; add to it with relaxed order. It lives as long as the manager. NULL: the table is full.
 * `name` must be a literal. Any thread. */
_Atomic uint64_t *manager_counter(struct manager *m, const char *name);

#endif

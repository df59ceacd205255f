// SPDX-License-Identifier: Apache-2.0
/* What the manager's own files share. Nothing outside fs/manager/ includes this.
 *
 * Locks, outermost first; a thread that holds one takes only those below it, and never two of the
 * same row. No lock is held across I/O, a backend, a hook or a wake-up.
 *
 *   names_lock   the tree of places, bindings, the table of ids
 *   ws->lock     one workspace's state machine
 *   live_lock    the list of live workspaces and of those that wait for room
 *   wait_lock    which waiter is in which queue
 *   leaves       of the registry's queue, events, timers, pools, the log and the configuration */
#ifndef WSMFS_MANAGER_INTERNAL_H
#define WSMFS_MANAGER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/manager/basedir.h"
#include "fs/manager/manager.h"
#include "fs/manager/registry.h"
#include "fs/manager/statedir.h"
#include "fs/manager/table.h"

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)
#define WS_STATES 5

/* The longest path of a workspace below the base directory: three names. */
#define HOST_DIR_MAX (3 * (NAME_MAX_BYTES + 1))

/* ── the manager ─────────────────────────────────────────────────────────────────────────── */

#define COUNTERS_MAX 96
struct counter {
    _Atomic(const char *) name;
    _Atomic uint64_t      value;
};

/* Upper bounds of the histogram of provisioning times; one more bucket is +Inf. */
#define PROVISION_BUCKETS 8

struct note {
    struct note *next;
    char        *key, *value;
};

struct manager {
    struct config        *config;
    const struct backend *backend;
    void                 *backend_state;
    struct pool          *pool;         /* wake-ups, hooks, verbs: short things */
    struct pool          *provisioners; /* the backend's callbacks: may hang */
    struct timers        *timers;
    uid_t mount_uid;
    gid_t mount_gid;

    struct manager_hooks hooks; /* set once, before the mount answers */
    void                *hooks_arg;

    struct basedir   base;
    struct statedir  state;
    struct registry *registry;
    struct events   *events;
    int64_t          start_ms;
    int64_t          wall_offset_ms; /* what clock_ns time lacks to wall clock; fixed at the start, so
                                      * that a time once shown stays the same */
    atomic_bool      stopping; /* nothing is provisioned any more */
    bool             quiet;    /* the shutdown left nothing running; main thread */

    pthread_mutex_t names_lock; /* guards places, sessions' bindings and `ids`; outermost */
    struct node    *root;
    struct table    ids;        /* of workspaces; does not keep them */

    pthread_mutex_t live_lock;  /* guards the seven below; below a workspace's lock */
    pthread_cond_t  live_less;  /* a workspace is no longer live */
    struct list     live;       /* of workspaces; keeps them */
    size_t          n_live;
    struct list     admitting;  /* attempts that wait for room */
    atomic_bool     room_wanted; /* one of them waits for a request to end; written under live_lock */
    size_t          n_jobs;     /* attempts, closings and the like that will still use the manager */
    atomic_bool     listing;    /* the backend is asked what there is; written under live_lock */
    struct closed_id *closed;   /* what was closed meanwhile: an answer may be older */

    pthread_mutex_t wait_lock;  /* guards every queue of waiters; taken last but for leaves */

    atomic_size_t  by_state[WS_STATES];
    atomic_uint    running_jobs;
    atomic_size_t  known_sessions;
    struct counter counters[COUNTERS_MAX];
    _Atomic uint64_t provision_buckets[PROVISION_BUCKETS + 1];
    _Atomic uint64_t provision_sum_us;

    pthread_mutex_t notes_lock; /* guards notes; a leaf */
    struct note    *notes;

    struct adoption *adoption; /* live rows between load and start; main thread */
};

/* Something began that uses the manager on other threads until job_end, its last act. The end of
 * the manager waits for it. Take live_lock. */
void manager_job_begin(struct manager *m);
void manager_job_end(struct manager *m);

/* ── waiters ─────────────────────────────────────────────────────────────────────────────── */

/* Queues `w` (NULL: nobody waits) at the end of `q`. Takes wait_lock. */
void waiters_add(struct manager *m, struct list *q, struct waiter *w);
/* Moves all of `q` to `out`, to be woken with `status`; from here on they cannot be cancelled.
 * Takes wait_lock. */
void waiters_take(struct manager *m, struct list *q, int status, struct list *out);
/* Has each called on a thread of the pool. No lock may be held. */
void waiters_wake(struct manager *m, struct list *out);
/* Both in one. No lock may be held. */
void waiters_finish(struct manager *m, struct list *q, int status);

/* ── places ──────────────────────────────────────────────────────────────────────────────── */

/* A sentence that is kept: `.wsm/error`. */
struct failure {
    int     code;
    int64_t when_ms;
    char    text[];
};

struct node {
    struct place      pub; /* first */
    atomic_uint       refs;
    uint64_t          ino; /* not of sessions */
    struct table_link by_name;

    struct table children; /* guarded by names_lock, as the rest unless said */
    size_t       n_known;  /* of the children */
    atomic_bool  known;    /* written under names_lock; holds a reference */
    bool         configured;
    bool         detached; /* no longer in its parent's table */
    _Atomic int64_t changed_ms;

    /* Users: who may enter, kept from the configuration. No lock. */
    _Atomic uint64_t access_ids;
    atomic_uint      access_mode;
};

struct session {
    struct node       node; /* first */
    struct workspace *home; /* of the derived id; referenced, fixed */
    struct workspace *ws;   /* what it has now; referenced; names_lock */
    struct list       in_ws; /* ws->sessions; names_lock */
    bool              bound; /* ws is by an explicit id; names_lock */
    atomic_bool       used;  /* files of ws were reached through this session */
    int64_t           bound_ms;
    struct failure   *failure; /* of a verb or a write; names_lock */
    unsigned          running_jobs; /* names_lock */
    unsigned          rebinding;    /* bindings that are being stored; names_lock */
};

static inline struct node *node_of(struct place *p) { return (struct node *)p; }
static inline struct session *session_of(struct place *p) { return (struct session *)p; }

/* The names of a place's path; "" where it has none at that level. Borrowed from the place. */
struct place_names {
    const char *user, *agent, *session;
};
struct place_names place_names(const struct place *p);

/* Lets the tree's first node exist / go with all that is known. */
int places_init(struct manager *m);
void places_finish(struct manager *m);

/* names_lock held: the child of that name, made (unknown) when there is none; not referenced for
 * the caller. NULL: out of memory. */
struct node *node_child_locked(struct node *parent, const char *name);
/* names_lock held: makes it and what is above it known, and (`store`) remembered. */
void node_know_locked(struct node *n, bool store);
/* Tells fs/ of a node that was made known while the mount answers. No lock may be held. */
void node_tell_known(struct node *n);
/* names_lock held: false once it or something above it was forgotten. */
bool node_attached_locked(const struct node *n);
void node_ref(struct node *n);

/* Finds what lies on disk at the start and what is configured; makes it known. Main thread. */
void places_scan(struct manager *m);
void places_configured(struct manager *m);
/* Takes uid, gid and mode of a user from the configuration. */
void node_refresh_access(struct node *user);
/* True when `users` lets this user exist. */
bool user_allowed(struct manager *m, const char *user);

/* How many levels of places are directories on disk: 1 to 3. */
int layout_levels(const struct manager *m);

/* A reference to the session's place of a path, made and known as needed; NULL when out of memory.
 * For the registry's rows at the start. */
struct node *place_restore(struct manager *m, const struct place_names *names);

/* Makes the session known when it is not. -ENOENT: forgotten meanwhile. */
int session_know(struct session *s);
/* names_lock held: gives the session another workspace (takes over a reference); returns the old
 * one's reference, which the caller drops without the lock. */
struct workspace *session_switch_locked(struct session *s, struct workspace *ws, bool bound);
/* Remembers a sentence for `.wsm/error`; NULL or code 0 forgets it. Takes names_lock. */
void session_fail(struct session *s, const struct err *e);
/* Makes what came from others in a sentence harmless to a terminal, as the log does: control
 * characters and what is not UTF-8 become \xNN. */
void err_escape(struct err *e);

/* ── workspaces ──────────────────────────────────────────────────────────────────────────── */

/* In workspace.gate: the files may be used. The bits below count who is inside. */
#define GATE_OPEN 0x80000000u

struct workspace {
    struct manager   *manager;
    atomic_uint       refs;
    struct table_link by_id; /* names_lock */
    char              id[ID_MAX_BYTES + 1];
    bool              derived; /* fixed */
    char             *user, *agent, *session; /* fixed; one allocation; "" where they do not count */

    struct list sessions;  /* all that have it, known or not; names_lock */
    size_t      n_deriving; /* known sessions whose derived id this is; names_lock */
    atomic_bool kept;       /* something is recorded of it, which holds a reference; written under
                             * names_lock */
    atomic_bool has_files;  /* false: surely none (destroyed, or minted and never used) */

    /* The way in: no lock on a workspace that is ready. */
    atomic_uint      gate;
    atomic_uint      open_files;
    atomic_uint      running_jobs;
    _Atomic int64_t  last_access_ns; /* clock_ns time */
    int              files_fd;       /* written with the gate closed and nobody inside */
    _Atomic uint64_t tenant_ids;     /* uid << 32 | gid, or TENANT_NONE */

    atomic_int      state; /* enum workspace_state; written under `lock` */
    uint64_t        moves; /* changes of it so far; `lock` */
    atomic_bool     pinned;
    _Atomic int64_t ttl_s; /* -1: the configured one */
    _Atomic int64_t created_ms;
    _Atomic int64_t running_ns; /* when something was seen to run there; 0: nothing was */
    atomic_bool     row_queued; /* a REGISTRY_WORKSPACE is queued and has not begun */

    pthread_mutex_t  lock; /* guards what follows and changes of state; see the order above */
    struct list      waiters;  /* for the end of provisioning or closing (wait_lock) */
    struct attempt  *attempt;  /* provisioning now */
    struct attempt  *stale;    /* timed out; its thread is still in the backend */
    struct closing  *closing;
    struct failure  *failure;
    bool             sandboxed; /* the last attempt has made the sandbox; with `provision = jobs` an access makes none */
    bool             leftover; /* closing failed: the sandbox may still be there */
    bool             lost;     /* failed, since the sandbox was ended or halted by somebody else */
    bool             hung;     /* its guest hangs: what is left of the sandbox is released before the next attempt */
    bool             looking;  /* `look` is queued or runs … */
    bool             look_again; /* … and something has happened since; also while it is being provisioned */
    struct task      look;
    int64_t          retry_ns; /* end of the back-off */
    int64_t          backoff_ns;
    int64_t          created_ns;
    int64_t          state_ms;
    bool             probing;  /* its entries were expired; a request would keep it */
    int64_t          probed_access_ns;
    struct timer     timer;    /* of the sweeper */
    struct task      sweep;
    bool             sweep_queued;
    struct events   *progress; /* made at the first need, then kept */

    struct list live; /* live_lock */
    bool        is_live;

    void *fs_data;
    void *jobs_data;
    void *backend_data;
};

#define TENANT_NONE UINT64_MAX

/* names_lock held: the workspace of that id and a reference; made when there is none (of these
 * names). NULL: out of memory. */
struct workspace *workspace_get_locked(struct manager *m, const char *id, bool derived,
                                       const struct place_names *owner);
/* names_lock held: the workspace of that id or NULL; no reference is added. */
struct workspace *workspace_find_locked(struct manager *m, const char *id);
/* names_lock held: keeps or lets go of it as pin, ttl and explicit id demand. True: the caller
 * drops one reference without the lock. */
bool workspace_keep_locked(struct workspace *ws);
/* A session has left it, or its files are gone: when it is an explicit one that nobody has and that
 * holds nothing, it is no longer remembered whose it was. Takes names_lock. */
void workspace_release(struct workspace *ws);
/* The workspace of a session for its derived id, names_lock held; a reference. */
struct workspace *workspace_home_locked(struct manager *m, const struct place_names *names);

/* The relative path of its files, into HOST_DIR_MAX bytes. */
void workspace_host_dir(const struct workspace *ws, char *out);
/* Its sandbox's name, which no other instance uses. */
void workspace_sandbox_name(const struct workspace *ws, char out[BACKEND_SANDBOX_SIZE]);
/* Fills what backend callbacks are told; `dir` holds HOST_DIR_MAX bytes. */
void workspace_describe(struct workspace *ws, struct backend_workspace *out, char *dir);
void workspace_refresh_tenant(struct workspace *ws);

/* ws->lock held. */
void workspace_set_state_locked(struct workspace *ws, enum workspace_state s);
/* ws->lock held: keeps a sentence (NULL: forgets it). */
void workspace_fail_locked(struct workspace *ws, const struct err *e);
/* ws->lock held: it has failed; the same answer is given until the back-off is over. */
void workspace_back_off_locked(struct workspace *ws, const struct err *e);
/* Says in events, log and counters that it has failed. No lock may be held. */
void workspace_say_failed(struct workspace *ws, const struct err *e);
/* By what `busy` says: it is never evicted then. */
bool workspace_busy(struct workspace *ws);
/* Whether `busy` counts what jobs left running, and there is something. Asks the backend: no lock may be
 * held. What it found is believed by workspace_left_running() for a moment. */
bool workspace_look_running(struct workspace *ws);
bool workspace_left_running(const struct workspace *ws);
enum workspace_state workspace_state(struct workspace *ws);
/* How many are inside now. */
unsigned workspace_inside(struct workspace *ws);
/* The idle clock is reset. */
void workspace_touch(struct workspace *ws);
int64_t workspace_ttl_s(struct workspace *ws);

/* When it was last used, wall clock; 0: never. */
int64_t workspace_last_access_ms(struct workspace *ws);

/* Writes the row behind. Any lock of ours may be held. */
void workspace_store(struct workspace *ws);

/* A known session that has it (the first one), referenced, or NULL. Takes names_lock. */
struct place *workspace_first_session(struct workspace *ws);
/* Says in events and log what has happened to it. No lock may be held. */
void workspace_event(struct workspace *ws, enum log_level level, const char *event, const char *text);

/* Enters a workspace whose gate is shut. */
int workspace_enter_slow(struct workspace *ws, struct waiter *w, struct err *e);
/* Has it provisioned, whether or not the back-off is over (`force`), and its sandbox made where
 * its files alone are in use. 0: it is ready; MANAGER_WAIT: call it again when woken with 0. */
int workspace_provision(struct workspace *ws, struct waiter *w, bool force, struct err *e);
/* Whether workspace_provision() would find it made already. No lock may be held. */
bool workspace_has_sandbox(struct workspace *ws);
/* The last one has left a closed gate. */
void workspace_left_slow(struct workspace *ws);

/* ── provisioning ────────────────────────────────────────────────────────────────────────── */

struct attempt {
    struct backend_progress progress; /* first */
    struct workspace *ws; /* referenced */
    atomic_uint  refs;    /* of its thread, and of a time-out that is being handled */
    struct task  task;
    struct task  late;    /* handles the time-out */
    struct timer timer;
    atomic_bool  cancelled;
    bool         sandboxed;  /* the backend has made the sandbox, or there is nothing to make */
    bool         no_wait;    /* its caller does not wait for room; fixed before the start */
    bool         behind;     /* waits for an earlier one that is still in the backend; ws->lock */
    bool         inside;     /* past admission; ws->lock */
    bool         files_open; /* host files are in use, only the sandbox is made; ws->lock */
    int64_t      start_ns;
    struct list  admitting;  /* live_lock */
    int64_t      created_ms, last_access_ms; /* of an adopted one, else 0 */
};

/* ws->lock held, state absent or failed: the workspace is provisioning from now on. NULL: out of
 * memory. The caller then calls attempt_start without the lock. */
struct attempt *attempt_begin_locked(struct workspace *ws);
/* ws->lock held: a workspace that is ready for files alone, whose sandbox comes with the first job. */
bool workspace_lacks_sandbox_locked(const struct workspace *ws);
/* Takes over what was live before a restart: no admission, clocks kept, and no files are made: where there are
 * none nothing is taken over, and what there may be of a sandbox is released. */
void attempt_adopt(struct workspace *ws, int64_t created_ms, int64_t last_access_ms);
/* Goes through admission (again) and on; with host files all is done at the return. -errno with a
 * sentence: it was refused, and is gone. */
int attempt_start(struct attempt *a, struct err *e);
/* Sets the time limit. Any lock of ours may be held. */
void attempt_arm(struct attempt *a);
/* Refuses an attempt that waits before the backend, with the sentence, which is told to all who wait;
 * the attempt is gone. Returns the code. No lock may be held. */
int attempt_refuse(struct attempt *a, const struct err *e);
/* ws->lock held: an attempt that has just begun waits while an earlier one is still in the backend,
 * under its time limit; it then starts by itself. False: there is none. */
bool attempt_park_locked(struct attempt *a);
/* An earlier attempt has ended at last: what waited for it goes on. No lock may be held. */
void attempt_stale_ended(struct workspace *ws);
/* ws->lock held: the files are there (takes over fd), and callers may come in; its clocks begin. */
void workspace_open_locked(struct workspace *ws, int fd);
/* ws->lock held: it is ready, without a sandbox unless ws->sandboxed says otherwise. */
void workspace_ready_locked(struct workspace *ws);
/* Of a provisioning only the errnos that the contract names reach users; all others are EIO. A failure `r` without a
 * sentence gets one. */
void attempt_agreed_errno(struct err *e, int r);
/* ws->lock held: nobody waits for the attempt any more, its thread is on its own. */
void attempt_give_up_locked(struct workspace *ws);
/* ws->lock held: the workspace is being closed. Cancels what runs (NULL), or ends what has not
 * reached the backend, which is returned for the caller to attempt_unref without the lock. */
struct attempt *attempt_cancel_locked(struct workspace *ws);
/* Its time limit is over; on the timer's thread, which must not be held up: the work is done on the
 * pool. */
void attempt_fire(struct timer *t);
/* No lock may be held. */
void attempt_unref(struct attempt *a);

/* ── admission ───────────────────────────────────────────────────────────────────────────── */

/* 0: live now. MANAGER_WAIT: queued, attempt_start will be called again. -EDQUOT with a sentence.
 * -EAGAIN: it would have to wait and must not. -ESHUTDOWN: the manager ends, and nobody would close it. */
int admit(struct attempt *a, struct err *e);
/* False: the manager ends. */
bool live_add(struct workspace *ws);
/* Takes live_lock; changes under a closing that has started by its end alone. */
bool live_has(struct workspace *ws);
/* Its timer goes too, and those that wait for room try again. No lock may be held. */
void live_remove(struct workspace *ws);
/* Those that wait for room try again; where the manager is stopping they are told that there will be none. No lock may
 * be held. */
void admit_again(struct manager *m);
/* Nobody is inside some workspace any more: it may go now. Takes live_lock only where somebody waits for that. */
void admit_left(struct manager *m);
/* Takes an attempt out of the queue; false: it was not there. Takes live_lock. */
bool admit_cancel(struct attempt *a);
/* Calls fn for each live workspace with no lock held. */
void live_each(struct manager *m, void (*fn)(struct workspace *ws, void *arg), void *arg);

/* ── closing and sweeping ────────────────────────────────────────────────────────────────── */

enum close_why {
    CLOSE_ASKED, CLOSE_EVICTED, CLOSE_ROOM, CLOSE_MAX_AGE, CLOSE_SHUTDOWN, CLOSE_LOST, CLOSE_NO_FILES, CLOSE_GONE,
};

struct close_request {
    enum close_why why;
    bool    destroy;
    bool    if_idle;       /* only when ready, not busy, not pinned … */
    int64_t idle_since_ns; /* … and not used after this time */
};

/* 0: nothing to do. MANAGER_WAIT: `w` (NULL: nobody) is told. -EAGAIN: not idle. No lock may be
 * held. */
int workspace_close(struct workspace *ws, const struct close_request *req, struct waiter *w,
                    struct err *e);
/* Begins the work of a closing once nobody is inside and no attempt runs; does nothing before and
 * afterwards. Called whenever one of these may have become true; no lock may be held. */
void closing_go_on(struct workspace *ws);
/* The work of a closing is under way: whoever is inside has come in behind it. One that has not begun waits for him. */
bool closing_has_begun(struct workspace *ws);
/* ws->lock held: it is being closed, and its host files may be opened with closing_reopen(). */
bool closing_lets_in_locked(const struct workspace *ws);
/* Opens them, on a thread that serves the mount, and the closing goes on; the caller looks again. What cannot be opened
 * waits for the end of the closing: the next attempt says why, and that it has failed. No lock may
 * be held. */
void closing_reopen(struct workspace *ws);

/* ws->lock held, state ready: arms the timer for the next deadline. */
void sweeper_arm_locked(struct workspace *ws);
/* Pin, ttl or the configuration have changed: the next deadline is another one. Takes ws->lock. */
void sweeper_changed(struct workspace *ws);
/* A workspace's timer has fired. */
void sweeper_fire(struct timer *t);
/* Closes what is past its ttl now; `w` is told when all are closed. */
int sweeper_sweep(struct manager *m, struct waiter *w, struct err *e);

/* Closes all live ones that `req` allows, by the ttl (`past_ttl`) or at all; MANAGER_WAIT. */
int close_many(struct manager *m, const struct close_request *req, bool past_ttl, struct waiter *w,
               struct err *e);

/* ── binding ─────────────────────────────────────────────────────────────────────────────── */

/* Binds to a minted id. As session_bind. */
int session_fresh(struct place *session, struct waiter *w, struct err *e);
/* Stores the workspace's row and wakes `w` after COMMIT: MANAGER_WAIT or -ENOMEM. */
int workspace_store_wait(struct workspace *ws, struct waiter *w, struct err *e);

/* ── what others do to sandboxes ─────────────────────────────────────────────────────────── */

/* The backend's `noticed`: `core` is the manager. No lock of ours may be held. */
void manager_noticed(void *core, const char *id, const char *text);
/* The workspace has become ready: what was noticed meanwhile is looked at now. No lock may be held. */
void notice_ready(struct workspace *ws);
/* Its guest cannot be reached, or perhaps another one was: its sandbox is looked at. Any thread, never waits. No lock may be held. */
void notice_stream(struct workspace *ws);
/* Has the backend, which has LOOK, say what has become of the sandbox of a workspace that is ready. 0: the state is
 * what it found now, no matter what that is. -errno as of a provisioning, with a sentence: it cannot be told. Blocks
 * as LOOK does; the caller has begun an activity of the manager's. No lock may be held. */
int notice_check(struct workspace *ws, struct err *e);

/* ── jobs ────────────────────────────────────────────────────────────────────────────────── */

/* Of this session alone. Takes names_lock. */
unsigned session_running_jobs(struct session *s);

/* ── progress, start ─────────────────────────────────────────────────────────────────────── */

/* The lines of a workspace's provisioning, made when missing; NULL: out of memory. Takes ws->lock. */
struct events *workspace_progress(struct workspace *ws);
void progress_line(struct workspace *ws, const char *step, const char *text, uint64_t done_bytes,
                   uint64_t total_bytes);
/* Tells the followers that nothing more comes. */
void progress_end(struct workspace *ws);

/* Remembers the provisioning of `start_ns` to now in the histogram. */
void metrics_provisioned(struct manager *m, int64_t start_ns);

/* Loads the registry; main thread. */
int adopt_load(struct manager *m, struct err *e);
void adopt_start(struct manager *m);
/* ws->lock held: it has been closed, whatever a list of sandboxes that is under way may say of it. */
void adopt_closed_locked(struct workspace *ws);
/* ws->lock held: whether that was so. */
bool adopt_was_closed_locked(struct workspace *ws);
void adopt_free(struct manager *m);

#endif

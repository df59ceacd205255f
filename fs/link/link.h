// SPDX-License-Identifier: Apache-2.0
/* The host's side of the guest protocol: one event loop thread that owns the streams of all
 * sandboxes, and jobs on top of them. docs/guest-protocol.md says what goes over the wire.
 *
 * A *link* is one sandbox. It is connected by a callback of its owner (the backend's stream), greets
 * the guest, and from then on keeps itself connected: when the stream breaks it connects again with
 * a growing pause, sends again what had no answer, and goes on with each job's output at the byte it
 * had reached. Users of a link see no break, only a pause. They are told of the one thing that
 * cannot be mended: that another guest answers (the sandbox was made anew) or that there is none.
 *
 * A *link_job* is one command in a sandbox, named by a key of 16 bytes that never names another one.
 * A key starts its command at most once, however often it is spawned, over whatever connections and
 * by whatever daemons. The guest remembers a job until it is told to forget it.
 *
 *      link_job_spawn ──> started ──> output… ──> exited ──> link_job_forget ──> released
 *      link_job_attach ─> started ──┘                    └─> link_job_release ─> released
 *
 * Threads: every function may be called from any thread, holds no lock while it does I/O and never
 * waits, unless it says otherwise. Every callback runs on the loop thread with no lock held and must
 * not block on anything but a quick write to a local file: all sandboxes wait meanwhile. Callbacks
 * may call any function here. Callbacks of one job come in the order of the picture above.
 *
 * Nothing that a guest sends is believed: one that breaks the protocol is cut off, and after
 * LINK_BAD_MAX such breaks in a row its link is lost. */
#ifndef WSMFS_LINK_LINK_H
#define WSMFS_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/err.h"
#include "fs/base/list.h"
#include "fs/base/pool.h"

struct link_loop;
struct link;
struct link_job;

#define LINK_ID_BYTES 16
#define LINK_BAD_MAX  5   /* breaks of the protocol in a row after which a guest is given up */

/* 16 bytes, compared as a whole. */
struct link_id {
    uint8_t b[LINK_ID_BYTES];
};

/* ── the loop ────────────────────────────────────────────────────────────────────────────── */

/* Starts the loop thread (all signals blocked). `pool` runs the connect callbacks: borrowed, outlives
 * the loop. `host` names this instance of wsmfs to guests and is the same after a restart: a guest
 * that hears it again drops the old connection. NULL with *e when a thread, descriptor or memory is
 * lacking. */
struct link_loop *link_loop_create(struct pool *pool, const struct link_id *host, struct err *e);

/* Ends the thread. All links must have been closed and their `closed` callbacks be over; waits for
 * the latter. NULL is fine. Not from the loop thread. */
void link_loop_destroy(struct link_loop *loop);

/* A call to be made on the loop thread. Lives inside its owner; may be queued again once `run` has
 * been entered, not before. */
struct link_call {
    struct list links;
    void (*run)(struct link_call *c);
};
void link_loop_call(struct link_loop *loop, struct link_call *c);

/* True on the loop thread. */
bool link_loop_here(const struct link_loop *loop);

/* Fills `id` with random bytes (getrandom(2)): for keys. */
void link_id_random(struct link_id *id);

/* ── a sandbox ───────────────────────────────────────────────────────────────────────────── */

enum link_state {
    LINK_CONNECTING, /* the first connection is being made */
    LINK_UP,
    LINK_BROKEN,     /* was up; connecting again */
    LINK_LOST,       /* for good: no guest, or another one */
};

/* What a guest says of itself. */
struct link_guest {
    struct link_id instance; /* another one: another life of the sandbox */
    uint32_t pid, uid;       /* in the sandbox's own terms */
    uint64_t features;       /* PROTO_FEATURE_… that both sides have */
    char     program[64];    /* e.g. "wsm-guest 0.1.0"; control characters are replaced */
};

struct link_ops {
    /* Gives a descriptor of a byte stream to the guest (a connected socket; the link sets
     * O_NONBLOCK and owns it), or -errno with a sentence. On a thread of the pool; may block, but
     * returns soon after `link_close` (whose caller sees to that). -ENXIO: the sandbox is gone for
     * good, do not try again. Anything else is tried again after a pause. */
    int (*connect)(void *arg, struct err *e);
    /* The stream works (again). Absent: nobody cares. */
    void (*up)(struct link *l, void *arg, const struct link_guest *g);
    /* It broke; being mended. Also after each attempt that failed: `e` says why; -ETIME: there was a stream, and
     * nothing came over it in time. Absent as above. */
    void (*down)(struct link *l, void *arg, const struct err *e);
    /* The sandbox with all its jobs is gone: connect said so, or another guest answered, or the
     * guest speaks another protocol (-EPROTO), or hangs (-ETIMEDOUT). Each job has had its `exited` (LINK_END_LOST) just
     * before. Open a new link if another guest will do. Absent as above. */
    void (*lost)(struct link *l, void *arg, const struct err *e);
    /* The last callback, after link_close(): the owner may free `arg`. Never absent. */
    void (*closed)(void *arg);
};

struct link_setup {
    const struct link_ops *ops; /* borrowed for the link's life */
    void *arg;
    /* The guest that the caller wants to find again; NULL: any. Another one: lost at once. */
    const struct link_id *instance;
};

/* Makes a link and begins to connect. NULL: out of memory. */
struct link *link_open(struct link_loop *loop, const struct link_setup *s);

/* Lets go of a sandbox: its jobs run on, and their output waits in the guest. Open requests are told
 * -ESHUTDOWN; the link's jobs get no callback any more but `released`, and must each be released (in any
 * order with this call). When that is done `closed` is called. The link must not be used again. */
void link_close(struct link *l);

/* LINK_UP with *g filled (when it is not NULL and the link was ever up). */
enum link_state link_state(struct link *l, struct link_guest *g);

/* Asks the guest for a sign of life; `done` gets 0 and the time it took, or -errno when the link is
 * lost or closed. Waits as long as the link is broken. -ENOMEM: `done` will not be called. The link
 * does this by itself too when nothing has been heard for LINK_QUIET_S while a job runs or a request has
 * no answer; without an answer for as long again it connects anew. A link that nobody waits for is
 * silent, so that idle sandboxes cost nothing; the next request asks for a sign of life with it. */
int link_ping(struct link *l, void (*done)(void *arg, int status, int64_t took_ns), void *arg);
#define LINK_QUIET_S 15
/* After so many connections in a row over which nothing came in time, a minute and a half or more, the guest
 * hangs for good and its link is lost. */
#define LINK_SILENT_MAX 3

/* Something may have happened to the sandbox: a broken link does not wait any longer before it connects again. */
void link_hurry(struct link *l);

/* Asks the guest to end: TERM to every job, KILL after `grace_ms`, then it exits, which ends the
 * sandbox where it is the first process. Exits of jobs are still delivered. `done` is called when it
 * has agreed, or with -errno as above. */
int link_stop(struct link *l, uint32_t grace_ms, void (*done)(void *arg, int status, const char *text),
              void *arg);

/* ── jobs ────────────────────────────────────────────────────────────────────────────────── */

enum link_stream { LINK_STDOUT, LINK_STDERR, LINK_STREAMS };

enum link_end {
    LINK_END_EXITED,   /* code: the exit code */
    LINK_END_SIGNALED, /* code: the signal */
    LINK_END_FAILED,   /* code: negative errno; it never ran, and text says why */
    LINK_END_LOST,     /* code: negative errno; the sandbox went away, and text says why */
};

struct link_started {
    bool     existed;       /* the key was known: nothing was started now */
    uint32_t pid;           /* in the sandbox; 0: could not be started, `exited` follows */
    int64_t  start_ms;      /* wall clock of the sandbox */
    /* Where output goes on: as asked for, or later when the guest had been told before that the bytes
     * between were stored (they are gone). 0 for new ones. */
    uint64_t first[LINK_STREAMS];
    uint64_t stdin_offset;  /* where link_job_stdin() goes on */
};

struct link_exit {
    enum link_end kind;
    int           code;
    bool          timed_out;            /* its timeout ended it */
    bool          unasked;              /* of LOST: no guest was ever asked, so it may be asked of another one */
    uint64_t      total[LINK_STREAMS];  /* bytes written; all have been given to `output` (LOST: those
                                         * that were) */
    int64_t       start_ms, end_ms;     /* wall clock of the sandbox; 0: not known */
    const char   *text;                 /* a sentence, or ""; valid during the callback */
};

struct link_job_ops {
    /* The guest has the job. Once for each link_job. Not called when it never gets there (refused or
     * lost: `exited` alone). */
    void (*started)(struct link_job *j, void *arg, const struct link_started *s);
    /* The next bytes of a stream; `offset` is where the last call for it ended. `log_offset` is their
     * place in the log of both streams together, in the order in which the guest read them; it grows
     * with every call of one stream, and pieces never overlap within one, but a stream whose output
     * is held back leaves a gap that is filled later. (A hostile guest may give pieces of the two
     * streams the same place: mind it when writing by it.) `data` is valid during the call. */
    void (*output)(struct link_job *j, void *arg, enum link_stream stream, uint64_t offset,
                   uint64_t log_offset, const void *data, size_t len);
    /* link_job_stdin() would take more than it last did. */
    void (*stdin_room)(struct link_job *j, void *arg);
    /* It has ended; all output has been delivered. Once. */
    void (*exited)(struct link_job *j, void *arg, const struct link_exit *x);
    /* Another host has attached the job: no further callback but `released` (release it). */
    void (*taken)(struct link_job *j, void *arg);
    /* The last callback: the owner may free `arg`; `j` is gone. */
    void (*released)(void *arg);
};

struct link_spawn {
    struct link_id key;
    const char *label;             /* up to 1200 bytes that link_list() gives back; NULL: none */
    const char *script;            /* for /bin/sh -c, up to 1 MiB; or */
    const char *const *argv;       /* NULL-terminated, looked up in the job's PATH, no shell */
    const char *const *env;        /* K=V, NULL-terminated; NULL: empty */
    bool        env_guest;         /* over the guest's own environment (that of the image) */
    const char *cwd;               /* absolute, in the sandbox; NULL: the guest's own directory */
    const char *user;              /* "name", "1000", "name:group", "1000:1000", looked up inside */
    bool        ids;               /* use the next three instead of `user` */
    uint32_t    uid, gid;
    const uint32_t *groups;
    size_t      n_groups;          /* at most 256 */
    bool        no_new_privs, drop_caps;
    bool        stdin_pipe;        /* link_job_stdin() will be called; else end of file at once */
    bool        tty;               /* everything the terminal shows is stdout */
    uint16_t    cols, rows;
    uint64_t    timeout_ms;        /* 0: none */
    uint32_t    grace_ms;          /* from TERM to KILL at the timeout */
    /* Where output goes on when the guest knows the key already (0 for a job that nobody has read from);
     * as in link_job_attach(). */
    uint64_t    from[LINK_STREAMS];
    /* When not NULL: only on this guest; on another one the job is lost instead. That is how a
     * daemon that may have spawned it in an earlier life avoids a second start in a new sandbox. */
    const struct link_id *instance;
};

/* Starts a command, or takes over the job that has this key. Copies *s. The job may be used at once, also for stdin. On success *out is set
 * before any callback runs. -EINVAL with a sentence (a limit, both or neither of script and argv, a
 * newline… nothing is checked that only the sandbox knows), -ENOMEM. */
int link_job_spawn(struct link *l, const struct link_spawn *s, const struct link_job_ops *ops, void *arg,
                   struct link_job **out, struct err *e);

/* Takes over a job that the guest has: output is delivered from these offsets on (what lies before is
 * acknowledged thereby). A job that the guest does not know: `exited`, LINK_END_LOST, -ENOENT.
 * -ENOMEM. */
int link_job_attach(struct link *l, const struct link_id *key, const uint64_t from[LINK_STREAMS],
                    const struct link_job_ops *ops, void *arg, struct link_job **out);

/* All bytes of `stream` before `offset` are stored here: the guest may drop them and the job may write
 * on. At most 1 MiB a stream is delivered without it, then the job waits at its pipe (and only that
 * stream of that job). Going back does nothing. */
void link_job_ack(struct link_job *j, enum link_stream stream, uint64_t offset);

/* Hands over standard input from `offset` (where the last call's result ended). Takes what there is
 * room for and returns that number of bytes, 0 to `len`; when less than `len`, `stdin_room` says when
 * to go on. `end` counts only when all was taken: nothing may follow. -EPIPE: nobody reads it any more
 * (the job closed it or ended): throw the rest away. -EINVAL: another offset, or after the end, or the
 * job has no stdin_pipe. For an attached job -EAGAIN until `started`. */
ssize_t link_job_stdin(struct link_job *j, uint64_t offset, const void *data, size_t len, bool end);

typedef void link_done_fn(void *arg, int status, const char *text);

/* Each asks the guest for one thing, which it does exactly once, and tells the outcome to `done`
 * (NULL: nobody asks): 0, or -errno with a sentence: -ESRCH it has ended, -ENOENT the guest does not
 * know it, -EINVAL, -ENOTTY no terminal, -ECANCELED the job was released before the answer. Returns
 * -ENOMEM when it could not be asked. `done` is always called before `released`. */
enum link_scope { LINK_SCOPE_MAIN, LINK_SCOPE_GROUP, LINK_SCOPE_TREE };
int link_job_signal(struct link_job *j, int signo, enum link_scope scope, link_done_fn *done, void *arg);
/* TERM to its whole process tree, KILL to what is left after `grace_ms`; `exited` comes when the last
 * of it is gone. */
int link_job_kill(struct link_job *j, uint32_t grace_ms, link_done_fn *done, void *arg);
int link_job_resize(struct link_job *j, uint16_t cols, uint16_t rows, link_done_fn *done, void *arg);

/* Lets the guest forget an ended job, and releases it here. Call it after `exited`: of a job that has
 * not ended nothing is forgotten, it is only released. The guest is told even if the link is broken now;
 * `released` does not wait for that. The job must not be used again. */
void link_job_forget(struct link_job *j);

/* Lets go of a job here and tells the guest nothing: it runs on and its output waits, to be attached
 * again (a daemon that ends). `released` follows; when this is called on the loop thread no other
 * callback but the `done` of open requests comes before it. The job must not be used again, but by a
 * callback that is under way just now, which may use it to its end. */
void link_job_release(struct link_job *j);

/* One job that the guest has. */
struct link_listed {
    struct link_id key;
    bool        ended;
    bool        mine;                  /* this host had it last */
    uint32_t    pid;
    int64_t     start_ms;
    uint64_t    acked[LINK_STREAMS];   /* where an attach may begin */
    uint64_t    total[LINK_STREAMS];   /* read from it so far */
    const char *label;                 /* hostile text; valid during the callback */
};

/* Asks for all jobs, also those of other hosts. `each` for every one, then `done` with 0 or -errno.
 * -ENOMEM: neither is called. */
int link_list(struct link *l, void (*each)(void *arg, const struct link_listed *j), link_done_fn *done,
              void *arg);

#endif

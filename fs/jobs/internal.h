// SPDX-License-Identifier: Apache-2.0
/* What the files of fs/jobs share.
 *
 * Locks, outermost first; a thread that holds one takes only those below it. None is held across
 * I/O, and no callback of a listener, a link or the manager comes with one held.
 *
 *   jobs.lock    sessions and their jobs, who is stalled, which guest a workspace has
 *   guest.lock   one guest: its link's state, and which jobs it has
 *   job.io_lock  the storing of one job's input, and of its record
 *   job.store_lock  the storing of one job's output; beside io_lock
 *   job.lock     one job
 *   leaves       of the manager's names, links, timers, pools */
#ifndef WSMFS_JOBS_INTERNAL_H
#define WSMFS_JOBS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/jobs/jobs.h"
#include "fs/jobs/record.h"
#include "fs/jobs/settings.h"
#include "fs/jobs/spool.h"
#include "fs/link/link.h"
#include "fs/manager/identity.h"
#include "fs/manager/table.h"

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)
#define KEY_HEX   (2 * LINK_ID_BYTES + 1)

/* Jobs of one session that were made and not started; a directory costs memory alone. */
#define NEW_JOBS_MAX 10000
#define JOB_COST_BYTES 2048 /* of memory, of one that has not ended, about */

#define SPARES_MAX       64
#define SPARE_NAME_BYTES (KEY_HEX + 8)

/* Records of removed jobs, emptied, for the next ones: where many files come and go a new one may cost more than
 * all else that starting a job does. An empty record is none: the next life removes it. */
struct spares {
    pthread_mutex_t lock; /* guards what follows; a leaf */
    unsigned n;
    char     names[SPARES_MAX][SPARE_NAME_BYTES];
};

/* What a user's jobs take. Lives as long as the store. */
struct share {
    struct table_link by_user;
    char             *user;
    _Atomic uint64_t  used_bytes;   /* on the disk */
    _Atomic uint64_t  memory_bytes; /* of ours */
};

struct job_session {
    struct table_link by_path;
    char       *path;    /* user/agent/session */
    struct table names;
    struct list  jobs;   /* in the order in which they were made */
    size_t       n_new;
    int64_t      changed_ms;
};

struct jobs {
    struct config  *config;
    struct manager *manager;
    struct pool    *pool;
    struct timers  *timers;
    void          (*sync)(void *arg);
    void           *arg;
    const char     *setup;     /* the command of [sandbox]; NULL: none. Borrowed from the configuration */

    int   dir_fd;              /* <state_dir>/jobs */
    struct spares spares;
    struct pool *connectors;   /* where streams are made: may hang */
    struct link_loop *loop;
    unsigned    spools_max;     /* how many running jobs may keep the files of their output open */
    atomic_uint n_spools;       /* do */
    _Atomic uint64_t used_bytes; /* of all shares */

    pthread_mutex_t lock;      /* guards what follows; see the order above */
    pthread_cond_t  fewer;     /* n_tasks or n_syncs has become less */
    struct table    sessions, users;
    struct list     guests;
    struct list     stalled;   /* jobs that wait for room, by job.stalled */
    struct list     ended;     /* jobs by the time of their end, by job.ended */
    size_t          n_syncs;   /* sync() running */
    size_t          n_tasks;   /* of ours that will still use the store */
    unsigned        save_round;
    bool            unmounted, ending;

    struct timer keep_timer;   /* for the first of `ended` */
    struct timer room_timer;   /* for the first of `stalled` that its timeout ends */
    struct task  keep_task, room_task;
    bool         keep_queued, room_queued;
};

/* What `setup` of [sandbox] has done in it. */
enum guest_setup {
    SETUP_DONE,   /* or there is none */
    SETUP_WANTED, /* has not run, or has failed: the next job has it run first */
    SETUP_RUNS,
};

struct guest {
    atomic_uint  refs;       /* the workspace's, the link's, each job's, each caller's */
    struct jobs *jobs;
    struct workspace *ws;    /* referenced */
    struct list  all;        /* jobs.guests; jobs.lock */

    pthread_mutex_t lock;    /* guards what follows */
    pthread_cond_t  changed;
    struct link *link;       /* NULL once closed */
    bool  may_start;         /* a guest is started when there is none */
    bool  up, was_up;
    bool  stopping;          /* the workspace is being closed: no job is spawned any more */
    bool  leaving;           /* somebody else has it end, so it refuses jobs: they wait for the next one */
    bool  gone;              /* lost, failed or ended: no job comes in any more */
    bool  closed;            /* the link's last callback is over */
    bool  listing;           /* it has been asked which jobs it has … */
    bool  others;            /* … and some of another host run */
    struct link_id instance; /* once it was up */
    enum guest_setup setup;
    struct link_id   setup_key; /* of the job that sets it up, while it does */
    struct list waiting;     /* jobs that are to be spawned, by job.in_guest */
    struct list running;     /* jobs that were, by job.in_guest */
};

struct job_stdin {
    int      fd;             /* -1: not opened */
    atomic_bool has_file;    /* there may be one */
    uint64_t written, sent;  /* handed in; taken by the link */
    uint64_t punched;
    _Atomic uint64_t kept_bytes; /* of the file, as counted in the share */
    unsigned opens;
    bool     opened;         /* ever */
    bool     ended;          /* nothing more will be written */
    bool     end_sent;
    bool     broken;         /* nobody reads it */
    bool     over;           /* the job's end is written down: its file is not needed any more */
    bool     pumping, again;
};

struct job {
    atomic_uint  refs;
    struct jobs *jobs;
    struct place *place;         /* referenced; NULL: of an earlier life, ended */
    struct share *share;
    struct link_id key;
    char         hex[KEY_HEX];   /* of the key: what its files' names begin with */
    uint64_t     number;
    struct table_link by_name;   /* these four: jobs.lock */
    struct list  in_session, ended, stalled;
    struct job_session *session; /* NULL: nobody finds it any more */
    atomic_bool  is_stalled;     /* written under jobs.lock */
    bool         waits_no_more;  /* for room; jobs.lock */
    unsigned     save_round;     /* the last in which it was tried to save what is unsaved; jobs.lock */
    struct spool spool;
    atomic_bool  has_files;

    /* Held while the job's input is stored or its record written, which is I/O: who does the same to
     * this job waits, and nobody else. Before job.lock. */
    pthread_mutex_t io_lock;
    uint64_t     record_bytes;   /* of its record, where it is large: counted in the share; io_lock */
    bool         unrecorded;     /* its record was removed, whose file may be another's: io_lock */
    /* Held while the job's output is stored, which is I/O: who stores goes on where the last one ended. Before
     * job.lock; guards what follows. */
    pthread_mutex_t store_lock;
    struct list  unsaved;        /* output for which there was no room, in its order */
    bool         lost;           /* some was, and it was said */
    bool         sealed;         /* its end is being told: nothing is stored any more, whoever still brings some */
    bool         end_held;       /* the job's end, which comes after it */
    struct link_exit held_end;   /* its text is malloc'ed */
    _Atomic size_t unsaved_bytes; /* read without it */
    pthread_mutex_t lock;        /* guards what follows */
    enum job_state state;
    /* The texts do not change once it has been started; who ends the job alone writes the rest. */
    struct record rec;
    enum job_text last_written;
    unsigned     writers;
    unsigned     hidden;         /* bits of texts whose names were removed */
    size_t       file_bytes;
    size_t       held_bytes;     /* of the share's memory */
    unsigned     text_users;     /* who reads the texts without the lock */
    bool         in_record;      /* the texts are */
    uint64_t     last_file;
    unsigned     spool_users;
    bool         spool_stays;    /* one of them is the running job itself */
    bool         dropping;
    struct list  listeners, readers, files;
    struct job_stdin in;

    struct workspace *ws;        /* counted as running there; referenced */
    struct waiter waiter;
    struct task  again_task;
    struct guest *guest;         /* referenced */
    struct list  in_guest;       /* guest.lock */
    struct link_job *link_job;   /* all use is under job.lock */
    atomic_bool  unasked;        /* its guest was lost before it was asked, or has refused it: another one is */
    bool         waited_out;     /* a guest that it waited for hung: on the thread of links alone */
    unsigned     unasked_times;  /* on the thread of links alone */
    uint16_t     early_cols, early_rows; /* what its terminal was resized to before; 0: it was not */
    bool         taken_over;     /* an earlier life may have asked a guest for it; fixed before it is
                                  * handed on */
    bool         accepted;       /* its start is written down; before that nobody else ends it, since the start may be
                                  * refused … */
    bool         kill_asked;     /* … and a kill is seen to when it is accepted */
    bool         unnamed;        /* it was removed before it was started, and is not started any more */
    bool         ending;         /* its end is being made known */
    atomic_bool  sets_up;        /* it is the `setup` of its sandbox */
    bool         recorded;       /* that is over: nothing more is written down */
    bool         removed;        /* before it was: who makes it known removes the files */
    /* So many are kept whatever the limits say: what an ended process may have left in its pipe must be stored before
     * its end is told. UINT64_MAX: all there is. */
    _Atomic uint64_t allowed_bytes;
    _Atomic int64_t  ends_ns;    /* when its timeout has ended it for sure; 0: none */
    struct task  end_task, news_task;
    atomic_bool  news_queued;
};

/* ── store.c ── */

/* One task more or less that uses the store on another thread. */
void jobs_task_begin(struct jobs *js);
void jobs_task_end(struct jobs *js);
/* Has the kernel told what has changed behind the mount. On a thread of the pool. */
void jobs_sync(struct jobs *js);
/* An ended job is removed after job_keep. */
void jobs_keep(struct job *j);
/* Takes a job out of its session; jobs.lock held. True: the caller drops the session's reference
 * without the lock. */
bool jobs_detach_locked(struct job *j);
/* The session of that path, made when missing; jobs.lock held. */
struct job_session *jobs_session_locked(struct jobs *js, const char *path, bool make);
int  jobs_add_locked(struct job_session *s, struct job *j);
/* jobs.lock held: no reference is added; NULL. `s` may be NULL. */
struct job *jobs_named_locked(struct job_session *s, const char *name);
char *jobs_session_path(struct place *session);
struct share *jobs_share_locked(struct jobs *js, const char *user);
/* Removes all files of a job of which nothing else is known. */
void jobs_remove_files(struct jobs *js, const char *hex);

/* Removes the files of one that nobody finds any more, now or when its end has been made known. */
void job_drop_files(struct job *j);
/* Writes its end down, unless it was removed before or its start has not been. */
void job_record_end(struct job *j);

/* ── spares.c ── */
void spares_init(struct spares *s);
void spares_finish(struct spares *s);
/* Puts an empty file at this name, where none is; without one nothing happens. */
void spares_take(struct spares *s, int dir_fd, const char *name);
/* Empties the file of this name, which nobody has open or will use again, or removes it. 0 or -errno. */
int  spares_give(struct spares *s, int dir_fd, const char *name);

/* ── load.c ── */
int jobs_load(struct jobs *js, struct err *e);

/* ── job.c ── */
struct job *job_new(struct jobs *js);
/* Sets what follows from its key. It has no files yet. */
void job_set_key(struct job *j, const struct link_id *key);
/* Its record counts as what it is on the disk, where its texts are long; others are small. No other thread has it, or
 * job.io_lock held. */
bool job_record_is_large(const struct job *j);
void job_record_count(struct job *j);
int  job_write_record(struct job *j, enum record_part part);
/* Something has changed for those who wait for it. No lock of ours held by the caller matters. */
void job_news(struct job *j);
/* A stream has more. One who waits for it is told at once, several are on a thread of the pool. No lock held. */
void job_output_news(struct job *j, int stream);
/* Before it is stored: one who waits for it may have it at once. */
void job_output_offer(struct job *j, int stream, const void *data, size_t size);
/* Tells them now; on a thread of the pool. */
void job_tell(struct job *j);
/* Its end: `x` is how. Any thread; the rest is done on the pool. */
void job_end(struct job *j, const struct link_exit *x);
/* The same for one that never ran, or of which nothing is known. False: it had ended before. */
bool job_fail(struct job *j, enum link_end kind, const struct err *e);
/* It was killed before any guest was asked for it. */
void job_end_early(struct job *j);
/* As unuse; a job that runs will soon want them again, and keeps them open when not too many do. Until leave. */
void job_spool_stay(struct job *j);
void job_spool_leave(struct job *j);

/* ── memory.c ── */
/* job.lock held: it holds so many bytes more and less. False: its user's jobs have too many. */
bool job_hold_locked(struct job *j, size_t more, size_t less);
/* While its texts are read without its lock. */
void job_texts_use(struct job *j);
void job_texts_unuse(struct job *j);
/* Long texts of a job that has ended are left to its record, once nobody uses them. No lock held. */
void job_texts_settle(struct job *j);
/* One that was, malloc'ed; NULL: the job has been removed, or it cannot be read. No lock held. */
char *job_text_stored(struct job *j, enum job_text which, size_t size);

/* ── files.c ── */
void job_files_free(struct job *j);

/* ── texts.c ── */
/* The whole text anew; as job_text_write(). */
int job_text_replace(struct job *j, enum job_text which, const void *data, size_t size, struct err *e);
/* Whether a text means anything, as a whole. */
int job_text_meaning(struct job *j, enum job_text which, struct err *e);
/* The session's path on the mount, malloc'ed. */
char *job_own_path(const struct job *j);

/* ── start.c ── */
/* Starts a NEW job, which has its texts, in this guest and before any other; whatever the limits say. */
int  job_start_in(struct job *j, struct guest *g, struct err *e);
/* Enters the job's workspace and hands it to its guest, now or later. */
void job_enter(struct job *j);
/* As job_enter() from a thread of the pool, later. */
void job_enter_later(struct job *j);
/* The guest that it waited for hangs; true: so did one before, and it is to end. On the thread of links. */
bool job_has_waited_out(struct job *j);
/* Its guest was lost before it was asked, or has `refused` it since it is to end: another one is asked. False: it is to
 * end. On the thread of links. */
bool job_ask_another(struct job *j, bool refused);
/* The guest is up: it is asked. Takes over the reference of guest.waiting, which becomes that of
 * guest.running. */
void job_spawn_on(struct job *j, struct guest *g);

/* ── guest.c ── */
/* The guest of a workspace, made when there is none (any more); a reference, or NULL: out of memory.
 * `may_start`: it is started when it does not run. */
struct guest *guest_get(struct jobs *js, struct workspace *ws, bool may_start);
void guest_ref(struct guest *g);
void guest_unref(struct guest *g);
/* Hands it a job (and a reference to it) to be spawned. False: it takes none any more. */
bool guest_add(struct guest *g, struct job *j);
/* It ends, and has said so by refusing a job: what is handed to it from now on waits for the next one. */
void guest_leaves(struct guest *g);
/* The job has ended, or was never spawned. */
void guest_remove(struct guest *g, struct job *j);
/* Whether it is up now, and which it is. */
bool guest_up(struct guest *g, struct link_id *instance);
/* Lets go of all guests. Waits. */
void guests_release(struct jobs *js);
/* The guest that a workspace has, referenced; NULL. */
struct guest *guest_peek(struct jobs *js, struct workspace *ws);
/* Spawns those that wait and may run now. */
void guest_run_waiting(struct guest *g);
/* Those that wait fail with `e`; `again`: are asked of another guest. */
void guest_fail_waiting(struct guest *g, const struct err *e, bool again);

/* ── setup.c ── */
/* Reads `setup` of [sandbox]; refuses it where there are no jobs. */
int  setup_init(struct jobs *js, struct err *e);
/* Before the guest is up for us: what an earlier life has done in it. Quick reads of local files. */
void setup_look(struct guest *g, const struct link_id *instance);
/* guest.lock held: may this job run there now? */
bool setup_lets_in_locked(const struct guest *g, const struct job *j);
/* guest.lock held: true for one caller, who then calls setup_begin() without it. */
bool setup_claim_locked(struct guest *g);
void setup_begin(struct guest *g);
/* The job `j`, which sets up a sandbox, has ended. On the pool. */
void setup_ended(struct job *j);
/* The guest is lost. True, with a sentence: what sets it up did it, or may have. */
bool setup_lost(struct guest *g, struct err *e);
/* The workspace was closed. */
void setup_forget(struct guest *g);

/* ── output.c ── */
extern const struct link_job_ops job_link_ops;
/* The job is being ended, or may be by this signal: what it has written by then, so many bytes more than are kept, is
 * stored whatever the limits say. What was allowed before stays so. */
void job_allow(struct job *j, uint64_t bytes);
#define ALLOW_ALL     UINT64_MAX
#define ALLOW_A_PIPE  (1u << 20)
/* Jobs that wait for room look again. */
void jobs_room(struct jobs *js);
void jobs_room_task(struct task *t);
/* Whether the job's user may store more: as much as is left for everybody, so that one alone can never have more than
 * half of it, and whoever comes next always finds some. */
bool job_share_has_room(const struct job *j);
int  job_spool_full(struct err *e); /* -EDQUOT with a sentence */
/* These bytes of it, which are on the disk, count from now on, or no longer; of the latter those that wait for room are
 * told, but for uncharge. */
void job_charge(struct job *j, uint64_t bytes);
void job_uncharge(struct job *j, uint64_t bytes);
void job_give_back(struct job *j, uint64_t bytes);
/* It has been removed or has ended: it waits for nothing. */
void job_unstall(struct job *j);

/* Nothing may keep its end from being told: neither a limit nor a full disk. */
bool job_must_not_wait(const struct job *j);

/* ── unsaved.c ── */
/* Stores a piece of output, or keeps it until that can be done. On the thread of the link. */
void job_store(struct job *j, int stream, const void *data, size_t size);
/* Tries again with what is kept, and ends the job when its end waited for that. No lock held. */
void job_save(struct job *j);
/* True: there is unsaved output, and job_save() will tell the end. */
bool job_hold_end(struct job *j, const struct link_exit *x);
/* The job ends: what cannot be stored now is lost, and what comes later is not stored. No lock held. */
void job_save_last(struct job *j);
/* With the job's memory. */
void job_unsaved_free(struct job *j);

/* ── stdin.c ── */
void job_stdin_pump(struct job *j);
/* The guest has the input up to here. */
void job_stdin_started(struct job *j, uint64_t offset);
void job_stdin_close(struct job *j);
/* job.lock held: another guest is asked, and is handed all of the input. The first one's link is not used any more. */
void job_stdin_again_locked(struct job *j);
/* The job has ended, which is written down: its file goes. No lock held. */
void job_stdin_over(struct job *j);
/* Removes its file. */
void job_stdin_remove(struct job *j);
/* With the job's memory. */
void job_stdin_finish(struct job *j);
/* What an earlier life was handed in. */
void job_stdin_load(struct job *j);
void stdin_room_callback(struct link_job *lj, void *arg);

#endif

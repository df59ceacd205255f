// SPDX-License-Identifier: Apache-2.0
/* Jobs: commands that run in a workspace's sandbox, each with a record and its output in files of its
 * own in <state_dir>/jobs. Knows nothing of FUSE: fs/tree shows jobs as files.
 *
 *     NEW ──start──> STARTING ──> RUNNING ──> ENDED ──job_keep, rmdir──> gone
 *      └──rmdir──> gone     └──────────────────┘
 *
 * A NEW job is in memory alone. A start that was accepted has been written down before anybody is
 * asked to make it, together with which guest is asked, so it is made exactly once whenever this
 * daemon dies. An ended job is written down, then the guest forgets it.
 *
 * Threads: every function may be called from any thread, never waits for a backend or a guest unless
 * it says so, and holds no lock while it does I/O. */
#ifndef WSMFS_JOBS_JOBS_H
#define WSMFS_JOBS_JOBS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/base/err.h"
#include "fs/base/list.h"
#include "fs/base/pool.h"
#include "fs/base/timers.h"
#include "fs/manager/manager.h"

struct jobs;
struct job;

/* ── the store ───────────────────────────────────────────────────────────────────────────── */

struct jobs_setup {
    struct config  *config;  /* all borrowed, and outlive the store */
    struct manager *manager;
    struct pool    *pool;
    struct timers  *timers;
    /* Makes all changes behind the mount known to the kernel; on a thread of the pool, may block.
     * `exit` can be read after it has returned. */
    void          (*sync)(void *arg);
    void           *arg;
};

/* Makes the store and loads what an earlier life has left; starts nothing. Main thread. */
int jobs_create(const struct jobs_setup *s, struct jobs **out, struct err *e);
/* Takes over the jobs that an earlier life has left running, and makes starts that it had accepted.
 * Once the mount answers. */
void jobs_take_over(struct jobs *js);
/* The mount has ended: sync() is not running any more and will not be called. Waits for it. */
void jobs_mount_ended(struct jobs *js);
/* Lets go of every sandbox (what runs in them runs on) and frees all. Waits. NULL is fine. */
void jobs_destroy(struct jobs *js);

/* The workspace is being closed: its jobs get TERM, KILL after `grace`, then its guest ends. Waits
 * until all of them have ended: on a thread that may take long. */
void jobs_stop_workspace(struct jobs *js, struct workspace *ws);
/* The same, where the sandbox is another mount's as well: when jobs of that one run there, and none of this one,
 * lets go of the sandbox and returns true; else false, and nothing was done. Waits for the guest to tell. */
bool jobs_leave_workspace(struct jobs *js, struct workspace *ws);
/* Somebody has ended its sandbox: the guest is asked for at once, and when it is gone its jobs end as lost. */
void jobs_sandbox_lost(struct jobs *js, struct workspace *ws);
/* A session's name was forgotten: so are its jobs, and not those of a session that has got the name since. */
void jobs_forget_session(struct jobs *js, struct place *session);

/* ── jobs of a session ───────────────────────────────────────────────────────────────────── */

/* A new reference; -ENOENT. */
int jobs_find(struct jobs *js, struct place *session, const char *name, struct job **out);
/* Makes one (`name` NULL: with a fresh name). -EINVAL not a name, -EEXIST, -EDQUOT. *out is a new
 * reference. */
int jobs_make(struct jobs *js, struct place *session, const char *name, struct job **out, struct err *e);
/* rmdir: -ENOENT; -EBUSY while it runs, or an open of cmd or argv that was written to has not ended. */
int jobs_remove(struct jobs *js, struct place *session, const char *name, struct err *e);
/* Calls fn for each name, no lock held. */
void jobs_each(struct jobs *js, struct place *session, void (*fn)(const char *name, uint64_t number, void *arg),
               void *arg);
/* When the list of a session's jobs last changed, wall clock. */
int64_t jobs_changed_ms(struct jobs *js, struct place *session);

void job_ref(struct job *j);
void job_unref(struct job *j);
const char *job_name(const struct job *j);  /* never changes */
uint64_t job_number(const struct job *j);   /* random, never changes */
int64_t job_made_ms(const struct job *j);
/* Whether it stays for so long unless somebody removes it. */
bool job_lasts(struct job *j, int64_t ms);
struct place *job_session(struct job *j);   /* borrowed from the job; NULL for ended ones of an earlier life */

enum job_state { JOB_NEW, JOB_STARTING, JOB_RUNNING, JOB_ENDED };
enum job_state job_state(struct job *j);

/* ── texts that are written before the start ─────────────────────────────────────────────── */

enum job_text { JOB_CMD, JOB_ARGV, JOB_CWD, JOB_ENV, JOB_TIMEOUT, JOB_TTY, JOB_USER, JOB_TEXTS };

/* What somebody holds in memory for a job counts for its user. False: those have too much already. */
bool job_memory_take(struct job *j, size_t bytes);
void job_memory_give(struct job *j, size_t bytes);
int  job_memory_full(struct err *e); /* -EDQUOT with a sentence */

/* A copy (malloc'ed, NULL when out of memory or it cannot be read any more; may read a file), its size, when it last
 * changed (wall clock). */
char *job_text(struct job *j, enum job_text which, size_t *size, int64_t *changed_ms);
/* The last two alone. */
void job_text_stat(struct job *j, enum job_text which, size_t *size, int64_t *changed_ms);
/* Writes at an offset. -EBUSY: it has been started. -EFBIG. -EINVAL with a sentence: the text would
 * mean nothing, and stays as it was. -EDQUOT: its user's jobs take too much memory; cmd and argv: it could not be
 * started now. */
int job_text_write(struct job *j, enum job_text which, const void *data, size_t size, uint64_t at, struct err *e);
/* Cuts or fills with zeros. Does nothing to a job that has been started. -EFBIG, -EDQUOT. */
int job_text_truncate(struct job *j, enum job_text which, uint64_t size);
/* Whether a close of it would be refused: what is known to be wrong by now. */
int job_text_check(struct job *j, enum job_text which, struct err *e);
/* A name that was removed is not there until it is made again (mv removes before it copies); the text
 * stays. */
void job_text_hide(struct job *j, enum job_text which, bool hidden);
bool job_text_hidden(struct job *j, enum job_text which);
/* An open of cmd or argv that has been written to (until it is released). */
void job_writer_add(struct job *j);
void job_writer_remove(struct job *j);

/* Starts it with its cmd or argv (JOB_TEXTS: the one that was written last). 0: accepted; how it goes
 * on is told by `exit`. -EBUSY: it was started before. For any other failure the job has ended with it
 * where `final` is set, and is NEW still where it is not. */
int job_start(struct job *j, enum job_text which, bool final, struct err *e);

/* ── other files ─────────────────────────────────────────────────────────────────────────── */

/* Files beside the fixed ones, made before the start by programs that write a new file and rename it:
 * in memory, this many bytes together, names included. */
#define JOB_FILES_MAX_BYTES (1u << 20)

struct job_file;

struct job_file_stat {
    uint64_t number; /* of this life alone */
    uint64_t size;
    mode_t   mode;   /* permission bits */
    int64_t  changed_ms;
};

/* -EEXIST, -EPERM (the job has been started), -EDQUOT. *out is a new reference. */
int job_file_make(struct job *j, const char *name, mode_t mode, struct job_file **out);
int job_file_find(struct job *j, const char *name, struct job_file **out); /* a new reference; -ENOENT */
int job_file_remove(struct job *j, const char *name);                      /* -ENOENT */
/* Over another one of that name (not with `keep`: -EEXIST). */
int job_file_rename(struct job *j, const char *name, const char *to, bool keep);
/* Its bytes become the text, and it is gone. As job_text_write(). */
int job_file_to_text(struct job *j, const char *name, enum job_text which, struct err *e);
/* The text's bytes become a file (in place of one of that name; with `keep`: -EEXIST), and the text is empty. -EBUSY:
 * the job has been started. */
int job_file_from_text(struct job *j, enum job_text which, const char *to, bool keep);
void job_files_each(struct job *j, void (*fn)(const char *name, uint64_t number, void *arg), void *arg);
void job_file_ref(struct job_file *f);
void job_file_unref(struct job_file *f);
void job_file_stat(struct job_file *f, struct job_file_stat *out);
ssize_t job_file_read(struct job_file *f, uint64_t at, void *buf, size_t size);
int job_file_write(struct job_file *f, const void *data, size_t size, uint64_t at); /* -EDQUOT */
int job_file_truncate(struct job_file *f, uint64_t size);                           /* -EDQUOT */
void job_file_chmod(struct job_file *f, mode_t mode);

/* ── what it tells ───────────────────────────────────────────────────────────────────────── */

/* Whoever follows a job. Lives inside its owner, who is held while `more` runs. */
struct job_listener {
    struct list links; /* the job's */
    /* Which stream's output it waits for as well; -1: none. Never changes. */
    int         stream;
    /* More is wanted. Set before the owner looks what there is, so that nothing is missed between; while it
     * is not set only the end is told. */
    atomic_bool waits;
    /* Something has changed: on a thread of the pool, or (output) where output arrives, which must not be
     * kept long. No lock held. */
    void (*more)(struct job_listener *l);
    /* These bytes of the stream from `at` on have come and are about to be stored: who waits for just them may
     * take some straight away. As `more`. */
    void (*offer)(struct job_listener *l, uint64_t at, const void *data, size_t size);
    void (*hold)(struct job_listener *l);
    void (*drop)(struct job_listener *l);
};
void job_listen(struct job *j, struct job_listener *l);
void job_unlisten(struct job *j, struct job_listener *l); /* more() may be running still */

enum job_stream { JOB_STDOUT, JOB_STDERR };

/* Somebody who reads a stream; what all of them have read may be given up. */
struct job_reader {
    struct list links; /* the job's */
    uint64_t    at;    /* the next byte, as an offset of the stream; the job's lock */
    enum job_stream stream;
};
/* Begins at the oldest byte kept. */
void job_reader_add(struct job *j, struct job_reader *r, enum job_stream stream);
void job_reader_remove(struct job *j, struct job_reader *r);
/* `size` bytes from `at` on are to be had at once: true when they are what comes next, which are taken then. */
bool job_reader_take(struct job *j, struct job_reader *r, uint64_t at, size_t size);
/* Copies what comes next. 0: the end. -EAGAIN: nothing yet. */
ssize_t job_reader_read(struct job *j, struct job_reader *r, void *buf, size_t size);
/* Is there something, or the end? */
bool job_reader_ready(struct job *j, struct job_reader *r);

/* The size of a stream's kept bytes once the job has ended; else 0 and false. */
bool job_stream_size(struct job *j, enum job_stream stream, uint64_t *size);
/* Its output's files stay open as long as somebody uses them, also when they are removed: whoever reads, who stores just
 * now, and of the jobs that run so many as leave descriptors to others. */
void job_spool_use(struct job *j);
void job_spool_unuse(struct job *j);
/* Of an ended job: bytes from `at` on, counted from the oldest byte kept. -ESTALE: it was removed before. */
ssize_t job_stream_read(struct job *j, enum job_stream stream, uint64_t at, void *buf, size_t size);

/* The log as it is now: a span of places that stays readable (but for what is given up). */
void job_log_span(struct job *j, uint64_t *start, uint64_t *end);
ssize_t job_log_read(struct job *j, uint64_t at, void *buf, size_t size);

/* `exit` of an ended job with its newline, malloc'ed; NULL while it has not ended. */
char *job_exit_text(struct job *j, size_t *size, int64_t *changed_ms);
/* `status`, malloc'ed. */
char *job_status_text(struct job *j, size_t *size, int64_t *changed_ms);

/* ── standard input ──────────────────────────────────────────────────────────────────────── */

/* An open of `stdin`; when the last one is released the job reads the end. */
void job_stdin_open(struct job *j);
void job_stdin_release(struct job *j);
/* Takes all of `data`. -EPIPE: nobody reads it any more. -ENOSPC; -EDQUOT: the job has not been started, and its user's
 * jobs leave no room on the disk. */
int job_stdin_write(struct job *j, const void *data, size_t size, struct err *e);
/* Whether more should be written now, or it has become clear that nobody will read it. */
bool job_stdin_ready(struct job *j);
bool job_stdin_broken(struct job *j);

/* ── ctl ─────────────────────────────────────────────────────────────────────────────────── */

/* Whether a line is well formed: 0 or -EINVAL with a sentence. Pure. */
int job_verb_check(const char *line, struct err *e);
/* Runs one: 0, MANAGER_WAIT (done is called once, on any thread), -errno with a sentence. */
int job_verb(struct job *j, const char *line, void (*done)(void *arg, int status), void *arg, struct err *e);

#endif

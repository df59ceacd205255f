// SPDX-License-Identifier: Apache-2.0
/* A job's directory, `.wsm/jobs/NAME`. */
#ifndef WSM_JOB_H
#define WSM_JOB_H

#include <stdbool.h>

#include "place.h"

struct job {
    const struct place *session;
    char *name;
    int   dir; /* open (O_PATH) */
};

/* What a job is started with. Texts may be NULL: not said. */
struct job_settings {
    const char *cwd, *timeout, *tty, *user;
    const char *env;    /* K=V, each with a NUL behind it */
    size_t      env_size;
    const char *const *argv;
    int         argc;
};

/* Makes a job with a fresh name, not started. Says what is wrong and returns -1. */
int job_new(const struct place *session, struct job *j);

/* Opens one that is there. Says what is wrong and returns -1. */
int job_open(const struct place *session, const char *name, struct job *j);

/* Writes all but argv; then argv, which starts it. Say what is wrong and return -1. */
int job_set(const struct job *j, const struct job_settings *s);
int job_start(const struct job *j, const struct job_settings *s);

/* Opens one of its files. -1: said. */
int job_file(const struct job *j, const char *file, int flags);

/* Writes a line to its `ctl`: 0 or -errno. */
int job_ctl(const struct job *j, const char *line);

/* Removes its directory, where it has ended. */
void job_remove(const struct job *j);

/* Closes and frees; the job itself goes on. Fine on one that could not be made. */
void job_finish(struct job *j);

/* What `exit` says as an exit status: N, or 128 + N for a signal. -1: it says an error, and
 * `*sentence` points to its words. */
int job_status(const char *exit_text, const char **sentence);

/* Whether its time was over. */
bool job_timed_out(const struct job *j);

#define cleanup_job __attribute__((cleanup(job_finish)))

#endif

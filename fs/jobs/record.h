// SPDX-License-Identifier: Apache-2.0
/* A job as it is written down: the file `record` in its directory, one JSON object. It is written
 * beside and renamed, so there is always a whole one. */
#ifndef WSMFS_JOBS_RECORD_H
#define WSMFS_JOBS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/jobs/jobs.h"
#include "fs/link/link.h"

struct record_text {
    char  *text; /* may hold NUL bytes; NULL: empty */
    size_t size;
    int64_t changed_ms;
};

struct record {
    char *user, *agent, *session, *name; /* NULL: not a record */
    char *workspace;           /* id; NULL: not known yet */
    struct record_text texts[JOB_TEXTS];
    enum job_text which;       /* JOB_CMD or JOB_ARGV */
    int64_t made_ms;
    bool    stdin_pipe;
    bool    asked;             /* this guest may have been asked to start it */
    struct link_id instance;
    bool    ended;
    enum link_end kind;        /* how it ended, as in struct link_exit */
    int     code;
    bool    timed_out;
    uint32_t pid;
    int64_t start_ms, end_ms;
    char   *text;              /* the sentence; NULL: none */
};

/* Writes it into the directory. 0 or -errno. */
int record_write(int dir_fd, const struct record *r);
/* Reads it. -ENOENT: there is none; -EIO: it is damaged. */
int record_read(int dir_fd, struct record *out);
void record_finish(struct record *r);

#endif

// SPDX-License-Identifier: Apache-2.0
/* A job as it is written down: the file `<job>.record`, JSON objects, one a line. A later line adds to
 * those before it or takes their place, and a line that is not whole (its writer was killed, the machine
 * stopped) does not count: so a change is one write to a file that is there, which costs the file system
 * next to nothing. */
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
    bool    stored; /* `text` is NULL, and in the file alone */
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

enum record_part {
    RECORD_ALL,   /* the first line */
    RECORD_GUEST, /* which guest is asked */
    RECORD_END,   /* how it ended */
};

/* Adds a line to `<job>.record` in the directory, made when missing. 0 or -errno. */
int record_write(int dir_fd, const char *job, const struct record *r, enum record_part part);
/* Reads it, while nobody writes; a last line that is not whole is cut off. -ENOENT: there is none, or nothing in it; -EIO: it is damaged. */
int record_read(int dir_fd, const char *job, struct record *out);
void record_finish(struct record *r);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Jobs as files: the directory `jobs` of a session, a directory for each job, and what is in it. */
#ifndef WSMFS_FS_TREE_JOBS_H
#define WSMFS_FS_TREE_JOBS_H

#include "fs/jobs/jobs.h"
#include "fs/tree/tree.h"

#define JOBS_NAME "jobs"

extern const struct node_ops jobs_dir_ops, job_dir_ops, job_node_ops, job_other_ops, job_new_ops;

/* ── jobs_dir.c ──────────────────────────────────────────────────────────────────────────── */

/* The directory `jobs` of a session, in the tree that `side` (the key of its control directory)
 * tells. Counts one reference of the kernel. */
int jobs_dir_entry(struct fs *fs, struct place *p, const void *side, struct fuse_entry_param *e);
uint64_t jobs_dir_ino(struct place *session);

/* A job's directory. */
struct job_dir {
    struct node   n;
    struct job   *job;   /* referenced */
    struct place *place; /* referenced */
    const void   *side;
};

/* ── jobs_file.c: the fixed files ────────────────────────────────────────────────────────── */

enum job_kind { JOB_KIND_TEXT, JOB_KIND_STDIN, JOB_KIND_STREAM, JOB_KIND_LOG, JOB_KIND_EXIT, JOB_KIND_STATUS,
                JOB_KIND_CTL };

struct job_entry {
    const char   *name;
    mode_t        mode;
    enum job_kind kind;
    int           which; /* TEXT: enum job_text; STREAM: enum job_stream */
};

const struct job_entry *job_entry_find(const char *name);
void job_entries_list(struct name_list *l, struct job *j);
/* The node of a file, as control_file_entry(). */
int job_file_entry(struct fs *fs, struct job_dir *d, const struct job_entry *f, struct fuse_entry_param *e);
/* A text whose name was removed. */
bool job_entry_hidden(struct job *j, const struct job_entry *f);

/* One fixed file as it was at a lookup. */
struct job_node {
    struct node   n;
    const struct job_entry *file;
    struct job   *job;   /* referenced */
    struct place *place; /* referenced */
    uid_t         uid;
    gid_t         gid;
    int64_t       changed_ms;
    bool          final;     /* it will not change any more */
    uint64_t      log_start; /* LOG: what is shown of it */
    uint64_t      size;
    char         *text;      /* NULL: it is read from the job */
};

/* The node of that id, which is one. */
struct job_node *job_node_of(struct fs *fs, uint64_t id);

/* The sentence goes where users look for it. Returns e's code. */
int job_say(struct place *p, const struct err *e);

/* ── jobs_other.c: files beside the fixed ones, and `new` ────────────────────────────────── */

/* Takes over the reference to `f`. */
int job_other_entry(struct fs *fs, struct job_dir *d, struct job_file *f, struct fuse_entry_param *e);
int job_new_entry(struct fs *fs, struct place *p, struct fuse_entry_param *e);
void job_other_open(struct fs *fs, fuse_req_t req, struct job_file *f, struct fuse_entry_param *e,
                    struct fuse_file_info *fi);

/* ── jobs_open.c: what is read and written at once ───────────────────────────────────────── */

/* `e`: it answers a create, whose entry this is; else NULL. */
void job_open_text(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_entry_param *e,
                   struct fuse_file_info *fi);
/* The log, or a stream of an ended job. */
void job_open_bytes(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi);
/* A text of its own, malloc'ed and taken over; NULL: out of memory. */
void job_open_own_text(struct fs *fs, fuse_req_t req, char *text, size_t size, struct fuse_file_info *fi);
/* A write's bytes in one piece, malloc'ed; NULL: the request has been answered. */
char *job_write_bytes(fuse_req_t req, struct fuse_bufvec *in, size_t *size);

/* ── jobs_follow.c: what waits ───────────────────────────────────────────────────────────── */

/* A stream, `exit` or `stdin` of a job. */
void job_open_follow(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi);

/* ── jobs_ctl.c ──────────────────────────────────────────────────────────────────────────── */

void job_open_ctl(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi);

#endif

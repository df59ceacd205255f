// SPDX-License-Identifier: Apache-2.0
/* What a job has printed, in files that begin with its name:
 *
 *   out, err   the two streams; a byte's place in the file is its place in the stream, and what was
 *              given up from the front is a hole
 *   order      how they follow one another: one entry wherever the other stream goes on, made before
 *              the first byte behind it. Absent while only one of them has been written
 *
 * One stream's bytes are in the file before anybody is told that they are stored, so after a crash
 * the files' sizes say where to go on. Nothing is synced: a crash of the machine may lose the end.
 *
 * Not locked: appending, and opening and closing, is for one thread at a time; reading is for any
 * number of threads beside it. */
#ifndef WSMFS_JOBS_SPOOL_H
#define WSMFS_JOBS_SPOOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SPOOL_STREAMS 2

struct spool {
    int  top_fd;                            /* of the directory; borrowed */
    atomic_bool      has_files;             /* there may be some */
    char job[40];                           /* what the files' names begin with */
    _Atomic int      fd[SPOOL_STREAMS];     /* -1: not opened */
    _Atomic int      order_fd;
    _Atomic uint64_t size[SPOOL_STREAMS];   /* bytes of the stream */
    _Atomic uint64_t start[SPOOL_STREAMS];  /* oldest byte kept */
    _Atomic uint64_t n_entries;             /* in `order` */
    _Atomic int      last;                  /* stream written last; -1: none */
};

/* One that is empty: no file of that name is there. */
void spool_init(struct spool *s, int top_fd, const char *job);
/* Takes in the files `<job>.out` and so on that are there. 0 or -errno. */
int spool_open(struct spool *s, int top_fd, const char *job);
/* Opens those that are there, so that who reads may go on when they are removed. */
void spool_keep_open(struct spool *s);
/* Removes them. Nobody appends any more. */
void spool_remove(struct spool *s);
/* The same for a job of which nothing is known but its name. */
void spool_remove_files(int top_fd, const char *job);
/* Closes the files; they are opened again when somebody reads or appends. Nobody may use them now. */
void spool_close(struct spool *s);

/* Adds bytes at the end of a stream. 0, or -errno and nothing was added. */
int spool_append(struct spool *s, int stream, const void *data, size_t len);

/* The stream goes on at `at`: what lies before and was not stored is lost. Nothing when it is no gap. */
void spool_skip(struct spool *s, int stream, uint64_t at);

/* Copies bytes of a stream from `at` on, which lies in what is kept. 0: at the end; -errno; -ESTALE: they were removed
 * before anybody who keeps them open had come. */
ssize_t spool_read(struct spool *s, int stream, uint64_t at, void *buf, size_t size);

/* Gives up a stream's bytes before `upto`, as far as whole blocks allow. Returns how many were. */
uint64_t spool_drop(struct spool *s, int stream, uint64_t upto);

/* Bytes on the disk. */
uint64_t spool_kept(const struct spool *s);
/* Bytes that were given up. */
uint64_t spool_dropped(const struct spool *s);

/* The log of both streams: the span of it that is kept whole. */
void spool_log_span(struct spool *s, uint64_t *start, uint64_t *end);
/* Copies bytes of the log from `at` on, which lies in the span. As spool_read(). */
ssize_t spool_log_read(struct spool *s, uint64_t at, void *buf, size_t size);

#endif

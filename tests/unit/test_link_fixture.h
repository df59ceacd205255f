// SPDX-License-Identifier: Apache-2.0
/* A real guest, a link to it, and jobs that collect what they print: for the tests of both. */
#ifndef WSMFS_TEST_LINK_FIXTURE_H
#define WSMFS_TEST_LINK_FIXTURE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/link/link.h"

/* ── a guest ── */

struct sandbox {
    pid_t pid;
    char  dir[64];    /* temporary, removed at the end */
    char  path[100];  /* of the socket */
};

/* Starts the program that the environment variable WSM_GUEST names. Ends the test when that fails. */
void sandbox_start(struct sandbox *s);
/* Ends it with TERM, or KILL, and waits. */
void sandbox_stop(struct sandbox *s, int signo);
/* A new connection to it, or -errno. */
int sandbox_dial(const struct sandbox *s);

/* ── a host ── */

struct host_side {
    struct sandbox   *sandbox;
    struct pool      *pool;
    struct link_loop *loop;
    struct link      *link;
    int (*dial)(struct host_side *h); /* NULL: sandbox_dial */
    void             *dial_arg;
    pthread_mutex_t   lock;  /* guards what follows */
    pthread_cond_t    changed;
    unsigned          ups, downs;
    bool              lost, closed;
    char              lost_text[400];
};

/* `id`: which host it is. */
void host_start(struct host_side *h, struct sandbox *s, uint8_t id);
void host_start_with(struct host_side *h, struct sandbox *s, uint8_t id, int (*dial)(struct host_side *), void *arg);
/* Lets go of everything; all jobs must have been released. */
void host_stop(struct host_side *h);
void host_wait_up(struct host_side *h);
/* The next connection goes to another guest. */
void host_move(struct host_side *h, struct sandbox *s);
/* Waits until the link is lost; why. Valid until host_stop(). */
const char *host_wait_lost(struct host_side *h);

/* ── jobs ── */

struct log_piece {
    uint64_t at;
    int      stream;
    uint64_t offset;
    size_t   len;
};

struct tjob {
    struct host_side *host;
    struct link_job  *job;
    struct link_id    key;
    pthread_mutex_t   lock;   /* guards what follows */
    pthread_cond_t    changed;
    bool              discard, hold[2]; /* do not keep data; do not acknowledge */
    void            (*within_output)(struct link_job *j, struct tjob *t); /* set before it is spawned; NULL: nothing */
    bool              started, exited, taken, released;
    struct link_started start;
    struct link_exit  exit;
    char              text[400];
    char             *data[2];
    size_t            len[2], size[2];
    uint64_t          total[2], first[2];
    struct log_piece *pieces;
    size_t            n_pieces, max_pieces;
    unsigned          rooms, done_calls;
    int               done_status;
};

void tjob_init(struct tjob *t, struct host_side *h, uint64_t key);
/* Fills t->key into *s and spawns. */
void tjob_spawn(struct tjob *t, struct link_spawn *s);
void tjob_sh(struct tjob *t, const char *script);
void tjob_attach(struct tjob *t, const uint64_t from[2]);
void tjob_wait_started(struct tjob *t);
void tjob_wait_exit(struct tjob *t);
/* Until at least `n` bytes of a stream are here. */
void tjob_wait_output(struct tjob *t, int stream, uint64_t n);
/* As things are now. */
uint64_t tjob_total(struct tjob *t, int stream);
bool tjob_has_exited(struct tjob *t);
void tjob_wait_taken(struct tjob *t);
/* Acknowledges what was held back, and from now on at once. */
void tjob_let_flow(struct tjob *t, int stream);
void tjob_forget(struct tjob *t);   /* and waits until released */
void tjob_release(struct tjob *t);
void tjob_wait_released(struct tjob *t);
void tjob_finish(struct tjob *t);   /* memory */
/* Writes all of it to standard input, waiting for room. False: -EPIPE. */
bool tjob_feed(struct tjob *t, uint64_t offset, const void *data, size_t len, bool end);
/* A done callback for t (arg), and waiting for the n-th call of it; returns the status. */
void tjob_done(void *arg, int status, const char *text);
int  tjob_wait_done(struct tjob *t, unsigned n);
/* Both streams in order, malloc'ed and NUL-terminated; fails the test when a byte is missing. */
char *tjob_log(struct tjob *t);
/* Runs a script to its end; fails the test unless it exits with `code`. Caller: tjob_finish. */
void run_sh(struct tjob *t, struct host_side *h, uint64_t key, const char *script, int code);

/* Sleeps in small steps until cond() is true; fails the test after a long time. */
void wait_until(bool (*cond)(void *arg), void *arg);

#endif

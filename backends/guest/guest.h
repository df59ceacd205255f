// SPDX-License-Identifier: Apache-2.0
/* The guest's state, shared by its source files: one thread, one epoll loop, no locks. Everything
 * lies below one struct guest; nothing else is global. docs/guest-protocol.md has the semantics. */
#ifndef WSMFS_GUEST_GUEST_H
#define WSMFS_GUEST_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "backends/guest/protocol.h"
#include "fs/base/cleanup.h"
#include "fs/base/list.h"

#define CONNS_MAX      16          /* connections at once, greeted or not */
#define HOSTS_MAX      16          /* hosts remembered */
#define JOBS_MAX       16384u      /* jobs remembered, ended ones included */
#define BUCKETS        1024u       /* of a hash table; a power of two */
#define RECORD_BUCKETS 256u
#define RING_MIN_BYTES (64u << 10) /* a stream's buffer: at first, */
#define RING_MAX_BYTES PROTO_OUTPUT_WINDOW_MAX_BYTES /* and when it prints much, as long as */
#define RINGS_MAX_BYTES (32u << 20) /* all grown buffers together stay below this; each has its minimum */
#define RING_REST_MS   100         /* a grown one that was empty for so long is freed: the burst is over */
#define RUNS_MAX       1024u       /* changes between stdout and stderr that one buffer remembers */
#define TURN_BYTES     PROTO_CHUNK_MAX_BYTES /* most that one stream reads or sends before the next's turn */
#define OUT_BUF_BYTES  (64u << 10) /* of a connection: frames that are copied */
#define COPY_MAX_BYTES (8u << 10)  /* output up to this length is copied into a frame */
#define IN_BUF_BYTES   (64u << 10) /* of a connection; grows for a larger frame */
#define READS          4           /* of one connection's turn */
#define WRITES         8
#define TURN_PIECES    16          /* short pieces of output of one job before the next's turn */
#define HELLO_MS       30000       /* to greet */
#define FLUSH_MS       5000        /* at the end, for what hosts have not fetched yet */
#define RESCAN_MS      20          /* first pause between two looks at a process tree that is killed */

struct guest;
struct job;
struct conn;
struct proc;

/* A descriptor in the loop. The kernel holds a pointer to it, so its memory must outlive the batch
 * of events in which it is closed: jobs are freed at the end of a turn. */
struct source {
    int  fd; /* -1: none */
    void (*ready)(struct guest *g, struct source *s, uint32_t events);
};

/* Bytes [tail, head) of an endless stream; `size` is a power of two, memory comes with the first byte. */
struct ring {
    uint8_t *buf;
    uint32_t size_bytes;
    uint64_t tail, head;
};

/* From `offset` on, up to the next run's, bytes of a stream lie in the log at log_offset and on. */
struct run {
    uint64_t offset, log_offset;
};

/* A job's standard output or error. ring.tail: acknowledged; ring.head: read. */
struct output {
    struct source src;
    struct job   *job;
    struct ring   ring;
    uint64_t      sent;      /* next byte for the present connection */
    struct run   *runs;      /* of the bytes in the ring, oldest first */
    uint32_t      n_runs, max_runs;
    uint64_t      end_at;    /* UINT64_MAX; once the job has ended, where its part ends */
    bool          last;      /* the main process is gone: the next empty look is the end */
    bool          wide;      /* the pipe was made larger */
    struct list   readable;  /* in guest.readable when the pipe may hold something */
    struct list   grown;     /* in guest.grown when the large ring was empty once; */
    int64_t       empty_ns;  /* last at this time */
};

/* A job's standard input. ring.tail: written to it; ring.head: received. */
struct input {
    struct source src;      /* the terminal has its descriptor in `out` */
    struct ring   ring;
    uint64_t      limit, told; /* as the host knows them: how far it may send; what has arrived */
    bool          ended;    /* the host has sent the end */
    bool          closed;   /* nobody reads any more */
    bool          tell;     /* STDIN_ROOM is due */
};

/* How far the killing of a process tree is: TERM was sent to the group, to all, KILL is being sent. */
enum killing { KILLING_NOT, KILLING_GROUP, KILLING_TERM, KILLING_KILL };

struct job {
    struct proto_id key;
    struct job     *key_next, *pid_next; /* hash chains */
    struct list     all;                 /* guest.jobs, by serial */
    struct list     ready;               /* conn.ready: has something to send */
    struct host    *host;                /* who gets its output */
    bool            attached;            /* to host->conn */
    uint64_t        serial;              /* order of spawning; its tag in RLIMIT_LOCKS (tree.c) */
    char           *label;
    uint8_t         state;               /* enum proto_job_state */
    pid_t           pid;                 /* 0: there never was a process */
    bool            reaped, tty;
    bool            timed_out;
    bool            never_ran;           /* end_kind, end_code and end_text say why */
    enum killing    killing;
    bool            exit_sent;           /* on the present connection */
    uint8_t         end_kind;
    int32_t         end_code;
    char           *end_text;
    int64_t         kill_ns;             /* end of the grace */
    int64_t         deadline_ns;         /* timeout, end of grace, next look; 0: none */
    int64_t         rescan_ns;           /* pause before the next look */
    uint32_t        grace_ms;
    uint64_t        start_ms, end_ms;
    uint64_t        log_head;
    struct output   out[PROTO_STREAMS];
    struct input    in;
};

/* An answer: waits to be sent, and (`kept`) until the host acknowledges it, so that a repeated request
 * gets it again instead of being executed again. */
struct record {
    struct record *next;   /* hash chain of host.records, when kept */
    struct list    unsent; /* conn.answers */
    uint64_t       tag;
    bool           kept;
    uint32_t       len;
    uint8_t        frame[];
};

/* One wsmfs that speaks or has spoken to this guest. */
struct host {
    bool            used;
    struct proto_id id, epoch;
    struct conn    *conn;    /* NULL: not connected */
    uint64_t        seen;    /* when it last greeted: a serial */
    unsigned        n_records;
    struct record  *records[RECORD_BUCKETS];
};

enum conn_state { CONN_FREE, CONN_GREETING, CONN_OPEN };

struct conn {
    struct source   src;
    enum conn_state state;
    struct host    *host;
    struct proto_id nonce;
    uint32_t        max_frame_bytes; /* what the host takes */
    int64_t         hello_by_ns;
    struct list     answers, ready;
    bool            readable, writable; /* as far as is known */
    bool            closing;         /* nothing is read or filled in any more */
    uint8_t        *in;
    uint32_t        in_size, in_len;
    /* What is being written: bytes out_pos to out_len of `out`, then `big_len` bytes of a stream's ring
     * from `big_offset`. */
    uint8_t        *out;
    uint32_t        out_pos, out_len;
    struct output  *big;
    uint64_t        big_offset;
    uint32_t        big_len;
};

struct guest {
    int             epoll_fd, null_fd;
    int             reports[2];      /* a pipe: what could not be executed (spawn.c) */
    struct source   listener, signals;
    bool            listens_inside;  /* on a name in the sandbox, for `connect` */
    bool            outside_only;    /* on a path that a host shares with the sandbox, for it alone */
    const char     *default_user;    /* of jobs that name none; NULL: the guest's own */
    struct proto_id instance;
    pid_t           pid;
    uint64_t        start_ms;
    uint32_t        tag_base;        /* of RLIMIT_LOCKS, see tree.c */
    struct rlimit   files_limit;     /* as it was at the start */
    char          **environ;
    struct conn     conns[CONNS_MAX];
    struct host     hosts[HOSTS_MAX];
    struct list     jobs;            /* all, by serial */
    struct list     dead;            /* jobs to be freed at the end of the turn, by `all` */
    struct list     readable;        /* outputs to read from */
    struct list     grown;           /* outputs whose large buffers are freed when they stay empty */
    struct list     drains, dead_drains; /* pipes of ended jobs that something still holds */
    struct job     *by_key[BUCKETS], *by_pid[BUCKETS];
    unsigned        n_jobs, n_running;
    uint64_t        serial;
    struct proc    *procs;           /* the last look at /proc (tree.c) */
    unsigned        n_procs, max_procs;
    int64_t         scan_ns, scan_cost_ns; /* when it was over, and how long it took */
    uint64_t        rings_bytes;     /* of rings above RING_MIN_BYTES */
    int64_t         next_ns;         /* earliest deadline; 0: none */
    bool            starved;         /* an output waits for memory */
    bool            stopping, stop_killed;
    int64_t         stop_kill_ns, stop_end_ns; /* 0: not yet */
    int64_t         lonely_ns;       /* when it ends unless a host has greeted it; 0: it stays */
    uint32_t        stop_grace_ms;   /* for SIGTERM */
    bool            over;
};

/* ── time, descriptors (loop.c) ── */
int64_t  guest_now_ns(void);                 /* CLOCK_MONOTONIC */
uint64_t guest_wall_ms(void);
/* Makes the loop wake at `due_ns` at the latest. */
void guest_wake_at(struct guest *g, int64_t due_ns);
/* Adds edge-triggered; sets O_NONBLOCK. 0 or -errno; the caller still owns the descriptor on failure. */
int  guest_watch(struct guest *g, struct source *s, uint32_t events);
/* Takes it out of the loop as well. */
void source_close(struct guest *g, struct source *s);
/* Runs until the guest is over. 0 or -errno. */
int  guest_loop(struct guest *g);

/* ── serve.c ── */
struct serve_options {
    int         fd;       /* a listening socket; -1: */
    const char *listen;   /* "@name" (abstract) or a path */
    uint32_t    grace_ms;
    bool        outside;  /* who connects is outside this pid namespace */
    const char *user;     /* of jobs that name none, or NULL */
    const char *own;      /* a directory to be that user's, or NULL */
};
int serve(const struct serve_options *o);    /* exit code */
/* Begins to end everything: TERM now, KILL after grace_ms, then the loop ends. A shorter time wins. */
void guest_stop(struct guest *g, uint32_t grace_ms);
/* One step of that, when its time has come or a child has gone. */
void guest_stop_step(struct guest *g);
/* No host has come yet: ends, or looks again at g->lonely_ns. */
void guest_lonely(struct guest *g, int64_t now_ns);

/* ── connections (conn.c, conn_out.c, host.c) ── */
void conn_accept(struct guest *g, struct source *s, uint32_t events);
/* Closes it; the host's jobs go on, unattached. */
void conn_close(struct guest *g, struct conn *c);
void conn_hello(struct guest *g, struct conn *c);
/* Says GOODBYE with the sentence, then closes. `code` is a negative errno. */
void conn_goodbye(struct guest *g, struct conn *c, int code, const char *why);
/* One turn of reading and handling frames; one of writing. Each may close the connection. */
void conn_read(struct guest *g, struct conn *c);
void conn_write(struct guest *g, struct conn *c);
void conn_ready_job(struct job *j);          /* the job has something to send; nothing if unattached */
bool conn_has_output(const struct conn *c);  /* something is left to be written */
/* Queues a frame. NULL without memory. */
struct record *conn_queue(struct conn *c, uint16_t type, uint64_t tag, const void *msg);
/* Connections must not point to a job any more. */
void conn_drop_job(struct guest *g, struct job *j);
/* Takes over for a host that has greeted. NULL: no room. */
struct host *host_enter(struct guest *g, const struct proto_id *id, const struct proto_id *epoch);
struct record *host_record(struct host *h, uint64_t tag);
void host_keep(struct host *h, struct record *r); /* until it is acknowledged */
void host_acknowledge(struct host *h, const struct proto_ack *m);

/* ── requests (request.c) ── */
/* Handles one frame of a greeted host. False: it broke the protocol, and the connection is closed. */
bool request_frame(struct guest *g, struct conn *c, const struct proto_head *head, const uint8_t *payload);

/* ── jobs (job.c) ── */
struct job *job_find(struct guest *g, const struct proto_id *key);
/* Starts a new job for `h`. NULL: no memory or too many; the sentence in *why. */
struct job *job_spawn(struct guest *g, struct host *h, const struct proto_spawn *m, const char **why);
/* To be called whenever something changed that may let it end: moves on to ENDED. */
void job_advance(struct guest *g, struct job *j);
void job_deadline(struct guest *g, struct job *j);
void job_kill(struct guest *g, struct job *j, uint32_t grace_ms);
void job_attach(struct guest *g, struct job *j, struct host *h, const uint64_t from[PROTO_STREAMS]);
void job_forget(struct guest *g, struct job *j);
void jobs_free_dead(struct guest *g);
/* A child has ended. */
void job_reap(struct guest *g, pid_t pid, int wait_status);
static inline bool job_ended(const struct job *j) { return j->state == PROTO_JOB_ENDED; }

/* ── streams (output.c, input.c, drain.c, ring.c) ── */
void output_init(struct output *o, struct job *j);
/* Watches the pipe (takes the descriptor). */
int  output_open(struct guest *g, struct output *o, int fd);
void output_finish(struct guest *g, struct output *o);
/* One turn of reading. */
void output_read(struct guest *g, struct output *o);
/* The job's main process is gone: what is in the pipe now is the rest. */
void output_last(struct guest *g, struct output *o);
void output_retry(struct guest *g, struct output *o);
bool output_done(const struct output *o);
/* All before `offset` is stored. False: it was never sent. */
bool output_acknowledge(struct guest *g, struct output *o, uint64_t offset);
/* The next piece to send: its length (up to TURN_BYTES, in one run) and place in the log; 0: none. */
uint32_t output_next(const struct output *o, uint64_t *log_offset);
/* Adds text as if the job had printed it. */
void output_say(struct guest *g, struct output *o, const char *text);
/* Frees an empty buffer. */
void output_trim(struct guest *g, struct output *o);
/* Frees large ones that have been empty for a while. */
void outputs_trim(struct guest *g, int64_t now_ns);

int  input_open(struct guest *g, struct job *j, int fd);
void input_close(struct guest *g, struct job *j);
/* False: beyond the limit, or a gap. */
bool input_receive(struct guest *g, struct job *j, const struct proto_stdin *m);
void input_write(struct guest *g, struct job *j);

/* Goes on emptying a watched pipe whose job has ended (takes the descriptor), so that what holds it does not
 * get SIGPIPE. */
void drain_add(struct guest *g, int fd);
void drains_free_dead(struct guest *g);

/* Appends as much of it as there is room for; returns how much. */
uint32_t ring_put(struct guest *g, struct ring *r, const uint8_t *p, uint32_t len);
/* Room for writing, after growing if that is allowed; 0 also without memory. */
uint32_t ring_room(struct guest *g, struct ring *r);
/* Up to two pieces of memory for [offset, offset + len); returns how many. */
int  ring_pieces(const struct ring *r, uint64_t offset, uint32_t len, struct iovec iov[2]);
void ring_free(struct guest *g, struct ring *r);

/* ── processes (spawn.c, tree.c, user.c) ── */
struct spawned {
    pid_t pid;
    int   in, out, err;   /* the guest's ends; -1: none. With a terminal only `out` */
    int   error;          /* not 0: it did not start (negative errno) or (exit_code) cannot be executed */
    int   exit_code;      /* 126 or 127 when the command is to blame, else 0 */
    char  text[PROTO_TEXT_MAX_BYTES + 1];
};
/* Starts a process for a command; false with error and text set: there is none. It does not wait for the execve:
 * a command that cannot be executed is a child that ends with 127, of which there is a report then. */
bool spawn_command(struct guest *g, const struct proto_spawn *m, uint64_t tag, struct spawned *s);
int  spawn_open_reports(struct guest *g); /* once; 0 or -errno */
/* The next report of a child that could not execute its command: pid, error, exit_code and text, with the tag that
 * the child was started with. False: there is none now. */
bool spawn_report(struct guest *g, uint64_t *tag, struct spawned *s);
/* Sets a terminal's size. 0 or -errno. */
int spawn_resize(int fd, uint16_t cols, uint16_t rows);

/* What a name, or numbers, stand for inside. */
#define USER_GROUPS_MAX PROTO_GROUPS_MAX_COUNT
struct user {
    bool     set;
    uint32_t uid, gid;
    uint32_t groups[USER_GROUPS_MAX];
    uint32_t n_groups;
    char     name[PROTO_USER_MAX_BYTES + 1], home[1024], shell[256];
};
/* capget(2), capset(2). Not in musl's headers (linux/capability.h). */
struct cap_head { uint32_t version; int pid; };
struct cap_data { uint32_t effective, permitted, inheritable; };
#define CAP_VERSION_3 0x20080522u

/* "name", "uid", "name:group", "uid:gid" by /etc/passwd and /etc/group. 0, or -errno. */
int user_find(const char *text, struct user *u);
/* Fills name and home for u->uid, where /etc/passwd knows it. */
void user_complete(struct user *u);
/* Makes the directory `path` the user's, and with it all below that belongs to whom it has belonged to so far: what
 * was put there before anybody knew which ids the name of the sandbox's user stands for. Nothing is done where it is
 * the user's already, nor for root, who needs no such thing. Follows no link and enters no other file system; what
 * cannot be given away stays. The directory itself is given last, so that the next start goes on with what a guest that
 * was killed has left. */
void own_directory(const char *path, const char *user);

pid_t tree_parent(pid_t pid); /* 0: not known */
uint64_t tree_tag(const struct guest *g, uint64_t serial);
/* Signals the group of a job that has a process, or had one. 0 or -errno. */
int  tree_kill_group(const struct job *j, int signo);
/* Signals the group of a job that runs, TERM so that stopped processes learn of it. Needs no look at /proc. */
void tree_signal_group(const struct job *j, int signo);
/* Signals the job's whole tree (`skip_group`: but its group), 0 to only count. Returns the number of its
 * processes (zombies left out). */
unsigned tree_signal(struct guest *g, struct job *j, int signo, bool skip_group);
/* Signals everything below the guest. */
void tree_signal_all(struct guest *g, int signo);

int64_t tree_next_look(const struct guest *g); /* when looking again takes its fair share of time at most */
void tree_forget(struct guest *g);          /* at the end of a turn, and after a start: the next look is a new one */

int connect_main(const char *to);            /* exit code */

#endif

// SPDX-License-Identifier: Apache-2.0
/* What the source files of the link share. Unless a comment says otherwise everything belongs to the
 * loop thread alone, and other threads reach it by a link_call. */
#ifndef WSMFS_LINK_INTERNAL_H
#define WSMFS_LINK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/guest/protocol.h"
#include "fs/base/cleanup.h"
#include "fs/link/link.h"

#define READ_BYTES      (512u << 10)   /* one read */
#define LOOP_BUF_BYTES  (PROTO_TO_HOST_MAX_BYTES + READ_BYTES)
#define OUT_BUF_BYTES   (128u << 10)   /* of a link; grows for a larger frame */
#define STDIN_BUF_BYTES (256u << 10)   /* of a job that has standard input */
#define STDIN_CHUNK_BYTES (32u << 10)
#define IN_FLIGHT_MAX   1024u          /* requests without answer; the rest waits its turn */
#define JOB_BUCKETS     256u
#define RETRY_FIRST_NS  10000000ll
#define RETRY_MAX_NS    5000000000ll
#define HELLO_NS        30000000000ll
#define QUIET_NS        (LINK_QUIET_S * 1000000000ll)
#define GOOD_NS         30000000000ll  /* a connection of this length was no bad one */

struct link_loop {
    pthread_t    thread;
    int          epoll_fd, event_fd;
    struct pool *pool;
    struct proto_id host, epoch;
    uint8_t     *buf;         /* LOOP_BUF_BYTES: what is being read, of whichever link */
    struct list  links;
    struct list  busy;        /* links that have something to read or write, by link.busy */
    int64_t      next_ns;     /* earliest deadline of a link; 0: none */
    atomic_uint  n_links;     /* not yet closed */
    /* Guards what follows; a leaf: nothing is called with it held but the write that wakes the thread. */
    pthread_mutex_t lock;
    pthread_cond_t  none;     /* n_links has become 0 */
    struct list  calls;
    bool         woken;       /* the thread will look at `calls` */
    bool         ending;
};

/* A frame that wants an answer. */
struct request {
    struct list links;        /* link.unsent or link.sent, by tag */
    uint64_t    tag;          /* 0: not sent yet */
    uint16_t    type;
    bool        once;         /* for this connection only: dropped when it breaks */
    struct link_job *job;     /* NULL: none, or it was released */
    /* The answer (`msg` decoded by type), or `status` -errno with msg NULL. Frees nothing. */
    void      (*answered)(struct link *l, struct request *r, int status, const char *text, const void *msg);
    /* Of the API's caller; which one depends on `answered`. */
    link_done_fn *done;
    void      (*ping_done)(void *arg, int status, int64_t took_ns);
    void      (*each)(void *arg, const struct link_listed *j);
    void       *arg;
    int64_t     since_ns;
    uint32_t    len;
    uint8_t     frame[];
};

/* The part of an OUTPUT frame's data that has not arrived. */
struct incoming {
    struct link_job *job;     /* NULL: skip it */
    enum link_stream stream;
    uint32_t left;
};

struct link {
    struct link_loop *loop;
    const struct link_ops *ops;
    void        *arg;
    struct list  all, busy;
    unsigned     refs;        /* the owner, its jobs, a connect under way */
    bool         closing;
    bool         close_made;  /* close_call has been made, and waits for what lies before it */
    /* Guards state and guest, which any thread may ask for; a leaf. Written by the loop thread only. */
    pthread_mutex_t lock;
    enum link_state state;
    struct link_guest guest;
    bool         pinned;      /* guest.instance must not change any more */

    struct task  connect_task;
    struct link_call connected_call, open_call, close_call, hurry_call;
    bool         hurry_queued; /* hurry_call is on its way: the loop's lock */
    int          connect_result; /* descriptor or -errno, of the task */
    struct err   connect_err;
    bool         connecting;
    int64_t      retry_ns, pause_ns; /* when to connect again (0: not now); the next pause */
    const char  *broken_rule; /* set by the handling of an answer that breaks the protocol */
    unsigned     bad;         /* breaks of the protocol in a row */
    unsigned     silent;      /* connections in a row over which nothing came in time */

    int          fd;          /* -1: no connection */
    bool         readable, writable, greeted;
    bool         asks;        /* a SPAWN lies in `out` of which nothing may have been written */
    bool         progress;    /* this connection was of use */
    int64_t      up_ns, heard_ns, ping_ns; /* ping_ns: an own ping is under way since */
    uint8_t     *partial;     /* an incomplete frame */
    uint32_t     partial_len;
    struct incoming in;
    uint8_t     *out;
    uint32_t     out_size, out_pos, out_len;

    uint64_t     next_tag;
    struct list  unsent, sent;
    unsigned     n_sent;
    uint8_t      acks[IN_FLIGHT_MAX * 8]; /* tags as they go over the wire */
    unsigned     n_acks;

    struct list  jobs;
    struct list  dirty;       /* jobs with something to send, by link_job.dirty */
    struct link_job *by_key[JOB_BUCKETS];
};

struct job_stream {
    uint64_t received, log_end; /* delivered so far; where the last piece ended in the log */
    uint64_t acked;             /* told to the guest */
    uint64_t want;              /* to be told: guarded by the loop's lock */
};

struct link_job {
    struct link *link;
    const struct link_job_ops *ops;
    void        *arg;
    struct proto_id key;
    struct link_job *next;      /* hash chain */
    struct list  all, dirty;
    struct link_call start_call, ack_call, stdin_call, end_call;
    struct request *spawn;      /* until it is queued; NULL for an attached one */
    bool         has_instance;
    struct link_id instance;    /* where it may be spawned */
    bool         spawning;      /* SPAWN has no answer yet */
    bool         asked;         /* something of SPAWN may have come to the guest, or it is not of this link */
    bool         attach_due, attaching, attached; /* on this connection */
    bool         started, exited, existed;
    struct request *forget;     /* ready to be sent */
    bool         keep;          /* do not forget it: set before end_call is queued */
    bool         quiet;         /* let go of: no more callbacks */
    bool         ending;        /* end_call has been made, and waits for what lies before it */
    struct job_stream streams[LINK_STREAMS];
    bool         ack_queued, stdin_queued; /* ack_call, stdin_call are on their way: the loop's lock */

    /* Guards what follows, which link_job_stdin() fills and the loop thread sends; a leaf. */
    pthread_mutex_t in_lock;
    bool         in_pipe, in_known; /* has one; in_known: where it begins */
    uint8_t     *in_buf;
    uint64_t     in_tail, in_sent, in_head; /* received by the guest; sent on this connection; taken */
    uint64_t     in_limit;      /* as the guest said */
    bool         in_end, in_end_sent, in_closed;
    bool         in_hungry;     /* stdin_room is due when there is room */
};

/* ── loop.c ── */
int64_t link_now_ns(void);
void link_wake_at(struct link_loop *loop, int64_t due_ns);
/* The link has something to read or write: it gets a turn. */
void link_busy(struct link *l);

/* ── connect.c ── */
void link_start_connect(struct link *l);
/* Cuts the connection, if any, and plans the next one. */
void link_break(struct link *l, int code, const char *why);
/* The guest broke the protocol. */
void link_bad(struct link *l, const char *why);
/* Something is asked for now: after a long silence a sign of life is asked for too, at once. */
void link_expect(struct link *l);
/* The end of the sandbox. */
void link_lose(struct link *l, int code, const char *why);
void link_deadlines(struct link *l, int64_t now_ns);
void link_unref(struct link *l);
void link_set_state(struct link *l, enum link_state s);

/* ── receive.c, send.c ── */
/* One turn each. May break the link. */
void link_receive(struct link *l);
void link_send(struct link *l);
bool link_has_output(const struct link *l);
void link_put_hello(struct link *l, const struct proto_id *nonce);

/* ── request.c ── */
/* Encodes a request. NULL: no memory, or a field breaks a limit. */
struct request *request_new(uint16_t type, const void *msg);
/* Queues it for the guest; owns it. On a lost link it is answered at once. */
void request_queue(struct link *l, struct request *r);
void request_fail_all(struct link *l, int code, const char *why);
/* A connection has broken: what was sent waits to be sent again. */
void requests_rewind(struct link *l);
/* An answer has come. False: the guest broke the protocol. */
bool request_answered(struct link *l, const struct proto_head *head, const uint8_t *payload);
/* The job goes: its open requests are told so and go on without it. */
void requests_let_go(struct link *l, struct link_job *j);
/* Takes back the job's requests that were not sent, and answers them so. */
void requests_refuse(struct link *l, struct link_job *j, int code, const char *why);
/* The smallest tag that has no answer yet. */
uint64_t requests_floor(struct link *l);
/* From any thread; takes `r` (NULL: -ENOMEM). */
int request_post(struct link *l, struct request *r);
void request_plain_answered(struct link *l, struct request *r, int status, const char *text, const void *msg);

/* ── job.c ── */
struct link_job *link_find_job(struct link *l, const struct proto_id *key);
void job_dirty(struct link_job *j);
struct link_job *link_job_new(struct link *l, const struct link_id *key, const struct link_job_ops *ops, void *arg);
/* A connection was greeted: every job is to be attached to it. */
void jobs_connected(struct link *l);
void jobs_disconnected(struct link *l);
void jobs_lose(struct link *l, int code, const char *why);
/* The request of an ATTACH that is due. NULL without memory. */
struct request *job_attach_request(struct link_job *j);
void job_spawn_sent(struct link_job *j);
/* Frames of the guest. False: it broke the protocol. */
bool job_output_begin(struct link *l, const struct proto_output *m);
void job_output_data(struct link *l, const uint8_t *data, uint32_t len);
bool job_exit(struct link *l, const struct proto_exit *m);
bool job_taken(struct link *l, const struct proto_taken *m);
/* Takes the offsets to acknowledge; false when there is nothing new. */
bool job_take_acks(struct link_job *j, struct proto_output_ack *m);

/* ── stdin.c ── */
/* `pipe`: the job has a standard input; `known`: it begins at 0, else where the guest says. */
void stdin_init(struct link_job *j, bool pipe, bool known);
void stdin_finish(struct link_job *j);
/* Nobody reads it any more. */
void stdin_close(struct link_job *j);
/* The guest has said how far it is; on a new connection, or meanwhile. False: it broke the protocol. */
bool stdin_attached(struct link_job *j, const struct proto_attach_answer *m);
bool stdin_room(struct link *l, const struct proto_stdin_room *m);
/* The next piece, at most STDIN_CHUNK_BYTES, its data copied to `data`. False: nothing may be sent. */
bool stdin_take(struct link_job *j, struct proto_stdin *m, uint8_t *data);

#endif

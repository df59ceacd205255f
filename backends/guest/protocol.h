// SPDX-License-Identifier: Apache-2.0
/* The protocol between a host (wsmfs) and the guest in a sandbox, and the one codec that both sides
 * use. docs/guest-protocol.md is its specification, byte for byte and with the reasons; section
 * numbers below are that page's.
 *
 * A stream carries frames. A frame is a head of 16 bytes and a payload; all numbers are little-endian:
 *
 *      u32 size   of the whole frame, head included
 *      u16 type   enum proto_type; an answer has the type of its request | PROTO_ANSWER
 *      u16 flags  0
 *      u64 tag    names a request to its answer; 0 in frames that are neither
 *
 * What a payload holds is said by one table of fields for each type (protocol.c), from which the
 * encoder, the decoder, the tests and the fuzz targets all work. Decoders are pure functions over
 * bytes: they copy nothing, allocate nothing, and accept exactly what the encoder can produce, so a
 * message that was decoded encodes to the same bytes again. Every length, count, text and number
 * range is checked before anybody sees it; errnos on the wire are Linux's generic numbers, whatever
 * the machine.
 *
 * Nothing here has state. Any thread. */
#ifndef WSMFS_GUEST_PROTOCOL_H
#define WSMFS_GUEST_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTO_VERSION      1
#define PROTO_GUEST_MAGIC  0x474d5357u /* "WSMG" as bytes on the wire */
#define PROTO_HOST_MAGIC   0x484d5357u /* "WSMH" */
#define PROTO_HEAD_BYTES   16
#define PROTO_ANSWER       0x8000u

/* The largest frame either side may send (head included). A hello may lower them, to
 * PROTO_FRAME_MIN_BYTES at the least. */
#define PROTO_FRAME_MIN_BYTES    (1u << 20)
#define PROTO_TO_GUEST_MAX_BYTES (4u << 20)
#define PROTO_TO_HOST_MAX_BYTES  (2u << 20)

/* Limits of single fields; the decoder enforces them. */
#define PROTO_ID_BYTES          16
#define PROTO_LABEL_MAX_BYTES   1200        /* user/agent/session/job and what joins them */
#define PROTO_USER_MAX_BYTES    256
#define PROTO_CWD_MAX_BYTES     4095        /* PATH_MAX less its NUL */
#define PROTO_TEXT_MAX_BYTES    400
#define PROTO_LIST_MAX_BYTES    (3u << 20)  /* argv, env */
#define PROTO_LIST_MAX_COUNT    65536u
#define PROTO_GROUPS_MAX_COUNT  256u
#define PROTO_SCRIPT_MAX_BYTES  (1u << 20)  /* design 5 */
#define PROTO_TIME_MAX_MS       (1ull << 50) /* wall clocks */
#define PROTO_TIMEOUT_MAX_MS    (1ull << 42) /* 139 years: as nanoseconds it fits 63 bits */

/* Flow control (section 6). */
#define PROTO_OUTPUT_WINDOW_MAX_BYTES (1u << 20) /* most a guest may have unacknowledged, a stream */
#define PROTO_STDIN_WINDOW_BYTES      (64u << 10) /* what a host may send before it is told more */
#define PROTO_CHUNK_MAX_BYTES         (256u << 10) /* data of one OUTPUT or STDIN frame */
#define PROTO_TAG_WINDOW              4096u /* requests without acknowledged answer, a host */

/* Section 3: 0x0001 to 0x00ff the connection, 0x0101 to 0x01ff jobs. Reserved: 0x0200 to 0x02ff file
 * operations, 0x0300 to 0x03ff watches, all below 0x8000 else. A peer answers a request that it does
 * not know with -ENOSYS and treats any other unknown frame as a broken stream. */
enum proto_type {
    PROTO_GUEST_HELLO = 0x0001, /* guest: the first frame of a connection */
    PROTO_HOST_HELLO  = 0x0002, /* host: the second */
    PROTO_GOODBYE     = 0x0003, /* either: why it closes the connection now */
    PROTO_ACK         = 0x0004, /* host: which answers have arrived */
    PROTO_PING        = 0x0010, /* request */
    PROTO_STOP        = 0x0011, /* request: end all jobs, then the guest itself */

    PROTO_SPAWN       = 0x0101, /* request */
    PROTO_ATTACH      = 0x0102, /* request */
    PROTO_LIST        = 0x0103, /* request */
    PROTO_SIGNAL      = 0x0104, /* request */
    PROTO_KILL        = 0x0105, /* request */
    PROTO_RESIZE      = 0x0106, /* request */
    PROTO_FORGET      = 0x0107, /* request */
    PROTO_OUTPUT      = 0x0120, /* guest */
    PROTO_OUTPUT_ACK  = 0x0121, /* host */
    PROTO_STDIN       = 0x0122, /* host */
    PROTO_STDIN_ROOM  = 0x0123, /* guest */
    PROTO_EXIT        = 0x0124, /* guest */
    PROTO_TAKEN       = 0x0125, /* guest */
};

/* Feature bits of the hellos: a side uses what both have said. */
#define PROTO_FEATURE_JOBS    (1ull << 0)
#define PROTO_FEATURE_FILES   (1ull << 1) /* reserved */
#define PROTO_FEATURE_WATCHES (1ull << 2) /* reserved */

/* ── parts of messages ───────────────────────────────────────────────────────────────────── */

/* Views into the decoded buffer, valid as long as it is. */
struct proto_str {    /* u32 length + bytes + NUL; no other NUL in it */
    const char *s;    /* NUL-terminated; never NULL after decoding */
    uint32_t    len;
};
struct proto_list {   /* u32 count, u32 size, size bytes: count texts, each with its NUL */
    const char *s;
    uint32_t    count;
    uint32_t    size;
};
struct proto_data {   /* the rest of the payload */
    const uint8_t *p;
    uint32_t       len;
};
struct proto_words {  /* u32 count + count × u32, not aligned: read with proto_word() */
    const uint8_t *p;
    uint32_t       count;
};
/* 16 bytes that name a guest, a host, a job… compared as a whole, never interpreted. */
struct proto_id {
    uint8_t b[PROTO_ID_BYTES];
};
/* How a request went. Where it is not 0 the payload ends behind the text. */
struct proto_status {
    int32_t          code; /* 0 or negative errno */
    struct proto_str text; /* the sentence for the user; empty when all is well */
};

/* ── the connection (sections 4 and 5) ───────────────────────────────────────────────────── */

struct proto_guest_hello {
    uint32_t magic;
    uint32_t version;
    uint64_t features;
    struct proto_id instance; /* made at random when this guest started: another one is another sandbox */
    struct proto_id nonce;    /* made for this connection; HOST_HELLO must repeat it */
    uint32_t max_frame_bytes; /* what the guest takes */
    uint32_t pid;             /* the guest's, in its own namespace */
    uint32_t uid;
    uint64_t start_ms;        /* when it started, wall clock */
    struct proto_str program; /* name and version, for people */
    struct proto_data later;  /* what newer versions add; ignored */
};

struct proto_host_hello {
    uint32_t magic;
    uint32_t version;
    uint64_t features;
    struct proto_id nonce;
    struct proto_id host;     /* who: the same after a restart of the daemon */
    struct proto_id epoch;    /* this life of it: tags and kept answers belong to one epoch */
    uint32_t max_frame_bytes; /* what the host takes */
    struct proto_data later;
};

struct proto_goodbye { struct proto_status why; };
struct proto_ack {
    uint64_t below;           /* every tag smaller than this, and */
    struct proto_data tags;   /* each of these, u64 */
};

struct proto_ping         { uint64_t cookie; };
struct proto_ping_answer  { struct proto_status status; uint64_t cookie; uint32_t jobs, running; };
struct proto_stop         { uint32_t grace_ms; };
/* The answer of STOP, SIGNAL, KILL, RESIZE and FORGET. */
struct proto_plain_answer { struct proto_status status; };

/* ── jobs (sections 6 to 8) ──────────────────────────────────────────────────────────────── */

enum proto_spawn_flags {
    PROTO_SPAWN_SHELL      = 1u << 0, /* argv holds one text, a script for /bin/sh */
    PROTO_SPAWN_STDIN      = 1u << 1, /* standard input comes in STDIN frames; else end of file at once */
    PROTO_SPAWN_TTY        = 1u << 2, /* a terminal of cols × rows; all output is stdout's */
    PROTO_SPAWN_ENV_GUEST  = 1u << 3, /* env is put over the guest's own environment */
    PROTO_SPAWN_IDS        = 1u << 4, /* uid, gid and groups count; else user, else the guest's own */
    PROTO_SPAWN_NO_NEW_PRIVS = 1u << 5,
    PROTO_SPAWN_DROP_CAPS  = 1u << 6, /* no capability, also for uid 0 */
    PROTO_SPAWN_FLAGS_ALL  = (1u << 7) - 1,
};

struct proto_spawn {
    struct proto_id key;  /* names the job for all time; a repeat starts nothing */
    uint32_t flags;
    uint32_t uid, gid;
    uint64_t timeout_ms;  /* from the start; 0: none */
    uint32_t grace_ms;    /* between TERM and KILL */
    uint16_t cols, rows;
    struct proto_words groups;
    struct proto_str label; /* any text: what the host wants to be told in LIST */
    struct proto_str cwd;   /* absolute; empty: the guest's own */
    struct proto_str user;  /* name, uid, name:group or uid:gid, looked up in the sandbox; empty: none */
    struct proto_list argv; /* at least one */
    struct proto_list env;  /* each K=V */
};

enum proto_job_state { PROTO_JOB_RUNNING = 1, PROTO_JOB_ENDING = 2, PROTO_JOB_ENDED = 3 };

struct proto_spawn_answer {
    struct proto_status status;
    uint8_t  existed;    /* 1: the key was known, nothing was started */
    uint32_t pid;        /* 0: could not be started; EXIT says why */
    uint64_t start_ms;   /* wall clock of the guest */
};

/* From now on this connection gets the job's output from these offsets on, and its EXIT. What lies
 * before them is acknowledged thereby. */
struct proto_attach {
    struct proto_id key;
    uint64_t out_offset, err_offset;
};
struct proto_attach_answer {
    struct proto_status status; /* -ENOENT: no such job; -EINVAL: an offset beyond what was sent */
    uint8_t  state;
    uint32_t pid;
    uint64_t start_ms;
    uint64_t out_first, err_first;   /* where output will begin: later than asked for when older bytes
                                      * were acknowledged before */
    uint64_t stdin_received;         /* go on here */
    uint64_t stdin_limit;
    uint8_t  stdin_closed;
};

struct proto_list_jobs   { uint64_t cursor; /* 0: from the start */ };
struct proto_list_answer {
    struct proto_status status;
    uint64_t next;            /* the next cursor; 0: that was all */
    struct proto_data jobs;   /* struct proto_job, one behind the other */
};
struct proto_job {
    struct proto_id key;
    uint8_t  state;
    uint8_t  mine;            /* 1: this host spawned or attached it last */
    uint32_t pid;
    uint64_t start_ms;
    uint64_t out_acked, out_total, err_acked, err_total;
    struct proto_str label;
};

enum proto_scope { PROTO_SCOPE_MAIN = 0, PROTO_SCOPE_GROUP = 1, PROTO_SCOPE_TREE = 2 };
struct proto_signal { struct proto_id key; uint32_t signo; uint8_t scope; };
struct proto_kill   { struct proto_id key; uint32_t grace_ms; };
struct proto_resize { struct proto_id key; uint16_t cols, rows; };
struct proto_forget { struct proto_id key; };

enum proto_stream { PROTO_STDOUT = 0, PROTO_STDERR = 1, PROTO_STREAMS = 2 };

struct proto_output {
    struct proto_id key;
    uint8_t  stream;
    uint64_t offset;          /* of data[0] in its stream */
    uint64_t log_offset;      /* of data[0] in the log: both streams in the order in which they were read */
    struct proto_data data;   /* 1 to PROTO_CHUNK_MAX_BYTES */
};
/* An OUTPUT frame's bytes before its data, head included. */
#define PROTO_OUTPUT_HEAD_BYTES (PROTO_HEAD_BYTES + PROTO_ID_BYTES + 1 + 8 + 8)

struct proto_output_ack {
    struct proto_id key;
    uint64_t out_offset, err_offset; /* all before is stored; never goes back */
};

struct proto_stdin {
    struct proto_id key;
    uint64_t offset;          /* of data[0]; what the guest has already is skipped */
    uint8_t  end;             /* 1: nothing follows */
    struct proto_data data;
};
struct proto_stdin_room {
    struct proto_id key;
    uint64_t received;        /* in the guest: need not be sent again */
    uint64_t limit;           /* the first offset that may not be sent yet */
    uint8_t  closed;          /* 1: nobody reads any more; the rest is to be thrown away */
};

enum proto_end { PROTO_END_EXITED = 1, PROTO_END_SIGNALED = 2, PROTO_END_FAILED = 3 };
struct proto_exit {
    struct proto_id key;
    uint8_t  kind;
    int32_t  code;            /* exit code, signal, or the negative errno of a job that never started */
    uint8_t  timed_out;
    uint64_t out_total, err_total; /* all output has been sent before this frame */
    uint64_t start_ms, end_ms;     /* wall clock of the guest */
    struct proto_str text;    /* why it never started, or why 126 or 127 */
};
struct proto_taken { struct proto_id key; /* another host has attached it */ };

/* ── coding ──────────────────────────────────────────────────────────────────────────────── */

struct proto_head {
    uint32_t size_bytes;
    uint16_t type;
    uint64_t tag;
};

/* Where an encoder writes. With `buf` NULL it only counts, so that a caller can learn the size. */
struct proto_out {
    uint8_t *buf;
    size_t   size; /* of buf */
    size_t   len;  /* written or counted so far */
    bool     full; /* something did not fit; `len` is then meaningless */
};

/* Reads a head. 0; -EAGAIN: fewer than 16 bytes there; -EBADMSG: size out of bounds (below 16 or
 * above `max_bytes`) or flags set. */
int proto_head_decode(const uint8_t *p, size_t len, uint32_t max_bytes, struct proto_head *h);

/* Decodes the payload of a frame of `type` into *msg, the struct of that type (struct proto_plain_answer
 * for the answers said there). Members that the payload does not hold (behind a status that is not 0)
 * are 0. 0, -EBADMSG, or -ENOSYS for a type that is not known. */
int proto_decode(uint16_t type, const uint8_t *payload, size_t len, void *msg);

/* Appends a whole frame. A message that breaks a limit, or does not fit, sets o->full. Text views
 * with `s` NULL count as empty. The answer to an unknown request is a struct proto_plain_answer. */
void proto_encode(struct proto_out *o, uint16_t type, uint64_t tag, const void *msg);

/* The head and fixed fields of an OUTPUT or STDIN frame whose `data.len` bytes the caller sends
 * itself behind them (data.p is not looked at): big data is never copied into a frame. */
void proto_encode_split(struct proto_out *o, uint16_t type, uint64_t tag, const void *msg);

/* Decodes an OUTPUT frame from its first PROTO_OUTPUT_HEAD_BYTES bytes (`head` is what
 * proto_head_decode said): the rest may not have arrived. data.len is set, data.p is NULL. 0 or
 * -EBADMSG. */
int proto_output_decode(const struct proto_head *head, const uint8_t *frame, struct proto_output *m);

/* Appends one job to the `jobs` of a LIST answer; reads the next one (*pos from 0). proto_job_next
 * returns 1, 0 at the end, -EBADMSG. */
void proto_job_put(struct proto_out *o, const struct proto_job *j);
int proto_job_next(const struct proto_data *jobs, size_t *pos, struct proto_job *j);

/* sizeof the struct of a type; 0: not known. For tests, and for callers that decode anything. */
size_t proto_msg_size(uint16_t type);
/* "SPAWN", "SPAWN answer", …; "?" for unknown ones. */
const char *proto_type_name(uint16_t type);
/* Every known type in ascending order, answers last; 0 beyond the end. For tests. */
uint16_t proto_type_at(size_t i);

uint32_t proto_word(const struct proto_words *w, uint32_t i);
uint64_t proto_tag_at(const struct proto_ack *a, uint32_t i);
static inline uint32_t proto_tag_count(const struct proto_ack *a) { return a->tags.len / 8; }

/* A view of a NUL-terminated text; NULL is an empty one. Borrowed. */
struct proto_str proto_str_of(const char *s);
bool proto_id_equal(const struct proto_id *a, const struct proto_id *b);

#endif

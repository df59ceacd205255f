// SPDX-License-Identifier: Apache-2.0
/* One table of fields for each message; one encoder and one decoder walk them. */
#include "backends/guest/protocol.h"

#include <errno.h>
#include <string.h>

#include "backends/guest/fields.h"
#include "backends/guest/wire.h"

#define F(kind_, type_, member_, lo_, hi_) \
    { .kind = kind_, .at = offsetof(struct type_, member_), .lo = lo_, .hi = hi_ }
#define U8(t, m, lo, hi)  F(FIELD_U8, t, m, lo, hi)
#define U16(t, m, lo, hi) F(FIELD_U16, t, m, lo, hi)
#define U32(t, m, lo, hi) F(FIELD_U32, t, m, lo, hi)
#define U64(t, m, lo, hi) F(FIELD_U64, t, m, lo, hi)
#define ID(t, m)          F(FIELD_ID, t, m, 0, 0)
#define STR(t, m, hi)     F(FIELD_STR, t, m, 0, hi)
#define LIST(t, m, lo)    F(FIELD_LIST, t, m, lo, PROTO_LIST_MAX_COUNT)
#define DATA(t, m, lo, hi) F(FIELD_DATA, t, m, lo, hi)
#define WORDS(t, m, hi)   F(FIELD_WORDS, t, m, 0, hi)
#define STATUS(t)         F(FIELD_STATUS, t, status, 0, PROTO_TEXT_MAX_BYTES)
#define END               { .kind = FIELD_END }

#define OFFSET_MAX  (1ull << 62) /* so that sums of two never wrap */
#define GRACE_MAX   (24u * 3600 * 1000)
#define SIGNAL_MAX  64
#define ANY32       0xffffffffu
#define ANY64       UINT64_MAX

static const struct field guest_hello[] = {
    U32(proto_guest_hello, magic, PROTO_GUEST_MAGIC, PROTO_GUEST_MAGIC),
    U32(proto_guest_hello, version, 0, ANY32), U64(proto_guest_hello, features, 0, ANY64),
    ID(proto_guest_hello, instance), ID(proto_guest_hello, nonce),
    U32(proto_guest_hello, max_frame_bytes, 0, ANY32), U32(proto_guest_hello, pid, 0, ANY32),
    U32(proto_guest_hello, uid, 0, ANY32), U64(proto_guest_hello, start_ms, 0, PROTO_TIME_MAX_MS),
    STR(proto_guest_hello, program, PROTO_TEXT_MAX_BYTES), DATA(proto_guest_hello, later, 0, 4096), END,
};
static const struct field host_hello[] = {
    U32(proto_host_hello, magic, PROTO_HOST_MAGIC, PROTO_HOST_MAGIC),
    U32(proto_host_hello, version, 0, ANY32), U64(proto_host_hello, features, 0, ANY64),
    ID(proto_host_hello, nonce), ID(proto_host_hello, host), ID(proto_host_hello, epoch),
    U32(proto_host_hello, max_frame_bytes, 0, ANY32), DATA(proto_host_hello, later, 0, 4096), END,
};
static const struct field goodbye[] = {
    F(FIELD_STATUS, proto_goodbye, why, 0, PROTO_TEXT_MAX_BYTES), END,
};
static const struct field ack[] = {
    U64(proto_ack, below, 0, ANY64),
    { .kind = FIELD_DATA, .at = offsetof(struct proto_ack, tags), .lo = 0, .hi = 8 * PROTO_TAG_WINDOW, .step = 8 },
    END,
};
static const struct field ping[] = { U64(proto_ping, cookie, 0, ANY64), END };
static const struct field stop[] = { U32(proto_stop, grace_ms, 0, GRACE_MAX), END };
static const struct field ping_answer[] = {
    STATUS(proto_ping_answer), U64(proto_ping_answer, cookie, 0, ANY64),
    U32(proto_ping_answer, jobs, 0, ANY32), U32(proto_ping_answer, running, 0, ANY32), END,
};
static const struct field plain_answer[] = { STATUS(proto_plain_answer), END };

static const struct field spawn[] = {
    ID(proto_spawn, key), U32(proto_spawn, flags, 0, PROTO_SPAWN_FLAGS_ALL),
    U32(proto_spawn, uid, 0, ANY32), U32(proto_spawn, gid, 0, ANY32),
    U64(proto_spawn, timeout_ms, 0, PROTO_TIMEOUT_MAX_MS), U32(proto_spawn, grace_ms, 0, GRACE_MAX),
    U16(proto_spawn, cols, 0, 0xffff), U16(proto_spawn, rows, 0, 0xffff),
    WORDS(proto_spawn, groups, PROTO_GROUPS_MAX_COUNT), STR(proto_spawn, label, PROTO_LABEL_MAX_BYTES),
    STR(proto_spawn, cwd, PROTO_CWD_MAX_BYTES), STR(proto_spawn, user, PROTO_USER_MAX_BYTES),
    LIST(proto_spawn, argv, 1), LIST(proto_spawn, env, 0), END,
};
static const struct field spawn_answer[] = {
    STATUS(proto_spawn_answer), U8(proto_spawn_answer, existed, 0, 1),
    U32(proto_spawn_answer, pid, 0, ANY32), U64(proto_spawn_answer, start_ms, 0, PROTO_TIME_MAX_MS), END,
};
static const struct field attach[] = {
    ID(proto_attach, key), U64(proto_attach, out_offset, 0, OFFSET_MAX),
    U64(proto_attach, err_offset, 0, OFFSET_MAX), END,
};
static const struct field attach_answer[] = {
    STATUS(proto_attach_answer), U8(proto_attach_answer, state, PROTO_JOB_RUNNING, PROTO_JOB_ENDED),
    U32(proto_attach_answer, pid, 0, ANY32), U64(proto_attach_answer, start_ms, 0, PROTO_TIME_MAX_MS),
    U64(proto_attach_answer, out_first, 0, OFFSET_MAX), U64(proto_attach_answer, err_first, 0, OFFSET_MAX),
    U64(proto_attach_answer, stdin_received, 0, OFFSET_MAX),
    U64(proto_attach_answer, stdin_limit, 0, OFFSET_MAX), U8(proto_attach_answer, stdin_closed, 0, 1), END,
};
static const struct field list[] = { U64(proto_list_jobs, cursor, 0, ANY64), END };
static const struct field list_answer[] = {
    STATUS(proto_list_answer), U64(proto_list_answer, next, 0, ANY64),
    DATA(proto_list_answer, jobs, 0, PROTO_TO_HOST_MAX_BYTES), END,
};
static const struct field job[] = {
    ID(proto_job, key), U8(proto_job, state, PROTO_JOB_RUNNING, PROTO_JOB_ENDED), U8(proto_job, mine, 0, 1),
    U32(proto_job, pid, 0, ANY32), U64(proto_job, start_ms, 0, PROTO_TIME_MAX_MS),
    U64(proto_job, out_acked, 0, OFFSET_MAX), U64(proto_job, out_total, 0, OFFSET_MAX),
    U64(proto_job, err_acked, 0, OFFSET_MAX), U64(proto_job, err_total, 0, OFFSET_MAX),
    STR(proto_job, label, PROTO_LABEL_MAX_BYTES), END,
};
static const struct field sig[] = {
    ID(proto_signal, key), U32(proto_signal, signo, 1, SIGNAL_MAX),
    U8(proto_signal, scope, PROTO_SCOPE_MAIN, PROTO_SCOPE_TREE), END,
};
static const struct field kill_[] = { ID(proto_kill, key), U32(proto_kill, grace_ms, 0, GRACE_MAX), END };
static const struct field resize[] = {
    ID(proto_resize, key), U16(proto_resize, cols, 0, 0xffff), U16(proto_resize, rows, 0, 0xffff), END,
};
static const struct field forget[] = { ID(proto_forget, key), END };
static const struct field output[] = {
    ID(proto_output, key), U8(proto_output, stream, PROTO_STDOUT, PROTO_STDERR),
    U64(proto_output, offset, 0, OFFSET_MAX), U64(proto_output, log_offset, 0, OFFSET_MAX),
    DATA(proto_output, data, 1, PROTO_CHUNK_MAX_BYTES), END,
};
static const struct field output_ack[] = {
    ID(proto_output_ack, key), U64(proto_output_ack, out_offset, 0, OFFSET_MAX),
    U64(proto_output_ack, err_offset, 0, OFFSET_MAX), END,
};
static const struct field stdin_[] = {
    ID(proto_stdin, key), U64(proto_stdin, offset, 0, OFFSET_MAX), U8(proto_stdin, end, 0, 1),
    DATA(proto_stdin, data, 0, PROTO_CHUNK_MAX_BYTES), END,
};
static const struct field stdin_room[] = {
    ID(proto_stdin_room, key), U64(proto_stdin_room, received, 0, OFFSET_MAX),
    U64(proto_stdin_room, limit, 0, OFFSET_MAX), U8(proto_stdin_room, closed, 0, 1), END,
};
static const struct field exit_[] = {
    ID(proto_exit, key), U8(proto_exit, kind, PROTO_END_EXITED, PROTO_END_FAILED),
    F(FIELD_I32, proto_exit, code, 0, 0), U8(proto_exit, timed_out, 0, 1),
    U64(proto_exit, out_total, 0, OFFSET_MAX), U64(proto_exit, err_total, 0, OFFSET_MAX),
    U64(proto_exit, start_ms, 0, PROTO_TIME_MAX_MS), U64(proto_exit, end_ms, 0, PROTO_TIME_MAX_MS),
    STR(proto_exit, text, PROTO_TEXT_MAX_BYTES), END,
};
static const struct field taken[] = { ID(proto_taken, key), END };

static const struct message {
    uint16_t type;
    const char *name;
    const struct field *fields;
    size_t size_bytes;
} messages[] = {
#define M(type_, fields_, struct_) { type_, &#type_[6], fields_, sizeof(struct struct_) }
#define A(type_, fields_, struct_) \
    { type_ | PROTO_ANSWER, &(#type_ " answer")[6], fields_, sizeof(struct struct_) }
    M(PROTO_GUEST_HELLO, guest_hello, proto_guest_hello), M(PROTO_HOST_HELLO, host_hello, proto_host_hello),
    M(PROTO_GOODBYE, goodbye, proto_goodbye), M(PROTO_ACK, ack, proto_ack), M(PROTO_PING, ping, proto_ping),
    M(PROTO_STOP, stop, proto_stop), M(PROTO_SPAWN, spawn, proto_spawn), M(PROTO_ATTACH, attach, proto_attach),
    M(PROTO_LIST, list, proto_list_jobs), M(PROTO_SIGNAL, sig, proto_signal), M(PROTO_KILL, kill_, proto_kill),
    M(PROTO_RESIZE, resize, proto_resize), M(PROTO_FORGET, forget, proto_forget),
    M(PROTO_OUTPUT, output, proto_output), M(PROTO_OUTPUT_ACK, output_ack, proto_output_ack),
    M(PROTO_STDIN, stdin_, proto_stdin), M(PROTO_STDIN_ROOM, stdin_room, proto_stdin_room),
    M(PROTO_EXIT, exit_, proto_exit), M(PROTO_TAKEN, taken, proto_taken),
    A(PROTO_PING, ping_answer, proto_ping_answer), A(PROTO_STOP, plain_answer, proto_plain_answer),
    A(PROTO_SPAWN, spawn_answer, proto_spawn_answer), A(PROTO_ATTACH, attach_answer, proto_attach_answer),
    A(PROTO_LIST, list_answer, proto_list_answer), A(PROTO_SIGNAL, plain_answer, proto_plain_answer),
    A(PROTO_KILL, plain_answer, proto_plain_answer), A(PROTO_RESIZE, plain_answer, proto_plain_answer),
    A(PROTO_FORGET, plain_answer, proto_plain_answer),
#undef M
#undef A
};
#define MESSAGES (sizeof(messages) / sizeof(messages[0]))

static const struct message *find(uint16_t type)
{
    for (size_t i = 0; i < MESSAGES; i++)
        if (messages[i].type == type)
            return &messages[i];
    return NULL;
}

size_t proto_msg_size(uint16_t type)
{
    const struct message *m = find(type);

    return m ? m->size_bytes : 0;
}

const char *proto_type_name(uint16_t type)
{
    const struct message *m = find(type);

    return m ? m->name : "?";
}

uint16_t proto_type_at(size_t i) { return i < MESSAGES ? messages[i].type : 0; }

int proto_head_decode(const uint8_t *p, size_t len, uint32_t max_bytes, struct proto_head *h)
{
    if (len < PROTO_HEAD_BYTES)
        return -EAGAIN;
    h->size_bytes = wire_get32(p);
    h->type = wire_get16(p + 4);
    h->tag = wire_get64(p + 8);
    bool ok = h->size_bytes >= PROTO_HEAD_BYTES && h->size_bytes <= max_bytes && wire_get16(p + 6) == 0;
    return ok ? 0 : -EBADMSG;
}

int proto_decode(uint16_t type, const uint8_t *payload, size_t len, void *msg)
{
    const struct message *m = find(type);
    struct field_in in = { .p = payload, .left = len };

    if (!m)
        return -ENOSYS;
    memset(msg, 0, m->size_bytes);
    fields_decode(m->fields, &in, msg);
    return in.bad || in.left ? -EBADMSG : 0;
}

static void encode(struct proto_out *o, uint16_t type, uint64_t tag, const void *msg, bool split)
{
    const struct message *m = find(type);
    size_t start = o->len, data = 0;
    uint8_t head[PROTO_HEAD_BYTES] = { 0 };

    if (!m && (type & PROTO_ANSWER)) /* -ENOSYS, to a request of the future */
        m = find(PROTO_STOP | PROTO_ANSWER);
    if (!m) {
        o->full = true;
        return;
    }
    fields_put(o, head, sizeof(head));
    fields_encode(m->fields, o, msg, split ? &data : NULL);
    if (o->full || o->len - start + data > PROTO_TO_GUEST_MAX_BYTES) {
        o->full = true;
        return;
    }
    if (!o->buf)
        return;
    wire_put32(o->buf + start, (uint32_t)(o->len - start + data));
    wire_put16(o->buf + start + 4, type);
    wire_put64(o->buf + start + 8, tag);
}

void proto_encode(struct proto_out *o, uint16_t type, uint64_t tag, const void *msg)
{
    encode(o, type, tag, msg, false);
}

void proto_encode_split(struct proto_out *o, uint16_t type, uint64_t tag, const void *msg)
{
    encode(o, type, tag, msg, true);
}

int proto_output_decode(const struct proto_head *head, const uint8_t *frame, struct proto_output *m)
{
    struct field_in in = { .p = frame + PROTO_HEAD_BYTES, .left = PROTO_OUTPUT_HEAD_BYTES - PROTO_HEAD_BYTES };

    memset(m, 0, sizeof(*m));
    if (head->size_bytes <= PROTO_OUTPUT_HEAD_BYTES ||
        head->size_bytes > PROTO_OUTPUT_HEAD_BYTES + PROTO_CHUNK_MAX_BYTES)
        return -EBADMSG;
    fields_decode_fixed(output, &in, m);
    m->data.len = head->size_bytes - PROTO_OUTPUT_HEAD_BYTES;
    return in.bad ? -EBADMSG : 0;
}

void proto_job_put(struct proto_out *o, const struct proto_job *j) { fields_encode(job, o, j, NULL); }

int proto_job_next(const struct proto_data *jobs, size_t *pos, struct proto_job *j)
{
    struct field_in in = { .p = jobs->p + *pos, .left = jobs->len - *pos };

    if (in.left == 0)
        return 0;
    memset(j, 0, sizeof(*j));
    fields_decode(job, &in, j);
    *pos = jobs->len - in.left;
    return in.bad ? -EBADMSG : 1;
}

uint32_t proto_word(const struct proto_words *w, uint32_t i) { return wire_get32(w->p + 4 * (size_t)i); }
uint64_t proto_tag_at(const struct proto_ack *a, uint32_t i) { return wire_get64(a->tags.p + 8 * (size_t)i); }

struct proto_str proto_str_of(const char *s)
{
    return (struct proto_str){ s ? s : "", s ? (uint32_t)strlen(s) : 0 };
}

bool proto_id_equal(const struct proto_id *a, const struct proto_id *b)
{
    return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

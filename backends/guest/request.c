// SPDX-License-Identifier: Apache-2.0
/* What a host may ask for: one table, one function for each type. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "backends/guest/guest.h"

#define LIST_BYTES (32u << 10) /* of one LIST answer */

/* Any decoded message. */
union message {
    struct proto_goodbye goodbye;
    struct proto_ack ack;
    struct proto_ping ping;
    struct proto_stop stop;
    struct proto_spawn spawn;
    struct proto_attach attach;
    struct proto_list_jobs list;
    struct proto_signal signal;
    struct proto_kill kill;
    struct proto_resize resize;
    struct proto_forget forget;
    struct proto_output_ack output_ack;
    struct proto_stdin in;
};

struct request {
    struct guest *g;
    struct conn  *c;
    uint16_t      type;
    uint64_t      tag;
    bool          keep; /* the answer, until it is acknowledged */
    const union message *m;
};

/* ── answers ── */

static void answer(const struct request *r, const void *msg)
{
    struct record *rec = conn_queue(r->c, r->type | PROTO_ANSWER, r->tag, msg);

    if (!rec)
        conn_goodbye(r->g, r->c, -ENOMEM, "no memory for an answer");
    else if (r->keep)
        host_keep(r->c->host, rec);
}

static void answer_plain(const struct request *r, int code, const char *text)
{
    struct proto_plain_answer a = { { code, proto_str_of(text) } };

    answer(r, &a);
}

/* The types that have a struct of their own begin with the status, and end there when it is not 0. */
static void refuse(const struct request *r, int code, const char *text)
{
    union {
        struct proto_status status;
        struct proto_attach_answer attach;
        struct proto_spawn_answer spawn;
    } a = { .status = { code, proto_str_of(text) } };

    answer(r, &a);
}

#define NO_JOB "the guest does not know this job"

/* ── the connection ── */

static void on_ping(const struct request *r)
{
    struct proto_ping_answer a = { .cookie = r->m->ping.cookie, .jobs = r->g->n_jobs, .running = r->g->n_running };

    answer(r, &a);
}

static void on_stop(const struct request *r)
{
    answer_plain(r, 0, "");
    guest_stop(r->g, r->m->stop.grace_ms);
}

static void on_ack(const struct request *r) { host_acknowledge(r->c->host, &r->m->ack); }

static void on_goodbye(const struct request *r) { conn_close(r->g, r->c); }

/* ── jobs ── */

static void on_spawn(const struct request *r)
{
    struct job *j = job_find(r->g, &r->m->spawn.key);
    struct proto_spawn_answer a = { .existed = j != NULL };
    const char *why = "";

    if (!j && r->g->stopping) {
        refuse(r, -ESHUTDOWN, "the sandbox is being stopped");
        return;
    }
    if (!j)
        j = job_spawn(r->g, r->c->host, &r->m->spawn, &why);
    if (!j) {
        refuse(r, -EAGAIN, why);
        return;
    }
    a.pid = (uint32_t)j->pid;
    a.start_ms = j->start_ms;
    answer(r, &a);
}

static void on_attach(const struct request *r)
{
    const uint64_t from[PROTO_STREAMS] = { r->m->attach.out_offset, r->m->attach.err_offset };
    struct job *j = job_find(r->g, &r->m->attach.key);

    if (!j) {
        refuse(r, -ENOENT, NO_JOB);
        return;
    }
    if (from[0] > j->out[0].ring.head || from[1] > j->out[1].ring.head) {
        refuse(r, -EINVAL, "the job has not written that much yet");
        return;
    }
    job_attach(r->g, j, r->c->host, from);
    struct proto_attach_answer a = {
        .state = j->state, .pid = (uint32_t)j->pid, .start_ms = j->start_ms, .out_first = j->out[0].sent,
        .err_first = j->out[1].sent, .stdin_received = j->in.ring.head, .stdin_limit = j->in.limit,
        .stdin_closed = j->in.closed,
    };
    answer(r, &a);
}

static void list_one(const struct request *r, struct proto_out *o, const struct job *j)
{
    struct proto_job p = {
        .key = j->key, .state = j->state, .mine = j->host == r->c->host, .pid = (uint32_t)j->pid,
        .start_ms = j->start_ms, .out_acked = j->out[0].ring.tail, .out_total = j->out[0].ring.head,
        .err_acked = j->out[1].ring.tail, .err_total = j->out[1].ring.head, .label = proto_str_of(j->label),
    };

    proto_job_put(o, &p);
}

static void on_list(const struct request *r)
{
    struct proto_list_answer a = { 0 };
    cleanup_free uint8_t *buf = malloc(LIST_BYTES);
    struct proto_out o = { buf, LIST_BYTES, 0, buf == NULL };

    list_for_each(pos, &r->g->jobs) {
        struct job *j = container_of(pos, struct job, all);
        size_t before = o.len;

        if (j->serial < r->m->list.cursor)
            continue;
        list_one(r, &o, j);
        if (o.full) {
            o.len = before;
            a.next = j->serial;
            break;
        }
    }
    a.jobs = (struct proto_data){ buf, (uint32_t)o.len };
    if (buf)
        answer(r, &a);
    else
        refuse(r, -ENOMEM, "the guest is out of memory");
}

static void on_signal(const struct request *r)
{
    const struct proto_signal *m = &r->m->signal;
    struct job *j = job_find(r->g, &m->key);
    int error = 0;

    if (!j || j->reaped || !j->pid) {
        answer_plain(r, j ? -ESRCH : -ENOENT, j ? "the job has ended" : NO_JOB);
        return;
    }
    if (m->scope == PROTO_SCOPE_TREE)
        tree_signal(r->g, j, (int)m->signo, false);
    else if (m->scope == PROTO_SCOPE_GROUP)
        error = tree_kill_group(j, (int)m->signo);
    else if (kill(j->pid, (int)m->signo) != 0)
        error = -errno;
    answer_plain(r, error, error ? strerror(-error) : "");
}

static void on_kill(const struct request *r)
{
    struct job *j = job_find(r->g, &r->m->kill.key);

    if (!j || job_ended(j)) {
        answer_plain(r, j ? -ESRCH : -ENOENT, j ? "the job has ended" : NO_JOB);
        return;
    }
    job_kill(r->g, j, r->m->kill.grace_ms);
    answer_plain(r, 0, "");
}

static void on_resize(const struct request *r)
{
    struct job *j = job_find(r->g, &r->m->resize.key);
    int error = !j ? -ENOENT : !j->tty ? -ENOTTY : job_ended(j) ? -ESRCH : 0;

    if (!error)
        error = spawn_resize(j->out[PROTO_STDOUT].src.fd, r->m->resize.cols, r->m->resize.rows);
    answer_plain(r, error, error == -ENOENT ? NO_JOB : error == -ENOTTY ? "the job has no terminal"
                           : error == -ESRCH ? "the job has ended" : error ? strerror(-error) : "");
}

static void on_forget(const struct request *r)
{
    struct job *j = job_find(r->g, &r->m->forget.key);

    if (j && !job_ended(j)) {
        answer_plain(r, -EBUSY, "the job has not ended");
        return;
    }
    if (j)
        job_forget(r->g, j);
    answer_plain(r, 0, "");
}

/* Acknowledgements and input may be on their way when a job is forgotten or taken by another host. */
static struct job *own_job(const struct request *r, const struct proto_id *key)
{
    struct job *j = job_find(r->g, key);

    return j && j->attached && j->host == r->c->host ? j : NULL;
}

static void on_output_ack(const struct request *r)
{
    struct job *j = own_job(r, &r->m->output_ack.key);

    if (j && (!output_acknowledge(r->g, &j->out[PROTO_STDOUT], r->m->output_ack.out_offset) ||
              !output_acknowledge(r->g, &j->out[PROTO_STDERR], r->m->output_ack.err_offset)))
        conn_goodbye(r->g, r->c, -EPROTO, "output was acknowledged that had not been sent");
}

static void on_stdin(const struct request *r)
{
    struct job *j = own_job(r, &r->m->in.key);

    if (j && !input_receive(r->g, j, &r->m->in))
        conn_goodbye(r->g, r->c, -EPROTO, "standard input with a gap or beyond its limit");
}

/* ── dispatch ── */

static const struct handler {
    uint16_t type;
    bool     request, keep; /* keep: not to be executed twice */
    void   (*handle)(const struct request *r);
} handlers[] = {
    { PROTO_STDIN, false, false, on_stdin },
    { PROTO_OUTPUT_ACK, false, false, on_output_ack },
    { PROTO_ACK, false, false, on_ack },
    { PROTO_SPAWN, true, true, on_spawn },
    { PROTO_FORGET, true, true, on_forget },
    { PROTO_ATTACH, true, false, on_attach },
    { PROTO_SIGNAL, true, true, on_signal },
    { PROTO_KILL, true, true, on_kill },
    { PROTO_RESIZE, true, true, on_resize },
    { PROTO_LIST, true, false, on_list },
    { PROTO_PING, true, false, on_ping },
    { PROTO_STOP, true, true, on_stop },
    { PROTO_GOODBYE, false, false, on_goodbye },
};

static const struct handler *find(uint16_t type)
{
    for (size_t i = 0; i < array_size(handlers); i++)
        if (handlers[i].type == type)
            return &handlers[i];
    return NULL;
}

/* A request that was answered before gets the same answer again. */
static bool is_repeat(struct conn *c, const struct proto_head *head)
{
    struct record *rec = host_record(c->host, head->tag);

    if (!rec)
        return false;
    if (list_empty(&rec->unsent))
        list_append(&c->answers, &rec->unsent);
    return true;
}

static bool broken(struct guest *g, struct conn *c, const char *why)
{
    conn_goodbye(g, c, -EPROTO, why);
    return false;
}

bool request_frame(struct guest *g, struct conn *c, const struct proto_head *head, const uint8_t *payload)
{
    const struct handler *h = find(head->type);
    union message m;
    struct request r = { g, c, head->type, head->tag, h && h->keep, &m };

    if ((!h || h->request) && (head->tag == 0 || (head->type & PROTO_ANSWER)))
        return broken(g, c, "a request without a tag, or an answer");
    if (!h) {
        answer_plain(&r, -ENOSYS, "this guest is too old for that");
        return c->state == CONN_OPEN;
    }
    if (proto_decode(head->type, payload, head->size_bytes - PROTO_HEAD_BYTES, &m) != 0)
        return broken(g, c, "a malformed frame");
    if (h->keep && is_repeat(c, head))
        return true;
    if (h->keep && c->host->n_records >= PROTO_TAG_WINDOW)
        return broken(g, c, "too many answers that were not acknowledged");
    h->handle(&r);
    return c->state == CONN_OPEN;
}

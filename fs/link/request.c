// SPDX-License-Identifier: Apache-2.0
/* Requests and their answers. A request is sent again on each new connection until it is answered; the
 * guest executes it once, since it keeps its answer until that is acknowledged. */
#include <errno.h>
#include <string.h>

#include "backends/guest/wire.h"
#include "fs/link/internal.h"

struct request *request_new(uint16_t type, const void *msg)
{
    struct proto_out o = { NULL, 0, 0, false };
    struct request *r;

    proto_encode(&o, type, 0, msg);
    r = o.full ? NULL : calloc(1, sizeof(*r) + o.len);
    if (!r)
        return NULL;
    list_init(&r->links);
    r->type = type;
    r->len = (uint32_t)o.len;
    o = (struct proto_out){ r->frame, o.len, 0, false };
    proto_encode(&o, type, 0, msg);
    return r;
}

static void finish(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    list_remove(&r->links);
    if (r->answered)
        r->answered(l, r, status, text, msg);
    free(r);
}

void request_queue(struct link *l, struct request *r)
{
    if (l->closing || l->state == LINK_LOST) {
        finish(l, r, l->closing ? -ESHUTDOWN : -EHOSTUNREACH, "the sandbox is gone", NULL);
        return;
    }
    list_append(&l->unsent, &r->links);
    link_expect(l);
    link_busy(l);
}

void request_fail_all(struct link *l, int code, const char *why)
{
    list_splice(&l->sent, &l->unsent);
    l->n_sent = 0;
    while (!list_empty(&l->sent))
        finish(l, container_of(l->sent.next, struct request, links), code, why, NULL);
}

void requests_rewind(struct link *l)
{
    list_for_each_safe(pos, &l->sent) {
        struct request *r = container_of(pos, struct request, links);

        if (!r->once)
            continue;
        finish(l, r, -ECONNRESET, "the stream broke", NULL);
    }
    list_splice(&l->sent, &l->unsent); /* sent ones have the smaller tags */
    list_splice(&l->unsent, &l->sent);
    l->n_sent = 0;
}

/* So that the guest need not keep the answer. One that is left out is made up for by the floor. */
static void acknowledge(struct link *l, const struct request *r)
{
    if (l->n_acks == IN_FLIGHT_MAX)
        return;
    wire_put64(l->acks + 8 * l->n_acks, r->tag);
    l->n_acks++;
}

uint64_t requests_floor(struct link *l)
{
    const struct list *first = !list_empty(&l->sent) ? l->sent.next : !list_empty(&l->unsent) ? l->unsent.next : NULL;
    const struct request *r = first ? container_of(first, struct request, links) : NULL;

    return r && r->tag ? r->tag : l->next_tag;
}

static struct request *find_sent(struct link *l, uint64_t tag)
{
    list_for_each(pos, &l->sent) {
        struct request *r = container_of(pos, struct request, links);

        if (r->tag == tag)
            return r;
    }
    return NULL;
}

bool request_answered(struct link *l, const struct proto_head *head, const uint8_t *payload)
{
    union {
        struct proto_status status; /* each of them begins with it */
        struct proto_ping_answer ping;
        struct proto_spawn_answer spawn;
        struct proto_attach_answer attach;
        struct proto_list_answer list;
        struct proto_plain_answer plain;
    } m;
    struct request *r = find_sent(l, head->tag);

    if (!r || head->type != (r->type | PROTO_ANSWER) ||
        proto_decode(head->type, payload, head->size_bytes - PROTO_HEAD_BYTES, &m) != 0)
        return false;
    acknowledge(l, r);
    l->n_sent--;
    l->progress = true;
    l->broken_rule = NULL;
    finish(l, r, m.status.code, m.status.text.s, &m);
    return !l->broken_rule;
}

void requests_refuse(struct link *l, struct link_job *j, int code, const char *why)
{
    list_for_each_safe(pos, &l->unsent) {
        struct request *r = container_of(pos, struct request, links);

        if (r->job == j)
            finish(l, r, code, why, NULL);
    }
}

void requests_let_go(struct link *l, struct link_job *j)
{
    struct list *const queues[] = { &l->sent, &l->unsent };

    for (size_t q = 0; q < array_size(queues); q++)
        list_for_each(pos, queues[q]) {
            struct request *r = container_of(pos, struct request, links);

            if (r->job != j)
                continue;
            if (r->done)
                r->done(r->arg, -ECANCELED, "the job was released");
            r->job = NULL;
            r->done = NULL;
        }
}

void request_plain_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    (void)l, (void)msg;
    if (r->done)
        r->done(r->arg, status, text);
}

/* ── what callers ask of a link ── */

/* Carries a request from any thread to the loop. */
struct post {
    struct link_call call;
    struct link     *link;
    struct request  *request;
};

static void on_post(struct link_call *c)
{
    struct post *p = container_of(c, struct post, call);
    struct link *l = p->link;
    struct request *r = p->request;

    free(p);
    r->since_ns = link_now_ns();
    request_queue(l, r);
}

int request_post(struct link *l, struct request *r)
{
    struct post *p = r ? malloc(sizeof(*p)) : NULL;

    if (!p) {
        free(r);
        return -ENOMEM;
    }
    *p = (struct post){ .call.run = on_post, .link = l, .request = r };
    link_loop_call(l->loop, &p->call);
    return 0;
}

static void ping_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    (void)l, (void)text, (void)msg;
    r->ping_done(r->arg, status, link_now_ns() - r->since_ns);
}

int link_ping(struct link *l, void (*done)(void *arg, int status, int64_t took_ns), void *arg)
{
    struct proto_ping m = { 0 };
    struct request *r = request_new(PROTO_PING, &m);

    if (!r)
        return -ENOMEM;
    r->answered = ping_answered;
    r->ping_done = done;
    r->arg = arg;
    return request_post(l, r);
}

int link_stop(struct link *l, uint32_t grace_ms, link_done_fn *done, void *arg)
{
    struct proto_stop m = { grace_ms };
    struct request *r = request_new(PROTO_STOP, &m);

    if (!r)
        return -ENOMEM;
    r->answered = request_plain_answered;
    r->done = done;
    r->arg = arg;
    return request_post(l, r);
}

/* ── the list of jobs ── */

static void list_answered(struct link *l, struct request *r, int status, const char *text, const void *msg);

static struct request *list_request(uint64_t cursor, void (*each)(void *, const struct link_listed *),
                                    link_done_fn *done, void *arg)
{
    struct proto_list_jobs m = { cursor };
    struct request *r = request_new(PROTO_LIST, &m);

    if (!r)
        return NULL;
    r->answered = list_answered;
    r->each = each;
    r->done = done;
    r->arg = arg;
    return r;
}

static void list_one(struct request *r, const struct proto_job *j)
{
    struct link_listed e = {
        .ended = j->state == PROTO_JOB_ENDED, .mine = j->mine, .pid = j->pid, .start_ms = (int64_t)j->start_ms,
        .acked = { j->out_acked, j->err_acked }, .total = { j->out_total, j->err_total }, .label = j->label.s,
    };

    memcpy(e.key.b, j->key.b, sizeof(e.key.b));
    r->each(r->arg, &e);
}

static void list_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    const struct proto_list_answer *m = msg;
    struct request *next = NULL;
    struct proto_job j;
    size_t pos = 0;
    int more;

    while (status == 0 && (more = proto_job_next(&m->jobs, &pos, &j)) != 0) {
        if (more < 0)
            status = -EPROTO;
        else
            list_one(r, &j);
    }
    if (status == 0 && m->next) {
        next = list_request(m->next, r->each, r->done, r->arg);
        status = next ? 0 : -ENOMEM;
    }
    if (next)
        request_queue(l, next);
    else if (r->done)
        r->done(r->arg, status, status ? text : "");
}

int link_list(struct link *l, void (*each)(void *arg, const struct link_listed *j), link_done_fn *done, void *arg)
{
    return request_post(l, list_request(0, each, done, arg));
}

// SPDX-License-Identifier: Apache-2.0
/* Jobs as the guest tells of them. */
#include <errno.h>
#include <string.h>

#include "fs/link/internal.h"

#define OFFSET_MAX (1ull << 62)

static struct link_job **place(struct link *l, const struct proto_id *key)
{
    uint32_t h = 2166136261u;

    for (int i = 0; i < PROTO_ID_BYTES; i++)
        h = (h ^ key->b[i]) * 16777619u; /* FNV-1a */
    return &l->by_key[h % JOB_BUCKETS];
}

struct link_job *link_find_job(struct link *l, const struct proto_id *key)
{
    struct link_job *j = *place(l, key);

    while (j && !proto_id_equal(&j->key, key))
        j = j->next;
    return j;
}

void job_dirty(struct link_job *j)
{
    if (list_empty(&j->dirty))
        list_append(&j->link->dirty, &j->dirty);
    link_busy(j->link);
}

/* No callback but `released` once the link is closed, or the job was let go of here. */
static bool may_tell(const struct link_job *j) { return !j->link->closing && !j->quiet; }

/* ── endings ── */

static void exited(struct link_job *j, const struct link_exit *x)
{
    if (j->exited)
        return;
    j->exited = true;
    stdin_close(j);
    if (j->ops->exited && may_tell(j))
        j->ops->exited(j, j->arg, x);
}

/* It never got to the guest (FAILED), or is there no more (LOST). */
static void ended(struct link_job *j, enum link_end kind, int code, const char *why)
{
    struct link_exit x = { .kind = kind, .code = code, .text = why, .unasked = kind == LINK_END_LOST && !j->asked };

    for (int s = 0; s < LINK_STREAMS; s++)
        x.total[s] = j->streams[s].received;
    exited(j, &x);
}

void jobs_lose(struct link *l, int code, const char *why)
{
    list_for_each_safe(pos, &l->jobs)
        ended(container_of(pos, struct link_job, all), LINK_END_LOST, code, why);
}

/* ── spawning ── */

static void spawn_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    const struct proto_spawn_answer *m = msg;
    struct link_job *j = r->job;

    (void)l;
    if (!j)
        return;
    j->spawning = false;
    if (status == 0) {
        j->existed = m->existed != 0;
        return;
    }
    j->attach_due = false;
    ended(j, msg ? LINK_END_FAILED : LINK_END_LOST, status, text);
}

void job_spawn_sent(struct link_job *j)
{
    j->attach_due = true;
    job_dirty(j);
}

static bool wrong_guest(struct link_job *j)
{
    struct link *l = j->link;

    return j->has_instance && l->pinned && memcmp(&j->instance, &l->guest.instance, sizeof(j->instance)) != 0;
}

void jobs_connected(struct link *l)
{
    static const char another[] = "the sandbox was restarted and its jobs are gone";

    list_for_each(pos, &l->jobs) {
        struct link_job *j = container_of(pos, struct link_job, all);

        if (wrong_guest(j)) {
            requests_refuse(l, j, -ENXIO, another);
            ended(j, LINK_END_LOST, -ENXIO, another);
        }
        if (!j->spawning && !j->exited)
            job_spawn_sent(j);
    }
}

void jobs_disconnected(struct link *l)
{
    list_for_each(pos, &l->jobs) {
        struct link_job *j = container_of(pos, struct link_job, all);

        j->attach_due = j->attaching = j->attached = false;
        list_remove(&j->dirty);
    }
}

/* ── attaching ── */

static void tell_started(struct link_job *j, const struct proto_attach_answer *m)
{
    struct link_started s = {
        .existed = j->existed, .pid = m->pid, .start_ms = (int64_t)m->start_ms,
        .first = { m->out_first, m->err_first }, .stdin_offset = m->stdin_received,
    };

    if (j->started)
        return;
    j->started = true;
    for (int i = 0; i < LINK_STREAMS; i++)
        j->streams[i].received = j->streams[i].acked = s.first[i];
    if (j->ops->started && may_tell(j))
        j->ops->started(j, j->arg, &s);
}

/* The first answer may tell of bytes that are gone; a later one may not. */
static bool goes_on(const struct link_job *j, const struct proto_attach_answer *m)
{
    const uint64_t first[LINK_STREAMS] = { m->out_first, m->err_first };

    for (int i = 0; i < LINK_STREAMS; i++)
        if (j->started ? first[i] != j->streams[i].received : first[i] < j->streams[i].received)
            return false;
    return true;
}

static void attach_answered(struct link *l, struct request *r, int status, const char *text, const void *msg)
{
    const struct proto_attach_answer *m = msg;
    struct link_job *j = r->job;

    if (!j || !msg) /* released, or the connection broke: another ATTACH follows */
        return;
    j->attaching = false;
    if (status != 0) {
        if (!j->spawning)
            ended(j, LINK_END_LOST, status, text);
        return;
    }
    if (!goes_on(j, m) || !stdin_attached(j, m)) {
        l->broken_rule = "a job's streams went back";
        return;
    }
    j->attached = true;
    tell_started(j, m);
    job_dirty(j);
}

struct request *job_attach_request(struct link_job *j)
{
    struct proto_attach m = { j->key, j->streams[LINK_STDOUT].received, j->streams[LINK_STDERR].received };
    struct request *r = request_new(PROTO_ATTACH, &m);

    if (!r)
        return NULL;
    r->once = true;
    r->job = j;
    r->answered = attach_answered;
    return r;
}

/* ── what the guest tells ── */

/* Output of a job that was let go of is skipped: the guest could not know. */
bool job_output_begin(struct link *l, const struct proto_output *m)
{
    struct link_job *j = link_find_job(l, &m->key);
    struct job_stream *s = j ? &j->streams[m->stream] : NULL;

    l->in = (struct incoming){ .job = NULL, .stream = m->stream, .left = m->data.len };
    if (!j || !j->attached || j->exited)
        return true;
    if (m->offset != s->received || m->log_offset < s->log_end || m->offset + m->data.len > OFFSET_MAX ||
        m->log_offset + m->data.len > OFFSET_MAX ||
        m->offset + m->data.len - s->acked > PROTO_OUTPUT_WINDOW_MAX_BYTES)
        return false;
    s->log_end = m->log_offset;
    l->in.job = j;
    l->progress = true;
    return true;
}

void job_output_data(struct link *l, const uint8_t *data, uint32_t len)
{
    struct link_job *j = l->in.job;
    struct job_stream *s;
    uint64_t offset, log_offset;

    if (!j)
        return;
    s = &j->streams[l->in.stream];
    offset = s->received;
    log_offset = s->log_end;
    s->received += len;
    s->log_end += len;
    if (j->ops->output && may_tell(j))
        j->ops->output(j, j->arg, l->in.stream, offset, log_offset, data, len);
}

bool job_exit(struct link *l, const struct proto_exit *m)
{
    static const enum link_end kinds[] = {
        [PROTO_END_EXITED] = LINK_END_EXITED, [PROTO_END_SIGNALED] = LINK_END_SIGNALED,
        [PROTO_END_FAILED] = LINK_END_FAILED,
    };
    struct link_job *j = link_find_job(l, &m->key);
    struct link_exit x = {
        .kind = kinds[m->kind], .code = m->code, .timed_out = m->timed_out, .total = { m->out_total, m->err_total },
        .start_ms = (int64_t)m->start_ms, .end_ms = (int64_t)m->end_ms, .text = m->text.s,
    };

    if (!j || !j->attached)
        return true;
    if (m->out_total != j->streams[LINK_STDOUT].received || m->err_total != j->streams[LINK_STDERR].received)
        return false;
    exited(j, &x);
    return true;
}

bool job_taken(struct link *l, const struct proto_taken *m)
{
    struct link_job *j = link_find_job(l, &m->key);

    if (!j || !j->attached || j->exited)
        return true;
    j->attached = false;
    j->exited = true; /* nothing more is told */
    stdin_close(j);
    if (j->ops->taken && may_tell(j))
        j->ops->taken(j, j->arg);
    return true;
}

/* ── acknowledging ── */

bool job_take_acks(struct link_job *j, struct proto_output_ack *m)
{
    uint64_t to[LINK_STREAMS];
    bool news = false;

    {
        scoped_lock(&j->link->loop->lock);
        for (int i = 0; i < LINK_STREAMS; i++)
            to[i] = j->streams[i].want;
    }
    for (int i = 0; i < LINK_STREAMS; i++) {
        struct job_stream *s = &j->streams[i];

        if (to[i] > s->received)
            to[i] = s->received;
        news |= to[i] > s->acked;
        if (to[i] > s->acked)
            s->acked = to[i];
    }
    *m = (struct proto_output_ack){ j->key, j->streams[LINK_STDOUT].acked, j->streams[LINK_STDERR].acked };
    return news;
}

static void on_ack(struct link_call *c)
{
    struct link_job *j = container_of(c, struct link_job, ack_call);

    {
        scoped_lock(&j->link->loop->lock);
        j->ack_queued = false;
    }
    job_dirty(j);
}

void link_job_ack(struct link_job *j, enum link_stream stream, uint64_t offset)
{
    bool queue;

    {
        scoped_lock(&j->link->loop->lock);
        if (offset <= j->streams[stream].want)
            return;
        j->streams[stream].want = offset;
        queue = !j->ack_queued;
        j->ack_queued = true;
    }
    if (queue)
        link_loop_call(j->link->loop, &j->ack_call);
}

/* ── life ── */

static void on_start(struct link_call *c)
{
    struct link_job *j = container_of(c, struct link_job, start_call);
    struct link *l = j->link;
    struct request *r = steal_ptr(&j->spawn);
    struct link_job **at = place(l, &j->key);

    l->refs++;
    j->next = *at;
    *at = j;
    j->asked = !r;
    list_append(&l->jobs, &j->all);
    if (l->state == LINK_LOST || l->closing || wrong_guest(j)) {
        free(r);
        ended(j, LINK_END_LOST, -ENXIO, "the sandbox is gone");
    } else if (r) {
        j->spawning = true;
        r->job = j;
        r->answered = spawn_answered;
        request_queue(l, r);
    } else if (l->greeted) {
        job_spawn_sent(j);
    }
}

static void release(struct link_job *j)
{
    struct link_job **at;
    struct link *l = j->link;

    requests_let_go(l, j);
    if (j->keep)
        free(j->forget);
    else
        request_queue(l, j->forget);
    if (l->in.job == j)
        l->in.job = NULL;
    at = place(l, &j->key);
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    list_remove(&j->all);
    list_remove(&j->dirty);
    if (j->ops->released)
        j->ops->released(j->arg);
    stdin_finish(j);
    free(j);
    link_unref(l);
}

/* A callback that was under way when the job was let go of on another thread may have queued calls on
 * it behind this one. From now on there are no callbacks, so at the second time it is the last. */
static void on_end(struct link_call *c)
{
    struct link_job *j = container_of(c, struct link_job, end_call);

    if (j->ending) {
        release(j);
        return;
    }
    j->ending = j->quiet = true;
    link_loop_call(j->link->loop, &j->end_call);
}

struct link_job *link_job_new(struct link *l, const struct link_id *key, const struct link_job_ops *ops, void *arg)
{
    struct link_job *j = calloc(1, sizeof(*j));
    struct proto_forget m;

    if (!j)
        return NULL;
    memcpy(j->key.b, key->b, sizeof(j->key.b));
    m.key = j->key;
    j->forget = request_new(PROTO_FORGET, &m); /* so that forgetting cannot fail */
    if (!j->forget) {
        free(j);
        return NULL;
    }
    j->link = l;
    j->ops = ops;
    j->arg = arg;
    list_init(&j->all);
    list_init(&j->dirty);
    j->start_call.run = on_start;
    j->ack_call.run = on_ack;
    j->end_call.run = on_end;
    return j;
}

int link_job_attach(struct link *l, const struct link_id *key, const uint64_t from[LINK_STREAMS],
                    const struct link_job_ops *ops, void *arg, struct link_job **out)
{
    struct link_job *j = link_job_new(l, key, ops, arg);

    if (!j)
        return -ENOMEM;
    stdin_init(j, true, false);
    for (int i = 0; i < LINK_STREAMS; i++)
        j->streams[i].received = j->streams[i].acked = j->streams[i].want = from[i];
    j->existed = true;
    *out = j;
    link_loop_call(l->loop, &j->start_call);
    return 0;
}

static void let_go(struct link_job *j, bool keep)
{
    j->keep = keep;
    if (link_loop_here(j->link->loop))
        j->quiet = true;
    link_loop_call(j->link->loop, &j->end_call);
}

void link_job_forget(struct link_job *j) { let_go(j, false); }
void link_job_release(struct link_job *j) { let_go(j, true); }

// SPDX-License-Identifier: Apache-2.0
/* What a job prints: stored, acknowledged when there is room, read, given up. And its start and end
 * as the link tells them. */
#include <errno.h>
#include <string.h>

#include "fs/jobs/internal.h"

/* What readers have read is given up in pieces of at least this size, or when they have read all. */
#define DROP_BYTES (256u << 10)
#define SAVE_AGAIN_NS NS_PER_S /* what the disk has no room for */

/* ── room ────────────────────────────────────────────────────────────────────────────────── */

bool job_share_has_room(const struct job *j)
{
    const struct jobs *js = j->jobs;
    uint64_t all = js->config->spool_max_bytes, used = atomic_load(&js->used_bytes);

    return all == 0 || (used < all && atomic_load(&j->share->used_bytes) <= all - used);
}

bool job_must_not_wait(const struct job *j)
{
    int64_t ends_ns = atomic_load(&j->ends_ns);

    return atomic_load(&j->allowed_bytes) == ALLOW_ALL || (ends_ns && clock_ns() >= ends_ns);
}

int job_spool_full(struct err *e)
{
    return err_set(e, -EDQUOT, "what this user's jobs keep on the disk leaves no room (spool_max): remove ended ones");
}

/* Whoever reads has had all of it: what comes next is not kept for long, however full it is of other jobs' output. */
static bool is_all_read(struct job *j)
{
    scoped_lock(&j->lock);

    return spool_kept(&j->spool) == 0 && !list_empty(&j->readers);
}

static bool has_room(struct job *j)
{
    uint64_t most = j->jobs->config->job_output_max_bytes, kept = spool_kept(&j->spool);

    if (job_must_not_wait(j))
        return true;
    if (atomic_load(&j->unsaved_bytes))
        return false;
    return kept < atomic_load(&j->allowed_bytes) ||
           ((most == 0 || kept <= most) && (job_share_has_room(j) || is_all_read(j)));
}

void job_allow(struct job *j, uint64_t bytes)
{
    uint64_t before = atomic_load(&j->allowed_bytes);

    if (bytes != ALLOW_ALL)
        bytes += spool_kept(&j->spool);
    while (before < bytes && !atomic_compare_exchange_weak(&j->allowed_bytes, &before, bytes))
        ;
    jobs_room(j->jobs);
}

static void room_fire(struct timer *t)
{
    jobs_room(container_of(t, struct jobs, room_timer));
}

/* jobs.lock held: when the first of those that wait is ended by its timeout, or may find the disk less full. */
static void arm_locked(struct jobs *js)
{
    int64_t first = INT64_MAX;

    list_for_each(pos, &js->stalled) {
        const struct job *j = container_of(pos, struct job, stalled);
        int64_t due_ns = atomic_load(&j->ends_ns);
        if (atomic_load(&j->unsaved_bytes) && (!due_ns || due_ns > clock_ns() + SAVE_AGAIN_NS))
            due_ns = clock_ns() + SAVE_AGAIN_NS;
        if (due_ns && due_ns < first)
            first = due_ns;
    }
    js->room_timer.fire = room_fire;
    if (first != INT64_MAX && !js->ending)
        timer_set(js->timers, &js->room_timer, first);
}

void job_charge(struct job *j, uint64_t bytes)
{
    atomic_fetch_add(&j->share->used_bytes, bytes);
    atomic_fetch_add(&j->jobs->used_bytes, bytes);
}

void job_uncharge(struct job *j, uint64_t bytes)
{
    atomic_fetch_sub(&j->share->used_bytes, bytes);
    atomic_fetch_sub(&j->jobs->used_bytes, bytes);
}

void job_give_back(struct job *j, uint64_t bytes)
{
    if (!bytes || !j->share)
        return;
    job_uncharge(j, bytes);
    jobs_room(j->jobs);
}

static void acknowledge(struct job *j)
{
    scoped_lock(&j->lock);

    for (int s = 0; j->link_job && s < SPOOL_STREAMS; s++)
        link_job_ack(j->link_job, (enum link_stream)s, atomic_load(&j->spool.size[s]));
}

/* True: it waits for room from now on. */
static bool stall(struct job *j)
{
    scoped_lock(&j->jobs->lock);
    bool first = list_empty(&j->stalled);

    if (has_room(j) || j->jobs->ending || j->waits_no_more)
        return false;
    if (first) {
        list_append(&j->jobs->stalled, &j->stalled);
        atomic_store(&j->is_stalled, true);
        job_ref(j);
    }
    if (first || atomic_load(&j->unsaved_bytes))
        arm_locked(j->jobs);
    return true;
}

void job_unstall(struct job *j)
{
    bool was;

    pthread_mutex_lock(&j->jobs->lock);
    was = !list_empty(&j->stalled);
    list_remove(&j->stalled);
    atomic_store(&j->is_stalled, false);
    j->waits_no_more = true;
    pthread_mutex_unlock(&j->jobs->lock);
    if (was)
        job_unref(j);
}

/* A job that waits and has room by now, taken off the list with its reference; NULL. */
static struct job *take_roomy(struct jobs *js)
{
    scoped_lock(&js->lock);

    list_for_each(pos, &js->stalled) {
        struct job *j = container_of(pos, struct job, stalled);
        if (!has_room(j))
            continue;
        list_remove(&j->stalled);
        atomic_store(&j->is_stalled, false);
        return j;
    }
    return NULL;
}

/* A job with unsaved output that has not been tried in this round, referenced; NULL. */
static struct job *next_unsaved(struct jobs *js, unsigned round)
{
    scoped_lock(&js->lock);

    list_for_each(pos, &js->stalled) {
        struct job *j = container_of(pos, struct job, stalled);
        if (atomic_load(&j->unsaved_bytes) == 0 || j->save_round == round)
            continue;
        j->save_round = round;
        job_ref(j);
        return j;
    }
    return NULL;
}

void jobs_room_task(struct task *t)
{
    struct jobs *js = container_of(t, struct jobs, room_task);
    unsigned round;

    pthread_mutex_lock(&js->lock);
    js->room_queued = false;
    round = ++js->save_round;
    pthread_mutex_unlock(&js->lock);
    for (struct job *j; (j = next_unsaved(js, round)); job_unref(j))
        job_save(j);
    for (struct job *j; (j = take_roomy(js)); job_unref(j))
        acknowledge(j);
    pthread_mutex_lock(&js->lock);
    arm_locked(js);
    pthread_mutex_unlock(&js->lock);
    jobs_task_end(js);
}

void jobs_room(struct jobs *js)
{
    bool queue;

    pthread_mutex_lock(&js->lock);
    queue = !js->room_queued && !list_empty(&js->stalled) && !js->ending;
    js->n_tasks += queue;
    js->room_queued = js->room_queued || queue;
    pthread_mutex_unlock(&js->lock);
    if (queue)
        pool_add(js->pool, &js->room_task);
}

/* ── what has been read ──────────────────────────────────────────────────────────────────── */

/* job.lock held: how far all who read the stream have come. */
static uint64_t read_by_all_locked(const struct job *j, enum job_stream stream)
{
    uint64_t upto = UINT64_MAX;

    list_for_each(pos, &j->readers) {
        const struct job_reader *r = container_of(pos, const struct job_reader, links);
        if (r->stream == stream && r->at < upto)
            upto = r->at;
    }
    return upto == UINT64_MAX ? 0 : upto;
}

/* How far a stream may be given up now; 0: not. Its caller alone does it then. */
static uint64_t begin_drop(struct job *j, enum job_stream stream)
{
    uint64_t upto, start = atomic_load(&j->spool.start[stream]), size = atomic_load(&j->spool.size[stream]);
    scoped_lock(&j->lock);

    if (j->dropping)
        return 0;
    upto = read_by_all_locked(j, stream);
    if (upto > size)
        upto = size; /* a reader may have had what is not stored yet */
    if (upto < start + DROP_BYTES && upto < size)
        return 0;
    j->dropping = true;
    return upto;
}

/* A job that waits for a reader has one: what has been read makes room. Again, as long as that gives some:
 * somebody may have come for the same meanwhile, and left it to us. */
static void give_up_read(struct job *j, enum job_stream stream)
{
    uint64_t upto, dropped;

    do {
        upto = begin_drop(j, stream);
        if (upto == 0)
            return;
        dropped = spool_drop(&j->spool, (int)stream, upto);
        pthread_mutex_lock(&j->lock);
        j->dropping = false;
        pthread_mutex_unlock(&j->lock);
        job_give_back(j, dropped);
    } while (dropped && atomic_load(&j->is_stalled));
}

/* ── what the link tells ─────────────────────────────────────────────────────────────────── */

/* 0: none. Of one that has been ended meanwhile the text may be gone. */
static uint64_t timeout_ms_of(struct job *j)
{
    const struct record_text *t = &j->rec.texts[JOB_TIMEOUT];
    uint64_t timeout_ms;
    scoped_lock(&j->lock);

    return t->text && settings_timeout(t->text, t->size, &timeout_ms, NULL) == 0 ? timeout_ms : 0;
}

/* Its timeout and the grace count from its start, which may have been in an earlier life. */
static void job_times(struct job *j, int64_t start_ms)
{
    int64_t ran_ms = wall_ms() - start_ms;
    uint64_t timeout_ms = timeout_ms_of(j);

    if (!timeout_ms)
        return;
    if (ran_ms < 0 || !j->taken_over)
        ran_ms = 0;
    atomic_store(&j->ends_ns, clock_ns() + ((int64_t)timeout_ms - ran_ms) * NS_PER_MS +
                              j->jobs->config->grace_s * NS_PER_S + NS_PER_S / 10);
}

static void on_started(struct link_job *lj, void *arg, const struct link_started *s)
{
    struct job *j = arg;
    uint64_t kept = spool_kept(&j->spool);

    (void)lj;
    for (int i = 0; i < SPOOL_STREAMS; i++)
        spool_skip(&j->spool, i, s->first[i]);
    job_give_back(j, kept - spool_kept(&j->spool)); /* what lay before a gap */
    job_times(j, s->start_ms);
    pthread_mutex_lock(&j->lock);
    if (!j->ending && s->pid) {
        j->state = JOB_RUNNING;
        j->rec.pid = s->pid;
        j->rec.start_ms = s->start_ms;
    }
    pthread_mutex_unlock(&j->lock);
    job_stdin_started(j, s->stdin_offset);
    job_news(j);
}

static void on_output(struct link_job *lj, void *arg, enum link_stream stream, uint64_t offset, uint64_t log_offset,
                      const void *data, size_t len)
{
    struct job *j = arg;

    (void)lj;
    (void)offset;     /* where the last call ended, and the file does */
    (void)log_offset; /* the order in which pieces arrive is the one that is kept */
    if (atomic_load(&j->unsaved_bytes) == 0) /* else others come first */
        job_output_offer(j, (int)stream, data, len);
    job_spool_use(j); /* the job may be ended meanwhile, and its last reader go */
    job_store(j, (int)stream, data, len);
    if (!stall(j))
        acknowledge(j);
    else
        give_up_read(j, (enum job_stream)stream); /* who has read all already would not come again for it */
    job_spool_stay(j);
    job_output_news(j, (int)stream);
}

static void on_exited(struct link_job *lj, void *arg, const struct link_exit *x)
{
    bool refused = x->kind == LINK_END_FAILED && x->code == -ESHUTDOWN; /* the guest has been told to end */

    (void)lj;
    if ((x->unasked || refused) && job_ask_another(arg, refused))
        return;
    if (!job_hold_end(arg, x))
        job_end(arg, x);
}

/* Another host has it; it will tell nothing more here. */
static void on_taken(struct link_job *lj, void *arg)
{
    struct job *j = arg;
    struct err e;

    (void)lj;
    err_set(&e, -EBUSY, "another daemon has taken the job over");
    job_fail(j, LINK_END_LOST, &e);
}

static void on_released(void *arg) { job_unref(arg); }

const struct link_job_ops job_link_ops = {
    .started = on_started,
    .output = on_output,
    .stdin_room = stdin_room_callback,
    .exited = on_exited,
    .taken = on_taken,
    .released = on_released,
};

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

void job_reader_add(struct job *j, struct job_reader *r, enum job_stream stream)
{
    job_spool_use(j);
    pthread_mutex_lock(&j->lock);
    r->stream = stream;
    r->at = atomic_load(&j->spool.start[stream]);
    list_append(&j->readers, &r->links);
    pthread_mutex_unlock(&j->lock);
    if (atomic_load(&j->is_stalled))
        jobs_room(j->jobs);
}

void job_reader_remove(struct job *j, struct job_reader *r)
{
    enum job_stream stream = r->stream;

    /* what it has read may go with it, should the job wait for that */
    if (atomic_load(&j->is_stalled))
        give_up_read(j, stream);
    pthread_mutex_lock(&j->lock);
    list_remove(&r->links);
    pthread_mutex_unlock(&j->lock);
    job_spool_unuse(j);
}

/* Where it goes on: never in what was given up. */
static uint64_t reader_at(struct job *j, struct job_reader *r)
{
    scoped_lock(&j->lock);
    uint64_t start = atomic_load(&j->spool.start[r->stream]);

    if (r->at < start)
        r->at = start;
    return r->at;
}

bool job_reader_take(struct job *j, struct job_reader *r, uint64_t at, size_t size)
{
    scoped_lock(&j->lock);

    if (r->at != at)
        return false;
    r->at += size;
    return true;
}

ssize_t job_reader_read(struct job *j, struct job_reader *r, void *buf, size_t size)
{
    bool ended = job_state(j) == JOB_ENDED; /* before the look at what there is */
    uint64_t at = reader_at(j, r);
    ssize_t n = spool_read(&j->spool, (int)r->stream, at, buf, size);

    if (n == 0)
        return ended ? 0 : -EAGAIN;
    if (n < 0)
        return n;
    pthread_mutex_lock(&j->lock);
    r->at = at + (uint64_t)n;
    pthread_mutex_unlock(&j->lock);
    if (atomic_load(&j->is_stalled))
        give_up_read(j, r->stream);
    return n;
}

bool job_reader_ready(struct job *j, struct job_reader *r)
{
    return job_state(j) == JOB_ENDED || reader_at(j, r) < atomic_load(&j->spool.size[r->stream]);
}

bool job_stream_size(struct job *j, enum job_stream stream, uint64_t *size)
{
    bool ended = job_state(j) == JOB_ENDED;

    *size = ended ? atomic_load(&j->spool.size[stream]) - atomic_load(&j->spool.start[stream]) : 0;
    return ended;
}

ssize_t job_stream_read(struct job *j, enum job_stream stream, uint64_t at, void *buf, size_t size)
{
    ssize_t n;

    job_spool_use(j);
    n = spool_read(&j->spool, (int)stream, atomic_load(&j->spool.start[stream]) + at, buf, size);
    job_spool_unuse(j);
    return n;
}

void job_log_span(struct job *j, uint64_t *start, uint64_t *end)
{
    job_spool_use(j);
    spool_log_span(&j->spool, start, end);
    job_spool_unuse(j);
}

ssize_t job_log_read(struct job *j, uint64_t at, void *buf, size_t size)
{
    ssize_t n;

    job_spool_use(j);
    n = spool_log_read(&j->spool, at, buf, size);
    job_spool_unuse(j);
    return n;
}

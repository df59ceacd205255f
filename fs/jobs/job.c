// SPDX-License-Identifier: Apache-2.0
/* One job: its memory, its directory, who follows it, its end. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/jobs/internal.h"

#define UNASKED_MAX 3
#define LARGE_RECORD_BYTES (64u << 10)

static void end_run(struct task *t);
static void news_run(struct task *t);
static void again_run(struct task *t);

struct job *job_new(struct jobs *js)
{
    struct job *j = calloc(1, sizeof(*j));

    if (!j)
        return NULL;
    atomic_init(&j->refs, 1);
    j->jobs = js;
    pthread_mutex_init(&j->lock, NULL);
    pthread_mutex_init(&j->io_lock, NULL);
    pthread_mutex_init(&j->store_lock, NULL);
    struct list *const lists[] = { &j->in_session, &j->ended, &j->stalled, &j->in_guest, &j->listeners, &j->readers,
                                   &j->files, &j->unsaved };
    for (size_t i = 0; i < array_size(lists); i++)
        list_init(lists[i]);
    j->in.fd = -1;
    j->last_written = JOB_CMD;
    j->end_task.run = end_run;
    j->news_task.run = news_run;
    j->again_task.run = again_run;
    return j;
}

void job_set_key(struct job *j, const struct link_id *key)
{
    j->key = *key;
    memcpy(&j->number, key->b + 8, sizeof(j->number));
    for (int i = 0; i < LINK_ID_BYTES; i++)
        snprintf(j->hex + 2 * i, 3, "%02x", key->b[i]);
    spool_init(&j->spool, j->jobs->dir_fd, j->hex);
}

void job_ref(struct job *j) { atomic_fetch_add_explicit(&j->refs, 1, memory_order_relaxed); }

void job_unref(struct job *j)
{
    if (atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1)
        return;
    spool_close(&j->spool);
    job_files_free(j);
    job_memory_give(j, j->held_bytes);
    job_stdin_finish(j);
    if (j->guest)
        guest_unref(j->guest);
    if (j->ws)
        session_job_end(j->place, j->ws);
    if (j->place)
        place_unref(j->place);
    record_finish(&j->rec);
    job_unsaved_free(j);
    pthread_mutex_destroy(&j->lock);
    pthread_mutex_destroy(&j->io_lock);
    free(j);
}

const char *job_name(const struct job *j) { return j->rec.name; }
uint64_t job_number(const struct job *j) { return j->number; }
int64_t job_made_ms(const struct job *j) { return j->rec.made_ms; }
struct place *job_session(struct job *j) { return j->place; }

enum job_state job_state(struct job *j)
{
    scoped_lock(&j->lock);

    return j->state;
}

/* ── its files ───────────────────────────────────────────────────────────────────────── */

bool job_record_is_large(const struct job *j)
{
    size_t texts = 0;

    for (int i = 0; i < JOB_TEXTS; i++)
        texts += j->rec.texts[i].size;
    return texts >= LARGE_RECORD_BYTES;
}

void job_record_count(struct job *j)
{
    char name[KEY_HEX + 8];
    struct stat st;

    snprintf(name, sizeof(name), "%s.record", j->hex);
    if (!job_record_is_large(j) || fstatat(j->jobs->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        (uint64_t)st.st_size <= j->record_bytes)
        return;
    job_charge(j, (uint64_t)st.st_size - j->record_bytes);
    j->record_bytes = (uint64_t)st.st_size;
}

static int write_record(struct job *j, enum record_part part)
{
    scoped_lock(&j->io_lock);
    int r;

    if (j->unrecorded)
        return 0;
    if (!atomic_exchange(&j->has_files, true)) {
        char name[KEY_HEX + 8];
        snprintf(name, sizeof(name), "%s.record", j->hex);
        spares_take(&j->jobs->spares, j->jobs->dir_fd, name);
    }
    r = record_write(j->jobs->dir_fd, j->hex, &j->rec, part);
    if (r == 0 && part == RECORD_ALL)
        job_record_count(j);
    return r;
}

int job_write_record(struct job *j, enum record_part part)
{
    int r;

    if (part != RECORD_ALL)
        return write_record(j, part);
    job_texts_use(j); /* it may be killed and end meanwhile */
    r = write_record(j, part);
    pthread_mutex_lock(&j->lock);
    j->in_record = j->in_record || r == 0;
    pthread_mutex_unlock(&j->lock);
    job_texts_unuse(j);
    return r;
}

void job_spool_use(struct job *j)
{
    scoped_lock(&j->lock);

    j->spool_users++;
}

void job_spool_unuse(struct job *j)
{
    scoped_lock(&j->lock);

    if (--j->spool_users == 0)
        spool_close(&j->spool);
}

/* job.lock held. */
static bool may_stay_locked(struct job *j)
{
    struct jobs *js = j->jobs;

    if (j->spool_stays || j->ending)
        return false;
    if (atomic_fetch_add(&js->n_spools, 1) < js->spools_max)
        return true;
    atomic_fetch_sub(&js->n_spools, 1);
    return false;
}

void job_spool_stay(struct job *j)
{
    bool stays;

    pthread_mutex_lock(&j->lock);
    stays = may_stay_locked(j);
    j->spool_stays = j->spool_stays || stays;
    pthread_mutex_unlock(&j->lock);
    if (!stays)
        job_spool_unuse(j);
}

void job_spool_leave(struct job *j)
{
    bool stayed;

    pthread_mutex_lock(&j->lock);
    stayed = j->spool_stays;
    j->spool_stays = false;
    pthread_mutex_unlock(&j->lock);
    if (!stayed)
        return;
    atomic_fetch_sub(&j->jobs->n_spools, 1);
    job_spool_unuse(j);
}

/* ── who follows it ──────────────────────────────────────────────────────────────────────── */

void job_listen(struct job *j, struct job_listener *l)
{
    scoped_lock(&j->lock);

    list_append(&j->listeners, &l->links);
}

void job_unlisten(struct job *j, struct job_listener *l)
{
    scoped_lock(&j->lock);

    list_remove(&l->links);
}

#define TOLD_AT_ONCE 16

/* The listeners, held, in `few` or in memory of their own. */
static struct job_listener **take_listeners(struct job *j, struct job_listener **few, size_t *n)
{
    scoped_lock(&j->lock);
    struct job_listener **all = few;
    size_t count = 0;

    list_for_each(pos, &j->listeners)
        count++;
    if (count > TOLD_AT_ONCE)
        all = malloc(count * sizeof(struct job_listener *));
    *n = 0;
    if (!all)
        return NULL;
    list_for_each(pos, &j->listeners) {
        all[*n] = container_of(pos, struct job_listener, links);
        all[*n]->hold(all[*n]);
        ++*n;
    }
    return all;
}

void job_tell(struct job *j)
{
    struct job_listener *few[TOLD_AT_ONCE], **all;
    size_t n;

    all = take_listeners(j, few, &n);
    for (size_t i = 0; i < n; i++) {
        all[i]->more(all[i]);
        all[i]->drop(all[i]);
    }
    if (all != few)
        free(all);
}

static void news_run(struct task *t)
{
    struct job *j = container_of(t, struct job, news_task);
    struct jobs *js = j->jobs;

    atomic_store(&j->news_queued, false);
    job_tell(j);
    job_unref(j);
    jobs_task_end(js);
}

static void queue_news(struct job *j)
{
    if (atomic_exchange(&j->news_queued, true))
        return;
    job_ref(j);
    jobs_task_begin(j->jobs);
    pool_add(j->jobs->pool, &j->news_task);
}

/* Those who wait (for output of that stream, or of any kind). *one is held, when it is not NULL. */
static unsigned count_waiting(struct job *j, int stream, struct job_listener **one)
{
    scoped_lock(&j->lock);
    struct job_listener *first = NULL;
    unsigned n = 0;

    list_for_each(pos, &j->listeners) {
        struct job_listener *l = container_of(pos, struct job_listener, links);
        if ((stream >= 0 && l->stream != stream) || !atomic_load(&l->waits))
            continue;
        first = l;
        n++;
    }
    if (n == 1 && one) {
        first->hold(first);
        *one = first;
    }
    return n;
}

void job_news(struct job *j)
{
    if (count_waiting(j, -1, NULL))
        queue_news(j);
}

void job_output_news(struct job *j, int stream)
{
    struct job_listener *one = NULL;

    if (count_waiting(j, stream, &one) > 1)
        queue_news(j);
    if (!one)
        return;
    one->more(one);
    one->drop(one);
}

void job_output_offer(struct job *j, int stream, const void *data, size_t size)
{
    struct job_listener *one = NULL;

    count_waiting(j, stream, &one);
    if (!one)
        return;
    one->offer(one, atomic_load(&j->spool.size[stream]), data, size);
    one->drop(one);
}

/* ── its end ─────────────────────────────────────────────────────────────────────────────── */

static void count_end(struct job *j)
{
    static const char *const names[] = {
        [LINK_END_EXITED] = "wsmfs_jobs_total{end=\"exited\"}",
        [LINK_END_SIGNALED] = "wsmfs_jobs_total{end=\"signaled\"}",
        [LINK_END_FAILED] = "wsmfs_jobs_total{end=\"failed\"}",
        [LINK_END_LOST] = "wsmfs_jobs_total{end=\"lost\"}",
    };

    manager_count(j->jobs->manager, names[j->rec.kind], 1);
}

/* Its guest may forget it: it is written down, or that guest knows nothing of it. */
static void let_go(struct job *j)
{
    struct link_job *lj;
    struct guest *g;

    pthread_mutex_lock(&j->lock);
    lj = j->link_job;
    j->link_job = NULL;
    g = j->guest;
    j->guest = NULL;
    pthread_mutex_unlock(&j->lock);
    if (lj)
        link_job_forget(lj);
    if (g) {
        guest_remove(g, j);
        guest_unref(g);
    }
}

/* It does not run any more: limits and its session may be told before anybody can read `exit`. */
static void count_off(struct job *j)
{
    struct workspace *ws;

    pthread_mutex_lock(&j->lock);
    ws = j->ws;
    j->ws = NULL;
    pthread_mutex_unlock(&j->lock);
    if (ws)
        session_job_end(j->place, ws);
}

/* What it wrote is told to the kernel before anybody can know that it has ended; that it has is told
 * before it is written down, since the guest keeps it until then. */
static void end_run(struct task *t)
{
    struct job *j = container_of(t, struct job, end_task);
    struct jobs *js = j->jobs;

    if (j->rec.kind != LINK_END_FAILED)
        jobs_sync(js);
    job_save_last(j);
    job_unstall(j);
    count_off(j);
    pthread_mutex_lock(&j->lock);
    j->state = JOB_ENDED;
    j->rec.ended = true;
    pthread_mutex_unlock(&j->lock);
    job_stdin_close(j);
    job_tell(j);
    job_record_end(j);
    job_stdin_over(j);
    job_texts_settle(j);
    let_go(j);
    job_spool_leave(j);
    count_end(j);
    jobs_keep(j);
    if (atomic_load(&j->sets_up))
        setup_ended(j);
    job_unref(j);
    jobs_task_end(js);
}

/* Once for each job. */
static bool begin_end(struct job *j, const struct link_exit *x)
{
    scoped_lock(&j->lock);
    struct record *r = &j->rec;

    if (j->ending)
        return false;
    j->ending = true;
    r->kind = x->kind;
    r->code = x->code;
    r->timed_out = x->timed_out;
    if (x->start_ms)
        r->start_ms = x->start_ms;
    r->end_ms = wall_ms(); /* ours: how long it is kept must not hang on a sandbox's clock */
    r->text = x->text && *x->text ? strdup(x->text) : NULL;
    return true;
}

static bool end_once(struct job *j, const struct link_exit *x)
{
    if (!begin_end(j, x))
        return false;
    job_ref(j);
    jobs_task_begin(j->jobs);
    pool_add(j->jobs->pool, &j->end_task);
    return true;
}

void job_end(struct job *j, const struct link_exit *x) { end_once(j, x); }

void job_end_early(struct job *j)
{
    const struct link_exit x = { .kind = LINK_END_FAILED, .code = -ECANCELED,
                                 .text = "it was killed before it started" };

    end_once(j, &x);
}

bool job_fail(struct job *j, enum link_end kind, const struct err *e)
{
    const struct link_exit x = { .kind = kind, .code = e->code, .text = e->text };

    return end_once(j, &x);
}

/* ── entering later ──────────────────────────────────────────────────────────────────────── */

static void again_run(struct task *t)
{
    struct job *j = container_of(t, struct job, again_task);
    struct jobs *js = j->jobs;

    if (atomic_exchange(&j->unasked, false))
        let_go(j);
    job_enter(j);
    job_unref(j);
    jobs_task_end(js);
}

void job_enter_later(struct job *j)
{
    job_ref(j);
    jobs_task_begin(j->jobs);
    pool_add(j->jobs->pool, &j->again_task);
}

bool job_has_waited_out(struct job *j)
{
    bool before = j->waited_out;

    j->waited_out = true;
    return before;
}

/* A guest that is lost each time before it is asked is nothing to go on with. */
bool job_ask_another(struct job *j, bool refused)
{
    struct link_job *lj = NULL;
    struct guest *g = NULL;
    bool may;

    pthread_mutex_lock(&j->lock);
    may = !j->taken_over && !j->ending && j->state == JOB_STARTING && !atomic_load(&j->sets_up) &&
          j->unasked_times < UNASKED_MAX;
    if (may) {
        lj = j->link_job;
        j->link_job = NULL;
        job_stdin_again_locked(j);
        g = j->guest;
        if (g)
            guest_ref(g);
    }
    pthread_mutex_unlock(&j->lock);
    if (!may)
        return false;
    if (lj)
        link_job_forget(lj);
    if (refused && g)
        guest_leaves(g);
    if (g)
        guest_unref(g);
    j->unasked_times++;
    atomic_store(&j->unasked, true);
    job_enter_later(j);
    return true;
}

// SPDX-License-Identifier: Apache-2.0
/* The guest of a workspace: its link, the jobs that wait for it and those that it runs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/jobs/internal.h"

/* Beyond the grace: for the end to be told, and for a guest of an earlier life to answer at all. */
#define STOP_MORE_NS (10 * NS_PER_S)
#define ANSWER_NS    (10 * NS_PER_S)

static const struct link_ops ops;

void guest_ref(struct guest *g) { atomic_fetch_add(&g->refs, 1); }

void guest_unref(struct guest *g)
{
    if (atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    workspace_unref(g->ws);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static struct guest *guest_new(struct jobs *js, struct workspace *ws, bool may_start)
{
    struct guest *g = calloc(1, sizeof(*g));
    pthread_condattr_t monotonic;

    if (!g)
        return NULL;
    g->jobs = js;
    g->ws = ws;
    workspace_ref(ws);
    g->may_start = may_start;
    g->setup = js->setup ? SETUP_WANTED : SETUP_DONE;
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    list_init(&g->all);
    list_init(&g->waiting);
    list_init(&g->running);
    return g;
}

/* jobs.lock held. */
static struct guest *present_locked(struct workspace *ws, bool may_start)
{
    struct guest *g = *workspace_jobs_data(ws);

    if (!g)
        return NULL;
    scoped_lock(&g->lock);
    if (g->gone)
        return NULL;
    g->may_start = g->may_start || may_start;
    guest_ref(g);
    return g;
}

struct guest *guest_peek(struct jobs *js, struct workspace *ws)
{
    scoped_lock(&js->lock);

    return present_locked(ws, false);
}

/* jobs.lock held: the workspace's from now on. */
static struct guest *put_locked(struct jobs *js, struct workspace *ws, bool may_start)
{
    struct guest *g = guest_new(js, ws, may_start);
    const struct link_setup setup = { .ops = &ops, .arg = g };

    if (!g)
        return NULL;
    atomic_fetch_add(&g->refs, 2); /* the workspace's and the link's */
    g->link = link_open(js->loop, &setup);
    if (!g->link) {
        atomic_store(&g->refs, 1);
        guest_unref(g);
        return NULL;
    }
    *workspace_jobs_data(ws) = g;
    list_append(&js->guests, &g->all);
    return g;
}

struct guest *guest_get(struct jobs *js, struct workspace *ws, bool may_start)
{
    scoped_lock(&js->lock);
    struct guest *g = js->ending ? NULL : present_locked(ws, may_start);

    return g || js->ending ? g : put_locked(js, ws, may_start);
}

/* It is the workspace's no longer. */
static void leave_workspace(struct guest *g)
{
    struct jobs *js = g->jobs;
    bool was;

    pthread_mutex_lock(&js->lock);
    was = !list_empty(&g->all);
    list_remove(&g->all);
    if (was && *workspace_jobs_data(g->ws) == g)
        *workspace_jobs_data(g->ws) = NULL;
    pthread_mutex_unlock(&js->lock);
    if (was)
        guest_unref(g);
}

bool guest_up(struct guest *g, struct link_id *instance)
{
    scoped_lock(&g->lock);

    *instance = g->instance;
    return g->up && !g->gone && !g->stopping;
}

/* ── its jobs ────────────────────────────────────────────────────────────────────────────── */

bool guest_add(struct guest *g, struct job *j)
{
    bool up, set_up;

    pthread_mutex_lock(&g->lock);
    if (g->gone || g->stopping) {
        pthread_mutex_unlock(&g->lock);
        return false;
    }
    up = g->was_up && !g->leaving && setup_lets_in_locked(g, j);
    job_ref(j);
    list_append(up ? &g->running : &g->waiting, &j->in_guest);
    set_up = !up && setup_claim_locked(g);
    pthread_mutex_unlock(&g->lock);
    if (up)
        job_spawn_on(j, g);
    if (set_up)
        setup_begin(g);
    return true;
}

void guest_leaves(struct guest *g)
{
    scoped_lock(&g->lock);

    g->leaving = true;
}

void guest_remove(struct guest *g, struct job *j)
{
    bool was;

    pthread_mutex_lock(&g->lock);
    was = !list_empty(&j->in_guest);
    list_remove(&j->in_guest);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (was)
        job_unref(j);
}

/* The next job that waits, referenced; NULL. `to_running`: that may run now, and none does once the link is
 * closed; else guest.waiting's reference is the caller's. */
static struct job *take_waiting(struct guest *g, bool to_running)
{
    scoped_lock(&g->lock);

    if (to_running && (g->gone || g->leaving))
        return NULL;
    list_for_each(pos, &g->waiting) {
        struct job *j = container_of(pos, struct job, in_guest);
        if (to_running && !setup_lets_in_locked(g, j))
            continue;
        list_remove(&j->in_guest);
        if (to_running) {
            list_append(&g->running, &j->in_guest);
            job_ref(j); /* it may end, and be removed, before it has been asked for */
        }
        return j;
    }
    return NULL;
}

void guest_run_waiting(struct guest *g)
{
    for (struct job *j; (j = take_waiting(g, true)); job_unref(j))
        job_spawn_on(j, g);
}

/* ── what the link tells ─────────────────────────────────────────────────────────────────── */

static int on_connect(void *arg, struct err *e)
{
    struct guest *g = arg;
    bool start;

    pthread_mutex_lock(&g->lock);
    start = g->may_start && !g->was_up && !g->stopping && !g->gone;
    pthread_mutex_unlock(&g->lock);
    return workspace_stream(g->ws, start, e);
}

static void on_up(struct link *l, void *arg, const struct link_guest *info)
{
    struct guest *g = arg;
    bool first = !g->was_up, set_up; /* written here alone */

    (void)l;
    if (first)
        setup_look(g, &info->instance);
    pthread_mutex_lock(&g->lock);
    g->up = g->was_up = true;
    if (first) /* there is no other over one link: who has seen was_up reads it without the lock */
        g->instance = info->instance;
    set_up = first && !list_empty(&g->waiting) && setup_claim_locked(g);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (!first)
        return;
    log_debug("the guest %s answers, process %u of its sandbox", info->program, info->pid);
    guest_run_waiting(g);
    if (set_up)
        setup_begin(g);
}

/* What had been asked of somebody is lost with this one. */
void guest_fail_waiting(struct guest *g, const struct err *e, bool again)
{
    for (struct job *j; (j = take_waiting(g, false)); job_unref(j)) {
        if (j->taken_over)
            job_fail(j, LINK_END_LOST, e);
        else if (again && (e->code != -ETIMEDOUT || !job_has_waited_out(j)))
            job_enter_later(j);
        else
            job_fail(j, LINK_END_FAILED, e);
    }
}

static void close_link(struct guest *g)
{
    struct link *l;

    pthread_mutex_lock(&g->lock);
    l = g->link;
    g->link = NULL;
    g->gone = true;
    g->up = false;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (l)
        link_close(l);
}

/* There is no guest, or none any more. */
static void give_up(struct guest *g, const struct err *e, bool again)
{
    pthread_mutex_lock(&g->lock);
    g->gone = true;
    pthread_mutex_unlock(&g->lock);
    leave_workspace(g);
    guest_fail_waiting(g, e, again);
    close_link(g);
}

static void on_down(struct link *l, void *arg, const struct err *e)
{
    struct guest *g = arg;
    bool never;

    (void)l;
    pthread_mutex_lock(&g->lock);
    g->up = false;
    never = !g->was_up && g->may_start && e->code != -ETIME; /* that may be one which is slow: the link has its limits */
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (never)
        give_up(g, e, false);
    else
        log_debug("the stream to a guest broke: %s", e->text);
}

static void on_lost(struct link *l, void *arg, const struct err *e)
{
    struct guest *g = arg;
    struct err why = *e;

    (void)l;
    if (e->code == -ETIMEDOUT)
        workspace_sandbox_hangs(g->ws, e);
    give_up(g, &why, !setup_lost(g, &why));
}

static void on_closed(void *arg)
{
    struct guest *g = arg;

    pthread_mutex_lock(&g->lock);
    g->closed = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    guest_unref(g);
}

static const struct link_ops ops = {
    .connect = on_connect,
    .up = on_up,
    .down = on_down,
    .lost = on_lost,
    .closed = on_closed,
};

/* ── stopping ────────────────────────────────────────────────────────────────────────────── */

/* guest.lock held. False: the time is over. */
static bool wait_until(struct guest *g, bool (*done)(const struct guest *g), int64_t until_ns)
{
    const struct timespec until = { .tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S };

    while (!done(g))
        if (pthread_cond_timedwait(&g->changed, &g->lock, &until) == ETIMEDOUT)
            return done(g);
    return true;
}

static bool answers(const struct guest *g) { return g->up || g->gone; }
static bool is_closed(const struct guest *g) { return g->closed; }
static bool has_ended(const struct guest *g) { return list_empty(&g->running) && (g->gone || !g->up); }

/* Some job that has not come to its end, referenced; NULL. */
static struct job *any_running(struct guest *g)
{
    scoped_lock(&g->lock);
    struct job *j;

    if (list_empty(&g->running))
        return NULL;
    j = container_of(g->running.next, struct job, in_guest);
    job_ref(j);
    return j;
}

/* What did not end in time ends with the sandbox. */
static void abandon_jobs(struct guest *g)
{
    struct err e;

    err_set(&e, -EIO, "the workspace was closed and the sandbox did not say how the job ended");
    for (struct job *j; (j = any_running(g)); job_unref(j)) {
        job_fail(j, LINK_END_LOST, &e);
        pthread_mutex_lock(&g->lock);
        while (!list_empty(&j->in_guest))
            pthread_cond_wait(&g->changed, &g->lock);
        pthread_mutex_unlock(&g->lock);
    }
}

/* A job that waits for room cannot end. */
static void allow_all(struct guest *g)
{
    scoped_lock(&g->lock);

    list_for_each(pos, &g->running)
        atomic_store(&container_of(pos, struct job, in_guest)->allowed_bytes, ALLOW_ALL);
}

/* Asks it to end, and waits until its jobs have. */
static void stop(struct guest *g)
{
    int64_t grace_ns = g->jobs->config->grace_s * NS_PER_S;

    allow_all(g);
    jobs_room(g->jobs);
    scoped_lock(&g->lock);

    g->stopping = true;
    if (!wait_until(g, answers, clock_ns() + ANSWER_NS) || !g->up || !g->link)
        return;
    if (link_stop(g->link, (uint32_t)(grace_ns / NS_PER_MS), NULL, NULL) == 0)
        wait_until(g, has_ended, clock_ns() + grace_ns + STOP_MORE_NS);
}

static void wait_closed(struct guest *g)
{
    pthread_mutex_lock(&g->lock);
    wait_until(g, is_closed, INT64_MAX);
    pthread_mutex_unlock(&g->lock);
}

void jobs_stop_workspace(struct jobs *js, struct workspace *ws)
{
    struct guest *g = guest_get(js, ws, false);

    if (!g)
        return;
    stop(g);
    abandon_jobs(g);
    leave_workspace(g);
    close_link(g);
    /* A guest that has come up just before has been asked for what waited; of a closed link no end is told, and
     * it is not closed before all its jobs have been let go of. */
    abandon_jobs(g);
    guest_fail_waiting(g, &(struct err){ .code = -ECANCELED, .text = "the workspace was closed" }, true);
    wait_closed(g);
    setup_forget(g);
    guest_unref(g);
}

/* ── leaving it to another mount ─────────────────────────────────────────────────────────── */

static void on_listed(void *arg, const struct link_listed *j)
{
    struct guest *g = arg;

    if (j->mine || j->ended)
        return;
    pthread_mutex_lock(&g->lock);
    g->others = true;
    pthread_mutex_unlock(&g->lock);
}

static void on_list_end(void *arg, int status, const char *text)
{
    struct guest *g = arg;

    (void)text;
    pthread_mutex_lock(&g->lock);
    g->listing = false;
    g->others = g->others && status == 0;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    guest_unref(g);
}

static bool has_listed(const struct guest *g) { return !g->listing; }

/* Whether jobs of another host run there, and none of ours. */
static bool is_anothers(struct guest *g)
{
    scoped_lock(&g->lock);

    if (!wait_until(g, answers, clock_ns() + ANSWER_NS) || !g->up || !g->link || !list_empty(&g->running))
        return false;
    g->listing = true;
    g->others = false;
    guest_ref(g); /* until on_list_end */
    if (link_list(g->link, on_listed, on_list_end, g) < 0) {
        g->listing = false;
        atomic_fetch_sub(&g->refs, 1);
        return false;
    }
    return wait_until(g, has_listed, clock_ns() + ANSWER_NS) && g->others && list_empty(&g->running);
}

bool jobs_leave_workspace(struct jobs *js, struct workspace *ws)
{
    struct guest *g = guest_get(js, ws, false);
    bool left = g && is_anothers(g);

    if (left) {
        leave_workspace(g);
        close_link(g);
        guest_fail_waiting(g, &(struct err){ .code = -ECANCELED, .text = "the workspace was closed" }, true);
        wait_closed(g);
    }
    if (g)
        guest_unref(g);
    return left;
}

void jobs_sandbox_lost(struct jobs *js, struct workspace *ws)
{
    struct guest *g = guest_peek(js, ws);

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    if (g->link)
        link_hurry(g->link);
    pthread_mutex_unlock(&g->lock);
    guest_unref(g);
}

/* ── the end of the daemon ───────────────────────────────────────────────────────────────── */

static struct guest *any_guest(struct jobs *js)
{
    scoped_lock(&js->lock);
    struct guest *g;

    if (list_empty(&js->guests))
        return NULL;
    g = container_of(js->guests.next, struct guest, all);
    guest_ref(g);
    return g;
}

/* They run on, and their output waits in the guest. */
static void release_running(struct guest *g)
{
    for (struct job *j; (j = any_running(g)); job_unref(j)) {
        struct link_job *lj;
        guest_remove(g, j); /* first: who is about to ask for it does not then (job_spawn_on) */
        pthread_mutex_lock(&j->lock);
        lj = j->link_job;
        j->link_job = NULL;
        pthread_mutex_unlock(&j->lock);
        if (lj)
            link_job_release(lj);
    }
}

void guests_release(struct jobs *js)
{
    for (struct guest *g; (g = any_guest(js)); guest_unref(g)) {
        struct job *j;
        pthread_mutex_lock(&g->lock);
        g->stopping = true;
        pthread_mutex_unlock(&g->lock);
        leave_workspace(g);
        while ((j = take_waiting(g, false)))
            job_unref(j);
        release_running(g);
        close_link(g);
        wait_closed(g);
    }
}

// SPDX-License-Identifier: Apache-2.0
/* The store: which sessions have which jobs, how long ended ones are kept, its beginning and end. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "fs/jobs/internal.h"

/* A stream that hangs while it is being made holds one of these; nobody else waits for it. */
#define CONNECTORS_MAX   1024
#define CONNECTORS_STACK (256 << 10)
#define ANSWERS_NS       5000000000

/* Of three descriptors each. */
#define SPOOLS_SHARE 16
#define SPOOLS_MAX   4096

/* ── tasks ───────────────────────────────────────────────────────────────────────────────── */

void jobs_task_begin(struct jobs *js)
{
    scoped_lock(&js->lock);

    js->n_tasks++;
}

void jobs_task_end(struct jobs *js)
{
    scoped_lock(&js->lock);

    if (--js->n_tasks == 0)
        pthread_cond_broadcast(&js->fewer);
}

void jobs_sync(struct jobs *js)
{
    bool wanted;

    pthread_mutex_lock(&js->lock);
    wanted = js->sync && !js->unmounted;
    js->n_syncs += wanted;
    pthread_mutex_unlock(&js->lock);
    if (!wanted)
        return;
    js->sync(js->arg);
    pthread_mutex_lock(&js->lock);
    js->n_syncs--;
    pthread_cond_broadcast(&js->fewer);
    pthread_mutex_unlock(&js->lock);
}

void jobs_mount_ended(struct jobs *js)
{
    scoped_lock(&js->lock);

    js->unmounted = true;
    while (js->n_syncs)
        pthread_cond_wait(&js->fewer, &js->lock);
}

/* ── sessions ────────────────────────────────────────────────────────────────────────────── */

char *jobs_session_path(struct place *session)
{
    char *path;

    return asprintf(&path, "%s/%s/%s", session->parent->parent->name, session->parent->name, session->name) < 0
               ? NULL : path;
}

static bool has_path(const struct table_link *l, const char *key)
{
    return strcmp(container_of(l, const struct job_session, by_path)->path, key) == 0;
}

struct job_session *jobs_session_locked(struct jobs *js, const char *path, bool make)
{
    struct table_link *l = table_find(&js->sessions, path, has_path);
    struct job_session *s;

    if (l || !make)
        return l ? container_of(l, struct job_session, by_path) : NULL;
    s = calloc(1, sizeof(*s));
    if (s)
        s->path = strdup(path);
    if (!s || !s->path || table_reserve(&js->sessions) < 0) {
        if (s)
            free(s->path);
        free(s);
        return NULL;
    }
    list_init(&s->jobs);
    table_add(&js->sessions, &s->by_path, s->path);
    return s;
}

static void session_free_if_empty_locked(struct jobs *js, struct job_session *s)
{
    if (!list_empty(&s->jobs))
        return;
    table_remove(&js->sessions, &s->by_path);
    table_finish(&s->names);
    free(s->path);
    free(s);
}

static bool has_user(const struct table_link *l, const char *key)
{
    return strcmp(container_of(l, const struct share, by_user)->user, key) == 0;
}

struct share *jobs_share_locked(struct jobs *js, const char *user)
{
    struct table_link *l = table_find(&js->users, user, has_user);
    struct share *s;

    if (l)
        return container_of(l, struct share, by_user);
    s = calloc(1, sizeof(*s));
    if (s)
        s->user = strdup(user);
    if (!s || !s->user || table_reserve(&js->users) < 0) {
        if (s)
            free(s->user);
        free(s);
        return NULL;
    }
    table_add(&js->users, &s->by_user, s->user);
    return s;
}

/* ── jobs of a session ───────────────────────────────────────────────────────────────────── */

static bool has_name(const struct table_link *l, const char *key)
{
    return strcmp(job_name(container_of(l, const struct job, by_name)), key) == 0;
}

struct job *jobs_named_locked(struct job_session *s, const char *name)
{
    struct table_link *l = s ? table_find(&s->names, name, has_name) : NULL;

    return l ? container_of(l, struct job, by_name) : NULL;
}

int jobs_add_locked(struct job_session *s, struct job *j)
{
    if (table_reserve(&s->names) < 0)
        return -ENOMEM;
    table_add(&s->names, &j->by_name, job_name(j));
    list_append(&s->jobs, &j->in_session);
    j->session = s;
    s->n_new += j->state == JOB_NEW;
    s->changed_ms = wall_ms();
    job_ref(j);
    return 0;
}

bool jobs_detach_locked(struct job *j)
{
    struct job_session *s = j->session;

    if (!s)
        return false;
    table_remove(&s->names, &j->by_name);
    list_remove(&j->in_session);
    list_remove(&j->ended);
    s->n_new -= job_state(j) == JOB_NEW;
    s->changed_ms = wall_ms();
    j->session = NULL;
    session_free_if_empty_locked(j->jobs, s);
    return true;
}

int jobs_find(struct jobs *js, struct place *session, const char *name, struct job **out)
{
    cleanup_free char *path = jobs_session_path(session);

    if (!path)
        return -ENOMEM;
    scoped_lock(&js->lock);
    *out = jobs_named_locked(jobs_session_locked(js, path, false), name);
    if (!*out)
        return -ENOENT;
    job_ref(*out);
    return 0;
}

/* A job with its names, not yet in the store. */
static struct job *job_named(struct jobs *js, struct place *session, const char *name)
{
    struct job *j = job_new(js);
    struct record *r = j ? &j->rec : NULL;
    struct link_id key;

    if (!j)
        return NULL;
    link_id_random(&key);
    job_set_key(j, &key);
    j->place = session;
    place_ref(session);
    r->user = strdup(session->parent->parent->name);
    r->agent = strdup(session->parent->name);
    r->session = strdup(session->name);
    r->name = name ? strdup(name) : NULL;
    if (!name && asprintf(&r->name, "j%02x%02x%02x%02x%02x", j->key.b[0], j->key.b[1], j->key.b[2], j->key.b[3],
                          j->key.b[4]) < 0)
        r->name = NULL;
    r->made_ms = wall_ms();
    if (r->user && r->agent && r->session && r->name)
        return j;
    job_unref(j);
    return NULL;
}

static int insert(struct jobs *js, struct job *j, const char *path, struct err *e)
{
    scoped_lock(&js->lock);
    struct job_session *s = jobs_session_locked(js, path, true);
    int r;

    if (!s)
        return err_set(e, -ENOMEM, "out of memory");
    j->share = jobs_share_locked(js, j->rec.user);
    if (jobs_named_locked(s, job_name(j)))
        r = err_set(e, -EEXIST, "there is a job of that name");
    else if (s->n_new >= NEW_JOBS_MAX)
        r = err_set(e, -EDQUOT, "%d jobs of this session have been made and not started", NEW_JOBS_MAX);
    else if (!j->share)
        r = err_set(e, -ENOMEM, "out of memory");
    else if (!job_hold_locked(j, JOB_COST_BYTES, 0)) /* nobody else knows it yet */
        r = job_memory_full(e);
    else if (jobs_add_locked(s, j) < 0)
        r = err_set(e, -ENOMEM, "out of memory");
    else
        return 0;
    session_free_if_empty_locked(js, s);
    return r;
}

int jobs_make(struct jobs *js, struct place *session, const char *name, struct job **out, struct err *e)
{
    cleanup_free char *path = jobs_session_path(session);
    struct job *j;
    int r;

    if (js->config->read_only)
        return err_set(e, -EROFS, "the mount is read-only");
    if (name && !name_valid(name))
        return err_set(e, -EINVAL, "this is not a name that a job can have");
    j = path ? job_named(js, session, name) : NULL;
    if (!j)
        return err_set(e, -ENOMEM, "out of memory");
    r = insert(js, j, path, e);
    if (r < 0)
        job_unref(j);
    else
        *out = j;
    return r;
}

/* jobs.lock held. 0: it is removed now, and is not started any more. */
static int may_remove_locked(struct job *j, struct err *e)
{
    scoped_lock(&j->lock);

    if (j->state == JOB_STARTING || j->state == JOB_RUNNING)
        return err_set(e, -EBUSY, "the job runs (write kill to its ctl)");
    if (j->state == JOB_NEW && j->writers)
        return err_set(e, -EBUSY, "its command is being written");
    j->unnamed = j->state == JOB_NEW;
    return 0;
}

static void remove_file(struct jobs *js, const char *hex, const char *kind)
{
    char name[KEY_HEX + 8];

    snprintf(name, sizeof(name), "%s.%s", hex, kind);
    if (unlinkat(js->dir_fd, name, 0) < 0 && errno != ENOENT)
        log_warning("the file %s of a removed job stays: %s", name, strerror(errno));
}

/* First: what is left without a record goes at the next start. */
static void remove_record(struct job *j)
{
    char name[KEY_HEX + 8];
    uint64_t bytes;
    int r;

    snprintf(name, sizeof(name), "%s.record", j->hex);
    pthread_mutex_lock(&j->io_lock);
    j->unrecorded = true;
    r = spares_give(&j->jobs->spares, j->jobs->dir_fd, name);
    bytes = j->record_bytes;
    j->record_bytes = 0;
    pthread_mutex_unlock(&j->io_lock);
    if (r < 0)
        log_warning("the file %s of a removed job stays: %s", name, strerror(-r));
    job_give_back(j, bytes);
}

/* Who has a stream or the log open goes on reading it. */
static void remove_spool(struct job *j)
{
    bool in_use;

    pthread_mutex_lock(&j->lock);
    in_use = j->spool_users++ > 0; /* we are one, so that nobody closes what is opened here */
    pthread_mutex_unlock(&j->lock);
    if (in_use)
        spool_keep_open(&j->spool);
    spool_remove(&j->spool);
    job_spool_unuse(j);
}

static void drop_files(struct job *j)
{
    job_unstall(j);
    if (atomic_load(&j->has_files)) {
        remove_record(j);
        remove_spool(j);
        job_stdin_remove(j);
    }
    job_give_back(j, spool_kept(&j->spool));
}

void job_drop_files(struct job *j)
{
    bool now;

    pthread_mutex_lock(&j->lock);
    now = !j->ending || j->recorded;
    j->removed = true;
    pthread_mutex_unlock(&j->lock);
    if (now)
        drop_files(j);
}

void job_record_end(struct job *j)
{
    bool removed, begun;
    int r;

    pthread_mutex_lock(&j->lock);
    removed = j->removed;
    begun = j->in_record; /* else its start was not accepted: an end alone is no record */
    pthread_mutex_unlock(&j->lock);
    r = !removed && begun ? job_write_record(j, RECORD_END) : 0;
    if (r < 0)
        log_warning("the end of job %s cannot be written down: %s", job_name(j), strerror(-r));
    pthread_mutex_lock(&j->lock);
    removed = j->removed;
    j->recorded = true;
    pthread_mutex_unlock(&j->lock);
    if (removed)
        drop_files(j);
}

int jobs_remove(struct jobs *js, struct place *session, const char *name, struct err *e)
{
    cleanup_free char *path = jobs_session_path(session);
    struct job *j;
    int r;

    if (!path)
        return err_set(e, -ENOMEM, "out of memory");
    pthread_mutex_lock(&js->lock);
    j = jobs_named_locked(jobs_session_locked(js, path, false), name);
    r = j ? may_remove_locked(j, e) : err_set(e, -ENOENT, "there is no such job");
    if (r == 0)
        jobs_detach_locked(j);
    pthread_mutex_unlock(&js->lock);
    if (r < 0)
        return r;
    job_drop_files(j);
    job_unref(j);
    return 0;
}

/* One of an earlier life has no place, and is of whoever had the name then. */
static bool is_of(const struct job *j, const struct place *session) { return !j->place || j->place == session; }

/* References to all jobs of a session, NULL-terminated; with `gone`, a place that was forgotten, those of it that may be
 * removed, detached. */
static struct job **jobs_of_locked(struct job_session *s, const struct place *gone)
{
    size_t n = 0, room = 1;
    struct job **all;

    list_for_each(pos, &s->jobs)
        room++;
    all = calloc(room, sizeof(struct job *));
    if (!all)
        return NULL;
    list_for_each_safe(pos, &s->jobs) {
        struct job *j = container_of(pos, struct job, in_session);
        bool last = pos_next == &s->jobs;
        if (!gone || (is_of(j, gone) && may_remove_locked(j, NULL) == 0)) {
            all[n++] = j;
            job_ref(j);
            if (gone && jobs_detach_locked(j))
                atomic_fetch_sub(&j->refs, 1); /* the session's; we have one */
        }
        if (last)
            break; /* the session may be gone */
    }
    return all;
}

void jobs_each(struct jobs *js, struct place *session, void (*fn)(const char *name, uint64_t number, void *arg),
               void *arg)
{
    cleanup_free char *path = jobs_session_path(session);
    cleanup_free struct job **all = NULL;
    struct job_session *s;

    pthread_mutex_lock(&js->lock);
    s = path ? jobs_session_locked(js, path, false) : NULL;
    if (s)
        all = jobs_of_locked(s, NULL);
    pthread_mutex_unlock(&js->lock);
    for (size_t i = 0; all && all[i]; i++) {
        fn(job_name(all[i]), all[i]->number, arg);
        job_unref(all[i]);
    }
}

int64_t jobs_changed_ms(struct jobs *js, struct place *session)
{
    cleanup_free char *path = jobs_session_path(session);
    scoped_lock(&js->lock);
    struct job_session *s = path ? jobs_session_locked(js, path, false) : NULL;

    return s ? s->changed_ms : 0;
}

void jobs_forget_session(struct jobs *js, struct place *session)
{
    cleanup_free char *path = jobs_session_path(session);
    cleanup_free struct job **all = NULL;
    struct job_session *s;

    pthread_mutex_lock(&js->lock);
    s = path ? jobs_session_locked(js, path, false) : NULL;
    if (s)
        all = jobs_of_locked(s, session);
    pthread_mutex_unlock(&js->lock);
    for (size_t i = 0; all && all[i]; i++) {
        job_drop_files(all[i]);
        job_unref(all[i]);
    }
}

/* ── files ───────────────────────────────────────────────────────────────────────────────── */

void jobs_remove_files(struct jobs *js, const char *hex)
{
    remove_file(js, hex, "record");
    spool_remove_files(js->dir_fd, hex);
    remove_file(js, hex, "stdin");
}

/* ── how long ended ones are kept ────────────────────────────────────────────────────────── */

static int64_t due_ms(const struct jobs *js, const struct job *j)
{
    return j->rec.end_ms + js->config->job_keep_s * 1000;
}

bool job_lasts(struct job *j, int64_t ms)
{
    int64_t keep_ms = j->jobs->config->job_keep_s * 1000;
    scoped_lock(&j->lock);

    if (keep_ms == 0)
        return true;
    return keep_ms > ms && (j->state != JOB_ENDED || j->rec.end_ms + keep_ms - wall_ms() > ms);
}

/* jobs.lock held: for the job that ended first. */
static void arm_keep_locked(struct jobs *js)
{
    int64_t left_ms;

    if (list_empty(&js->ended) || js->config->job_keep_s == 0 || js->ending)
        return;
    left_ms = due_ms(js, container_of(js->ended.next, struct job, ended)) - wall_ms();
    timer_set(js->timers, &js->keep_timer, clock_ns() + (left_ms > 0 ? left_ms : 0) * NS_PER_MS);
}

void jobs_keep(struct job *j)
{
    struct jobs *js = j->jobs;
    scoped_lock(&js->lock);

    if (!j->session)
        return;
    list_append(&js->ended, &j->ended);
    if (js->ended.next == &j->ended)
        arm_keep_locked(js);
}

static struct job *take_due(struct jobs *js)
{
    scoped_lock(&js->lock);
    struct job *j;

    if (list_empty(&js->ended) || js->ending)
        return NULL;
    j = container_of(js->ended.next, struct job, ended);
    if (due_ms(js, j) > wall_ms()) {
        arm_keep_locked(js);
        return NULL;
    }
    jobs_detach_locked(j);
    return j;
}

static void keep_run(struct task *t)
{
    struct jobs *js = container_of(t, struct jobs, keep_task);

    pthread_mutex_lock(&js->lock);
    js->keep_queued = false;
    pthread_mutex_unlock(&js->lock);
    for (struct job *j; (j = take_due(js));) {
        job_drop_files(j);
        job_unref(j);
    }
    jobs_task_end(js);
}

static void keep_fire(struct timer *t)
{
    struct jobs *js = container_of(t, struct jobs, keep_timer);
    bool queue;

    pthread_mutex_lock(&js->lock);
    queue = !js->keep_queued && !js->ending;
    js->n_tasks += queue;
    js->keep_queued = js->keep_queued || queue;
    pthread_mutex_unlock(&js->lock);
    if (queue)
        pool_add(js->pool, &js->keep_task);
}

/* ── beginning and end ───────────────────────────────────────────────────────────────────── */

static int open_dir(struct jobs *js, struct err *e)
{
    cleanup_free char *path = NULL;

    if (asprintf(&path, "%s/jobs", manager_state_dir(js->manager)) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, -errno, "%s cannot be made", path);
    js->dir_fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return js->dir_fd < 0 ? err_sys(e, -errno, "%s cannot be opened", path) : 0;
}

/* Names this host to guests: the same after a restart. */
static void host_id(struct jobs *js, struct link_id *id)
{
    uint64_t halves[2] = { identity_number("host", manager_state_dir(js->manager)),
                           identity_number("host2", manager_state_dir(js->manager)) };

    memcpy(id->b, halves, sizeof(id->b));
}

static int init(struct jobs *js, struct err *e)
{
    struct link_id host;
    int r = setup_init(js, e);

    if (r == 0)
        r = open_dir(js, e);
    if (r < 0)
        return r;
    js->connectors = pool_create(CONNECTORS_MAX, CONNECTORS_STACK);
    if (!js->connectors)
        return err_set(e, -ENOMEM, "out of memory");
    host_id(js, &host);
    js->loop = link_loop_create(js->connectors, &host, e);
    return js->loop ? jobs_load(js, e) : e->code;
}

/* A share of the descriptors, so that jobs which run and say little leave the others to files. */
static unsigned spools_max(void)
{
    struct rlimit l;

    return getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur / SPOOLS_SHARE > SPOOLS_MAX
               ? SPOOLS_MAX : (unsigned)(l.rlim_cur / SPOOLS_SHARE);
}

int jobs_create(const struct jobs_setup *s, struct jobs **out, struct err *e)
{
    struct jobs *js = calloc(1, sizeof(*js));
    int r;

    *out = NULL;
    if (!js)
        return err_set(e, -ENOMEM, "out of memory");
    js->config = s->config;
    js->manager = s->manager;
    js->pool = s->pool;
    js->timers = s->timers;
    js->sync = s->sync;
    js->arg = s->arg;
    js->dir_fd = -1;
    js->spools_max = spools_max();
    spares_init(&js->spares);
    js->keep_timer.fire = keep_fire;
    js->keep_task.run = keep_run;
    js->room_task.run = jobs_room_task;
    pthread_mutex_init(&js->lock, NULL);
    pthread_cond_init(&js->fewer, NULL);
    list_init(&js->guests);
    list_init(&js->stalled);
    list_init(&js->ended);
    r = init(js, e);
    if (r < 0)
        jobs_destroy(js);
    else
        *out = js;
    return r;
}

/* Every job, for the end. */
static void drop_jobs(struct jobs *js)
{
    for (;;) {
        struct job *j = NULL;
        pthread_mutex_lock(&js->lock);
        struct table_link *l = table_next(&js->sessions, NULL);
        if (l)
            j = container_of(container_of(l, struct job_session, by_path)->jobs.next, struct job, in_session);
        if (j)
            jobs_detach_locked(j);
        pthread_mutex_unlock(&js->lock);
        if (!j)
            return;
        job_unstall(j);
        job_unref(j);
    }
}

static void free_users(struct jobs *js)
{
    for (struct table_link *l; (l = table_next(&js->users, NULL));) {
        struct share *s = container_of(l, struct share, by_user);
        table_remove(&js->users, l);
        free(s->user);
        free(s);
    }
    table_finish(&js->users);
}

void jobs_destroy(struct jobs *js)
{
    if (!js)
        return;
    pthread_mutex_lock(&js->lock);
    js->ending = js->unmounted = true;
    pthread_mutex_unlock(&js->lock);
    timer_cancel(js->timers, &js->keep_timer);
    timer_cancel(js->timers, &js->room_timer);
    if (js->loop)
        guests_release(js);
    pthread_mutex_lock(&js->lock);
    while (js->n_tasks)
        pthread_cond_wait(&js->fewer, &js->lock);
    pthread_mutex_unlock(&js->lock);
    link_loop_destroy(js->loop);
    pool_destroy(js->connectors);
    pool_drain(js->pool, ANSWERS_NS); /* whoever was told of the end just now has a job, and with it a share of ours */
    drop_jobs(js);
    free_users(js);
    table_finish(&js->sessions);
    if (js->dir_fd >= 0)
        close(js->dir_fd);
    spares_finish(&js->spares);
    pthread_cond_destroy(&js->fewer);
    pthread_mutex_destroy(&js->lock);
    free(js);
}

// SPDX-License-Identifier: Apache-2.0
/* The manager's beginning and end. */
#include "fs/manager/manager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/manager/internal.h"

#define EVENTS_BYTES (256 << 10)

/* A provisioning that hangs holds one of these threads; nobody else waits for it. */
#define PROVISIONERS_MAX   4096
#define PROVISIONERS_STACK (128 << 10)

/* For what was under way when a mount failed. */
#define DESTROY_WAIT_S 5

/* ── the beginning ───────────────────────────────────────────────────────────────────────── */

static void init_locks(struct manager *m)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&m->names_lock, NULL);
    pthread_mutex_init(&m->live_lock, NULL);
    pthread_mutex_init(&m->wait_lock, NULL);
    pthread_mutex_init(&m->notes_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->live_less, &monotonic);
    pthread_condattr_destroy(&monotonic);
    list_init(&m->live);
    list_init(&m->admitting);
}

static struct manager *manager_new(const struct manager_setup *s)
{
    struct manager *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->config = s->config;
    m->backend = s->backend;
    m->pool = s->pool;
    m->timers = s->timers;
    m->mount_uid = s->mount_uid;
    m->mount_gid = s->mount_gid;
    m->start_ms = wall_ms();
    m->wall_offset_ms = m->start_ms - clock_ns() / NS_PER_MS;
    m->quiet = true;
    m->base.fd = m->state.lock_fd = -1;
    init_locks(m);
    return m;
}

static int init_memory(struct manager *m, struct err *e)
{
    m->events = events_create(EVENTS_BYTES);
    m->provisioners = pool_create(PROVISIONERS_MAX, PROVISIONERS_STACK);
    if (!m->events || !m->provisioners || places_init(m) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

static int init_backend(struct manager *m, struct err *e)
{
    const struct backend_mount mount = {
        .source = m->config->source ? m->config->source : "",
        .basedir = m->base.path,
        .basedir_fd = m->base.fd,
        .instance = m->base.instance,
        .state_dir = m->state.path,
        .pairs = m->config->pairs,
        .grace_ms = m->config->grace_s * 1000,
        .read_only = m->config->read_only,
        .mountpoint = m->config->mountpoint ? m->config->mountpoint : "",
        .confine = m->config->confine,
        .noticed = manager_noticed,
        .core = m,
        .isolation = identity_policy(m->config->isolation),
    };

    if (m->config->busy & BUSY_PROCESSES && !m->backend->processes)
        return err_set(e, -EINVAL, "busy=processes: the backend %s cannot tell what jobs left running", m->backend->name);
    return m->backend->init ? m->backend->init(&mount, &m->backend_state, e) : 0;
}

static int start_registry(struct manager *m, struct err *e)
{
    int r = registry_open(m->state.path, m, &m->registry, e);

    if (r == 0)
        r = adopt_load(m, e);
    if (r < 0)
        return r;
    r = registry_start(m->registry);
    return r < 0 ? err_sys(e, r, "no thread can be started") : 0;
}

static int manager_init(struct manager *m, struct err *e)
{
    int r = init_memory(m, e);

    if (r == 0)
        r = basedir_open(&m->base, m->config, e);
    if (r == 0)
        r = statedir_open(&m->state, m->config, m->base.instance, e);
    if (r == 0)
        r = init_backend(m, e);
    if (r < 0)
        return r;
    /* Before the registry is there nothing is stored: what is found on disk needs no row. */
    places_scan(m);
    places_configured(m);
    return start_registry(m, e);
}

int manager_create(const struct manager_setup *s, struct manager **out, struct err *e)
{
    struct manager *m = manager_new(s);
    int r;

    *out = NULL;
    if (!m)
        return err_set(e, -ENOMEM, "out of memory");
    r = manager_init(m, e);
    if (r < 0)
        manager_destroy(m);
    else
        *out = m;
    return r;
}

void manager_set_hooks(struct manager *m, const struct manager_hooks *h, void *arg)
{
    m->hooks = *h;
    m->hooks_arg = arg;
}

void manager_start(struct manager *m)
{
    adopt_start(m);
}

const char *manager_state_dir(struct manager *m)
{
    return m->state.path;
}

/* ── a new configuration ─────────────────────────────────────────────────────────────────── */

static void changed_live(struct workspace *ws, void *arg)
{
    (void)arg;
    sweeper_changed(ws);
}

void manager_config_changed(struct manager *m)
{
    places_configured(m);
    pthread_mutex_lock(&m->names_lock);
    for (struct table_link *l = NULL; (l = table_next(&m->ids, l));)
        workspace_refresh_tenant(container_of(l, struct workspace, by_id));
    pthread_mutex_unlock(&m->names_lock);
    live_each(m, changed_live, NULL);
}

/* ── the end ─────────────────────────────────────────────────────────────────────────────── */

void manager_job_begin(struct manager *m)
{
    scoped_lock(&m->live_lock);

    m->n_jobs++;
}

void manager_job_end(struct manager *m)
{
    scoped_lock(&m->live_lock);

    m->n_jobs--;
    pthread_cond_broadcast(&m->live_less);
}

/* Waits until nothing is live (unless `keep`) and nothing uses the manager; false after the time. */
static bool wait_quiet(struct manager *m, bool keep, int64_t seconds)
{
    scoped_lock(&m->live_lock);
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (m->n_jobs || (m->n_live && !keep))
        if (pthread_cond_timedwait(&m->live_less, &m->live_lock, &until) == ETIMEDOUT)
            return false;
    return true;
}

static void close_live(struct workspace *ws, void *arg)
{
    const struct close_request req = { .why = CLOSE_SHUTDOWN };

    (void)arg;
    workspace_close(ws, &req, NULL, NULL);
}

/* Stores a live one as it is, and lets its files go; its sandbox stays. */
static void keep_live(struct workspace *ws, void *arg)
{
    int *unkept = arg;
    struct attempt *ended = NULL;
    struct err e;

    workspace_store(ws);
    timer_cancel(ws->manager->timers, &ws->timer);
    pthread_mutex_lock(&ws->lock);
    if (ws->attempt)
        ended = attempt_cancel_locked(ws);
    pthread_mutex_unlock(&ws->lock);
    err_set(&e, -ESHUTDOWN, "the mount is ending");
    if (ended) /* it had not begun, and others wait for it */
        attempt_refuse(ended, &e);
    *unkept += workspace_state(ws) == WS_CLOSING;
}

static void name_left(struct workspace *ws, void *arg)
{
    (*(int *)arg)++;
    log_event(LOG_LEVEL_WARNING, &(struct log_fields){ .user = ws->user, .id = ws->id },
              "not closed within shutdown_timeout (%s)", workspace_state_name(workspace_state(ws)));
}

int manager_shutdown(struct manager *m, bool detach)
{
    bool keep = detach || m->config->keep_on_exit;
    int  left = 0;

    atomic_store(&m->stopping, true);
    statedir_say_closing(&m->state);
    admit_again(m);
    if (keep)
        live_each(m, keep_live, &left);
    else
        live_each(m, close_live, NULL);
    if (!wait_quiet(m, keep, m->config->shutdown_timeout_s)) {
        left = 0;
        live_each(m, name_left, &left);
    } else {
        left = 0;
    }
    m->quiet = left == 0;
    registry_close(m->registry);
    m->registry = NULL;
    return left;
}


static void drop_live(struct workspace *ws, void *arg)
{
    (void)arg;
    timer_cancel(ws->manager->timers, &ws->timer);
    if (ws->files_fd >= 0)
        close(ws->files_fd);
    ws->files_fd = -1;
    live_remove(ws);
}

/* What pins, ttls and explicit ids keep. */
static void drop_kept(struct manager *m)
{
    for (bool found = true; found;) {
        struct workspace *ws = NULL;
        pthread_mutex_lock(&m->names_lock);
        for (struct table_link *l = NULL; !ws && (l = table_next(&m->ids, l));)
            if (atomic_load(&container_of(l, struct workspace, by_id)->kept))
                ws = container_of(l, struct workspace, by_id);
        if (ws)
            atomic_store(&ws->kept, false);
        pthread_mutex_unlock(&m->names_lock);
        found = ws != NULL;
        if (ws)
            workspace_unref(ws);
    }
}

static void free_notes(struct manager *m)
{
    while (m->notes) {
        struct note *n = m->notes;
        m->notes = n->next;
        free(n->key);
        free(n->value);
        free(n);
    }
}

static void free_locks(struct manager *m)
{
    pthread_cond_destroy(&m->live_less);
    pthread_mutex_destroy(&m->names_lock);
    pthread_mutex_destroy(&m->live_lock);
    pthread_mutex_destroy(&m->wait_lock);
    pthread_mutex_destroy(&m->notes_lock);
}

void manager_destroy(struct manager *m)
{
    if (!m)
        return;
    atomic_store(&m->stopping, true); /* also where no shutdown came before: nothing is noticed any more */
    /* A thread that is still in a backend uses all this memory: then it is left to the end of the
     * process. */
    if (!wait_quiet(m, true, m->quiet ? DESTROY_WAIT_S : 0)) {
        statedir_close(&m->state);
        return;
    }
    registry_close(m->registry);
    m->registry = NULL;
    pool_destroy(m->provisioners);
    adopt_free(m);
    live_each(m, drop_live, NULL);
    places_finish(m);
    drop_kept(m);
    table_finish(&m->ids);
    if (m->backend->finish && m->backend_state)
        m->backend->finish(m->backend_state);
    events_destroy(m->events);
    statedir_close(&m->state);
    basedir_close(&m->base);
    free_notes(m);
    free_locks(m);
    free(m);
}

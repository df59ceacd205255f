// SPDX-License-Identifier: Apache-2.0
/* Workspaces: their table, the way in and out, and small facts about them. The state machine's
 * longer moves are in provision.c and close.c. */
#include "fs/manager/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ── the table ───────────────────────────────────────────────────────────────────────────── */

static bool has_id(const struct table_link *l, const char *id)
{
    return strcmp(container_of(l, struct workspace, by_id)->id, id) == 0;
}

struct workspace *workspace_find_locked(struct manager *m, const char *id)
{
    struct table_link *l = table_find(&m->ids, id, has_id);

    return l ? container_of(l, struct workspace, by_id) : NULL;
}

/* Keeps the three names in one piece of memory. */
static bool keep_names(struct workspace *ws, const struct place_names *n)
{
    size_t user = strlen(n->user) + 1, agent = strlen(n->agent) + 1, session = strlen(n->session) + 1;
    char  *all = malloc(user + agent + session);

    if (!all)
        return false;
    ws->user = memcpy(all, n->user, user);
    ws->agent = memcpy(all + user, n->agent, agent);
    ws->session = memcpy(all + user + agent, n->session, session);
    return true;
}

static struct workspace *workspace_new(struct manager *m, const char *id, bool derived,
                                       const struct place_names *owner)
{
    struct workspace *ws = calloc(1, sizeof(*ws));

    if (!ws || !keep_names(ws, owner)) {
        free(ws);
        return NULL;
    }
    ws->manager = m;
    snprintf(ws->id, sizeof(ws->id), "%s", id);
    ws->derived = derived;
    ws->files_fd = -1;
    ws->state_ms = m->start_ms;
    ws->timer.fire = sweeper_fire;
    atomic_init(&ws->refs, 1);
    atomic_init(&ws->ttl_s, -1);
    atomic_init(&ws->has_files, true);
    list_init(&ws->sessions);
    list_init(&ws->waiters);
    list_init(&ws->live);
    pthread_mutex_init(&ws->lock, NULL);
    workspace_refresh_tenant(ws);
    atomic_fetch_add(&m->by_state[WS_ABSENT], 1);
    return ws;
}

struct workspace *workspace_get_locked(struct manager *m, const char *id, bool derived,
                                       const struct place_names *owner)
{
    struct workspace *ws = workspace_find_locked(m, id);

    if (ws) {
        workspace_ref(ws);
        return ws;
    }
    if (table_reserve(&m->ids) < 0)
        return NULL;
    ws = workspace_new(m, id, derived, owner);
    if (ws)
        table_add(&m->ids, &ws->by_id, ws->id);
    return ws;
}

struct workspace *workspace_home_locked(struct manager *m, const struct place_names *names)
{
    enum isolation policy = m->config->isolation;
    struct place_names owner = *names;
    char id[ID_DERIVED_DIGITS + 1];

    if (policy != ISOLATION_PER_SESSION)
        owner.session = "";
    if (policy == ISOLATION_PER_USER)
        owner.agent = "";
    identity_derive(policy, m->config->id_scheme, names->user, names->agent, names->session, id);
    return workspace_get_locked(m, id, true, &owner);
}

void workspace_ref(struct workspace *ws)
{
    atomic_fetch_add_explicit(&ws->refs, 1, memory_order_relaxed);
}

static void workspace_free(struct workspace *ws)
{
    struct manager *m = ws->manager;

    atomic_fetch_sub(&m->by_state[atomic_load(&ws->state)], 1);
    if (ws->fs_data && m->hooks.gone)
        m->hooks.gone(ws->fs_data, m->hooks_arg);
    events_destroy(ws->progress);
    pthread_mutex_destroy(&ws->lock);
    free(ws->failure);
    free(ws->user);
    free(ws);
}

void workspace_unref(struct workspace *ws)
{
    unsigned refs = atomic_load_explicit(&ws->refs, memory_order_relaxed);
    bool last;

    while (refs > 1)
        if (atomic_compare_exchange_weak_explicit(&ws->refs, &refs, refs - 1, memory_order_release,
                                                  memory_order_relaxed))
            return;
    pthread_mutex_lock(&ws->manager->names_lock);
    last = atomic_fetch_sub_explicit(&ws->refs, 1, memory_order_acq_rel) == 1;
    if (last)
        table_remove(&ws->manager->ids, &ws->by_id);
    pthread_mutex_unlock(&ws->manager->names_lock);
    if (last)
        workspace_free(ws);
}

bool workspace_keep_locked(struct workspace *ws)
{
    bool wanted = !ws->derived || atomic_load(&ws->pinned) || atomic_load(&ws->ttl_s) >= 0;

    if (wanted == atomic_load(&ws->kept))
        return false;
    atomic_store(&ws->kept, wanted);
    if (wanted)
        workspace_ref(ws);
    return !wanted;
}

static bool nothing_left_locked(struct workspace *ws)
{
    return !ws->derived && atomic_load(&ws->kept) && list_empty(&ws->sessions) &&
           !atomic_load(&ws->has_files) && workspace_state(ws) == WS_ABSENT && !atomic_load(&ws->pinned) &&
           atomic_load(&ws->ttl_s) < 0;
}

void workspace_release(struct workspace *ws)
{
    bool drop;

    pthread_mutex_lock(&ws->manager->names_lock);
    drop = nothing_left_locked(ws);
    if (drop)
        atomic_store(&ws->kept, false);
    pthread_mutex_unlock(&ws->manager->names_lock);
    if (!drop)
        return;
    workspace_store(ws);
    workspace_unref(ws);
}

/* ── the way in and out ──────────────────────────────────────────────────────────────────── */

static void used_at(struct workspace *ws, int64_t now_ns)
{
    if (atomic_load_explicit(&ws->last_access_ns, memory_order_relaxed) < now_ns) /* never backwards */
        atomic_store_explicit(&ws->last_access_ns, now_ns, memory_order_relaxed);
}

void workspace_touch(struct workspace *ws)
{
    used_at(ws, clock_ns());
}

/* By a clock that costs a fourth and is a tick late: enough for the end of a use, whose beginning was
 * taken exactly (which of two is idle longer is asked in milliseconds). */
static void touch_coarsely(struct workspace *ws)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    used_at(ws, ts.tv_sec * NS_PER_S + ts.tv_nsec);
}

/* Comes in where the gate is open. */
static bool pass_gate(struct workspace *ws)
{
    if (atomic_fetch_add_explicit(&ws->gate, 1, memory_order_acquire) & GATE_OPEN)
        return true;
    if (atomic_fetch_sub_explicit(&ws->gate, 1, memory_order_acq_rel) == 1)
        workspace_left_slow(ws);
    return false;
}

int workspace_enter(struct workspace *ws, struct waiter *w, struct err *e)
{
    if (!pass_gate(ws))
        return workspace_enter_slow(ws, w, e);
    workspace_touch(ws);
    return 0;
}

int workspace_peek(struct workspace *ws)
{
    return pass_gate(ws) ? 0 : -EAGAIN;
}

void workspace_leave(struct workspace *ws)
{
    touch_coarsely(ws);
    workspace_peek_end(ws);
}

void workspace_peek_end(struct workspace *ws)
{
    struct manager *m = ws->manager;
    unsigned gate = atomic_fetch_sub(&ws->gate, 1); /* before room_wanted is read, in everybody's eyes */

    if (gate == 1) /* closed, and this was the last one inside */
        workspace_left_slow(ws);
    else if ((gate & ~GATE_OPEN) == 1)
        admit_left(m);
}

unsigned workspace_inside(struct workspace *ws)
{
    return atomic_load(&ws->gate) & ~GATE_OPEN;
}

int workspace_files_fd(struct workspace *ws)
{
    return ws->files_fd;
}

void workspace_file_opened(struct workspace *ws)
{
    atomic_fetch_add(&ws->open_files, 1);
}

void workspace_file_closed(struct workspace *ws)
{
    workspace_touch(ws);
    atomic_fetch_sub(&ws->open_files, 1);
}

bool workspace_busy(struct workspace *ws)
{
    unsigned busy = ws->manager->config->busy;

    return ((busy & BUSY_FILES) && atomic_load(&ws->open_files) > 0) ||
           ((busy & BUSY_JOBS) && atomic_load(&ws->running_jobs) > 0);
}

#define RUNNING_BELIEVED_NS (1 * NS_PER_S)

bool workspace_look_running(struct workspace *ws)
{
    struct manager *m = ws->manager;
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    bool running;

    if (!(m->config->busy & BUSY_PROCESSES) || !m->backend->processes)
        return false;
    workspace_describe(ws, &w, dir);
    running = m->backend->processes(m->backend_state, &w);
    atomic_store(&ws->running_ns, running ? clock_ns() : 0);
    return running;
}

bool workspace_left_running(const struct workspace *ws)
{
    int64_t seen_ns = atomic_load(&ws->running_ns);

    return seen_ns && clock_ns() - seen_ns < RUNNING_BELIEVED_NS;
}

/* ── facts ───────────────────────────────────────────────────────────────────────────────── */

const char *workspace_state_name(enum workspace_state s)
{
    static const char *const names[WS_STATES] = { "absent", "provisioning", "ready", "closing", "failed" };

    return names[s];
}

enum workspace_state workspace_state(struct workspace *ws)
{
    return (enum workspace_state)atomic_load(&ws->state);
}

const char *workspace_id(struct workspace *ws)
{
    return ws->id;
}

void **workspace_fs_data(struct workspace *ws)
{
    return &ws->fs_data;
}

void workspace_set_state_locked(struct workspace *ws, enum workspace_state s)
{
    atomic_fetch_sub(&ws->manager->by_state[atomic_load(&ws->state)], 1);
    atomic_fetch_add(&ws->manager->by_state[s], 1);
    atomic_store(&ws->state, (int)s);
    ws->moves++;
    ws->lost = false;
    ws->state_ms = wall_ms();
}

int64_t workspace_ttl_s(struct workspace *ws)
{
    int64_t own = atomic_load(&ws->ttl_s);

    return own >= 0 ? own : config_ttl_s(ws->manager->config);
}

int64_t workspace_last_access_ms(struct workspace *ws)
{
    int64_t ns = atomic_load(&ws->last_access_ns);

    return ns ? ns / NS_PER_MS + ws->manager->wall_offset_ms : 0;
}

void workspace_refresh_tenant(struct workspace *ws)
{
    struct manager *m = ws->manager;
    uint64_t ids = TENANT_NONE;
    struct user_config u;

    if (m->config->owner == OWNER_TENANT || (m->config->owner == OWNER_AUTO && m->backend->foreign_ids))
        ids = (uint64_t)m->mount_uid << 32 | m->mount_gid;
    if (m->config->owner != OWNER_NATIVE && config_user(m->config, ws->user, &u) && u.has_uid)
        ids = (uint64_t)u.uid << 32 | u.gid;
    atomic_store(&ws->tenant_ids, ids);
}

bool workspace_foreign_ids(struct workspace *ws)
{
    return ws->manager->backend->foreign_ids;
}

bool workspace_tenant(struct workspace *ws, uid_t *uid, gid_t *gid)
{
    uint64_t ids = atomic_load_explicit(&ws->tenant_ids, memory_order_relaxed);

    if (ids == TENANT_NONE)
        return false;
    *uid = (uid_t)(ids >> 32);
    *gid = (gid_t)ids;
    return true;
}

void workspace_host_dir(const struct workspace *ws, char *out)
{
    if (!ws->derived)
        snprintf(out, HOST_DIR_MAX, ".wsmfs/id/%s", ws->id);
    else
        snprintf(out, HOST_DIR_MAX, "%s%s%s%s%s", ws->user, *ws->agent ? "/" : "", ws->agent,
                 *ws->session ? "/" : "", ws->session);
}

void workspace_sandbox_name(const struct workspace *ws, char out[BACKEND_SANDBOX_SIZE])
{
    snprintf(out, BACKEND_SANDBOX_SIZE, "wsm-%08x-%s", (unsigned)identity_number("instance", ws->manager->base.instance),
             ws->id);
}

void workspace_describe(struct workspace *ws, struct backend_workspace *out, char *dir)
{
    struct user_config u;
    uid_t uid;
    gid_t gid;

    workspace_host_dir(ws, dir);
    *out = (struct backend_workspace){
        .id = ws->id,
        .user = ws->user,
        .agent = ws->agent,
        .session = ws->session,
        .host_dir = dir,
        .data = &ws->backend_data,
    };
    workspace_sandbox_name(ws, out->sandbox);
    out->mode = config_user(ws->manager->config, ws->user, &u) ? u.mode : 0700;
    out->tenant = workspace_tenant(ws, &uid, &gid);
    if (out->tenant) {
        out->uid = uid;
        out->gid = gid;
        out->n_groups = config_user_groups(ws->manager->config, ws->user, out->groups, BACKEND_GROUPS_MAX);
    }
}

struct place *workspace_first_session(struct workspace *ws)
{
    scoped_lock(&ws->manager->names_lock);

    list_for_each(pos, &ws->sessions) {
        struct session *s = container_of(pos, struct session, in_ws);
        if (atomic_load(&s->node.known)) {
            node_ref(&s->node);
            return &s->node.pub;
        }
    }
    return NULL;
}

static const char *or_null(const char *s)
{
    return *s ? s : NULL;
}

void workspace_event(struct workspace *ws, enum log_level level, const char *event, const char *text)
{
    struct place *first = workspace_first_session(ws);
    struct place_names n = { ws->user, ws->agent, ws->session };

    if (first)
        n = place_names(first);
    struct log_fields f = { n.user, or_null(n.agent), or_null(n.session), ws->id };
    events_add(ws->manager->events, event, ws->id, f.user, f.agent, f.session, text);
    log_event(level, &f, text ? "%s: %s" : "%s", event, text);
    if (first)
        place_unref(first);
}

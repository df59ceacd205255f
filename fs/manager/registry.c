// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/registry.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

#define SCHEMA_VERSION 1

/* How long what nobody waits for may stay unwritten. */
#define GATHER_MS 100

/* What the writer does, as prepared statements. */
enum statement { ST_PLACE, ST_FORGET, ST_BIND, ST_WORKSPACE, ST_DROP_WORKSPACE, ST_COUNT };

static const char *const statement_text[ST_COUNT] = {
    [ST_PLACE] = "INSERT OR IGNORE INTO places(user, agent, session) VALUES(?1, ?2, ?3)",
    [ST_FORGET] = "DELETE FROM places WHERE user = ?1 AND agent = ?2 AND session = ?3",
    [ST_BIND] = "INSERT INTO places(user, agent, session, bound) VALUES(?1, ?2, ?3, ?4) "
                "ON CONFLICT DO UPDATE SET bound = ?4",
    [ST_WORKSPACE] = "INSERT OR REPLACE INTO workspaces(id, user, agent, session, derived, pinned, ttl_s, live, "
                     "created_ms, last_access_ms) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    [ST_DROP_WORKSPACE] = "DELETE FROM workspaces WHERE id = ?1",
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS places(user TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, bound TEXT, "
    "PRIMARY KEY(user, agent, session)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS workspaces(id TEXT PRIMARY KEY, user TEXT NOT NULL, agent TEXT NOT NULL, "
    "session TEXT NOT NULL, derived INTEGER NOT NULL, pinned INTEGER NOT NULL, ttl_s INTEGER NOT NULL, "
    "live INTEGER NOT NULL, created_ms INTEGER NOT NULL, last_access_ms INTEGER NOT NULL) WITHOUT ROWID;";

struct registry {
    struct manager *manager;
    char           *path;
    sqlite3        *db; /* main thread until the start, then the writer's alone */
    sqlite3_stmt   *statements[ST_COUNT];
    pthread_t       thread;
    bool            started;
    pthread_mutex_t lock; /* guards what follows; a leaf of the order */
    pthread_cond_t  work;
    struct list     queue;
    bool            urgent; /* somebody waits for something in it */
    bool            ending;
};

static int to_errno(int sqlite_status)
{
    switch (sqlite_status & 0xff) {
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_READONLY:
        return -EROFS;
    default:
        return -EIO;
    }
}

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

static int say(const struct registry *r, const char *what, struct err *e)
{
    return err_set(e, to_errno(sqlite3_errcode(r->db)), "the registry %s cannot be %s: %s", r->path, what,
                   r->db ? sqlite3_errmsg(r->db) : "out of memory");
}

static int run(struct registry *r, const char *sql)
{
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
}

static int check_version(struct registry *r, struct err *e)
{
    sqlite3_stmt *s = NULL;
    int version = -1;
    char sql[64];

    if (sqlite3_prepare_v2(r->db, "PRAGMA user_version", -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        version = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    if (version < 0)
        return say(r, "read", e);
    if (version > SCHEMA_VERSION)
        return err_set(e, -EINVAL, "the registry %s was written by a newer wsmfs (version %d, this one knows %d)",
                       r->path, version, SCHEMA_VERSION);
    snprintf(sql, sizeof(sql), "PRAGMA user_version = %d", SCHEMA_VERSION);
    return run(r, schema) < 0 || run(r, sql) < 0 ? say(r, "written", e) : 0;
}

/* WAL with full synchronisation: a commit that was answered is on the disk. Nobody else opens the
 * file, so its index stays in memory. */
static int set_up(struct registry *r, struct err *e)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;

    if (sqlite3_open_v2(r->path, &r->db, flags, NULL) != SQLITE_OK)
        return say(r, "opened", e);
    if (run(r, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
               "PRAGMA cache_size = -256; PRAGMA foreign_keys = OFF") < 0)
        return say(r, "set up", e);
    int status = check_version(r, e);
    for (int i = 0; i < ST_COUNT && status == 0; i++)
        if (sqlite3_prepare_v3(r->db, statement_text[i], -1, SQLITE_PREPARE_PERSISTENT, &r->statements[i],
                               NULL) != SQLITE_OK)
            status = say(r, "used", e);
    return status;
}

int registry_open(const char *dir, struct manager *m, struct registry **out, struct err *e)
{
    struct registry *r = calloc(1, sizeof(*r));
    pthread_condattr_t monotonic;
    int status = -ENOMEM;

    *out = NULL;
    if (!r || asprintf(&r->path, "%s/registry.sqlite", dir) < 0) {
        free(r);
        return err_set(e, status, "out of memory");
    }
    r->manager = m;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    list_init(&r->queue);
    status = set_up(r, e);
    if (status < 0)
        registry_close(r);
    else
        *out = r;
    return status;
}

/* ── loading ─────────────────────────────────────────────────────────────────────────────── */

static const char *text(sqlite3_stmt *s, int column)
{
    return (const char *)sqlite3_column_text(s, column);
}

static void load_place(sqlite3_stmt *s, void (*fn)(const struct registry_place *p, void *arg), void *arg)
{
    const struct registry_place p = { text(s, 0), text(s, 1), text(s, 2), text(s, 3) };

    if (p.user && p.agent && p.session)
        fn(&p, arg);
}

static void load_workspace(sqlite3_stmt *s, void (*fn)(const struct registry_workspace *w, void *arg), void *arg)
{
    const struct registry_workspace w = {
        .id = text(s, 0),
        .user = text(s, 1),
        .agent = text(s, 2),
        .session = text(s, 3),
        .derived = sqlite3_column_int(s, 4),
        .pinned = sqlite3_column_int(s, 5),
        .ttl_s = sqlite3_column_int64(s, 6),
        .live = sqlite3_column_int(s, 7),
        .created_ms = sqlite3_column_int64(s, 8),
        .last_access_ms = sqlite3_column_int64(s, 9),
    };

    if (w.id && w.user && w.agent && w.session)
        fn(&w, arg);
}

int registry_load(struct registry *r, void (*place)(const struct registry_place *p, void *arg),
                  void (*workspace)(const struct registry_workspace *w, void *arg), void *arg, struct err *e)
{
    sqlite3_stmt *s = NULL;
    int status;

    /* Workspaces first: a binding needs to know whose its id is. */
    status = sqlite3_prepare_v2(r->db, "SELECT id, user, agent, session, derived, pinned, ttl_s, live, created_ms, "
                                "last_access_ms FROM workspaces", -1, &s, NULL);
    while (status == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        load_workspace(s, workspace, arg);
    sqlite3_finalize(s);
    if (status == SQLITE_OK)
        status = sqlite3_prepare_v2(r->db, "SELECT user, agent, session, bound FROM places", -1, &s, NULL);
    else
        return say(r, "read", e);
    while (status == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        load_place(s, place, arg);
    sqlite3_finalize(s);
    return status == SQLITE_OK ? 0 : say(r, "read", e);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static int step(sqlite3_stmt *s)
{
    int status = sqlite3_step(s);

    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return status == SQLITE_DONE ? 0 : to_errno(status);
}

static void bind_text(sqlite3_stmt *s, int at, const char *value)
{
    sqlite3_bind_text(s, at, value, -1, SQLITE_STATIC);
}

static int write_place(struct registry *r, enum statement which, const struct registry_op *op)
{
    struct place_names n = place_names(op->place);
    sqlite3_stmt *s = r->statements[which];

    bind_text(s, 1, n.user);
    bind_text(s, 2, n.agent);
    bind_text(s, 3, n.session);
    if (which == ST_BIND && *op->id)
        bind_text(s, 4, op->id);
    return step(s);
}

/* The row as the workspace is now, or its end when there is nothing to remember. */
static int write_workspace(struct registry *r, struct workspace *ws)
{
    bool live = atomic_load(&ws->gate) & GATE_OPEN;
    sqlite3_stmt *s;

    atomic_store(&ws->row_queued, false);
    if (!live && !atomic_load(&ws->kept)) {
        s = r->statements[ST_DROP_WORKSPACE];
        bind_text(s, 1, ws->id);
        return step(s);
    }
    s = r->statements[ST_WORKSPACE];
    bind_text(s, 1, ws->id);
    bind_text(s, 2, ws->user);
    bind_text(s, 3, ws->agent);
    bind_text(s, 4, ws->session);
    sqlite3_bind_int(s, 5, ws->derived);
    sqlite3_bind_int(s, 6, atomic_load(&ws->pinned));
    sqlite3_bind_int64(s, 7, atomic_load(&ws->ttl_s));
    sqlite3_bind_int(s, 8, live);
    sqlite3_bind_int64(s, 9, atomic_load(&ws->created_ms));
    sqlite3_bind_int64(s, 10, workspace_last_access_ms(ws));
    return step(s);
}

static int write_op(struct registry *r, const struct registry_op *op)
{
    int status = 0;

    if (op->kind == REGISTRY_PLACE)
        status = write_place(r, ST_PLACE, op);
    else if (op->kind == REGISTRY_FORGET)
        status = write_place(r, ST_FORGET, op);
    else if (op->kind == REGISTRY_BIND)
        status = write_place(r, ST_BIND, op);
    if (status == 0 && op->ws)
        status = write_workspace(r, op->ws);
    return status;
}

/* All that is queued in one commit: the more there is, the less each costs. */
static int write_batch(struct registry *r, struct list *batch)
{
    int status = run(r, "BEGIN") < 0 ? to_errno(sqlite3_errcode(r->db)) : 0;

    list_for_each(pos, batch) {
        if (status == 0)
            status = write_op(r, container_of(pos, struct registry_op, links));
    }
    if (status == 0 && run(r, "COMMIT") < 0)
        status = to_errno(sqlite3_errcode(r->db));
    if (status < 0 && !sqlite3_get_autocommit(r->db))
        run(r, "ROLLBACK");
    return status;
}

static void finish_batch(struct list *batch, int status)
{
    while (!list_empty(batch)) {
        struct registry_op *op = container_of(batch->next, struct registry_op, links);
        list_remove(&op->links);
        op->done(op, status);
    }
}

/* Lets more come that nobody waits for: each commit makes the disk's journal write out, and whoever
 * makes a directory in that moment waits for it. */
static void gather_locked(struct registry *r)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GATHER_MS * NS_PER_MS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    while (!r->urgent && !r->ending)
        if (pthread_cond_timedwait(&r->work, &r->lock, &until) == ETIMEDOUT)
            return;
}

/* Waits for work; false at the end. */
static bool take_batch(struct registry *r, struct list *batch)
{
    scoped_lock(&r->lock);

    while (list_empty(&r->queue) && !r->ending)
        pthread_cond_wait(&r->work, &r->lock);
    gather_locked(r);
    r->urgent = false;
    list_splice(batch, &r->queue);
    return !list_empty(batch);
}

static void *writer(void *arg)
{
    struct registry *r = arg;
    struct list batch;

    list_init(&batch);
    while (take_batch(r, &batch))
        finish_batch(&batch, write_batch(r, &batch));
    return NULL;
}

int registry_start(struct registry *r)
{
    sigset_t all, before;
    int status;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = -pthread_create(&r->thread, NULL, writer, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->started = status == 0;
    return status;
}

void registry_add(struct registry *r, struct registry_op *op)
{
    scoped_lock(&r->lock);

    list_append(&r->queue, &op->links);
    r->urgent = r->urgent || op->urgent;
    pthread_cond_signal(&r->work);
}

void registry_close(struct registry *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    if (r->started)
        pthread_join(r->thread, NULL);
    finish_batch(&r->queue, -ECANCELED);
    for (int i = 0; i < ST_COUNT; i++)
        sqlite3_finalize(r->statements[i]);
    sqlite3_close(r->db);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r->path);
    free(r);
}

// SPDX-License-Identifier: Apache-2.0
/* A manager over a backend that does what the test says, in a directory of its own. */
#ifndef WSMFS_TESTS_MANAGER_FIXTURE_H
#define WSMFS_TESTS_MANAGER_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/local/local.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/base/walk.h"
#include "fs/manager/manager.h"

#define UNUSED __attribute__((unused))

/* Long enough for a busy machine; nothing waits that long unless it is broken. */
#define PATIENCE_S 60

/* ── a backend that obeys ────────────────────────────────────────────────────────────────── */

struct fake {
    pthread_mutex_t lock; /* guards the condition's plain members */
    pthread_cond_t  changed;
    bool       released;  /* lets those go that hang */
    int        hanging;   /* how many do now */
    int        fail_code; /* provisioning fails with it, 0: it does not */
    int        close_code;
    atomic_int provisions, inside, inside_most, opens, closes, destroys;
    bool       host;   /* files_wait is false */
    atomic_int beside; /* callbacks for one workspace that ran at the same time: none may, but FILES_OPEN of host files */
    int        base_fd;
};

static struct fake fake;

static int fake_init(const struct backend_mount *m, void **state, struct err *e)
{
    (void)e;
    fake.base_fd = m->basedir_fd;
    *state = &fake;
    return 0;
}

/* A workspace's own memory counts its callbacks. */
static void callback_begins(const struct backend_workspace *w)
{
    if (__atomic_exchange_n((intptr_t *)(void *)w->data, 1, __ATOMIC_SEQ_CST))
        atomic_fetch_add(&fake.beside, 1);
}

static void callback_ends(const struct backend_workspace *w)
{
    __atomic_store_n((intptr_t *)(void *)w->data, 0, __ATOMIC_SEQ_CST);
}

/* Users called hang… hang until released or no longer wanted, hard… until released. */
static bool fake_hang(const struct backend_workspace *w, struct backend_progress *p)
{
    bool wanted = true, hard = strncmp(w->user, "hard", 4) == 0;
    const struct timespec tick = { .tv_nsec = 2000000 };

    if (!hard && strncmp(w->user, "hang", 4) != 0)
        return true;
    pthread_mutex_lock(&fake.lock);
    fake.hanging++;
    pthread_cond_broadcast(&fake.changed);
    while (!fake.released && wanted) {
        pthread_mutex_unlock(&fake.lock);
        nanosleep(&tick, NULL);
        wanted = hard || !p->cancelled(p);
        pthread_mutex_lock(&fake.lock);
    }
    fake.hanging--;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return wanted;
}

static int fake_provision(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    int r = 0;

    (void)state;
    callback_begins(w);
    atomic_fetch_add(&fake.provisions, 1);
    p->step(p, "start", "a step", 1, 2);
    if (!fake_hang(w, p))
        r = err_set(e, -ECANCELED, "no longer wanted");
    pthread_mutex_lock(&fake.lock);
    if (r == 0 && fake.fail_code)
        r = err_set(e, fake.fail_code, "the test says so");
    pthread_mutex_unlock(&fake.lock);
    callback_ends(w);
    return r;
}

static int fake_files_open(void *state, const struct backend_workspace *w, struct err *e)
{
    int fd;

    (void)state;
    if (!fake.host)
        callback_begins(w);
    atomic_fetch_add(&fake.opens, 1);
    fd = walk_open(fake.base_fd, w->host_dir, !w->adopt);
    if (!fake.host)
        callback_ends(w);
    return fd < 0 ? err_sys(e, fd, "%s", w->host_dir) : fd;
}

static int fake_close(void *state, const struct backend_workspace *w, struct err *e)
{
    int r;

    (void)state;
    callback_begins(w);
    atomic_fetch_add(&fake.closes, 1);
    pthread_mutex_lock(&fake.lock);
    r = fake.close_code ? err_set(e, fake.close_code, "closing fails, the test says") : 0;
    pthread_mutex_unlock(&fake.lock);
    callback_ends(w);
    return r;
}

static int fake_destroy(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    (void)state;
    (void)p;
    (void)e;
    callback_begins(w);
    atomic_fetch_add(&fake.destroys, 1);
    callback_ends(w);
    return 0;
}

static const struct backend fake_remote UNUSED = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fake", .files_wait = true,
    .init = fake_init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
    .destroy = fake_destroy,
};

/* As docker with an engine on this host: files at once, the sandbox behind them. */
static const struct backend fake_host UNUSED = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fakehost", .files_wait = false,
    .init = fake_init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
    .destroy = fake_destroy,
};

static void fake_reset(void)
{
    memset(&fake, 0, sizeof(fake));
    pthread_mutex_init(&fake.lock, NULL);
    pthread_cond_init(&fake.changed, NULL);
}

static UNUSED void fake_set_fail(int code)
{
    pthread_mutex_lock(&fake.lock);
    fake.fail_code = code;
    pthread_mutex_unlock(&fake.lock);
}

static UNUSED void fake_set_close(int code)
{
    pthread_mutex_lock(&fake.lock);
    fake.close_code = code;
    pthread_mutex_unlock(&fake.lock);
}

static UNUSED void fake_release(bool released)
{
    pthread_mutex_lock(&fake.lock);
    fake.released = released;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static UNUSED void fake_wait_hanging(int n)
{
    pthread_mutex_lock(&fake.lock);
    while (fake.hanging != n)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

/* ── the manager and what it calls ───────────────────────────────────────────────────────── */

struct fixture {
    char dir[PATH_MAX], base[PATH_MAX + 8], state[PATH_MAX + 8];
    struct config  *config;
    const struct backend *backend;
    struct pool    *pool;
    struct timers  *timers;
    struct manager *m;
    atomic_int closed, emptied, rebound, forgotten, expired, detached, reloaded, gone;
    /* Called by the expire hook: use that the kernel would show. */
    void (*on_expire)(struct workspace *ws);
};

static void hook_closed(struct workspace *ws, void *arg) { (void)ws; ((struct fixture *)arg)->closed++; }
static void hook_emptied(struct workspace *ws, void *arg) { (void)ws; ((struct fixture *)arg)->emptied++; }
static void hook_rebound(struct place *p, void *arg) { (void)p; ((struct fixture *)arg)->rebound++; }
static void hook_forgotten(struct place *p, void *arg) { (void)p; ((struct fixture *)arg)->forgotten++; }
static void hook_detach(void *arg) { ((struct fixture *)arg)->detached++; }
static void hook_gone(void *data, void *arg) { free(data); ((struct fixture *)arg)->gone++; }

static void hook_expire(struct workspace *ws, void *arg)
{
    struct fixture *f = arg;

    if (f->on_expire)
        f->on_expire(ws);
    f->expired++;
}

static int hook_reload(void *arg, struct err *e)
{
    struct fixture *f = arg;

    f->reloaded++;
    return f->reloaded > 1 ? err_set(e, -EINVAL, "only once") : 0;
}

static const struct manager_hooks fixture_hooks = {
    .closed = hook_closed, .emptied = hook_emptied, .rebound = hook_rebound, .forgotten = hook_forgotten,
    .expire = hook_expire, .detach = hook_detach, .reload = hook_reload, .gone = hook_gone,
};

static int fixture_try_open(struct fixture *f, struct err *e)
{
    const struct manager_setup setup = {
        .config = f->config, .backend = f->backend, .pool = f->pool, .timers = f->timers,
        .mount_uid = getuid(), .mount_gid = getgid(),
    };
    int r;

    fake_reset();
    fake.host = !f->backend->files_wait;
    err_clear(e);
    r = manager_create(&setup, &f->m, e);
    if (r < 0)
        return r;
    manager_set_hooks(f->m, &fixture_hooks, f);
    manager_start(f->m);
    return 0;
}

static void fixture_open(struct fixture *f)
{
    struct err e;

    if (fixture_try_open(f, &e) < 0)
        fail_msg("%s", e.text);
}

/* Ends the manager as a daemon does; the directories stay. */
static UNUSED int fixture_close(struct fixture *f, bool detach)
{
    int left = manager_shutdown(f->m, detach);

    manager_destroy(f->m);
    f->m = NULL;
    return left;
}

static UNUSED void fixture_reopen(struct fixture *f)
{
    assert_int_equal(fixture_close(f, false), 0);
    fixture_open(f);
}

/* Makes directories, threads and a configuration of these words; opens nothing yet. */
static void fixture_prepare(struct fixture *f, const struct backend *backend, const char *words)
{
    const char *tmp = getenv("TMPDIR");
    struct err e;

    memset(f, 0, sizeof(*f));
    log_set_level(LOG_LEVEL_ERROR);
    snprintf(f->dir, sizeof(f->dir), "%s/wsmfs-unit.XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->base, sizeof(f->base), "%s/base", f->dir);
    snprintf(f->state, sizeof(f->state), "%s/state", f->dir);
    f->backend = backend;
    f->config = config_create();
    assert_non_null(f->config);
    f->config->basedir = strdup(f->base);
    f->config->state_dir = strdup(f->state);
    f->config->mountpoint = strdup("/nowhere");
    f->config->backend = strdup(backend->name);
    f->config->source = strdup("");
    if (config_parse_words(f->config, words, &e) < 0)
        fail_msg("%s", e.text);
    f->pool = pool_create(64, 0);
    f->timers = timers_create();
    assert_true(f->pool && f->timers);
}

static UNUSED struct fixture *fixture_new(const struct backend *backend, const char *words)
{
    struct fixture *f = malloc(sizeof(*f));

    fixture_prepare(f, backend, words);
    fixture_open(f);
    return f;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static UNUSED void fixture_free(struct fixture *f)
{
    if (f->m) {
        fake_release(true);
        assert_int_equal(fixture_close(f, false), 0);
    }
    timers_destroy(f->timers);
    pool_destroy(f->pool);
    config_destroy(f->config);
    nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(atomic_load(&fake.beside), 0);
    free(f);
}

/* ── waiting ─────────────────────────────────────────────────────────────────────────────── */

struct sync_waiter {
    struct waiter w; /* first */
    pthread_mutex_t lock;
    pthread_cond_t  woken;
    bool done;
    int  status;
};

static void sync_woken(struct waiter *w, int status)
{
    struct sync_waiter *s = container_of(w, struct sync_waiter, w);

    pthread_mutex_lock(&s->lock);
    s->done = true;
    s->status = status;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

static void sync_init(struct sync_waiter *s)
{
    memset(s, 0, sizeof(*s));
    s->w.wake = sync_woken;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->woken, NULL);
}

static int sync_wait(struct sync_waiter *s)
{
    struct timespec until;
    int r = 0, status;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&s->lock);
    while (!s->done && r == 0)
        r = pthread_cond_timedwait(&s->woken, &s->lock, &until);
    if (r != 0)
        abort(); /* the waiter is on the stack: going on would spoil it */
    s->done = false;
    status = s->status;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Waits until `expr` holds. */
#define wait_until(expr)                                                     \
    do {                                                                     \
        int64_t wait_until_end = clock_ns() + PATIENCE_S * INT64_C(1000000000); \
        while (!(expr)) {                                                    \
            if (clock_ns() > wait_until_end)                                 \
                fail_msg("never came true: %s", #expr);                      \
            usleep(2000);                                                    \
        }                                                                    \
    } while (0)

/* ── short forms ─────────────────────────────────────────────────────────────────────────── */

/* A reference to a session by its path, which exists. */
static UNUSED struct place *session_at(struct fixture *f, const char *user, const char *agent, const char *session)
{
    struct place *u, *a, *s;

    assert_int_equal(place_lookup(manager_root(f->m), user, &u), 0);
    assert_int_equal(place_lookup(u, agent, &a), 0);
    assert_int_equal(place_lookup(a, session, &s), 0);
    place_unref(u);
    place_unref(a);
    return s;
}

/* Enters, waiting as long as it takes. */
static UNUSED int enter(struct place *s, struct workspace **ws, struct err *e)
{
    struct sync_waiter w;
    int r;

    sync_init(&w);
    err_clear(e);
    while ((r = session_enter(s, &w.w, ws, e)) == MANAGER_WAIT) {
        r = sync_wait(&w);
        if (r < 0)
            return r;
    }
    return r;
}

/* Goes in and out again. */
static UNUSED int visit(struct place *s)
{
    struct workspace *ws;
    struct err e;
    int r = enter(s, &ws, &e);

    if (r < 0)
        return r;
    workspace_leave(ws);
    workspace_unref(ws);
    return 0;
}

static UNUSED int visit_name(struct fixture *f, const char *user, const char *agent, const char *session)
{
    struct place *s = session_at(f, user, agent, session);
    int r = visit(s);

    place_unref(s);
    return r;
}

/* Runs a verb to its end. */
static UNUSED int verb(struct place *s, const char *line, struct err *e)
{
    const struct caller who = { .uid = getuid(), .gid = getgid() };
    struct sync_waiter w;
    int r;

    sync_init(&w);
    err_clear(e);
    r = session_verb(s, &who, line, &w.w, e);
    return r == MANAGER_WAIT ? sync_wait(&w) : r;
}

static UNUSED int bind_as(struct place *s, uid_t uid, const char *id, struct err *e)
{
    const struct caller who = { .uid = uid, .gid = uid };
    struct sync_waiter w;
    int r;

    sync_init(&w);
    err_clear(e);
    r = session_bind(s, &who, id, &w.w, e);
    return r == MANAGER_WAIT ? sync_wait(&w) : r;
}

static UNUSED int manager_do(struct fixture *f, const char *line, struct err *e)
{
    const struct caller who = { .uid = getuid(), .gid = getgid() };
    struct sync_waiter w;
    int r;

    sync_init(&w);
    err_clear(e);
    r = manager_verb(f->m, &who, line, &w.w, e);
    return r == MANAGER_WAIT ? sync_wait(&w) : r;
}

/* A control file's text without its newline, in memory of the test's own. */
static UNUSED const char *text_of(session_text_fn *fn, struct place *s)
{
    static char buf[8][4096];
    static int  next;
    char   *out = buf[next++ % 8];
    size_t  size;
    int64_t ms;
    char   *text = fn(s, &size, &ms);

    assert_non_null(text);
    assert_int_equal(size, strlen(text));
    snprintf(out, sizeof(buf[0]), "%.*s", (int)(size ? size - 1 : 0), text);
    assert_true(size == 0 || text[size - 1] == '\n');
    free(text);
    return out;
}

/* Asks for it and looks at nothing; for many threads. */
static UNUSED void text_free(session_text_fn *fn, struct place *s)
{
    size_t  size;
    int64_t ms;

    free(fn(s, &size, &ms));
}

#define state_of(s) text_of(session_text_state, s)
#define id_of(s)    text_of(session_text_id, s)
#define error_of(s) text_of(session_text_error, s)

static UNUSED bool has_event(struct fixture *f, const char *event, const char *id)
{
    static char buf[1 << 19];
    char want[200];
    uint64_t pos = 0;
    size_t n = 0, more;

    while ((more = events_read(manager_events(f->m), &pos, buf + n, sizeof(buf) - 1 - n)))
        n += more;
    buf[n] = '\0';
    snprintf(want, sizeof(want), "\"event\":\"%s\",\"id\":\"%s\"", event, id);
    return strstr(buf, want) != NULL;
}

static UNUSED size_t count_known(struct place *p);
static bool count_one(const char *name, uint64_t ino, void *arg)
{
    (void)name;
    (void)ino;
    (*(size_t *)arg)++;
    return true;
}

static UNUSED size_t count_known(struct place *p)
{
    size_t n = 0;

    place_each(p, count_one, &n);
    return n;
}

#endif

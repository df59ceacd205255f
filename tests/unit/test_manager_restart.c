// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>

#include "fs/manager/internal.h"
#include "tests/unit/manager_fixture.h"

static bool known(struct fixture *f, const char *user, const char *agent, const char *session)
{
    struct place *s = session_at(f, user, agent, session);
    size_t n = count_known(s->parent);
    struct err e;
    bool was = place_forget(s->parent, session, &e) == 0 && count_known(s->parent) < n;

    place_unref(s);
    return was;
}

static void known_names_pins_and_ttls_survive(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2"), *p;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "pin", &e), 0);
    assert_int_equal(verb(s, "ttl 10m", &e), 0);
    assert_int_equal(verb(t, "touch", &e), 0);
    assert_int_equal(place_make(s->parent, "made.one", &p, &e), 0);
    place_unref(p);
    assert_int_equal(place_make(manager_root(f->m), "empty.user", &p, &e), 0);
    place_unref(p);
    place_unref(s);
    place_unref(t);
    fixture_reopen(f);
    s = session_at(f, "alice", "coder", "s1");
    assert_non_null(strstr(text_of(session_text_status, s), "\"ttl_s\":600,"));
    assert_non_null(strstr(text_of(session_text_status, s), "\"pinned\":true"));
    assert_int_equal(count_known(s->parent), 3);
    assert_int_equal(count_known(manager_root(f->m)), 2);
    assert_int_equal(verb(s, "unpin", &e), 0);
    assert_int_equal(verb(s, "ttl default", &e), 0);
    place_unref(s);
    assert_true(known(f, "alice", "coder", "s2"));
    fixture_reopen(f);
    s = session_at(f, "alice", "coder", "s1");
    assert_non_null(strstr(text_of(session_text_status, s), "\"pinned\":false"));
    assert_non_null(strstr(text_of(session_text_status, s), "\"ttl_s\":3600,"));
    assert_int_equal(count_known(s->parent), 2); /* s2 was forgotten */
    place_unref(s);
    fixture_free(f);
}

static void what_was_live_is_live_again_after_a_detach(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_remote, &fake_host };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1");
        char created[64] = "";
        assert_int_equal(visit(s), 0);
        wait_until(strcmp(state_of(s), "ready") == 0);
        sscanf(strstr(text_of(session_text_status, s), "\"created\":"), "\"created\":\"%63[^\"]", created);
        place_unref(s);
        assert_int_equal(fixture_close(f, true), 0);
        assert_int_equal(atomic_load(&fake.closes), 0);
        fixture_open(f);
        s = session_at(f, "alice", "coder", "s1");
        wait_until(strcmp(state_of(s), "ready") == 0);
        char again[64] = "";
        sscanf(strstr(text_of(session_text_status, s), "\"created\":"), "\"created\":\"%63[^\"]", again);
        again[19] = created[19] = '\0'; /* seconds are enough: the clocks were converted */
        assert_string_equal(again, created);
        assert_int_equal(verb(s, "close", &(struct err){ 0 }), 0);
        place_unref(s);
        fixture_reopen(f);
        s = session_at(f, "alice", "coder", "s1");
        assert_string_equal(state_of(s), "absent");
        place_unref(s);
        fixture_free(f);
    }
}

static void keep_on_exit_keeps_and_an_ordinary_end_closes(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,keep_on_exit");

    (void)state;
    assert_int_equal(visit_name(f, "alice", "coder", "s1"), 0);
    assert_int_equal(fixture_close(f, false), 0);
    assert_int_equal(atomic_load(&fake.closes), 0);
    f->config->keep_on_exit = false;
    fixture_open(f);
    assert_int_equal(visit_name(f, "alice", "coder", "s1"), 0);
    assert_int_equal(fixture_close(f, false), 0);
    assert_int_equal(atomic_load(&fake.closes), 1);
    fixture_open(f);
    struct place *s = session_at(f, "alice", "coder", "s1");
    assert_string_equal(state_of(s), "absent");
    place_unref(s);
    fixture_free(f);
}

static void idle_time_goes_on_over_a_restart(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=1h");
    struct place *s = session_at(f, "alice", "coder", "s1");

    (void)state;
    assert_int_equal(visit(s), 0);
    place_unref(s);
    usleep(1200000);
    fixture_close(f, true);
    f->config->ttl_s = 1; /* its deadline has passed while nobody looked */
    fixture_open(f);
    s = session_at(f, "alice", "coder", "s1");
    wait_until(has_event(f, "evicted", id_of(s)));
    place_unref(s);
    fixture_free(f);
}

static void a_shutdown_closes_in_parallel_and_names_what_does_not_end(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session,shutdown_timeout=1");
    const struct caller who = { .uid = 0 };
    struct err e;

    (void)state;
    struct place *s = session_at(f, "hard", "coder", "s1");
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof(name), "s%d", i);
        assert_int_equal(visit_name(f, "alice", "coder", name), 0);
    }
    assert_int_equal(session_verb(s, &who, "provision nowait", NULL, &e), 0);
    fake_wait_hanging(1);
    place_unref(s);
    assert_int_equal(manager_shutdown(f->m, false), 1);
    assert_int_equal(atomic_load(&fake.closes), 20);
    fake_release(true); /* now it ends, and its late success is closed */
    wait_until(atomic_load(&fake.closes) == 21);
    usleep(50000);
    manager_destroy(f->m);
    f->m = NULL;
    fixture_free(f);
}

static void *release_later(void *arg)
{
    usleep(1500000); /* longer than grace */
    fake_release(true);
    return arg;
}

/* As an engine that is busy with the end of all the others is late with one that it has begun. */
static void a_shutdown_waits_for_a_sandbox_that_is_being_made_and_closes_it(void **state)
{
    struct fixture *f = fixture_new(&fake_host, "isolation=per_agent,grace=1,shutdown_timeout=60");
    struct place *s = session_at(f, "hard", "coder", "s1");
    pthread_t thread;

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_wait_hanging(1);
    place_unref(s);
    pthread_create(&thread, NULL, release_later, NULL);
    assert_int_equal(manager_shutdown(f->m, false), 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&fake.closes), 1);
    manager_destroy(f->m);
    f->m = NULL;
    fixture_free(f);
}

/* Somebody who comes on a thread of his own, and how that went. */
struct visitor {
    pthread_t     thread;
    struct place *session;
    int           result;
};

static void *visit_thread(void *arg)
{
    struct visitor *v = arg;

    v->result = visit(v->session);
    return NULL;
}

static void visitor_start(struct visitor *v, struct place *s)
{
    v->session = s;
    assert_int_equal(pthread_create(&v->thread, NULL, visit_thread, v), 0);
}

static int visitor_end(struct visitor *v)
{
    pthread_join(v->thread, NULL);
    return v->result;
}

static void *leave_when_stopping(void *arg)
{
    struct workspace *ws = arg;

    wait_until(atomic_load(&ws->manager->stopping));
    usleep(20000); /* it is being closed by now, or will be */
    workspace_leave(ws);
    workspace_unref(ws);
    return NULL;
}

static bool waits_for_room(struct fixture *f)
{
    scoped_lock(&f->m->live_lock);

    return !list_empty(&f->m->admitting);
}

/* Whoever waits for room gets none of a mount that ends: it would be live when all has been closed. */
static void a_shutdown_lets_nobody_in_who_waits_for_room(void **state)
{
    for (int detach = 0; detach < 2; detach++) {
        struct fixture *f = fixture_new(&fake_host, "isolation=per_agent,max_live=1,shutdown_timeout=3");
        struct place *a = session_at(f, "alice", "coder", "s1"), *b = session_at(f, "bob", "coder", "s1");
        struct visitor v;
        struct workspace *ws;
        pthread_t leaver;
        struct err e;
        int left;

        (void)state;
        assert_int_equal(enter(a, &ws, &e), 0);
        wait_until(strcmp(state_of(a), "ready") == 0);
        visitor_start(&v, b);
        wait_until(waits_for_room(f));
        assert_int_equal(pthread_create(&leaver, NULL, leave_when_stopping, ws), 0);
        left = manager_shutdown(f->m, detach);
        pthread_join(leaver, NULL);
        assert_int_equal(visitor_end(&v), -ESHUTDOWN);
        assert_int_equal(left, 0);
        place_unref(a);
        place_unref(b);
        manager_destroy(f->m);
        f->m = NULL;
        fixture_free(f);
    }
}

/* The end cancels what is being provisioned. Who waited for it is not told that it failed: a job's start is the next
 * life's to make. */
static void who_waits_at_the_end_is_told_of_the_end(void **state)
{
    for (int detach = 0; detach < 2; detach++) {
        struct fixture *f = fixture_new(&fake_host, "isolation=per_agent,shutdown_timeout=20");
        struct place *s = session_at(f, "hang", "coder", "s1");
        struct workspace *ws;
        struct sync_waiter w;
        struct err e;

        (void)state;
        sync_init(&w);
        assert_int_equal(session_enter_sandbox(s, &w.w, &ws, &e), MANAGER_WAIT);
        fake_wait_hanging(1);
        assert_int_equal(manager_shutdown(f->m, detach), 0);
        sync_wait(&w);
        assert_int_equal(session_enter_sandbox(s, &w.w, &ws, &e), -ESHUTDOWN);
        place_unref(s);
        manager_destroy(f->m);
        f->m = NULL;
        fixture_free(f);
    }
}

static void *release_when_stopping(void *arg)
{
    struct fixture *f = arg;

    wait_until(atomic_load(&f->m->stopping));
    usleep(20000);
    fake_release(true);
    return NULL;
}

static bool waits_behind(struct place *s)
{
    struct workspace *ws = session_workspace(s);
    bool waits;

    pthread_mutex_lock(&ws->lock);
    waits = ws->attempt && ws->attempt->behind;
    pthread_mutex_unlock(&ws->lock);
    workspace_unref(ws);
    return waits;
}

static void who_waits_behind_an_earlier_attempt_is_told_of_the_end(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,provision_timeout=1,shutdown_timeout=20");
    struct place *s = session_at(f, "hard", "coder", "s1");
    struct visitor v;
    pthread_t releaser;

    (void)state;
    assert_int_equal(visit(s), -ETIMEDOUT);
    f->config->provision_timeout_s = 60;
    {
        struct workspace *ws = session_workspace(s);
        pthread_mutex_lock(&ws->lock);
        ws->retry_ns = 0;
        pthread_mutex_unlock(&ws->lock);
        workspace_unref(ws);
    }
    visitor_start(&v, s);
    wait_until(waits_behind(s));
    assert_int_equal(pthread_create(&releaser, NULL, release_when_stopping, f), 0);
    assert_int_equal(manager_shutdown(f->m, true), 0);
    pthread_join(releaser, NULL);
    assert_int_equal(visitor_end(&v), -ESHUTDOWN);
    place_unref(s);
    manager_destroy(f->m);
    f->m = NULL;
    fixture_free(f);
}

/* ── killed ──────────────────────────────────────────────────────────────────────────────── */

/* What the process that will be killed does; all of it is acknowledged before. */
static void do_and_hang(struct fixture *f)
{
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2"),
                 *u = session_at(f, "bob", "coder", "s1");
    struct err e;

    assert_int_equal(visit(t), 0);
    assert_int_equal(bind_as(s, 1001, "team", &e), 0);
    assert_int_equal(verb(t, "pin", &e), 0);
    assert_int_equal(verb(t, "ttl 2h", &e), 0);
    assert_int_equal(verb(u, "fresh", &e), 0);
}

static void what_was_acknowledged_survives_being_killed(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    char dir[PATH_MAX];
    int  pipes[2], status;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct fixture *own = fixture_new(&local_backend, "isolation=per_session");
        do_and_hang(own);
        if (write(pipes[1], own->dir, sizeof(own->dir)) != sizeof(own->dir))
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(pipes[0], dir, sizeof(dir)), sizeof(dir));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    fixture_prepare(f, &local_backend, "isolation=per_session");
    rmdir(f->dir);
    memcpy(f->dir, dir, sizeof(f->dir));
    snprintf(f->base, sizeof(f->base), "%s/base", f->dir);
    free(f->config->basedir);
    f->config->basedir = strdup(f->base);
    free(f->config->state_dir);
    f->config->state_dir = malloc(PATH_MAX + 8);
    snprintf(f->config->state_dir, PATH_MAX + 8, "%s/state", f->dir);
    fixture_open(f);
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2"),
                 *u = session_at(f, "bob", "coder", "s1");
    assert_string_equal(id_of(s), "team");
    assert_string_equal(state_of(t), "ready"); /* taken over */
    assert_non_null(strstr(text_of(session_text_status, t), "\"pinned\":true"));
    assert_non_null(strstr(text_of(session_text_status, t), "\"ttl_s\":7200,"));
    assert_int_equal(strlen(id_of(u)), ID_MINTED_DIGITS);
    assert_int_equal(count_known(s->parent), 2);
    place_unref(s);
    place_unref(t);
    place_unref(u);
    close(pipes[0]);
    close(pipes[1]);
    fixture_free(f);
}

/* ── what a backend finds ────────────────────────────────────────────────────────────────── */

static int list_two(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    (void)state;
    (void)e;
    found(&(struct backend_found){ "051163a4d79ca941", "alice", "coder", "" }, arg);
    found(&(struct backend_found){ "0123456789abcdef", "alice", "coder", "" }, arg); /* no such names give it */
    found(&(struct backend_found){ "lost", "alice", "", "" }, arg);
    found(&(struct backend_found){ "../x", "alice", "", "" }, arg);
    return 0;
}

static void sandboxes_that_are_found_are_adopted_and_evicted(void **state)
{
    struct backend listing = fake_remote;
    struct fixture *f;

    (void)state;
    listing.list = list_two;
    f = fixture_new(&listing, "isolation=per_agent,ttl=1");
    wait_until(has_event(f, "ready", "051163a4d79ca941"));
    wait_until(has_event(f, "ready", "lost"));
    assert_false(has_event(f, "ready", "0123456789abcdef"));
    wait_until(has_event(f, "evicted", "051163a4d79ca941"));
    wait_until(has_event(f, "evicted", "lost"));
    assert_int_equal(atomic_load(&fake.provisions), 2);
    fixture_free(f);
}

/* ── a list that takes its time ──────────────────────────────────────────────────────────── */

#define CODER "051163a4d79ca941" /* alice's, per_agent */

static struct {
    atomic_bool begun, go_on, over;
    char        lock[PATH_MAX + 16]; /* of the state directory; "": go_on is waited for */
} slow;

static bool is_closing(void)
{
    char text[64] = "";
    cleanup_close int fd = open(slow.lock, O_RDONLY);

    return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && strstr(text, "state closing");
}

static int list_slowly(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    (void)state;
    (void)e;
    atomic_store(&slow.begun, true);
    wait_until(*slow.lock ? is_closing() : atomic_load(&slow.go_on));
    if (*slow.lock)
        usleep(20000); /* by then whoever closes all has looked at what is live */
    found(&(struct backend_found){ CODER, "alice", "coder", "" }, arg);
    atomic_store(&slow.over, true);
    return 0;
}

static void what_was_closed_while_it_was_listed_is_not_taken_over(void **state)
{
    static const char *const verbs[] = { "close", "destroy" };
    struct backend listing = fake_host;

    (void)state;
    listing.list = list_slowly;
    for (size_t i = 0; i < array_size(verbs); i++) {
        struct err e;
        memset(&slow, 0, sizeof(slow));
        struct fixture *f = fixture_new(&listing, "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1");
        wait_until(atomic_load(&slow.begun));
        assert_int_equal(visit(s), 0);
        wait_until(strcmp(state_of(s), "ready") == 0);
        assert_int_equal(verb(s, verbs[i], &e), 0);
        atomic_store(&slow.go_on, true);
        wait_until(atomic_load(&slow.over));
        assert_string_equal(state_of(s), "absent");
        assert_int_equal(atomic_load(&fake.opens), 1);
        place_unref(s);
        fixture_free(f);
    }
}

/* What the list has not told yet may be there. */
static void a_close_while_all_is_listed_asks_the_backend(void **state)
{
    struct backend listing = fake_host;
    struct fixture *f;
    struct place *s;
    struct err e;

    (void)state;
    memset(&slow, 0, sizeof(slow));
    listing.list = list_slowly;
    f = fixture_new(&listing, "isolation=per_agent");
    s = session_at(f, "alice", "coder", "s1");
    wait_until(atomic_load(&slow.begun));
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(atomic_load(&fake.closes), 1);
    atomic_store(&slow.go_on, true);
    wait_until(atomic_load(&slow.over));
    assert_string_equal(state_of(s), "absent");
    place_unref(s);
    fixture_free(f);
}

static void what_is_found_when_all_is_being_closed_is_left(void **state)
{
    struct backend listing = fake_host;
    struct fixture *f = malloc(sizeof(*f));

    (void)state;
    memset(&slow, 0, sizeof(slow));
    listing.list = list_slowly;
    fixture_prepare(f, &listing, "isolation=per_agent,shutdown_timeout=2");
    snprintf(slow.lock, sizeof(slow.lock), "%s/lock", f->state);
    fixture_open(f);
    wait_until(atomic_load(&slow.begun));
    assert_int_equal(fixture_close(f, false), 0);
    fixture_free(f);
}

/* Destroyed by another mount, or by ours in its last moment. */
static void what_has_no_files_any_more_is_not_taken_over(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_host };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1");
        char path[PATH_MAX + 32];
        assert_int_equal(visit(s), 0);
        wait_until(strcmp(state_of(s), "ready") == 0);
        place_unref(s);
        assert_int_equal(fixture_close(f, true), 0);
        snprintf(path, sizeof(path), "%s/alice/coder", f->base);
        assert_int_equal(rmdir(path), 0);
        fixture_open(f);
        wait_until(has_event(f, "closed", CODER));
        s = session_at(f, "alice", "coder", "s1");
        assert_string_equal(state_of(s), "absent");
        assert_int_equal(access(path, F_OK), -1);
        assert_int_equal(atomic_load(&fake.provisions), 0);
        assert_int_equal(atomic_load(&fake.closes), b);
        assert_int_equal(visit(s), 0);
        assert_int_equal(access(path, F_OK), 0);
        place_unref(s);
        fixture_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_acknowledged_survives_being_killed), /* forks: before there are threads */
        cmocka_unit_test(known_names_pins_and_ttls_survive),
        cmocka_unit_test(what_was_live_is_live_again_after_a_detach),
        cmocka_unit_test(keep_on_exit_keeps_and_an_ordinary_end_closes),
        cmocka_unit_test(idle_time_goes_on_over_a_restart),
        cmocka_unit_test(a_shutdown_closes_in_parallel_and_names_what_does_not_end),
        cmocka_unit_test(a_shutdown_waits_for_a_sandbox_that_is_being_made_and_closes_it),
        cmocka_unit_test(a_shutdown_lets_nobody_in_who_waits_for_room),
        cmocka_unit_test(who_waits_at_the_end_is_told_of_the_end),
        cmocka_unit_test(who_waits_behind_an_earlier_attempt_is_told_of_the_end),
        cmocka_unit_test(sandboxes_that_are_found_are_adopted_and_evicted),
        cmocka_unit_test(what_was_closed_while_it_was_listed_is_not_taken_over),
        cmocka_unit_test(a_close_while_all_is_listed_asks_the_backend),
        cmocka_unit_test(what_is_found_when_all_is_being_closed_is_left),
        cmocka_unit_test(what_has_no_files_any_more_is_not_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

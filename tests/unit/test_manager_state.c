// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/manager_fixture.h"

#define CALLERS 200

static void *visit_thread(void *arg)
{
    return (void *)(intptr_t)visit(arg);
}

/* Starts threads that visit, which may have to wait. */
static void start_visitors(struct place *s, pthread_t *threads, size_t n)
{
    pthread_attr_t small;

    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], &small, visit_thread, s), 0);
    pthread_attr_destroy(&small);
}

static void join_visitors(pthread_t *threads, size_t n, int expected)
{
    for (size_t i = 0; i < n; i++) {
        void *r;
        pthread_join(threads[i], &r);
        assert_int_equal((int)(intptr_t)r, expected);
    }
}

static void one_provisioning_serves_two_hundred_callers(void **state)
{
    const struct backend *const backends[] = { &fake_remote, &fake_host, &local_backend };
    pthread_t threads[CALLERS];

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
        start_visitors(s, threads, CALLERS / 2);
        start_visitors(t, threads + CALLERS / 2, CALLERS / 2);
        join_visitors(threads, CALLERS, 0);
        wait_until(strcmp(state_of(s), "ready") == 0);
        if (b < 2) {
            assert_int_equal(atomic_load(&fake.provisions), 1);
            assert_int_equal(atomic_load(&fake.opens), 1);
        }
        place_unref(s);
        place_unref(t);
        fixture_free(f);
    }
}

static void a_workspace_that_hangs_delays_no_other(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session");
    struct place *h = session_at(f, "hang", "coder", "s1");
    pthread_t threads[CALLERS];
    char name[16];

    (void)state;
    start_visitors(h, threads, CALLERS);
    fake_wait_hanging(1);
    assert_string_equal(state_of(h), "provisioning");
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        assert_int_equal(visit_name(f, "alice", "coder", name), 0);
    }
    assert_int_equal(atomic_load(&fake.provisions), 301);
    fake_release(true);
    join_visitors(threads, CALLERS, 0);
    assert_int_equal(atomic_load(&fake.provisions), 301);
    place_unref(h);
    fixture_free(f);
}

static void many_may_hang_at_once(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session");
    struct sync_waiter w[150];
    struct workspace *ws;
    struct err e;
    char name[16];

    (void)state;
    for (size_t i = 0; i < array_size(w); i++) {
        snprintf(name, sizeof(name), "s%zu", i);
        struct place *s = session_at(f, "hang", "coder", name);
        sync_init(&w[i]);
        assert_int_equal(session_enter(s, &w[i].w, &ws, &e), MANAGER_WAIT);
        place_unref(s);
    }
    fake_wait_hanging(array_size(w));
    assert_int_equal(visit_name(f, "alice", "coder", "s1"), 0);
    for (size_t i = 0; i < array_size(w); i += 2)
        assert_true(waiter_cancel(f->m, &w[i].w));
    fake_release(true);
    for (size_t i = 1; i < array_size(w); i += 2)
        assert_int_equal(sync_wait(&w[i]), 0);
    assert_false(waiter_cancel(f->m, &w[1].w));
    fixture_free(f);
}

static void without_a_waiter_nothing_is_started_that_would_wait(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct workspace *ws = NULL;
    struct err e;

    (void)state;
    assert_int_equal(session_enter(s, NULL, &ws, &e), -EAGAIN);
    assert_string_equal(state_of(s), "absent");
    assert_int_equal(visit(s), 0);
    assert_int_equal(session_enter(s, NULL, &ws, &e), 0);
    assert_true(workspace_files_fd(ws) >= 0);
    workspace_leave(ws);
    workspace_unref(ws);
    place_unref(s);
    fixture_free(f);
    f = fixture_new(&local_backend, "isolation=per_agent");
    s = session_at(f, "alice", "coder", "s1");
    assert_int_equal(session_enter(s, NULL, &ws, &e), 0); /* host files wait for nobody */
    assert_int_equal(workspace_peek(ws), 0);
    workspace_peek_end(ws);
    workspace_leave(ws);
    workspace_unref(ws);
    place_unref(s);
    fixture_free(f);
}

static void a_failure_is_repeated_until_the_back_off_is_over(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct workspace *ws;
    struct err e;

    (void)state;
    fake_set_fail(-ENXIO);
    assert_int_equal(visit(s), -ENXIO);
    assert_string_equal(state_of(s), "failed");
    assert_string_equal(error_of(s), "the test says so");
    int64_t start = clock_ns();
    int r = session_enter(s, NULL, &ws, &e); /* at once, the same words */
    if (clock_ns() - start < INT64_C(500000000)) {
        assert_int_equal(r, -ENXIO);
        assert_string_equal(e.text, "the test says so");
    }
    assert_int_equal(atomic_load(&fake.provisions), 1);
    assert_int_equal(verb(s, "provision", &e), -ENXIO); /* asks again at once */
    assert_int_equal(atomic_load(&fake.provisions), 2);
    fake_set_fail(0);
    wait_until(visit(s) == 0); /* an access after the back-off does */
    assert_int_equal(atomic_load(&fake.provisions), 3);
    assert_string_equal(error_of(s), "");
    assert_string_equal(state_of(s), "ready");
    place_unref(s);
    fixture_free(f);
}

static void provision_nowait_waits_for_nothing(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");
    const struct caller who = { .uid = 0 };
    struct sync_waiter w;
    struct err e;

    (void)state;
    assert_int_equal(session_verb(s, &who, "provision nowait", NULL, &e), 0);
    fake_wait_hanging(1);
    assert_string_equal(state_of(s), "provisioning");
    sync_init(&w);
    assert_int_equal(session_verb(s, &who, "provision", &w.w, &e), MANAGER_WAIT);
    fake_release(true);
    assert_int_equal(sync_wait(&w), 0);
    assert_string_equal(state_of(s), "ready");
    assert_int_equal(atomic_load(&fake.provisions), 1);
    place_unref(s);
    fixture_free(f);
}

static void a_time_out_ends_the_wait_and_a_late_success_is_closed_again(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,provision_timeout=1,grace=1");
    struct place *s = session_at(f, "hard", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), -ETIMEDOUT);
    assert_string_equal(state_of(s), "failed");
    assert_non_null(strstr(error_of(s), "provision_timeout"));
    assert_int_equal(verb(s, "provision", &e), -ETIMEDOUT); /* never beside the thread still inside */
    assert_non_null(strstr(error_of(s), "earlier"));
    assert_int_equal(verb(s, "close", &e), -ETIMEDOUT);
    assert_int_equal(atomic_load(&fake.provisions), 1);
    fake_release(true);
    wait_until(atomic_load(&fake.closes) == 1);
    wait_until(verb(s, "provision", &e) == 0);
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_string_equal(state_of(s), "ready");
    place_unref(s);
    fixture_free(f);
}

static bool leave_all(struct workspace *ws, void *arg)
{
    (void)ws;
    ((struct fixture *)arg)->expired++; /* of no other use here */
    return true;
}

/* The sandbox that came late was there before, and another mount's jobs run in it. */
static void a_late_success_leaves_what_another_mount_uses(void **state)
{
    struct fixture *f = fixture_new(&fake_host, "isolation=per_agent,provision_timeout=1");
    struct manager_hooks hooks = fixture_hooks;
    struct place *s = session_at(f, "hard", "coder", "s1");
    struct err e;

    (void)state;
    hooks.leave_jobs = leave_all;
    manager_set_hooks(f->m, &hooks, f);
    assert_int_equal(visit(s), 0);
    wait_until(strcmp(state_of(s), "failed") == 0);
    fake_release(true);
    wait_until(atomic_load(&f->expired) == 1);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_int_equal(atomic_load(&fake.closes), 0);
    place_unref(s);
    fixture_free(f);
}

static void one_that_heeds_its_time_limit_may_be_tried_again(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,provision_timeout=1");
    struct place *s = session_at(f, "hang", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), -ETIMEDOUT);
    fake_release(true);
    assert_int_equal(verb(s, "provision", &e), 0); /* waits for the end of the first */
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_int_equal(atomic_load(&fake.closes), 0); /* a failed call has released what it made */
    place_unref(s);
    fixture_free(f);
}

static void close_waits_for_who_is_inside_and_others_wait_for_it(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    const struct caller who = { .uid = 0 };
    struct sync_waiter w, v;
    struct workspace *ws, *other;
    struct err e;

    (void)state;
    assert_int_equal(enter(s, &ws, &e), 0);
    sync_init(&w);
    sync_init(&v);
    assert_int_equal(session_verb(s, &who, "close", &w.w, &e), MANAGER_WAIT);
    assert_string_equal(state_of(s), "closing");
    assert_int_equal(atomic_load(&f->closed), 0);
    assert_int_equal(workspace_peek(ws), -EAGAIN);
    assert_int_equal(session_enter(s, &v.w, &other, &e), MANAGER_WAIT);
    assert_true(fcntl(workspace_files_fd(ws), F_GETFD) >= 0); /* still ours */
    workspace_leave(ws);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&v), 0);
    assert_int_equal(atomic_load(&f->closed), 1);
    assert_int_equal(atomic_load(&fake.closes), 1);
    assert_int_equal(visit(s), 0); /* comes back by itself */
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(verb(s, "close", &e), 0); /* of an absent one */
    assert_int_equal(atomic_load(&fake.closes), 2);
    workspace_unref(ws);
    place_unref(s);
    fixture_free(f);
}

static void close_gets_through_while_a_provisioning_hangs(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");
    struct sync_waiter w[10];
    struct workspace *ws;
    struct err e;

    (void)state;
    for (size_t i = 0; i < array_size(w); i++) {
        sync_init(&w[i]);
        assert_int_equal(session_enter(s, &w[i].w, &ws, &e), MANAGER_WAIT);
    }
    fake_wait_hanging(1);
    assert_int_equal(verb(s, "close", &e), 0);
    for (size_t i = 0; i < array_size(w); i++)
        assert_int_equal(sync_wait(&w[i]), -ECANCELED);
    assert_string_equal(state_of(s), "absent");
    assert_int_equal(atomic_load(&fake.provisions), 1);
    place_unref(s);
    fixture_free(f);
}

static void close_gives_up_on_a_provisioning_that_does_not_end(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,grace=1");
    struct place *s = session_at(f, "hard", "coder", "s1");
    const struct caller who = { .uid = 0 };
    struct err e;

    (void)state;
    assert_int_equal(session_verb(s, &who, "provision nowait", NULL, &e), 0);
    fake_wait_hanging(1);
    assert_int_equal(verb(s, "close", &e), -ETIMEDOUT);
    assert_string_equal(state_of(s), "failed");
    fake_release(true);
    wait_until(atomic_load(&fake.closes) >= 1);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_string_equal(state_of(s), "absent");
    place_unref(s);
    fixture_free(f);
}

static void sentences_are_harmless_to_a_terminal(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "x\033[2J\xff", &e), -EINVAL);
    assert_non_null(strstr(e.text, "x\\x1b[2J\\xff"));
    assert_string_equal(error_of(s), e.text);
    assert_int_equal(bind_as(s, 0, "\033[31m", &e), -EINVAL);
    assert_null(strchr(error_of(s), '\033'));
    place_unref(s);
    fixture_free(f);
}

static void a_failed_close_says_why_and_can_be_repeated(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_set_close(-EIO);
    assert_int_equal(verb(s, "close", &e), -EIO);
    assert_string_equal(state_of(s), "failed");
    assert_non_null(strstr(error_of(s), "closing fails"));
    fake_set_close(0);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_string_equal(state_of(s), "absent");
    assert_int_equal(atomic_load(&fake.closes), 2);
    assert_int_equal(visit(s), 0);
    place_unref(s);
    fixture_free(f);
}

static void other_sessions_hold_their_workspace(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(enter(s, &ws, &e), 0);
    workspace_file_opened(ws);
    workspace_leave(ws);
    assert_int_equal(verb(s, "close", &e), 0); /* nobody else is known */
    assert_int_equal(visit(t), 0);
    assert_int_equal(verb(t, "close", &e), -EBUSY);
    assert_non_null(strstr(error_of(t), "alice/coder/s1"));
    assert_int_equal(verb(t, "destroy", &e), -EBUSY);
    assert_non_null(strstr(error_of(t), "alice/coder/s1"));
    assert_int_equal(verb(t, "close force", &e), 0);
    workspace_file_closed(ws);
    assert_int_equal(visit(t), 0);
    assert_int_equal(verb(t, "close", &e), 0); /* no file is open */
    assert_int_equal(verb(t, "destroy", &e), -EBUSY);
    assert_int_equal(atomic_load(&fake.destroys), 0);
    assert_int_equal(verb(t, "destroy force", &e), 0);
    assert_int_equal(atomic_load(&fake.destroys), 1);
    assert_int_equal(atomic_load(&f->emptied), 1);
    assert_true(has_event(f, "destroyed", workspace_id(ws)));
    workspace_unref(ws);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

static void host_files_do_not_wait_for_their_sandbox(void **state)
{
    struct fixture *f = fixture_new(&fake_host, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");
    const struct caller who = { .uid = 0 };
    struct sync_waiter w;
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(session_enter(s, NULL, &ws, &e), 0);
    fake_wait_hanging(1);
    assert_string_equal(state_of(s), "provisioning");
    sync_init(&w);
    assert_int_equal(session_verb(s, &who, "provision", &w.w, &e), MANAGER_WAIT);
    assert_int_equal(workspace_enter(ws, NULL, &e), 0);
    workspace_leave(ws);
    fake_set_fail(-ENXIO);
    fake_release(true);
    assert_int_equal(sync_wait(&w), -ENXIO);
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(workspace_enter(ws, NULL, &e), 0); /* files stay readable */
    workspace_leave(ws);
    fake_set_fail(0);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_string_equal(state_of(s), "ready");
    assert_int_equal(atomic_load(&fake.opens), 1);
    workspace_leave(ws);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(atomic_load(&fake.closes), 1);
    workspace_unref(ws);
    place_unref(s);
    fixture_free(f);
}

static void close_cancels_a_sandbox_that_is_being_made_behind_open_files(void **state)
{
    struct fixture *f = fixture_new(&fake_host, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_wait_hanging(1);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_string_equal(state_of(s), "absent");
    assert_int_equal(atomic_load(&f->closed), 1);
    place_unref(s);
    fixture_free(f);
}

static void malformed_verbs_change_nothing(void **state)
{
    static const char *const bad[] = { "", " ", "clos", "close now", "provision later", "ttl", "ttl x", "ttl -1",
                                       "ttl 1 2", "pin it", "fresh air", "destroy forced", "CLOSE", "ttl 1y",
                                       "unpin\001", "touch me", "forget it", "\xff\xfe" };
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    char longer[1000];
    struct err e;

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        if (verb(s, bad[i], &e) != -EINVAL || e.code != -EINVAL || !e.text[0])
            fail_msg("\"%s\"", bad[i]);
        assert_string_equal(error_of(s), e.text);
        assert_int_equal(session_verb_check(bad[i], &e), -EINVAL);
    }
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(verb(s, longer, &e), -EINVAL);
    assert_int_equal(count_known(manager_root(f->m)), 0);
    assert_int_equal(verb(s, "  touch \t ", &e), 0);
    assert_int_equal(count_known(manager_root(f->m)), 1);
    assert_string_equal(state_of(s), "absent");
    assert_string_equal(error_of(s), "");
    place_unref(s);
    fixture_free(f);
}

static void the_managers_verbs_do_what_they_say(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
    char line[80];
    struct err e;

    (void)state;
    assert_int_equal(visit(s) | visit(t), 0);
    snprintf(line, sizeof(line), "close %s", id_of(s));
    assert_int_equal(manager_do(f, line, &e), 0);
    assert_string_equal(state_of(s), "absent");
    assert_string_equal(state_of(t), "ready");
    assert_int_equal(manager_do(f, "close no-such-id", &e), -ENOENT);
    assert_int_equal(manager_do(f, "close", &e), -EINVAL);
    assert_int_equal(manager_do(f, "close-all now", &e), -EINVAL);
    assert_int_equal(visit(s), 0);
    assert_int_equal(manager_do(f, "close-all", &e), 0);
    assert_string_equal(state_of(s), "absent");
    assert_string_equal(state_of(t), "absent");
    assert_int_equal(manager_do(f, "close-all", &e), 0);
    assert_int_equal(manager_do(f, "sweep", &e), 0);
    assert_int_equal(manager_do(f, "reload", &e), 0);
    assert_int_equal(manager_do(f, "reload", &e), -EINVAL);
    assert_int_equal(manager_do(f, "detach", &e), 0);
    assert_int_equal(atomic_load(&f->detached), 1);
    assert_int_equal(manager_do(f, "log-level loud", &e), -EINVAL);
    assert_int_equal(manager_do(f, "log-level error", &e), 0);
    assert_int_equal(manager_verb_check("nonsense", &e), -EINVAL);
    assert_int_equal(manager_verb_check("close-all", &e), 0);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

/* ── a close that takes long ─────────────────────────────────────────────────────────────── */

static atomic_bool close_hangs;
static atomic_int  in_close, closes_let; /* … but for so many */

static int slow_close(void *state, const struct backend_workspace *w, struct err *e)
{
    atomic_fetch_add(&in_close, 1);
    while (atomic_load(&close_hangs) && atomic_load(&fake.closes) >= atomic_load(&closes_let))
        usleep(1000);
    atomic_fetch_sub(&in_close, 1);
    return fake_close(state, w, e);
}

static const struct backend slow_host = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "slowhost", .files_wait = false,
    .init = fake_init, .provision = fake_provision, .files_open = fake_files_open, .close = slow_close,
    .destroy = fake_destroy,
};

/* A verb that waits; the sandbox is on its way out when this returns. */
static void begin_verb(struct place *s, const char *line, struct sync_waiter *w)
{
    const struct caller who = { .uid = 0 };
    struct err e;

    sync_init(w);
    assert_int_equal(session_verb(s, &who, line, &w->w, &e), MANAGER_WAIT);
}

static void host_files_are_used_while_their_sandbox_goes(void **state)
{
    const char *const modes[] = { "isolation=per_agent", "isolation=per_agent,provision=jobs" };

    (void)state;
    for (size_t i = 0; i < array_size(modes); i++) {
        struct fixture *f = fixture_new(&slow_host, modes[i]);
        struct place *s = session_at(f, "alice", "coder", "s1");
        struct sync_waiter w;
        struct err e;
        assert_int_equal(verb(s, "provision", &e), 0);
        assert_int_equal(visit(s), 0);
        atomic_store(&close_hangs, true);
        begin_verb(s, "close", &w);
        wait_until(atomic_load(&in_close) == 1);
        assert_int_equal(visit(s), 0);
        assert_int_equal(visit(s), 0);
        assert_string_equal(state_of(s), "closing");
        assert_int_equal(atomic_load(&fake.provisions), 1);
        atomic_store(&close_hangs, false);
        assert_int_equal(sync_wait(&w), 0);
        wait_until(strcmp(state_of(s), "ready") == 0);
        assert_int_equal(atomic_load(&fake.provisions), i == 0 ? 2 : 1);
        assert_int_equal(verb(s, "provision", &e), 0); /* with provision=jobs nothing was made by the access */
        assert_int_equal(atomic_load(&fake.provisions), 2);
        assert_int_equal(atomic_load(&f->closed), 1);
        place_unref(s);
        fixture_free(f);
    }
}

static void files_that_are_used_while_a_close_fails_stay_in_use(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct sync_waiter w;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    fake_set_close(-EHOSTUNREACH);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(visit(s), 0);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), -EHOSTUNREACH);
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(visit(s), 0);
    fake_set_close(0);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_string_equal(state_of(s), "absent");
    place_unref(s);
    fixture_free(f);
}

static void what_a_failed_close_left_in_use_is_closed_when_it_is_idle(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent,ttl=1");
    struct place *s = session_at(f, "alice", "coder", "s1"), *other = session_at(f, "alice", "other", "s1");
    struct sync_waiter w;
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    fake_set_close(-EHOSTUNREACH);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(enter(s, &ws, &e), 0);
    workspace_file_opened(ws);
    workspace_leave(ws);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), -EHOSTUNREACH);
    fake_set_close(0);
    atomic_store(&f->expired, 0);
    assert_int_equal(visit(other), 0);
    wait_until(strcmp(state_of(other), "absent") == 0); /* a deadline of its own has passed by then */
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(atomic_load(&f->expired), 1);
    workspace_file_closed(ws);
    wait_until(strcmp(state_of(s), "absent") == 0);
    assert_int_equal(atomic_load(&f->expired), 2); /* the kernel was asked first */
    workspace_unref(ws);
    place_unref(s);
    place_unref(other);
    fixture_free(f);
}

static void a_close_that_comes_after_files_were_used_again_closes_them(void **state)
{
    const char *const lines[] = { "close", "destroy" };

    (void)state;
    for (size_t i = 0; i < array_size(lines); i++) {
        struct fixture *f = fixture_new(&slow_host, "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1");
        struct sync_waiter w, v;
        struct workspace *ws;
        struct err e;
        assert_int_equal(verb(s, "provision", &e), 0);
        atomic_store(&close_hangs, true);
        begin_verb(s, "close", &w);
        wait_until(atomic_load(&in_close) == 1);
        assert_int_equal(enter(s, &ws, &e), 0);
        begin_verb(s, lines[i], &v);
        atomic_store(&close_hangs, false);
        usleep(20000); /* what would be done under who is inside would be done by now */
        assert_int_equal(atomic_load(&fake.destroys), 0);
        assert_true(fcntl(workspace_files_fd(ws), F_GETFD) >= 0);
        workspace_leave(ws);
        workspace_unref(ws);
        assert_int_equal(sync_wait(&w), 0);
        assert_int_equal(sync_wait(&v), 0);
        assert_string_equal(state_of(s), "absent");
        assert_int_equal(atomic_load(&fake.destroys), i);
        assert_int_equal(atomic_load(&fake.provisions), 1);
        assert_int_equal(atomic_load(&f->closed), 2);
        place_unref(s);
        fixture_free(f);
    }
}

static void nobody_gets_in_while_the_files_are_destroyed(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    const struct caller who = { .uid = 0 };
    struct sync_waiter w, v, in;
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    sync_init(&v);
    assert_int_equal(session_verb(s, &who, "destroy", &v.w, &e), MANAGER_WAIT);
    sync_init(&in);
    assert_int_equal(session_enter(s, &in.w, &ws, &e), MANAGER_WAIT);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&v), 0);
    assert_int_equal(sync_wait(&in), 0);
    assert_int_equal(atomic_load(&fake.destroys), 1);
    place_unref(s);
    fixture_free(f);
}

static void what_is_used_again_between_two_closes_is_still_counted(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent,max_live=1");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct sync_waiter w, v;
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(enter(s, &ws, &e), 0);
    begin_verb(s, "close", &v);
    workspace_leave(ws);
    workspace_unref(ws);
    atomic_store(&closes_let, 1);
    wait_until(atomic_load(&fake.closes) == 1 && atomic_load(&in_close) == 1);
    assert_int_equal(visit(s), 0); /* during the second of them */
    atomic_store(&close_hangs, false);
    atomic_store(&closes_let, 0);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&v), 0);
    wait_until(strcmp(state_of(s), "ready") == 0);
    assert_int_equal(visit_name(f, "alice", "writer", "s1"), 0);
    wait_until(strcmp(state_of(s), "absent") == 0);
    place_unref(s);
    fixture_free(f);
}

static void who_waits_for_room_does_not_get_in_by_a_close(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent,max_live=1");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "writer", "s1");
    struct sync_waiter in, w;
    struct workspace *ws, *other;
    struct err e;

    (void)state;
    assert_int_equal(enter(s, &ws, &e), 0);
    wait_until(strcmp(state_of(s), "ready") == 0);
    sync_init(&in);
    assert_int_equal(session_enter(t, &in.w, &other, &e), MANAGER_WAIT);
    atomic_store(&close_hangs, true);
    begin_verb(t, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(session_enter(t, NULL, &other, &e), -EAGAIN);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&in), 0);
    assert_string_equal(state_of(s), "ready");
    workspace_leave(ws);
    workspace_unref(ws);
    assert_int_equal(visit(t), 0);
    wait_until(strcmp(state_of(s), "absent") == 0);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

static void a_close_that_is_used_again_makes_no_room(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent,max_live=2");
    struct place *s = session_at(f, "alice", "coder", "s1"), *idle = session_at(f, "alice", "idle", "s1");
    struct sync_waiter w;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_int_equal(verb(idle, "provision", &e), 0);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(visit(s), 0);
    struct place *t = session_at(f, "alice", "writer", "s1");
    struct sync_waiter in;
    struct workspace *ws;
    sync_init(&in);
    assert_int_equal(session_enter(t, &in.w, &ws, &e), MANAGER_WAIT);
    wait_until(strcmp(state_of(idle), "closing") == 0);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&in), 0);
    place_unref(s);
    place_unref(idle);
    place_unref(t);
    fixture_free(f);
}

static void who_finds_no_room_but_a_close_that_is_used_again_waits_for_its_end(void **state)
{
    struct fixture *f = fixture_new(&slow_host, "isolation=per_agent,max_live=1,provision=jobs");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "writer", "s1");
    struct sync_waiter w, in;
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "provision", &e), 0);
    atomic_store(&close_hangs, true);
    begin_verb(s, "close", &w);
    wait_until(atomic_load(&in_close) == 1);
    assert_int_equal(visit(s), 0);
    sync_init(&in);
    assert_int_equal(session_enter(t, &in.w, &ws, &e), MANAGER_WAIT);
    atomic_store(&close_hangs, false);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(sync_wait(&in), 0);
    assert_int_equal(visit(t), 0);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

/* It was no longer live, so nobody would have come back to it. */
static void what_a_failed_close_of_a_cancelled_start_has_left_is_closed_at_the_end(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "hanger", "coder", "s1");
    struct sync_waiter in;
    struct workspace *ws;
    struct err e;

    (void)state;
    sync_init(&in);
    assert_int_equal(session_enter(s, &in.w, &ws, &e), MANAGER_WAIT);
    fake_wait_hanging(1);
    fake_set_close(-EHOSTUNREACH);
    assert_int_equal(verb(s, "close", &e), -EHOSTUNREACH);
    assert_int_equal(sync_wait(&in), -ECANCELED);
    assert_string_equal(state_of(s), "failed");
    fake_set_close(0);
    place_unref(s);
    assert_int_equal(fixture_close(f, false), 0);
    assert_int_equal(atomic_load(&fake.closes), 2);
    fixture_free(f);
}

/* ── closing, entering and provisioning in a tight loop ──────────────────────────────────── */

static atomic_bool stop;

static void *enter_loop(void *arg)
{
    struct place *s = arg;
    intptr_t bad = 0;

    while (!atomic_load(&stop)) {
        struct workspace *ws;
        struct err e;
        if (enter(s, &ws, &e) < 0)
            continue;
        bad += fcntl(workspace_files_fd(ws), F_GETFD) < 0; /* never closed under who is inside */
        workspace_leave(ws);
        workspace_unref(ws);
    }
    return (void *)bad;
}

static void *close_loop(void *arg)
{
    struct err e;

    while (!atomic_load(&stop))
        verb(arg, "close force", &e);
    return NULL;
}

static void nobody_is_inside_when_the_files_are_closed(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_remote, &fake_host };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_agent");
        struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
        pthread_t in[4], out[2];
        atomic_store(&stop, false);
        for (size_t i = 0; i < array_size(in); i++)
            pthread_create(&in[i], NULL, enter_loop, i % 2 ? s : t);
        for (size_t i = 0; i < array_size(out); i++)
            pthread_create(&out[i], NULL, close_loop, i % 2 ? s : t);
        wait_until(atomic_load(&f->closed) > 300);
        atomic_store(&stop, true);
        for (size_t i = 0; i < array_size(out); i++)
            pthread_join(out[i], NULL);
        for (size_t i = 0; i < array_size(in); i++) {
            void *bad;
            pthread_join(in[i], &bad);
            assert_null(bad);
        }
        place_unref(s);
        place_unref(t);
        fixture_free(f);
    }
}

#define RACERS 12
#define ROUNDS 400

struct racer {
    struct fixture *f;
    int             i;
};

static void *race(void *arg)
{
    const struct racer *r = arg;
    static const char *const lines[] = { "close force", "fresh", "pin", "unpin", "touch", "destroy force", "forget",
                                         "ttl 1", "ttl default", "provision", "close", "provision nowait" };
    char name[16];
    struct err e;

    snprintf(name, sizeof(name), "s%d", r->i % 4);
    for (int n = 0; n < ROUNDS; n++) {
        struct place *s = session_at(r->f, "alice", "coder", name);
        unsigned k = (unsigned)(n * 7 + r->i) % 18;
        if (k < array_size(lines))
            verb(s, lines[k], &e);
        else if (k < 14)
            bind_as(s, 0, k % 2 ? "shared" : "", &e);
        else if (k < 15)
            text_free(session_text_status, s);
        else
            visit(s);
        place_unref(s);
    }
    return NULL;
}

static void verbs_bindings_and_accesses_may_race(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_remote, &fake_host };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_agent,max_live=3");
        pthread_t threads[RACERS];
        struct racer racers[RACERS];
        for (int i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){ f, i };
            pthread_create(&threads[i], NULL, race, &racers[i]);
        }
        for (int i = 0; i < RACERS; i++)
            pthread_join(threads[i], NULL);
        fixture_free(f);
    }
}

static void progress_is_followed_until_the_end(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");
    const struct caller who = { .uid = 0 };
    char buf[1024];
    uint64_t pos = 0;
    bool more = true;
    struct err e;

    (void)state;
    assert_int_equal(session_progress_read(s, &pos, buf, sizeof(buf), &more), 0);
    assert_false(more);
    assert_int_equal(session_verb(s, &who, "provision nowait", NULL, &e), 0);
    fake_wait_hanging(1);
    size_t n = session_progress_read(s, &pos, buf, sizeof(buf) - 1, &more);
    buf[n] = '\0';
    assert_true(more);
    assert_non_null(strstr(buf, "\"step\":\"start\",\"text\":\"a step\",\"done_bytes\":1,\"total_bytes\":2"));
    fake_release(true);
    wait_until(session_progress_read(s, &pos, buf, sizeof(buf), &more) == 0 && !more);
    place_unref(s);
    fixture_free(f);
}

static void memory_of_fs_goes_with_the_workspace(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session");
    struct place *s = session_at(f, "alice", "coder", "s1"), *parent = s->parent;
    struct workspace *ws;
    struct err e;

    (void)state;
    place_ref(parent);
    assert_int_equal(enter(s, &ws, &e), 0);
    *workspace_fs_data(ws) = malloc(1);
    workspace_leave(ws);
    workspace_unref(ws);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(place_forget(parent, "s1", &e), 0);
    place_unref(s);
    wait_until(atomic_load(&f->gone) == 1);
    place_unref(parent);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_provisioning_serves_two_hundred_callers),
        cmocka_unit_test(a_workspace_that_hangs_delays_no_other),
        cmocka_unit_test(many_may_hang_at_once),
        cmocka_unit_test(without_a_waiter_nothing_is_started_that_would_wait),
        cmocka_unit_test(a_failure_is_repeated_until_the_back_off_is_over),
        cmocka_unit_test(provision_nowait_waits_for_nothing),
        cmocka_unit_test(a_time_out_ends_the_wait_and_a_late_success_is_closed_again),
        cmocka_unit_test(a_late_success_leaves_what_another_mount_uses),
        cmocka_unit_test(one_that_heeds_its_time_limit_may_be_tried_again),
        cmocka_unit_test(close_waits_for_who_is_inside_and_others_wait_for_it),
        cmocka_unit_test(close_gets_through_while_a_provisioning_hangs),
        cmocka_unit_test(close_gives_up_on_a_provisioning_that_does_not_end),
        cmocka_unit_test(sentences_are_harmless_to_a_terminal),
        cmocka_unit_test(a_failed_close_says_why_and_can_be_repeated),
        cmocka_unit_test(other_sessions_hold_their_workspace),
        cmocka_unit_test(host_files_do_not_wait_for_their_sandbox),
        cmocka_unit_test(close_cancels_a_sandbox_that_is_being_made_behind_open_files),
        cmocka_unit_test(malformed_verbs_change_nothing),
        cmocka_unit_test(the_managers_verbs_do_what_they_say),
        cmocka_unit_test(host_files_are_used_while_their_sandbox_goes),
        cmocka_unit_test(files_that_are_used_while_a_close_fails_stay_in_use),
        cmocka_unit_test(what_a_failed_close_left_in_use_is_closed_when_it_is_idle),
        cmocka_unit_test(a_close_that_comes_after_files_were_used_again_closes_them),
        cmocka_unit_test(nobody_gets_in_while_the_files_are_destroyed),
        cmocka_unit_test(what_is_used_again_between_two_closes_is_still_counted),
        cmocka_unit_test(who_waits_for_room_does_not_get_in_by_a_close),
        cmocka_unit_test(a_close_that_is_used_again_makes_no_room),
        cmocka_unit_test(who_finds_no_room_but_a_close_that_is_used_again_waits_for_its_end),
        cmocka_unit_test(what_a_failed_close_of_a_cancelled_start_has_left_is_closed_at_the_end),
        cmocka_unit_test(nobody_is_inside_when_the_files_are_closed),
        cmocka_unit_test(verbs_bindings_and_accesses_may_race),
        cmocka_unit_test(progress_is_followed_until_the_end),
        cmocka_unit_test(memory_of_fs_goes_with_the_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include "fs/manager/internal.h"
#include "tests/unit/manager_fixture.h"

/* ── the ttl ─────────────────────────────────────────────────────────────────────────────── */

static void an_idle_one_is_closed_at_its_deadline_and_comes_back(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=1");
    struct place *s = session_at(f, "alice", "coder", "s1");
    int64_t start = clock_ns();

    (void)state;
    assert_int_equal(visit(s), 0);
    wait_until(has_event(f, "evicted", id_of(s)));
    assert_true(clock_ns() - start >= INT64_C(980000000)); /* its clock is a tick coarse */
    assert_string_equal(state_of(s), "absent");
    assert_true(atomic_load(&f->expired) >= 1); /* the kernel was asked first */
    assert_int_equal(atomic_load(&f->closed), 1);
    assert_int_equal(visit(s), 0);
    assert_string_equal(state_of(s), "ready");
    place_unref(s);
    fixture_free(f);
}

static void open_files_and_pins_hold_it(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session,ttl=1");
    struct place *idle = session_at(f, "alice", "coder", "idle"), *open = session_at(f, "alice", "coder", "open"),
                 *pinned = session_at(f, "alice", "coder", "pinned"), *never = session_at(f, "alice", "coder", "never");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(verb(pinned, "pin", &e), 0);
    assert_int_equal(visit(pinned), 0);
    assert_int_equal(verb(never, "ttl 0", &e), 0);
    assert_int_equal(visit(never), 0);
    assert_int_equal(enter(open, &ws, &e), 0);
    workspace_file_opened(ws);
    workspace_leave(ws);
    for (int i = 0; i < 2; i++) { /* two deadlines of the others */
        assert_int_equal(visit(idle), 0);
        wait_until(strcmp(state_of(idle), "absent") == 0);
    }
    assert_string_equal(state_of(open), "ready");
    assert_string_equal(state_of(pinned), "ready");
    assert_string_equal(state_of(never), "ready");
    assert_non_null(strstr(text_of(session_text_status, pinned), "\"pinned\":true"));
    assert_non_null(strstr(text_of(session_text_status, pinned), "\"expires\":null"));
    workspace_file_closed(ws);
    assert_int_equal(verb(pinned, "unpin", &e), 0);
    assert_int_equal(verb(never, "ttl default", &e), 0);
    wait_until(strcmp(state_of(open), "absent") == 0);
    wait_until(strcmp(state_of(pinned), "absent") == 0);
    wait_until(strcmp(state_of(never), "absent") == 0);
    workspace_unref(ws);
    place_unref(idle);
    place_unref(open);
    place_unref(pinned);
    place_unref(never);
    fixture_free(f);
}

/* What the kernel would send once its entries are expired. */
static atomic_int uses_left;

static void use_it(struct workspace *ws)
{
    struct err e;

    if (atomic_fetch_sub(&uses_left, 1) <= 0)
        return;
    usleep(20000); /* later than a tick of the clock */
    if (workspace_enter(ws, NULL, &e) == 0)
        workspace_leave(ws);
}

static void use_that_shows_when_asked_keeps_it(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=1");
    struct place *s = session_at(f, "alice", "coder", "s1");

    (void)state;
    atomic_store(&uses_left, 2);
    f->on_expire = use_it;
    assert_int_equal(visit(s), 0);
    wait_until(has_event(f, "evicted", id_of(s)));
    assert_int_equal(atomic_load(&f->expired), 3); /* kept twice, then not */
    place_unref(s);
    fixture_free(f);
}

static void max_age_closes_even_busy_ones(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=0,max_age=1");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(enter(s, &ws, &e), 0);
    workspace_file_opened(ws);
    workspace_leave(ws);
    assert_int_equal(verb(s, "pin", &e), 0);
    wait_until(has_event(f, "expired", id_of(s)));
    assert_string_equal(state_of(s), "absent");
    workspace_file_closed(ws);
    workspace_unref(ws);
    place_unref(s);
    fixture_free(f);
}

static void a_shorter_ttl_holds_at_once(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=1h");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    assert_int_equal(verb(s, "ttl 1", &e), 0);
    assert_non_null(strstr(text_of(session_text_status, s), "\"ttl_s\":1,"));
    wait_until(has_event(f, "evicted", id_of(s)));
    place_unref(s);
    fixture_free(f);
}

static void a_reload_may_change_the_ttl_of_what_lives(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,ttl=1h");
    struct place *s = session_at(f, "alice", "coder", "s1");

    (void)state;
    assert_int_equal(visit(s), 0);
    pthread_mutex_lock(&f->config->lock);
    f->config->ttl_s = 1;
    pthread_mutex_unlock(&f->config->lock);
    manager_config_changed(f->m);
    wait_until(has_event(f, "evicted", id_of(s)));
    place_unref(s);
    fixture_free(f);
}

static void the_sweep_verb_closes_what_is_past_its_ttl_and_nothing_else(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session,ttl=1h");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    assert_int_equal(manager_do(f, "sweep", &e), 0);
    assert_string_equal(state_of(s), "ready");
    place_unref(s);
    fixture_free(f);
}

static void a_close_that_failed_in_the_sweep_leaves_it_to_be_closed(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_agent,ttl=1");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_set_close(-EHOSTUNREACH);
    wait_until(strcmp(state_of(s), "failed") == 0);
    fake_set_close(0);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(atomic_load(&fake.closes), 2);
    place_unref(s);
    fixture_free(f);
}

/* ── ten thousand ────────────────────────────────────────────────────────────────────────── */

#define MANY 10000

/* Each live one holds a descriptor. */
static void raise_descriptors(void)
{
    struct rlimit l;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur < MANY + 100)
        skip();
}

static void ten_thousand_are_swept_each_at_its_own_time(void **state)
{
    raise_descriptors();
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session,ttl=2");
    char name[16];
    size_t size;
    int64_t ms;

    (void)state;
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        struct place *s = session_at(f, "alice", "coder", name);
        struct workspace *ws;
        struct err e;
        int r = session_enter(s, NULL, &ws, &e);
        if (r < 0)
            fail_msg("%s: %s", name, e.text);
        workspace_leave(ws);
        workspace_unref(ws);
        place_unref(s);
    }
    for (bool all = false; !all;) {
        char *text = manager_text_workspaces(f->m, &size, &ms);
        all = size == 0;
        free(text);
        usleep(20000);
    }
    wait_until(atomic_load(&f->closed) == MANY);
    assert_true(atomic_load(&f->expired) >= MANY);
    fixture_free(f);
}

/* ── admission ───────────────────────────────────────────────────────────────────────────── */

static void the_longest_idle_one_makes_room(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_remote };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_session,max_live=3");
        struct place *s[4];
        char name[16];
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof(name), "s%d", i);
            s[i] = session_at(f, "alice", "coder", name);
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(visit(s[i]), 0);
            usleep(20000); /* more than the tick of the clock */
        }
        assert_int_equal(visit(s[0]), 0); /* now s1 is the longest idle */
        assert_int_equal(visit(s[3]), 0);
        assert_string_equal(state_of(s[0]), "ready");
        wait_until(strcmp(state_of(s[1]), "absent") == 0); /* there is room a moment before it says so */
        assert_string_equal(state_of(s[2]), "ready");
        assert_string_equal(state_of(s[3]), "ready");
        wait_until(has_event(f, "evicted", id_of(s[1])));
        for (int i = 0; i < 4; i++)
            place_unref(s[i]);
        fixture_free(f);
    }
}

static void only_when_none_is_idle_is_it_refused(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session,max_live=2");
    struct place *a = session_at(f, "alice", "coder", "a"), *b = session_at(f, "alice", "coder", "b"),
                 *c = session_at(f, "bob", "coder", "c");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(enter(a, &ws, &e), 0);
    workspace_file_opened(ws);
    workspace_leave(ws);
    assert_int_equal(visit(b), 0);
    assert_int_equal(verb(b, "pin", &e), 0);
    assert_int_equal(visit(c), -EDQUOT);
    assert_non_null(strstr(error_of(c), "max_live"));
    assert_int_equal(verb(c, "provision", &e), -EDQUOT);
    assert_string_equal(state_of(c), "absent");
    workspace_file_closed(ws);
    assert_int_equal(visit(c), 0); /* no back-off: room was made */
    wait_until(strcmp(state_of(a), "absent") == 0); /* the room is given away a moment before */
    assert_string_equal(error_of(c), "");
    workspace_unref(ws);
    place_unref(a);
    place_unref(b);
    place_unref(c);
    fixture_free(f);
}

static void a_users_limit_is_its_own(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session,max_live_per_user=1");
    struct place *a = session_at(f, "alice", "coder", "a"), *b = session_at(f, "alice", "coder", "b"),
                 *c = session_at(f, "bob", "coder", "c");
    struct err e;

    (void)state;
    assert_int_equal(visit(a), 0);
    assert_int_equal(visit(c), 0);
    assert_int_equal(visit(b), 0);
    wait_until(strcmp(state_of(a), "absent") == 0); /* the room is given away a moment before */
    assert_string_equal(state_of(c), "ready");
    assert_int_equal(verb(b, "pin", &e), 0);
    assert_int_equal(visit(a), -EDQUOT);
    assert_non_null(strstr(error_of(a), "max_live_per_user"));
    assert_non_null(strstr(error_of(a), "alice"));
    place_unref(a);
    place_unref(b);
    place_unref(c);
    fixture_free(f);
}

static void without_a_waiter_nobody_is_closed_to_make_room(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session,max_live=1");
    struct place *a = session_at(f, "alice", "coder", "a"), *b = session_at(f, "alice", "coder", "b");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(visit(a), 0);
    assert_int_equal(session_enter(b, NULL, &ws, &e), -EAGAIN);
    assert_string_equal(state_of(a), "ready");
    assert_string_equal(state_of(b), "absent");
    assert_string_equal(error_of(b), "");
    place_unref(a);
    place_unref(b);
    fixture_free(f);
}

static void *visit_some(void *arg)
{
    struct fixture *f = arg;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    char name[16];

    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "s%d", rand_r(&seed) % 40);
        struct place *s = session_at(f, "alice", "coder", name);
        int r = visit(s);
        assert_true(r == 0 || r == -EDQUOT); /* somebody was inside each of the five at that moment */
        place_unref(s);
    }
    return NULL;
}

static void a_crowd_at_the_limit_gets_through_and_never_exceeds_it(void **state)
{
    const struct backend *const backends[] = { &local_backend, &fake_remote };

    (void)state;
    for (size_t b = 0; b < array_size(backends); b++) {
        struct fixture *f = fixture_new(backends[b], "isolation=per_session,max_live=5");
        pthread_t threads[8];
        size_t size;
        int64_t ms;
        for (size_t i = 0; i < array_size(threads); i++)
            pthread_create(&threads[i], NULL, visit_some, f);
        for (int i = 0; i < 200; i++) {
            char *text = manager_text_workspaces(f->m, &size, &ms);
            int lines = 0;
            for (char *p = text; (p = strchr(p, '\n')); p++)
                lines++;
            assert_true(lines <= 5);
            free(text);
            usleep(1000);
        }
        for (size_t i = 0; i < array_size(threads); i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 40; i++) {
            char name[16];
            snprintf(name, sizeof(name), "s%d", i);
            assert_int_equal(visit_name(f, "alice", "coder", name), 0);
        }
        fixture_free(f);
    }
}

static void waiting_for_room_ends_with_the_provisioning_time(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session,max_live=1,provision_timeout=1");
    struct place *a = session_at(f, "alice", "coder", "a"), *b = session_at(f, "alice", "coder", "b");
    struct workspace *ws;
    struct sync_waiter w;
    const struct caller who = { .uid = 0 };
    struct err e;

    (void)state;
    assert_int_equal(enter(a, &ws, &e), 0);
    sync_init(&w);
    assert_int_equal(session_verb(a, &who, "close", &w.w, &e), MANAGER_WAIT); /* we are still inside */
    assert_int_equal(visit(b), -ETIMEDOUT);
    assert_non_null(strstr(error_of(b), "room"));
    workspace_leave(ws);
    assert_int_equal(sync_wait(&w), 0);
    wait_until(visit(b) == 0);
    workspace_unref(ws);
    place_unref(a);
    place_unref(b);
    fixture_free(f);
}

/* The timer that is to repeat a close that failed: the workspace may be forgotten, and its memory go, before that. */
static void one_that_could_not_be_made_anew_has_no_timer(void **state)
{
    struct fixture *f = fixture_new(&fake_remote, "isolation=per_session");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct workspace *ws = session_workspace(s);
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_set_close(-EIO);
    assert_int_equal(verb(s, "close", &e), -EIO);
    assert_true(ws->timer.armed);
    fake_set_fail(-EIO);
    assert_int_equal(verb(s, "provision", &e), -EIO);
    assert_string_equal(state_of(s), "failed");
    assert_false(ws->timer.armed);
    workspace_unref(ws);
    place_unref(s);
    fake_set_close(0);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_one_is_closed_at_its_deadline_and_comes_back),
        cmocka_unit_test(open_files_and_pins_hold_it),
        cmocka_unit_test(use_that_shows_when_asked_keeps_it),
        cmocka_unit_test(max_age_closes_even_busy_ones),
        cmocka_unit_test(a_shorter_ttl_holds_at_once),
        cmocka_unit_test(a_reload_may_change_the_ttl_of_what_lives),
        cmocka_unit_test(the_sweep_verb_closes_what_is_past_its_ttl_and_nothing_else),
        cmocka_unit_test(a_close_that_failed_in_the_sweep_leaves_it_to_be_closed),
        cmocka_unit_test(ten_thousand_are_swept_each_at_its_own_time),
        cmocka_unit_test(the_longest_idle_one_makes_room),
        cmocka_unit_test(only_when_none_is_idle_is_it_refused),
        cmocka_unit_test(a_users_limit_is_its_own),
        cmocka_unit_test(without_a_waiter_nobody_is_closed_to_make_room),
        cmocka_unit_test(a_crowd_at_the_limit_gets_through_and_never_exceeds_it),
        cmocka_unit_test(waiting_for_room_ends_with_the_provisioning_time),
        cmocka_unit_test(one_that_could_not_be_made_anew_has_no_timer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* What others do to sandboxes: the backend notices something, and the core looks. */
#include "tests/unit/manager_fixture.h"

static void (*noticed)(void *core, const char *id, const char *text);
static void      *core;
static atomic_int look_says, looks, looking;
static atomic_bool held; /* looks wait */

static int init(const struct backend_mount *m, void **state, struct err *e)
{
    noticed = m->noticed;
    core = m->core;
    atomic_store(&look_says, 0);
    atomic_store(&looks, 0);
    atomic_store(&held, false);
    return fake_init(m, state, e);
}

static int look(void *state, const struct backend_workspace *w, struct err *e)
{
    int r = atomic_load(&look_says);

    (void)state;
    (void)w;
    atomic_fetch_add(&looking, 1);
    while (atomic_load(&held))
        usleep(1000);
    atomic_fetch_sub(&looking, 1);
    atomic_fetch_add(&looks, 1);
    return r ? err_set(e, r, "the test has ended it") : 0;
}

static const struct backend host = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fakehost", .files_wait = false,
    .init = init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
    .destroy = fake_destroy, .look = look,
};

static const struct backend remote = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fake", .files_wait = true,
    .init = init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
    .destroy = fake_destroy, .look = look,
};

static struct place *ready_at(struct fixture *f, const char *agent)
{
    struct place *s = session_at(f, "alice", agent, "s1");

    assert_int_equal(visit(s), 0);
    wait_until(strcmp(state_of(s), "ready") == 0);
    return s;
}

static void tell(struct place *s, int says)
{
    atomic_store(&look_says, says);
    noticed(core, id_of(s), NULL);
}

static void host_files_stay_in_use_and_the_next_use_provisions(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *s = ready_at(f, "coder");
    struct err e;

    (void)state;
    tell(s, -ENXIO);
    wait_until(strcmp(state_of(s), "failed") == 0);
    assert_string_equal(text_of(session_text_error, s), "the test has ended it");
    wait_until(has_event(f, "lost", id_of(s)));
    assert_int_equal(visit(s), 0);
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_string_equal(state_of(s), "ready");
    assert_string_equal(text_of(session_text_error, s), "");
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_int_equal(atomic_load(&fake.closes), 0);
    place_unref(s);
    fixture_free(f);
}

static void remote_files_go_with_their_sandbox_and_come_back(void **state)
{
    struct fixture *f = fixture_new(&remote, "isolation=per_agent");
    struct place *s = ready_at(f, "coder");

    (void)state;
    tell(s, -ENXIO);
    wait_until(strcmp(state_of(s), "absent") == 0);
    assert_int_equal(atomic_load(&f->closed), 1);
    assert_int_equal(visit(s), 0);
    assert_string_equal(state_of(s), "ready");
    assert_int_equal(atomic_load(&fake.provisions), 2);
    place_unref(s);
    fixture_free(f);
}

static void a_sandbox_whose_guest_hangs_is_released_before_it_is_made_anew(void **state)
{
    const struct err hangs = { .code = -ETIMEDOUT, .text = "it hangs" };
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *s = ready_at(f, "coder");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(session_job_begin(s, true, &ws, &e), 0);
    workspace_sandbox_hangs(ws, &hangs);
    assert_string_equal(state_of(s), "failed");
    assert_string_equal(text_of(session_text_error, s), "it hangs");
    tell(s, 0); /* a look finds that it runs, which is no news */
    assert_int_equal(visit(s), 0); /* files are not held up */
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(atomic_load(&fake.closes), 0);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_string_equal(state_of(s), "ready");
    assert_int_equal(atomic_load(&fake.closes), 1);
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_int_equal(atomic_load(&looks), 0);
    workspace_sandbox_hangs(ws, &hangs);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_int_equal(atomic_load(&fake.closes), 2); /* once each */
    session_job_end(s, ws);
    place_unref(s);
    fixture_free(f);
}

static void one_that_was_halted_goes_on_at_once_only_while_jobs_run(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *idle = ready_at(f, "idle"), *busy = ready_at(f, "busy");
    struct workspace *ws;
    struct err e;

    (void)state;
    tell(idle, -EHOSTDOWN);
    wait_until(strcmp(state_of(idle), "failed") == 0);
    assert_int_equal(atomic_load(&fake.provisions), 2);
    tell(idle, 0); /* somebody lets it go on */
    wait_until(strcmp(state_of(idle), "ready") == 0);
    assert_string_equal(text_of(session_text_error, idle), "");
    assert_int_equal(session_job_begin(busy, true, &ws, &e), 0);
    tell(busy, -EHOSTDOWN);
    wait_until(atomic_load(&fake.provisions) == 3);
    wait_until(strcmp(state_of(busy), "ready") == 0);
    assert_true(has_event(f, "halted", id_of(busy)));
    session_job_end(busy, ws);
    place_unref(idle);
    place_unref(busy);
    fixture_free(f);
}

static void what_cannot_be_told_changes_nothing_and_a_text_is_an_event(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *a = ready_at(f, "a"), *b = ready_at(f, "b");

    (void)state;
    atomic_store(&look_says, -EHOSTUNREACH);
    noticed(core, "nobody-has-this-id", NULL);
    noticed(core, NULL, NULL); /* all of them */
    wait_until(atomic_load(&looks) == 2);
    noticed(core, id_of(a), "a sentence");
    wait_until(atomic_load(&looks) == 3);
    assert_true(has_event(f, "noticed", id_of(a)));
    assert_string_equal(state_of(a), "ready");
    assert_string_equal(state_of(b), "ready");
    place_unref(a);
    place_unref(b);
    fixture_free(f);
}

static void a_provision_of_what_is_ready_says_what_is_true_now(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *s = ready_at(f, "coder");
    struct err e;

    (void)state;
    atomic_store(&look_says, 0);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_int_equal(atomic_load(&looks), 1);
    assert_int_equal(atomic_load(&fake.provisions), 1);
    atomic_store(&look_says, -EHOSTUNREACH);
    assert_int_equal(verb(s, "provision", &e), -EHOSTUNREACH);
    assert_string_equal(text_of(session_text_error, s), "the test has ended it");
    assert_string_equal(state_of(s), "ready");
    atomic_store(&look_says, -EPROTO); /* no errno that the contract names */
    assert_int_equal(verb(s, "provision", &e), -EIO);
    atomic_store(&look_says, -ENXIO);
    assert_int_equal(verb(s, "provision", &e), 0);
    assert_int_equal(atomic_load(&fake.provisions), 2);
    assert_string_equal(text_of(session_text_error, s), "");
    atomic_store(&look_says, -EHOSTDOWN);
    assert_int_equal(verb(s, "provision nowait", &e), 0);
    wait_until(atomic_load(&fake.provisions) == 3);
    wait_until(strcmp(state_of(s), "ready") == 0);
    place_unref(s);
    fixture_free(f);
}

static void a_look_at_an_earlier_life_says_nothing_of_the_present_one(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *s = ready_at(f, "coder");
    struct err e;

    (void)state;
    atomic_store(&held, true);
    tell(s, -ENXIO);
    wait_until(atomic_load(&looking) == 1);
    assert_int_equal(verb(s, "close", &e), 0);
    assert_int_equal(visit(s), 0);
    wait_until(strcmp(state_of(s), "ready") == 0);
    atomic_store(&held, false);
    wait_until(atomic_load(&looks) == 1);
    usleep(20000); /* what would be done of it would be done by now */
    assert_string_equal(state_of(s), "ready");
    place_unref(s);
    fixture_free(f);
}

static void what_happens_while_it_is_provisioned_is_looked_at_afterwards(void **state)
{
    struct fixture *f = fixture_new(&host, "isolation=per_agent");
    struct place *s = session_at(f, "hang", "coder", "s1");

    (void)state;
    assert_int_equal(visit(s), 0);
    fake_wait_hanging(1);
    tell(s, -ENXIO);
    assert_int_equal(atomic_load(&looks), 0);
    fake_release(true);
    wait_until(strcmp(state_of(s), "failed") == 0);
    assert_int_equal(atomic_load(&looks), 1);
    place_unref(s);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_files_stay_in_use_and_the_next_use_provisions),
        cmocka_unit_test(remote_files_go_with_their_sandbox_and_come_back),
        cmocka_unit_test(a_sandbox_whose_guest_hangs_is_released_before_it_is_made_anew),
        cmocka_unit_test(one_that_was_halted_goes_on_at_once_only_while_jobs_run),
        cmocka_unit_test(what_cannot_be_told_changes_nothing_and_a_text_is_an_event),
        cmocka_unit_test(a_provision_of_what_is_ready_says_what_is_true_now),
        cmocka_unit_test(a_look_at_an_earlier_life_says_nothing_of_the_present_one),
        cmocka_unit_test(what_happens_while_it_is_provisioned_is_looked_at_afterwards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

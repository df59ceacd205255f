// SPDX-License-Identifier: Apache-2.0
#include <semaphore.h>
#include <sqlite3.h>

#include "fs/manager/internal.h"
#include "tests/unit/manager_fixture.h"

#define CODER_ID "051163a4d79ca941" /* per_agent/alice/coder */
#define BOB_ID   "d1252950d191b043" /* per_agent/bob/coder */

static bool on_disk(struct fixture *f, const char *path)
{
    char full[2 * PATH_MAX];

    snprintf(full, sizeof(full), "%s/%s", f->base, path);
    return access(full, F_OK) == 0;
}

static void an_explicit_id_wins_and_an_empty_line_ends_it(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    uint64_t ino = place_ino(s);
    struct err e;

    (void)state;
    assert_int_equal(bind_as(s, 1000, "team-1", &e), 0);
    assert_string_equal(id_of(s), "team-1");
    assert_true(place_ino(s) != ino);
    wait_until(atomic_load(&f->rebound) == 1);
    assert_string_equal(state_of(s), "absent"); /* binding provisions nothing */
    assert_int_equal(count_known(s->parent), 1);
    assert_int_equal(visit(s), 0);
    assert_true(on_disk(f, ".wsmfs/id/team-1"));
    assert_false(on_disk(f, "alice"));
    assert_int_equal(bind_as(s, 1000, " team-1 \n", &e), 0); /* what it has already */
    assert_int_equal(atomic_load(&f->rebound), 1);
    assert_int_equal(bind_as(s, 1000, "", &e), 0);
    assert_string_equal(id_of(s), CODER_ID);
    assert_true(place_ino(s) == ino);
    wait_until(atomic_load(&f->rebound) == 2);
    place_unref(s);
    fixture_free(f);
}

static void a_sub_agent_shares_its_leaders_workspace(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *leader = session_at(f, "alice", "coder", "s1"), *worker = session_at(f, "alice", "worker", "s2");
    struct workspace *a, *b;
    struct err e;

    (void)state;
    assert_int_equal(enter(leader, &a, &e), 0);
    assert_int_equal(bind_as(worker, 1000, CODER_ID, &e), 0);
    assert_int_equal(enter(worker, &b, &e), 0);
    assert_ptr_equal(a, b);
    assert_true(place_ino(leader) == place_ino(worker));
    assert_false(on_disk(f, "alice/worker"));
    assert_non_null(strstr(text_of(session_text_status, worker), "alice/coder/s1"));
    assert_non_null(strstr(text_of(session_text_status, leader), "alice/worker/s2"));
    workspace_leave(a);
    workspace_leave(b);
    workspace_unref(a);
    workspace_unref(b);
    place_unref(leader);
    place_unref(worker);
    fixture_free(f);
}

static void malformed_ids_change_nothing(void **state)
{
    static const char *const bad[] = { "A_b", "-x", "x-", "a b", "ä", "../x", "a/b",
                                       "abcdefghijklmnopqrstuvwxyz0123456789abcde" };
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct err e;

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        assert_int_equal(bind_as(s, 1000, bad[i], &e), -EINVAL);
        assert_string_equal(error_of(s), e.text);
        assert_true(e.text[0] != '\0');
    }
    assert_string_equal(id_of(s), CODER_ID);
    assert_int_equal(count_known(manager_root(f->m)), 0);
    assert_int_equal(bind_as(s, 1000, "ok", &e), 0);
    assert_string_equal(error_of(s), "");
    place_unref(s);
    fixture_free(f);
}

static void nobody_sits_on_a_derived_id_before_its_owner_comes_nor_after(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *alice = session_at(f, "alice", "coder", "s1"), *bob = session_at(f, "bob", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(bind_as(bob, 1002, CODER_ID, &e), -EINVAL);
    assert_int_equal(bind_as(bob, 1002, "0123456789abcdef", &e), -EINVAL);
    assert_int_equal(visit(alice), 0);
    assert_int_equal(bind_as(bob, 1002, CODER_ID, &e), -EPERM);
    assert_non_null(strstr(e.text, "another user"));
    assert_string_equal(id_of(bob), BOB_ID);
    assert_int_equal(bind_as(alice, 1001, CODER_ID, &e), 0); /* one's own */
    place_unref(alice);
    place_unref(bob);
    fixture_free(f);
}

static void any_other_id_belongs_to_who_bound_it_first(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *alice = session_at(f, "alice", "coder", "s1"), *bob = session_at(f, "bob", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(bind_as(alice, 1001, "team", &e), 0);
    assert_int_equal(bind_as(bob, 1002, "team", &e), -EPERM);
    assert_int_equal(bind_as(alice, 1001, "", &e), 0);
    assert_int_equal(bind_as(bob, 1002, "team", &e), -EPERM); /* also when she has left it */
    assert_int_equal(bind_as(bob, 0, "team", &e), 0);         /* root could enter hers anyway */
    assert_string_equal(id_of(bob), "team");
    place_unref(alice);
    place_unref(bob);
    fixture_free(f);
}

static void users_may_be_allowed_to_share(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent,bind_across_users");
    struct place *alice = session_at(f, "alice", "coder", "s1"), *bob = session_at(f, "bob", "coder", "s1");
    struct err e;

    (void)state;
    assert_int_equal(visit(alice), 0);
    assert_int_equal(bind_as(bob, 1002, CODER_ID, &e), 0);
    assert_int_equal(visit(bob), 0);
    assert_false(on_disk(f, "bob"));
    place_unref(alice);
    place_unref(bob);
    fixture_free(f);
}

static void a_denied_id_is_not_claimed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *alice = session_at(f, "alice", "coder", "s1"), *bob = session_at(f, "bob", "coder", "s1");
    struct workspace *ws;
    struct err e;

    (void)state;
    assert_int_equal(enter(alice, &ws, &e), 0);
    workspace_file_opened(ws);
    assert_int_equal(bind_as(alice, 1001, "mine", &e), -EBUSY);
    assert_int_equal(verb(alice, "fresh", &e), -EBUSY);
    assert_string_equal(id_of(alice), CODER_ID);
    assert_int_equal(bind_as(alice, 1001, "", &e), 0); /* nothing would change */
    struct place *other = session_at(f, "alice", "coder", "s2");
    assert_int_equal(bind_as(other, 1001, "others", &e), 0); /* no file was reached through it */
    place_unref(other);
    workspace_file_closed(ws);
    workspace_leave(ws);
    workspace_unref(ws);
    assert_int_equal(bind_as(bob, 1002, "mine", &e), 0);
    assert_int_equal(bind_as(alice, 1001, "mine", &e), -EPERM);
    place_unref(alice);
    place_unref(bob);
    fixture_free(f);
}

static void fresh_gives_an_empty_workspace_of_its_own(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
    char first[ID_MAX_BYTES + 1];
    struct err e;

    (void)state;
    assert_int_equal(verb(s, "fresh", &e), 0);
    snprintf(first, sizeof(first), "%s", id_of(s));
    assert_int_equal(strlen(first), ID_MINTED_DIGITS);
    assert_string_equal(id_of(t), CODER_ID);
    assert_int_equal(verb(s, "fresh", &e), 0);
    assert_string_not_equal(id_of(s), first);
    assert_int_equal(visit(s), 0);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

/* Lines of the registry that tell of workspaces. */
static int rows(struct fixture *f)
{
    char path[2 * PATH_MAX];
    sqlite3 *db;
    sqlite3_stmt *st;
    int n;

    snprintf(path, sizeof(path), "%s/registry.sqlite", f->state);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM workspaces", -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    n = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

static void what_holds_nothing_and_nobody_has_is_not_remembered(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *bob = session_at(f, "bob", "coder", "s1");
    struct err e;

    (void)state;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(verb(s, "fresh", &e), 0);
        if (i % 2)
            assert_int_equal(visit(s), 0);
        if (i % 2)
            assert_int_equal(verb(s, "destroy", &e), 0);
    }
    assert_int_equal(bind_as(s, 1001, "team", &e), 0);
    assert_int_equal(visit(s), 0);
    assert_int_equal(verb(s, "destroy", &e), 0);
    assert_int_equal(bind_as(bob, 1002, "team", &e), -EPERM); /* she still has it */
    assert_int_equal(bind_as(s, 1001, "kept", &e), 0);
    assert_int_equal(visit(s), 0);
    assert_int_equal(bind_as(s, 1001, "", &e), 0);
    wait_until(bind_as(bob, 1002, "team", &e) == 0);
    place_unref(s);
    place_unref(bob);
    fixture_close(f, false);
    assert_int_equal(rows(f), 2); /* kept, which has files, and bob's team */
    fixture_open(f);
    fixture_free(f);
}

static void bindings_survive_restarts_and_forgetting_ends_them(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *w = session_at(f, "alice", "worker", "s2");
    struct err e;

    (void)state;
    assert_int_equal(visit(s), 0);
    assert_int_equal(bind_as(s, 1001, "team", &e), 0);
    assert_int_equal(bind_as(w, 1001, CODER_ID, &e), 0);
    place_unref(s);
    place_unref(w);
    for (int i = 0; i < 2; i++) {
        fixture_reopen(f);
        s = session_at(f, "alice", "coder", "s1");
        w = session_at(f, "alice", "worker", "s2");
        assert_string_equal(id_of(s), "team");
        assert_string_equal(id_of(w), CODER_ID);
        place_unref(s);
        place_unref(w);
    }
    struct place *bob = session_at(f, "bob", "coder", "s1");
    assert_int_equal(bind_as(bob, 1002, "team", &e), -EPERM); /* whose it is, too */
    place_unref(bob);
    s = session_at(f, "alice", "coder", "s1");
    assert_int_equal(verb(s, "forget", &e), 0);
    assert_int_equal(atomic_load(&f->forgotten), 1);
    assert_int_equal(bind_as(s, 1001, "team", &e), -ENOENT);
    place_unref(s);
    s = session_at(f, "alice", "coder", "s1");
    assert_string_equal(id_of(s), CODER_ID);
    place_unref(s);
    fixture_reopen(f);
    s = session_at(f, "alice", "coder", "s1");
    assert_string_equal(id_of(s), CODER_ID);
    assert_int_equal(count_known(s->parent), 0);
    place_unref(s);
    fixture_free(f);
}

static void *bind_many(void *arg)
{
    struct place *s = arg;
    struct err e;

    for (int i = 0; i < 30; i++) {
        assert_int_equal(bind_as(s, 1001, i % 3 ? "one" : "two", &e), 0);
        visit(s);
        if (i % 7 == 0)
            assert_int_equal(bind_as(s, 1001, "", &e), 0);
    }
    return NULL;
}

static void concurrent_bindings_end_in_one_that_was_asked_for(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    pthread_t threads[6];
    char last[ID_MAX_BYTES + 1];

    (void)state;
    for (size_t i = 0; i < array_size(threads); i++)
        pthread_create(&threads[i], NULL, bind_many, s);
    for (size_t i = 0; i < array_size(threads); i++)
        pthread_join(threads[i], NULL);
    snprintf(last, sizeof(last), "%s", id_of(s));
    place_unref(s);
    fixture_reopen(f);
    s = session_at(f, "alice", "coder", "s1");
    assert_string_equal(id_of(s), last); /* memory and disk agree */
    place_unref(s);
    fixture_free(f);
}

static int no_stream(void *state, const struct backend_workspace *w, bool start, struct err *e)
{
    (void)state, (void)w, (void)start;
    return err_set(e, -EIO, "no guest, the test says");
}

/* Holds the registry's thread after a commit, before what comes behind it is told. */
struct blocker {
    struct registry_op op; /* first */
    sem_t reached, go_on;
};

static void block(struct registry_op *op, int status)
{
    struct blocker *b = (struct blocker *)op;

    (void)status;
    sem_post(&b->reached);
    sem_wait(&b->go_on);
}

/* It would be counted where it does not run. */
static void no_job_begins_in_a_session_that_is_being_bound(void **state)
{
    static const struct backend with_jobs = {
        .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fakehost", .files_wait = false,
        .init = fake_init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
        .destroy = fake_destroy, .stream = no_stream,
    };
    struct fixture *f = fixture_new(&with_jobs, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    const struct caller who = { .uid = 1000, .gid = 1000 };
    struct blocker b = { .op = { .kind = REGISTRY_WORKSPACE, .urgent = true, .done = block } };
    struct workspace *ws = NULL;
    struct sync_waiter w;
    struct err e;
    int r;

    (void)state;
    sync_init(&w);
    sem_init(&b.reached, 0, 0);
    sem_init(&b.go_on, 0, 0);
    list_init(&b.op.links);
    registry_add(f->m->registry, &b.op);
    sem_wait(&b.reached);
    assert_int_equal(session_bind(s, &who, "team", &w.w, &e), MANAGER_WAIT);
    r = session_job_begin(s, false, &ws, &e);
    sem_post(&b.go_on);
    assert_int_equal(sync_wait(&w), 0);
    assert_int_equal(r, -EBUSY);
    assert_int_equal(session_job_begin(s, false, &ws, &e), 0);
    assert_string_equal(workspace_id(ws), "team");
    session_job_end(s, ws);
    place_unref(s);
    fixture_free(f);
    sem_destroy(&b.reached);
    sem_destroy(&b.go_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_explicit_id_wins_and_an_empty_line_ends_it),
        cmocka_unit_test(a_sub_agent_shares_its_leaders_workspace),
        cmocka_unit_test(malformed_ids_change_nothing),
        cmocka_unit_test(nobody_sits_on_a_derived_id_before_its_owner_comes_nor_after),
        cmocka_unit_test(any_other_id_belongs_to_who_bound_it_first),
        cmocka_unit_test(users_may_be_allowed_to_share),
        cmocka_unit_test(a_denied_id_is_not_claimed),
        cmocka_unit_test(fresh_gives_an_empty_workspace_of_its_own),
        cmocka_unit_test(what_holds_nothing_and_nobody_has_is_not_remembered),
        cmocka_unit_test(bindings_survive_restarts_and_forgetting_ends_them),
        cmocka_unit_test(concurrent_bindings_end_in_one_that_was_asked_for),
        cmocka_unit_test(no_job_begins_in_a_session_that_is_being_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/manager_fixture.h"

static int lookup(struct place *parent, const char *name)
{
    struct place *p;
    int r = place_lookup(parent, name, &p);

    if (r == 0)
        place_unref(p);
    return r;
}

static int make(struct place *parent, const char *name)
{
    struct place *p;
    struct err e;
    int r = place_make(parent, name, &p, &e);

    if (r == 0)
        place_unref(p);
    return r;
}

static int forget(struct place *parent, const char *name)
{
    struct err e;

    return place_forget(parent, name, &e);
}

static bool listed(struct place *p, const char *name);

struct search {
    const char *name;
    bool        found;
};

static bool search_one(const char *name, uint64_t ino, void *arg)
{
    struct search *s = arg;

    assert_true(ino >> 63);
    s->found = s->found || strcmp(name, s->name) == 0;
    return !s->found;
}

static bool listed(struct place *p, const char *name)
{
    struct search s = { name, false };

    place_each(p, search_one, &s);
    return s.found;
}

static bool on_disk(struct fixture *f, const char *path)
{
    char full[2 * PATH_MAX];
    struct stat st;

    snprintf(full, sizeof(full), "%s/%s", f->base, path);
    return lstat(full, &st) == 0;
}

static void put_dir(struct fixture *f, const char *path)
{
    int fd = open(f->base, O_PATH | O_DIRECTORY);
    int made = walk_open(fd, path, true);

    assert_true(made >= 0);
    close(made);
    close(fd);
}

static void looking_makes_nothing_known(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");

    (void)state;
    assert_string_equal(state_of(s), "absent");
    assert_string_equal(id_of(s), "051163a4d79ca941");
    assert_string_equal(error_of(s), "");
    assert_int_equal(count_known(manager_root(f->m)), 0);
    assert_int_equal(lookup(s, "x"), -ENOENT);
    assert_false(on_disk(f, "alice"));
    place_unref(s);
    fixture_free(f);
}

static void an_access_makes_the_path_known_and_its_directory(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *again;
    int64_t before = place_mtime_ms(s->parent);

    (void)state;
    usleep(2000);
    assert_int_equal(visit(s), 0);
    assert_true(listed(manager_root(f->m), "alice"));
    assert_true(listed(s->parent->parent, "coder"));
    assert_true(listed(s->parent, "s1"));
    assert_true(place_mtime_ms(s->parent) > before);
    assert_string_equal(state_of(s), "ready");
    assert_true(on_disk(f, "alice/coder"));
    assert_false(on_disk(f, "alice/coder/s1"));
    again = session_at(f, "alice", "coder", "s1");
    assert_ptr_equal(again, s);
    place_unref(again);
    place_unref(s);
    fixture_free(f);
}

static void names_that_do_not_exist_by_themselves_can_be_made(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *agent = s->parent;

    (void)state;
    assert_int_equal(lookup(agent, "build"), -ENOENT);
    assert_int_equal(lookup(agent, "v1.2"), -ENOENT);
    assert_int_equal(make(agent, "build"), 0);
    assert_int_equal(make(agent, "v1.2"), 0);
    assert_int_equal(make(agent, "v1.2"), -EEXIST);
    assert_int_equal(make(agent, "plain"), -EEXIST);
    assert_int_equal(make(agent, ".hidden"), -EINVAL);
    assert_int_equal(make(agent, "a\nb"), -EINVAL);
    assert_int_equal(make(manager_root(f->m), "team.x"), 0);
    assert_int_equal(lookup(agent, "build"), 0);
    assert_int_equal(lookup(agent, "v1.2"), 0);
    assert_true(listed(agent, "v1.2") && listed(agent->parent, "coder"));
    assert_false(on_disk(f, "alice"));
    assert_int_equal(forget(agent, "v1.2"), 0);
    assert_int_equal(lookup(agent, "v1.2"), -ENOENT);
    assert_int_equal(forget(agent, "v1.2"), -ENOENT);
    place_unref(s);
    fixture_free(f);
}

static void the_names_rule_can_be_changed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "names=any");

    (void)state;
    assert_int_equal(lookup(manager_root(f->m), "package.json"), 0);
    assert_int_equal(lookup(manager_root(f->m), ".git"), -ENOENT);
    assert_int_equal(make(manager_root(f->m), "package.json"), -EEXIST);
    fixture_free(f);
    f = fixture_new(&local_backend, "names=made");
    assert_int_equal(lookup(manager_root(f->m), "alice"), -ENOENT);
    assert_int_equal(make(manager_root(f->m), "alice"), 0);
    assert_int_equal(make(manager_root(f->m), "alice"), -EEXIST);
    assert_int_equal(lookup(manager_root(f->m), "alice"), 0);
    fixture_free(f);
}

static void add_user(struct fixture *f, const char *name, uid_t uid, mode_t mode)
{
    struct user_config *u = calloc(1, sizeof(*u));

    u->name = strdup(name);
    u->has_uid = true;
    u->uid = u->gid = uid;
    u->mode = mode;
    u->next = f->config->user_list;
    f->config->user_list = u;
}

static void only_configured_users_exist_when_they_are_listed(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct place *alice;
    uid_t uid;
    gid_t gid;
    mode_t mode;

    (void)state;
    fixture_prepare(f, &local_backend, "users=listed");
    add_user(f, "alice", 1001, 0750);
    add_user(f, "carol.c", 1003, 0700);
    fixture_open(f);
    assert_int_equal(lookup(manager_root(f->m), "bob"), -ENOENT);
    assert_int_equal(make(manager_root(f->m), "bob"), -EPERM);
    assert_int_equal(make(manager_root(f->m), ".bob"), -EINVAL);
    assert_int_equal(lookup(manager_root(f->m), "carol.c"), 0);
    assert_true(listed(manager_root(f->m), "alice"));
    assert_int_equal(forget(manager_root(f->m), "alice"), -EBUSY);
    assert_int_equal(place_lookup(manager_root(f->m), "alice", &alice), 0);
    place_access(alice, &uid, &gid, &mode);
    assert_true(uid == 1001 && gid == 1001 && mode == 0750);
    assert_true(place_may_enter(alice, &(struct caller){ .uid = 1001, .gid = 7 }));
    assert_true(place_may_enter(alice, &(struct caller){ .uid = 7, .gid = 1001 }));
    assert_false(place_may_enter(alice, &(struct caller){ .uid = 7, .gid = 7 }));
    assert_true(place_may_enter(alice, &(struct caller){ .uid = 0, .gid = 0 }));
    place_unref(alice);
    fixture_free(f);
}

static void what_is_on_disk_exists_and_is_listed_after_the_start(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");

    (void)state;
    put_dir(f, "old.user/my.agent/some.file");
    put_dir(f, ".hidden/x");
    struct place *u, *s;
    assert_int_equal(place_lookup(manager_root(f->m), "old.user", &u), 0); /* found by looking */
    assert_false(listed(manager_root(f->m), "old.user"));
    assert_int_equal(lookup(u, "my.agent"), 0);
    assert_int_equal(lookup(u, "no.agent"), -ENOENT);
    assert_int_equal(make(u, "my.agent"), -EEXIST);
    place_unref(u);
    fixture_reopen(f);
    assert_true(listed(manager_root(f->m), "old.user"));
    assert_int_equal(count_known(manager_root(f->m)), 1);
    assert_int_equal(place_lookup(manager_root(f->m), "old.user", &u), 0);
    assert_int_equal(place_lookup(u, "my.agent", &s), 0);
    assert_int_equal(count_known(s), 0); /* the level below is files */
    place_unref(s);
    place_unref(u);
    fixture_free(f);
}

static void a_link_in_the_base_directory_is_not_followed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    char path[2 * PATH_MAX];
    struct workspace *ws;
    struct err e;

    (void)state;
    snprintf(path, sizeof(path), "%s/mallory.x", f->base);
    assert_int_equal(symlink("/etc", path), 0);
    assert_int_equal(lookup(manager_root(f->m), "mallory.x"), -ENOENT);
    snprintf(path, sizeof(path), "%s/mallory", f->base);
    assert_int_equal(symlink("/etc", path), 0);
    struct place *s = session_at(f, "mallory", "coder", "s1");
    assert_int_equal(enter(s, &ws, &e), -EIO);
    assert_non_null(strstr(e.text, "link"));
    assert_non_null(strstr(error_of(s), "link"));
    assert_string_equal(state_of(s), "failed");
    assert_int_equal(access("/etc/coder", F_OK), -1);
    place_unref(s);
    fixture_free(f);
}

static void forgetting_keeps_files_and_needs_empty_parents(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1"), *again, *agent = s->parent, *user = agent->parent;
    struct workspace *ws;
    struct err e;

    (void)state;
    place_ref(user);
    place_ref(agent);
    assert_int_equal(visit(s), 0);
    assert_int_equal(forget(manager_root(f->m), "alice"), -ENOTEMPTY);
    assert_int_equal(forget(user, "coder"), -ENOTEMPTY);
    assert_int_equal(forget(agent, "s1"), 0);
    assert_false(listed(agent, "s1"));
    assert_true(on_disk(f, "alice/coder"));
    assert_int_equal(session_enter(s, NULL, &ws, &e), -ENOENT); /* the removed directory is dead */
    again = session_at(f, "alice", "coder", "s1");
    assert_ptr_not_equal(again, s);
    assert_string_equal(state_of(again), "ready"); /* the workspace itself is as it was */
    place_unref(again);
    place_unref(s);
    assert_int_equal(forget(user, "coder"), 0);
    assert_int_equal(forget(manager_root(f->m), "alice"), 0);
    assert_true(on_disk(f, "alice/coder"));
    assert_int_equal(make(agent, "x.y"), -ENOENT);
    place_unref(agent);
    place_unref(user);
    assert_int_equal(count_known(manager_root(f->m)), 0);
    fixture_free(f);
}

static void an_empty_directory_of_a_forgotten_user_goes(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");

    (void)state;
    put_dir(f, "old.user");
    fixture_reopen(f);
    assert_int_equal(forget(manager_root(f->m), "old.user"), 0);
    assert_false(on_disk(f, "old.user"));
    assert_int_equal(lookup(manager_root(f->m), "old.user"), -ENOENT);
    fixture_free(f);
}

/* Where each policy puts files, and that the levels below share one workspace. */
static void each_policy_has_its_layout(void **state)
{
    static const struct {
        const char *words, *dir, *not_dir;
    } cases[] = {
        { "isolation=per_agent", "alice/coder", "alice/coder/s1" },
        { "isolation=per_session", "alice/coder/s1", ".wsmfs/id" },
        { "isolation=per_user", "alice", "alice/coder" },
    };

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        struct fixture *f = fixture_new(&local_backend, cases[i].words);
        struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2"),
                     *o = session_at(f, "alice", "other", "s1"), *b = session_at(f, "bob", "coder", "s1");
        assert_int_equal(visit(s), 0);
        assert_true(on_disk(f, cases[i].dir));
        assert_false(on_disk(f, cases[i].not_dir));
        assert_int_equal(strcmp(id_of(s), id_of(t)) == 0, i != 1);
        assert_int_equal(strcmp(id_of(s), id_of(o)) == 0, i == 2);
        assert_int_equal(place_ino(s) == place_ino(t), i != 1);
        assert_string_not_equal(id_of(s), id_of(b));
        assert_true(place_ino(s) != place_ino(b));
        place_unref(s);
        place_unref(t);
        place_unref(o);
        place_unref(b);
        fixture_free(f);
    }
}

static void names_that_would_share_an_id_do_not_exist(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "id_scheme=agentscope");
    struct place *s = session_at(f, "alice", "coder", "s1"), *u;

    (void)state;
    assert_string_equal(id_of(s), "6ecd6692afe6f0d3");
    place_unref(s);
    assert_int_equal(place_lookup(manager_root(f->m), "a::b", &u), 0);
    assert_int_equal(lookup(u, "c"), -ENOENT);
    place_unref(u);
    assert_int_equal(place_lookup(manager_root(f->m), "a", &u), 0);
    assert_int_equal(lookup(u, "b::c"), -ENOENT);
    assert_int_equal(make(u, "b::c.d"), -EINVAL);
    place_unref(u);
    fixture_free(f);
}

#define LOOKERS 8

static void *look_many(void *arg)
{
    struct fixture *f = arg;
    char name[32];

    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof(name), "s%d", i % 50);
        struct place *s = session_at(f, "alice", i % 2 ? "coder" : "other", name);
        if (i % 10 == 0)
            visit(s);
        if (i % 25 == 0) {
            struct err e;
            place_forget(s->parent, name, &e);
        }
        place_unref(s);
    }
    return NULL;
}

static void many_threads_may_look_enter_and_forget_at_once(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session");
    pthread_t threads[LOOKERS];

    (void)state;
    for (int i = 0; i < LOOKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_many, f), 0);
    for (int i = 0; i < LOOKERS; i++)
        pthread_join(threads[i], NULL);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looking_makes_nothing_known),
        cmocka_unit_test(an_access_makes_the_path_known_and_its_directory),
        cmocka_unit_test(names_that_do_not_exist_by_themselves_can_be_made),
        cmocka_unit_test(the_names_rule_can_be_changed),
        cmocka_unit_test(only_configured_users_exist_when_they_are_listed),
        cmocka_unit_test(what_is_on_disk_exists_and_is_listed_after_the_start),
        cmocka_unit_test(a_link_in_the_base_directory_is_not_followed),
        cmocka_unit_test(forgetting_keeps_files_and_needs_empty_parents),
        cmocka_unit_test(an_empty_directory_of_a_forgotten_user_goes),
        cmocka_unit_test(each_policy_has_its_layout),
        cmocka_unit_test(names_that_would_share_an_id_do_not_exist),
        cmocka_unit_test(many_threads_may_look_enter_and_forget_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

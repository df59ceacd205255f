// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include "tests/unit/manager_fixture.h"

/* A fixture whose manager is not open yet, with a base directory of mode 0700 unless `bare`. */
static struct fixture *prepared(const char *words)
{
    struct fixture *f = malloc(sizeof(*f));

    fixture_prepare(f, &local_backend, words);
    return f;
}

static void refused(struct fixture *f, int code, const char *word)
{
    struct err e;

    assert_int_equal(fixture_try_open(f, &e), code);
    assert_int_equal(e.code, code);
    if (!strstr(e.text, word))
        fail_msg("no \"%s\" in: %s", word, e.text);
    assert_null(f->m);
}

static void a_missing_one_is_made_with_all_above_it(void **state)
{
    struct fixture *f = prepared("");
    struct stat st;

    (void)state;
    free(f->config->basedir);
    assert_true(asprintf(&f->config->basedir, "%s/a/b/base", f->dir) > 0);
    fixture_open(f);
    assert_int_equal(stat(f->config->basedir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    fixture_free(f);
}

static void others_must_not_be_able_to_enter_it(void **state)
{
    static const mode_t modes[] = { 0755, 0750, 0710, 0701, 0777, 01777, 0704 };
    struct fixture *f = prepared("");

    (void)state;
    assert_int_equal(mkdir(f->base, 0700), 0);
    for (size_t i = 0; i < array_size(modes); i++) {
        assert_int_equal(chmod(f->base, modes[i]), 0);
        refused(f, -EPERM, "chmod 700");
    }
    assert_int_equal(chmod(f->base, 0700), 0);
    fixture_open(f);
    fixture_free(f);
}

static void it_must_belong_to_the_daemon(void **state)
{
    struct fixture *f = prepared("");

    (void)state;
    assert_int_equal(mkdir(f->base, 0700), 0);
    if (chown(f->base, 4711, 4711) < 0) {
        fixture_free(f);
        skip(); /* not root */
    }
    refused(f, -EPERM, "4711");
    fixture_free(f);
}

static void a_file_is_no_base_directory(void **state)
{
    struct fixture *f = prepared("");
    int fd = open(f->base, O_WRONLY | O_CREAT, 0700);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    refused(f, -ENOTDIR, "not a directory");
    fixture_free(f);
}

static void another_policy_is_refused_with_what_to_do(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");

    (void)state;
    fixture_close(f, false);
    f->config->isolation = ISOLATION_PER_USER;
    refused(f, -EINVAL, "isolation=per_agent,id_scheme=wsmfs");
    f->config->isolation = ISOLATION_PER_AGENT;
    f->config->id_scheme = ID_SCHEME_AGENTSCOPE;
    refused(f, -EINVAL, "another base directory");
    f->config->id_scheme = ID_SCHEME_WSMFS;
    fixture_open(f);
    fixture_free(f);
}

static void the_instance_is_made_once_and_must_be_what_is_said(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "");
    size_t size;
    int64_t ms;
    char *first = manager_text_status(f->m, &size, &ms), *again;

    (void)state;
    fixture_reopen(f);
    again = manager_text_status(f->m, &size, &ms);
    assert_memory_equal(strstr(first, "\"instance\""), strstr(again, "\"instance\""), 29);
    free(first);
    free(again);
    fixture_close(f, false);
    f->config->instance = strdup("other");
    refused(f, -EINVAL, "instance");
    free(f->config->instance);
    f->config->instance = strdup("../x");
    refused(f, -EINVAL, "instance=../x");
    fixture_free(f);
}

static void what_is_recorded_must_be_readable(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "");
    char path[2 * PATH_MAX], policy[2 * PATH_MAX];

    (void)state;
    fixture_close(f, false);
    snprintf(path, sizeof(path), "%s/.wsmfs/instance", f->base);
    FILE *out = fopen(path, "w");
    fputs("../../etc\n", out);
    fclose(out);
    refused(f, -EINVAL, "valid instance");
    static const char *const policies[] = { "", "nonsense", "isolation=per_agent", "isolation=x,id_scheme=wsmfs,y" };
    for (size_t i = 0; i < array_size(policies); i++) {
        FILE *in = fopen(path, "w");
        fputs("0123456789abcdef\n", in);
        fclose(in);
        snprintf(policy, sizeof(policy), "%s/.wsmfs/policy", f->base);
        in = fopen(policy, "w");
        fputs(policies[i], in);
        fclose(in);
        refused(f, -EINVAL, "policy is damaged");
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    refused(f, -ELOOP, "instance");
    fixture_free(f);
}

/* ── the state directory ─────────────────────────────────────────────────────────────────── */

static void two_mounts_with_one_state_directory_are_refused_by_name(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "");
    struct manager *first = f->m;
    char pid[32];

    (void)state;
    f->m = NULL;
    snprintf(pid, sizeof(pid), "process %d", getpid());
    refused(f, -EBUSY, pid);
    refused(f, -EBUSY, "/nowhere");
    refused(f, -EBUSY, "state_dir=");
    f->m = first;
    fixture_free(f);
}

static void two_mounts_share_a_base_directory_with_a_state_directory_each(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent"), *g = prepared("isolation=per_agent");
    struct place *s, *t;
    struct stat a, b;
    struct workspace *ws;
    struct err e;

    (void)state;
    free(g->config->basedir);
    g->config->basedir = strdup(f->base);
    assert_int_equal(fixture_try_open(g, &e), 0);
    s = session_at(f, "alice", "coder", "s1");
    t = session_at(g, "alice", "coder", "s1");
    assert_int_equal(enter(s, &ws, &e), 0);
    assert_int_equal(fstat(workspace_files_fd(ws), &a), 0);
    workspace_leave(ws);
    workspace_unref(ws);
    assert_int_equal(enter(t, &ws, &e), 0);
    assert_int_equal(fstat(workspace_files_fd(ws), &b), 0);
    workspace_leave(ws);
    workspace_unref(ws);
    assert_int_equal(a.st_ino, b.st_ino);
    place_unref(s);
    place_unref(t);
    fixture_free(g);
    fixture_free(f);
}

static void *end_later(void *arg)
{
    struct fixture *f = arg;

    usleep(300000);
    manager_destroy(f->m);
    return NULL;
}

static void one_that_is_still_closing_is_waited_for(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "");
    struct manager *next = NULL;
    struct fixture later = *f;
    pthread_t thread;

    (void)state;
    assert_int_equal(manager_shutdown(f->m, false), 0); /* says so, and holds the lock until destroy */
    pthread_create(&thread, NULL, end_later, f);
    later.m = NULL;
    fixture_open(&later);
    next = later.m;
    pthread_join(thread, NULL);
    f->m = next;
    manager_set_hooks(next, &fixture_hooks, f);
    fixture_free(f);
}

static void a_state_directory_that_others_can_reach_is_refused(void **state)
{
    struct fixture *f = prepared("");

    (void)state;
    assert_int_equal(mkdir(f->state, 0700), 0);
    assert_int_equal(chmod(f->state, 0755), 0);
    refused(f, -EPERM, "chmod 700");
    fixture_free(f);
}

static void a_registry_that_is_no_database_is_said(void **state)
{
    struct fixture *f = prepared("");
    char path[2 * PATH_MAX];

    (void)state;
    assert_int_equal(mkdir(f->state, 0700), 0);
    snprintf(path, sizeof(path), "%s/registry.sqlite", f->state);
    FILE *out = fopen(path, "w");
    for (int i = 0; i < 1000; i++)
        fputs("this is no database. ", out);
    fclose(out);
    refused(f, -EIO, "registry");
    fixture_free(f);
}

static void a_backend_may_refuse_a_key(void **state)
{
    struct fixture *f = prepared("");
    struct config_pair *p = calloc(1, sizeof(*p));

    (void)state;
    p->section = strdup("backend");
    p->key = strdup("colour");
    p->value = strdup("red");
    f->config->pairs = p;
    refused(f, -EINVAL, "colour");
    fixture_free(f);
}

static void a_read_only_mount_makes_nothing(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "");
    struct place *s, *t;
    struct err e;

    (void)state;
    assert_int_equal(visit_name(f, "alice", "coder", "s1"), 0);
    fixture_close(f, false);
    f->config->read_only = true;
    fixture_open(f);
    s = session_at(f, "alice", "coder", "s1");
    t = session_at(f, "bob", "coder", "s1");
    assert_int_equal(visit(s), 0);
    assert_int_equal(visit(t), -EROFS);
    assert_int_equal(verb(s, "destroy force", &e), -EROFS);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_one_is_made_with_all_above_it),
        cmocka_unit_test(others_must_not_be_able_to_enter_it),
        cmocka_unit_test(it_must_belong_to_the_daemon),
        cmocka_unit_test(a_file_is_no_base_directory),
        cmocka_unit_test(another_policy_is_refused_with_what_to_do),
        cmocka_unit_test(the_instance_is_made_once_and_must_be_what_is_said),
        cmocka_unit_test(what_is_recorded_must_be_readable),
        cmocka_unit_test(two_mounts_with_one_state_directory_are_refused_by_name),
        cmocka_unit_test(two_mounts_share_a_base_directory_with_a_state_directory_each),
        cmocka_unit_test(one_that_is_still_closing_is_waited_for),
        cmocka_unit_test(a_state_directory_that_others_can_reach_is_refused),
        cmocka_unit_test(a_registry_that_is_no_database_is_said),
        cmocka_unit_test(a_backend_may_refuse_a_key),
        cmocka_unit_test(a_read_only_mount_makes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

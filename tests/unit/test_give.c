// SPDX-License-Identifier: Apache-2.0
/* Giving trees away. So that no privilege is needed "given" is the sticky bit here. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/shared/give.h"
#include "fs/base/cleanup.h"

#define DEEP 3000
#define FEW  10 /* descriptors besides those that are open now */

struct run {
    unsigned given, stop_after; /* 0: go on to the end */
    unsigned calls;
    void   (*meanwhile)(struct run *r, int dir, const char *name);
    bool     once;
    bool     top_last;
};

static char place[] = "/tmp/give-XXXXXX";
static int  top = -1;

static int give(void *arg, int dir, const char *name, const struct stat *st)
{
    struct run *r = arg;

    if (r->stop_after && r->given == r->stop_after)
        return -EINTR;
    r->calls++;
    if (r->meanwhile)
        r->meanwhile(r, dir, name);
    if (S_ISLNK(st->st_mode) || (st->st_mode & S_ISVTX))
        return 0;
    r->top_last = !*name;
    assert_int_equal(*name ? fchmodat(dir, name, st->st_mode | S_ISVTX, 0) : fchmod(dir, st->st_mode | S_ISVTX), 0);
    r->given++;
    return 1;
}

static bool is_given(const char *path)
{
    struct stat st;

    assert_int_equal(fstatat(top, path, &st, AT_SYMLINK_NOFOLLOW), 0);
    return st.st_mode & S_ISVTX;
}

static void make_file(int dir, const char *name)
{
    int fd = openat(dir, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static int set_up(void **state)
{
    (void)state;
    memcpy(place + sizeof(place) - 7, "XXXXXX", 6);
    if (!mkdtemp(place))
        return -1;
    top = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return top < 0 || mkdirat(top, "a", 0700) < 0 || mkdirat(top, "a/b", 0700) < 0 || mkdirat(top, "c", 0700) < 0 ||
           symlinkat("/etc", top, "a/link") < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    char command[64];

    (void)state;
    close(top);
    snprintf(command, sizeof(command), "rm -rf %s", place);
    return system(command) == 0 ? 0 : -1;
}

static void all_below_is_given_and_the_top_last(void **state)
{
    struct run r = { 0 };

    (void)state;
    make_file(top, "f");
    make_file(top, "a/b/f");
    assert_int_equal(give_tree(top, give, &r), 0);
    assert_int_equal(r.given, 6);
    assert_true(r.top_last);
    assert_true(is_given("a/b/f") && is_given("f") && is_given("c") && is_given("."));
    assert_false(is_given("a/link"));
}

/* A chain of directories, each with a file. */
static void make_deep(unsigned depth)
{
    int at = dup(top);

    for (unsigned i = 0; i < depth; i++) {
        int next;
        assert_int_equal(mkdirat(at, "d", 0700), 0);
        next = openat(at, "d", O_PATH | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(at);
        at = next;
        make_file(at, "f");
    }
    close(at);
}

static void a_tree_is_given_at_any_depth_with_few_descriptors(void **state)
{
    struct run r = { 0 };
    struct rlimit before, few;
    int next = dup(top), result;

    (void)state;
    make_deep(DEEP);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next + FEW;
    close(next);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    result = give_tree(top, give, &r);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(result, 0);
    assert_int_equal(r.given, 2 * DEEP + 4);
}

/* Whatever it was stopped at, it goes on: the top says that it is not done. */
static void what_was_interrupted_is_gone_on_with(void **state)
{
    struct run r = { 0 };
    unsigned runs = 0, total = 0;

    (void)state;
    make_deep(20);
    for (int result = -EINTR; result == -EINTR; runs++) {
        r = (struct run){ .stop_after = 3 };
        result = give_tree(top, give, &r);
        total += r.given;
        assert_int_equal(result == 0, is_given("."));
    }
    assert_int_equal(total, 2 * 20 + 4);
    assert_true(runs > 10);
}

static void make_one(struct run *r, int dir, const char *name)
{
    if (r->once || strcmp(name, "b") != 0)
        return;
    (void)dir;
    r->once = true;
    make_file(top, "late");
    assert_int_equal(mkdirat(top, "later", 0700), 0);
    make_file(top, "later/f");
}

static void what_is_made_meanwhile_is_given_too(void **state)
{
    struct run r = { .meanwhile = make_one };

    (void)state;
    assert_int_equal(give_tree(top, give, &r), 0);
    assert_true(r.once && is_given("late") && is_given("later") && is_given("later/f"));
}

/* The walk stands in it. */
static void move_one(struct run *r, int dir, const char *name)
{
    if (r->once || strcmp(name, "f") != 0)
        return;
    (void)dir;
    r->once = true;
    assert_int_equal(renameat(top, "a/b", top, "c/moved"), 0);
}

static void a_directory_that_moves_away_leads_nobody_astray(void **state)
{
    struct run r = { .meanwhile = move_one };

    (void)state;
    make_file(top, "a/b/f");
    make_file(top, "a/x");
    make_file(top, "c/x");
    assert_int_equal(give_tree(top, give, &r), 0);
    assert_true(r.once && is_given("c/moved/f") && is_given("a/x") && is_given("c/x") && is_given("."));
}

/* … and again, each time that the walk is there. */
static void move_always(struct run *r, int dir, const char *name)
{
    if (strcmp(name, "f") != 0)
        return;
    (void)dir;
    if (renameat(top, "a/b", top, "c/b") < 0)
        assert_int_equal(renameat(top, "c/b", top, "a/b"), 0);
    r->once = true;
}

static void it_is_not_done_where_directories_never_rest(void **state)
{
    struct run r = { .meanwhile = move_always };

    (void)state;
    make_file(top, "a/b/f");
    assert_int_equal(give_tree(top, give, &r), -ESTALE);
    assert_false(is_given("."));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_below_is_given_and_the_top_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tree_is_given_at_any_depth_with_few_descriptors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_interrupted_is_gone_on_with, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_made_meanwhile_is_given_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_directory_that_moves_away_leads_nobody_astray, set_up, tear_down),
        cmocka_unit_test_setup_teardown(it_is_not_done_where_directories_never_rest, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

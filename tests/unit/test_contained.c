// SPDX-License-Identifier: Apache-2.0
/* What readlink gives for links of a workspace. */
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/hostdir/contained.h"

static char root[] = "/tmp/contained-XXXXXX";
static int root_fd;

static void shows(const char *dir, int depth, const char *disk, const char *expected)
{
    char out[PATH_MAX];
    assert_int_equal(contained_target(root_fd, dir, depth, NULL, disk, out), 0);
    assert_string_equal(out, expected);
}

static void relative_links_that_stay_inside_are_given_as_they_are(void **state)
{
    (void)state;
    shows("", 0, "file", "file");
    shows("a/b/", 2, "../../x", "../../x");
    shows("a/b/", 2, ".././../x/y", ".././../x/y");
    shows("a/", 1, "./x", "./x");
    shows("", 0, "...", "...");
}

static void absolute_links_into_the_workspace_become_relative(void **state)
{
    (void)state;
    shows("", 0, "/workspace/x/y", "x/y");
    shows("a/b/", 2, "/workspace/x", "../../x");
    shows("a/", 1, "/workspace", "..");
    shows("", 0, "/workspace", ".");
    shows("", 0, "//workspace//x", "x");
}

static void everything_else_leads_to_the_sandbox_root(void **state)
{
    (void)state;
    shows("", 0, "/etc/passwd", ".wsm/root/etc/passwd");
    shows("a/", 1, "/etc/passwd", "../.wsm/root/etc/passwd");
    shows("", 0, "../etc", ".wsm/root/etc");
    shows("a/", 1, "../../etc", "../.wsm/root/etc");
    shows("a/", 1, "../../../../../etc", "../.wsm/root/etc");
    shows("", 0, "/workspacex", ".wsm/root/workspacex");
    shows("", 0, "/", ".wsm/root");
    shows("", 0, "..", ".wsm/root");
}

static void climbing_out_and_back_in_is_inside(void **state)
{
    (void)state;
    shows("a/", 1, "../../workspace/x", "../x");
}

static void dotdot_behind_a_name_is_resolved_through_links(void **state)
{
    (void)state;
    /* up -> ../../..: judged by its text alone, up/../other would seem to stay inside */
    assert_int_equal(symlinkat("../../..", root_fd, "up"), 0);
    assert_int_equal(mkdirat(root_fd, "d", 0700), 0);
    assert_int_equal(mkdirat(root_fd, "d/e", 0700), 0);
    assert_int_equal(symlinkat("d/e", root_fd, "deep"), 0);
    assert_int_equal(symlinkat("loop", root_fd, "loop"), 0);
    shows("", 0, "up/../other/secret", ".wsm/root/other/secret");
    shows("", 0, "deep/../x", "d/x");
    shows("", 0, "d/../x", "x");
    shows("", 0, "/workspace/deep/../../x", "x");
    assert_int_equal(symlinkat("d/e", root_fd, ".hidden"), 0);
    shows("", 0, ".hidden/../x", "d/x");
}

/* The text fails where the link does. */
static void what_leads_nowhere_leads_nowhere_outside_either(void **state)
{
    (void)state;
    int fd = openat(root_fd, "file", O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    shows("", 0, "missing/../x", "missing/x");
    shows("d/", 1, "missing/../../x", "../d/missing/x");
    shows("", 0, "file/../x", "file/x");
    shows("", 0, "file/..", "file/.");
    shows("", 0, "loop/../x", "loop/x");
    shows("", 0, "loop/../../../x", "loop/x");
}

static void anchored_links_are_absolute_below_the_session(void **state)
{
    char out[PATH_MAX];
    static const struct { const char *dir, *disk, *expected; int depth; } cases[] = {
        {"a/", "../f", "/m/u/a/s/f", 1},
        {"a/", "f", "f", 1},
        {"", "/workspace/x", "/m/u/a/s/x", 0},
        {"", "/workspace", "/m/u/a/s", 0},
        {"a/", "/etc/x", "/m/u/a/s/.wsm/root/etc/x", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(contained_target(root_fd, cases[i].dir, cases[i].depth, "/m/u/a/s", cases[i].disk, out), 0);
        assert_string_equal(out, cases[i].expected);
    }
}

static void a_text_that_grows_too_long_is_refused(void **state)
{
    (void)state;
    char disk[PATH_MAX] = "/", out[PATH_MAX];
    memset(disk + 1, 'x', sizeof disk - 2);
    assert_true(contained_target(root_fd, "", 0, NULL, disk, out) < 0);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root_fd < 0 || mkdirat(root_fd, "a", 0700) < 0 || mkdirat(root_fd, "a/b", 0700) < 0;
}

static int teardown(void **state)
{
    (void)state;
    unlinkat(root_fd, "up", 0);
    unlinkat(root_fd, "deep", 0);
    unlinkat(root_fd, "loop", 0);
    unlinkat(root_fd, ".hidden", 0);
    unlinkat(root_fd, "file", 0);
    unlinkat(root_fd, "d/e", AT_REMOVEDIR);
    unlinkat(root_fd, "d", AT_REMOVEDIR);
    unlinkat(root_fd, "a/b", AT_REMOVEDIR);
    unlinkat(root_fd, "a", AT_REMOVEDIR);
    close(root_fd);
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relative_links_that_stay_inside_are_given_as_they_are),
        cmocka_unit_test(absolute_links_into_the_workspace_become_relative),
        cmocka_unit_test(everything_else_leads_to_the_sandbox_root),
        cmocka_unit_test(climbing_out_and_back_in_is_inside),
        cmocka_unit_test(dotdot_behind_a_name_is_resolved_through_links),
        cmocka_unit_test(what_leads_nowhere_leads_nowhere_outside_either),
        cmocka_unit_test(anchored_links_are_absolute_below_the_session),
        cmocka_unit_test(a_text_that_grows_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

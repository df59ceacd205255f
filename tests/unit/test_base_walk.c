// SPDX-License-Identifier: Apache-2.0
/* Opening directories one component at a time. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

static char place[] = "/tmp/walk-XXXXXX";
static int  top; /* <place>/top: what lies beside it must not be reached */

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(place) || chdir(place) < 0 || mkdir("top", 0700) < 0 || mkdir("beside", 0700) < 0 ||
        mkdir("top/a", 0700) < 0 || mkdir("top/a/b", 0700) < 0 || symlink("a", "top/link") < 0 ||
        symlink("../beside", "top/out") < 0)
        return -1;
    top = open("top", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return top < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    static const char *const dirs[] = { "top/new/..x/...", "top/new/..x", "top/new", "top/a/b", "top/a" };

    (void)state;
    close(top);
    unlink("top/link");
    unlink("top/out");
    for (size_t i = 0; i < array_size(dirs); i++)
        rmdir(dirs[i]);
    return rmdir("top") < 0 || rmdir("beside") < 0 || chdir("/") < 0 || rmdir(place) < 0 ? -1 : 0;
}

static void opens(const char *path, const char *same_as, bool make)
{
    cleanup_close int fd = walk_open(top, path, make);
    struct stat is, wanted;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &is), 0);
    assert_int_equal(stat(same_as, &wanted), 0);
    assert_int_equal(is.st_ino, wanted.st_ino);
}

static void what_lies_below_is_opened_and_made(void **state)
{
    (void)state;
    opens(".", "top", false);
    opens("a", "top/a", false);
    opens("a/b", "top/a/b", false);
    opens("a/b/", "top/a/b", false);
    opens("./a/./b", "top/a/b", false);
    opens("new/..x/...", "top/new/..x/...", true);
    assert_int_equal(walk_open(top, "none/x", false), -ENOENT);
    assert_int_equal(fcntl(top, F_GETFD), FD_CLOEXEC); /* it stays open */
}

static void no_link_is_followed(void **state)
{
    (void)state;
    assert_int_equal(walk_open(top, "link", false), -ENOTDIR);
    assert_int_equal(walk_open(top, "link/b", true), -ENOTDIR);
    assert_int_equal(walk_open(top, "out", false), -ENOTDIR);
}

static void no_path_leads_out(void **state)
{
    static const char *const refused[] = {
        "", "/", "//", "/tmp", "..", "../beside", "../top", "a/..", "a/../../beside", "a/b/../../..", "./..", "a//b", "//a",
    };
    char longer[512];
    struct stat st;

    (void)state;
    for (size_t i = 0; i < array_size(refused); i++) {
        assert_int_equal(walk_open(top, refused[i], false), -EINVAL);
        assert_int_equal(walk_open(top, refused[i], true), -EINVAL);
    }
    assert_int_equal(walk_open(top, "../made", true), -EINVAL);
    assert_int_equal(stat("made", &st), -1);
    memset(longer, 'n', sizeof(longer));
    longer[256] = '\0';
    assert_int_equal(walk_open(top, longer, true), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lies_below_is_opened_and_made),
        cmocka_unit_test(no_link_is_followed),
        cmocka_unit_test(no_path_leads_out),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

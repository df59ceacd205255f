// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/config/config.h"
#include "fs/config/internal.h"

static void durations_are_seconds_or_have_a_unit(void **state)
{
    static const struct {
        const char *text;
        int64_t     seconds;
    } good[] = {
        {"0", 0}, {"1", 1}, {"90", 90}, {"90s", 90}, {"10m", 600}, {"2h", 7200}, {"1d", 86400},
        {"007", 7}, {"0h", 0}, {"36500d", 36500LL * 86400}, {"3153600000", 3153600000LL},
    };

    (void)state;
    for (size_t i = 0; i < array_size(good); i++) {
        int64_t s = -1;
        assert_int_equal(duration_parse(good[i].text, &s), 0);
        assert_int_equal(s, good[i].seconds);
    }
}

static void other_durations_are_refused_and_change_nothing(void **state)
{
    static const char *const bad[] = {
        "", "s", "-1", "+1", " 1", "1 ", "1.5h", "1h30m", "1H", "1w", "1ms", "0x10", "36501d", "3153600001",
        "99999999999999999999", "18446744073709551617", "1e3", "h1", "never", "1\n",
    };

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        int64_t s = -7;
        assert_int_equal(duration_parse(bad[i], &s), -EINVAL);
        assert_int_equal(s, -7);
    }
}

static void a_duration_is_shown_in_its_largest_unit(void **state)
{
    static const struct {
        int64_t     seconds;
        const char *text;
    } cases[] = {{0, "0"}, {1, "1s"}, {90, "90s"}, {600, "10m"}, {3600, "1h"}, {5400, "90m"}, {172800, "2d"}};

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        cleanup_free char *text = duration_text(cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

static void sizes_are_bytes_or_have_a_unit_of_1024(void **state)
{
    static const struct {
        const char *text;
        uint64_t    bytes;
    } good[] = {
        {"0", 0}, {"4096", 4096}, {"64K", 65536}, {"256M", 256ull << 20}, {"4G", 4ull << 30},
        {"2T", 2ull << 40}, {"9223372036854775807", INT64_MAX},
    };
    static const char *const bad[] = {
        "", "K", "1k", "1KB", "1KiB", "-1", "1.5G", "9223372036854775808", "8388608T", "99999999999999999999G",
    };

    (void)state;
    for (size_t i = 0; i < array_size(good); i++) {
        uint64_t b = 7;
        assert_int_equal(size_parse(good[i].text, &b), 0);
        assert_true(b == good[i].bytes);
    }
    for (size_t i = 0; i < array_size(bad); i++) {
        uint64_t b = 7;
        assert_int_equal(size_parse(bad[i], &b), -EINVAL);
        assert_true(b == 7);
    }
}

static void paths_become_absolute_and_clean(void **state)
{
    static const struct {
        const char *path, *abs; /* abs NULL: below the working directory */
    } cases[] = {
        {"/", "/"}, {"//", "/"}, {"/a", "/a"}, {"/a/", "/a"}, {"//a//b/./c/.", "/a/b/c"},
        {"/a/../b", "/a/../b"}, {"/.a/..b", "/.a/..b"}, {"x", NULL}, {"./x", NULL}, {"x//", NULL},
    };
    cleanup_free char *cwd = getcwd(NULL, 0);

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        cleanup_free char *abs = path_absolute(cases[i].path);
        if (cases[i].abs) {
            assert_string_equal(abs, cases[i].abs);
        } else {
            assert_memory_equal(abs, cwd, strlen(cwd));
            assert_string_equal(abs + strlen(cwd), "/x");
        }
    }
}

static void a_mistyped_word_is_recognised(void **state)
{
    static const struct {
        const char *typed, *meant;
    } cases[] = {
        {"tll", "ttl"}, {"isolaton", "isolation"}, {"basdir", "basedir"}, {"xyz", ""}, {"ab", ""},
        {"a_word_that_is_longer_than_any_option_could_ever_be", ""},
    };

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        struct suggestion s = {.typed = cases[i].typed};
        char buf[80];
        for (const struct option_spec *o = config_options(); o->name; o++)
            suggest_word(&s, o->name);
        suggest_text(&s, buf, sizeof(buf));
        if (cases[i].meant[0])
            assert_non_null(strstr(buf, cases[i].meant));
        else
            assert_string_equal(buf, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_are_seconds_or_have_a_unit),
        cmocka_unit_test(other_durations_are_refused_and_change_nothing),
        cmocka_unit_test(a_duration_is_shown_in_its_largest_unit),
        cmocka_unit_test(sizes_are_bytes_or_have_a_unit_of_1024),
        cmocka_unit_test(paths_become_absolute_and_clean),
        cmocka_unit_test(a_mistyped_word_is_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/base/err.h"

static void set_returns_the_code_and_keeps_the_sentence(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(err_set(&e, -EPERM, "no %s of %d", "part", 7), -EPERM);
    assert_int_equal(e.code, -EPERM);
    assert_string_equal(e.text, "no part of 7");
}

static void sys_adds_the_systems_words(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(err_sys(&e, -ENOENT, "open %s", "/x"), -ENOENT);
    assert_string_equal(e.text, "open /x: No such file or directory");
}

static void a_null_error_is_fine(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, -EIO, "x"), -EIO);
    assert_int_equal(err_sys(NULL, -EIO, "x"), -EIO);
    err_clear(NULL);
}

static void a_long_sentence_is_cut_at_a_whole_character(void **state)
{
    static const char *const chars[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    char text[2 * ERR_TEXT_MAX];
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        size_t n = strlen(chars[i]);
        for (size_t lead = 0; lead < n; lead++) {
            memset(text, 'a', lead);
            text[lead] = '\0';
            while (strlen(text) + n < sizeof(text))
                strcat(text, chars[i]);
            err_set(&e, -EIO, "%s", text);
            assert_in_range(strlen(e.text), ERR_TEXT_MAX - n, ERR_TEXT_MAX - 1);
            assert_int_equal((strlen(e.text) - lead) % n, 0);
        }
    }
}

static void sys_words_that_do_not_fit_are_cut(void **state)
{
    char text[2 * ERR_TEXT_MAX];
    struct err e = {0};

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(err_sys(&e, -EIO, "%s", text), -EIO);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

static void clear_forgets(void **state)
{
    struct err e = {0};

    (void)state;
    err_set(&e, -EIO, "x");
    err_clear(&e);
    assert_int_equal(e.code, 0);
    assert_string_equal(e.text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_returns_the_code_and_keeps_the_sentence),
        cmocka_unit_test(sys_adds_the_systems_words),
        cmocka_unit_test(a_null_error_is_fine),
        cmocka_unit_test(a_long_sentence_is_cut_at_a_whole_character),
        cmocka_unit_test(sys_words_that_do_not_fit_are_cut),
        cmocka_unit_test(clear_forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

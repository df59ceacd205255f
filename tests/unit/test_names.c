// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/manager/identity.h"

enum kind { INVALID, MADE_ONLY, PLAIN };

static const struct {
    const char *name;
    enum kind   kind;
} table[] = {
    /* plain ones */
    { "alice", PLAIN }, { "a", PLAIN }, { "s1", PLAIN }, { "session 7", PLAIN }, { "zoë", PLAIN },
    { "助手", PLAIN }, { "🦀", PLAIN }, { "-rf", PLAIN }, { "--help", PLAIN }, { "~", PLAIN },
    { "a:b", PLAIN }, { "a::b", PLAIN }, { "%2e%2e%2f", PLAIN }, { "c3a9d1e7f0b24c0e8f1d", PLAIN },
    { "\\", PLAIN }, { "*", PLAIN }, { "$(id)", PLAIN }, { "a;b", PLAIN }, { "'", PLAIN }, { " ", PLAIN },
    { "alice@example.org", PLAIN }, { "a.b@c", PLAIN }, { "@", PLAIN }, { "@.", PLAIN }, { "x@..", PLAIN },
    { "Build", PLAIN }, { "builds", PLAIN }, { "head", PLAIN }, { "test", PLAIN }, { "src", PLAIN },
    { "con", PLAIN }, { "NUL", PLAIN }, { "node_modules2", PLAIN }, { "\xc2\xa0", PLAIN },
    /* dots: made by mkdir, bound, configured or on disk, never by themselves */
    { "package.json", MADE_ONLY }, { "v1.2", MADE_ONLY }, { "a.", MADE_ONLY }, { "a..b", MADE_ONLY },
    { "..%2f", INVALID }, { "pyproject.toml", MADE_ONLY }, { "Cargo.toml", MADE_ONLY }, { "x.y.z", MADE_ONLY },
    /* words that tools look for */
    { "node_modules", MADE_ONLY }, { "HEAD", MADE_ONLY }, { "objects", MADE_ONLY }, { "refs", MADE_ONLY },
    { "config", MADE_ONLY }, { "Makefile", MADE_ONLY }, { "makefile", MADE_ONLY }, { "GNUmakefile", MADE_ONLY },
    { "Dockerfile", MADE_ONLY }, { "Gemfile", MADE_ONLY }, { "Rakefile", MADE_ONLY }, { "Procfile", MADE_ONLY },
    { "Justfile", MADE_ONLY }, { "justfile", MADE_ONLY }, { "WORKSPACE", MADE_ONLY }, { "BUILD", MADE_ONLY },
    { "rust-toolchain", MADE_ONLY }, { "build", MADE_ONLY }, { "lib", MADE_ONLY }, { "lib64", MADE_ONLY },
    { "vendor", MADE_ONLY }, { "target", MADE_ONLY }, { "tags", MADE_ONLY },
    /* no names at all */
    { "", INVALID }, { ".", INVALID }, { "..", INVALID }, { "...", INVALID }, { ".wsm", INVALID },
    { ".git", INVALID }, { ".wsmfs", INVALID }, { ".@", INVALID }, { "a/b", INVALID }, { "/", INVALID },
    { "/etc", INVALID }, { "../x", INVALID }, { "a\nb", INVALID }, { "\n", INVALID }, { "a\tb", INVALID },
    { "\x01", INVALID }, { "a\x1f", INVALID }, { "a\x7f", INVALID }, { "\xc2\x80", INVALID },
    { "\xc2\x9f", INVALID }, { "\xff", INVALID }, { "a\xfe", INVALID }, { "\xc3", INVALID }, { "a\xc3", INVALID },
    { "\xc3(", INVALID }, { "\x80", INVALID }, { "\xbf", INVALID }, { "\xc0\xaf", INVALID },
    { "\xc1\xbf", INVALID }, { "\xe0\x80\xaf", INVALID }, { "\xf0\x80\x80\xaf", INVALID },
    { "\xed\xa0\x80", INVALID }, { "\xed\xbf\xbf", INVALID }, { "\xf4\x90\x80\x80", INVALID },
    { "\xf8\x88\x80\x80\x80", INVALID }, { "\xe2\x82", INVALID }, { "\xf0\x9f\x92", INVALID },
};

static void every_name_of_the_table_is_what_it_says(void **state)
{
    (void)state;
    assert_true(array_size(table) >= 60);
    for (size_t i = 0; i < array_size(table); i++) {
        bool valid = name_valid(table[i].name), plain = name_plain(table[i].name);
        if (valid != (table[i].kind != INVALID) || plain != (table[i].kind == PLAIN))
            fail_msg("\"%s\": valid %d, plain %d", table[i].name, valid, plain);
    }
}

static void a_name_has_at_most_255_bytes(void **state)
{
    char name[257];

    (void)state;
    memset(name, 'x', sizeof(name));
    name[256] = '\0';
    assert_false(name_valid(name));
    name[255] = '\0';
    assert_true(name_valid(name));
    assert_true(name_plain(name));
    memcpy(name + 253, "\xc3\xa9", 3); /* the last character ends at byte 255 */
    assert_true(name_valid(name));
    memcpy(name + 254, "\xc3\xa9", 3);
    assert_false(name_valid(name));
}

static void searched_words_are_valid_names_without_dots_and_listed_once(void **state)
{
    const char *const *words = name_searched_words();
    size_t n = 0;

    (void)state;
    for (; words[n]; n++) {
        assert_true(name_valid(words[n]));
        assert_null(strchr(words[n], '.'));
        assert_false(name_plain(words[n]));
        for (size_t k = 0; k < n; k++)
            assert_string_not_equal(words[k], words[n]);
    }
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_of_the_table_is_what_it_says),
        cmocka_unit_test(a_name_has_at_most_255_bytes),
        cmocka_unit_test(searched_words_are_valid_names_without_dots_and_listed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

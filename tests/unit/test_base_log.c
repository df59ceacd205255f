// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/base/log.h"

static const struct log_fields alice = {.user = "alice", .agent = "coder", .session = "s1", .id = "0a1b"};

static void expect(enum log_form form, const struct log_fields *f, const char *text, const char *line)
{
    char buf[LOG_LINE_MAX];
    size_t n = log_format(buf, sizeof(buf), form, LOG_LEVEL_WARNING, f, text);

    assert_string_equal(buf, line);
    assert_int_equal(n, strlen(line));
}

static void an_event_is_one_line_with_its_fields(void **state)
{
    (void)state;
    expect(LOG_FORM_STDERR, &alice, "closed",
           "wsmfs: warning: closed user=alice agent=coder session=s1 id=0a1b\n");
    expect(LOG_FORM_SYSLOG, &alice, "closed", "closed user=alice agent=coder session=s1 id=0a1b");
    expect(LOG_FORM_STDERR, NULL, "mounted", "wsmfs: warning: mounted\n");
}

static void the_journal_gets_fields_of_their_own(void **state)
{
    (void)state;
    expect(LOG_FORM_JOURNAL, &alice, "closed",
           "PRIORITY=4\nSYSLOG_IDENTIFIER=wsmfs\nWSMFS_USER=alice\nWSMFS_AGENT=coder\n"
           "WSMFS_SESSION=s1\nWSMFS_ID=0a1b\n"
           "MESSAGE=closed user=alice agent=coder session=s1 id=0a1b\n");
}

static void absent_fields_are_left_out(void **state)
{
    const struct log_fields f = {.id = "x"};

    (void)state;
    expect(LOG_FORM_STDERR, &f, "t", "wsmfs: warning: t id=x\n");
    expect(LOG_FORM_JOURNAL, &f, "t",
           "PRIORITY=4\nSYSLOG_IDENTIFIER=wsmfs\nWSMFS_ID=x\nMESSAGE=t id=x\n");
}

static void no_name_can_forge_a_line_or_a_field(void **state)
{
    static const struct {
        const char *name, *shown;
    } cases[] = {
        {"a\nwsmfs: error: x", "\"a\\x0awsmfs: error: x\""},
        {"a session=b", "\"a session=b\""},
        {"a\" id=\"b", "\"a\\\" id=\\\"b\""},
        {"a\\x0a", "\"a\\\\x0a\""},
        {"", "\"\""},
        {"\x1b[31m", "\\x1b[31m"},
        {"\x7f", "\\x7f"},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xc2\x9b" "31m", "\\xc2\\x9b31m"},              /* CSI as one character */
        {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},              /* LINE SEPARATOR */
        {"\xff\xfe", "\\xff\\xfe"},
        {"\xc0\xaf", "\\xc0\\xaf"},                       /* overlong */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},              /* surrogate */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},     /* above U+10FFFF */
        {"\xe2\x82", "\\xe2\\x82"},                       /* ends early */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct log_fields f = {.user = cases[i].name};
        char line[256];
        snprintf(line, sizeof(line), "wsmfs: warning: t user=%s\n", cases[i].shown);
        expect(LOG_FORM_STDERR, &f, "t", line);
    }
}

static void a_newline_in_a_text_makes_no_second_line(void **state)
{
    (void)state;
    expect(LOG_FORM_JOURNAL, NULL, "a\nPRIORITY=0",
           "PRIORITY=4\nSYSLOG_IDENTIFIER=wsmfs\nMESSAGE=a\\x0aPRIORITY=0\n");
}

static void a_long_line_is_cut_and_still_ends(void **state)
{
    char text[100], buf[32];

    (void)state;
    memset(text, '\n', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (size_t size = 2; size <= sizeof(buf); size++) {
        size_t n = log_format(buf, size, LOG_FORM_STDERR, LOG_LEVEL_ERROR, &alice, text);
        assert_int_equal(n, size - 1);
        assert_int_equal(buf[n - 1], '\n');
        assert_int_equal(buf[n], '\0');
    }
}

static void level_words_go_both_ways(void **state)
{
    (void)state;
    for (int l = LOG_LEVEL_ERROR; l <= LOG_LEVEL_DEBUG; l++)
        assert_int_equal(log_level_parse(log_level_name((enum log_level)l)), l);
    assert_int_equal(log_level_parse("loud"), -EINVAL);
    assert_int_equal(log_level_parse(""), -EINVAL);
}

/* What log_event writes to stderr at the level `set`. */
static void capture(enum log_level set, char *buf, size_t size)
{
    int out[2], keep = dup(STDERR_FILENO);

    assert_int_equal(pipe(out), 0);
    dup2(out[1], STDERR_FILENO);
    close(out[1]);
    log_open(LOG_TARGET_STDERR);
    log_set_level(set);
    errno = ENOTTY;
    log_error("one %d", 1);
    log_event(LOG_LEVEL_INFO, &alice, "three");
    assert_int_equal(errno, ENOTTY);
    dup2(keep, STDERR_FILENO);
    close(keep);
    ssize_t n = read(out[0], buf, size - 1);
    buf[n < 0 ? 0 : n] = '\0';
    close(out[0]);
}

static void what_is_below_the_level_is_not_written(void **state)
{
    char buf[512];

    (void)state;
    unsetenv("JOURNAL_STREAM");
    capture(LOG_LEVEL_WARNING, buf, sizeof(buf));
    assert_string_equal(buf, "wsmfs: error: one 1\n");
    capture(LOG_LEVEL_INFO, buf, sizeof(buf));
    assert_string_equal(buf, "wsmfs: error: one 1\n"
                             "wsmfs: info: three user=alice agent=coder session=s1 id=0a1b\n");
    assert_int_equal(log_get_level(), LOG_LEVEL_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_one_line_with_its_fields),
        cmocka_unit_test(the_journal_gets_fields_of_their_own),
        cmocka_unit_test(absent_fields_are_left_out),
        cmocka_unit_test(no_name_can_forge_a_line_or_a_field),
        cmocka_unit_test(a_newline_in_a_text_makes_no_second_line),
        cmocka_unit_test(a_long_line_is_cut_and_still_ends),
        cmocka_unit_test(level_words_go_both_ways),
        cmocka_unit_test(what_is_below_the_level_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* What is written about a job before its start, and its record. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/jobs/record.h"
#include "fs/jobs/settings.h"

static void argv_is_a_json_array_of_strings(void **state)
{
    static const char text[] = " [\"a b\", \"\", \"\\u00e4\\n\", \"\xff\"]\n";
    settings_list l = NULL;
    struct err e;

    (void)state;
    assert_int_equal(settings_argv(text, sizeof(text) - 1, &l, &e), 0);
    assert_string_equal(l[0], "a b");
    assert_string_equal(l[1], "");
    assert_string_equal(l[2], "\xc3\xa4\n");
    assert_string_equal(l[3], "\xff");
    assert_null(l[4]);
    free(l);
}

static void anything_else_is_no_argv(void **state)
{
    static const char *const texts[] = { "", " ", "x", "{}", "[]", "[\"\"]", "[1]", "[\"a\", null]", "[\"a\"", "[\"a\"] []",
                                         "[\"a\\u0000\"]", "\"a\"", "['a']" };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        settings_list l = NULL;
        struct err e = { 0 };
        assert_int_equal(settings_argv(texts[i], strlen(texts[i]), &l, &e), -EINVAL);
        assert_non_null(strstr(e.text, "JSON"));
    }
}

static void env_has_lines_or_nuls(void **state)
{
    settings_list l;
    struct err e;

    (void)state;
    assert_int_equal(settings_env("A=1\n\nB=x=y\r\nC=", 14, true, &l, &e), 0);
    assert_string_equal(l[0], "A=1");
    assert_string_equal(l[1], "B=x=y");
    assert_string_equal(l[2], "C=");
    assert_null(l[3]);
    free(l);
    assert_int_equal(settings_env("A=1\n2\0B=\0", 9, true, &l, &e), 0);
    assert_string_equal(l[0], "A=1\n2");
    assert_string_equal(l[1], "B=");
    assert_null(l[2]);
    free(l);
    assert_int_equal(settings_env("A=1\nhalf", 8, false, &l, &e), 0);
    assert_null(l[1]);
    free(l);
    assert_int_equal(settings_env("A=1\nhalf", 8, true, &l, &e), -EINVAL);
    assert_int_equal(settings_env("=1", 2, true, &l, &e), -EINVAL);
}

static void expect_cwd(const char *text, const char *want)
{
    char *out = NULL;
    struct err e;
    int r = settings_cwd(text, strlen(text), "/wsm/alice/coder/s1", &out, &e);

    assert_int_equal(r, want ? 0 : -EINVAL);
    if (want)
        assert_string_equal(out, want);
    free(out);
}

static void cwd_stays_in_the_workspace(void **state)
{
    (void)state;
    expect_cwd("", "");
    expect_cwd(".", "");
    expect_cwd("a/./b//c/\n", "a/b/c");
    expect_cwd("a/../b", "b");
    expect_cwd("/workspace", "");
    expect_cwd("/workspace/a", "a");
    expect_cwd("/wsm/alice/coder/s1/a/b", "a/b");
    expect_cwd("/wsm/alice/coder/s1", "");
    expect_cwd("..", NULL);
    expect_cwd("a/../..", NULL);
    expect_cwd("/workspace/../etc", NULL);
    expect_cwd("/workspacex", NULL);
    expect_cwd("/wsm/alice/coder/s12", NULL);
    expect_cwd("/etc", NULL);
    expect_cwd("a\nb", NULL);
}

static void expect_timeout(const char *text, int64_t want_ms)
{
    uint64_t ms = 1;
    struct err e;
    int r = settings_timeout(text, strlen(text), &ms, &e);

    assert_int_equal(r, want_ms < 0 ? -EINVAL : 0);
    if (want_ms >= 0)
        assert_int_equal(ms, want_ms);
}

static void timeout_is_in_seconds(void **state)
{
    (void)state;
    expect_timeout("", 0);
    expect_timeout("0", 0);
    expect_timeout("1\n", 1000);
    expect_timeout("0.25", 250);
    expect_timeout("90s", 90000);
    expect_timeout("1.0009", 1000);
    expect_timeout("-1", -1);
    expect_timeout("1m", -1);
    expect_timeout(".5", -1);
    expect_timeout("1000000001", -1);
    expect_timeout("99999999999999999999", -1);
}

static void tty_is_a_size(void **state)
{
    uint16_t c, r;

    (void)state;
    assert_int_equal(settings_tty("120x40\n", 7, &c, &r, NULL), 0);
    assert_int_equal(c, 120);
    assert_int_equal(r, 40);
    assert_int_equal(settings_tty("", 0, &c, &r, NULL), 0);
    assert_int_equal(c, 0);
    for (const char *const *t = (const char *const[]){ "80", "80x", "x24", "0x24", "80x0", "80x24x", "65536x1", "-1x1", NULL };
         *t; t++)
        assert_int_equal(settings_tty(*t, strlen(*t), &c, &r, NULL), -EINVAL);
}

static void signals_have_names_and_numbers(void **state)
{
    (void)state;
    assert_int_equal(settings_signal("INT"), SIGINT);
    assert_int_equal(settings_signal("SIGTERM"), SIGTERM);
    assert_int_equal(settings_signal("usr1"), SIGUSR1);
    assert_int_equal(settings_signal("9"), 9);
    assert_int_equal(settings_signal("64"), 64);
    assert_int_equal(settings_signal("0"), -EINVAL);
    assert_int_equal(settings_signal("65"), -EINVAL);
    assert_int_equal(settings_signal(""), -EINVAL);
    assert_int_equal(settings_signal("9x"), -EINVAL);
}

static void set_text(struct record *r, enum job_text which, const char *text, size_t size)
{
    r->texts[which] = (struct record_text){ memcpy(malloc(size + 1), text, size + 1), size, 5 };
}

static void a_record_is_read_as_it_was_written(void **state)
{
    char path[] = "/tmp/test-record-XXXXXX";
    struct record a = { .user = strdup("\xc3\xa4 \"user\""), .agent = strdup("a"), .session = strdup("s\\"),
                        .name = strdup("n"), .workspace = strdup("w"), .which = JOB_ARGV, .made_ms = 17,
                        .stdin_pipe = true, .asked = true, .ended = true, .kind = LINK_END_SIGNALED, .code = 9,
                        .timed_out = true, .pid = 7, .start_ms = 18, .end_ms = 19, .text = strdup("why\nnot") };
    struct record b;
    int fd;

    (void)state;
    set_text(&a, JOB_CMD, "\xff\xfe\n\x01", 4);
    set_text(&a, JOB_ENV, "A=1\0B=2\0", 8);
    memset(a.instance.b, 0xa5, sizeof(a.instance.b));
    assert_non_null(mkdtemp(path));
    fd = open(path, O_PATH | O_DIRECTORY);
    assert_int_equal(record_read(fd, "j", &b), -ENOENT);
    assert_int_equal(record_write(fd, "j", &a, RECORD_ALL), 0);
    assert_int_equal(record_read(fd, "j", &b), 0);
    assert_string_equal(b.user, a.user);
    assert_string_equal(b.session, a.session);
    assert_string_equal(b.text, a.text);
    assert_int_equal(b.texts[JOB_CMD].size, 4);
    assert_memory_equal(b.texts[JOB_CMD].text, a.texts[JOB_CMD].text, 4);
    assert_int_equal(b.texts[JOB_ENV].size, 8);
    assert_memory_equal(b.texts[JOB_ENV].text, a.texts[JOB_ENV].text, 8);
    assert_int_equal(b.texts[JOB_CMD].changed_ms, 5);
    assert_memory_equal(b.instance.b, a.instance.b, sizeof(a.instance.b));
    assert_true(b.ended && b.timed_out && b.asked && b.stdin_pipe);
    assert_int_equal(b.kind, LINK_END_SIGNALED);
    assert_int_equal(b.code, 9);
    assert_int_equal(b.which, JOB_ARGV);
    assert_int_equal(b.made_ms, 17);
    assert_int_equal(b.end_ms, 19);
    record_finish(&a);
    record_finish(&b);
    unlinkat(fd, "j.record", 0);
    close(fd);
    rmdir(path);
}

static void a_later_line_adds_to_the_first(void **state)
{
    char path[] = "/tmp/test-record-XXXXXX";
    struct record a = { .user = strdup("u"), .agent = strdup("a"), .session = strdup("s"), .name = strdup("n"),
                        .made_ms = 17 };
    struct record b;
    int fd;

    (void)state;
    set_text(&a, JOB_CMD, "x", 1);
    assert_non_null(mkdtemp(path));
    fd = open(path, O_PATH | O_DIRECTORY);
    assert_int_equal(record_write(fd, "j", &a, RECORD_ALL), 0);
    a.asked = true;
    assert_int_equal(record_write(fd, "j", &a, RECORD_GUEST), 0);
    a.ended = true;
    a.kind = LINK_END_EXITED;
    a.code = 3;
    assert_int_equal(record_write(fd, "j", &a, RECORD_END), 0);
    assert_int_equal(record_read(fd, "j", &b), 0);
    assert_true(b.asked && b.ended && b.code == 3 && b.made_ms == 17);
    assert_string_equal(b.texts[JOB_CMD].text, "x");
    record_finish(&b);
    int half = openat(fd, "j.record", O_WRONLY | O_APPEND);
    assert_int_equal(write(half, "{\"code\":4", 9), 9); /* its writer was killed */
    close(half);
    assert_int_equal(record_read(fd, "j", &b), 0);
    assert_int_equal(b.code, 3);
    record_finish(&a);
    record_finish(&b);
    unlinkat(fd, "j.record", 0);
    close(fd);
    rmdir(path);
}

static void a_damaged_record_is_no_record(void **state)
{
    static const char *const texts[] = { "{\n", "[]\n", "{\"version\":1}\n", "{\"version\":2,\"user\":\"u\"}\n",
                                         "\xff\xff\n" };
    char path[] = "/tmp/test-record-XXXXXX";
    struct record r;

    (void)state;
    assert_non_null(mkdtemp(path));
    int dir = open(path, O_PATH | O_DIRECTORY);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int fd = openat(dir, "j.record", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(fd, texts[i], strlen(texts[i])), (ssize_t)strlen(texts[i]));
        close(fd);
        assert_int_equal(record_read(dir, "j", &r), -EIO);
    }
    unlinkat(dir, "j.record", 0);
    close(dir);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argv_is_a_json_array_of_strings),
        cmocka_unit_test(anything_else_is_no_argv),
        cmocka_unit_test(env_has_lines_or_nuls),
        cmocka_unit_test(cwd_stays_in_the_workspace),
        cmocka_unit_test(timeout_is_in_seconds),
        cmocka_unit_test(tty_is_a_size),
        cmocka_unit_test(signals_have_names_and_numbers),
        cmocka_unit_test(a_record_is_read_as_it_was_written),
        cmocka_unit_test(a_later_line_adds_to_the_first),
        cmocka_unit_test(a_damaged_record_is_no_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

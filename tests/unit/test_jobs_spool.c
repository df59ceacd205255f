// SPDX-License-Identifier: Apache-2.0
/* Output on the disk: streams, their order, holes, and what a crash leaves. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/jobs/spool.h"

struct place {
    char path[64];
    int  fd;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    strcpy(p->path, "/tmp/test-spool-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_PATH | O_DIRECTORY);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    for (const char *const *n = (const char *const[]){ "j.out", "j.err", "j.order", NULL }; *n; n++)
        unlinkat(p->fd, *n, 0);
    rmdir(p->path);
    close(p->fd);
    free(p);
    return 0;
}

static void put(struct spool *s, int stream, const char *text)
{
    assert_int_equal(spool_append(s, stream, text, strlen(text)), 0);
}

static void expect_log(struct spool *s, const char *want)
{
    char buf[256] = "";
    uint64_t start, end;

    spool_log_span(s, &start, &end);
    assert_int_equal(end - start, strlen(want));
    assert_int_equal(spool_log_read(s, start, buf, sizeof(buf)), (ssize_t)strlen(want));
    assert_string_equal(buf, want);
    for (size_t i = 0; want[i]; i++) { /* from every place */
        memset(buf, 0, sizeof(buf));
        assert_int_equal(spool_log_read(s, start + i, buf, sizeof(buf)), (ssize_t)strlen(want + i));
        assert_string_equal(buf, want + i);
    }
}

static void an_empty_spool_has_nothing(void **state)
{
    struct place *p = *state;
    struct spool s;
    char buf[8];

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    assert_int_equal(spool_read(&s, 0, 0, buf, sizeof(buf)), 0);
    expect_log(&s, "");
    assert_int_equal(spool_kept(&s), 0);
    spool_close(&s);
}

static void one_stream_needs_no_order(void **state)
{
    struct place *p = *state;
    struct spool s;
    struct stat st;

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 1, "only ");
    put(&s, 1, "errors");
    expect_log(&s, "only errors");
    assert_int_not_equal(fstatat(p->fd, "j.order", &st, 0), 0);
    assert_int_not_equal(fstatat(p->fd, "j.out", &st, 0), 0);
    spool_close(&s);
}

static void the_log_has_both_in_their_order(void **state)
{
    struct place *p = *state;
    struct spool s;
    char buf[32] = "";

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 0, "a");
    put(&s, 0, "b");
    put(&s, 1, "X");
    put(&s, 0, "c");
    put(&s, 1, "Y");
    put(&s, 1, "Z");
    expect_log(&s, "abXcYZ");
    assert_int_equal(spool_read(&s, 0, 0, buf, sizeof(buf)), 3);
    assert_string_equal(buf, "abc");
    spool_close(&s);
}

static void a_new_life_goes_on_where_the_old_one_was(void **state)
{
    struct place *p = *state;
    struct spool s;

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 0, "ab");
    put(&s, 1, "X");
    spool_close(&s);
    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    assert_int_equal(s.size[0], 2);
    assert_int_equal(s.size[1], 1);
    expect_log(&s, "abX");
    put(&s, 1, "Y");
    put(&s, 0, "c");
    expect_log(&s, "abXYc");
    spool_close(&s);
}

/* The entry of a turn is there, its first byte is not: the daemon was killed between. */
static void a_crash_between_an_entry_and_its_bytes_does_no_harm(void **state)
{
    struct place *p = *state;
    struct spool s;

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 0, "ab");
    put(&s, 1, "X");
    spool_close(&s);
    int fd = openat(p->fd, "j.err", O_WRONLY);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    expect_log(&s, "ab");
    put(&s, 1, "X");
    put(&s, 0, "c");
    expect_log(&s, "abXc");
    spool_close(&s);
}

static void what_was_read_is_given_up_in_whole_blocks(void **state)
{
    struct place *p = *state;
    struct spool s;
    char block[4096];
    struct stat st;

    memset(block, 'x', sizeof(block));
    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(spool_append(&s, 0, block, sizeof(block)), 0);
    put(&s, 1, "err");
    put(&s, 0, "end");
    assert_int_equal(spool_drop(&s, 0, 3 * 4096 + 100), 3 * 4096);
    assert_int_equal(spool_drop(&s, 0, 3 * 4096 + 200), 0);
    assert_int_equal(spool_dropped(&s), 3 * 4096);
    assert_int_equal(spool_kept(&s), 7 * 4096 + 6);
    assert_int_equal(fstatat(p->fd, "j.out", &st, 0), 0);
    assert_true(st.st_blocks * 512 <= 8 * 4096);
    spool_close(&s);
    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    assert_int_equal(s.start[0], 3 * 4096);
    uint64_t start, end;
    spool_log_span(&s, &start, &end);
    assert_int_equal(start, 3 * 4096);
    assert_int_equal(end, 10 * 4096 + 6);
    spool_close(&s);
}

static void the_log_begins_behind_what_was_given_up_of_either(void **state)
{
    struct place *p = *state;
    struct spool s;
    char block[4096];
    uint64_t start, end;
    char buf[16] = "";

    memset(block, 'x', sizeof(block));
    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 1, "early");
    assert_int_equal(spool_append(&s, 0, block, sizeof(block)), 0);
    put(&s, 1, "late");
    put(&s, 0, "end");
    spool_drop(&s, 0, 4096);
    spool_log_span(&s, &start, &end);
    assert_int_equal(start, 5 + 4096);
    assert_int_equal(spool_log_read(&s, start, buf, sizeof(buf)), 7);
    assert_string_equal(buf, "lateend");
    spool_close(&s);
}

static void bytes_that_were_lost_leave_a_gap_that_is_counted(void **state)
{
    struct place *p = *state;
    struct spool s;

    assert_int_equal(spool_open(&s, p->fd, "j"), 0);
    put(&s, 0, "ab");
    spool_skip(&s, 0, 2);
    assert_int_equal(spool_dropped(&s), 0);
    spool_skip(&s, 0, 100);
    assert_int_equal(spool_dropped(&s), 100);
    put(&s, 0, "cd");
    assert_int_equal(s.size[0], 102);
    spool_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_empty_spool_has_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_stream_needs_no_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_log_has_both_in_their_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_new_life_goes_on_where_the_old_one_was, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_crash_between_an_entry_and_its_bytes_does_no_harm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_read_is_given_up_in_whole_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_log_begins_behind_what_was_given_up_of_either, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bytes_that_were_lost_leave_a_gap_that_is_counted, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

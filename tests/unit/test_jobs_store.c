// SPDX-License-Identifier: Apache-2.0
/* The jobs of a manager's sessions, without a guest: nothing is started here. */
#include "fs/jobs/jobs.h"
#include "fs/jobs/record.h"
#include "tests/unit/manager_fixture.h"

static struct jobs *jobs_over(struct fixture *f)
{
    const struct jobs_setup setup = { .config = f->config, .manager = f->m, .pool = f->pool, .timers = f->timers };
    struct jobs *js;
    struct err e;

    if (jobs_create(&setup, &js, &e) < 0)
        fail_msg("%s", e.text);
    return js;
}

static void make(struct jobs *js, struct place *s, const char *name)
{
    struct job *j;
    struct err e;

    assert_int_equal(jobs_make(js, s, name, &j, &e), 0);
    job_unref(j);
}

static int find(struct jobs *js, struct place *s, const char *name)
{
    struct job *j;
    int r = jobs_find(js, s, name, &j);

    if (r == 0)
        job_unref(j);
    return r;
}

/* Who forgets a name forgets its jobs a moment later, and somebody may have made it again by then. */
static void a_forgotten_session_takes_no_jobs_of_the_next_one_with_it(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct jobs *js = jobs_over(f);
    struct place *old = session_at(f, "alice", "coder", "s1"), *next;
    struct err e;

    (void)state;
    make(js, old, "first");
    assert_int_equal(place_forget(old->parent, "s1", &e), 0);
    next = session_at(f, "alice", "coder", "s1");
    assert_ptr_not_equal(next, old);
    make(js, next, "second");
    jobs_forget_session(js, old);
    assert_int_equal(find(js, next, "first"), -ENOENT);
    assert_int_equal(find(js, next, "second"), 0);
    jobs_forget_session(js, next);
    assert_int_equal(find(js, next, "second"), -ENOENT);
    place_unref(old);
    place_unref(next);
    jobs_destroy(js);
    fixture_free(f);
}

/* One of an earlier life: until its guest has been asked it may run. */
static void put_record(struct fixture *f)
{
    struct record r = { .user = (char *)"alice", .agent = (char *)"coder", .session = (char *)"s1", .name = (char *)"j" };
    char path[PATH_MAX + 16];

    snprintf(path, sizeof(path), "%s/jobs", f->state);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    cleanup_close int dir = open(path, O_PATH | O_DIRECTORY);
    assert_int_equal(record_write(dir, "00112233445566778899aabbccddeeff", &r, RECORD_ALL), 0);
}

static void a_job_of_an_earlier_life_counts_before_anything_is_closed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct jobs *js;

    (void)state;
    put_record(f);
    js = jobs_over(f);
    assert_non_null(strstr(text_of(session_text_status, s), "\"running_jobs\":1,"));
    jobs_destroy(js);
    assert_non_null(strstr(text_of(session_text_status, s), "\"running_jobs\":0,"));
    place_unref(s);
    fixture_free(f);
}

static void a_text_that_finds_no_room_as_a_file_makes_none(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct jobs *js = jobs_over(f);
    struct place *s = session_at(f, "alice", "coder", "s1");
    struct job_file *file;
    struct job *j;
    struct err e;
    size_t size;
    int64_t ms;

    (void)state;
    assert_int_equal(jobs_make(js, s, "j", &j, &e), 0);
    assert_int_equal(job_text_write(j, JOB_ENV, "A=some more bytes", 17, 0, &e), 0);
    assert_int_equal(job_file_make(j, "large", 0600, &file), 0);
    assert_int_equal(job_file_truncate(file, JOB_FILES_MAX_BYTES - 260), 0);
    job_file_unref(file);
    assert_int_equal(job_file_from_text(j, JOB_ENV, "env~", true), -EDQUOT);
    assert_int_equal(job_file_find(j, "env~", &file), -ENOENT);
    job_text_stat(j, JOB_ENV, &size, &ms);
    assert_int_equal(size, 17);
    job_unref(j);
    place_unref(s);
    jobs_destroy(js);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forgotten_session_takes_no_jobs_of_the_next_one_with_it),
        cmocka_unit_test(a_job_of_an_earlier_life_counts_before_anything_is_closed),
        cmocka_unit_test(a_text_that_finds_no_room_as_a_file_makes_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

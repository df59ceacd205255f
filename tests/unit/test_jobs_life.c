// SPDX-License-Identifier: Apache-2.0
/* Moments in a job's life that two threads meet in, over a manager whose sandboxes no guest answers in. */
#include <sys/socket.h>
#include <sys/stat.h>

#include "fs/jobs/internal.h"
#include "fs/manager/internal.h"
#include "tests/unit/manager_fixture.h"

/* The first is the stream, and what is at the other end says nothing; -1: there is no stream. Other threads read it
 * until the jobs are gone. */
static int silent[2] = { -1, -1 };

static int no_stream(void *state, const struct backend_workspace *w, bool start, struct err *e)
{
    (void)state, (void)w, (void)start;
    return silent[0] >= 0 ? dup(silent[0]) : err_set(e, -EIO, "no guest, the test says");
}

static const struct backend host = {
    .abi = BACKEND_ABI, .size_bytes = sizeof(struct backend), .name = "fakehost", .files_wait = false,
    .init = fake_init, .provision = fake_provision, .files_open = fake_files_open, .close = fake_close,
    .destroy = fake_destroy, .stream = no_stream,
};

struct world {
    struct fixture *f;
    struct jobs    *js;
    struct place   *session;
    struct job     *j;      /* named "j", with a command */
};

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct err e = { 0 };

    w->f = fixture_new(&host, "isolation=per_agent");
    const struct jobs_setup s = { .config = w->f->config, .manager = w->f->m, .pool = w->f->pool,
                                  .timers = w->f->timers };
    assert_int_equal(jobs_create(&s, &w->js, &e), 0);
    w->session = session_at(w->f, "alice", "coder", "s1");
    assert_int_equal(jobs_make(w->js, w->session, "j", &w->j, &e), 0);
    assert_int_equal(job_text_write(w->j, JOB_CMD, "true", 4, 0, &e), 0);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;

    job_unref(w->j);
    place_unref(w->session);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    jobs_destroy(w->js);
    for (int i = 0; i < 2; i++)
        if (silent[i] >= 0)
            close(silent[i]);
    silent[0] = silent[1] = -1;
    fixture_free(w->f);
    free(w);
    return 0;
}

/* ── a kill during the start ─────────────────────────────────────────────────────────────── */

struct start {
    struct job *j;
    bool       final;
    int        result;
    struct err e;
};

static void *start_thread(void *arg)
{
    struct start *s = arg;

    s->result = job_start(s->j, JOB_CMD, s->final, &s->e);
    return NULL;
}

static void nobody_asks(void *arg, int status)
{
    (void)arg, (void)status;
    fail();
}

/* The start waits for names_lock, before its job is counted; a kill comes just then. */
static int start_and_kill(struct world *w, bool final, bool refused)
{
    struct start s = { .j = w->j, .final = final };
    struct err e = { 0 };
    enum job_state during;
    pthread_t thread;
    int killed;

    pthread_mutex_lock(&w->f->m->names_lock);
    assert_int_equal(pthread_create(&thread, NULL, start_thread, &s), 0);
    wait_until(job_state(w->j) == JOB_STARTING);
    killed = job_verb(w->j, "kill", nobody_asks, NULL, &e);
    pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000));
    during = job_state(w->j);
    w->f->config->read_only = refused;
    pthread_mutex_unlock(&w->f->m->names_lock);
    pthread_join(thread, NULL);
    w->f->config->read_only = false;
    assert_int_equal(killed, 0);
    assert_int_equal(during, JOB_STARTING); /* the start may still be refused */
    return s.result;
}

static void a_kill_during_the_start_ends_the_job_when_it_is_accepted(void **state)
{
    struct world *w = *state;
    int64_t ms;
    size_t size;
    char *text;

    assert_int_equal(start_and_kill(w, true, false), 0);
    wait_until(job_state(w->j) == JOB_ENDED);
    text = job_exit_text(w->j, &size, &ms);
    assert_string_equal(text, "error it was killed before it started\n");
    free(text);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_int_equal(session_running_jobs(session_of(w->session)), 0);
    assert_int_equal(atomic_load(&w->f->m->running_jobs), 0);
}

static void a_kill_during_a_start_that_is_refused_leaves_the_job_as_it_was(void **state)
{
    struct world *w = *state;
    struct err e = { 0 };

    assert_int_equal(start_and_kill(w, false, true), -EROFS);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_int_equal(job_state(w->j), JOB_NEW);
    assert_int_equal(job_start(w->j, JOB_CMD, true, &e), 0);
    wait_until(job_state(w->j) == JOB_ENDED); /* there is no guest */
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_int_equal(atomic_load(&w->f->m->running_jobs), 0);
}

static void one_that_was_removed_is_not_started(void **state)
{
    struct world *w = *state;
    struct err e = { 0 };

    assert_int_equal(jobs_remove(w->js, w->session, "j", &e), 0);
    assert_int_equal(job_verb(w->j, "start", nobody_asks, NULL, &e), -ENOENT);
    assert_int_equal(job_state(w->j), JOB_NEW);
}

/* What it was given for its standard input makes files; the next life says of a record without a beginning that it
 * is damaged, and keeps it. */
static void one_that_was_not_accepted_has_no_record(void **state)
{
    struct world *w = *state;
    struct err e = { 0 };
    char name[KEY_HEX + 8];

    job_stdin_open(w->j);
    assert_int_equal(job_stdin_write(w->j, "x", 1, &e), 0);
    job_stdin_release(w->j);
    w->f->config->read_only = true;
    assert_int_equal(job_start(w->j, JOB_CMD, true, &e), -EROFS);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    w->f->config->read_only = false;
    assert_int_equal(job_state(w->j), JOB_ENDED);
    snprintf(name, sizeof(name), "%s.record", w->j->hex);
    assert_int_equal(faccessat(w->js->dir_fd, name, F_OK, 0), -1);
}

/* ── output at the end, and before what waits ────────────────────────────────────────────── */

/* The thread of links may be about to store some while the job is ended by somebody else; the descriptor that it
 * would write to is another file's by then. */
static void output_after_the_end_is_not_stored(void **state)
{
    struct world *w = *state;

    job_spool_use(w->j);
    job_store(w->j, JOB_STDOUT, "abc", 3);
    job_save_last(w->j);
    job_spool_unuse(w->j);
    assert_int_equal(atomic_load(&w->j->spool.fd[0]), -1);
    job_store(w->j, JOB_STDOUT, "late", 4);
    job_store(w->j, JOB_STDERR, "late", 4);
    assert_int_equal(atomic_load(&w->j->spool.fd[0]), -1);
    assert_int_equal(atomic_load(&w->j->spool.fd[1]), -1);
    assert_int_equal(spool_kept(&w->j->spool), 3);
}

/* What brings it waits for no room either: nobody would take the job off that list. */
static void output_after_the_end_waits_for_no_room(void **state)
{
    struct world *w = *state;

    w->f->config->job_output_max_bytes = 2;
    job_spool_use(w->j);
    job_link_ops.output(NULL, w->j, LINK_STDOUT, 0, 0, "abc", 3);
    assert_true(atomic_load(&w->j->is_stalled));
    job_save_last(w->j);
    job_unstall(w->j);
    job_link_ops.output(NULL, w->j, LINK_STDOUT, 3, 3, "late", 4);
    assert_false(atomic_load(&w->j->is_stalled));
    job_spool_unuse(w->j);
}

/* A crash of the machine may have lost the end of what was stored; what lies before that is given up, and counts no
 * longer. */
static void what_lies_before_a_gap_is_given_back(void **state)
{
    static const struct link_started started = { .first = { 100, 0 } };
    struct world *w = *state;

    job_spool_use(w->j);
    job_store(w->j, JOB_STDOUT, "abc", 3);
    job_store(w->j, JOB_STDERR, "defg", 4);
    assert_int_equal(atomic_load(&w->js->used_bytes), 7);
    job_link_ops.started(NULL, w->j, &started);
    assert_int_equal(spool_kept(&w->j->spool), 4);
    assert_int_equal(atomic_load(&w->js->used_bytes), 4);
    job_spool_unuse(w->j);
}

/* The guest's answer to the start may come behind the end that somebody else has made known. */
static void a_start_that_is_told_after_the_end_reads_no_text(void **state)
{
    static const struct link_started started = { .pid = 1 };
    struct world *w = *state;
    char timeout[1000];
    struct err e = { 0 };

    memset(timeout, '0', sizeof(timeout));
    timeout[0] = '9';
    timeout[1] = '.';
    assert_int_equal(job_text_write(w->j, JOB_TIMEOUT, timeout, sizeof(timeout), 0, &e), 0);
    assert_int_equal(job_start(w->j, JOB_CMD, true, &e), 0);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    wait_until(job_state(w->j) == JOB_ENDED); /* there is no guest */
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_null(w->j->rec.texts[JOB_TIMEOUT].text); /* its record has it */
    job_link_ops.started(NULL, w->j, &started);
    assert_int_equal(job_state(w->j), JOB_ENDED);
}

static void say(struct world *w, size_t size)
{
    static char bytes[ALLOW_A_PIPE];

    job_link_ops.output(NULL, w->j, LINK_STDOUT, 0, 0, bytes, size);
}

/* It may be one that ends it, or WINCH. */
static void a_signal_lets_a_job_keep_no_more_than_a_pipe_holds(void **state)
{
    struct world *w = *state;
    struct err e = { 0 };

    w->f->config->spool_max_bytes = 1000;
    say(w, 2000);
    assert_true(atomic_load(&w->j->is_stalled));
    assert_int_equal(job_verb(w->j, "signal TERM", nobody_asks, NULL, &e), -ESRCH);
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_false(atomic_load(&w->j->is_stalled));
    say(w, ALLOW_A_PIPE / 2);
    assert_false(atomic_load(&w->j->is_stalled));
    say(w, ALLOW_A_PIPE / 2);
    assert_true(atomic_load(&w->j->is_stalled));
    job_unstall(w->j);
}

static void a_signal_takes_nothing_back_from_a_job_that_ends(void **state)
{
    struct world *w = *state;
    struct err e = { 0 };

    job_allow(w->j, ALLOW_ALL);
    assert_int_equal(job_verb(w->j, "signal TERM", nobody_asks, NULL, &e), -ESRCH);
    assert_true(job_must_not_wait(w->j));
}

static void offered(struct job_listener *l, uint64_t at, const void *data, size_t size)
{
    (void)l, (void)at, (void)data, (void)size;
    fail();
}

static void ignore(struct job_listener *l) { (void)l; }

/* A reader that has come after the first piece waits for that, not for the second. */
static void output_is_not_offered_before_what_could_not_be_stored(void **state)
{
    struct world *w = *state;
    struct job_listener l = { .stream = JOB_STDOUT, .more = ignore, .offer = offered, .hold = ignore, .drop = ignore };
    struct job_reader r;
    char path[KEY_HEX + 8], buf[16] = "";

    snprintf(path, sizeof(path), "%s.out", w->j->hex);
    assert_int_equal(mkdirat(w->js->dir_fd, path, 0700), 0); /* where the file should be: nothing can be stored */
    job_link_ops.output(NULL, w->j, LINK_STDOUT, 0, 0, "one ", 4);
    list_init(&l.links);
    job_reader_add(w->j, &r, JOB_STDOUT);
    atomic_store(&l.waits, true);
    job_listen(w->j, &l);
    job_link_ops.output(NULL, w->j, LINK_STDOUT, 4, 4, "two", 3);
    assert_int_equal(job_reader_read(w->j, &r, buf, sizeof(buf)), -EAGAIN);
    assert_int_equal(unlinkat(w->js->dir_fd, path, AT_REMOVEDIR), 0);
    job_save(w->j);
    assert_int_equal(job_reader_read(w->j, &r, buf, sizeof(buf)), 7);
    assert_string_equal(buf, "one two");
    job_unlisten(w->j, &l);
    job_reader_remove(w->j, &r);
}

/* ── another guest ───────────────────────────────────────────────────────────────────────── */

/* As if the guest that it waits for had been up: it is asked for the job. */
static void ask(struct job *j)
{
    struct link_spawn s = { .key = j->key, .script = "cat", .stdin_pipe = true };
    struct err e = { 0 };
    scoped_lock(&j->lock);

    job_ref(j); /* until it is released */
    assert_int_equal(link_job_spawn(j->guest->link, &s, &job_link_ops, j, &j->link_job, &e), 0);
}

static bool has_guest(struct job *j)
{
    scoped_lock(&j->lock);

    return j->guest;
}

static void wait_for_guest(struct world *w)
{
    wait_until(has_guest(w->j));
    assert_true(pool_drain(w->f->pool, PATIENCE_S * INT64_C(1000000000)));
    assert_true(has_guest(w->j));
}

/* What the link has taken by then went with it. */
static void a_guest_that_is_asked_next_gets_all_of_the_input(void **state)
{
    static const struct link_exit refused = { .kind = LINK_END_FAILED, .code = -ESHUTDOWN, .text = "it ends" };
    struct world *w = *state;
    struct err e = { 0 };

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, silent), 0);
    job_stdin_open(w->j);
    assert_int_equal(job_start(w->j, JOB_CMD, true, &e), 0);
    wait_for_guest(w);
    for (int i = 0; i < 2; i++) {
        ask(w->j);
        assert_int_equal(i ? 0 : job_stdin_write(w->j, "abc", 3, &e), 0);
        job_stdin_pump(w->j);
        assert_int_equal(w->j->in.sent, 3);
        job_link_ops.exited(NULL, w->j, &refused);
        wait_for_guest(w);
        assert_int_equal(w->j->in.sent, 0);
        assert_false(job_stdin_broken(w->j));
    }
    job_stdin_release(w->j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_kill_during_the_start_ends_the_job_when_it_is_accepted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_kill_during_a_start_that_is_refused_leaves_the_job_as_it_was, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_was_removed_is_not_started, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_was_not_accepted_has_no_record, set_up, tear_down),
        cmocka_unit_test_setup_teardown(output_after_the_end_is_not_stored, set_up, tear_down),
        cmocka_unit_test_setup_teardown(output_after_the_end_waits_for_no_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_signal_lets_a_job_keep_no_more_than_a_pipe_holds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_signal_takes_nothing_back_from_a_job_that_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_lies_before_a_gap_is_given_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_start_that_is_told_after_the_end_reads_no_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(output_is_not_offered_before_what_could_not_be_stored, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_guest_that_is_asked_next_gets_all_of_the_input, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

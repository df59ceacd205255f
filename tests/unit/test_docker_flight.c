// SPDX-License-Identifier: Apache-2.0
/* Work that many want is done once, and nobody is held by another's end. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/docker/flight.h"
#include "fs/base/cleanup.h"

#define MANY 8

static struct flights *fs;

/* One who wants the work. */
struct one {
    struct backend_progress p; /* first */
    const char *name;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint told;
    int  result;
    struct err e;
};

/* What all do. */
static struct {
    atomic_int  runs, running;
    atomic_bool go;
    int  result;
} work;

static void on_step(struct backend_progress *p, const char *step, const char *text, uint64_t done, uint64_t total)
{
    struct one *o = (struct one *)p;

    if (strcmp(step, "pull") == 0 && strcmp(text, "half") == 0 && done == 1 && total == 2)
        o->told++;
}

static bool on_cancelled(struct backend_progress *p) { return ((struct one *)p)->stop; }

static int do_it(void *arg, struct backend_progress *p, struct err *e)
{
    int r = 0;

    (void)arg;
    work.runs++;
    work.running++;
    p->step(p, "pull", "half", 1, 2);
    while (!work.go && r == 0) {
        usleep(1000);
        r = p->cancelled(p) ? err_set(e, -ECANCELED, "cancelled") : 0;
    }
    work.running--;
    return r < 0 || work.result == 0 ? r : err_set(e, work.result, "it fails");
}

static void *main_of_one(void *arg)
{
    struct one *o = arg;

    o->result = flights_join(fs, o->name, &o->p, do_it, NULL, &o->e);
    return NULL;
}

static void begin(struct one *o, const char *name)
{
    *o = (struct one){ .p = { on_step, on_cancelled }, .name = name };
    assert_int_equal(pthread_create(&o->thread, NULL, main_of_one, o), 0);
}

static void await_told(struct one *o)
{
    for (int i = 0; i < 60000 && !o->told; i++)
        usleep(1000);
    assert_true(o->told);
}

static int set_up(void **state)
{
    struct err e;

    (void)state;
    work.runs = 0;
    work.go = false;
    work.result = 0;
    return flights_create(&fs, &e);
}

static int tear_down(void **state)
{
    (void)state;
    flights_destroy(fs);
    return 0;
}

static void many(int result)
{
    struct one all[MANY];

    work.result = result;
    for (int i = 0; i < MANY; i++)
        begin(&all[i], "x");
    for (int i = 0; i < MANY; i++)
        await_told(&all[i]);
    work.go = true;
    for (int i = 0; i < MANY; i++) {
        pthread_join(all[i].thread, NULL);
        assert_int_equal(all[i].result, result);
        if (result)
            assert_string_equal(all[i].e.text, "it fails");
    }
    assert_int_equal(work.runs, 1);
}

static void test_many_share_one(void **state)
{
    (void)state;
    many(0);
}

static void test_a_failure_is_everybodys(void **state)
{
    (void)state;
    many(-ENXIO);
}

static void test_other_names_do_not_wait(void **state)
{
    struct one a, b;

    (void)state;
    begin(&a, "a");
    await_told(&a);
    begin(&b, "b");
    await_told(&b);
    assert_int_equal(work.running, 2);
    work.go = true;
    pthread_join(a.thread, NULL);
    pthread_join(b.thread, NULL);
}

static void test_who_is_cancelled_leaves_the_others(void **state)
{
    struct one first, second, third;

    (void)state;
    begin(&first, "x");
    await_told(&first);
    begin(&second, "x");
    begin(&third, "x");
    await_told(&second);
    await_told(&third);
    third.stop = true; /* one who waits */
    pthread_join(third.thread, NULL);
    assert_int_equal(third.result, -ECANCELED);
    assert_int_equal(work.runs, 1);
    first.stop = true; /* the one who works */
    pthread_join(first.thread, NULL);
    assert_int_equal(first.result, -ECANCELED);
    for (int i = 0; i < 60000 && work.runs < 2; i++)
        usleep(1000);
    work.go = true;
    pthread_join(second.thread, NULL);
    assert_int_equal(second.result, 0);
    assert_int_equal(work.runs, 2);
}

static void test_nobody_need_watch(void **state)
{
    struct err e;

    (void)state;
    work.go = true;
    assert_int_equal(flights_join(fs, "x", NULL, do_it, NULL, &e), 0);
    assert_int_equal(flights_join(fs, "x", NULL, do_it, NULL, NULL), 0);
    assert_int_equal(work.runs, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_share_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_failure_is_everybodys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_names_do_not_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_is_cancelled_leaves_the_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nobody_need_watch, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

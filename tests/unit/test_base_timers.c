// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define MS 1000000LL
#define NEVER (INT64_MAX / 2)

/* Where fired timers leave their names, in order. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int             names[20000];
    size_t          n;
    bool            hold, held; /* a fire() stands still while `hold` */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

struct alarm {
    struct timer   timer;
    struct timers *timers;
    int            name;
    int            again; /* re-arms itself so often */
    int64_t        due_ns, late_ns;
};

static void record(struct timer *t)
{
    struct alarm *a = container_of(t, struct alarm, timer);

    a->late_ns = clock_ns() - a->due_ns;
    if (a->again-- > 0)
        timer_set(a->timers, t, clock_ns());
    pthread_mutex_lock(&seen.lock);
    seen.names[seen.n++ % array_size(seen.names)] = a->name;
    seen.held = true;
    pthread_cond_broadcast(&seen.changed);
    while (seen.hold)
        pthread_cond_wait(&seen.changed, &seen.lock);
    pthread_mutex_unlock(&seen.lock);
}

static void cancel_itself(struct timer *t)
{
    struct alarm *a = container_of(t, struct alarm, timer);

    timer_set(a->timers, t, NEVER);
    assert_true(timer_cancel(a->timers, t));
    record(t);
}

static void await(size_t n)
{
    pthread_mutex_lock(&seen.lock);
    while (seen.n < n)
        pthread_cond_wait(&seen.changed, &seen.lock);
    pthread_mutex_unlock(&seen.lock);
}

static void hold(bool on)
{
    pthread_mutex_lock(&seen.lock);
    seen.hold = on;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

static int start(void **state)
{
    seen.n = 0;
    seen.hold = seen.held = false;
    *state = timers_create();
    return *state ? 0 : -1;
}

static int stop(void **state)
{
    timers_destroy(*state);
    return 0;
}

static struct alarm *make_alarms(struct timers *ts, size_t n)
{
    struct alarm *a = calloc(n, sizeof(*a));

    assert_non_null(a);
    for (size_t i = 0; i < n; i++)
        a[i] = (struct alarm){.timer.fire = record, .timers = ts, .name = (int)i};
    return a;
}

static void they_fire_in_order_and_never_early(void **state)
{
    enum { N = 1000 };
    struct alarm *a = make_alarms(*state, N);
    int64_t begin, lead = 20 * MS;

    /* 7919 is prime to N: armed in a mixed order, a tenth of a millisecond apart; all before the first is due. */
    do {
        for (int i = 0; i < N; i++)
            timer_cancel(*state, &a[i].timer);
        seen.n = 0;
        begin = clock_ns() + lead;
        for (int i = 0; i < N; i++) {
            int k = (int)((long)i * 7919 % N);
            a[k].due_ns = begin + k * MS / 10;
            timer_set(*state, &a[k].timer, a[k].due_ns);
        }
        lead *= 4;
    } while (clock_ns() >= begin);
    await(N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(seen.names[i], i);
        assert_true(a[i].late_ns >= 0);
    }
    timer_cancel(*state, &a[0].timer);
    timers_destroy(*state);
    *state = NULL;
    free(a);
}

static void an_earlier_one_wakes_the_sleeper(void **state)
{
    struct alarm *a = make_alarms(*state, 2);

    timer_set(*state, &a[0].timer, NEVER);
    timer_set(*state, &a[1].timer, clock_ns() + MS);
    await(1);
    assert_int_equal(seen.names[0], 1);
    assert_true(timer_cancel(*state, &a[0].timer));
    timer_cancel(*state, &a[1].timer);
    free(a);
}

static void setting_again_moves_it(void **state)
{
    struct alarm *a = make_alarms(*state, 3);

    for (int i = 0; i < 3; i++)
        timer_set(*state, &a[i].timer, NEVER + i);
    timer_set(*state, &a[2].timer, clock_ns());
    await(1);
    timer_set(*state, &a[1].timer, clock_ns());
    await(2);
    assert_int_equal(seen.names[0], 2);
    assert_int_equal(seen.names[1], 1);
    for (int i = 0; i < 3; i++)
        timer_cancel(*state, &a[i].timer);
    assert_int_equal(seen.n, 2);
    free(a);
}

static void a_cancelled_one_does_not_fire(void **state)
{
    enum { N = 500 };
    struct alarm *a = make_alarms(*state, N);
    int64_t due = clock_ns() + 200 * MS;
    size_t fired = 0;

    for (int i = 0; i < N; i++)
        timer_set(*state, &a[i].timer, due + i);
    for (int i = 0; i < N; i += 2)
        fired += !timer_cancel(*state, &a[i].timer);
    assert_false(a[0].timer.armed);
    assert_false(timer_cancel(*state, &a[0].timer));
    await(N / 2 + fired);
    for (int i = 0; i < N; i++)
        timer_cancel(*state, &a[i].timer);
    assert_int_equal(seen.n, N / 2 + fired);
    free(a);
}

struct canceller {
    struct timers *timers;
    struct timer  *timer;
    _Atomic bool   begun, done;
    bool           armed;
};

static void *cancel_thread(void *arg)
{
    struct canceller *c = arg;

    atomic_store(&c->begun, true);
    c->armed = timer_cancel(c->timers, c->timer);
    atomic_store(&c->done, true);
    return NULL;
}

static void cancel_waits_for_a_fire_in_progress(void **state)
{
    struct alarm *a = make_alarms(*state, 1);
    struct canceller c = {.timers = *state, .timer = &a[0].timer};
    pthread_t t;

    hold(true);
    timer_set(*state, &a[0].timer, clock_ns());
    await(1);
    assert_int_equal(pthread_create(&t, NULL, cancel_thread, &c), 0);
    while (!atomic_load(&c.begun))
        ;
    assert_false(atomic_load(&c.done));
    hold(false);
    pthread_join(t, NULL);
    assert_true(atomic_load(&c.done));
    assert_false(c.armed);
    free(a);
}

static void cancel_also_stops_one_that_arms_itself_again(void **state)
{
    struct alarm *a = make_alarms(*state, 1);
    size_t n;

    a[0].again = 1 << 30;
    timer_set(*state, &a[0].timer, clock_ns());
    await(100);
    timer_cancel(*state, &a[0].timer);
    assert_false(a[0].timer.armed);
    n = seen.n;
    free(a);
    a = make_alarms(*state, 1);
    timer_set(*state, &a[0].timer, clock_ns());
    await(n + 1);
    timer_cancel(*state, &a[0].timer);
    assert_int_equal(seen.n, n + 1);
    free(a);
}

static void a_timer_may_cancel_itself_while_it_fires(void **state)
{
    struct alarm *a = make_alarms(*state, 1);

    a[0].timer.fire = cancel_itself;
    timer_set(*state, &a[0].timer, clock_ns());
    await(1);
    assert_false(timer_cancel(*state, &a[0].timer));
    free(a);
}

static void armed_timers_do_not_keep_the_end_waiting(void **state)
{
    struct alarm *a = make_alarms(*state, 1);

    timer_set(*state, &a[0].timer, NEVER);
    timers_destroy(*state);
    *state = NULL;
    assert_int_equal(seen.n, 0);
    free(a);
}

static void stopped_timers_may_still_be_cancelled(void **state)
{
    struct alarm *a = make_alarms(*state, 2);

    timer_set(*state, &a[0].timer, NEVER);
    timers_stop(*state);
    timer_set(*state, &a[1].timer, clock_ns());
    assert_true(timer_cancel(*state, &a[0].timer));
    assert_true(timer_cancel(*state, &a[1].timer));
    assert_int_equal(seen.n, 0);
    free(a);
}

struct storm {
    struct timers *timers;
    struct alarm  *alarms;
    unsigned       seed;
};

static void *storm_thread(void *arg)
{
    struct storm *s = arg;

    for (int i = 0; i < 5000; i++) {
        struct alarm *a = &s->alarms[rand_r(&s->seed) % 200];
        if (rand_r(&s->seed) % 3)
            timer_set(s->timers, &a->timer, clock_ns() + rand_r(&s->seed) % (2 * MS));
        else
            timer_cancel(s->timers, &a->timer);
    }
    return NULL;
}

static void many_threads_set_and_cancel_at_once(void **state)
{
    struct alarm *a = make_alarms(*state, 200);
    struct storm s[4];
    pthread_t t[4];

    for (unsigned i = 0; i < 4; i++) {
        s[i] = (struct storm){*state, a, i};
        assert_int_equal(pthread_create(&t[i], NULL, storm_thread, &s[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (size_t i = 0; i < 200; i++)
        timer_cancel(*state, &a[i].timer);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(they_fire_in_order_and_never_early, start, stop),
        cmocka_unit_test_setup_teardown(an_earlier_one_wakes_the_sleeper, start, stop),
        cmocka_unit_test_setup_teardown(setting_again_moves_it, start, stop),
        cmocka_unit_test_setup_teardown(a_cancelled_one_does_not_fire, start, stop),
        cmocka_unit_test_setup_teardown(cancel_waits_for_a_fire_in_progress, start, stop),
        cmocka_unit_test_setup_teardown(cancel_also_stops_one_that_arms_itself_again, start, stop),
        cmocka_unit_test_setup_teardown(a_timer_may_cancel_itself_while_it_fires, start, stop),
        cmocka_unit_test_setup_teardown(armed_timers_do_not_keep_the_end_waiting, start, stop),
        cmocka_unit_test_setup_teardown(stopped_timers_may_still_be_cancelled, start, stop),
        cmocka_unit_test_setup_teardown(many_threads_set_and_cancel_at_once, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

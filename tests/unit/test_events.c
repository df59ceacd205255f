// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "fs/base/cleanup.h"
#include "fs/manager/events.h"

static const char *member(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;

    return json_object_object_get_ex(o, key, &v) ? json_object_get_string(v) : NULL;
}

static void a_line_is_an_object_with_what_was_said(void **state)
{
    struct events *ev = events_create(4096);
    char buf[1024];
    uint64_t pos = 0;

    (void)state;
    events_add(ev, "ready", "0123456789abcdef", "al\"ice", NULL, "s\xff", "a\nb");
    size_t n = events_read(ev, &pos, buf, sizeof(buf) - 1);
    assert_int_equal(buf[n - 1], '\n');
    buf[n - 1] = '\0';
    assert_null(strchr(buf, '\n'));
    struct json_object *o = json_tokener_parse(buf);
    assert_non_null(o);
    assert_string_equal(member(o, "event"), "ready");
    assert_string_equal(member(o, "id"), "0123456789abcdef");
    assert_string_equal(member(o, "user"), "al\"ice");
    assert_null(member(o, "agent"));
    assert_string_equal(member(o, "session"), "s?"); /* not UTF-8: still a line that parses */
    assert_string_equal(member(o, "text"), "a\nb");
    assert_int_equal(strlen(member(o, "time")), strlen("2026-01-01T00:00:00.000Z"));
    json_object_put(o);
    assert_int_equal(pos, events_end(ev));
    assert_int_equal(events_read(ev, &pos, buf, sizeof(buf)), 0);
    events_destroy(ev);
}

static void whole_lines_are_read_and_long_ones_in_pieces(void **state)
{
    struct events *ev = events_create(4096);
    char buf[16];
    uint64_t pos = events_end(ev);

    (void)state;
    events_add_line(ev, "one");
    events_add_line(ev, "two");
    events_add_line(ev, "three is long");
    assert_int_equal(events_read(ev, &pos, buf, 9), 8);
    assert_memory_equal(buf, "one\ntwo\n", 8);
    assert_int_equal(events_read(ev, &pos, buf, 9), 9);
    assert_memory_equal(buf, "three is ", 9);
    assert_int_equal(events_read(ev, &pos, buf, 9), 5);
    assert_memory_equal(buf, "long\n", 5);
    assert_int_equal(events_read(ev, &pos, buf, 9), 0);
    events_destroy(ev);
}

static void a_reader_that_fell_behind_is_told_and_goes_on(void **state)
{
    struct events *ev = events_create(512);
    char line[64], buf[2048];
    uint64_t pos = 0;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(line, sizeof(line), "line %06d", i);
        events_add_line(ev, line);
    }
    size_t n = events_read(ev, &pos, buf, sizeof(buf) - 1);
    buf[n] = '\0';
    char *rest = strchr(buf, '\n');
    assert_non_null(strstr(buf, "\"event\":\"lost\""));
    assert_non_null(rest);
    int first = -1;
    assert_int_equal(sscanf(rest + 1, "line %d\n", &first), 1);
    assert_true(first > 900);
    assert_true(n < 1024);
    assert_string_equal(buf + n - strlen("line 000999\n"), "line 000999\n");
    events_destroy(ev);
}

static void a_line_that_does_not_fit_the_ring_is_left_out(void **state)
{
    struct events *ev = events_create(64);
    char line[100], buf[100];
    uint64_t pos = 0;

    (void)state;
    memset(line, 'x', sizeof(line));
    line[99] = '\0';
    events_add_line(ev, line);
    events_add_line(ev, "short");
    assert_int_equal(events_read(ev, &pos, buf, sizeof(buf)), 6);
    events_destroy(ev);
}

/* ── listeners ───────────────────────────────────────────────────────────────────────────── */

struct counting {
    struct events_listener l; /* first */
    atomic_int calls;
    struct events *again; /* adds one more line from within, once */
    struct events *leave; /* unlistens from within */
};

static void count(struct events_listener *l)
{
    struct counting *c = container_of(l, struct counting, l);

    atomic_fetch_add(&c->calls, 1);
    if (c->again) {
        struct events *ev = c->again;
        c->again = NULL;
        events_add_line(ev, "from within");
    }
    if (c->leave)
        events_unlisten(c->leave, l);
}

static void listeners_are_told_until_they_leave(void **state)
{
    struct events *ev = events_create(4096);
    struct counting a = { .l.more = count, .again = ev }, b = { .l.more = count, .leave = ev };

    (void)state;
    events_listen(ev, &a.l);
    events_listen(ev, &b.l);
    events_add_line(ev, "one");
    assert_int_equal(atomic_load(&a.calls), 2); /* and of its own line */
    assert_int_equal(atomic_load(&b.calls), 1);
    events_unlisten(ev, &a.l);
    events_add_line(ev, "two");
    events_poke(ev);
    assert_int_equal(atomic_load(&a.calls), 2);
    assert_int_equal(atomic_load(&b.calls), 1);
    events_destroy(ev);
}

#define ADDERS 4
#define LINES  2000

static void *add_many(void *arg)
{
    for (int i = 0; i < LINES; i++)
        events_add_line(arg, "a line");
    return NULL;
}

static void nothing_is_called_after_leaving_while_others_add(void **state)
{
    struct events *ev = events_create(1 << 20);
    pthread_t threads[ADDERS];
    char buf[4096];
    uint64_t pos = 0;
    size_t total = 0, n;

    (void)state;
    for (int i = 0; i < ADDERS; i++)
        pthread_create(&threads[i], NULL, add_many, ev);
    for (int i = 0; i < 500; i++) {
        struct counting *c = calloc(1, sizeof(*c)); /* a late call would be a use after free */
        c->l.more = count;
        events_listen(ev, &c->l);
        events_unlisten(ev, &c->l);
        free(c);
    }
    for (int i = 0; i < ADDERS; i++)
        pthread_join(threads[i], NULL);
    while ((n = events_read(ev, &pos, buf, sizeof(buf))))
        total += n;
    assert_int_equal(total, ADDERS * LINES * strlen("a line\n"));
    events_destroy(ev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_an_object_with_what_was_said),
        cmocka_unit_test(whole_lines_are_read_and_long_ones_in_pieces),
        cmocka_unit_test(a_reader_that_fell_behind_is_told_and_goes_on),
        cmocka_unit_test(a_line_that_does_not_fit_the_ring_is_left_out),
        cmocka_unit_test(listeners_are_told_until_they_leave),
        cmocka_unit_test(nothing_is_called_after_leaving_while_others_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

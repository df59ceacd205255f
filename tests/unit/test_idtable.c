// SPDX-License-Identifier: Apache-2.0
/* Ids of nodes and handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fs/idtable.h"

static void an_id_leads_to_its_object_until_it_is_given_back(void **state)
{
    struct idtable *t = idtable_create();
    int a, b;
    (void)state;
    uint64_t ia = idtable_add(t, &a), ib = idtable_add(t, &b);
    assert_true(ia > 1 && ib > 1 && ia != ib);
    assert_ptr_equal(idtable_get(t, ia), &a);
    idtable_remove(t, ia);
    idtable_remove(t, ia);
    assert_null(idtable_get(t, ia));
    assert_ptr_equal(idtable_get(t, ib), &b);
    idtable_destroy(t);
}

static void an_id_never_comes_back(void **state)
{
    struct idtable *t = idtable_create();
    int a;
    uint64_t first = idtable_add(t, &a), last = first;
    (void)state;
    for (int i = 0; i < 100000; i++) {
        idtable_remove(t, last);
        last = idtable_add(t, &a);
        assert_int_not_equal(last, first);
        assert_null(idtable_get(t, first));
    }
    idtable_destroy(t);
}

static void made_up_ids_lead_nowhere(void **state)
{
    struct idtable *t = idtable_create();
    int a;
    uint64_t id = idtable_add(t, &a);
    (void)state;
    static const uint64_t bad[] = {0, 1, 2, UINT64_MAX, UINT32_MAX, 1ull << 62, 1ull << 32};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_null(idtable_get(t, bad[i]));
    for (int bit = 0; bit < 64; bit++)
        assert_null(idtable_get(t, id ^ 1ull << bit));
    idtable_destroy(t);
}

static void count(void *object, void *arg)
{
    (void)object;
    ++*(size_t *)arg;
}

static void a_hundred_thousand_objects_have_each_an_id(void **state)
{
    enum { N = 100000 };
    struct idtable *t = idtable_create();
    uint64_t *ids = calloc(N, sizeof *ids);
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < N; i++)
        ids[i] = idtable_add(t, &ids[i]);
    for (size_t i = 0; i < N; i++)
        assert_ptr_equal(idtable_get(t, ids[i]), &ids[i]);
    for (size_t i = 0; i < N; i += 2)
        idtable_remove(t, ids[i]);
    idtable_each(t, count, &n);
    assert_int_equal(n, N / 2);
    free(ids);
    idtable_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_leads_to_its_object_until_it_is_given_back),
        cmocka_unit_test(an_id_never_comes_back),
        cmocka_unit_test(made_up_ids_lead_nowhere),
        cmocka_unit_test(a_hundred_thousand_objects_have_each_an_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/manager/identity.h"

/* Computed elsewhere: BLAKE2b, 8 bytes, over "per_agent/USER/AGENT" and so on. */
static const struct {
    const char *user, *agent, *session, *per_agent, *per_session, *per_user;
} own_ids[] = {
    { "alice", "coder", "s1", "051163a4d79ca941", "62da5243bf97668e", "c6ad59a0b19b5c20" },
    { "bob", "coder", "s1", "d1252950d191b043", "82c0fcfa62827c0d", "529bdb12d76f601f" },
    { "zoë", "助手", "会话", "e3700365e9b0c323", "b8f3620dc48ed97f", "e66676479b8fc0a8" },
    { "a", "b", "c", "6d08a0af1cea44fb", "5639883c5b45a0bb", "ed386dd9141fb212" },
    { "a@b.c", "x y", "z", "aa0bfff4ef541241", "0c7e5356851f549d", "8935d66990deab25" },
    { "a::b", "c", "d", "d7b4ec905a3f468d", "bead20d69bab11c8", "bffc78b683ae87df" },
    { "per_user", "per_agent", "x", "bc65286f62a51e10", "cd3972b08dfecaac", "27c87627c2cf981c" },
};

static void ids_are_the_published_function_of_the_names(void **state)
{
    char id[ID_DERIVED_DIGITS + 1];

    (void)state;
    for (size_t i = 0; i < array_size(own_ids); i++) {
        const char *u = own_ids[i].user, *a = own_ids[i].agent, *s = own_ids[i].session;
        identity_derive(ISOLATION_PER_AGENT, ID_SCHEME_WSMFS, u, a, s, id);
        assert_string_equal(id, own_ids[i].per_agent);
        identity_derive(ISOLATION_PER_SESSION, ID_SCHEME_WSMFS, u, a, s, id);
        assert_string_equal(id, own_ids[i].per_session);
        identity_derive(ISOLATION_PER_USER, ID_SCHEME_WSMFS, u, a, s, id);
        assert_string_equal(id, own_ids[i].per_user);
    }
}

/* The vectors of AgentScope 2.0.6, taken by running it. */
static const struct {
    const char *user, *agent, *per_agent, *per_user;
} peer_ids[] = {
    { "alice", "coder", "6ecd6692afe6f0d3", "982aa9b33217069a" },
    { "bob", "coder", "9f59291b9b79ec59", "883053c3e4594c5b" },
    { "", "coder", "d326e478090f7bec", "db411675917f437a" },
    { "zoë", "助手", "d9aefa1b260203c2", "d6a38a0b0334943b" },
    { "a::b", "c", "42ea9368dc124a88", "9a254790a3868b0b" },
    { "a", "b::c", "42ea9368dc124a88", "d1d8b5acd4a320b1" },
};

static void the_agentscope_scheme_gives_its_ids(void **state)
{
    char id[ID_DERIVED_DIGITS + 1], own[ID_DERIVED_DIGITS + 1];

    (void)state;
    for (size_t i = 0; i < array_size(peer_ids); i++) {
        identity_derive(ISOLATION_PER_AGENT, ID_SCHEME_AGENTSCOPE, peer_ids[i].user, peer_ids[i].agent, "s", id);
        assert_string_equal(id, peer_ids[i].per_agent);
        identity_derive(ISOLATION_PER_USER, ID_SCHEME_AGENTSCOPE, peer_ids[i].user, peer_ids[i].agent, "s", id);
        assert_string_equal(id, peer_ids[i].per_user);
    }
    identity_derive(ISOLATION_PER_SESSION, ID_SCHEME_AGENTSCOPE, "alice", "coder", "s1", id);
    identity_derive(ISOLATION_PER_SESSION, ID_SCHEME_WSMFS, "alice", "coder", "s1", own);
    assert_string_equal(id, own);
}

static void names_that_would_share_an_id_in_the_agentscope_scheme_are_found(void **state)
{
    static const struct {
        const char *user, *agent;
        bool        ambiguous;
    } cases[] = {
        { "alice", "coder", false }, { "a::b", "c", true }, { "a", "b::c", true },  { "a:", "b", true },
        { "a", ":b", true },         { "a:b", "c", false }, { "a", "b:c", false },  { "a", "b:", false },
        { ":a", "b", false },        { "::", "x", true },   { "x", "::", true },    { "a:b:c", "d:e:f", false },
    };

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        bool found = identity_ambiguous(ISOLATION_PER_AGENT, ID_SCHEME_AGENTSCOPE, cases[i].user, cases[i].agent);
        if (found != cases[i].ambiguous)
            fail_msg("%s / %s", cases[i].user, cases[i].agent);
        assert_false(identity_ambiguous(ISOLATION_PER_AGENT, ID_SCHEME_WSMFS, cases[i].user, cases[i].agent));
        assert_false(identity_ambiguous(ISOLATION_PER_USER, ID_SCHEME_AGENTSCOPE, cases[i].user, cases[i].agent));
        assert_false(identity_ambiguous(ISOLATION_PER_SESSION, ID_SCHEME_AGENTSCOPE, cases[i].user, cases[i].agent));
    }
}

/* ── many names ──────────────────────────────────────────────────────────────────────────── */

#define MANY 40000

struct tenant {
    char id[ID_DERIVED_DIGITS + 1];
    char key[128]; /* the names that count, joined by a byte that no name holds */
};

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct tenant *)a)->id, ((const struct tenant *)b)->id);
}

/* A short name out of pieces that look like separators, so that joined names come out equal as often
 * as can be if the joining is careless. */
static void random_name(unsigned *seed, char *out, size_t size)
{
    static const char *const pieces[] = { "a", "b", ":", "::", "-", "--", "_", "@", ".", "%2f", " ", "=",
                                          "per_agent", "per_user", "user", "é", "\\", "|", "~", "?" };
    do {
        out[0] = '\0';
        for (int n = 1 + rand_r(seed) % 4; n > 0; n--)
            strncat(out, pieces[(size_t)rand_r(seed) % array_size(pieces)], size - strlen(out) - 1);
    } while (!name_valid(out));
}

static void check_policy(enum isolation policy, enum id_scheme scheme)
{
    struct tenant *all = calloc(MANY, sizeof(*all));
    unsigned seed = 4711;
    size_t   n = 0;

    assert_non_null(all);
    while (n < MANY) {
        char u[40], a[40], s[40];
        random_name(&seed, u, sizeof(u));
        random_name(&seed, a, sizeof(a));
        random_name(&seed, s, sizeof(s));
        if (identity_ambiguous(policy, scheme, u, a))
            continue;
        identity_derive(policy, scheme, u, a, s, all[n].id);
        assert_int_equal(strlen(all[n].id), ID_DERIVED_DIGITS);
        snprintf(all[n].key, sizeof(all[n].key), "%s\001%s\001%s", u, policy == ISOLATION_PER_USER ? "" : a,
                 policy == ISOLATION_PER_SESSION ? s : "");
        n++;
    }
    qsort(all, MANY, sizeof(*all), by_id);
    size_t distinct = 1;
    for (size_t i = 1; i < MANY; i++) {
        bool same_id = strcmp(all[i].id, all[i - 1].id) == 0;
        distinct += !same_id;
        if (same_id)
            assert_string_equal(all[i].key, all[i - 1].key);
    }
    assert_true(distinct > 1000);
    free(all);
}

static void no_two_tenants_share_an_id(void **state)
{
    (void)state;
    check_policy(ISOLATION_PER_AGENT, ID_SCHEME_WSMFS);
    check_policy(ISOLATION_PER_SESSION, ID_SCHEME_WSMFS);
    check_policy(ISOLATION_PER_USER, ID_SCHEME_WSMFS);
    check_policy(ISOLATION_PER_AGENT, ID_SCHEME_AGENTSCOPE);
    check_policy(ISOLATION_PER_USER, ID_SCHEME_AGENTSCOPE);
}

/* ── ids that users write ────────────────────────────────────────────────────────────────── */

static void explicit_ids_are_judged(void **state)
{
    static const char *const good[] = { "a", "0", "team-1", "a--b", "0123456789abcdef",
                                        "abcdefghijklmnopqrstuvwxyz0123456789abcd" };
    static const char *const bad[] = { "", "-", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a/b", "..", "a\n",
                                       "abcdefghijklmnopqrstuvwxyz0123456789abcde", "--", "a\tb" };

    (void)state;
    for (size_t i = 0; i < array_size(good); i++)
        assert_true(identity_valid(good[i]));
    for (size_t i = 0; i < array_size(bad); i++)
        assert_false(identity_valid(bad[i]));
}

static void only_sixteen_hex_digits_look_derived(void **state)
{
    (void)state;
    assert_true(identity_looks_derived("0123456789abcdef"));
    assert_false(identity_looks_derived("0123456789abcde"));
    assert_false(identity_looks_derived("0123456789abcdef0"));
    assert_false(identity_looks_derived("0123456789abcdeg"));
    assert_false(identity_looks_derived("0123456789ABCDEF"));
    assert_false(identity_looks_derived("0123456789abcde-"));
}

static void minted_ids_are_valid_and_differ(void **state)
{
    char a[ID_MINTED_DIGITS + 1], b[ID_MINTED_DIGITS + 1];

    (void)state;
    assert_int_equal(identity_mint(a), 0);
    assert_int_equal(identity_mint(b), 0);
    assert_int_equal(strlen(a), ID_MINTED_DIGITS);
    assert_int_equal(strspn(a, "0123456789abcdef"), ID_MINTED_DIGITS);
    assert_true(identity_valid(a) && !identity_looks_derived(a));
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_the_published_function_of_the_names),
        cmocka_unit_test(the_agentscope_scheme_gives_its_ids),
        cmocka_unit_test(names_that_would_share_an_id_in_the_agentscope_scheme_are_found),
        cmocka_unit_test(no_two_tenants_share_an_id),
        cmocka_unit_test(explicit_ids_are_judged),
        cmocka_unit_test(only_sixteen_hex_digits_look_derived),
        cmocka_unit_test(minted_ids_are_valid_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

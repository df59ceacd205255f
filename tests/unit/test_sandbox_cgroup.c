// SPDX-License-Identifier: Apache-2.0
/* Control groups in trees of plain files: what is written where. That the kernel honours it is for
 * the system tests. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/local/cgroup.h"
#include "fs/base/cleanup.h"

/* ── the keys ────────────────────────────────────────────────────────────────────────────── */

static void assert_limits(const char *key, const char *value, struct sandbox_limits expected)
{
    struct sandbox_limits l = {0};
    struct err e = {0};

    assert_int_equal(sandbox_limit_parse(&l, key, value, &e), 0);
    assert_int_equal(l.memory_bytes, expected.memory_bytes);
    assert_int_equal(l.cpus_milli, expected.cpus_milli);
    assert_int_equal(l.pids, expected.pids);
}

static void good_values_are_read(void **state)
{
    (void)state;
    assert_limits("memory", "2G", (struct sandbox_limits){.memory_bytes = 2ull << 30});
    assert_limits("memory", "512M", (struct sandbox_limits){.memory_bytes = 512ull << 20});
    assert_limits("memory", "4194304", (struct sandbox_limits){.memory_bytes = 4ull << 20});
    assert_limits("cpus", "1.5", (struct sandbox_limits){.cpus_milli = 1500});
    assert_limits("cpus", "2", (struct sandbox_limits){.cpus_milli = 2000});
    assert_limits("cpus", "0.25", (struct sandbox_limits){.cpus_milli = 250});
    assert_limits("cpus", "0.125", (struct sandbox_limits){.cpus_milli = 125});
    assert_limits("pids", "256", (struct sandbox_limits){.pids = 256});
}

static void bad_values_are_refused_with_a_sentence_that_names_the_key(void **state)
{
    static const char *const pairs[][2] = {
        {"memory", ""}, {"memory", "x"}, {"memory", "-1"}, {"memory", "1M"}, {"memory", "0"}, {"memory", "2GB"},
        {"memory", "99999999999G"}, {"cpus", ""}, {"cpus", "0"}, {"cpus", "0.001"}, {"cpus", "1."}, {"cpus", ".5"},
        {"cpus", "1,5"}, {"cpus", "1.5x"}, {"cpus", "-1"}, {"cpus", "1e3"}, {"cpus", "999999"}, {"cpus", "1.2345"},
        {"pids", ""}, {"pids", "0"}, {"pids", "7"}, {"pids", "-5"}, {"pids", "10k"}, {"pids", "99999999"},
    };
    (void)state;
    for (size_t i = 0; i < array_size(pairs); i++) {
        struct sandbox_limits l = {0};
        struct err e = {0};
        assert_int_equal(sandbox_limit_parse(&l, pairs[i][0], pairs[i][1], &e), -EINVAL);
        assert_memory_equal(e.text, pairs[i][0], strlen(pairs[i][0]));
    }
}

static void another_key_is_not_ours(void **state)
{
    struct sandbox_limits l = {0};

    (void)state;
    assert_int_equal(sandbox_limit_parse(&l, "network", "none", NULL), -ENOENT);
}

/* ── a tree of plain files ───────────────────────────────────────────────────────────────── */

struct tree {
    char path[64];
};

static int make_tree(void **state)
{
    struct tree *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    strcpy(t->path, "/tmp/wsm-cgroup-XXXXXX");
    assert_non_null(mkdtemp(t->path));
    *state = t;
    return 0;
}

static int remove_tree(void **state)
{
    struct tree *t = *state;
    char line[128];

    snprintf(line, sizeof(line), "rm -rf %s", t->path);
    assert_int_equal(system(line), 0);
    free(t);
    return 0;
}

static char *path_in(const struct tree *t, const char *name)
{
    char *path;

    assert_true(asprintf(&path, "%s/%s", t->path, name) > 0);
    return path;
}

static void put(const struct tree *t, const char *name, const char *text)
{
    cleanup_free char *path = path_in(t, name);
    cleanup_file FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
}

static void make_dir(const struct tree *t, const char *name)
{
    cleanup_free char *path = path_in(t, name);

    assert_int_equal(mkdir(path, 0755), 0);
}

/* What the last write left: the kernel's files are no files, but these are, so a longer text before
 * shows through; hence each starts empty. */
static void assert_holds(const struct tree *t, const char *name, const char *expected)
{
    cleanup_free char *path = path_in(t, name);
    cleanup_file FILE *f = fopen(path, "r");
    char text[256] = "";

    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) <= sizeof(text));
    assert_string_equal(text, expected);
}

static struct cgroups *find(const struct tree *t)
{
    cleanup_free char *mounts = path_in(t, "mountinfo");
    cleanup_free char *own = path_in(t, "own");
    struct cgroups *cs = NULL;
    struct err e = {0};

    assert_int_equal(cgroups_create(mounts, own, &cs, &e), 0);
    return cs;
}

/* A machine with v2 alone, in a unit whose daemon has a subgroup. */
static void make_v2(const struct tree *t)
{
    cleanup_free char *line = NULL;

    assert_true(asprintf(&line, "20 1 0:1 / / rw - ext4 /dev/x rw\n30 20 0:28 / %s/v2 rw,nosuid - cgroup2 cgroup2 rw\n",
                         t->path) > 0);
    put(t, "mountinfo", line);
    put(t, "own", "0::/unit/daemon\n");
    make_dir(t, "v2");
    make_dir(t, "v2/unit");
    make_dir(t, "v2/unit/daemon");
    put(t, "v2/unit/cgroup.controllers", "cpuset cpu io memory pids\n");
    put(t, "v2/unit/cgroup.subtree_control", "");
}

static void make_v2_group(const struct tree *t)
{
    static const char *const files[] = {"memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs"};

    make_dir(t, "v2/unit/w");
    for (size_t i = 0; i < array_size(files); i++) {
        char name[64];
        snprintf(name, sizeof(name), "v2/unit/w/%s", files[i]);
        put(t, name, "");
    }
}

static const struct sandbox_limits some = {.memory_bytes = 64ull << 20, .cpus_milli = 1500, .pids = 256};

static void limits_are_written_as_v2_wants_them(void **state)
{
    const struct tree *t = *state;
    struct cgroup *c = NULL;
    struct err e = {0};

    make_v2(t);
    make_v2_group(t);
    struct cgroups *cs = find(t);
    assert_int_equal(cgroup_create(cs, "w", &some, &c, &e), 0);
    assert_holds(t, "v2/unit/w/memory.max", "67108864");
    assert_holds(t, "v2/unit/w/memory.swap.max", "0");
    assert_holds(t, "v2/unit/w/cpu.max", "150000 100000");
    assert_holds(t, "v2/unit/w/pids.max", "256");
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

static void what_is_not_limited_is_written_as_unlimited(void **state)
{
    const struct tree *t = *state;
    const struct sandbox_limits pids = {.pids = 8};
    struct cgroup *c = NULL;
    struct err e = {0};

    make_v2(t);
    make_v2_group(t);
    struct cgroups *cs = find(t);
    assert_int_equal(cgroup_create(cs, "w", &pids, &c, &e), 0);
    assert_holds(t, "v2/unit/w/memory.max", "max");
    assert_holds(t, "v2/unit/w/pids.max", "8");
    assert_holds(t, "v2/unit/cgroup.subtree_control", "+pids");
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

static void a_process_joins_by_a_descriptor(void **state)
{
    const struct tree *t = *state;
    int fds[CGROUP_PARTS_MAX];
    struct cgroup *c = NULL;
    struct err e = {0};

    make_v2(t);
    make_v2_group(t);
    struct cgroups *cs = find(t);
    assert_int_equal(cgroup_create(cs, "w", &some, &c, &e), 0);
    assert_int_equal(cgroup_join_fds(c, fds, &e), 1);
    assert_int_equal(write(fds[0], "0", 1), 1);
    close(fds[0]);
    assert_holds(t, "v2/unit/w/cgroup.procs", "0");
    assert_int_equal(cgroup_add(c, 4711, &e), 0);
    assert_holds(t, "v2/unit/w/cgroup.procs", "4711");
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

static void a_controller_that_is_not_there_is_named_by_its_key(void **state)
{
    const struct tree *t = *state;
    struct cgroup *c = NULL;
    struct err e = {0};

    make_v2(t);
    put(t, "v2/unit/cgroup.controllers", "memory\n");
    struct cgroups *cs = find(t);
    assert_int_equal(cgroup_create(cs, "w", &some, &c, &e), -EOPNOTSUPP);
    assert_non_null(strstr(e.text, "cpus, pids cannot be limited"));
    assert_int_equal(cgroups_check(cs, &some, &e), -EOPNOTSUPP);
    assert_non_null(strstr(e.text, "cpus, pids cannot be honoured"));
    cgroups_destroy(cs);
}

static void a_machine_without_control_groups_honours_no_limit_and_all_without(void **state)
{
    const struct tree *t = *state;
    const struct sandbox_limits none = {0};
    struct cgroup *c = NULL;
    int fds[CGROUP_PARTS_MAX];
    struct err e = {0};

    put(t, "mountinfo", "20 1 0:1 / / rw - ext4 /dev/x rw\n");
    put(t, "own", "");
    struct cgroups *cs = find(t);
    assert_int_equal(cgroups_check(cs, &none, &e), 0);
    assert_int_equal(cgroups_check(cs, &some, &e), -EOPNOTSUPP);
    assert_non_null(strstr(e.text, "memory, cpus, pids cannot be honoured"));
    assert_int_equal(cgroup_create(cs, "w", &none, &c, &e), 0);
    assert_int_equal(cgroup_join_fds(c, fds, &e), 0);
    assert_int_equal(cgroup_kill(c, 0, &e), 0);
    assert_int_equal(cgroup_remove(c, &e), 0);
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

/* ── v1 ──────────────────────────────────────────────────────────────────────────────────── */

static void put_v1(const struct tree *t, const char *memory_path)
{
    cleanup_free char *mounts = NULL, *own = NULL;

    assert_true(asprintf(&mounts,
                         "31 23 0:28 / %s rw shared:1 - tmpfs tmpfs rw,mode=755\n"
                         "32 31 0:29 / %s/cpu\\040x rw shared:2 - cgroup cgroup rw,cpu,cpuacct\n"
                         "33 31 0:30 /docker/abc %s/memory rw - cgroup cgroup rw,memory\n"
                         "34 31 0:31 / %s/freezer rw - cgroup cgroup rw,freezer\n",
                         t->path, t->path, t->path, t->path) > 0);
    put(t, "mountinfo", mounts);
    assert_true(asprintf(&own, "5:freezer:/\n4:memory:%s\n2:cpu,cpuacct:/a:b\n", memory_path) > 0);
    put(t, "own", own);
}

static void make_v1(const struct tree *t)
{
    static const char *const dirs[] = {"cpu x", "cpu x/a:b", "cpu x/a:b/w", "memory", "memory/w"};
    static const char *const files[] = {
        "cpu x/a:b/w/cpu.cfs_period_us", "cpu x/a:b/w/cpu.cfs_quota_us", "memory/w/memory.limit_in_bytes",
    };

    for (size_t i = 0; i < array_size(dirs); i++)
        make_dir(t, dirs[i]);
    for (size_t i = 0; i < array_size(files); i++)
        put(t, files[i], "");
}

static void limits_are_written_as_v1_wants_them_below_our_own_groups(void **state)
{
    const struct tree *t = *state;
    const struct sandbox_limits l = {.memory_bytes = 64ull << 20, .cpus_milli = 250};
    struct cgroup *c = NULL;
    struct err e = {0};

    put_v1(t, "/docker/abc");
    make_v1(t);
    struct cgroups *cs = find(t);
    assert_int_equal(cgroup_create(cs, "w", &l, &c, &e), 0);
    assert_holds(t, "memory/w/memory.limit_in_bytes", "67108864");
    assert_holds(t, "cpu x/a:b/w/cpu.cfs_quota_us", "25000");
    assert_holds(t, "cpu x/a:b/w/cpu.cfs_period_us", "100000");
    cgroup_destroy(c);
    cgroups_destroy(cs);
}

static void a_group_that_no_mount_shows_is_not_to_be_had(void **state)
{
    static const char *const paths[] = {"/docker/other", "/", "/docker/abcd", "/docker/abc/../x"};
    const struct tree *t = *state;
    const struct sandbox_limits l = {.memory_bytes = 64ull << 20};

    make_v1(t);
    for (size_t i = 0; i < array_size(paths); i++) {
        struct cgroup *c = NULL;
        struct err e = {0};
        put_v1(t, paths[i]);
        struct cgroups *cs = find(t);
        assert_int_equal(cgroup_create(cs, "w", &l, &c, &e), -EOPNOTSUPP);
        cgroups_destroy(cs);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, make_tree, remove_tree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_values_are_read),
        cmocka_unit_test(bad_values_are_refused_with_a_sentence_that_names_the_key),
        cmocka_unit_test(another_key_is_not_ours),
        T(limits_are_written_as_v2_wants_them),
        T(what_is_not_limited_is_written_as_unlimited),
        T(a_process_joins_by_a_descriptor),
        T(a_controller_that_is_not_there_is_named_by_its_key),
        T(a_machine_without_control_groups_honours_no_limit_and_all_without),
        T(limits_are_written_as_v1_wants_them_below_our_own_groups),
        T(a_group_that_no_mount_shows_is_not_to_be_had),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

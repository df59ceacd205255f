// SPDX-License-Identifier: Apache-2.0
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

#include "backends/local/shown.h"
#include "backends/local/shown_bind.h"

/* A host's root directory in small. */
struct host {
    char path[64];
    int  fd;
};

static void make_dir(const struct host *h, const char *path)
{
    assert_int_equal(mkdirat(h->fd, path, 0755), 0);
}

static void make_file(const struct host *h, const char *path)
{
    int fd = openat(h->fd, path, O_WRONLY | O_CREAT, 0644);

    assert_true(fd >= 0);
    close(fd);
}

static void make_link(const struct host *h, const char *path, const char *target)
{
    assert_int_equal(symlinkat(target, h->fd, path), 0);
}

static int make_host(void **state)
{
    static const char *const dirs[] = {"usr", "usr/bin", "usr/lib", "usr/share", "usr/local", "etc", "etc/ssl",
                                       "etc/ssl/certs", "etc/ssl/private", "etc/alternatives", "etc/python3.11",
                                       "home", "root", "run", "lib64", "data", "data/sub"};
    static const char *const files[] = {"etc/passwd", "etc/shadow", "etc/hosts", "usr/lib/os-release",
                                        "run/resolv.conf", "etc/ld.so.cache", "usr/share/UTC"};
    struct host *h = calloc(1, sizeof(*h));

    assert_non_null(h);
    strcpy(h->path, "/tmp/wsm-shown-XXXXXX");
    assert_non_null(mkdtemp(h->path));
    h->fd = open(h->path, O_PATH | O_DIRECTORY);
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        make_dir(h, dirs[i]);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        make_file(h, files[i]);
    make_link(h, "bin", "usr/bin");
    make_link(h, "sbin", "usr/sbin"); /* leads nowhere */
    make_link(h, "lib", "usr/lib");
    make_link(h, "etc/os-release", "../usr/lib/os-release");
    make_link(h, "etc/resolv.conf", "../run/resolv.conf");
    make_link(h, "etc/localtime", "../usr/share/UTC");
    *state = h;
    return 0;
}

static int remove_host(void **state)
{
    struct host *h = *state;
    char line[128];

    close(h->fd);
    snprintf(line, sizeof(line), "rm -rf %s", h->path);
    assert_int_equal(system(line), 0);
    free(h);
    return 0;
}

static struct shown *create(const struct host *h)
{
    struct shown *s = NULL;
    struct err e = {0};

    assert_int_equal(shown_create(h->fd, NULL, 0, NULL, &s, &e), 0);
    return s;
}

static struct shown *create_with(const struct host *h, const char *inside, bool writable)
{
    char host[128];
    struct shown_bind b = {.host = host, .inside = (char *)(uintptr_t)inside, .writable = writable};
    struct shown *s = NULL;
    struct err e = {0};

    snprintf(host, sizeof(host), "%s/data", h->path);
    assert_int_equal(shown_create(h->fd, &b, 1, NULL, &s, &e), 0);
    return s;
}

static enum shown_kind kind_of(const struct shown *s, const char *path)
{
    struct shown_place p;

    shown_look(s, path, &p);
    return p.kind;
}

static void assert_tree(const struct shown *s, const char *path, const char *host)
{
    struct shown_place p;

    shown_look(s, path, &p);
    assert_int_equal(p.kind, SHOWN_TREE);
    assert_string_equal(p.host, host);
}

static void assert_link(const struct shown *s, const char *path, const char *target)
{
    struct shown_place p;

    shown_look(s, path, &p);
    assert_int_equal(p.kind, SHOWN_LINK);
    assert_string_equal(p.target, target);
}

/* ── the table ───────────────────────────────────────────────────────────────────────────── */

static void usr_is_shown_with_all_below_it(void **state)
{
    struct shown *s = create(*state);

    assert_tree(s, "/usr", "/usr");
    assert_tree(s, "/usr/bin/env", "/usr/bin/env");
    shown_destroy(s);
}

static void the_hosts_links_stay_links(void **state)
{
    struct shown *s = create(*state);

    assert_link(s, "/bin", "usr/bin");
    assert_link(s, "/lib", "usr/lib");
    assert_link(s, "/etc/os-release", "../usr/lib/os-release");
    assert_link(s, "/etc/localtime", "../usr/share/UTC");
    assert_int_equal(kind_of(s, "/bin/env"), SHOWN_NOTHING);
    shown_destroy(s);
}

static void a_directory_where_other_hosts_have_a_link_is_a_tree(void **state)
{
    struct shown *s = create(*state);

    assert_tree(s, "/lib64/x", "/lib64/x");
    shown_destroy(s);
}

static void a_link_that_leads_out_of_what_is_shown_is_the_file_it_leads_to(void **state)
{
    struct shown *s = create(*state);

    assert_tree(s, "/etc/resolv.conf", "/etc/resolv.conf");
    shown_destroy(s);
}

static void what_the_host_has_not_is_left_out(void **state)
{
    struct shown *s = create(*state);

    assert_int_equal(kind_of(s, "/sbin"), SHOWN_NOTHING);
    assert_int_equal(kind_of(s, "/libx32"), SHOWN_NOTHING);
    assert_int_equal(kind_of(s, "/etc/timezone"), SHOWN_NOTHING);
    shown_destroy(s);
}

static void nothing_else_of_the_host_has_a_name(void **state)
{
    static const char *const paths[] = {"/etc/shadow", "/etc/ssl/private", "/etc/ssl/private/key", "/home", "/root",
                                        "/run", "/run/resolv.conf", "/data", "/tmp", "/proc", "/workspace", "/usrx",
                                        "/us", "/etc/passwd-"};
    struct shown *s = create(*state);

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(kind_of(s, paths[i]), SHOWN_NOTHING);
    shown_destroy(s);
}

static void a_directory_exists_because_something_below_it_is_shown(void **state)
{
    struct shown *s = create(*state);

    assert_int_equal(kind_of(s, "/"), SHOWN_ABOVE);
    assert_int_equal(kind_of(s, "/etc"), SHOWN_ABOVE);
    assert_int_equal(kind_of(s, "/etc/ssl"), SHOWN_ABOVE);
    shown_destroy(s);
}

static void names_with_versions_are_found(void **state)
{
    struct shown *s = create(*state);

    assert_tree(s, "/etc/python3.11", "/etc/python3.11");
    shown_destroy(s);
}

static void what_is_no_plain_path_is_nothing(void **state)
{
    static const char *const paths[] = {"", "usr", "/usr/", "//usr", "/usr/../etc/shadow", "/usr/./bin", "/usr//bin",
                                        "/.", "/..", "/usr/bin/.."};
    struct shown *s = create(*state);

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(kind_of(s, paths[i]), SHOWN_NOTHING);
    shown_destroy(s);
}

static void parents_come_before_what_lies_in_them(void **state)
{
    struct shown *s = create_with(*state, "/usr/local", false);
    size_t n;
    const struct shown_entry *e = shown_entries(s, &n);

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_false(strcmp(e[j].inside, e[i].inside) != 0 && shown_lies_in(e[j].inside, e[i].inside));
    shown_destroy(s);
}

/* ── children ────────────────────────────────────────────────────────────────────────────── */

struct names {
    char text[1024];
};

static void note(const char *name, enum shown_kind kind, void *arg)
{
    struct names *n = arg;
    size_t len = strlen(n->text);

    snprintf(n->text + len, sizeof(n->text) - len, "%s:%d ", name, (int)kind);
}

static void assert_children(const struct shown *s, const char *path, const char *expected)
{
    struct names n = {0};

    shown_children(s, path, note, &n);
    assert_string_equal(n.text, expected);
}

static void the_children_of_a_directory_above_are_what_the_table_says(void **state)
{
    struct shown *s = create(*state);

    assert_children(s, "/", "bin:3 etc:1 lib:3 lib64:2 usr:2 ");
    assert_children(s, "/etc/ssl", "certs:2 ");
    assert_children(s, "/usr", "");
    assert_children(s, "/home", "");
    assert_children(s, "/etc/", "");
    shown_destroy(s);
}

static void the_children_of_a_tree_are_those_bound_over_it(void **state)
{
    struct shown *s = create_with(*state, "/usr/local", false);

    assert_children(s, "/usr", "local:2 ");
    shown_destroy(s);
}

static void a_name_is_a_child_once(void **state)
{
    struct shown *s = create_with(*state, "/etc/ssl/extra", false);

    assert_children(s, "/etc/ssl", "certs:2 extra:2 ");
    assert_children(s, "/", "bin:3 etc:1 lib:3 lib64:2 usr:2 ");
    shown_destroy(s);
}

/* ── bind = ──────────────────────────────────────────────────────────────────────────────── */

static void assert_bind(const char *text, const char *host, const char *inside, bool writable)
{
    struct shown_bind b;
    struct err e = {0};

    assert_int_equal(shown_bind_parse(text, &b, &e), 0);
    assert_string_equal(b.host, host);
    assert_string_equal(b.inside, inside);
    assert_int_equal(b.writable, writable);
    shown_bind_finish(&b);
}

static void a_bind_is_read_only_and_has_its_own_name_unless_said(void **state)
{
    (void)state;
    assert_bind("/data", "/data", "/data", false);
    assert_bind("/data:ro", "/data", "/data", false);
    assert_bind("/data:rw", "/data", "/data", true);
    assert_bind("/data:/opt/x", "/data", "/opt/x", false);
    assert_bind("/data:/opt/x:rw", "/data", "/opt/x", true);
    assert_bind("/rw:/rw:rw", "/rw", "/rw", true);
    assert_bind("/-x:/tmp/-x", "/-x", "/tmp/-x", false);
    assert_bind("/a b:/usr/local/c", "/a b", "/usr/local/c", false);
}

static void a_malformed_bind_is_refused_with_a_sentence(void **state)
{
    static const char *const texts[] = {"", "data", "/data:opt", "/data/../x", "/data//x", "/data/", "/data:/x/", ":",
                                        ":/x", "/data:", "/data:/x:/y", "/data:/x:rx", "/data:/x:ro:rw", "/d/."};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct shown_bind b;
        struct err e = {0};
        assert_int_equal(shown_bind_parse(texts[i], &b, &e), -EINVAL);
        assert_non_null(strstr(e.text, "bind: "));
        assert_null(b.host);
    }
}

static void the_sandboxs_own_places_cannot_be_bound_over(void **state)
{
    static const char *const texts[] = {"/x:/", "/x:/proc", "/x:/proc/sys", "/x:/dev", "/x:/dev/null", "/x:/workspace",
                                        "/x:/workspace/y", "/x:/usr", "/x:/etc", "/x:/tmp", "/x:/run", "/x:/run/wsm",
                                        "/x:/run/wsm/wsm-guest", "/x:/bin", "/x:/lib64", "/", "/x:/var/tmp/y"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct shown_bind b;
        struct err e = {0};
        assert_int_equal(shown_bind_parse(texts[i], &b, &e), -EINVAL);
    }
}

static void a_bound_path_is_shown_with_its_hosts_path(void **state)
{
    const struct host *h = *state;
    struct shown *s = create_with(h, "/opt/deep", true);
    char host[128];
    struct shown_place p;

    snprintf(host, sizeof(host), "%s/data/sub/x", h->path);
    assert_tree(s, "/opt/deep/sub/x", host);
    shown_look(s, "/opt/deep", &p);
    assert_true(p.writable);
    assert_int_equal(kind_of(s, "/opt"), SHOWN_ABOVE);
    shown_destroy(s);
}

static void a_bind_takes_the_place_of_a_file_of_etc(void **state)
{
    const struct host *h = *state;
    struct shown *s = create_with(h, "/etc/hosts", false);
    char host[128];

    snprintf(host, sizeof(host), "%s/data", h->path);
    assert_tree(s, "/etc/hosts", host);
    shown_destroy(s);
}

static void assert_bind_refused(const struct host *h, const char *path, const char *inside, const char *secret,
                                int code, const char *word)
{
    const char *secrets[] = {secret, NULL};
    struct shown_bind b = {.host = (char *)(uintptr_t)path, .inside = (char *)(uintptr_t)inside};
    struct shown *s = NULL;
    struct err e = {0};

    assert_int_equal(shown_create(h->fd, &b, 1, secret ? secrets : NULL, &s, &e), code);
    assert_non_null(strstr(e.text, word));
    assert_null(s);
}

static void a_bind_that_cannot_be_is_refused_by_name(void **state)
{
    const struct host *h = *state;

    assert_bind_refused(h, "/no/where", "/x", NULL, -ENOENT, "/no/where");
    assert_bind_refused(h, h->path, "/bin/x", NULL, -EINVAL, "link");
    assert_bind_refused(h, h->path, "/usr/no-such-name-here", NULL, -EINVAL, "/usr/no-such-name-here");
}

static void a_bind_shows_no_secret_directory_nor_a_part_of_one(void **state)
{
    const struct host *h = *state;
    char data[128], sub[128], link[128];

    snprintf(data, sizeof(data), "%s/data", h->path);
    snprintf(sub, sizeof(sub), "%s/data/sub", h->path);
    snprintf(link, sizeof(link), "%s/link", h->path);
    assert_int_equal(symlink(data, link), 0);
    assert_bind_refused(h, data, "/x", data, -EINVAL, "every job");
    assert_bind_refused(h, data, "/x", sub, -EINVAL, "every job");
    assert_bind_refused(h, sub, "/x", data, -EINVAL, "every job");
    assert_bind_refused(h, link, "/x", sub, -EINVAL, "every job");
    assert_bind_refused(h, sub, "/x", link, -EINVAL, "every job");
}

static void a_secret_directory_in_usr_is_refused(void **state)
{
    const struct host *h = *state;
    const char *secrets[] = {"/usr/nowhere/base", NULL};
    struct shown *s = NULL;
    struct err e = {0};

    assert_int_equal(shown_create(h->fd, NULL, 0, secrets, &s, &e), -EINVAL);
    assert_non_null(strstr(e.text, "/usr/nowhere/base lies in /usr"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, make_host, remove_host)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(usr_is_shown_with_all_below_it),
        T(the_hosts_links_stay_links),
        T(a_directory_where_other_hosts_have_a_link_is_a_tree),
        T(a_link_that_leads_out_of_what_is_shown_is_the_file_it_leads_to),
        T(what_the_host_has_not_is_left_out),
        T(nothing_else_of_the_host_has_a_name),
        T(a_directory_exists_because_something_below_it_is_shown),
        T(names_with_versions_are_found),
        T(what_is_no_plain_path_is_nothing),
        T(parents_come_before_what_lies_in_them),
        T(the_children_of_a_directory_above_are_what_the_table_says),
        T(the_children_of_a_tree_are_those_bound_over_it),
        T(a_name_is_a_child_once),
        T(a_bound_path_is_shown_with_its_hosts_path),
        T(a_bind_takes_the_place_of_a_file_of_etc),
        T(a_bind_that_cannot_be_is_refused_by_name),
        T(a_bind_shows_no_secret_directory_nor_a_part_of_one),
        T(a_secret_directory_in_usr_is_refused),
        cmocka_unit_test(a_bind_is_read_only_and_has_its_own_name_unless_said),
        cmocka_unit_test(a_malformed_bind_is_refused_with_a_sentence),
        cmocka_unit_test(the_sandboxs_own_places_cannot_be_bound_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

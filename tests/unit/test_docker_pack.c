// SPDX-License-Identifier: Apache-2.0
/* What is sent for a build, and when two directories count as the same. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>
#include <cmocka.h>

#include "backends/docker/ignore.h"
#include "backends/docker/pack.h"
#include "fs/base/cleanup.h"

static char dir[64];

static char *path_of(const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const char *text)
{
    char *path = path_of(name);

    for (char *slash = strchr(path + strlen(dir) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
    cleanup_file FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/wsmfs-pack-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    put("Dockerfile", "FROM scratch\n");
    put("a/b", "text");
    return 0;
}

static int tear_down(void **state)
{
    cleanup_free char *command = NULL;

    (void)state;
    if (asprintf(&command, "rm -rf '%s'", dir) < 0)
        return -1;
    return system(command);
}

/* The whole stream; its length. */
static size_t stream(const char *hash, char *buf, size_t room, char out[PACK_HASH_SIZE], int *code)
{
    struct pack *p;
    struct err e = { 0 };
    size_t size = 0;
    ssize_t n;

    assert_int_equal(pack_open(dir, hash, &p, &e), 0);
    while ((n = pack_read(p, buf + size, room - size < 777 ? room - size : 777, &e)) > 0)
        size += (size_t)n;
    *code = (int)n;
    snprintf(out, PACK_HASH_SIZE, "%s", pack_hash(p));
    pack_close(p);
    return size;
}

static const char *hash_now(void)
{
    static char hashes[2][PACK_HASH_SIZE], buf[1 << 20];
    static int which;
    int code;

    which = !which;
    stream(NULL, buf, sizeof(buf), hashes[which], &code);
    assert_int_equal(code, 0);
    assert_int_equal(strlen(hashes[which]), 64);
    return hashes[which];
}

/* The names of the stream, each with ":" behind it. */
static const char *names_now(void)
{
    static char buf[1 << 20], names[4096];
    struct archive *a = archive_read_new();
    struct archive_entry *h;
    char hash[PACK_HASH_SIZE];
    int code;
    size_t n = stream(NULL, buf, sizeof(buf), hash, &code);

    *names = '\0';
    archive_read_support_format_tar(a);
    assert_int_equal(archive_read_open_memory(a, buf, n), ARCHIVE_OK);
    while (archive_read_next_header(a, &h) == ARCHIVE_OK) {
        strcat(names, archive_entry_pathname(h));
        strcat(names, ":");
        assert_int_equal(archive_entry_uid(h), 0);
    }
    archive_read_free(a);
    return names;
}

/* ── the hash ────────────────────────────────────────────────────────────────────────────── */

static void test_the_same_content_has_the_same_hash(void **state)
{
    const struct timeval past[2] = { { 1000000, 0 }, { 1000000, 0 } };
    const char *before = hash_now();

    (void)state;
    assert_int_equal(utimes(path_of("a/b"), past), 0);
    assert_int_equal(unlink(path_of("Dockerfile")), 0); /* it is now the last in the directory */
    put("Dockerfile", "FROM scratch\n");
    if (geteuid() == 0)
        assert_int_equal(chown(path_of("a/b"), 1, 1), 0);
    assert_string_equal(hash_now(), before);
}

static void test_names_modes_targets_and_bytes_change_it(void **state)
{
    const char *before = hash_now();

    (void)state;
    put("a/b", "texT");
    assert_string_not_equal(hash_now(), before);
    put("a/b", "text");
    assert_string_equal(hash_now(), before);
    chmod(path_of("a/b"), 0755);
    assert_string_not_equal(hash_now(), before);
    chmod(path_of("a/b"), 0644);
    assert_int_equal(symlink("one", path_of("link")), 0);
    before = hash_now();
    unlink(path_of("link"));
    assert_int_equal(symlink("two", path_of("link")), 0);
    assert_string_not_equal(hash_now(), before);
    unlink(path_of("link"));
    before = hash_now();
    assert_int_equal(mkdir(path_of("empty"), 0755), 0);
    assert_string_not_equal(hash_now(), before);
}

static void test_a_stream_of_another_hash_has_no_end(void **state)
{
    static char buf[1 << 20];
    char hash[PACK_HASH_SIZE], wanted[PACK_HASH_SIZE];
    const char *good = hash_now();
    size_t whole;
    int code;

    (void)state;
    snprintf(wanted, sizeof(wanted), "%.12s", good);
    whole = stream(wanted, buf, sizeof(buf), hash, &code);
    assert_int_equal(code, 0);
    put("a/b", "texT");
    assert_true(whole - stream(wanted, buf, sizeof(buf), hash, &code) >= 1024); /* the two blocks of its end */
    assert_int_equal(code, -EAGAIN);
}

static void test_any_name_and_kind_of_file(void **state)
{
    char longest[256] = "", name[600];

    (void)state;
    memset(longest, 'x', 255);
    snprintf(name, sizeof(name), "deep/%.200s/%s", longest, longest);
    put(name, "1");
    put("\xff\xfe not UTF-8", "2");
    put("\xc3\xa4", "3");
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(symlink("/nowhere", path_of("link")), 0);
    assert_non_null(strstr(names_now(), longest));
    assert_non_null(strstr(names_now(), ":\xff\xfe not UTF-8:"));
    assert_non_null(strstr(names_now(), ":\xc3\xa4:"));
    assert_non_null(strstr(names_now(), ":link:"));
    assert_null(strstr(names_now(), "fifo"));
}

static void test_what_is_no_directory_of_a_build_is_refused(void **state)
{
    struct pack *p;
    struct err e = { 0 };

    (void)state;
    unlink(path_of("Dockerfile"));
    assert_int_equal(pack_open(dir, NULL, &p, &e), -ENXIO);
    assert_non_null(strstr(e.text, "Dockerfile"));
    assert_int_equal(pack_open("/nowhere/at/all", NULL, &p, &e), -ENXIO);
    assert_non_null(strstr(e.text, "/nowhere/at/all"));
}

/* ── .dockerignore ───────────────────────────────────────────────────────────────────────── */

static void test_what_is_left_out_does_not_count(void **state)
{
    (void)state;
    put(".dockerignore", "secret\n**/*.log\nDockerfile\n");
    assert_string_equal(names_now(), ".dockerignore:Dockerfile:a/:a/b:");
    put("secret/key", "x");
    put("a/x.log", "x");
    assert_string_equal(names_now(), ".dockerignore:Dockerfile:a/:a/b:");
    put(".dockerignore", "*\n!a/b\n");
    assert_string_equal(names_now(), ".dockerignore:Dockerfile:a/b:");
}

static void test_patterns(void **state)
{
    static const struct {
        const char *rules, *path;
        bool out;
    } cases[] = {
        { "a", "a", true }, { "a", "a/b/c", true }, { "a", "b/a", false }, { "a", "ab", false },
        { "/a", "a", true }, { "a/", "a", true }, { "./a//b", "a/b", true }, { "a/b", "a", false },
        { "*.c", "x.c", true }, { "*.c", "a/x.c", false }, { "*/*.c", "a/x.c", true }, { "?", "a", true },
        { "?", "ab", false }, { "[ab]", "b", true }, { "[^ab]", "b", false }, { "*", ".hidden", true },
        { "**", "a", true }, { "**", "a/b", true }, { "**/x", "x", true }, { "**/x", "a/b/x", true },
        { "a/**", "a", false }, { "a/**", "a/b/c", true }, { "a/**/z", "a/z", true }, { "a/**/z", "a/b/c/z", true },
        { "a/**/z", "b/z", false }, { "**/a/**/b", "x/a/y/b/c", true }, { "\\*", "*", true }, { "\\*", "a", false },
        { "# a\n#a", "#a", false }, { "  a  \n", "a", true }, { "\n\n", "a", false }, { "a\r\nb\r\n", "b", true },
        { "\xef\xbb\xbf" "a", "a", true }, { "a b", "a b", true }, { "!", "a", false }, { ".", "a", false },
        { "*\n!a", "a", false }, { "*\n!a", "a/b", false }, { "*\n!a", "b", true }, { "!a\n*", "a", true },
        { "a\n!a/b\na/b/c", "a/b/d", false }, { "a\n!a/b\na/b/c", "a/b/c", true }, { "a\n! a/b", "a/b", false },
    };

    (void)state;
    for (size_t i = 0; i < array_size(cases); i++) {
        struct ignore g;
        assert_int_equal(ignore_parse(cases[i].rules, &g), 0);
        if (ignore_matches(&g, cases[i].path) != cases[i].out)
            fail_msg("%s and %s", cases[i].rules, cases[i].path);
        ignore_finish(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_same_content_has_the_same_hash, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names_modes_targets_and_bytes_change_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_stream_of_another_hash_has_no_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_any_name_and_kind_of_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_directory_of_a_build_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_left_out_does_not_count, set_up, tear_down),
        cmocka_unit_test(test_patterns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

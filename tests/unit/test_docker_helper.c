// SPDX-License-Identifier: Apache-2.0
/* The programs that keep credentials: one that does not behave keeps nobody. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/docker/credentials.h"
#include "fs/base/cleanup.h"

#define LONG_MS 60000

static char dir[] = "/tmp/wsmfs-helper-XXXXXX";

static int set_up(void **state)
{
    char *path;

    (void)state;
    if (!mkdtemp(dir) || asprintf(&path, "%s:%s", dir, getenv("PATH")) < 0)
        return -1;
    setenv("PATH", path, 1);
    free(path);
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

static void be(const char *script)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/docker-credential-fake", dir);
    cleanup_file FILE *f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fchmod(fileno(f), 0755);
}

static int ask(const char *name, int64_t timeout_ms, bool (*cancelled)(void *), char *text, size_t size, struct err *e)
{
    struct json_object *o;
    int r;

    *e = (struct err){ 0 };
    r = credential_helper_ask(name, "host:5000", timeout_ms, cancelled, NULL, &o, e);
    snprintf(text, size, "%s", r == 0 ? json_object_get_string(json_object_object_get(o, "Secret")) : e->text);
    json_object_put(o);
    return r;
}

static void check(const char *script, int code, const char *word)
{
    char text[ERR_TEXT_MAX];
    struct err e;

    be(script);
    assert_int_equal(ask("fake", LONG_MS, NULL, text, sizeof(text), &e), code);
    if (!strstr(text, word))
        fail_msg("%s: %s", word, text);
}

static void test_answers(void **state)
{
    (void)state;
    check("read h; echo '{\"Username\":\"u\",\"Secret\":\"'$1-$h-$(umask)'\"}'", 0, "get-host:5000-0077");
    check("echo '{\"Secret\":\"unread\"}'", 0, "unread");
    check("echo 'credentials not found in native keychain'; exit 1", -ENOENT, "knows none");
    check("echo 'the vault is shut'; echo more; exit 1", -EACCES, "fake fails: the vault is shut");
    check("echo 'no bus here' >&2; echo more >&2; exit 1", -EACCES, "fake fails: no bus here");
    check("exit 3", -EACCES, "it is silent");
    check("echo hello", -EACCES, "no JSON");
    check("head -c 1000000 /dev/zero | tr '\\0' x; exit 1", -EACCES, "xxxx");
}

static void test_names(void **state)
{
    char text[ERR_TEXT_MAX];
    struct err e;

    (void)state;
    assert_int_equal(ask("no-such-one", LONG_MS, NULL, text, sizeof(text), &e), -EACCES);
    assert_non_null(strstr(text, "docker-credential-no-such-one"));
    assert_int_equal(ask("../fake", LONG_MS, NULL, text, sizeof(text), &e), -EINVAL);
    assert_int_equal(ask("a;b", LONG_MS, NULL, text, sizeof(text), &e), -EINVAL);
    assert_int_equal(ask("", LONG_MS, NULL, text, sizeof(text), &e), -EINVAL);
}

static bool at_once(void *arg)
{
    (void)arg;
    return true;
}

/* With what it has started. */
static void test_one_that_hangs_is_killed(void **state)
{
    char text[ERR_TEXT_MAX], path[256];
    struct err e;
    int pid = 0;

    (void)state;
    snprintf(path, sizeof(path), "sleep 1000 & echo $! > %s/new; mv %s/new %s/pid; wait", dir, dir, dir);
    be(path);
    snprintf(path, sizeof(path), "%s/pid", dir);
    /* On a busy machine it may be killed before it has come so far. */
    for (int ms = 300; ms < LONG_MS && access(path, F_OK) < 0; ms *= 3) {
        assert_int_equal(ask("fake", ms, NULL, text, sizeof(text), &e), -ETIMEDOUT);
        assert_non_null(strstr(text, "does not answer"));
    }
    cleanup_file FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    for (int i = 0; i < 500 && kill(pid, 0) == 0; i++)
        usleep(10000); /* until whoever adopted it has reaped it */
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(ask("fake", LONG_MS, at_once, text, sizeof(text), &e), -ECANCELED);
}

static void test_what_it_leaves_in_the_background_is_not_waited_for(void **state)
{
    char text[ERR_TEXT_MAX], script[256];
    struct err e;
    int pid = 0;

    (void)state;
    snprintf(script, sizeof(script), "sleep 1000 & echo $! > %s/agent; echo '{\"Secret\":\"s\"}'", dir);
    be(script);
    assert_int_equal(ask("fake", LONG_MS, NULL, text, sizeof(text), &e), 0);
    snprintf(script, sizeof(script), "%s/agent", dir);
    cleanup_file FILE *f = fopen(script, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_names), cmocka_unit_test(test_one_that_hangs_is_killed),
        cmocka_unit_test(test_what_it_leaves_in_the_background_is_not_waited_for),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

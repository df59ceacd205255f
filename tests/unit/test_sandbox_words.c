// SPDX-License-Identifier: Apache-2.0
/* The parts of the sandbox that start nothing: sentences, ids, the environment, marks, sockets. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"

static char *read_whole(int fd)
{
    static char text[1 << 16];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
    return text;
}

/* ── sentences ───────────────────────────────────────────────────────────────────────────── */

/* What bubblewrap 0.8 to 0.11 say when a kernel, a container or a distribution refuses. */
static const struct {
    const char *words, *remedy;
} refusals[] = {
    {"bwrap: Creating new namespace failed: Operation not permitted\n", "user namespaces"},
    {"bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
     "namespaces.\nSee <https://deb.li/bubblewrap>\n", "user namespaces"},
    {"bwrap: setting up uid map: Permission denied\n", "AppArmor"},
    {"bwrap: Creating new namespace failed: Resource temporarily unavailable\n", "limit on processes"},
    {"bwrap: setting up uid map: Permission denied\n", "AppArmor"},
    {"bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted\n", "AppArmor"},
    {"bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n", "systempaths=unconfined"},
    {"bwrap: pivot_root: Operation not permitted\n", "ramfs"},
    {"bwrap: Failed to mount tmpfs: No such file or directory\n", "/tmp"},
    {"bwrap: Can't find source path /x: Permission denied\n", "not for the user"},
    {"bwrap: Unknown option --cap-drop\n", "too old"},
    {"bwrap: execvp /run/wsm/wsm-guest: Exec format error\n", "guest program"},
};

static void what_bubblewrap_says_gets_its_remedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < array_size(refusals); i++) {
        struct err e = {0};
        cleanup_close int fd = sandbox_memory_file("words", refusals[i].words, strlen(refusals[i].words));
        assert_int_equal(sandbox_say_refused(fd, &e), -EPERM);
        assert_non_null(strstr(e.text, refusals[i].remedy));
        assert_null(strchr(e.text, '\n'));
        assert_true(strlen(e.text) < ERR_TEXT_MAX - 1);
    }
}

static void unknown_words_are_passed_on(void **state)
{
    struct err e = {0};
    cleanup_close int fd = sandbox_memory_file("words", "bwrap: strange\nmore", 19);

    (void)state;
    assert_int_equal(sandbox_say_refused(fd, &e), -EIO);
    assert_string_equal(e.text, "bubblewrap cannot make the sandbox: strange");
}

static void an_end_without_words_is_a_sentence_too(void **state)
{
    struct err e = {0};
    cleanup_close int fd = sandbox_memory_file("words", "", 0);

    (void)state;
    assert_int_equal(sandbox_say_refused(fd, &e), -EIO);
    assert_non_null(strstr(e.text, "without a word"));
}

/* ── ids ─────────────────────────────────────────────────────────────────────────────────── */

static void the_own_line_stands_first_and_alone(void **state)
{
    struct err e = {0};
    char *text = read_whole(sandbox_passwd(0, 0, &e));

    (void)state;
    assert_memory_equal(text, "root:x:0:0::/workspace:/bin/sh\n", 31);
    assert_null(strstr(text, "\nroot:"));
    assert_non_null(strstr(text, "\nnobody:"));
    assert_memory_equal(read_whole(sandbox_group(0, &e)), "root:x:0:\n", 10);
}

static void an_id_without_a_name_gets_one(void **state)
{
    struct err e = {0};
    char *text = read_whole(sandbox_passwd(61235, 61236, &e));

    (void)state;
    assert_memory_equal(text, "tenant:x:61235:61236::/workspace:/bin/sh\n", 41);
    assert_non_null(strstr(text, "\nroot:"));
}

static void users_are_read_by_name_and_number(void **state)
{
    uint32_t uid, gid;
    struct err e = {0};

    (void)state;
    assert_int_equal(sandbox_user_parse("root", &uid, &gid, &e), 0);
    assert_int_equal(uid, 0);
    assert_int_equal(sandbox_user_parse("61235:7", &uid, &gid, &e), 0);
    assert_int_equal(uid, 61235);
    assert_int_equal(gid, 7);
    assert_int_equal(sandbox_user_parse("61235", &uid, &gid, &e), 0);
    assert_int_equal(gid, 61235);
}

static void bad_users_are_refused(void **state)
{
    static const char *const texts[] = {"", "no-such-user-here", "1:", "1:x", "1:2:3", "4294967295", "-1", "1 ", "1:-1"};

    (void)state;
    for (size_t i = 0; i < array_size(texts); i++) {
        uint32_t uid, gid;
        struct err e = {0};
        assert_int_equal(sandbox_user_parse(texts[i], &uid, &gid, &e), -EINVAL);
        assert_memory_equal(e.text, "user: ", 6);
    }
}

/* ── the environment of a guest that is not confined ─────────────────────────────────────── */

static const char *value_of(char **list, const char *key)
{
    const char *found = NULL;
    size_t n = strlen(key);

    for (; *list; list++) {
        if (strncmp(*list, key, n) != 0 || (*list)[n] != '=')
            continue;
        assert_null(found);
        found = *list + n + 1;
    }
    return found;
}

static void the_environment_is_made_from_nothing(void **state)
{
    static const char *const more[] = {"A=1", "PATH=/x", "A=2", "HOME=/y", "=z", "odd", NULL};
    const struct sandbox_spec spec = {.env = more};
    char **list = sandbox_environment(&spec, "/home");
    size_t n = 0;

    (void)state;
    assert_non_null(list);
    assert_string_equal(value_of(list, "A"), "2");
    assert_string_equal(value_of(list, "PATH"), "/x");
    assert_string_equal(value_of(list, "HOME"), "/y");
    assert_string_equal(value_of(list, "LANG"), "C.UTF-8");
    while (list[n])
        n++;
    assert_int_equal(n, 5); /* TERM too, and nothing of ours */
    sandbox_strings_free(list);
}

/* ── marks and sockets ───────────────────────────────────────────────────────────────────── */

static void a_mark_finds_the_same_process(void **state)
{
    struct sandbox s = {.pid = getpid()}, found;
    char mark[SANDBOX_MARK_SIZE];
    pid_t parent;
    char run_state;

    (void)state;
    assert_true(sandbox_read_stat(s.pid, &parent, &s.start_ticks, &run_state));
    assert_int_equal(parent, getppid());
    sandbox_mark(&s, mark);
    assert_null(strpbrk(mark, " \n\t"));
    assert_int_equal(sandbox_adopt(mark, &found), 0);
    assert_int_equal(found.pid, s.pid);
    assert_true(sandbox_alive(&found));
    close(found.pid_fd);
}

static void a_socket_works_below_a_path_of_any_length(void **state)
{
    char top[] = "/tmp/wsm-socket-XXXXXX", part[101], line[64];
    struct err e = {0};
    struct stat st;

    (void)state;
    assert_non_null(mkdtemp(top));
    memset(part, 'x', 100);
    part[100] = '\0';
    cleanup_close int top_fd = open(top, O_PATH | O_DIRECTORY);
    assert_int_equal(mkdirat(top_fd, part, 0700), 0);
    cleanup_close int dir = openat(top_fd, part, O_PATH | O_DIRECTORY);
    for (int i = 0; i < 2; i++) { /* the second one takes the place of the first */
        cleanup_close int listening = sandbox_listen(dir, "s", &e);
        assert_true(listening >= 0);
        assert_int_equal(fcntl(listening, F_GETFD), FD_CLOEXEC);
        assert_int_equal(fstatat(dir, "s", &st, 0), 0);
        assert_int_equal(st.st_mode, S_IFSOCK | 0600);
        cleanup_close int connected = sandbox_connect(dir, "s");
        assert_true(connected >= 0);
        assert_int_equal(fcntl(connected, F_GETFD), FD_CLOEXEC);
        assert_true(fcntl(connected, F_GETFL) & O_NONBLOCK);
        cleanup_close int accepted = accept(listening, NULL, NULL);
        assert_true(accepted >= 0);
    }
    assert_int_equal(sandbox_connect(dir, "s"), -ECONNREFUSED);
    assert_int_equal(sandbox_connect(dir, "other"), -ENOENT);
    snprintf(line, sizeof(line), "rm -rf %s", top);
    assert_int_equal(system(line), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_bubblewrap_says_gets_its_remedy),
        cmocka_unit_test(unknown_words_are_passed_on),
        cmocka_unit_test(an_end_without_words_is_a_sentence_too),
        cmocka_unit_test(the_own_line_stands_first_and_alone),
        cmocka_unit_test(an_id_without_a_name_gets_one),
        cmocka_unit_test(users_are_read_by_name_and_number),
        cmocka_unit_test(bad_users_are_refused),
        cmocka_unit_test(the_environment_is_made_from_nothing),
        cmocka_unit_test(a_mark_finds_the_same_process),
        cmocka_unit_test(a_socket_works_below_a_path_of_any_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* The guest where it really runs: as the first process of a sandbox, in an image that has nothing, behind
 * `connect`. Most of it needs root for namespaces, and is skipped without. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/test_link_fixture.h"

/* A guest that is process 1 of its own namespace. */
struct place {
    struct sandbox box;     /* box.pid: a child of ours that waits for the guest and ends as it does */
    pid_t guest;            /* from outside */
    char  name[64];         /* where it listens, as `connect` is told */
    bool  empty;            /* its root holds nothing but the guest */
};

static const char *guest_path(void) { return getenv("WSM_GUEST"); }

/* The guest must be static to run where there is nothing. */
static bool is_static(void) { return !strstr(guest_path(), "hosted") && !strstr(guest_path(), "asan"); }

static void copy_guest(const char *to)
{
    char cmd[512];

    snprintf(cmd, sizeof(cmd), "cp %s %s && chmod 755 %s", guest_path(), to, to);
    assert_int_equal(system(cmd), 0);
}

/* In the grandchild: process 1. Never returns. */
static void become_guest(const struct place *p)
{
    const char *program = guest_path();

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (p->empty) {
        if (chroot(p->box.dir) != 0 || chdir("/") != 0)
            _exit(125);
        program = "/wsm-guest";
    } else if (mount("proc", "/proc", "proc", 0, NULL) != 0) {
        _exit(125);
    }
    execl(program, "wsm-guest", "serve", "--listen", p->name, "--grace", "3000", (char *)NULL);
    _exit(126);
}

static void hold_place(const struct place *p, int tell)
{
    pid_t pid;
    int status;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
        _exit(77);
    pid = fork();
    if (pid == 0)
        become_guest(p);
    if (write(tell, &pid, sizeof(pid)) != sizeof(pid))
        _exit(1);
    waitpid(pid, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

/* False: this user may not. */
static bool place_start(struct place *p, bool empty)
{
    static int n;
    int tell[2];
    char file[128];

    memset(p, 0, sizeof(*p));
    p->empty = empty;
    strcpy(p->box.dir, "/tmp/wsm-guest-test-XXXXXX");
    assert_non_null(mkdtemp(p->box.dir));
    snprintf(p->name, sizeof(p->name), "@wsm-guest-test-%d-%d", (int)getpid(), n++);
    snprintf(file, sizeof(file), "%s/wsm-guest", p->box.dir);
    copy_guest(file);
    assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
    p->box.pid = fork();
    if (p->box.pid == 0)
        hold_place(p, tell[1]);
    close(tell[1]);
    bool ok = read(tell[0], &p->guest, sizeof(p->guest)) == sizeof(p->guest);
    close(tell[0]);
    if (ok)
        return true;
    waitpid(p->box.pid, NULL, 0);
    unlink(file);
    rmdir(p->box.dir);
    return false;
}

/* Waits for the guest; its exit code. */
static int place_end(struct place *p)
{
    char file[128];
    int status;

    waitpid(p->box.pid, &status, 0);
    snprintf(file, sizeof(file), "%s/wsm-guest", p->box.dir);
    unlink(file);
    rmdir(p->box.dir);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ── connecting from inside ── */

static int enter(pid_t pid, const char *what, int kind)
{
    char path[64];
    int fd, r;

    snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, what);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    r = fd < 0 ? -1 : setns(fd, kind);
    close(fd);
    return r;
}

static void run_connect(struct place *p, int fd)
{
    dup2(fd, 0);
    dup2(fd, 1);
    if (enter(p->guest, "pid", CLONE_NEWPID) != 0)
        _exit(77);
    if (fork() == 0) { /* whose parent, as an engine's, is outside */
        execl(guest_path(), "wsm-guest", "connect", p->name, (char *)NULL);
        _exit(126);
    }
    _exit(0);
}

/* A stream through `connect`, as an engine's exec gives it. */
static int dial_through_connect(struct host_side *h)
{
    int pair[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    pid = fork();
    if (pid == 0)
        run_connect(h->dial_arg, pair[1]);
    close(pair[1]);
    waitpid(pid, NULL, 0);
    return pair[0];
}

/* ── tests ── */

static void as_first_process_it_reaps_and_ends_everything(void **state)
{
    struct link_spawn s = { .env_guest = true, .script =
        "setsid sh -c 'setsid sleep 1000 & exit' & trap 'echo bye; exit 4' TERM; echo $$; while :; do sleep 0.02; done" };
    struct place p;
    struct host_side h;
    struct tjob t, u;

    (void)state;
    if (!place_start(&p, false))
        skip();
    host_start_with(&h, &p.box, 1, dial_through_connect, &p);
    /* Orphans that end are nobody's zombies: in the end there is neither a sleeper nor a dead one. */
    run_sh(&u, &h, 1, "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'sleep 0.01; exit' & exit); done; "
           "n=0; while grep -qsE '^(State:.Z|Name:.sleep)' /proc/[0-9]*/status; do n=$((n+1)); [ $n -lt 5000 ] || exit 1; done", 0);
    tjob_finish(&u);
    tjob_init(&t, &h, 2);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, 2);
    kill(p.guest, SIGTERM);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 4);
    assert_memory_equal(t.data[0] + t.len[0] - 4, "bye\n", 4);
    tjob_release(&t);
    tjob_finish(&t);
    host_stop(&h);
    assert_int_equal(place_end(&p), 0);
}

/* No shell, no libc, no /proc, no /dev, no /tmp. */
static void an_image_with_nothing_in_it_is_enough(void **state)
{
    const char *const argv[] = { "/wsm-guest", "version", NULL }, *const none[] = { "ls", NULL };
    struct link_spawn version = { .argv = argv }, missing = { .argv = none }, shell = { .script = "exit 0" };
    struct place p;
    struct host_side h;
    struct tjob t;

    (void)state;
    if (!is_static() || !place_start(&p, true))
        skip();
    host_start_with(&h, &p.box, 1, dial_through_connect, &p);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &version);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 0);
    assert_memory_equal(t.data[0], "wsm-guest ", 10);
    tjob_forget(&t);
    tjob_finish(&t);
    tjob_init(&t, &h, 2);
    tjob_spawn(&t, &missing);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 127);
    tjob_forget(&t);
    tjob_finish(&t);
    tjob_init(&t, &h, 3);
    tjob_spawn(&t, &shell);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, 127);
    assert_string_equal(t.text, "/bin/sh: No such file or directory");
    tjob_forget(&t);
    tjob_finish(&t);
    host_stop(&h);
    kill(p.guest, SIGTERM);
    assert_int_equal(place_end(&p), 0);
}

/* Abstract names are shared by all who share the network: being able to name it is not enough. */
static void who_is_not_in_the_sandbox_cannot_connect(void **state)
{
    struct place p;
    struct host_side h;
    char cmd[256], hello[1];
    FILE *f;

    (void)state;
    if (!place_start(&p, false))
        skip();
    host_start_with(&h, &p.box, 1, dial_through_connect, &p);
    host_wait_up(&h);
    snprintf(cmd, sizeof(cmd), "%s connect %s </dev/null", guest_path(), p.name);
    f = popen(cmd, "r");
    assert_int_equal(fread(hello, 1, 1, f), 0);
    pclose(f);
    host_stop(&h);
    kill(p.guest, SIGTERM);
    assert_int_equal(place_end(&p), 0);
}

static void a_job_without_a_look_at_proc_is_killed_by_its_group(void **state)
{
    struct link_spawn s = { .script = "trap '' TERM; sleep 1000 & echo $!; sleep 1000; sleep 1000", .env_guest = true };
    struct link_spawn hide = { .script = "umount -l /proc", .env_guest = true };
    struct place p;
    struct host_side h;
    struct tjob t;

    (void)state;
    if (!place_start(&p, false))
        skip();
    host_start_with(&h, &p.box, 1, dial_through_connect, &p);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &hide);
    tjob_wait_exit(&t);
    tjob_forget(&t);
    tjob_finish(&t);
    tjob_init(&t, &h, 2);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, 2);
    link_job_kill(t.job, 100, NULL, NULL);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, SIGKILL);
    tjob_forget(&t);
    tjob_finish(&t);
    host_stop(&h);
    kill(p.guest, SIGTERM);
    assert_int_equal(place_end(&p), 0);
}

static void what_ignores_term_is_killed_after_the_grace(void **state)
{
    struct link_spawn s = { .script = "trap '' TERM; echo up; while :; do sleep 1; done", .env_guest = true };
    struct sandbox box;
    struct host_side h;
    struct tjob t;

    (void)state;
    sandbox_start(&box);
    host_start(&h, &box, 1);
    tjob_init(&t, &h, 1);
    tjob_spawn(&t, &s);
    tjob_wait_output(&t, 0, 3);
    assert_int_equal(link_stop(h.link, 50, NULL, NULL), 0);
    tjob_wait_exit(&t);
    assert_int_equal(t.exit.code, SIGKILL);
    tjob_release(&t);
    tjob_finish(&t);
    host_stop(&h);
    sandbox_stop(&box, SIGTERM);
}

/* ── the command line ── */

static int run(const char *arguments)
{
    char cmd[512];

    snprintf(cmd, sizeof(cmd), "%s %s 2>/dev/null", guest_path(), arguments);
    return WEXITSTATUS(system(cmd));
}

static void the_command_line_is_checked(void **state)
{
    (void)state;
    assert_int_equal(run(""), 2);
    assert_int_equal(run("serve --fd"), 2);
    assert_int_equal(run("serve --fd x"), 2);
    assert_int_equal(run("serve --what 1"), 2);
    assert_int_equal(run("serve --listen ''"), 1);
    assert_int_equal(run("serve --listen /no/such/directory/socket"), 1);
    assert_int_equal(run("serve --fd 77"), 1);
    assert_int_equal(run("connect @nobody-listens-here"), 1);
    assert_int_equal(run("version >/dev/null"), 0);
}

static void a_path_that_a_dead_guest_left_is_taken_over(void **state)
{
    char dir[] = "/tmp/wsm-guest-test-XXXXXX", path[64];
    struct sandbox box = { .pid = 0 };

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/s", dir);
    strcpy(box.path, path);
    for (int life = 0; life < 2; life++) {
        int fd, tries = 0;
        char c;
        pid_t pid = fork();

        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            execl(guest_path(), "wsm-guest", "serve", "--listen", path, (char *)NULL);
            _exit(126);
        }
        while ((fd = sandbox_dial(&box)) < 0 && tries++ < 10000)
            usleep(1000);
        assert_true(fd >= 0);
        assert_int_equal(read(fd, &c, 1), 1);
        close(fd);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_first_process_it_reaps_and_ends_everything),
        cmocka_unit_test(an_image_with_nothing_in_it_is_enough),
        cmocka_unit_test(who_is_not_in_the_sandbox_cannot_connect),
        cmocka_unit_test(a_job_without_a_look_at_proc_is_killed_by_its_group),
        cmocka_unit_test(what_ignores_term_is_killed_after_the_grace),
        cmocka_unit_test(the_command_line_is_checked),
        cmocka_unit_test(a_path_that_a_dead_guest_left_is_taken_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "backends/shared/files.h"
#include "tests/unit/manager_fixture.h"

static bool exists(struct fixture *f, const char *path)
{
    char full[2 * PATH_MAX];
    struct stat st;

    snprintf(full, sizeof(full), "%s/%s", f->dir, path);
    return lstat(full, &st) == 0;
}

static void put_file_at(int dir, const char *name)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT, 0600);

    assert_true(fd >= 0);
    close(fd);
}

/* How many entries the trash has. */
static size_t trash_left(struct fixture *f)
{
    char path[2 * PATH_MAX];
    size_t n = 0;

    snprintf(path, sizeof(path), "%s/.wsmfs/trash", f->base);
    cleanup_dir DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    return n;
}

/* A session of this name with its files' descriptor. */
static int files_of(struct place *s)
{
    struct workspace *ws;
    struct err e;
    int fd;

    assert_int_equal(enter(s, &ws, &e), 0);
    fd = dup(workspace_files_fd(ws));
    workspace_leave(ws);
    workspace_unref(ws);
    return fd;
}

static void destroy_removes_exactly_its_own_files(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_session");
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "alice", "coder", "s2");
    int fd = files_of(s), other = files_of(t);
    struct err e;

    (void)state;
    put_file_at(fd, "gone");
    put_file_at(other, "kept");
    assert_int_equal(verb(s, "destroy", &e), 0);
    assert_false(exists(f, "base/alice/coder/s1"));
    assert_true(exists(f, "base/alice/coder/s2/kept"));
    assert_int_equal(trash_left(f), 0);
    assert_int_equal(atomic_load(&f->closed), 1);
    assert_int_equal(atomic_load(&f->emptied), 1);
    assert_int_equal(visit(s), 0); /* a new, empty one */
    assert_true(exists(f, "base/alice/coder/s1"));
    assert_false(exists(f, "base/alice/coder/s1/gone"));
    assert_int_equal(verb(s, "destroy", &e), 0);
    assert_int_equal(verb(s, "destroy", &e), 0); /* of an absent one */
    close(fd);
    close(other);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

static void links_are_removed_and_never_followed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    char outside[2 * PATH_MAX];
    int fd = files_of(s);
    struct err e;

    (void)state;
    snprintf(outside, sizeof(outside), "%s/outside", f->dir);
    assert_int_equal(mkdir(outside, 0700), 0);
    int out = open(outside, O_PATH | O_DIRECTORY);
    put_file_at(out, "precious");
    assert_int_equal(symlinkat(outside, fd, "dir-link"), 0);
    assert_int_equal(mkdirat(fd, "sub", 0700), 0);
    assert_int_equal(symlinkat(outside, fd, "sub/deeper-link"), 0);
    assert_int_equal(symlinkat("/", fd, "root-link"), 0);
    assert_int_equal(verb(s, "destroy", &e), 0);
    assert_true(exists(f, "outside/precious"));
    assert_false(exists(f, "base/alice/coder"));
    close(out);
    close(fd);
    place_unref(s);
    fixture_free(f);
}

#define DEPTH 3000

static void a_tree_of_any_depth_and_mode_is_removed(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    int top = files_of(s), at = dup(top);
    struct err e;

    (void)state;
    for (int i = 0; i < DEPTH; i++) {
        assert_int_equal(mkdirat(at, "down", 0700), 0);
        put_file_at(at, "f");
        int next = openat(at, "down", O_PATH | O_DIRECTORY);
        close(at);
        at = next;
    }
    close(at);
    assert_int_equal(mkdirat(top, "closed", 0700), 0);
    assert_int_equal(mkdirat(top, "closed/inner", 0700), 0);
    assert_int_equal(fchmodat(top, "closed", 0, 0), 0);
    for (int i = 0; i < 5000; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i); /* the names that a removal uses itself */
        put_file_at(top, name);
    }
    assert_int_equal(verb(s, "destroy", &e), 0);
    assert_int_equal(trash_left(f), 0);
    close(top);
    place_unref(s);
    fixture_free(f);
}

static void an_interrupted_removal_is_finished_at_the_next_start(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    char path[2 * PATH_MAX];

    (void)state;
    fixture_close(f, false);
    snprintf(path, sizeof(path), "%s/.wsmfs", f->base);
    int meta = open(path, O_PATH | O_DIRECTORY);
    int left = walk_open(meta, "trash/0123456789abcdef/0/a/b/c", true);
    put_file_at(left, "f");
    close(left);
    close(meta);
    assert_int_equal(trash_left(f), 1);
    fixture_open(f);
    wait_until(trash_left(f) == 0);
    fixture_free(f);
}

struct emptying {
    int         trash;
    atomic_bool over;
};

static void *empty_again_and_again(void *arg)
{
    struct emptying *t = arg;

    while (!atomic_load(&t->over)) {
        struct err e;
        if (trash_empty(t->trash, NULL, &e) < 0)
            return "the trash could not be emptied";
    }
    return NULL;
}

/* Another mount of the base directory empties the trash when it starts, and so does ours, later on. */
static void a_removal_is_left_to_the_one_who_does_it(void **state)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    int base = open(f->base, O_PATH | O_DIRECTORY);
    struct emptying t = { .trash = walk_open(base, ".wsmfs/trash", true) };
    pthread_t thread;
    void *failed;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, empty_again_and_again, &t), 0);
    for (int i = 0; i < 300; i++) {
        struct err e;
        err_clear(&e);
        int left = walk_open(base, "tree/d/e", true);
        put_file_at(left, "f");
        close(left);
        if (trash_remove(base, "tree", t.trash, NULL, &e) != 0)
            fail_msg("%s", e.text);
        assert_false(exists(f, "base/tree"));
    }
    atomic_store(&t.over, true);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(trash_left(f), 0);
    close(t.trash);
    close(base);
    fixture_free(f);
}

/* Run in a mount namespace of its own, so that nothing is left behind. */
static int destroy_with_a_mount_inside(void)
{
    struct fixture *f = fixture_new(&local_backend, "isolation=per_agent");
    struct place *s = session_at(f, "alice", "coder", "s1");
    char inside[3 * PATH_MAX];
    struct err e;
    int fd = files_of(s), r;

    mkdirat(fd, "mnt", 0700);
    put_file_at(fd, "f");
    snprintf(inside, sizeof(inside), "%s/alice/coder/mnt", f->base);
    if (mount("none", inside, "tmpfs", 0, "") < 0)
        return 2;
    int in = open(inside, O_PATH | O_DIRECTORY);
    put_file_at(in, "precious");
    r = verb(s, "destroy", &e);
    bool kept = faccessat(in, "precious", F_OK, 0) == 0;
    bool said = strstr(error_of(s), "mnt") != NULL;
    close(in);
    return r == -EBUSY && kept && said ? 0 : 1;
}

static void another_file_system_is_never_entered(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(2);
        setenv("TMPDIR", "/tmp", 1);
        if (mount("none", "/tmp", "tmpfs", 0, "") < 0)
            _exit(2);
        _exit(destroy_with_a_mount_inside());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        skip(); /* not allowed to mount */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_tenants_directory_is_given_to_it_and_those_above_are_not(void **state)
{
    struct fixture *f = malloc(sizeof(*f));
    struct user_config *u = calloc(1, sizeof(*u));
    struct workspace *ws;
    struct stat st;
    struct err e;
    uid_t uid = 0;
    gid_t gid = 0;

    (void)state;
    fixture_prepare(f, &local_backend, "isolation=per_agent");
    u->name = strdup("alice");
    u->has_uid = true;
    u->uid = 1234;
    u->gid = 1235;
    u->mode = 0750;
    f->config->user_list = u;
    fixture_open(f);
    struct place *s = session_at(f, "alice", "coder", "s1"), *t = session_at(f, "bob", "coder", "s1");
    assert_int_equal(enter(s, &ws, &e), 0);
    assert_true(workspace_tenant(ws, &uid, &gid) && uid == 1234 && gid == 1235);
    assert_int_equal(fstat(workspace_files_fd(ws), &st), 0);
    if (geteuid() == 0)
        assert_true(st.st_uid == 1234 && st.st_gid == 1235);
    assert_int_equal(st.st_mode & 07777, 0750);
    workspace_leave(ws);
    workspace_unref(ws);
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/alice", f->base);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_uid == geteuid() && (st.st_mode & 07777) == 0700);
    assert_int_equal(enter(t, &ws, &e), 0);
    assert_false(workspace_tenant(ws, &uid, &gid));
    workspace_leave(ws);
    workspace_unref(ws);
    place_unref(s);
    place_unref(t);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_file_system_is_never_entered), /* forks: before there are threads */
        cmocka_unit_test(destroy_removes_exactly_its_own_files),
        cmocka_unit_test(links_are_removed_and_never_followed),
        cmocka_unit_test(a_tree_of_any_depth_and_mode_is_removed),
        cmocka_unit_test(an_interrupted_removal_is_finished_at_the_next_start),
        cmocka_unit_test(a_removal_is_left_to_the_one_who_does_it),
        cmocka_unit_test(a_tenants_directory_is_given_to_it_and_those_above_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

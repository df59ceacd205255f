// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
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

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/config/config.h"

static char path[] = "/tmp/wsmfs-test-config-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static int make(void **state)
{
    *state = config_create();
    return *state ? 0 : -1;
}

static int destroy(void **state)
{
    config_destroy(*state);
    return 0;
}

static void write_bytes(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void write_file(const char *text) { write_bytes(text, strlen(text)); }

static void read_it(struct config *c)
{
    struct err e = {0};

    if (config_read_file(c, path, &e) != 0)
        fail_msg("%s", e.text);
}

static void all_sections_are_read(void **state)
{
    struct config *c = *state;
    struct user_config u;
    const struct config_pair *p;

    write_file("# a comment\n; another\n\n[mount]\nttl = 10m\nkeep_on_exit\nallow_other = yes\nfsname=x y\n"
               "[sandbox]\nsetup = a ; b # c\nenv = A=1\n"
               "[backend local]\nconfine = bwrap\n[backend docker]\nsocket = /x\n"
               "[user alice]\nuid = 1001\ngid = 1002\ngroups = 7, 8,9\nmode = 0750\nmax_live = 3\n"
               "[user bob@example.com]\n");
    config_set_source(c, "local:/x", NULL);
    read_it(c);
    assert_int_equal(c->ttl_s, 600);
    assert_true(c->keep_on_exit);
    assert_true(c->allow_other);
    assert_string_equal(c->fuse_opts, "allow_other,fsname=x y");

    p = c->pairs;
    assert_string_equal(p->section, "sandbox");
    assert_string_equal(p->key, "setup");
    assert_string_equal(p->value, "a ; b # c");
    assert_int_equal(p->line, 10);
    assert_string_equal(p->file, path);
    p = p->next->next;
    assert_string_equal(p->section, "backend");
    assert_string_equal(p->key, "confine");
    assert_null(p->next);

    assert_true(config_user(c, "alice", &u));
    assert_true(u.has_uid);
    assert_int_equal(u.uid, 1001);
    assert_int_equal(u.gid, 1002);
    assert_int_equal(u.mode, 0750);
    assert_int_equal(u.max_live, 3);
    assert_int_equal(c->user_list->n_groups, 3);
    assert_int_equal(c->user_list->groups[2], 9);
    assert_true(config_user(c, "bob@example.com", &u));
    assert_false(u.has_uid);
    assert_int_equal(u.mode, 0700);
    assert_false(config_user(c, "carol", &u));
}

static void form_does_not_matter(void **state)
{
    struct config *c = *state;
    struct user_config u;

    write_file("\xef\xbb\xbf[mount]\r\n   ttl=5m   \r\n\tgrace : 3s\r\n\r\n  [ user   a b ]  \r\n  uid=5");
    read_it(c);
    assert_int_equal(c->ttl_s, 300);
    assert_int_equal(c->grace_s, 3);
    assert_true(config_user(c, "a b", &u));
    assert_int_equal(u.uid, 5);
}

static void a_uid_may_be_a_name_and_brings_its_group(void **state)
{
    struct config *c = *state;
    struct user_config u;

    write_file("[user a]\nuid = root\n[user b]\nuid = 3999999\n[user c]\nuid = 0\ngid = root\ngroups = root\n");
    read_it(c);
    assert_true(config_user(c, "a", &u));
    assert_int_equal(u.uid, 0);
    assert_int_equal(u.gid, 0);
    assert_true(config_user(c, "b", &u));
    assert_int_equal(u.gid, 3999999);
}

static void a_name_of_255_bytes_and_a_long_value_are_not_cut(void **state)
{
    struct config *c = *state;
    cleanup_free char *text = malloc(70000);
    char name[256], value[60001];
    struct user_config u;

    memset(name, 'n', 255);
    name[255] = '\0';
    memset(value, 'v', 60000);
    value[60000] = '\0';
    snprintf(text, 70000, "[user %s]\nuid = 9\n[sandbox]\nsetup = %s\n", name, value);
    write_file(text);
    read_it(c);
    assert_true(config_user(c, name, &u));
    assert_int_equal(u.uid, 9);
    assert_string_equal(c->pairs->value, value);
}

static void the_command_line_wins(void **state)
{
    struct config *c = *state;
    struct err e = {0};

    write_file("[mount]\nttl = 10m\ngrace = 1s\nro\nlog_level = debug\n");
    assert_int_equal(config_parse_words(c, "ttl=2h,rw", &e), 0);
    read_it(c);
    assert_int_equal(c->ttl_s, 7200);
    assert_int_equal(c->grace_s, 1);
    assert_false(c->read_only);
    assert_int_equal(c->log_level, LOG_LEVEL_DEBUG);
}

/* Each is refused naming the line, and nothing has been taken. */
static void bad_files_are_refused_by_line(void **state)
{
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"ttl = 1h\n", ":1: the key 'ttl' stands in front of the first section"},
        {"[mount]\nttl = 1x\n", ":2: ttl=1x: not a duration"},
        {"[mount]\n\n# c\ntll = 1h\n", ":4: unknown key 'tll'; did you mean 'ttl'?"},
        {"[mount]\nbogus\n", ":2: unknown key 'bogus'"},
        {"[mount]\nttl\n", ":2: ttl: needs a value"},
        {"[mount]\nttl =\n", ":2: ttl=: not a duration"},
        {"[mount]\nttl = 1h ; soon\n", ":2: ttl=1h ; soon: not a duration"},
        {"[mount]\nttl = 1h\nttl = 2h\n", ":3: ttl stands in line 2 already"},
        {"[mount]\nttl = 1h\n[sandbox]\n[mount]\nttl = 2h\n", ":5: ttl stands in line 2 already"},
        {"[mount]\nconfig = /x\n", ":2: config: a config file names no other"},
        {"[mount]\nauto_unmount\n", ":2: auto_unmount: a crash would"},
        {"[mount]\nsuid = yes\n", ":2: suid: every mount"},
        {"[mount]\nisolation = per_team\n", ":2: isolation=per_team: not one of"},
        {"[mount]\n= 5\n", ":2: a line without a key"},
        {"[mount]\n  continued\n", ":2: unknown key 'continued'"},
        {"[mount]\nbasedir = /a\x01\n", ":2: basedir=/a\x01: a control character"},
        {"[mont]\n", ":1: unknown section [mont]; did you mean 'mount'?"},
        {"[jobs]\n", ":1: unknown section [jobs]"},
        {"[]\n", ":1: unknown section []"},
        {"[mount\nttl = 1h\n", ":1: a section's name ends with ']'"},
        {"[mount] # x\n", ":1: a section's name ends with ']'"},
        {"[mount x]\n", ":1: [mount] takes no name"},
        {"[user]\n", ":1: [user NAME] needs a name"},
        {"[backend]\n", ":1: [backend NAME] needs a name"},
        {"[backend dokcer]\n", ":1: [backend dokcer]: there is no such backend; did you mean 'docker'?"},
        {"[user .x]\n", ":1: [user .x]: not a valid user name"},
        {"[user a/b]\n", ":1: [user a/b]: not a valid user name"},
        {"[user \xff]\n", "not a valid user name"},
        {"[user a]\n[user b]\n[user a]\n", ":3: [user a] stands here a second time"},
        {"[user a]\nuid = x y\n", ":2: uid=x y: neither a number nor a user"},
        {"[user a]\nuid = -1\n", ":2: uid=-1: neither"},
        {"[user a]\nuid = 4294967295\n", ":2: uid=4294967295: neither"},
        {"[user a]\nuid = 1\ngid = no-such-group\n", ":3: gid=no-such-group: neither"},
        {"[user a]\nuid = 1\ngroups = 1,no-such-group\n", "'no-such-group' is neither"},
        {"\n[user a]\ngid = 1\n", ":2: [user a]: gid and groups need a uid"},
        {"\n[user a]\ngid = 1\n[mount]\n", ":2: [user a]: gid and groups need a uid"},
        {"[user a]\nmode = 0770\n", ":2: mode=0770: not an octal mode"},
        {"[user a]\nmode = 0600\n", "not an octal mode"},
        {"[user a]\nmode = 04755\n", "not an octal mode"},
        {"[user a]\nmode = 1755\n", "not an octal mode"},
        {"[user a]\nmode = 9\n", "not an octal mode"},
        {"[user a]\nmax_live = x\n", "not a number from 0"},
        {"[user a]\nuid\n", ":2: uid: needs a value"},
        {"[user a]\nuidd = 1\n", ":2: unknown key 'uidd' in [user a]; did you mean 'uid'?"},
        {"[user a]\nuid = 1\nuid = 2\n", ":3: uid stands in line 2 already"},
        {"[sandbox]\nenv\n", ":2: env: needs a value"},
    };
    static const char *const backends[] = {"local", "docker", NULL};

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        struct config *c = config_create();
        cleanup_free char *before = NULL, *after = NULL;
        struct err e = {0};
        c->known_backends = backends;
        config_set_source(c, "local:", NULL);
        write_file(bad[i].text);
        before = config_dump(c);
        int r = config_read_file(c, path, &e);
        after = config_dump(c);
        if (r != -EINVAL || strncmp(e.text, path, strlen(path)) != 0 || !strstr(e.text, bad[i].sentence))
            fail_msg("%s: %d, '%s' where '%s' was expected", bad[i].text, r, e.text, bad[i].sentence);
        assert_string_equal(before, after);
        config_destroy(c);
    }
}

static void what_is_no_text_file_is_refused(void **state)
{
    struct config *c = *state;
    cleanup_free char *big = malloc(70000);
    struct err e = {0};

    write_bytes("[mount]\nttl = 1\0h\n", 18);
    assert_int_equal(config_read_file(c, path, &e), -EINVAL);
    assert_non_null(strstr(e.text, ":2: a NUL byte"));

    memset(big, 'x', 70000);
    write_bytes(big, 70000);
    assert_int_equal(config_read_file(c, path, &e), -EINVAL);
    assert_non_null(strstr(e.text, ":1: a line of more than"));

    assert_int_equal(config_read_file(c, "/tmp", &e), -EINVAL);
    assert_non_null(strstr(e.text, "not a regular file"));
    assert_int_equal(config_read_file(c, "/no/such/file", &e), -ENOENT);
    assert_non_null(strstr(e.text, "/no/such/file: No such file"));
}

static void a_file_that_anybody_may_write_is_refused(void **state)
{
    struct err e = {0};
    int r;

    write_file("[mount]\n");
    assert_int_equal(chmod(path, 0666), 0);
    r = config_read_file(*state, path, &e);
    chmod(path, 0600);
    assert_int_equal(r, -EPERM);
    assert_non_null(strstr(e.text, "chmod o-w"));
}

static void a_dump_reads_back_as_itself(void **state)
{
    struct config *c = *state, *again = config_create();
    cleanup_free char *first = NULL, *second = NULL;
    struct err e = {0};

    assert_int_equal(config_set_source(c, "local:/srv/ws", &e), 0);
    assert_int_equal(config_set_source(again, "local:/srv/ws", &e), 0);
    assert_int_equal(config_parse_words(c, "ttl=90m,ro,allow_other,fsname=a\\,b,readers=3,state_dir=/s", &e), 0);
    write_file("[mount]\nmax_live = 7\nusers = listed\n[sandbox]\nsetup = x ; y\n[backend local]\nk = v\n"
               "[user a]\nuid = 3\ngid = 4\ngroups = 5,6\nmode = 0755\nmax_live = 2\n[user b]\n");
    read_it(c);
    assert_int_equal(config_finish(c, &e), 0);
    first = config_dump(c);
    write_file(first);
    read_it(again);
    second = config_dump(again);
    assert_string_equal(first, second);
    assert_string_equal(again->fuse_opts, "ro,allow_other,fsname=a\\,b");
    config_destroy(again);
}

static void a_dump_hides_secrets(void **state)
{
    struct config *c = *state;
    cleanup_free char *text = NULL;

    write_file("[sandbox]\nmemory = 1G\n[backend e2b]\napi_key = topsecret1\nTOKEN = topsecret2\n"
               "registry_password = topsecret3\nclient-secret = topsecret4\nkeyring = shown\n");
    config_set_source(c, "e2b:base", NULL);
    read_it(c);
    text = config_dump(c);
    assert_null(strstr(text, "topsecret"));
    assert_non_null(strstr(text, "api_key = ****"));
    assert_non_null(strstr(text, "keyring = shown"));
    assert_non_null(strstr(text, "[backend e2b]"));
}

static void a_dump_hides_secret_variables(void **state)
{
    struct config *c = *state;
    cleanup_free char *text = NULL;

    write_file("[sandbox]\nenv = LANG=C  API_TOKEN=topsecret1 aws_secret_access_key=topsecret2 TOKENS=1 TOKEN=\n");
    config_set_source(c, "e2b:base", NULL);
    read_it(c);
    text = config_dump(c);
    assert_null(strstr(text, "topsecret"));
    assert_non_null(strstr(text, "\nenv = LANG=C API_TOKEN=******** aws_secret_access_key=******** TOKENS=1 TOKEN=********\n"));
}

static void a_shared_objects_section_is_named_like_its_file(void **state)
{
    struct config *c = *state;

    write_file("[backend mine]\na = 1\n[backend min]\nb = 1\n[backend mine.so]\nc = 1\n");
    config_set_source(c, "/x/y/mine.so:args", NULL);
    read_it(c);
    assert_string_equal(c->pairs->key, "a");
    assert_null(c->pairs->next);
}

/* ── reload ──────────────────────────────────────────────────────────────────────────────── */

static void begin_reload(struct config *c, const char *words, const char *text)
{
    struct err e = {0};
    cleanup_free char *arg = NULL;

    write_file(text);
    assert_true(asprintf(&arg, "config=%s%s", path, words) > 0);
    assert_int_equal(config_set_source(c, "local:/srv/ws", &e), 0);
    assert_int_equal(config_parse_words(c, arg, &e), 0);
    read_it(c);
    assert_int_equal(config_finish(c, &e), 0);
}

static void reload_takes_what_is_live_and_names_the_rest(void **state)
{
    struct config *c = *state;
    cleanup_free char *kept = NULL;
    struct user_config u;
    struct err e = {0};

    begin_reload(c, "", "[mount]\nttl = 1m\n[user a]\nuid = 1\n[sandbox]\nmemory = 1G\n");
    write_file("[mount]\nttl = 2m\nusers = listed\nlog_level = debug\nmax_live = 9\ngrace = 1s\nro\n"
               "[user a]\nuid = 2\n[user b]\n[sandbox]\nmemory = 2G\n[backend local]\nx = 1\n");
    assert_int_equal(config_reload(c, &kept, &e), 0);
    assert_int_equal(config_ttl_s(c), 120);
    assert_int_equal(config_users(c), USERS_LISTED);
    assert_int_equal(c->log_level, LOG_LEVEL_DEBUG);
    assert_true(config_user(c, "a", &u));
    assert_int_equal(u.uid, 2);
    assert_true(config_user(c, "b", &u));
    assert_string_equal(kept, "grace, max_live, libfuse's options, [sandbox], [backend]");
    assert_int_equal(c->max_live, 0);
    assert_int_equal(c->grace_s, 10);
    assert_false(c->read_only);
    assert_string_equal(c->pairs->value, "1G");
}

static void reload_of_the_same_changes_nothing(void **state)
{
    struct config *c = *state;
    cleanup_free char *before = NULL, *after = NULL;
    char *kept = NULL;
    struct err e = {0};

    begin_reload(c, ",grace=3s", "[mount]\nttl = 1m\ngrace = 4s\n[user a]\nuid = 1\n[sandbox]\nmemory = 1G\n");
    before = config_dump(c);
    assert_int_equal(config_reload(c, &kept, &e), 0);
    assert_null(kept);
    after = config_dump(c);
    assert_string_equal(before, after);
}

static void what_the_command_line_said_survives_a_reload(void **state)
{
    struct config *c = *state;
    char *kept = NULL;
    struct err e = {0};

    begin_reload(c, ",ttl=5m", "[mount]\nttl = 1m\n");
    write_file("[mount]\nttl = 2m\n");
    assert_int_equal(config_reload(c, &kept, &e), 0);
    assert_int_equal(config_ttl_s(c), 300);
}

static void a_bad_file_leaves_all_as_it_was(void **state)
{
    struct config *c = *state;
    char *kept = NULL;
    struct user_config u;
    struct err e = {0};

    begin_reload(c, "", "[mount]\nttl = 1m\n[user a]\n");
    write_file("[mount]\nttl = 2m\n[user b]\nuid = nonsense user\n");
    assert_int_equal(config_reload(c, &kept, &e), -EINVAL);
    assert_non_null(strstr(e.text, ":4: uid="));
    assert_int_equal(config_ttl_s(c), 60);
    assert_true(config_user(c, "a", &u));
    assert_false(config_user(c, "b", &u));
}

static void reload_without_a_file_does_nothing(void **state)
{
    char *kept = NULL;
    struct err e = {0};

    assert_int_equal(config_reload(*state, &kept, &e), 0);
    assert_null(kept);
}

static void count_user(const char *name, void *arg)
{
    if (strcmp(name, "a") == 0 || strcmp(name, "b") == 0)
        ++*(int *)arg;
}

/* Returns NULL when every look was at one of the two files. (cmocka's assertions are for its own
 * thread.) */
static void *read_live(void *arg)
{
    struct config *c = arg;

    for (int i = 0; i < 2000; i++) {
        struct user_config u;
        int users = 0;
        int64_t ttl_s = config_ttl_s(c);
        config_each_user(c, count_user, &users);
        if ((ttl_s != 60 && ttl_s != 120) || users < 1 || users > 2 || !config_user(c, "b", &u))
            return c;
    }
    return NULL;
}

static void live_parts_may_be_read_during_a_reload(void **state)
{
    struct config *c = *state;
    pthread_t t;

    begin_reload(c, "", "[mount]\nttl = 1m\n[user b]\n");
    assert_int_equal(pthread_create(&t, NULL, read_live, c), 0);
    for (int i = 0; i < 100; i++) {
        cleanup_free char *kept = NULL;
        struct err e = {0};
        write_file(i % 2 ? "[mount]\nttl = 2m\n[user a]\n[user b]\n" : "[mount]\nttl = 1m\n[user b]\n");
        assert_int_equal(config_reload(c, &kept, &e), 0);
    }
    void *wrong;
    pthread_join(t, &wrong);
    assert_null(wrong);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, make, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(all_sections_are_read),
        WITH(form_does_not_matter),
        WITH(a_uid_may_be_a_name_and_brings_its_group),
        WITH(a_name_of_255_bytes_and_a_long_value_are_not_cut),
        WITH(the_command_line_wins),
        cmocka_unit_test(bad_files_are_refused_by_line),
        WITH(what_is_no_text_file_is_refused),
        WITH(a_file_that_anybody_may_write_is_refused),
        WITH(a_dump_reads_back_as_itself),
        WITH(a_dump_hides_secrets),
        WITH(a_dump_hides_secret_variables),
        WITH(a_shared_objects_section_is_named_like_its_file),
        WITH(reload_takes_what_is_live_and_names_the_rest),
        WITH(reload_of_the_same_changes_nothing),
        WITH(what_the_command_line_said_survives_a_reload),
        WITH(a_bad_file_leaves_all_as_it_was),
        WITH(reload_without_a_file_does_nothing),
        WITH(live_parts_may_be_read_during_a_reload),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}

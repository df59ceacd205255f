// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/config/config.h"

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

static void take(struct config *c, const char *words)
{
    struct err e = {0};

    if (config_parse_words(c, words, &e) != 0)
        fail_msg("%s: %s", words, e.text);
}

static void defaults_are_those_of_the_manual(void **state)
{
    const struct config *c = *state;

    assert_int_equal(c->isolation, ISOLATION_PER_AGENT);
    assert_int_equal(c->names, NAMES_PLAIN);
    assert_int_equal(c->users, USERS_ANY);
    assert_int_equal(c->ttl_s, 3600);
    assert_int_equal(c->provision_timeout_s, 300);
    assert_int_equal(c->grace_s, 10);
    assert_int_equal(c->shutdown_timeout_s, 60);
    assert_int_equal(c->max_live, 0);
    assert_int_equal(c->spin_us, 100);
    assert_int_equal(c->log_level, LOG_LEVEL_INFO);
    assert_false(c->keep_on_exit);
    assert_null(c->fuse_opts);
}

static void words_set_their_fields(void **state)
{
    struct config *c = *state;

    take(c, "isolation=per_user,id_scheme=agentscope,names=made,users=listed,ttl=10m,max_age=1d,"
            "provision=jobs,provision_timeout=7,grace=2s,shutdown_timeout=3m,keep_on_exit,"
            "state_dir=/s,basedir=/b/,instance=node-1.x,bind_across_users=on,symlinks=raw,owner=tenant,"
            "show_control=true,max_live=5,max_live_per_user=2,passthrough=off,readers=4,spin=20,log_level=debug");
    assert_int_equal(c->isolation, ISOLATION_PER_USER);
    assert_int_equal(c->id_scheme, ID_SCHEME_AGENTSCOPE);
    assert_int_equal(c->names, NAMES_MADE);
    assert_int_equal(config_users(c), USERS_LISTED);
    assert_int_equal(config_ttl_s(c), 600);
    assert_int_equal(c->max_age_s, 86400);
    assert_int_equal(c->provision, PROVISION_JOBS);
    assert_int_equal(c->provision_timeout_s, 7);
    assert_int_equal(c->grace_s, 2);
    assert_int_equal(c->shutdown_timeout_s, 180);
    assert_true(c->keep_on_exit);
    assert_string_equal(c->state_dir, "/s");
    assert_string_equal(c->basedir, "/b");
    assert_string_equal(c->instance, "node-1.x");
    assert_true(c->bind_across_users);
    assert_int_equal(c->symlinks, SYMLINKS_RAW);
    assert_int_equal(c->owner, OWNER_TENANT);
    assert_true(c->show_control);
    assert_int_equal(c->max_live, 5);
    assert_int_equal(c->max_live_per_user, 2);
    assert_int_equal(c->passthrough, TRI_OFF);
    assert_int_equal(c->readers, 4);
    assert_int_equal(c->spin_us, 20);
    assert_int_equal(c->log_level, LOG_LEVEL_DEBUG);
}

static void the_last_of_two_holds(void **state)
{
    struct config *c = *state;

    take(c, "ttl=1m,basedir=/a,ttl=2m");
    take(c, "basedir=/b");
    assert_int_equal(c->ttl_s, 120);
    assert_string_equal(c->basedir, "/b");
}

static void a_backslash_keeps_a_comma_in_a_value(void **state)
{
    struct config *c = *state;

    take(c, "basedir=/a\\,b\\\\c,ttl=2m,,fsname=x\\,y");
    assert_string_equal(c->basedir, "/a,b\\c");
    assert_int_equal(c->ttl_s, 120);
    assert_string_equal(c->fuse_opts, "fsname=x\\,y");
}

static void words_of_libfuse_go_to_it_and_undo_each_other(void **state)
{
    struct config *c = *state;

    take(c, "ro,allow_other,noexec,nosuid,nodev,sync,fsname=a,context=x,fsname=b");
    assert_string_equal(c->fuse_opts, "ro,allow_other,noexec,sync,context=x,fsname=b");
    assert_true(c->read_only);
    assert_true(c->allow_other);
    take(c, "rw,exec,async,allow_root");
    assert_string_equal(c->fuse_opts, "context=x,fsname=b,allow_root");
    assert_false(c->read_only);
    assert_false(c->allow_other);
    take(c, "allow_root=no,debug");
    assert_string_equal(c->fuse_opts, "context=x,fsname=b");
    assert_true(c->debug_fuse);
}

static void words_of_fstab_are_dropped(void **state)
{
    struct config *c = *state;

    take(c, "defaults,auto,noauto,user,user=joe,users,owner,group,nofail,_netdev,comment=a b,"
            "x-systemd.automount,x-systemd.idle-timeout=60,X-mount.mkdir=0755,relatime,rw,exec,lazytime,"
            "subtype=wsmfs,uhelper=udisks2");
    assert_null(c->fuse_opts);
    assert_int_equal(c->users, USERS_ANY);
    assert_int_equal(c->owner, OWNER_AUTO);
}

static void bad_words_are_refused_with_a_reason(void **state)
{
    static const struct {
        const char *words, *sentence;
    } bad[] = {
        {"frobnicate", "unknown option 'frobnicate'"},
        {"frobnicate=1", "unknown option 'frobnicate'"},
        {"tll=1h", "did you mean 'ttl'?"},
        {"isolaton=per_user", "did you mean 'isolation'?"},
        {"alow_other", "did you mean 'allow_other'?"},
        {"TTL=1h", "unknown option 'TTL'"},
        {"=x", "unknown option ''"},
        {"=", "unknown option ''"},
        {" ttl=1", "unknown option ' ttl'"},
        {"ttl", "ttl: needs a value"},
        {"ttl=", "ttl=: not a duration"},
        {"ttl=abc", "ttl=abc: not a duration such as"},
        {"ttl=-1", "ttl=-1: not a duration"},
        {"ttl=1.5h", "not a duration"},
        {"ttl=101y", "not a duration"},
        {"ttl=1h ", "a blank at the begin or end"},
        {"ttl= 1h", "a blank at the begin or end"},
        {"ttl=1\nh", "a control character"},
        {"max_age=forever", "max_age=forever: not a duration"},
        {"provision_timeout=5 m", "not a duration"},
        {"grace=x", "grace=x: not a duration"},
        {"shutdown_timeout=1w", "not a duration"},
        {"isolation=per_team", "not one of per_agent, per_session, per_user"},
        {"isolation=", "not one of per_agent"},
        {"isolation=PER_AGENT", "not one of per_agent"},
        {"id_scheme=md5", "not one of wsmfs, agentscope"},
        {"names=all", "not one of plain, any, made"},
        {"users=some", "not one of any, listed"},
        {"provision=never", "not one of access, jobs"},
        {"symlinks=safe", "not one of contained, anchored, raw"},
        {"owner=root", "not one of auto, native, tenant"},
        {"passthrough=yes", "not one of auto, on, off"},
        {"log_level=loud", "not one of error, warning, info, debug"},
        {"keep_on_exit=maybe", "neither yes nor no"},
        {"show_control=2", "neither yes nor no"},
        {"bind_across_users=", "neither yes nor no"},
        {"max_live=-1", "not a number from 0"},
        {"max_live=1000000001", "not a number from 0"},
        {"max_live=many", "not a number from 0"},
        {"max_live_per_user=1e3", "not a number from 0"},
        {"readers=0", "neither auto nor a number from 1"},
        {"readers=65", "neither auto nor a number from 1"},
        {"readers=", "neither auto nor a number from 1"},
        {"spin=-1", "not a number from 0 to 1000"},
        {"spin=1001", "not a number from 0 to 1000"},
        {"spin=auto", "not a number from 0 to 1000"},
        {"state_dir=", "an empty path"},
        {"basedir=", "an empty path"},
        {"basedir", "basedir: needs a value"},
        {"config", "config: needs a value"},
        {"config=", "an empty path"},
        {"instance=", "letters, digits"},
        {"instance=../x", "letters, digits"},
        {"instance=.hidden", "begin with a letter or digit"},
        {"instance=a/b", "letters, digits"},
        {"instance=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "1 to 64"},
        {"suid", "suid: every mount of wsmfs is nosuid and nodev"},
        {"dev", "dev: every mount of wsmfs is nosuid and nodev"},
        {"auto_unmount", "auto_unmount: a crash would turn the mount into an empty directory"},
        {"remount", "remount: a mount of FUSE cannot be changed in place"},
        {"remount,ro", "remount: "},
        {"max_read=4096", "max_read: wsmfs chooses it"},
        {"blkdev", "blkdev: there is no block device"},
        {"fsname", "fsname needs a value"},
        {"ro=1234", "ro takes no value"},
        {"nofail=x", "nofail takes no value"},
        {"ttl=1h,bogus,max_live=3", "unknown option 'bogus'"},
        {"jobs=3", "unknown option 'jobs'"},
        {"uid=1001", "unknown option 'uid'"},
    };

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        struct config *c = config_create();
        struct err e = {0};
        int r = config_parse_words(c, bad[i].words, &e);
        if (r != -EINVAL || e.code != -EINVAL || !strstr(e.text, bad[i].sentence))
            fail_msg("'%s': %d, '%s' where '%s' was expected", bad[i].words, r, e.text, bad[i].sentence);
        config_destroy(c);
    }
}

static void the_source_names_backend_and_place(void **state)
{
    static const struct {
        const char *source, *backend, *rest;
    } good[] = {
        {"local:/srv/ws", "local", "/srv/ws"}, {"local:", "local", ""}, {"local", "local", ""},
        {"docker:python:3.12-slim", "docker", "python:3.12-slim"}, {"/x/mine.so", "/x/mine.so", ""},
        {"/x/mine.so:a:b", "/x/mine.so", "a:b"}, {"kubernetes:agents", "kubernetes", "agents"},
    };
    struct config *c = *state;
    struct err e = {0};

    for (size_t i = 0; i < array_size(good); i++) {
        assert_int_equal(config_set_source(c, good[i].source, &e), 0);
        assert_string_equal(c->backend, good[i].backend);
        assert_string_equal(c->source, good[i].rest);
        assert_string_equal(c->source_full, good[i].source);
    }
    assert_int_equal(config_set_source(c, "./mine.so:x", &e), 0);
    assert_int_equal(c->backend[0], '/');
}

static void bad_sources_are_refused(void **state)
{
    static const struct {
        const char *source, *sentence;
    } bad[] = {
        {"", "an empty source"}, {":/srv", "no backend in front of the colon"},
        {"/srv/ws", "begins with the backend's name: local:/srv/ws"}, {"./ws", "local:./ws"},
        {"-f", "no name of a backend"}, {"Local:/x", "no name of a backend"},
        {"lo cal:/x", "no name of a backend"}, {"local:/a\nb", "a control character"},
    };
    struct config *c = *state;

    for (size_t i = 0; i < array_size(bad); i++) {
        struct err e = {0};
        assert_int_equal(config_set_source(c, bad[i].source, &e), -EINVAL);
        assert_non_null(strstr(e.text, bad[i].sentence));
    }
    assert_null(c->backend);
}

static void local_takes_its_directory_from_the_source(void **state)
{
    struct config *c = *state;
    struct err e = {0};

    assert_int_equal(config_set_source(c, "local:/srv/ws/", &e), 0);
    assert_int_equal(config_finish(c, &e), 0);
    assert_string_equal(c->basedir, "/srv/ws");
    take(c, "basedir=/srv/ws");
    assert_int_equal(config_finish(c, &e), 0);
    take(c, "basedir=/elsewhere");
    assert_int_equal(config_finish(c, &e), -EINVAL);
    assert_non_null(strstr(e.text, "leave one out"));
}

static void without_a_directory_there_is_a_default(void **state)
{
    struct config *c = *state;
    struct err e = {0};

    setenv("XDG_STATE_HOME", "/xdg", 1);
    assert_int_equal(config_set_source(c, "local:", &e), 0);
    assert_int_equal(config_finish(c, &e), 0);
    assert_string_equal(c->basedir, geteuid() == 0 ? "/var/lib/wsmfs/workspaces" : "/xdg/wsmfs/workspaces");
}

static void help_names_every_option(void **state)
{
    cleanup_free char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    config_help(out);
    fclose(out);
    for (const struct option_spec *o = config_options(); o->name; o++) {
        cleanup_free char *shown = NULL;
        assert_true(asprintf(&shown, "  %s=%s ", o->name, o->values) > 0);
        assert_non_null(strstr(text, shown));
        assert_non_null(o->help);
    }
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, make, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(defaults_are_those_of_the_manual),
        WITH(words_set_their_fields),
        WITH(the_last_of_two_holds),
        WITH(a_backslash_keeps_a_comma_in_a_value),
        WITH(words_of_libfuse_go_to_it_and_undo_each_other),
        WITH(words_of_fstab_are_dropped),
        cmocka_unit_test(bad_words_are_refused_with_a_reason),
        WITH(the_source_names_backend_and_place),
        WITH(bad_sources_are_refused),
        WITH(local_takes_its_directory_from_the_source),
        WITH(without_a_directory_there_is_a_default),
        cmocka_unit_test(help_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/commandline.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "backends/backends.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"

/* Long options without a letter. */
enum { OPT_CHECK = 256, OPT_DUMP_BACKEND };

static const struct {
    const char *name;
    int         value; /* what getopt_long returns; a letter works as a short option too */
    const char *help;
} switches[] = {
    {"foreground", 'f', "stay in the foreground, log to stderr"},
    {"debug", 'd', "print every request of the kernel; implies -f"},
    {"check", OPT_CHECK, "mount nothing; say what is missing on this machine and how to mend it"},
    {"dump-backend", OPT_DUMP_BACKEND, "say what the backend of SOURCE can do, as KEY=VALUE lines"},
    {"help", 'h', "print this"},
    {"version", 'V', "print the version"},
};

/* What the switches and -o set. */
static int take_switch(int opt, struct config *c, enum action *action, struct err *e)
{
    switch (opt) {
    case 'f': c->foreground = true; return 0;
    case 'd': c->foreground = c->debug_fuse = true; return 0;
    case 'o': return config_parse_words(c, optarg, e);
    case 'h': *action = ACTION_HELP; return 0;
    case 'V': *action = ACTION_VERSION; return 0;
    case OPT_CHECK: *action = ACTION_CHECK; return 0;
    case OPT_DUMP_BACKEND: *action = ACTION_DUMP_BACKEND; return 0;
    case ':': return err_set(e, -EINVAL, "-o needs its options: -o ttl=1h,allow_other");
    default: return -EINVAL;
    }
}

static int parse_switches(int argc, char **argv, struct config *c, enum action *action, struct err *e)
{
    struct option longs[array_size(switches) + 1] = {0};
    int opt, r;

    for (size_t i = 0; i < array_size(switches); i++)
        longs[i] = (struct option){switches[i].name, no_argument, NULL, switches[i].value};
    opterr = 0;
    while ((opt = getopt_long(argc, argv, ":fdo:hV", longs, NULL)) != -1) {
        r = take_switch(opt, c, action, e);
        if (opt == '?')
            err_set(e, -EINVAL, "unknown argument '%s'; wsmfs --help tells what there is", argv[optind - 1]);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_operands(int n, char **operands, struct config *c, enum action action, struct err *e)
{
    int want = action == ACTION_DUMP_BACKEND ? 1 : 2, r;

    if (n == 0 && action == ACTION_CHECK)
        return 0;
    if (n != want)
        return err_set(e, -EINVAL,
                       n < want ? "usage: wsmfs SOURCE MOUNTPOINT [-f] [-o OPTION,...]; see wsmfs --help"
                                : "one argument too many: '%s'",
                       operands[want]);
    r = config_set_source(c, operands[0], e);
    if (r < 0 || want == 1)
        return r;
    if (operands[1][0] == '\0')
        return err_set(e, -EINVAL, "an empty mount point");
    c->mountpoint = path_absolute(operands[1]);
    return c->mountpoint ? 0 : err_sys(e, -errno, "cannot make %s absolute", operands[1]);
}

int commandline_parse(int argc, char **argv, struct config *c, enum action *action, struct err *e)
{
    int r;

    *action = ACTION_MOUNT;
    c->known_backends = backend_names();
    r = parse_switches(argc, argv, c, action, e);
    if (r < 0 || *action == ACTION_HELP || *action == ACTION_VERSION)
        return r;
    r = take_operands(argc - optind, argv + optind, c, *action, e);
    if (r == 0 && c->config_file)
        r = config_read_file(c, c->config_file, e);
    if (r == 0)
        r = config_finish(c, e);
    if (c->debug_fuse) {
        c->foreground = true;
        c->log_level = LOG_LEVEL_DEBUG;
    }
    return r;
}

/* ── what is printed ─────────────────────────────────────────────────────────────────────── */

int commandline_version(struct config *c)
{
    (void)c;
    printf("wsmfs %s\n", WSMFS_VERSION);
    return 0;
}

int commandline_help(struct config *c)
{
    printf("usage: wsmfs SOURCE MOUNTPOINT [-f] [-d] [-o OPTION,...]\n"
           "       wsmfs [SOURCE MOUNTPOINT] [-o OPTION,...] --check\n\n"
           "SOURCE is a backend and what it needs to know: local:/srv/workspaces,\ndocker:python:3.12-slim. Backends:");
    for (const char *const *name = c->known_backends; *name; name++)
        printf(" %s", *name);
    printf(",\nor the path of a shared object.\n\n");
    for (size_t i = 0; i < array_size(switches); i++)
        printf("  %c%c%s--%-38s%s\n", switches[i].value < 256 ? '-' : ' ',
               switches[i].value < 256 ? switches[i].value : ' ', switches[i].value < 256 ? ", " : "  ",
               switches[i].name, switches[i].help);
    printf("  -o OPTION,...                                set options, which are:\n\n");
    config_help(stdout);
    printf("\nThe same options stand in the [mount] section of the file that config names. Those marked\n"
           "[live] follow a reload (SIGHUP). libfuse's and mount(8)'s own options are taken too, among them\n"
           "allow_other and ro. The manual is wsmfs(8).\n");
    return 0;
}

int commandline_dump_backend(struct config *c)
{
    struct err e = {0};
    struct backend found;
    const struct backend *b = &found;

    if (backend_find(c->backend, &found, &e) < 0) {
        fprintf(stderr, "wsmfs: %s\n", e.text);
        return 1;
    }
    const struct {
        const char *key;
        bool        value;
    } lines[] = {
        {"files_wait", b->files_wait},  {"provision", b->provision != NULL}, {"close", b->close != NULL},
        {"destroy", b->destroy != NULL}, {"list", b->list != NULL},
    };
    printf("name=%s\nabi=%u\n", b->name, b->abi);
    for (size_t i = 0; i < array_size(lines); i++)
        printf("%s=%d\n", lines[i].key, lines[i].value);
    return 0;
}

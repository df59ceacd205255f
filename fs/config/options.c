// SPDX-License-Identifier: Apache-2.0
/* The table of options with its setters and getters. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/config/internal.h"

#define READERS_MAX 64
#define SPIN_MAX_US 1000
#define INSTANCE_MAX 64

static void *field(const struct config *c, const struct option_spec *o)
{
    return (char *)c + o->offset;
}

static const char *const bool_words[] = {"no", "yes", "off", "on", "false", "true", "0", "1", NULL};

static int set_bool(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    int i = word_index(bool_words, value);

    if (i < 0)
        return err_set(e, -EINVAL, "neither yes nor no");
    *(bool *)field(c, o) = i % 2;
    return 0;
}

static char *get_bool(const struct config *c, const struct option_spec *o)
{
    return strdup(bool_words[*(bool *)field(c, o)]);
}

static int set_word(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    int i = word_index(o->words, value);
    char known[160] = "";

    if (i >= 0) {
        *(int *)field(c, o) = i;
        return 0;
    }
    for (size_t k = 0, n = 0; o->words[k] && n < sizeof(known); k++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", k ? ", " : "", o->words[k]);
    return err_set(e, -EINVAL, "not one of %s", known);
}

static char *get_word(const struct config *c, const struct option_spec *o)
{
    return strdup(o->words[*(int *)field(c, o)]);
}

static int set_duration(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    if (duration_parse(value, field(c, o)) < 0)
        return err_set(e, -EINVAL, "not a duration such as 90, 90s, 10m, 2h or 1d");
    return 0;
}

static char *get_duration(const struct config *c, const struct option_spec *o)
{
    return duration_text(*(int64_t *)field(c, o));
}

static int set_count(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    uint64_t v;

    if (number_parse(value, 1000000000, &v) < 0)
        return err_set(e, -EINVAL, "not a number from 0 (no limit) to 1000000000");
    *(unsigned *)field(c, o) = (unsigned)v;
    return 0;
}

static char *get_count(const struct config *c, const struct option_spec *o)
{
    char *text;

    return asprintf(&text, "%u", *(unsigned *)field(c, o)) < 0 ? NULL : text;
}

static int set_size(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    if (size_parse(value, field(c, o)) < 0)
        return err_set(e, -EINVAL, "not a size such as 4096, 64K, 256M or 4G");
    return 0;
}

static char *get_size(const struct config *c, const struct option_spec *o)
{
    return size_text(*(uint64_t *)field(c, o));
}

/* Their bits in this order. */
static const char *const busy_words[] = {"files", "jobs", "processes", NULL};

/* A list of words; "none" for none of them. */
static int set_busy(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    cleanup_free char *copy = strdup(value);
    unsigned bits = 0;
    char *rest;

    (void)o;
    if (!copy)
        return err_set(e, -ENOMEM, "out of memory");
    for (char *word = strtok_r(copy, ",+", &rest); word; word = strtok_r(NULL, ",+", &rest)) {
        int i = word_index(busy_words, word);
        if (i < 0 && strcmp(value, "none") != 0)
            return err_set(e, -EINVAL, "not a list of files, jobs and processes, or none");
        bits |= i < 0 ? 0u : 1u << i;
    }
    c->busy = bits;
    return 0;
}

static char *get_busy(const struct config *c, const struct option_spec *o)
{
    char *text = c->busy ? NULL : strdup("none");

    (void)o;
    for (size_t i = 0; busy_words[i]; i++) {
        cleanup_free char *before = c->busy & 1u << i ? text : NULL;
        if (c->busy & 1u << i && asprintf(&text, "%s%s%s", before ? before : "", before ? "," : "", busy_words[i]) < 0)
            return NULL;
    }
    return text;
}

static int set_readers(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    uint64_t v = 0;

    (void)o;
    if (strcmp(value, "auto") != 0 && (number_parse(value, READERS_MAX, &v) < 0 || v == 0))
        return err_set(e, -EINVAL, "neither auto nor a number from 1 to %d", READERS_MAX);
    c->readers = (unsigned)v;
    return 0;
}

static char *get_readers(const struct config *c, const struct option_spec *o)
{
    return c->readers ? get_count(c, o) : strdup("auto");
}

static int set_spin(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    uint64_t v = 0;

    (void)o;
    if (number_parse(value, SPIN_MAX_US, &v) < 0)
        return err_set(e, -EINVAL, "not a number from 0 to %d", SPIN_MAX_US);
    c->spin_us = (unsigned)v;
    return 0;
}

static int replace(char **where, char *text, struct err *e)
{
    if (!text)
        return err_set(e, -ENOMEM, "out of memory");
    free(*where);
    *where = text;
    return 0;
}

static int set_path(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    if (value[0] == '\0')
        return err_set(e, -EINVAL, "an empty path");
    return replace(field(c, o), path_absolute(value), e);
}

/* It becomes part of directory names and, hashed, of sandboxes' names. */
static int set_instance(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    size_t n = strlen(value);

    if (n == 0 || n > INSTANCE_MAX || !isalnum((unsigned char)value[0]) ||
        strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n)
        return err_set(e, -EINVAL,
                       "not 1 to %d letters, digits, '.', '_' and '-' that begin with a letter or digit",
                       INSTANCE_MAX);
    return replace(field(c, o), strdup(value), e);
}

static char *get_text(const struct config *c, const struct option_spec *o)
{
    const char *text = *(char **)field(c, o);

    return text ? strdup(text) : NULL;
}

static int set_pair(struct config *c, const char *section, const char *key, const char *value, struct err *e)
{
    return config_pair_set(c, &(struct config_pair){ .section = (char *)section, .key = (char *)key,
                                                     .value = (char *)value }, e);
}

/* A key of [sandbox], which the backend judges. */
static int set_sandbox(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    return set_pair(c, "sandbox", o->name, value, e);
}

/* The same for [backend NAME]. */
static int set_backend(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    return set_pair(c, "backend", o->name, value, e);
}

static int set_sandbox_path(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    cleanup_free char *path = *value ? path_absolute(value) : strdup(value);

    return path ? set_sandbox(c, o, path, e) : err_set(e, -ENOMEM, "out of memory");
}

/* They are told as their section. */
static char *get_pair(const struct config *c, const struct option_spec *o)
{
    (void)c;
    (void)o;
    return NULL;
}

#define WORDS(...) (const char *const[]){__VA_ARGS__, NULL}
#define AT(member) .offset = offsetof(struct config, member)
#define FLAG(member) .values = "yes|no", .initial = "no", .set = set_bool, .get = get_bool, AT(member)
#define ENUM(member, shown, ...) \
    .values = shown, .words = WORDS(__VA_ARGS__), .set = set_word, .get = get_word, AT(member)
#define DURATION(member) .values = "DURATION", .set = set_duration, .get = get_duration, AT(member)
#define COUNT(member) .values = "NUMBER", .initial = "0", .set = set_count, .get = get_count, AT(member)
#define SIZE(member) .values = "SIZE", .set = set_size, .get = get_size, AT(member)
#define SANDBOX(shown) .values = shown, .set = set_sandbox, .get = get_pair, AT(pairs)
#define PATH(member, shown) .values = shown, .set = set_path, .get = get_text, AT(member)

/* The words of an enumeration stand in the order of its constants. */
static const struct option_spec table[] = {
    {.name = "config", PATH(config_file, "FILE"),
     .help = "read options, users and backend keys from this INI file; -o wins over it"},
    {.name = "isolation", .initial = "per_agent",
     ENUM(isolation, "per_agent|per_session|per_user", "per_agent", "per_session", "per_user"),
     .help = "which sessions share one workspace"},
    {.name = "id_scheme", .initial = "wsmfs", ENUM(id_scheme, "wsmfs|agentscope", "wsmfs", "agentscope"),
     .help = "how a workspace's id follows from its names"},
    {.name = "names", .initial = "plain", ENUM(names, "plain|any|made", "plain", "any", "made"),
     .help = "which names exist as soon as they are looked up: plain words, any valid ones, only made ones"},
    {.name = "users", .initial = "any", .live = true, ENUM(users, "any|listed", "any", "listed"),
     .help = "whether users without a [user NAME] section exist"},
    {.name = "ttl", .initial = "1h", .live = true, DURATION(ttl_s),
     .help = "how long a workspace may be idle before it is closed; 0: for ever"},
    {.name = "max_age", .initial = "0", DURATION(max_age_s),
     .help = "close even a busy workspace after this time; 0: never"},
    {.name = "provision", .initial = "access", ENUM(provision, "access|jobs", "access", "jobs"),
     .help = "what starts a sandbox: any access, or only a job and `ctl provision`"},
    {.name = "provision_timeout", .initial = "5m", DURATION(provision_timeout_s),
     .help = "how long an access waits for a workspace that is being provisioned"},
    {.name = "grace", .initial = "10s", DURATION(grace_s),
     .help = "time between TERM and KILL when a workspace is closed"},
    {.name = "shutdown_timeout", .initial = "60s", DURATION(shutdown_timeout_s),
     .help = "how long the end of the mount waits for workspaces to close"},
    {.name = "keep_on_exit", FLAG(keep_on_exit),
     .help = "leave workspaces open when the mount ends; the next one takes them over"},
    {.name = "state_dir", PATH(state_dir, "DIR"),
     .help = "where the mount keeps its records; default: below /var/lib/wsmfs, for an ordinary user "
             "below $XDG_STATE_HOME/wsmfs"},
    {.name = "basedir", PATH(basedir, "DIR"),
     .help = "where workspaces lie on this host; default: /var/lib/wsmfs/workspaces, for an ordinary "
             "user $XDG_STATE_HOME/wsmfs/workspaces"},
    {.name = "basedir_on_engine", .values = "DIR", .set = set_backend, .get = get_pair, AT(pairs),
     .help = "(docker) the base directory's path for the engine, when wsmfs runs in a container"},
    {.name = "instance", .values = "NAME", .set = set_instance, .get = get_text, AT(instance),
     .help = "what the base directory's instance must be; default: what it says, or a random one"},
    {.name = "bind_across_users", FLAG(bind_across_users),
     .help = "allow a session to be bound to a workspace of another user"},
    {.name = "symlinks", .initial = "contained",
     ENUM(symlinks, "contained|anchored|raw", "contained", "anchored", "raw"),
     .help = "how the targets of symbolic links are shown"},
    {.name = "owner", .initial = "auto", ENUM(owner, "auto|native|tenant", "auto", "native", "tenant"),
     .help = "whose the files are: as on disk, or the tenant's"},
    {.name = "show_control", FLAG(show_control), .help = "list .wsm among a session's files"},
    {.name = "max_live", COUNT(max_live), .help = "how many workspaces may be open at once; 0: no limit"},
    {.name = "max_live_per_user", COUNT(max_live_per_user),
     .help = "the same for each user; 0: no limit"},
    {.name = "busy", .values = "files,jobs,processes", .initial = "files,jobs", .set = set_busy, .get = get_busy, AT(busy),
     .help = "what keeps a workspace from being closed as idle: open files, running jobs, "
             "processes that jobs left running; or none"},
    {.name = "confine", .values = "on|off", .initial = "on", .set = set_bool, .get = get_bool, AT(confine),
     .help = "run jobs in a sandbox of their workspace (local); off: as plain processes of this host"},
    {.name = "memory", SANDBOX("SIZE"), .help = "the most memory that a workspace's jobs take together, such as 2G"},
    {.name = "cpus", SANDBOX("NUMBER"), .help = "the processors whose time they take together, such as 1.5"},
    {.name = "pids", SANDBOX("NUMBER"), .help = "how many processes and threads they have together"},
    {.name = "network", SANDBOX("none|host"),
     .help = "whether jobs reach the host's network, its loopback and abstract sockets included; for docker also "
             "the name of a network of the engine"},
    {.name = "env", SANDBOX("VARIABLES"), .help = "K=V separated by blanks, for every job's environment"},
    {.name = "env_file", .values = "FILE", .set = set_sandbox_path, .get = get_pair, AT(pairs),
     .help = "the same, from a file with one a line"},
    {.name = "bind", SANDBOX("PATHS"), .help = "paths of this host that jobs see: FROM[:TO][:ro|:rw], separated by blanks"},
    {.name = "setup", SANDBOX("COMMAND"), .help = "a command that runs once in each new sandbox, before its first job"},
    {.name = "max_jobs", COUNT(max_jobs), .help = "how many jobs may run at once; 0: no limit"},
    {.name = "max_jobs_per_workspace", COUNT(max_jobs_per_workspace),
     .help = "the same for each workspace; 0: no limit"},
    {.name = "job_keep", .initial = "1h", DURATION(job_keep_s),
     .help = "how long an ended job and its output are kept; 0: until it is removed"},
    {.name = "job_output_max", .initial = "256M", SIZE(job_output_max_bytes),
     .help = "how much of one job's output is stored before it waits for a reader; 0: no limit"},
    {.name = "spool_max", .initial = "4G", SIZE(spool_max_bytes),
     .help = "the same for all jobs together; 0: no limit"},
    {.name = "passthrough", .initial = "auto", ENUM(passthrough, "auto|on|off", "auto", "on", "off"),
     .help = "let the kernel read and write backing files itself"},
    {.name = "readers", .values = "auto|NUMBER", .initial = "auto", .set = set_readers,
     .get = get_readers, AT(readers), .help = "threads that take requests from the kernel"},
    {.name = "spin", .values = "NUMBER", .initial = "100", .set = set_spin, .get = get_count, AT(spin_us),
     .help = "microseconds for which one of them looks for the next request before it sleeps"},
    {.name = "log_level", .initial = "info", .live = true,
     ENUM(log_level, "error|warning|info|debug", "error", "warning", "info", "debug"),
     .help = "how much is logged"},
    {.name = NULL},
};

_Static_assert(sizeof(enum isolation) == sizeof(int), "set_word stores enumerations as int");
_Static_assert(LOG_LEVEL_ERROR == 0 && LOG_LEVEL_DEBUG == 3, "log_level's words follow its constants");

const struct option_spec *config_options(void) { return table; }

const struct option_spec *option_find(const char *name)
{
    for (const struct option_spec *o = table; o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

/* Such a value could not stand in a file or a log. */
static bool has_control_character(const char *value)
{
    for (; *value; value++)
        if ((unsigned char)*value < 0x20 || *value == 0x7f)
            return true;
    return false;
}

int option_set(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    if (!value && o->set == set_bool)
        value = "yes";
    if (!value)
        return err_set(e, -EINVAL, "needs a value: %s=%s", o->name, o->values);
    if (has_control_character(value))
        return err_set(e, -EINVAL, "a control character in the value");
    if (value[0] == ' ' || (value[0] && value[strlen(value) - 1] == ' '))
        return err_set(e, -EINVAL, "a blank at the begin or end of the value");
    return o->set(c, o, value, e);
}

void config_help(FILE *out)
{
    for (const struct option_spec *o = table; o->name; o++) {
        char left[80];
        snprintf(left, sizeof(left), "%s=%s", o->name, o->values);
        fprintf(out, "  %-42s %s%s%s%s%s\n", left, o->help, o->initial ? " (" : "",
                o->initial ? o->initial : "", o->initial ? ")" : "", o->live ? " [live]" : "");
    }
}

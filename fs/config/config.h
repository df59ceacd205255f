// SPDX-License-Identifier: Apache-2.0
/* Everything that can be configured, from one table of options: the command line's -o words, the
 * INI file, --help and the manual all come from it. */
#ifndef WSMFS_CONFIG_CONFIG_H
#define WSMFS_CONFIG_CONFIG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "fs/base/err.h"

enum isolation { ISOLATION_PER_AGENT, ISOLATION_PER_SESSION, ISOLATION_PER_USER };
enum id_scheme { ID_SCHEME_WSMFS, ID_SCHEME_AGENTSCOPE };
enum names_rule { NAMES_PLAIN, NAMES_ANY, NAMES_MADE };
enum users_rule { USERS_ANY, USERS_LISTED };
enum provision_rule { PROVISION_ACCESS, PROVISION_JOBS };
enum owner_rule { OWNER_AUTO, OWNER_NATIVE, OWNER_TENANT };
enum symlinks_rule { SYMLINKS_CONTAINED, SYMLINKS_ANCHORED, SYMLINKS_RAW };
enum busy_bits { BUSY_FILES = 1, BUSY_JOBS = 2, BUSY_PROCESSES = 4 };
enum tristate { TRI_AUTO, TRI_ON, TRI_OFF };

/* One [user NAME] section. */
struct user_config {
    struct user_config *next;
    char    *name;
    bool     has_uid;
    uid_t    uid;
    gid_t    gid;        /* unless set: the uid's primary group, or the same number as the uid where
                          * this machine knows no such user */
    gid_t   *groups;
    size_t   n_groups;
    mode_t   mode;       /* of /wsm/NAME, default 0700 */
    unsigned max_live;   /* 0: max_live_per_user */
};

/* One `key = value` of [backend NAME] or [sandbox], for the backend to judge. */
struct config_pair {
    struct config_pair *next;
    char *section; /* "backend" (this mount's own) or "sandbox" */
    char *key, *value;
    int   line;    /* in the config file; 0: from the command line */
    char *file;    /* the config file; NULL: from the command line */
};

/* The pair of that section and key; NULL. */
const struct config_pair *config_pair_find(const struct config_pair *pairs, const char *section, const char *key);
/* Says that a pair is refused, where it stands and why; `title` is its section as it stands there. Returns `code`. */
int config_pair_refuse(const struct config_pair *p, const char *title, int code, const char *why, struct err *e);

/* The effective configuration. What is marked "live" may change at a reload: read it under `lock`
 * (or with the accessors below); all else is fixed before the mount. */
struct config {
    pthread_mutex_t lock;   /* guards the live fields and the list of users; a leaf of the order */
    pthread_mutex_t reload; /* one reload at a time, reading the file included; before `lock` */

    /* the command line's words */
    char *backend;      /* "local", or the path of a shared object (holds a '/') */
    char *source;       /* what stands behind the colon */
    char *source_full;  /* as given */
    char *mountpoint;   /* absolute */
    bool  foreground, debug_fuse;
    struct config_word *command; /* the -o words, kept for a reload; config's own */
    char *config_file;  /* absolute, or NULL */
    const char *const *known_backends; /* borrowed; names that a [backend NAME] may have, NULL: any */

    /* What follows comes from options, in whatever way they were given. */
    enum isolation isolation;
    enum id_scheme id_scheme;
    enum names_rule names;
    enum users_rule users;            /* live */
    int64_t  ttl_s;                   /* live; 0: never */
    int64_t  max_age_s;               /* 0: none */
    int64_t  provision_timeout_s;
    int64_t  grace_s;
    int64_t  shutdown_timeout_s;
    bool     keep_on_exit;
    enum provision_rule provision;
    char    *state_dir;               /* NULL: the default, once the instance is known */
    char    *basedir;                 /* NULL: the default; set after config_finish() */
    char    *instance;                /* NULL: from the base directory */
    bool     bind_across_users;
    enum symlinks_rule symlinks;
    enum owner_rule owner;
    bool     show_control;
    unsigned max_live, max_live_per_user; /* 0: no limit */
    unsigned busy;                    /* what keeps a workspace from being evicted: BUSY_… */
    bool     confine;                 /* jobs run in a sandbox of their workspace */
    unsigned max_jobs, max_jobs_per_workspace; /* that run; 0: no limit */
    int64_t  job_keep_s;              /* how long ended jobs are kept; 0: until they are removed */
    uint64_t job_output_max_bytes;    /* stored of one job before it waits for a reader; 0: no limit */
    uint64_t spool_max_bytes;         /* of all jobs; 0: no limit */
    enum tristate passthrough;
    unsigned spin_us;                 /* how long a reader looks for the next request before it sleeps */
    unsigned readers;                 /* 0: chosen by wsmfs */
    int      log_level;               /* enum log_level; live */

    char    *fuse_opts;               /* libfuse's own words, joined by commas, or NULL */
    bool     allow_other;             /* among them; kept here too */
    bool     read_only;               /* "ro" among them */
    struct config_word *mount_words;  /* what fuse_opts is made of; config's own */

    struct user_config *user_list;    /* live */
    struct config_pair *pairs;
};

/* One option. The table says all that help, manual, command line and file need. */
struct option_spec {
    const char *name;
    const char *values;  /* for help: "per_agent|per_session|per_user", "DURATION", "DIR", … */
    const char *initial; /* the default, as text */
    const char *help;    /* one sentence */
    bool        live;    /* a reload may change it */
    int       (*set)(struct config *c, const struct option_spec *o, const char *value, struct err *e);
    char     *(*get)(const struct config *c, const struct option_spec *o); /* malloc'ed text */
    size_t      offset;  /* of the field, for the generic setters */
    const char *const *words; /* for enumerations, NULL-terminated */
};

/* The table, ended by an entry without a name. */
const struct option_spec *config_options(void);

/* A configuration with every default; NULL when out of memory. */
struct config *config_create(void);
void config_destroy(struct config *c);

/* Takes the words of one -o argument ("a=b,c"; `\,` is a comma in a value, `\\` a backslash). Words
 * that are neither ours nor libfuse's or mount(8)'s are refused by name: -EINVAL. What /etc/fstab
 * holds for others (defaults, nofail, x-*, …) is dropped. An option given twice: the last one
 * holds. Relative paths are made absolute now. */
int config_parse_words(struct config *c, const char *words, struct err *e);

/* Reads an INI file: [mount] (the options), [sandbox], [backend NAME], [user NAME]. What the
 * command line set wins over the file. -EINVAL with file, line and word for an unknown section or
 * key, a bad value or a malformed line; then nothing of the file has been taken. A value is one
 * line and is taken as it stands (no quotes, no comments behind it); comments are lines of their
 * own that begin with ';' or '#'. Blanks in front of a line mean nothing. An option that takes
 * yes or no may stand without a value. */
int config_read_file(struct config *c, const char *path, struct err *e);

/* Splits "local:/srv/ws" into backend and source ("local" alone is "local:"). -EINVAL with a
 * sentence for an empty or unknown form. */
int config_set_source(struct config *c, const char *source, struct err *e);

/* The directory below which workspaces and state lie where nothing else is said: /var/lib/wsmfs, for
 * an ordinary user $XDG_STATE_HOME/wsmfs or ~/.local/state/wsmfs. malloc'ed; NULL when there is no
 * home directory. */
char *config_default_dir(void);

/* After source, words and file: fills in what follows from them (for `local` the base directory
 * from the source, else its default: /var/lib/wsmfs/workspaces, for an ordinary user
 * $XDG_STATE_HOME or ~/.local/state and /wsmfs/workspaces) and refuses what contradicts itself:
 * -EINVAL. */
int config_finish(struct config *c, struct err *e);

/* Reads the file again and takes over the live options and the users; what the command line said
 * still wins. Another option that differs stays as it is and is named in *kept (malloc'ed, comma
 * separated; NULL when none). Without a file there is nothing to read: 0. On failure nothing has
 * changed. A changed log_level is set at once. Any thread; another reload is waited for. */
int config_reload(struct config *c, char **kept, struct err *e);

/* The effective configuration as an INI text, secrets masked (values of keys, and of variables in
 * `env`, that end in token, password, secret or key). malloc'ed. */
char *config_dump(struct config *c);

/* Prints the options for --help. */
void config_help(FILE *out);

/* Copies what is configured for `name` into *out (next, name and groups are NULL there); false when
 * nothing is. Any thread. */
bool config_user(struct config *c, const char *name, struct user_config *out);

/* Copies the configured further groups of `name`, at most `max`; their number. Any thread. */
size_t config_user_groups(struct config *c, const char *name, gid_t *groups, size_t max);

/* Calls fn for each configured user's name, the lock held. */
void config_each_user(struct config *c, void (*fn)(const char *name, void *arg), void *arg);

int64_t config_ttl_s(struct config *c);
enum users_rule config_users(struct config *c);

/* "90", "90s", "10m", "2h", "1d" → seconds; "0" is 0. -EINVAL for anything else or above 100
 * years. */
int duration_parse(const char *text, int64_t *seconds);

/* "4096", "64K", "256M", "4G" → bytes (powers of 1024). -EINVAL for anything else. */
int size_parse(const char *text, uint64_t *bytes);

/* "256M" for 268435456: in the largest unit that divides it; malloc'ed. */
char *size_text(uint64_t bytes);

/* Absolute form of a path, lexically cleaned of "//", "/./" and a trailing "/" ("..", which may
 * pass through a link, stays); malloc'ed, NULL when the working directory cannot be had or out of
 * memory. */
char *path_absolute(const char *path);

#endif

// SPDX-License-Identifier: Apache-2.0
/* What all parts of the command `wsm` use: how a subcommand looks, how it reads its options, and how
 * it complains. wsm knows a mounted wsmfs by its files alone. */
#ifndef WSM_H
#define WSM_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Exit statuses. exec passes on its command's, so its own failure has to be another one. */
#define EXIT_WRONG_USE 2
#define EXIT_EXEC_FAILED 125

static inline void wsm_free_fn(void *p) { free(*(void **)p); }
static inline void wsm_close_fn(int *fd) { if (*fd >= 0) close(*fd); }
static inline void wsm_dir_fn(DIR **d) { if (*d) closedir(*d); }
static inline void wsm_file_fn(FILE **f) { if (*f) fclose(*f); }

#define cleanup_free  __attribute__((cleanup(wsm_free_fn)))
#define cleanup_close __attribute__((cleanup(wsm_close_fn)))
#define cleanup_dir   __attribute__((cleanup(wsm_dir_fn)))
#define cleanup_file  __attribute__((cleanup(wsm_file_fn)))

#define array_size(a) (sizeof(a) / sizeof((a)[0]))

/* ── options ─────────────────────────────────────────────────────────────────────────────── */

enum option_kind {
    OPTION_FLAG, /* bool */
    OPTION_TEXT, /* const char * */
    OPTION_LIST, /* struct texts */
};

/* Values of an option that may be given several times, in order. */
struct texts {
    const char **list; /* malloc'ed; the texts are the command line's own */
    size_t       n;
};

/* One option of a subcommand. A table ends with an entry without a name. */
struct option_row {
    char        letter; /* 0: none */
    const char *name;   /* the long form, without the dashes */
    const char *value;  /* what it is called in the help; NULL for a flag */
    const char *help;
    enum option_kind kind;
    size_t      at;     /* where its value goes in the subcommand's options */
};

/* ── subcommands ─────────────────────────────────────────────────────────────────────────── */

struct command {
    const char *name;
    const char *words;    /* what follows the options, for the help */
    const char *summary;  /* one line */
    const char *text;     /* more for its own help; NULL: none */
    const struct option_row *options;
    size_t      options_size; /* bytes of its struct of options */
    int         min_words, max_words; /* max -1: any number */
    bool        ends_at_word; /* what follows the first word is no option of ours */
    int         wrong_use;    /* exit status for a wrong command line; 0: EXIT_WRONG_USE */
    /* Does it and returns the exit status. `options` is zeroed but for what was given. `self` serves
     * those that share one function. */
    int       (*run)(const struct command *self, void *options, char **words, int n_words);
};

/* One or more subcommands a file; each table ends with an entry without a name. */
extern const struct command exec_commands[], ps_commands[], status_commands[], provision_commands[],
    close_commands[], destroy_commands[], plain_commands[], fresh_commands[], bind_commands[], jobs_commands[],
    logs_commands[], events_commands[], doctor_commands[];

/* Reads the options of `argv` (whose first word is the subcommand) into `options` and leaves the other
 * words in `words`. Returns -1 to go on, else the exit status: help was asked for, or something is
 * wrong and that was said. Lists in `options` are freed with options_free. */
int options_read(const struct command *c, int argc, char **argv, void *options, char ***words, int *n_words);
void options_free(const struct command *c, void *options);

/* Prints the help of one subcommand, made from its tables. */
void options_help(const struct command *c);

/* ── saying ──────────────────────────────────────────────────────────────────────────────── */

/* Says on standard error what is wrong, with "wsm: " before and a newline behind. Returns -1. */
int complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* asprintf into a fresh string; ends the program where there is no memory. */
char *text_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* malloc'ed and zeroed, never NULL: ends the program where there is no memory. */
void *take_memory(size_t n, size_t size_bytes);
/* The same for realloc. */
void *more_memory(void *old, size_t n, size_t size_bytes);

#endif

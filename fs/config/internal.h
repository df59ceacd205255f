// SPDX-License-Identifier: Apache-2.0
/* What the files of fs/config share. */
#ifndef WSMFS_CONFIG_INTERNAL_H
#define WSMFS_CONFIG_INTERNAL_H

#include "fs/config/config.h"

/* One word of -o, or one that goes to libfuse. */
struct config_word {
    struct config_word *next;
    char *name;
    char *value; /* NULL for a bare word */
};

/* ── options.c: the table ────────────────────────────────────────────────────────────────── */

const struct option_spec *option_find(const char *name);

/* Sets one option; `value` NULL is a bare word. The sentence gives the reason alone: "not a
 * duration (…)"; the caller says where. */
int option_set(struct config *c, const struct option_spec *o, const char *value, struct err *e);

/* ── mount_words.c: words of libfuse and mount(8) ────────────────────────────────────────── */

/* What becomes of such a word. */
enum word_kind {
    WORD_NONE,   /* not a word of theirs */
    WORD_KEEP,   /* goes to libfuse */
    WORD_DROP,   /* means nothing to us; where it has a group, it takes back the others of it */
    WORD_REFUSE,
};

/* Is `name` such a word? `value` NULL: it stands alone. */
enum word_kind mount_word_kind(const char *name, const char *value);

/* Takes one whose kind is not WORD_NONE. */
int mount_word_set(struct config *c, const char *name, const char *value, struct err *e);

/* Makes c->fuse_opts, allow_other and read_only from c->mount_words. */
int mount_words_finish(struct config *c, struct err *e);

struct suggestion;
void mount_words_suggest(struct suggestion *s);

/* Lists of words. append copies both texts; -ENOMEM. */
int config_words_append(struct config_word **list, const char *name, const char *value);
void config_words_free(struct config_word *w);

/* ── config.c ────────────────────────────────────────────────────────────────────────────── */

/* Sets a pair for the backend, in place of one of that section and key. `file` is NULL for one from the command line.
 * Copies the texts. -ENOMEM. */
int config_pair_set(struct config *c, const struct config_pair *pair, struct err *e);

/* ── words.c: one setting from any origin ────────────────────────────────────────────────── */

enum origin { FROM_COMMAND, FROM_FILE };

/* Sets an option or takes a mount word. The sentence holds `name` but not where it stood. */
int config_apply(struct config *c, enum origin origin, const char *name, const char *value,
                 struct err *e);

/* Sets all words of the command line once more. */
int config_apply_command(struct config *c, const struct config_word *w, struct err *e);

/* ── ini_file.c ──────────────────────────────────────────────────────────────────────────── */

/* One line with a key. */
struct ini_item {
    struct ini_item *next;
    char *section; /* "user" of [user alice] */
    char *name;    /* "alice", NULL where there is none */
    char *key;
    char *value;   /* NULL: the key stands alone */
    int   line;
};

/* Reads a file into a list in its order. Each section appears as an item of its own first, with
 * key NULL. -EINVAL with file and line for what is no INI. */
int ini_file_load(const char *path, struct ini_item **out, struct err *e);
void ini_items_free(struct ini_item *i);

/* ── sections.c ──────────────────────────────────────────────────────────────────────────── */

/* Takes all items into `c`. The sentence begins with "PATH:LINE: ". */
int sections_apply(struct config *c, const char *path, const struct ini_item *items, struct err *e);

/* ── users.c ─────────────────────────────────────────────────────────────────────────────── */

/* A new user at the end of the list; sentence without a place. */
int user_section_begin(struct config *c, const char *name, struct user_config **out, struct err *e);
int user_key_set(struct user_config *u, const char *key, const char *value, struct err *e);
/* What depends on more than one key. */
int user_section_end(struct user_config *u, struct err *e);
void users_free(struct user_config *u);


/* ── suggest.c ───────────────────────────────────────────────────────────────────────────── */

/* Of the words that are handed to it, the one nearest to a mistyped one. */
struct suggestion {
    const char *typed;
    const char *best;
    unsigned    distance;
};
void suggest_word(struct suggestion *s, const char *candidate);

/* "; did you mean 'ttl'?", or "" when nothing is near. In `buf`, which is returned. */
const char *suggest_text(const struct suggestion *s, char *buf, size_t size);

/* ── parse.c ─────────────────────────────────────────────────────────────────────────────── */

/* Decimal digits alone, at most `max`. -EINVAL for anything else. */
int number_parse(const char *text, uint64_t max, uint64_t *out);

/* "90m" in the largest unit that divides it; malloc'ed. */
char *duration_text(int64_t seconds);

/* A word as tables hold it → its place, or -1. */
int word_index(const char *const *words, const char *word);

#endif

// SPDX-License-Identifier: Apache-2.0
/* What is written about a job before its start: text files, and what they mean. Pure functions. */
#ifndef WSMFS_JOBS_SETTINGS_H
#define WSMFS_JOBS_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/base/err.h"

#define SETTINGS_CMD_MAX_BYTES  (1u << 20)
#define SETTINGS_TEXT_MAX_BYTES (1u << 20)

/* A NULL-terminated list of texts in one allocation: free() the list. */
typedef char **settings_list;

/* `argv`: a JSON array of strings, at least one, the first not empty; no NUL in any. -EINVAL with a
 * sentence. */
int settings_argv(const char *text, size_t size, settings_list *out, struct err *e);

/* `env`: K=V lines, or K=V each with a NUL behind it where the text holds one. Empty lines and one
 * unfinished last line (`whole` false) are let pass. -EINVAL with a sentence. */
int settings_env(const char *text, size_t size, bool whole, settings_list *out, struct err *e);

/* `cwd`: where in the workspace ("" is its root), without a slash at either end. Relative, or below
 * /workspace, or below `own` (the session's path on the mount; NULL: none). -EINVAL for all else, and
 * for what climbs out. *out is malloc'ed. */
int settings_cwd(const char *text, size_t size, const char *own, char **out, struct err *e);

/* `timeout`: seconds, with a fraction where wanted; empty or 0: none. */
int settings_timeout(const char *text, size_t size, uint64_t *timeout_ms, struct err *e);

/* `tty`: COLSxROWS, each 1 to 65535; empty: no terminal (both 0). */
int settings_tty(const char *text, size_t size, uint16_t *cols, uint16_t *rows, struct err *e);

/* `user`: one word, "" for none. *out is malloc'ed. */
int settings_user(const char *text, size_t size, char **out, struct err *e);

/* A signal by name ("INT", "SIGINT", "int") or number: 1 to 64, or -EINVAL. */
int settings_signal(const char *word);

#endif

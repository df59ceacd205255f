// SPDX-License-Identifier: Apache-2.0
/* The log: one line an event, with fields. To stderr in the foreground, else to the journal or
 * syslog. */
#ifndef WSMFS_BASE_LOG_H
#define WSMFS_BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum log_target { LOG_TARGET_STDERR, LOG_TARGET_SYSTEM };

/* What an event is about; NULL members are left out. */
struct log_fields {
    const char *user, *agent, *session, *id;
};

/* Chooses where lines go and how much is said. The log is the one state of the process that every
 * module reaches; it is set up in main (before there are threads, or once they are ready for it)
 * and only its level changes later (atomically). The system's log is the journal where there is
 * one, else syslog(3). Stderr that a service manager has connected to the journal (environment
 * JOURNAL_STREAM, systemd.exec(5)) is the journal as well, so that the fields are kept. */
void log_open(enum log_target target);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* "error", "warning", "info", "debug" → level, or -EINVAL. */
int log_level_parse(const char *word);
const char *log_level_name(enum log_level level);

/* The longest line; what is longer is cut. */
#define LOG_LINE_MAX 4096

/* The forms a line takes: "wsmfs: warning: TEXT user=alice …\n"; the same without program and
 * level, nor the newline, as syslog(3) wants it; and the journal's native protocol, KEY=VALUE lines
 * (systemd's docs/JOURNAL_NATIVE_PROTOCOL.md). */
enum log_form { LOG_FORM_STDERR, LOG_FORM_SYSLOG, LOG_FORM_JOURNAL };

/* Formats one event into `buf` (`size` at least 2, NUL-terminated) and returns its length. A pure
 * function; log_event() uses it. */
size_t log_format(char *buf, size_t size, enum log_form form, enum log_level level,
                  const struct log_fields *f, const char *text);

/* Writes one line; control characters in the text and the fields are escaped, so no name of a
 * tenant can forge a line. Any thread. No secrets: the caller's duty. */
void log_event(enum log_level level, const struct log_fields *f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...)   log_event(LOG_LEVEL_ERROR, NULL, __VA_ARGS__)
#define log_warning(...) log_event(LOG_LEVEL_WARNING, NULL, __VA_ARGS__)
#define log_info(...)    log_event(LOG_LEVEL_INFO, NULL, __VA_ARGS__)
#define log_debug(...)   log_event(LOG_LEVEL_DEBUG, NULL, __VA_ARGS__)

#endif

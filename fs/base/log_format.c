// SPDX-License-Identifier: Apache-2.0
/* How a line of the log is written: escaping, and the three forms. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "fs/base/log.h"
#include "fs/base/utf8.h"

/* Room is always kept for the NUL; what does not fit is left out. */
struct out {
    char  *buf;
    size_t size, len;
};

static void put(struct out *o, const char *bytes, size_t n)
{
    if (n >= o->size - o->len)
        n = o->size - o->len - 1;
    memcpy(o->buf + o->len, bytes, n);
    o->len += n;
    o->buf[o->len] = '\0';
}

static void put_text(struct out *o, const char *text) { put(o, text, strlen(text)); }

/* The length of the character at `s` when a terminal may show it, else 0: not UTF-8, a control
 * character, or one of the two that end a line (U+2028, U+2029). */
static size_t printable_length(const char *s)
{
    uint32_t c;
    size_t n = utf8_read(s, &c);

    return utf8_is_control(c) || c == 0x2028 || c == 0x2029 ? 0 : n;
}

static void put_hex(struct out *o, unsigned char c)
{
    char hex[5];

    snprintf(hex, sizeof(hex), "\\x%02x", c);
    put(o, hex, 4);
}

/* `escape`: printable characters that get a backslash. */
static void put_escaped(struct out *o, const char *s, const char *escape)
{
    while (*s) {
        size_t n = printable_length(s);
        if (n == 0) {
            put_hex(o, (unsigned char)*s++);
            continue;
        }
        if (strchr(escape, *s))
            put(o, "\\", 1);
        put(o, s, n);
        s += n;
    }
}

/* ` key=value`; quoted where a value could be taken for more than one word. */
static void put_field(struct out *o, const char *key, const char *value)
{
    bool quote = value[0] == '\0' || strpbrk(value, " \"=\\") != NULL;

    put_text(o, " ");
    put_text(o, key);
    put_text(o, quote ? "=\"" : "=");
    put_escaped(o, value, "\"\\");
    if (quote)
        put_text(o, "\"");
}

/* The members of log_fields by name. */
static const struct {
    const char *key, *journal_key;
    size_t      offset;
} members[] = {
    {"user", "WSMFS_USER", offsetof(struct log_fields, user)},
    {"agent", "WSMFS_AGENT", offsetof(struct log_fields, agent)},
    {"session", "WSMFS_SESSION", offsetof(struct log_fields, session)},
    {"id", "WSMFS_ID", offsetof(struct log_fields, id)},
};
#define N_MEMBERS (sizeof(members) / sizeof(members[0]))

static const char *member(const struct log_fields *f, size_t i)
{
    return f ? *(const char *const *)((const char *)f + members[i].offset) : NULL;
}

static void put_message(struct out *o, const struct log_fields *f, const char *text)
{
    put_escaped(o, text, "");
    for (size_t i = 0; i < N_MEMBERS; i++)
        if (member(f, i))
            put_field(o, members[i].key, member(f, i));
}

/* The message comes last: a cut takes off its end, not a field. */
static void put_journal(struct out *o, enum log_level level, const struct log_fields *f, const char *text)
{
    static const char priority[] = {
        [LOG_LEVEL_ERROR] = '0' + LOG_ERR,
        [LOG_LEVEL_WARNING] = '0' + LOG_WARNING,
        [LOG_LEVEL_INFO] = '0' + LOG_INFO,
        [LOG_LEVEL_DEBUG] = '0' + LOG_DEBUG,
    };

    put_text(o, "PRIORITY=");
    put(o, &priority[level], 1);
    put_text(o, "\nSYSLOG_IDENTIFIER=wsmfs\n");
    for (size_t i = 0; i < N_MEMBERS; i++) {
        if (!member(f, i))
            continue;
        put_text(o, members[i].journal_key);
        put_text(o, "=");
        put_escaped(o, member(f, i), "");
        put_text(o, "\n");
    }
    put_text(o, "MESSAGE=");
    put_message(o, f, text);
}

size_t log_format(char *buf, size_t size, enum log_form form, enum log_level level,
                  const struct log_fields *f, const char *text)
{
    bool newline = form != LOG_FORM_SYSLOG;
    struct out o = {.buf = buf, .size = newline ? size - 1 : size};

    buf[0] = '\0';
    if (form == LOG_FORM_JOURNAL) {
        put_journal(&o, level, f, text);
    } else {
        if (form == LOG_FORM_STDERR) {
            put_text(&o, "wsmfs: ");
            put_text(&o, log_level_name(level));
            put_text(&o, ": ");
        }
        put_message(&o, f, text);
    }
    if (newline) {
        o.size = size;
        put(&o, "\n", 1);
    }
    return o.len;
}

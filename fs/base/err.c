// SPDX-License-Identifier: Apache-2.0
#include "fs/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A cut sentence must still be UTF-8: takes off an incomplete last character. */
static void trim_partial_char(char *text, size_t len)
{
    size_t lead = len;

    while (lead > 0 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0 || (unsigned char)text[lead - 1] < 0xc0)
        return;
    unsigned char c = (unsigned char)text[lead - 1];
    size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (len - (lead - 1) < want)
        text[lead - 1] = '\0';
}

static void append(struct err *e, size_t used, const char *fmt, va_list ap)
{
    int n = vsnprintf(e->text + used, sizeof(e->text) - used, fmt, ap);

    if (n < 0)
        e->text[used] = '\0';
    else if ((size_t)n >= sizeof(e->text) - used)
        trim_partial_char(e->text, sizeof(e->text) - 1);
}

static void append_words(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append_words(struct err *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append(e, strlen(e->text), fmt, ap);
    va_end(ap);
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return code;
    va_start(ap, fmt);
    append(e, 0, fmt, ap);
    va_end(ap);
    e->code = code;
    return code;
}

int err_sys(struct err *e, int code, const char *fmt, ...)
{
    char buf[128];
    va_list ap;

    if (!e)
        return code;
    va_start(ap, fmt);
    append(e, 0, fmt, ap);
    va_end(ap);
    append_words(e, ": %s", strerror_r(-code, buf, sizeof(buf)));
    e->code = code;
    return code;
}

void err_clear(struct err *e)
{
    if (!e)
        return;
    e->code = 0;
    e->text[0] = '\0';
}

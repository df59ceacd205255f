// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>

#include "wsm.h"

int complain(const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    fputs("wsm: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return -1;
}

static void *need(void *p)
{
    if (!p) {
        complain("out of memory");
        exit(EXIT_FAILURE);
    }
    return p;
}

char *text_format(const char *fmt, ...)
{
    char   *text;
    va_list ap;
    int     n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return need(n < 0 ? NULL : text);
}

void *take_memory(size_t n, size_t size_bytes)
{
    return need(calloc(n ? n : 1, size_bytes));
}

void *more_memory(void *old, size_t n, size_t size_bytes)
{
    return need(reallocarray(old, n, size_bytes));
}

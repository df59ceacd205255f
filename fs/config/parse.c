// SPDX-License-Identifier: Apache-2.0
/* Single values: durations, sizes, numbers, paths. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

#define DURATION_MAX_S (100LL * 365 * 24 * 3600)

struct unit {
    const char *name;
    uint64_t    factor;
};

/* Digits and a unit of the table, nothing else. */
static int scaled_parse(const char *text, const struct unit *units, size_t n, uint64_t max,
                        uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    uint64_t v = 0;

    if (digits == 0)
        return -EINVAL;
    for (size_t i = 0; i < digits; i++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, text[i] - '0', &v))
            return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text + digits, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(v, units[i].factor, &v) || v > max)
            return -EINVAL;
        *out = v;
        return 0;
    }
    return -EINVAL;
}

int number_parse(const char *text, uint64_t max, uint64_t *out)
{
    static const struct unit none[] = {{"", 1}};

    return scaled_parse(text, none, 1, max, out);
}

static const struct unit duration_units[] = {
    {"d", 24 * 3600}, {"h", 3600}, {"m", 60}, {"s", 1}, {"", 1},
};

int duration_parse(const char *text, int64_t *seconds)
{
    uint64_t v;
    int r = scaled_parse(text, duration_units, array_size(duration_units), DURATION_MAX_S, &v);

    if (r == 0)
        *seconds = (int64_t)v;
    return r;
}

char *duration_text(int64_t seconds)
{
    const struct unit *u = duration_units;
    char *text;

    if (seconds == 0)
        return strdup("0");
    while (seconds % (int64_t)u->factor != 0)
        u++;
    if (asprintf(&text, "%lld%s", (long long)seconds / (long long)u->factor, u->name) < 0)
        return NULL;
    return text;
}

static const struct unit size_units[] = {
    {"T", 1ull << 40}, {"G", 1ull << 30}, {"M", 1ull << 20}, {"K", 1ull << 10}, {"", 1},
};

int size_parse(const char *text, uint64_t *bytes)
{
    return scaled_parse(text, size_units, array_size(size_units), INT64_MAX, bytes);
}

char *size_text(uint64_t bytes)
{
    const struct unit *u = size_units;
    char *text;

    if (bytes == 0)
        return strdup("0");
    while (bytes % u->factor != 0)
        u++;
    if (asprintf(&text, "%llu%s", (unsigned long long)(bytes / u->factor), u->name) < 0)
        return NULL;
    return text;
}

int word_index(const char *const *words, const char *word)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

char *path_absolute(const char *path)
{
    cleanup_free char *cwd = path[0] == '/' ? strdup("") : getcwd(NULL, 0);
    char *abs, *to;

    if (!cwd || asprintf(&abs, "%s/%s", cwd, path) < 0)
        return NULL;
    to = abs;
    for (const char *from = abs; *from;) {
        size_t n;
        from += strspn(from, "/");
        n = strcspn(from, "/");
        if (n == 0 || (n == 1 && from[0] == '.')) {
            from += n;
            continue;
        }
        *to++ = '/';
        memmove(to, from, n);
        to += n;
        from += n;
    }
    if (to == abs)
        *to++ = '/';
    *to = '\0';
    return abs;
}

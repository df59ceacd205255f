// SPDX-License-Identifier: Apache-2.0
#include "backends/shared/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/config.h"

#define MEMORY_LEAST_BYTES (4u << 20)
#define CPUS_LEAST_MILLI   10u
#define CPUS_MOST_MILLI    (10000u * 1000)
#define PIDS_LEAST         8u
#define PIDS_MOST          4194304u /* the kernel's own PID_MAX_LIMIT */

/* ── limits ──────────────────────────────────────────────────────────────────────────────── */

static int parse_memory(struct sandbox_limits *l, const char *value)
{
    uint64_t bytes;

    if (size_parse(value, &bytes) < 0 || bytes < MEMORY_LEAST_BYTES || bytes > INT64_MAX)
        return -EINVAL;
    l->memory_bytes = bytes;
    return 0;
}

/* "2", "1.5", "0.25": at most three digits behind the point. */
static int parse_cpus(struct sandbox_limits *l, const char *value)
{
    size_t whole = strspn(value, "0123456789");
    const char *rest = value + whole;
    size_t digits = *rest == '.' ? strspn(rest + 1, "0123456789") : 0;
    unsigned long milli;

    if (whole == 0 || whole > 5 || (*rest == '.' && (digits == 0 || digits > 3)) ||
        rest[digits ? digits + 1 : 0] != '\0')
        return -EINVAL;
    milli = strtoul(value, NULL, 10) * 1000;
    for (size_t i = 0, worth = 100; i < digits; i++, worth /= 10)
        milli += (unsigned long)(rest[i + 1] - '0') * worth;
    if (milli < CPUS_LEAST_MILLI || milli > CPUS_MOST_MILLI)
        return -EINVAL;
    l->cpus_milli = (uint32_t)milli;
    return 0;
}

static int parse_pids(struct sandbox_limits *l, const char *value)
{
    size_t digits = strspn(value, "0123456789");
    unsigned long n;

    if (digits == 0 || digits > 7 || value[digits] != '\0')
        return -EINVAL;
    n = strtoul(value, NULL, 10);
    if (n < PIDS_LEAST || n > PIDS_MOST)
        return -EINVAL;
    l->pids = (uint32_t)n;
    return 0;
}

static const struct {
    const char *key, *expected;
    int       (*parse)(struct sandbox_limits *l, const char *value);
} limits[] = {
    { "memory", "a size of at least 4M, such as 512M or 2G", parse_memory },
    { "cpus", "a number of processors of at least 0.01, such as 1.5", parse_cpus },
    { "pids", "a number of processes and threads of at least 8, such as 256", parse_pids },
};

int sandbox_limit_parse(struct sandbox_limits *l, const char *key, const char *value, struct err *e)
{
    for (size_t i = 0; i < array_size(limits); i++) {
        if (strcmp(key, limits[i].key) != 0)
            continue;
        if (limits[i].parse(l, value) == 0)
            return 0;
        return err_set(e, -EINVAL, "%s = %s: it wants %s", key, value, limits[i].expected);
    }
    return -ENOENT;
}

/* ── lists of words ──────────────────────────────────────────────────────────────────────── */

static int add(struct sandbox_words *w, const char *word, size_t len, struct err *e)
{
    char **more = realloc(w->list, (w->n + 2) * sizeof(char *));

    if (!more)
        return err_set(e, -ENOMEM, "out of memory");
    w->list = more;
    w->list[w->n] = strndup(word, len);
    if (!w->list[w->n])
        return err_set(e, -ENOMEM, "out of memory");
    w->list[++w->n] = NULL;
    return 0;
}

static int add_variable(struct sandbox_words *w, const char *variable, size_t len, struct err *e)
{
    const char *eq = memchr(variable, '=', len);

    if (!eq || eq == variable)
        return err_set(e, -EINVAL, "\"%.*s\" is no K=V", len < 60 ? (int)len : 60, variable);
    return add(w, variable, len, e);
}

static int each_word(struct sandbox_words *w, const char *value,
                     int (*take)(struct sandbox_words *w, const char *word, size_t len, struct err *e), struct err *e)
{
    int r = 0;

    for (const char *p = value + strspn(value, " \t"); *p && r == 0; p += strspn(p, " \t")) {
        size_t len = strcspn(p, " \t");
        r = take(w, p, len, e);
        p += len;
    }
    return r;
}

int sandbox_words_add(struct sandbox_words *w, const char *value, struct err *e)
{
    return each_word(w, value, add, e);
}

int sandbox_env_add(struct sandbox_words *w, const char *value, struct err *e)
{
    return each_word(w, value, add_variable, e);
}

int sandbox_env_add_file(struct sandbox_words *w, const char *path, struct err *e)
{
    cleanup_file FILE *f = *path == '/' ? fopen(path, "re") : NULL;
    cleanup_free char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int r = 0;

    if (*path != '/')
        return err_set(e, -EINVAL, "not an absolute path");
    if (!f)
        return err_sys(e, -errno, "%s cannot be read", path);
    while (r == 0 && (n = getline(&line, &room, f)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n > 0 && *line != '#')
            r = add_variable(w, line, (size_t)n, e);
    }
    return r;
}

void sandbox_words_finish(struct sandbox_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->list[i]);
    free(w->list);
    *w = (struct sandbox_words){ 0 };
}

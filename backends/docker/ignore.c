// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/ignore.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

/* The components of `text`, joined by single slashes: "/a//./b/" is "a/b". */
static char *clean(const char *text, size_t n)
{
    char *out = calloc(1, n + 1), *to = out;

    for (size_t i = 0; out && i < n;) {
        size_t len = 0;
        while (i + len < n && text[i + len] != '/')
            len++;
        if (len && !(len == 1 && text[i] == '.')) {
            if (to > out)
                *to++ = '/';
            memcpy(to, text + i, len);
            to += len;
        }
        i += len + 1;
    }
    return out;
}

static void trim(const char **text, size_t *n)
{
    while (*n && isspace((unsigned char)**text))
        ++*text, --*n;
    while (*n && isspace((unsigned char)(*text)[*n - 1]))
        --*n;
}

static int add_line(struct ignore *g, const char *line, size_t n)
{
    struct ignore_rule *more, rule = { 0 };

    if (n && *line == '#')
        return 0;
    trim(&line, &n);
    rule.exception = n && *line == '!';
    if (rule.exception) {
        line++, n--;
        trim(&line, &n);
    }
    rule.pattern = clean(line, n);
    more = rule.pattern ? realloc(g->rules, (g->n + 1) * sizeof(*more)) : NULL;
    if (!more || !*rule.pattern) {
        free(rule.pattern);
        g->rules = more ? more : g->rules;
        return more ? 0 : -ENOMEM;
    }
    g->rules = more;
    g->rules[g->n++] = rule;
    g->exceptions = g->exceptions || rule.exception;
    return 0;
}

int ignore_parse(const char *text, struct ignore *out)
{
    static const char mark[] = "\xef\xbb\xbf"; /* that some editors begin a text with */
    int r = 0;

    *out = (struct ignore){ 0 };
    if (strncmp(text, mark, strlen(mark)) == 0)
        text += strlen(mark);
    while (r == 0 && *text) {
        size_t n = strcspn(text, "\n");
        r = add_line(out, text, n);
        text += n + (text[n] == '\n');
    }
    return r;
}

void ignore_finish(struct ignore *g)
{
    for (size_t i = 0; i < g->n; i++)
        free(g->rules[i].pattern);
    free(g->rules);
    *g = (struct ignore){ 0 };
}

/* ── matching ────────────────────────────────────────────────────────────────────────────── */

static bool component_matches(const char *pattern, size_t pattern_len, const char *name, size_t name_len)
{
    char p[NAME_MAX + 1], n[NAME_MAX + 1];

    if (pattern_len >= sizeof(p) || name_len >= sizeof(n))
        return false;
    memcpy(p, pattern, pattern_len);
    memcpy(n, name, name_len);
    p[pattern_len] = n[name_len] = '\0';
    return fnmatch(p, n, 0) == 0;
}

/* Whether the pattern matches the path or what begins it: a directory is left out with all in it. */
static bool matches(const char *pattern, const char *path)
{
    while (*pattern) {
        size_t p = strcspn(pattern, "/"), n = strcspn(path, "/");
        const char *rest = pattern + p + (pattern[p] == '/');
        if (!n)
            return false;
        if (p == 2 && strncmp(pattern, "**", 2) == 0) {
            if (matches(rest, path))
                return true;
        } else {
            if (!component_matches(pattern, p, path, n))
                return false;
            pattern = rest;
        }
        path += n + (path[n] == '/');
    }
    return true;
}

bool ignore_matches(const struct ignore *g, const char *path)
{
    bool out = false;

    for (size_t i = 0; i < g->n; i++)
        if (out == g->rules[i].exception && matches(g->rules[i].pattern, path))
            out = !out;
    return out;
}

// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/answer.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32

static bool fail(struct answer *a, enum answer_fault fault)
{
    a->fault = fault;
    return false;
}

/* ── the header ──────────────────────────────────────────────────────────────────────────── */

/* The value of a header line of that name, or NULL. *len is without the blanks around it. */
static const char *value_of(const char *line, size_t n, const char *name, size_t *len)
{
    size_t skip = strlen(name);

    if (n <= skip || strncasecmp(line, name, skip) != 0 || line[skip] != ':')
        return NULL;
    for (skip++; skip < n && isspace((unsigned char)line[skip]); skip++)
        ;
    for (; n > skip && isspace((unsigned char)line[n - 1]); n--)
        ;
    *len = n - skip;
    return line + skip;
}

static bool begin(struct answer *a, const char *line, size_t n)
{
    char text[32];

    snprintf(text, sizeof(text), "%.*s", (int)(n < sizeof(text) ? n : sizeof(text) - 1), line);
    a->status = 0;
    if (sscanf(text, "HTTP/%*s %3ld", &a->status) != 1)
        a->status = 0;
    a->complete = a->framed = false;
    a->api[0] = a->path_stat[0] = '\0';
    return true;
}

bool answer_header(struct answer *a, const char *line, size_t n)
{
    const char *value;
    size_t len;

    a->header_bytes += n;
    if (a->header_bytes > ANSWER_HEADER_MAX_BYTES)
        return fail(a, ANSWER_TOO_LARGE);
    if (n >= 5 && strncasecmp(line, "HTTP/", 5) == 0)
        return begin(a, line, n);
    if (n == 0 || line[0] == '\n' || (n > 1 && line[0] == '\r' && line[1] == '\n'))
        a->complete = true;
    else if ((value = value_of(line, n, "Api-Version", &len)))
        snprintf(a->api, sizeof(a->api), "%.*s", (int)(len < sizeof(a->api) ? len : 0), value);
    else if ((value = value_of(line, n, "X-Docker-Container-Path-Stat", &len)))
        snprintf(a->path_stat, sizeof(a->path_stat), "%.*s", (int)(len < sizeof(a->path_stat) ? len : 0), value);
    else if (value_of(line, n, "Transfer-Encoding", &len) || value_of(line, n, "Content-Length", &len))
        a->framed = true;
    return true;
}

/* ── the body ────────────────────────────────────────────────────────────────────────────── */

struct json_object *answer_json(const char *text, size_t n)
{
    struct json_tokener *t = json_tokener_new_ex(DEPTH_MAX);
    struct json_object *o = NULL;
    size_t end = 0;

    if (t && n < INT_MAX) {
        o = json_tokener_parse_ex(t, text, (int)n + 1); /* the NUL ends a number */
        end = json_tokener_get_parse_end(t);
    }
    if (t)
        json_tokener_free(t);
    for (; o && end < n && isspace((unsigned char)text[end]); end++)
        ;
    if (!o || end >= n)
        return o;
    json_object_put(o);
    return NULL;
}

static bool is_stream(const struct answer *a) { return a->line && a->status == 200; }

static bool is_blank(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && isspace((unsigned char)text[i]))
        i++;
    return i == n;
}

static bool keep(struct answer *a, const char *data, size_t n)
{
    size_t room = (a->size + n + 1) * 2, most = a->most_bytes ? a->most_bytes : ANSWER_MAX_BYTES;

    if (n > most || a->size + n > most)
        return fail(a, ANSWER_TOO_LARGE);
    if (a->size + n + 1 > a->room) {
        char *more = realloc(a->body, room);
        if (!more)
            return fail(a, ANSWER_NO_MEMORY);
        a->body = more;
        a->room = room;
    }
    memcpy(a->body + a->size, data, n);
    a->size += n;
    a->body[a->size] = '\0';
    return true;
}

/* A line, with a NUL behind it. */
static bool hand_over(struct answer *a, const char *line, size_t n, enum answer_fault otherwise)
{
    struct json_object *o;
    bool more;

    if (is_blank(line, n))
        return true;
    o = answer_json(line, n);
    if (!json_object_is_type(o, json_type_object)) {
        json_object_put(o);
        return fail(a, otherwise);
    }
    more = a->line(a->arg, o);
    json_object_put(o);
    return more || fail(a, ANSWER_STOPPED);
}

/* Hands over the whole lines that have come and keeps the rest. */
static bool hand_over_lines(struct answer *a)
{
    char *line = a->body, *end;

    while ((end = memchr(a->body + a->looked, '\n', a->size - a->looked))) {
        *end = '\0';
        if (!hand_over(a, line, (size_t)(end - line), ANSWER_NO_JSON))
            return false;
        line = end + 1;
        a->looked = (size_t)(line - a->body);
    }
    a->size -= (size_t)(line - a->body);
    memmove(a->body, line, a->size + 1);
    a->looked = a->size;
    return a->size <= ANSWER_LINE_MAX_BYTES || fail(a, ANSWER_TOO_LARGE);
}

bool answer_body(struct answer *a, const char *data, size_t n)
{
    if (a->fault)
        return false;
    return keep(a, data, n) && (!is_stream(a) || hand_over_lines(a));
}

bool answer_end(struct answer *a)
{
    if (a->fault)
        return false;
    if (!a->complete)
        return fail(a, ANSWER_CUT);
    if (!is_stream(a))
        return true;
    if (a->size && !hand_over(a, a->body, a->size, ANSWER_CUT))
        return false;
    /* Where only the end of the connection ends it, nobody can tell whether that was all. */
    return a->framed || fail(a, ANSWER_CUT);
}

void answer_finish(struct answer *a)
{
    free(a->body);
    *a = (struct answer){ 0 };
}

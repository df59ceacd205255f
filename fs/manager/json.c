// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/base/utf8.h"

const char *json_time(int64_t wall_ms, char *out)
{
    time_t    s = (time_t)(wall_ms / 1000);
    struct tm tm;
    char      date[24];

    gmtime_r(&s, &tm);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, JSON_TIME_MAX, "%s.%03dZ", date, (int)(wall_ms % 1000));
    return out;
}

/* A string of it with every byte that is not part of valid UTF-8 replaced. */
static struct json_object *text_object(const char *text)
{
    cleanup_free char *copy = strdup(text);

    if (!copy)
        return NULL;
    for (char *s = copy; *s;) {
        uint32_t c;
        size_t   n = utf8_read(s, &c);
        if (n == 0)
            *s = '?';
        s += n ? n : 1;
    }
    return json_object_new_string(copy);
}

void json_put_text(struct json_object *o, const char *key, const char *text)
{
    if (text)
        json_object_object_add(o, key, text_object(text));
}

void json_put_text_or_null(struct json_object *o, const char *key, const char *text)
{
    json_object_object_add(o, key, text ? text_object(text) : NULL);
}

void json_put_int(struct json_object *o, const char *key, int64_t n)
{
    json_object_object_add(o, key, json_object_new_int64(n));
}

void json_put_bool(struct json_object *o, const char *key, bool b)
{
    json_object_object_add(o, key, json_object_new_boolean(b));
}

void json_put_time(struct json_object *o, const char *key, int64_t wall_ms)
{
    char text[JSON_TIME_MAX];

    json_put_text_or_null(o, key, wall_ms ? json_time(wall_ms, text) : NULL);
}

const char *json_line(struct json_object *o)
{
    return json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
}

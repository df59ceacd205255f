// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *value_text(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;

    if (!json_object_object_get_ex(o, key, &v) || !v)
        return "";
    return json_object_get_string(v);
}

int64_t value_number(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;

    json_object_object_get_ex(o, key, &v);
    return json_object_get_int64(v);
}

const char *value_duration(int64_t s, char *to)
{
    static const struct { int64_t s; char unit; } units[] = {{ 86400, 'd' }, { 3600, 'h' }, { 60, 'm' }, { 1, 's' }};
    size_t i = 0;

    /* Two of the smaller unit are still said in it: 90m, not 1h. */
    while (units[i].s > 1 && s < 2 * units[i].s)
        i++;
    snprintf(to, AGO_MAX, "%lld%c", (long long)(s / units[i].s), units[i].unit);
    return to;
}

int64_t value_time_s(const char *text)
{
    struct tm tm = {0};

    return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) : -1;
}

const char *value_until(const char *text, char *to)
{
    int64_t left_s = value_time_s(text);

    if (left_s < 0)
        return strcpy(to, "-");
    left_s -= (int64_t)time(NULL);
    return value_duration(left_s > 0 ? left_s : 0, to);
}

// SPDX-License-Identifier: Apache-2.0
/* Values of JSON objects, and how times look to people. */
#ifndef WSM_VALUES_H
#define WSM_VALUES_H

#include <stdint.h>

struct json_object;

#define AGO_MAX 32

/* A member as text, "" where it is missing or null. Valid as long as the object. */
const char *value_text(struct json_object *o, const char *key);

/* A member as a number; 0 where it is missing. */
int64_t value_number(struct json_object *o, const char *key);

/* "42s", "12m", "3h", "2d". Returns `to`, of AGO_MAX bytes. */
const char *value_duration(int64_t s, char *to);

/* A time as the daemon writes it, in seconds since 1970; -1 where it is none. */
int64_t value_time_s(const char *text);

/* How long until a time that the daemon wrote: "12m", "0s" when it is past, "-" where it is none. */
const char *value_until(const char *text, char *to);

#endif

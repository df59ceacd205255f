// SPDX-License-Identifier: Apache-2.0
/* Small helpers over json-c for what users read. */
#ifndef WSMFS_MANAGER_JSON_H
#define WSMFS_MANAGER_JSON_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

#define JSON_TIME_MAX 32

/* RFC 3339 in UTC with milliseconds, into JSON_TIME_MAX bytes; returns `out`. */
const char *json_time(int64_t wall_ms, char *out);

/* Adds a member; a NULL text is left out. Bytes that are not UTF-8 become '?', so that every
 * line can be parsed. */
void json_put_text(struct json_object *o, const char *key, const char *text);
/* As above, but a NULL text is null. */
void json_put_text_or_null(struct json_object *o, const char *key, const char *text);
void json_put_int(struct json_object *o, const char *key, int64_t n);
void json_put_bool(struct json_object *o, const char *key, bool b);
/* null for 0. */
void json_put_time(struct json_object *o, const char *key, int64_t wall_ms);

/* On one line, no newline; valid as long as `o`. */
const char *json_line(struct json_object *o);

#endif

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>

#include "files.h"
#include "ps.h"
#include "values.h"
#include "wsm.h"

static void put_text(struct json_object *o, const char *key, const char *text)
{
    json_object_object_add(o, key, text && *text && strcmp(text, "-") != 0 ? json_object_new_string(text) : NULL);
}

static void put_number(struct json_object *o, const char *key, int64_t n)
{
    json_object_object_add(o, key, json_object_new_int64(n));
}

/* ── the manager's table ─────────────────────────────────────────────────────────────────── */

enum { ID, NAMES, BACKEND, STATE, IDLE, EXPIRES, JOBS, COLUMNS };

static void put_names(struct json_object *o, char *names)
{
    char *save = NULL;

    put_text(o, "user", strtok_r(names, "/", &save));
    put_text(o, "agent", strtok_r(NULL, "/", &save));
    put_text(o, "session", strtok_r(NULL, "/", &save));
}

/* A line of `workspaces`: its columns are separated by tabs. */
static void add_line(const char *point, char *line, struct json_object *array)
{
    struct json_object *o;
    char *column[COLUMNS] = {0};

    for (size_t i = 0; i < COLUMNS; i++)
        column[i] = strsep(&line, "\t");
    if (!column[JOBS])
        return;
    o = json_object_new_object();
    put_text(o, "mount", point);
    put_text(o, "id", column[ID]);
    put_names(o, column[NAMES]);
    put_text(o, "backend", column[BACKEND]);
    put_text(o, "state", column[STATE]);
    put_number(o, "idle_s", strtoll(column[IDLE], NULL, 10));
    put_text(o, "expires", column[EXPIRES]);
    put_number(o, "jobs", strtoll(column[JOBS], NULL, 10));
    json_object_array_add(array, o);
}

static void add_lines(const char *point, char *text, struct json_object *array)
{
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        add_line(point, line, array);
}

/* ── the sessions that one may see ───────────────────────────────────────────────────────── */

/* Sessions that share a workspace are one line. */
static bool is_there(struct json_object *array, const char *point, const char *id)
{
    for (size_t i = 0; i < json_object_array_length(array); i++) {
        struct json_object *o = json_object_array_get_idx(array, i);
        if (strcmp(value_text(o, "mount"), point) == 0 && strcmp(value_text(o, "id"), id) == 0)
            return true;
    }
    return false;
}

static void add_status(const char *point, struct json_object *status, struct json_object *array)
{
    static const char *const same[] = {"id", "user", "agent", "session", "backend", "state"};
    struct json_object *o;
    const char *state = value_text(status, "state");

    if (strcmp(state, "absent") == 0 || is_there(array, point, value_text(status, "id")))
        return;
    o = json_object_new_object();
    put_text(o, "mount", point);
    for (size_t i = 0; i < array_size(same); i++)
        put_text(o, same[i], value_text(status, same[i]));
    put_number(o, "idle_s", value_number(status, "idle_s"));
    put_text(o, "expires", value_text(status, "expires"));
    put_number(o, "jobs", value_number(status, "running_jobs"));
    json_object_array_add(array, o);
}

static void add_session(const char *point, const char *path, struct json_object *array)
{
    cleanup_free char *name = text_format("%s/status", path), *text = file_read(AT_FDCWD, name);
    struct json_object *status = text ? json_tokener_parse(text) : NULL;

    if (status)
        add_status(point, status, array);
    json_object_put(status);
}

/* Sessions are `levels` below `path`. Where one may not look there is nothing to see. */
static void walk(const char *point, const char *path, int levels, struct json_object *array)
{
    cleanup_dir DIR *d = levels ? opendir(path) : NULL;
    struct dirent *e;

    if (!levels)
        add_session(point, path, array);
    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        cleanup_free char *below = text_format("%s/%s", path, e->d_name);
        walk(point, below, levels - 1, array);
    }
}

int ps_collect(const char *point, struct json_object *array)
{
    cleanup_free char *table = text_format("%s/.wsm/workspaces", point);
    cleanup_free char *sessions = text_format("%s/.wsm/sessions", point);
    cleanup_free char *text = file_read(AT_FDCWD, table);

    if (text)
        add_lines(point, text, array);
    else if (errno == EACCES && access(sessions, X_OK) == 0)
        walk(point, sessions, 3, array);
    else
        return complain("%s: %m", point);
    return 0;
}

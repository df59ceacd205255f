// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>

#include "files.h"
#include "verb.h"
#include "wsm.h"

/* ── its directory ───────────────────────────────────────────────────────────────────────── */

int job_open(const struct place *session, const char *name, struct job *j)
{
    cleanup_free char *path = text_format("jobs/%s", name);

    *j = (struct job){ .session = session, .name = text_format("%s", name), .dir = -1 };
    if (!*name || strchr(name, '/'))
        return complain("%s: \"%s\" is no name of a job", session->names, name);
    j->dir = file_open(session->dir, path, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (j->dir == -ENOENT)
        return complain("%s: there is no job %s", session->names, name);
    return j->dir < 0 ? place_complain(session, path, -j->dir) : 0;
}

int job_new(const struct place *session, struct job *j)
{
    cleanup_free char *name = file_read_line(session->dir, "jobs/new");

    *j = (struct job){ .session = session, .dir = -1 };
    if (name)
        return job_open(session, name, j);
    if (errno == ENOENT)
        return complain("%s: this mount runs no jobs", session->names);
    return session_complain(session, "a new job", errno);
}

void job_finish(struct job *j)
{
    free(j->name);
    if (j->dir >= 0)
        close(j->dir);
}

void job_remove(const struct job *j)
{
    cleanup_free char *path = text_format("jobs/%s", j->name);

    while (unlinkat(j->session->dir, path, AT_REMOVEDIR) < 0 && errno == EINTR)
        ;
}

/* ── its files ───────────────────────────────────────────────────────────────────────────── */

static int failed(const struct job *j, const char *file, int error_number)
{
    return session_complain(j->session, file, error_number);
}

int job_file(const struct job *j, const char *file, int flags)
{
    int fd = file_open(j->dir, file, flags | O_NOFOLLOW);

    return fd < 0 ? failed(j, file, -fd) : fd;
}

int job_ctl(const struct job *j, const char *line)
{
    cleanup_free char *whole = text_format("%s\n", line);

    return file_write(j->dir, "ctl", whole, strlen(whole));
}

static int set(const struct job *j, const char *file, const char *text, size_t size)
{
    int r = text && size ? file_write(j->dir, file, text, size) : 0;

    return r < 0 ? failed(j, file, -r) : 0;
}

static int set_line(const struct job *j, const char *file, const char *line)
{
    cleanup_free char *whole = line ? text_format("%s\n", line) : NULL;

    return set(j, file, whole, whole ? strlen(whole) : 0);
}

int job_set(const struct job *j, const struct job_settings *s)
{
    if (set_line(j, "cwd", s->cwd) < 0 || set_line(j, "user", s->user) < 0 || set_line(j, "timeout", s->timeout) < 0 ||
        set_line(j, "tty", s->tty) < 0)
        return -1;
    return set(j, "env", s->env, s->env_size);
}

/* Words are handed on byte for byte, also those that are no UTF-8. */
int job_start(const struct job *j, const struct job_settings *s)
{
    struct json_object *array = json_object_new_array();
    const char *text;
    int r;

    for (int i = 0; i < s->argc; i++)
        json_object_array_add(array, json_object_new_string(s->argv[i]));
    text = json_object_to_json_string_ext(array, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    r = set(j, "argv", text, strlen(text));
    json_object_put(array);
    return r;
}

/* ── its end ─────────────────────────────────────────────────────────────────────────────── */

int job_status(const char *exit_text, const char **sentence)
{
    int n;

    if (sscanf(exit_text, "signal %d", &n) == 1)
        return (128 + n) & 255;
    if (sscanf(exit_text, "%d", &n) == 1)
        return n & 255;
    *sentence = strncmp(exit_text, "error ", 6) == 0 ? exit_text + 6 : exit_text;
    return -1;
}

bool job_timed_out(const struct job *j)
{
    cleanup_free char *text = file_read(j->dir, "status");
    struct json_object *o = text ? json_tokener_parse(text) : NULL, *v = NULL;
    bool over = json_object_object_get_ex(o, "timed_out", &v) && json_object_get_boolean(v);

    json_object_put(o);
    return over;
}

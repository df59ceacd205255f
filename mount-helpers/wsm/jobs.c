// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>
#include <time.h>

#include "files.h"
#include "job.h"
#include "jobs.h"
#include "table.h"
#include "values.h"
#include "wsm.h"

#define COMMAND_SHOWN_MAX 60 /* bytes */

struct jobs_options {
    bool json;
};

static const struct option_row options[] = {
    { 0, "json", NULL, "an array of objects, one a job", OPTION_FLAG, offsetof(struct jobs_options, json) },
    {0},
};

/* ── what there is ───────────────────────────────────────────────────────────────────────── */

/* What it runs, on one line. */
static void add_command(int dir, struct json_object *o)
{
    cleanup_free char *argv = file_read_line(dir, "argv"), *cmd = file_read_line(dir, "cmd");
    const char *text = argv && *argv ? argv : cmd ? cmd : "";

    json_object_object_add(o, "command", json_object_new_string(text));
}

static void add_job(const struct place *p, const char *name, struct json_object *array)
{
    cleanup_free char *path = text_format("jobs/%s", name), *text = NULL;
    cleanup_close int dir = file_open(p->dir, path, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    struct json_object *o;

    if (dir >= 0)
        text = file_read(dir, "status");
    o = text ? json_tokener_parse(text) : NULL;
    if (!o) /* it has been removed meanwhile */
        return;
    json_object_object_add(o, "name", json_object_new_string(name));
    add_command(dir, o);
    json_object_array_add(array, o);
}

static int by_start(const void *a, const void *b)
{
    struct json_object *const *x = a, *const *y = b;

    return strcmp(value_text(*x, "start"), value_text(*y, "start"));
}

struct json_object *jobs_list(const struct place *p)
{
    int fd = file_open(p->dir, "jobs", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    cleanup_dir DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct json_object *array;
    struct dirent *e;

    if (!d) {
        place_complain(p, "jobs", fd < 0 ? -fd : errno);
        return NULL;
    }
    array = json_object_new_array();
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            add_job(p, e->d_name, array);
    json_object_array_sort(array, by_start);
    return array;
}

/* ── the table ───────────────────────────────────────────────────────────────────────────── */

static bool is_null(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;

    return !json_object_object_get_ex(o, key, &v) || !v;
}

static void show_end(struct json_object *o, char *to, size_t size)
{
    if (!is_null(o, "signal"))
        snprintf(to, size, "signal %s", value_text(o, "signal"));
    else
        snprintf(to, size, "%s", is_null(o, "exit_code") ? "-" : value_text(o, "exit_code"));
}

/* How long it has run or ran. */
static const char *show_time(struct json_object *o, char *to)
{
    int64_t start_s = value_time_s(value_text(o, "start")), end_s = value_time_s(value_text(o, "end"));

    if (start_s < 0)
        return strcpy(to, "-");
    end_s = end_s < 0 ? (int64_t)time(NULL) : end_s;
    return value_duration(end_s > start_s ? end_s - start_s : 0, to);
}

static void add_row(struct table *t, struct json_object *o)
{
    char took[AGO_MAX], end[32], command[COMMAND_SHOWN_MAX + 4];
    const char *text = value_text(o, "command");

    show_end(o, end, sizeof(end));
    snprintf(command, sizeof(command), "%.*s%s", COMMAND_SHOWN_MAX, text, strlen(text) > COMMAND_SHOWN_MAX ? "…" : "");
    const char *const row[] = { value_text(o, "name"), value_text(o, "state"), show_time(o, took), end, command };
    table_add(t, row);
}

static void print_table(struct json_object *array)
{
    static const char *const heading[] = {"JOB", "STATE", "TIME", "EXIT", "COMMAND"};
    struct table t = { .columns = array_size(heading) };

    table_add(&t, heading);
    for (size_t i = 0; i < json_object_array_length(array); i++)
        add_row(&t, json_object_array_get_idx(array, i));
    table_print(&t);
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct jobs_options *o = given;
    cleanup_place struct place p;
    struct json_object *array;

    (void)self;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    array = jobs_list(&p);
    if (!array)
        return EXIT_FAILURE;
    if (o->json)
        puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    else
        print_table(array);
    json_object_put(array);
    return EXIT_SUCCESS;
}

const struct command jobs_commands[] = {
    { .name = "jobs", .words = "PATH", .summary = "List a session's jobs, running and finished", .options = options,
      .options_size = sizeof(struct jobs_options), .min_words = 1, .max_words = 1, .run = run },
    {0},
};

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>

#include "flow.h"
#include "job.h"
#include "jobs.h"
#include "values.h"
#include "wsm.h"

struct logs_options {
    bool follow, only_out, only_err;
};

static const struct option_row options[] = {
    { 'f', "follow", NULL, "until the job has ended, stdout and stderr apart", OPTION_FLAG,
      offsetof(struct logs_options, follow) },
    { 0, "stdout", NULL, "only its standard output", OPTION_FLAG, offsetof(struct logs_options, only_out) },
    { 0, "stderr", NULL, "only its standard error", OPTION_FLAG, offsetof(struct logs_options, only_err) },
    {0},
};

/* ── which job ───────────────────────────────────────────────────────────────────────────── */

/* PATH may be a job's directory or a file in it: the name behind jobs/. NULL: it is not. */
static char *job_in_path(const struct place *p)
{
    const char *rest = p->rest;
    size_t n;

    path_below(rest, ".wsm", &rest);
    if (!path_below(rest, "jobs", &rest) || !*rest)
        return NULL;
    n = strcspn(rest, "/");
    return text_format("%.*s", (int)n, rest);
}

/* The one that was started last; NULL: said. */
static char *newest_job(const struct place *p)
{
    struct json_object *all = jobs_list(p);
    char *name = NULL;
    size_t n;

    if (!all)
        return NULL;
    n = json_object_array_length(all);
    if (n)
        name = text_format("%s", value_text(json_object_array_get_idx(all, n - 1), "name"));
    else
        complain("%s: there are no jobs", p->names);
    json_object_put(all);
    return name;
}

static char *which_job(const struct place *p, const char *word)
{
    char *name = word ? text_format("%s", word) : job_in_path(p);

    return name ? name : newest_job(p);
}

/* ── showing ─────────────────────────────────────────────────────────────────────────────── */

static int open_flow(const struct job *j, const char *file, int ours, struct flow *f)
{
    int from = job_file(j, file, O_RDONLY | O_NONBLOCK), to;
    size_t piece_bytes;

    if (from < 0)
        return -1;
    to = flow_output(ours, &piece_bytes);
    flow_init(f, from, to, piece_bytes);
    return 0;
}

/* Without `follow` it ends where there is nothing more to read now. */
static void show(struct flow *flows, size_t n, bool follow)
{
    struct pollfd list[2];

    for (;;) {
        size_t waiting = 0;
        bool   written = true;
        for (size_t i = 0; i < n; i++) {
            flow_step(&flows[i], true);
            flow_poll(&flows[i], list, &waiting);
            written &= flows[i].at == flows[i].end;
        }
        if (waiting == 0)
            return;
        if (poll(list, waiting, follow || !written ? -1 : 0) == 0)
            return;
    }
}

static int finish(const struct job *j, struct flow *flows, size_t n)
{
    int error = 0;

    for (size_t i = 0; i < n; i++) {
        error = flows[i].read_error ? flows[i].read_error : flows[i].write_error ? flows[i].write_error : error;
        flow_finish(&flows[i]);
    }
    if (error)
        place_complain(j->session, j->name, error);
    return error ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int show_job(const struct logs_options *o, const struct job *j)
{
    struct flow flows[2] = {0};
    size_t n = 0;
    int    r = 0;

    if (!o->follow && !o->only_out && !o->only_err)
        r = open_flow(j, "log", STDOUT_FILENO, &flows[n++]);
    if (r == 0 && (o->only_out || (o->follow && !o->only_err)))
        r = open_flow(j, "stdout", STDOUT_FILENO, &flows[n++]);
    if (r == 0 && (o->only_err || (o->follow && !o->only_out)))
        r = open_flow(j, "stderr", o->only_err && !o->only_out ? STDOUT_FILENO : STDERR_FILENO, &flows[n++]);
    if (r == 0)
        show(flows, n, o->follow);
    return finish(j, flows, n) || r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    cleanup_place struct place p;
    cleanup_free char *name = NULL;
    cleanup_job struct job j = { .dir = -1 };

    (void)self;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    name = which_job(&p, n_words > 1 ? words[1] : NULL);
    if (!name || job_open(&p, name, &j) < 0)
        return EXIT_FAILURE;
    return show_job(given, &j);
}

const struct command logs_commands[] = {
    { .name = "logs", .words = "PATH [JOB]", .summary = "Print what a job has written so far",
      .text = "JOB is a name that wsm jobs lists, or PATH is its directory; without either it is the job that was\n"
              "started last.",
      .options = options, .options_size = sizeof(struct logs_options), .min_words = 1, .max_words = 2, .run = run },
    {0},
};

// SPDX-License-Identifier: Apache-2.0
#include "ps.h"

#include <json-c/json.h>
#include <string.h>

#include "place.h"
#include "table.h"
#include "values.h"
#include "wsm.h"

struct ps_options {
    bool json;
};

static const struct option_row options[] = {
    { 0, "json", NULL, "an array of objects, one a workspace", OPTION_FLAG, offsetof(struct ps_options, json) },
    {0},
};

/* ── the table ───────────────────────────────────────────────────────────────────────────── */

static const char *or_dash(const char *text)
{
    return *text ? text : "-";
}

static void add_row(struct table *t, struct json_object *o)
{
    char idle[AGO_MAX], expires[AGO_MAX], jobs[24];

    snprintf(jobs, sizeof(jobs), "%lld", (long long)value_number(o, "jobs"));
    const char *const row[] = {
        or_dash(value_text(o, "user")), or_dash(value_text(o, "agent")), or_dash(value_text(o, "session")),
        value_text(o, "backend"), value_text(o, "state"), value_duration(value_number(o, "idle_s"), idle),
        value_until(value_text(o, "expires"), expires), jobs, value_text(o, "mount"),
    };
    table_add(t, row);
}

/* Of which mount a line is, is said where there are several. */
static void print_table(struct json_object *array, bool several)
{
    static const char *const heading[] = {"USER", "AGENT", "SESSION", "BACKEND", "STATE", "IDLE", "EXPIRES", "JOBS",
                                          "MOUNT"};
    struct table t = { .columns = array_size(heading) - !several };

    table_add(&t, heading);
    for (size_t i = 0; i < json_object_array_length(array); i++)
        add_row(&t, json_object_array_get_idx(array, i));
    table_print(&t);
}

/* ── which mounts ────────────────────────────────────────────────────────────────────────── */

/* Bind mounts of the same wsmfs are one; those of a part have no manager to ask. */
static bool counts(const struct mounts *m, size_t i)
{
    if (strcmp(m->list[i].root, "/") != 0)
        return false;
    for (size_t j = 0; j < i; j++)
        if (strcmp(m->list[j].root, "/") == 0 && strcmp(m->list[j].device, m->list[i].device) == 0)
            return false;
    return true;
}

static int collect_all(struct json_object *array, int *n_mounts)
{
    struct mounts m;
    int r = mounts_read(&m);

    for (size_t i = 0; i < m.n; i++) {
        if (!counts(&m, i))
            continue;
        if (ps_collect(m.list[i].point, array) < 0)
            r = -1;
        ++*n_mounts;
    }
    mounts_free(&m);
    return r;
}

static int collect_named(char **words, int n_words, struct json_object *array)
{
    int r = 0;

    for (int i = 0; i < n_words; i++) {
        cleanup_place struct place p;
        if (place_find(words[i], &p) < 0 || ps_collect(p.point, array) < 0)
            r = -1;
    }
    return r;
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct ps_options *o = given;
    struct json_object *array = json_object_new_array();
    int n_mounts = n_words, r = n_words ? collect_named(words, n_words, array) : collect_all(array, &n_mounts);

    (void)self;
    if (o->json)
        puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    else
        print_table(array, n_mounts > 1);
    json_object_put(array);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command ps_commands[] = {
    { .name = "ps", .words = "[MOUNT…]", .summary = "List the live workspaces of all wsmfs mounts, or of some",
      .text = "IDLE is since the last use, EXPIRES how long until it is closed if nobody uses it.",
      .options = options, .options_size = sizeof(struct ps_options), .min_words = 0, .max_words = -1, .run = run },
    {0},
};

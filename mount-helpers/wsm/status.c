// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <json-c/json.h>
#include <string.h>

#include "files.h"
#include "place.h"
#include "table.h"
#include "values.h"
#include "wsm.h"

struct status_options {
    bool json;
};

static const struct option_row options[] = {
    { 0, "json", NULL, "as the mount gives it", OPTION_FLAG, offsetof(struct status_options, json) },
    {0},
};

/* What a value looks like in a line: texts without quotes, lists with commas between. */
static char *shown(struct json_object *v)
{
    char *all = text_format("%s", "");

    if (json_object_is_type(v, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(v); i++) {
            const char *one = json_object_get_string(json_object_array_get_idx(v, i));
            char *longer = text_format("%s%s%s", all, i ? ", " : "", one);
            free(all);
            all = longer;
        }
        return all;
    }
    free(all);
    if (json_object_is_type(v, json_type_boolean))
        return text_format("%s", json_object_get_boolean(v) ? "yes" : "no");
    return text_format("%s", v ? json_object_get_string(v) : "-");
}

static void print_lines(struct json_object *o, const char *prefix)
{
    json_object_object_foreach(o, key, v) {
        if (json_object_is_type(v, json_type_object)) {
            cleanup_free char *longer = text_format("%s%s ", prefix, key);
            print_lines(v, longer);
            continue;
        }
        cleanup_free char *name = text_format("%s%s:", prefix, key), *value = shown(v);
        printf("%-24s ", name);
        text_print(value);
        putchar('\n');
    }
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct status_options *o = given;
    cleanup_place struct place p;
    cleanup_free char *text = NULL;
    struct json_object *object;

    (void)self;
    if (place_find(n_words ? words[0] : ".", &p) < 0)
        return EXIT_FAILURE;
    text = file_read(p.dir, "status");
    if (!text) {
        place_complain(&p, "status", errno);
        return EXIT_FAILURE;
    }
    object = o->json ? NULL : json_tokener_parse(text);
    if (object)
        print_lines(object, "");
    else
        fputs(text, stdout);
    json_object_put(object);
    return EXIT_SUCCESS;
}

const struct command status_commands[] = {
    { .name = "status", .words = "[PATH]", .summary = "Show all about a session, or about a mount",
      .text = "PATH may lie above a session: then it is about the mount. Without it: the current directory.",
      .options = options, .options_size = sizeof(struct status_options), .min_words = 0, .max_words = 1, .run = run },
    {0},
};

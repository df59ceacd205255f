// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "files.h"
#include "verb.h"
#include "wsm.h"

/* Prints the id that the session has now. Where it is still the old one the write was interrupted
 * before it did anything. */
static int show_id(const struct place *p, const char *old, bool *changed)
{
    cleanup_free char *id = file_read_line(p->dir, "id");

    if (!id)
        return place_complain(p, "id", errno);
    *changed = !old || strcmp(id, old) != 0;
    if (*changed)
        puts(id);
    return 0;
}

static int run(const struct command *self, void *options, char **words, int n_words)
{
    cleanup_place struct place p;
    cleanup_free char *old = NULL;
    bool changed = false;

    (void)options;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    old = file_read_line(p.dir, "id");
    while (!changed)
        if (session_verb(&p, self->name, AGAIN_LOOK) < 0 || show_id(&p, old, &changed) < 0)
            return EXIT_FAILURE;
    return EXIT_SUCCESS;
}

const struct command fresh_commands[] = {
    { .name = "fresh", .words = "PATH", .summary = "Bind a session to a new, empty workspace and print its id",
      .min_words = 1, .max_words = 1, .run = run },
    {0},
};

// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "files.h"
#include "verb.h"
#include "wsm.h"

struct bind_options {
    bool unbind;
};

static const struct option_row options[] = {
    { 'u', "unbind", NULL, "back to the workspace that the names stand for", OPTION_FLAG,
      offsetof(struct bind_options, unbind) },
    {0},
};

/* An id is taken as it is; what holds a slash is the path of a session whose id is meant. NULL: said. */
static char *wanted_id(const char *word)
{
    cleanup_place struct place p = { .dir = -1 };
    char *id;

    if (!strchr(word, '/'))
        return text_format("%s", word);
    if (session_find(word, &p) < 0)
        return NULL;
    id = file_read_line(p.dir, "id");
    if (!id)
        place_complain(&p, "id", errno);
    return id;
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct bind_options *o = given;
    cleanup_place struct place p = { .dir = -1 };
    cleanup_free char *id = NULL;

    if (o->unbind != (n_words == 1)) {
        complain("%s: either an id or another session, or --unbind", self->name);
        return EXIT_WRONG_USE;
    }
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    id = wanted_id(o->unbind ? "" : words[1]);
    return !id || session_bind(&p, id) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command bind_commands[] = {
    { .name = "bind", .words = "PATH [ID|PATH]", .summary = "Bind a session to the workspace with an id",
      .text = "In place of the id the path of another session may stand, whose workspace is then shared; a\n"
              "relative one with a slash in it (./s2).",
      .options = options, .options_size = sizeof(struct bind_options), .min_words = 1, .max_words = 2, .run = run },
    {0},
};

// SPDX-License-Identifier: Apache-2.0
#include "verb.h"
#include "wsm.h"

struct close_options {
    bool force;
};

static const struct option_row options[] = {
    { 'f', "force", NULL, "also while other sessions use the workspace", OPTION_FLAG,
      offsetof(struct close_options, force) },
    {0},
};

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct close_options *o = given;
    cleanup_place struct place p;

    (void)self;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    return session_verb(&p, o->force ? "close force" : "close", AGAIN_LOOK) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command close_commands[] = {
    { .name = "close", .words = "PATH", .summary = "Release a workspace's sandbox and keep its files",
      .text = "Running jobs are stopped. The next access provisions it again.", .options = options,
      .options_size = sizeof(struct close_options), .min_words = 1, .max_words = 1, .run = run },
    {0},
};

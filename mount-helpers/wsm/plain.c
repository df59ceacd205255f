// SPDX-License-Identifier: Apache-2.0
/* Subcommands that are one verb of a session's `ctl` and no more. */
#include "verb.h"
#include "wsm.h"

static int run_plain(const struct command *self, void *options, char **words, int n_words)
{
    cleanup_place struct place p;
    cleanup_free char *line = text_format("%s%s%s", self->name, n_words > 1 ? " " : "", n_words > 1 ? words[1] : "");

    (void)options;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    return session_verb(&p, line, AGAIN_WRITE) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_forget(const struct command *self, void *options, char **words, int n_words)
{
    cleanup_place struct place p;

    (void)options;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    return session_verb(&p, self->name, AGAIN_GONE) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command plain_commands[] = {
    { .name = "touch", .words = "PATH", .summary = "Start a workspace's idle time anew", .min_words = 1,
      .max_words = 1, .run = run_plain },
    { .name = "pin", .words = "PATH", .summary = "Never close a workspace for being idle", .min_words = 1,
      .max_words = 1, .run = run_plain },
    { .name = "unpin", .words = "PATH", .summary = "Undo pin", .min_words = 1, .max_words = 1, .run = run_plain },
    { .name = "ttl", .words = "PATH DURATION", .summary = "Set after how much idle time a workspace is closed",
      .text = "DURATION is seconds, or a number with s, m, h or d; 0 is never, \"default\" the mount's.",
      .min_words = 2, .max_words = 2, .run = run_plain },
    { .name = "forget", .words = "PATH", .summary = "Forget a session's name; its files stay", .min_words = 1,
      .max_words = 1, .run = run_forget },
    {0},
};

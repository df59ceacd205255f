// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "files.h"
#include "verb.h"
#include "wsm.h"

struct destroy_options {
    bool yes, force;
};

static const struct option_row options[] = {
    { 'y', "yes", NULL, "do not ask", OPTION_FLAG, offsetof(struct destroy_options, yes) },
    { 'f', "force", NULL, "do not ask, and also where other sessions have the workspace", OPTION_FLAG,
      offsetof(struct destroy_options, force) },
    {0},
};

/* The first letter of the line that is typed; 0 at the end of input. */
static char answer(void)
{
    char first = '\0', c = '\n';

    for (bool begun = false;; begun = true) {
        wait_readable(STDIN_FILENO);
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || c == '\n')
            return first;
        if (!begun || !first)
            first = c;
    }
}

/* Somebody at a terminal is asked. */
static bool agreed(const struct place *p)
{
    char c;

    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return true;
    cleanup_free char *id = file_read_line(p->dir, "id");
    fprintf(stderr, "Destroy the workspace %s of %s, with all its files? [y/N] ", id ? id : "?", p->names);
    c = answer();
    return c == 'y' || c == 'Y';
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct destroy_options *o = given;
    cleanup_place struct place p;

    (void)self;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    if (!o->yes && !o->force && !agreed(&p)) {
        complain("nothing was destroyed");
        return EXIT_FAILURE;
    }
    return session_verb(&p, o->force ? "destroy force" : "destroy", AGAIN_LOOK) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command destroy_commands[] = {
    { .name = "destroy", .words = "PATH", .summary = "Remove a workspace with all its files",
      .text = "At a terminal it asks before.", .options = options, .options_size = sizeof(struct destroy_options),
      .min_words = 1, .max_words = 1, .run = run },
    {0},
};

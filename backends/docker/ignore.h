// SPDX-License-Identifier: Apache-2.0
/* What a .dockerignore leaves out of a build. The form: the Docker documentation, "Build context". */
#ifndef WSMFS_DOCKER_IGNORE_H
#define WSMFS_DOCKER_IGNORE_H

#include <stdbool.h>
#include <stddef.h>

struct ignore_rule {
    char *pattern;  /* relative, without empty components; malloc'ed */
    bool  exception; /* it began with "!": what it matches is not left out after all */
};

struct ignore {
    struct ignore_rule *rules;
    size_t n;
    bool exceptions; /* there is one: what lies in a directory that is left out has to be looked at */
};

/* Reads the text: a pattern a line; "#" begins a comment. *out is to be finished in any case. -ENOMEM. */
int ignore_parse(const char *text, struct ignore *out);
void ignore_finish(struct ignore *g);

/* Whether a file or directory is left out, itself or with a directory above it; of the rules that match, the
 * last one says. `path` is relative to the directory of the build, without empty components. In a pattern "*",
 * "?", "[…]" and "\" are as in a shell and match no "/"; a component "**" stands for any number of
 * directories. Any thread. */
bool ignore_matches(const struct ignore *g, const char *path);

#endif

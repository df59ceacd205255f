// SPDX-License-Identifier: Apache-2.0
/* Taking lines of `ctl` apart. */
#ifndef WSMFS_MANAGER_VERBS_H
#define WSMFS_MANAGER_VERBS_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/base/err.h"

#define VERB_LINE_MAX 256

/* A verb and at most one word behind it. */
struct verb_words {
    char  line[VERB_LINE_MAX]; /* what the two point into */
    char *verb, *word;         /* word "" when there is none */
};

/* -EINVAL with a sentence: empty, too long, too many words. */
int verb_split(const char *line, struct verb_words *out, struct err *e);

#endif

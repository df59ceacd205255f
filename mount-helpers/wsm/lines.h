// SPDX-License-Identifier: Apache-2.0
/* Whole lines out of a stream. */
#ifndef WSM_LINES_H
#define WSM_LINES_H

#include <stddef.h>

/* What has come of a line that is not whole yet. Zeroed at first. */
struct lines {
    char  *buf;
    size_t used, size;
};

/* Reads what is there of a descriptor with O_NONBLOCK and hands on each whole line, without its
 * newline. 1: there may be more later; 0: it has ended; else -errno. */
int lines_read(struct lines *l, int fd, void (*line)(const char *line, void *arg), void *arg);
void lines_free(struct lines *l);

#endif

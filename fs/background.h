// SPDX-License-Identifier: Apache-2.0
/* Going to the background, and telling whoever waits that the mount answers or why it does not. */
#ifndef WSMFS_BACKGROUND_H
#define WSMFS_BACKGROUND_H

#include <stdbool.h>

#include "fs/base/err.h"

/* Who is told. Made before there are threads. */
struct background {
    bool  foreground;
    int   parent_fd;     /* to the waiting parent, -1 when there is none (any more) */
    char *notify_socket; /* of a service manager, or NULL */
};

/* Takes $NOTIFY_SOCKET out of the environment and, unless `foreground`, forks: the child returns;
 * the parent waits for background_ready() or background_fail() in the child, prints the sentence
 * and exits 0 or 1. Paths must be absolute by now, and no thread may exist. The child stays in the
 * terminal's process group until it is ready, so that Ctrl-C ends both. */
int background_start(struct background *b, bool foreground, struct err *e);

/* The mount answers: the parent ends, the process leaves its session, its directory and the
 * standard streams, and the log goes to the system's. In the foreground only a service manager is
 * told. Any thread, once. */
void background_ready(struct background *b);

/* It could not be mounted: the sentence goes to stderr, in the background through the parent. */
void background_fail(struct background *b, const char *text);

/* One state for the service manager ("STOPPING=1"), as sd_notify(3) says it: a datagram to a unix
 * socket whose name may be abstract ('@'). Nobody there: nothing happens. Any thread. */
void background_notify(const struct background *b, const char *state);

void background_finish(struct background *b);

#endif

// SPDX-License-Identifier: Apache-2.0
/* The state directory: this mount's alone, which a lock says. */
#ifndef WSMFS_MANAGER_STATEDIR_H
#define WSMFS_MANAGER_STATEDIR_H

#include <stdbool.h>

#include "fs/base/err.h"
#include "fs/config/config.h"

struct statedir {
    char *path;    /* absolute */
    int   lock_fd;
    const struct config *config; /* for the text in the lock file */
};

/* Makes (0700), checks and locks the directory. -EBUSY naming process and mount point when another
 * daemon is live on it; one that is closing is waited for. On failure *s holds nothing to release.
 * Main thread; may wait as long as the other's shutdown_timeout and a little more. */
int statedir_open(struct statedir *s, const struct config *c, const char *instance, struct err *e);

/* From now on a daemon that starts waits for this one instead of giving up. */
void statedir_say_closing(struct statedir *s);

void statedir_close(struct statedir *s);

#endif

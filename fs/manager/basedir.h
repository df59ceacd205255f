// SPDX-License-Identifier: Apache-2.0
/* The base directory: where workspaces lie on this host and what is recorded about them. */
#ifndef WSMFS_MANAGER_BASEDIR_H
#define WSMFS_MANAGER_BASEDIR_H

#include <stdbool.h>
#include <sys/types.h>

#include "fs/base/err.h"
#include "fs/config/config.h"

#define INSTANCE_MAX_BYTES 64

struct basedir {
    char *path;                              /* absolute */
    int   fd;                                /* O_PATH */
    char  instance[INSTANCE_MAX_BYTES + 1];
};

/* Opens and checks the configured base directory, makes what is missing, reads or
 * makes .wsmfs/{instance,policy}. On failure *b holds nothing to release. Main thread. */
int basedir_open(struct basedir *b, const struct config *c, struct err *e);
void basedir_close(struct basedir *b);

/* Makes a directory with all that is missing above it; `mode` is for the last component alone,
 * what is above gets 0755. Existing: 0. */
int basedir_make_path(const char *path, mode_t mode);

/* Refuses a directory that is not the daemon's own with mode 0700: -EPERM with a sentence that says
 * how to mend it. `what` names it in the sentence ("the base directory"). */
int basedir_check_private(int fd, const char *what, const char *path, struct err *e);

#endif

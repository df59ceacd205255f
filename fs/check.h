// SPDX-License-Identifier: Apache-2.0
/* `wsmfs --check`: what this machine lacks, and how to mend it. */
#ifndef WSMFS_CHECK_H
#define WSMFS_CHECK_H

#include "fs/config/config.h"

/* Prints one line for each check, with how to mend it below what is missing. With a source and a
 * mount point in `c` these are looked at too; nothing is changed. Returns the exit status: 0 when a
 * mount would work. */
int check_run(struct config *c);

#endif

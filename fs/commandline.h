// SPDX-License-Identifier: Apache-2.0
/* The arguments of the program. */
#ifndef WSMFS_COMMANDLINE_H
#define WSMFS_COMMANDLINE_H

#include "fs/base/err.h"
#include "fs/config/config.h"

enum action { ACTION_MOUNT, ACTION_CHECK, ACTION_HELP, ACTION_VERSION, ACTION_DUMP_BACKEND };

/* Reads the arguments, then the config file, into `c` (from config_create()) and finishes it. For
 * ACTION_CHECK source and mount point may be missing (c->source, c->mountpoint NULL). -EINVAL with
 * a sentence for wrong usage; other errors as config.h says. */
int commandline_parse(int argc, char **argv, struct config *c, enum action *action, struct err *e);

/* Prints what --help, --version and --dump-backend print. */
int commandline_help(struct config *c);
int commandline_version(struct config *c);
int commandline_dump_backend(struct config *c);

#endif

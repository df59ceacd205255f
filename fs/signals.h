// SPDX-License-Identifier: Apache-2.0
/* The one thread that takes the process's signals:
 *
 *   TERM, INT   end and close everything; a second one only tells how far it is
 *   USR1        end and keep everything (detach)
 *   HUP         reload the config file
 */
#ifndef WSMFS_SIGNALS_H
#define WSMFS_SIGNALS_H

#include <stdbool.h>

#include "fs/base/err.h"
#include "fs/fs.h"

struct signals;

/* Blocks the signals in the calling thread, ignores SIGPIPE and starts the thread. Before other
 * threads that do not block signals themselves. All three are borrowed. */
int signals_start(struct config *c, struct manager *m, struct fs *fs, struct signals **out, struct err *e);

/* Did a signal say to keep everything? */
bool signals_detach(const struct signals *s);

/* The mount has ended: a signal no longer reaches `fs`. Waits for one that is being handled. */
void signals_mount_ended(struct signals *s);

/* Ends the thread; signals stay blocked. NULL is fine. */
void signals_finish(struct signals *s);

#endif

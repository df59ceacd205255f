// SPDX-License-Identifier: Apache-2.0
/* Work that is done once for all who want it at the same time, e.g. the pull of an image. */
#ifndef WSMFS_DOCKER_FLIGHT_H
#define WSMFS_DOCKER_FLIGHT_H

#include "backends/backend.h"

struct flights;

/* -ENOMEM with a sentence. */
int flights_create(struct flights **out, struct err *e);
/* When nobody is in it. NULL is fine. */
void flights_destroy(struct flights *fs);

/* What is to be done. `p` is never NULL; what is told there is told to all who wait. */
typedef int flight_work(void *arg, struct backend_progress *p, struct err *e);

/* Does the work, or waits for who does work of that name already, showing what that one tells, and ends as it
 * does. Who is cancelled (`p`; NULL: after five minutes, -ETIMEDOUT) returns -ECANCELED; if that was the one who
 * did the work, one of those who wait does it in turn. Any thread; no lock is held while anything is done. */
int flights_join(struct flights *fs, const char *name, struct backend_progress *p, flight_work *work, void *arg,
                 struct err *e);

#endif

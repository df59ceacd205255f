// SPDX-License-Identifier: Apache-2.0
/* Finds a backend by the word in front of the source's colon. */
#ifndef WSMFS_BACKENDS_BACKENDS_H
#define WSMFS_BACKENDS_BACKENDS_H

#include "backends/backend.h"

/* `name`: one of the built-in ones, or the path of a shared object (it holds a '/'), which is
 * opened and stays open until the process ends. -errno with a sentence when there is none of that
 * name, it does not load, or its ABI is another. `out` is the caller's memory; members that the
 * backend was built without are NULL in it. Main thread, once. */
int backend_find(const char *name, struct backend *out, struct err *e);

/* The built-in ones' names, NULL-terminated, for help and checks. */
const char *const *backend_names(void);

#endif

// SPDX-License-Identifier: Apache-2.0
#ifndef WSM_JOBS_H
#define WSM_JOBS_H

#include "place.h"

struct json_object;

/* The session's jobs, the oldest first: what `status` says of each, with `name` and `command` added.
 * The caller puts it. NULL: said. */
struct json_object *jobs_list(const struct place *p);

#endif

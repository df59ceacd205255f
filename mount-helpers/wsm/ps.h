// SPDX-License-Identifier: Apache-2.0
/* Live workspaces of a mount. */
#ifndef WSM_PS_H
#define WSM_PS_H

struct json_object;

/* Adds an object for each live workspace of the mount at `point` to the array: mount, id, user, agent,
 * session, backend, state, idle_s, expires (or null), jobs. Who may not see the manager's table gets
 * those of the sessions that he may see. Says what is wrong and returns -1. */
int ps_collect(const char *point, struct json_object *array);

#endif

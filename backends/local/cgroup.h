// SPDX-License-Identifier: Apache-2.0
/* Limits for a workspace's processes: one control group a workspace, in cgroup v2 or in the v1
 * hierarchies, wherever each controller lives on this machine. A group that the kernel gives without
 * any controller still serves to find and end every process of a workspace that is not confined.
 *
 * Where groups are made: v1: below the daemon's own group, controller by controller. v2: in the
 * parent of the daemon's own group when that is named "daemon" (systemd's DelegateSubgroup=daemon);
 * else, for root, in /wsmfs of the hierarchy, since a unit's own group may hold no processes beside
 * groups with controllers and could not be started again while they live; else in the daemon's own
 * group, which the daemon then leaves for its subgroup "daemon". */
#ifndef WSMFS_LOCAL_CGROUP_H
#define WSMFS_LOCAL_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backends/shared/keys.h"
#include "fs/base/err.h"

struct cgroups;

/* Finds the hierarchies; makes and changes nothing. `mountinfo` and `own`: what to read in place of
 * /proc/self/mountinfo and /proc/self/cgroup (for tests), or NULL. -ENOMEM, or -errno when these
 * cannot be read; a machine without any hierarchy is no failure. Immutable afterwards; any thread. */
int cgroups_create(const char *mountinfo, const char *own, struct cgroups **out, struct err *e);
void cgroups_destroy(struct cgroups *cs); /* NULL is fine; groups stay */

/* Can every limit that is set be honoured here? Makes a group with them and removes it. -EOPNOTSUPP
 * with a sentence that names the keys which cannot, and why. May move the daemon's process (above),
 * so: once, before there are sandboxes. */
int cgroups_check(struct cgroups *cs, const struct sandbox_limits *l, struct err *e);

/* Removes the group `name` of a sandbox that is gone from every place where this daemon would make it,
 * whatever limits it had: for what a crash has left. None there: 0; one that holds processes: -EBUSY. */
int cgroups_remove(struct cgroups *cs, const char *name, struct err *e);

/* One workspace's group. Its calls are for one thread at a time. */
struct cgroup;

/* Makes the group `name` (one path component, e.g. "wsm-<instance>-<id>") or takes the one that is
 * there, and sets its limits. Without limits and without a place to make it the group is an empty
 * shell, on which every call succeeds. -errno with a sentence; what was made is removed again. */
int cgroup_create(struct cgroups *cs, const char *name, const struct sandbox_limits *l, struct cgroup **out,
                  struct err *e);

/* Finds the group `name` that the process `pid` was put in by an earlier daemon, wherever that was
 * made, and sets its limits anew. A process that is in no group of that name: as cgroup_create(), and
 * the process is put into it. */
int cgroup_adopt(struct cgroups *cs, const char *name, pid_t pid, const struct sandbox_limits *l,
                 struct cgroup **out, struct err *e);

/* Frees the memory; the group stays. NULL is fine. */
void cgroup_destroy(struct cgroup *c);

#define CGROUP_PARTS_MAX 4

/* Descriptors to which a new process writes "0" to join: opened now, so that it may do so whatever
 * its user is by then. The caller closes them. Returns their number, or -errno with a sentence. */
int cgroup_join_fds(const struct cgroup *c, int fds[CGROUP_PARTS_MAX], struct err *e);

/* Puts a process (with all its threads) into the group. */
int cgroup_add(const struct cgroup *c, pid_t pid, struct err *e);

/* Ends all processes in the group with SIGKILL and waits until none is left, at most `timeout_ms`:
 * -ETIMEDOUT. A group with none: 0. No process can be made in it afterwards, until its limits are set anew
 * (cgroup_create()). */
int cgroup_kill(const struct cgroup *c, int timeout_ms, struct err *e);

/* Removes the group, which must hold no process: -EBUSY. One that is gone: 0. */
int cgroup_remove(const struct cgroup *c, struct err *e);

#endif

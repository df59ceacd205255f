// SPDX-License-Identifier: Apache-2.0
/* Renames that were refused, so that a program which then copies and deletes by hand is refused too.
 *
 * Python's shutil.move answers any failure of rename(2) by copying the tree and removing the old
 * one; with a session of a shared workspace that would delete the files of all its sessions. Its
 * first act is a mkdir of exactly the name that it could not rename to: that fails as well. */
#ifndef WSMFS_FS_REFUSED_H
#define WSMFS_FS_REFUSED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct refused;

struct refused *refused_create(void);
void refused_destroy(struct refused *r);

/* The caller `pid` could not rename a directory to (parent, name). Any thread. */
void refused_add(struct refused *r, pid_t pid, uint64_t parent, const char *name);

/* Whether `pid` was refused that name within the last minute. Any thread; costs nothing while
 * nobody was. */
bool refused_has(struct refused *r, pid_t pid, uint64_t parent, const char *name);

#endif

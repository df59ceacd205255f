// SPDX-License-Identifier: Apache-2.0
/* Giving a directory to another user with all that lies below it, at any depth, so that it can be gone on with
 * where it was interrupted. Used by the guest too. */
#ifndef WSMFS_BACKENDS_SHARED_GIVE_H
#define WSMFS_BACKENDS_SHARED_GIVE_H

#include <sys/stat.h>

/* Gives one object away, `name` in the directory `dir`, or `dir` itself where the name is empty (AT_EMPTY_PATH); follows
 * no link. 1: it was given now; 0: it is whose it is to be, or cannot be given; -errno ends it all. */
typedef int give_fn(void *arg, int dir, const char *name, const struct stat *st);

/* Calls `give` for all below the directory `top`, and for `top` itself last: as long as that has not been given the work
 * is not done, and doing it again goes on with it. A directory is given before it is listed, so that what others make in
 * it meanwhile is either listed or belongs to its new owner from the beginning; what was made in `top` until it was
 * given is looked for after that. Enters no other file system, and follows no link; passes over what cannot be read.
 * Needs four descriptors, and memory for the names of subdirectories that are still to come on the way down.
 *
 * 0; -ESTALE: others moved directories time and again where it was; -ENOMEM, or another -errno. Then, as when `give`
 * has ended it, `top` was not given. */
int give_tree(int top, give_fn *give, void *arg);

#endif

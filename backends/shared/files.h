// SPDX-License-Identifier: Apache-2.0
/* A workspace's files where they are a directory of this host: for every backend whose sandboxes see
 * them there. */
#ifndef WSMFS_BACKENDS_SHARED_FILES_H
#define WSMFS_BACKENDS_SHARED_FILES_H

#include "backends/backend.h"

/* The callback files_open of such a backend: an O_PATH descriptor of the workspace's directory below
 * `base_fd`, made and given to its tenant when missing. -EROFS when it is missing and read_only, else
 * -errno, with a sentence. Any thread. */
int host_files_open(int base_fd, const struct backend_workspace *w, bool read_only, struct err *e);
/* The same for a sandbox with user ids of its own: the directory is given to uid and gid when it is made, and one
 * that is there is left as it is. */
int host_files_open_for(int base_fd, const struct backend_workspace *w, uint32_t uid, uint32_t gid, bool read_only,
                        struct err *e);

/* Removes a directory (its path below `base_fd`) with all that is in it, following no link; for the callback
 * destroy that of the files, `host_dir`. Missing: 0. p may be NULL. -errno with a sentence. */
int host_files_remove(int base_fd, const char *path, struct backend_progress *p, struct err *e);

/* Removes what an interrupted removal has left; for the callback list. 0 or -errno with a sentence. */
int host_files_empty_trash(int base_fd, struct err *e);

/* Moves a directory (path below `base_fd`, the last component by name alone) into a place of its own
 * below `trash_fd` and removes it there: by descriptors, following no link and entering no mount.
 * A removal is under a lock (flock) of its own, so that emptying the trash meanwhile, here or for another
 * mount, passes it over. Missing: 0. Tells its progress every thousand files. -errno with a sentence; what could not be
 * removed stays in the trash, where trash_empty() tries again. */
int trash_remove(int base_fd, const char *path, int trash_fd, struct backend_progress *p, struct err *e);

/* Removes what an interrupted removal has left. */
int trash_empty(int trash_fd, struct backend_progress *p, struct err *e);

#endif

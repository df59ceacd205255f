// SPDX-License-Identifier: Apache-2.0
/* Locks of files are taken on the backing file, so that a process on the mount and one in the
 * sandbox exclude each other. Every lock owner has an open description of its own: OFD locks stand
 * for its POSIX locks, flock for its flock (fuse.md, section 14). */
#ifndef WSMFS_FS_HOSTDIR_LOCK_H
#define WSMFS_FS_HOSTDIR_LOCK_H

#include "fs/hostdir/file.h"

struct lockers;

struct lockers *lockers_create(void);
/* Ends all waiting with EINTR, then frees. NULL is fine. */
void lockers_destroy(struct lockers *ls);

void lock_get(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, struct flock *);
void lock_set(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, struct flock *, int sleep);
void lock_flock(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, int op);

/* FLUSH: the owner has closed a descriptor of the file, so its POSIX locks go. */
void lock_flush(struct fs *fs, struct open_file *of, uint64_t owner);
/* RELEASE: the owners that were first seen through this handle go, with all they hold. */
void lock_release(struct fs *fs, struct open_file *of);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Open files and directories: what the kernel knows by a handle (`fh`). */
#ifndef WSMFS_FS_HANDLE_H
#define WSMFS_FS_HANDLE_H

#include "fs/fs_internal.h"

struct handle;

/* Requests on a handle; absent ones are answered as ops.c says. Each answers exactly once. */
struct handle_ops {
    void (*read)(struct fs *, fuse_req_t, struct handle *, size_t, off_t, struct fuse_file_info *);
    void (*write)(struct fs *, fuse_req_t, struct handle *, struct fuse_bufvec *, off_t, struct fuse_file_info *);
    void (*flush)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *);
    void (*release)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *);
    void (*fsync)(struct fs *, fuse_req_t, struct handle *, int datasync);
    void (*fallocate)(struct fs *, fuse_req_t, struct handle *, int mode, off_t, off_t);
    void (*lseek)(struct fs *, fuse_req_t, struct handle *, off_t, int whence);
    void (*copy)(struct fs *, fuse_req_t, struct handle *, off_t, struct handle *, off_t, size_t, int);
    void (*poll)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, struct fuse_pollhandle *);
    void (*getlk)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, struct flock *);
    void (*setlk)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, struct flock *, int sleep);
    void (*flock)(struct fs *, fuse_req_t, struct handle *, struct fuse_file_info *, int op);
    void (*drop)(struct fs *, struct handle *); /* frees it: the end of release, or of the mount */
};

struct handle {
    const struct handle_ops *ops;
    uint64_t id;
};

/* Gives it an id and puts that into fi->fh. -ENOMEM. */
int handle_add(struct fs *fs, struct handle *h, struct fuse_file_info *fi);
void handle_remove(struct fs *fs, struct handle *h);
/* NULL for one of another life of the daemon. */
struct handle *handle_get(struct fs *fs, uint64_t fh);

#endif

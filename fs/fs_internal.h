// SPDX-License-Identifier: Apache-2.0
/* What the parts of fs/ share. */
#ifndef WSMFS_FS_INTERNAL_H
#define WSMFS_FS_INTERNAL_H

#include <stdatomic.h>

#include "fs/fs.h"
#include "fs/node.h"

struct hinodes;
struct coherence;
struct lockers;
struct watcher;
struct readers;
struct refused;
struct jobs;

#define REQUEST_KINDS_MAX 40

struct fs {
    struct config  *config;
    struct manager *manager;
    struct pool    *pool;
    struct timers  *timers;
    struct jobs    *jobs;         /* NULL: the backend runs none */

    struct fuse_session *session;
    struct readers *readers;
    bool            mounted;
    unsigned        connection;   /* the kernel's number of the mount; 0: not known */

    struct nodes    nodes;
    struct idtable *handles;
    struct refused *refused;      /* renames that were */
    struct hinodes *hinodes;      /* the host inodes that nodes stand for */
    struct lockers *lockers;      /* locks on backing files */
    struct watcher *watcher;      /* tells of changes behind the mount; NULL: cannot be had */
    struct coherence *coherence;  /* keeps the aliases of a directory alike */

    uid_t mount_uid;
    gid_t mount_gid;
    int   proc_fd_dir;            /* O_PATH of /proc/self/fd */
    bool  as_callers;             /* files are made as somebody: root's mount (creds_assume) */
    bool  close_may_fail;         /* the base directory is on a file system that writes at close(2) */
    bool  direct_mmap;            /* what is read past the kernel's cache can be mapped all the same (Linux 6.6) */
    bool  expire_only;            /* the kernel knows notify_expire_entry */
    bool  passthrough;
    bool  killpriv;
    struct err refusal;           /* why this mount is not to be, known after INIT; code 0: it may be */
    void (*ready)(void *arg);
    void  *ready_arg;

    /* In `metrics`, by what enum request of ops.c says; set at INIT, NULL where there was no room. */
    _Atomic uint64_t *requests[REQUEST_KINDS_MAX];
};

/* INIT: agrees with the kernel on what both can do. */
void fs_init_connection(struct fs *fs, struct fuse_conn_info *conn);

/* Ends the connection to the kernel, with an error for all who wait for an answer, and takes the mount away.
 * A thread that tells the kernel something may wait in it for a client, whose request nobody reads once we are
 * ending. Any thread; once more does nothing. Where an ordinary user's kernel shows no control files: nothing. */
void fs_cut_off(struct fs *fs);

/* How long the kernel may believe names and attributes, in seconds. */
#define PLACE_TIMEOUT_S   3600.0 /* changes are told to it */
#define HOST_TIMEOUT_S    1.0    /* a change behind the mount shows within this, told or not */
#define WATCHED_TIMEOUT_S 3600.0 /* it is told */
#define MISSING_TIMEOUT_S 10.0   /* a watched name that is not there: an overflow cannot undo it */

#endif

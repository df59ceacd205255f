// SPDX-License-Identifier: Apache-2.0
/* Changes behind the mount (jobs, the engine, an administrator) are told by fanotify on every
 * directory that the kernel knows of, so that what it caches may be believed for long. Where that
 * cannot be had, for the whole mount or for a directory, time-outs stay short.
 *
 * fanotify and not inotify: its events carry the pid, so the daemon's own changes are told apart
 * (for an ordinary user's listener since Linux 5.13: fanotify_init(2), "unprivileged"). */
#ifndef WSMFS_FS_HOSTDIR_WATCH_H
#define WSMFS_FS_HOSTDIR_WATCH_H

#include "fs/hostdir/hostdir.h"

struct watcher;

/* A directory's watch; NULL in hdir: never tried. Guarded by nodes.lock. */
struct watch;

/* Starts listening. NULL where the kernel does not let us (*why a literal that says it), or out of
 * memory. */
struct watcher *watcher_create(struct fs *fs, const char **why);
/* Ends the thread: nothing is told any more. Directories may still be watched, and forgotten. NULL is fine. */
void watcher_stop(struct watcher *w);
/* watcher_stop() if need be, and frees; there are no directories any more. NULL is fine. */
void watcher_destroy(struct watcher *w);

/* Watches a directory, given an open descriptor, unless that has been tried; a workspace's root again
 * when another directory has taken its place. To be called before its content is read for an answer.
 * No lock held. */
void watch_dir(struct fs *fs, struct hdir *d, int fd);

/* Frees d's watch with it. nodes.lock held. */
void watch_forget(struct fs *fs, struct hdir *d);

/* A look at a directory's content between which and the answer nothing must have changed. */
struct look {
    struct hdir *dir;
    uint64_t     events, names;
    unsigned     changes;    /* as in struct hdir */
    bool         watched;
    bool         exclusive;  /* the directory's change lock is held: nobody else changes its names */
};
/* `via` (NULL: none): for an answer to somebody who looks from there. */
struct look look_begin(struct fs *fs, struct hdir *d, struct dir_node *via);
/* How long the kernel may believe what was found in that directory since the look began: a name (or
 * that there is none), or attributes too. nodes.lock not held. */
double look_timeout(struct fs *fs, const struct look *l, bool name_alone);

/* Whether changes of names in `dir` are told; false for NULL and what is no directory. nodes.lock held. */
bool watch_is_on(const struct hinode *dir);

/* Whether attributes of `h` that are read from now on will be invalidated when they change. */
bool watch_covers(struct fs *fs, struct hinode *h, const struct statx *st);

/* All that has happened behind the mount until now has been told to the kernel when it returns; names of a
 * directory that the kernel has locked for a request that is parked are told when it lets go of it.
 * Not while the kernel waits with a directory's lock for the caller. */
void watch_sync(struct fs *fs);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Keeps the aliases of a directory alike: what one session changed is told to the kernel for the
 * others.
 *
 * The obvious ways fail: notices after the reply leave the old names visible for milliseconds,
 * notices before it deadlock, since each request holds the kernel's lock of its directory that
 * another's notice waits for. So: the thread of the change delivers and then replies, one such
 * change a directory at a time; others reply at once and leave the notices to a pool; and a deadline
 * replies for whoever waits too long, which unties every knot. */
#ifndef WSMFS_FS_HOSTDIR_COHERENCE_H
#define WSMFS_FS_HOSTDIR_COHERENCE_H

#include "fs/answer.h"
#include "fs/hostdir/hostdir.h"

struct coherence *coherence_create(struct fs *fs, unsigned max_delivering);
/* Waits for deliveries; the kernel connection must have ended or be served. */
void coherence_destroy(struct coherence *co);

/* One thing for the kernel to forget. */
struct notice {
    uint64_t ino;
    char    *name;  /* the entry (ino, name); NULL: the inode */
    bool     attributes_only;
};

struct notices {
    struct notice *list;
    size_t         n, room;
};

/* Collect, with nodes.lock held: `name` in every alias of d but `via` (NULL: in all), with their
 * listings and attributes. Out of memory: left out; a time-out covers it. */
void notices_name(struct notices *ns, struct hdir *d, const struct dir_node *via, const char *name);
/* The same for a change through `via`, whose answer waits for the delivery; aliases that have not been asked
 * since they were last told the same are left out. */
void notices_change(struct notices *ns, struct hdir *d, struct dir_node *via, const char *name);
/* The attributes of every alias of d but `via`. */
void notices_attributes(struct notices *ns, struct hdir *d, const struct dir_node *via);
/* One name in one node. */
void notices_entry(struct notices *ns, uint64_t ino, const char *name);
/* Moves the entries, whose notices need the lock of a directory, to the end of `to`. No lock. */
void notices_take_entries(struct notices *from, struct notices *to);
/* One node. */
void notices_inode(struct notices *ns, uint64_t ino, bool attributes_only);

/* Delivers `ns` (taken over) for a change in d1 and d2 (either may be NULL) and answers `a`; the
 * order is the module's. `a` is copied. No lock held; nothing of the request's nodes is touched
 * after the answer. */
void coherence_answer(struct fs *fs, const struct answer *a, struct hdir *d1, struct hdir *d2,
                      struct notices *ns);

/* Delivers at once, on a thread that is not serving a request (notices of attributes alone: on
 * any). */
void coherence_deliver(struct fs *fs, struct notices *ns);

/* For the manager's hooks and the ends of jobs, on which parked requests may wait that hold the very lock of a
 * directory that a notice needs: delivers on a thread of the pool and waits 50 ms for it at most; false: it is still
 * being delivered. `expire`: as coherence_expire. */
bool coherence_deliver_bounded(struct fs *fs, struct notices *ns, bool expire);
/* The same without a wait: on a thread that has waited in vain just before. */
void coherence_leave(struct fs *fs, struct notices *ns);

/* As coherence_deliver; inodes that the kernel does not know are put into *unknown: it may be about
 * to learn of them, with what was right a moment ago. */
void coherence_deliver_again(struct fs *fs, struct notices *ns, struct notices *unknown);
/* The same for entries that are still right, but shall be asked for again at their next use. */
void coherence_expire(struct fs *fs, struct notices *ns);

#endif

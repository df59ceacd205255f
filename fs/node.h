// SPDX-License-Identifier: Apache-2.0
/* Nodes: what the kernel knows by a node id. */
#ifndef WSMFS_FS_NODE_H
#define WSMFS_FS_NODE_H

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stdint.h>

#include "fs/idtable.h"

struct fs;
struct node;
struct node_ops;
struct call;

/* What a node is; the key under which it is found again. */
enum node_kind {
    NODE_PLACE,        /* root, user, agent: (place) */
    NODE_SESSION,      /* a session's directory: (place); a struct dir_node */
    NODE_DIR,          /* a directory in a workspace, seen from one session: (hinode, session) */
    NODE_FILE,         /* a file in a workspace: found through its hinode, not here */
    NODE_LINK,         /* a symlink: (directory node, name) */
    NODE_MANAGER,      /* /.wsm: () */
    NODE_MIRROR,       /* /.wsm/sessions and what is below, down to agents: (place) */
    NODE_CONTROL,      /* a control directory: (place, which of the two trees) */
    NODE_ROOT,         /* in `.wsm/root`: (place, which of the two trees), path */
    NODE_CONTROL_FILE, /* (control directory, name), newest node only */
    NODE_JOBS,         /* a session's directory of jobs: (place, which of the two trees) */
    NODE_JOB,          /* a job's directory: (job, which of the two trees) */
    NODE_JOB_FILE,     /* a file of a job: (job or file, which of the two trees), name, newest node only */
};

struct node {
    uint64_t     id;
    uint64_t     nlookup;   /* references of the kernel; guarded by nodes.lock */
    struct node *hash_next;
    const struct node_ops *ops;
    const void  *owner, *second; /* the key, with kind; LINK and CONTROL_FILE hash a name too */
    uint32_t     hash;
    uint8_t      kind;
    bool         hashed;
};

/* The operations of a kind; absent ones are answered with the errno that a native filesystem gives
 * (table in ops.c). Each answers the request exactly once, now or later. */
struct node_ops {
    void (*lookup)(struct fs *, fuse_req_t, struct node *, const char *name);
    void (*getattr)(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);
    void (*setattr)(struct fs *, fuse_req_t, struct node *, struct stat *, int to_set, struct fuse_file_info *);
    void (*readlink)(struct fs *, fuse_req_t, struct node *);
    void (*mknod)(struct fs *, fuse_req_t, struct node *, const char *, mode_t, dev_t);
    void (*mkdir)(struct fs *, fuse_req_t, struct node *, const char *, mode_t);
    void (*unlink)(struct fs *, fuse_req_t, struct node *, const char *);
    void (*rmdir)(struct fs *, fuse_req_t, struct node *, const char *);
    void (*symlink)(struct fs *, fuse_req_t, struct node *, const char *target, const char *name);
    void (*rename)(struct fs *, fuse_req_t, struct node *, const char *, struct node *to, const char *, unsigned);
    void (*link)(struct fs *, fuse_req_t, struct node *, struct node *to, const char *name);
    void (*open)(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);
    void (*create)(struct fs *, fuse_req_t, struct node *, const char *, mode_t, struct fuse_file_info *);
    void (*opendir)(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);
    void (*readdir)(struct fs *, fuse_req_t, struct node *, size_t, off_t, struct fuse_file_info *, bool plus);
    void (*statfs)(struct fs *, fuse_req_t, struct node *);
    void (*setxattr)(struct fs *, fuse_req_t, struct node *, const char *, const char *, size_t, int);
    void (*getxattr)(struct fs *, fuse_req_t, struct node *, const char *, size_t);
    void (*listxattr)(struct fs *, fuse_req_t, struct node *, size_t);
    void (*removexattr)(struct fs *, fuse_req_t, struct node *, const char *);
    /* Requests on an open file go by its handle: see handle.h. */
    void (*detach)(struct fs *, struct node *);  /* forgotten by the kernel: unlink it, nodes.lock held */
    void (*destroy)(struct fs *, struct node *); /* then free it, no lock held */
};

/* All nodes of a mount. */
struct nodes {
    /* Guards the hash, every nlookup, and all of hostdir's links between host inodes and nodes.
     * Never held across I/O, never while another lock is taken. */
    pthread_mutex_t  lock;
    struct node    **buckets;
    size_t           n_buckets, n_hashed;
    struct idtable  *ids;
    _Atomic(uint64_t) count;
    struct node     *root;
};

int nodes_init(struct nodes *ns);
void nodes_finish(struct nodes *ns);

/* The node of a request, NULL when the kernel's id is from another life of the daemon. It stays
 * valid until the request is answered. */
struct node *nodes_get(struct nodes *ns, uint64_t id);

/* With nodes.lock held: finds a hashed node, NULL when there is none. `name` only for the kinds
 * that have one in their key, compared by `same` (NULL: no name). */
struct node *nodes_find(struct nodes *ns, enum node_kind kind, const void *owner, const void *second,
                        const char *name, bool (*same)(const struct node *, const char *name));

/* With nodes.lock held: gives a node its id and, when `hashed`, its place in the hash. The caller
 * has filled ops, kind, owner and second. -ENOMEM leaves it untouched. */
int nodes_add(struct nodes *ns, struct node *n, const char *name, bool hashed);

/* With nodes.lock held: puts an unhashed node in under its (changed) key. */
void nodes_hash(struct nodes *ns, struct node *n, const char *name);

/* With nodes.lock held: a later lookup of its key makes a new node (removed directories). */
void nodes_unhash(struct nodes *ns, struct node *n);

/* Frees what the kernel still held when the mount ended. */
void nodes_drain(struct fs *fs);

/* FORGET, or a reply that was not taken. At zero the node is freed through ops->destroy. */
void nodes_forget(struct fs *fs, uint64_t id, uint64_t n);
/* As nodes_forget(1) for a node at hand whose count was just raised. */
void nodes_put(struct fs *fs, struct node *n);

#endif

// SPDX-License-Identifier: Apache-2.0
/* hostdir: a workspace whose files lie in a directory of this host.
 *
 * The kernel sees nodes, the host has inodes; a `hinode` stands for one host inode of one
 * workspace. A regular file (or device, FIFO, socket) is one node for all sessions of the
 * workspace. A directory is one node for each session that looks at it, since a directory inode may
 * have one dentry only (its aliases; coherence.h keeps them alike). A symlink is one node for each
 * directory node and name.
 *
 * No descriptor is kept for a file that the kernel merely knows: it is found again by the place
 * (`parent`, `name`) where it was last seen, one component at a time and following no link, and
 * compared by device, number and birth time. Descriptors of directories are cached, a bounded
 * number of them. */
#ifndef WSMFS_FS_HOSTDIR_HOSTDIR_H
#define WSMFS_FS_HOSTDIR_HOSTDIR_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "fs/base/cleanup.h"
#include "fs/base/list.h"
#include "fs/call.h"
#include "fs/fs_internal.h"
#include "fs/handle.h"

struct hostdir;
struct hdir;

/* Everything here but the key is guarded by nodes.lock. */
struct hinode {
    struct hinode  *hash_next;
    struct hostdir *hd;
    struct hinode  *parent;   /* where it was last seen: a directory, referenced; NULL: the root, or
                               * nowhere any more */
    char           *name;
    struct list     siblings; /* in the parent's `children` */
    uint64_t        dev, ino;
    int64_t         birth_ns; /* 0 where the file system does not tell */
    uint32_t        refs;
    uint32_t        fd_users;
    int             fd;       /* O_PATH, -1: not open */
    uint16_t        type;     /* S_IFMT bits */
    bool            hashed, is_root;
    bool            removed;  /* a file whose last known name we have taken away */
};

/* A directory: the group of its aliases. */
struct hdir {
    struct hinode h;
    struct list   lru;        /* among directories with a cached descriptor */
    struct list   children;   /* hinodes last seen here */
    struct list   aliases;    /* dir_nodes */
    char         *told;       /* the name that notices_change() told of last; NULL: none */
    struct watch *watch;      /* NULL: not tried yet */
    bool          waiter;     /* somebody's reply waits for notices about it; nodes.lock */
    unsigned      changes;    /* begun and ended name changes through any session: odd during one;
                               * nodes.lock */
    pthread_mutex_t change;   /* one name change at a time; held across that one system call, which
                               * is what orders it for all sessions. Two: in order of address. Taken
                               * before nodes.lock */
};

/* Anything else. */
struct hfile {
    struct hinode  h;
    struct node   *node;      /* NULL while the kernel does not know it (symlinks: always) */
    struct handle *handles;   /* open ones, so that a removed file can still be reached */
    int32_t        backing_id;
    uint32_t       opens_passthrough, opens_cached;
    bool           tainted;   /* was open for writing in passthrough: until the last mapping of it is
                               * gone, attributes change without a word */
    bool           appended;  /* open for appending without passthrough: until the last handle goes,
                               * whoever opens it reads past the kernel's cache, which would show
                               * zeros where a line has just been added */
};

/* The files of one workspace. */
struct hostdir {
    struct hdir       root;   /* its references are the hostdir's */
    struct fs        *fs;
    struct workspace *ws;     /* referenced */
    struct list       all;      /* in hinodes.attached */
    bool              attached; /* workspace_fs_data points here, which counts as a reference */
    bool              closed;   /* the workspace is: detach with the last node */
    atomic_bool       dead;     /* destroyed: every node is stale */
    bool              reshown;  /* what follows has changed; during tree_reloaded() */
    bool              tenant;   /* whose files the kernel was told these are: hostdir_tenant() then; nodes.lock */
    uid_t             uid;
    gid_t             gid;
};

/* Whether ids are shown and set as the tenant's, and which those are (else untouched). A reload may change it. */
bool hostdir_tenant(const struct hostdir *hd, uid_t *uid, gid_t *gid);
/* Whether on disk they are then the sandbox's own: see hostdir_owner(). */
bool hostdir_foreign(const struct hostdir *hd);
/* Notes what hostdir_tenant() says now; true when that was something else before. nodes.lock held. */
bool hostdir_note_tenant(struct hostdir *hd);
/* Does so for all and sets `reshown` of each. nodes.lock held. */
void hostdirs_note_tenants(struct fs *fs);

/* A directory as one session sees it. */
struct dir_node {
    struct node   n;
    struct hdir  *hi;        /* NULL: a session's directory before its first use */
    struct place *session;   /* referenced */
    struct list   alias;     /* in hi->aliases */
    bool          asked;     /* what the kernel was told to forget it may have learned again; nodes.lock */
};

/* A file's node is a bare one, to be small: there are as many as the kernel knows files. */
static inline struct hfile *node_file(const struct node *n) { return (struct hfile *)n->owner; }

/* Its text depends on where it is seen from: the key's directory and session. */
struct link_node {
    struct node   n;
    struct hfile *hi;      /* referenced, as is dir */
    struct hdir  *dir;
    struct place *session; /* referenced */
    char         *name;
};

static inline bool hinode_is_dir(const struct hinode *h) { return S_ISDIR(h->type); }
static inline struct hdir *hdir_of(struct hinode *h) { return container_of(h, struct hdir, h); }
static inline struct hfile *hfile_of(struct hinode *h) { return container_of(h, struct hfile, h); }

/* ── hinode.c ────────────────────────────────────────────────────────────────────────────── */

struct hinodes *hinodes_create(unsigned max_fds);
/* Lets go of all workspaces, after the last node is gone. */
void hostdirs_drain(struct fs *fs);
void hinodes_destroy(struct hinodes *hs);

/* nodes.lock, and what was given up meanwhile is closed and freed at the unlock. */
void hinodes_lock(struct fs *fs);
void hinodes_unlock(struct fs *fs);

/* The files of an entered workspace; made at its first use. Referenced: hostdir_put(). */
struct hostdir *hostdir_get(struct fs *fs, struct workspace *ws);
void hostdir_put(struct fs *fs, struct hostdir *hd);

/* With the lock held. */
void hinode_ref(struct hinode *h);
void hinode_unref(struct fs *fs, struct hinode *h);
/* The hinode that `st` describes, made when there is none, seen at (dir, name) now; referenced.
 * NULL when out of memory. */
struct hinode *hinode_seen(struct fs *fs, struct hdir *dir, const char *name, const struct statx *st);
/* The known hinode of that identity, not referenced, or NULL. */
struct hinode *hinode_known(struct fs *fs, struct hostdir *hd, const struct statx *st);
/* It is now at (dir, name); a NULL dir: nowhere. */
int hinode_move(struct fs *fs, struct hinode *h, struct hdir *dir, const char *name);
/* Its number may be given to another file: no later look finds it. */
void hinode_unhash(struct fs *fs, struct hinode *h);

/* A descriptor borrowed from a hinode, or of its own. */
struct hfd {
    int            fd;
    struct hinode *h; /* whose fd_users were raised; NULL: `fd` is ours, or the workspace's root */
    bool           own;
    bool           opened; /* a description for reading or writing, not O_PATH alone */
};

/* An O_PATH descriptor of h. -ESTALE when it is not where it was last seen (the kernel then looks
 * its name up again). The workspace must be entered. No lock held. */
int hinode_fd(struct fs *fs, struct hinode *h, struct hfd *out);
/* The same, or of a file that is open a descriptor of one's own to what was opened, wherever that has
 * gone behind the mount. Not for an open by name, which is to find what lies there now. */
int hinode_fd_or_handle(struct fs *fs, struct hinode *h, struct hfd *out);
void hfd_put(struct fs *fs, struct hfd *f);

/* Attributes of h as they are on disk. As hinode_fd. */
int hinode_stat(struct fs *fs, struct hinode *h, struct statx *st);

/* Until hfd_put(out) h is reached through an O_PATH descriptor, whatever becomes of its name: that
 * which it has, or `fd`, of which ownership is taken then (true). Lock held. */
bool hinode_hold(struct fs *fs, struct hinode *h, int fd, struct hfd *out);
/* A held one has lost the name by which it is found: its descriptor stays for as long as it has
 * none. Lock held. */
void hinode_nameless(struct fs *fs, struct hinode *h);

/* For a call that failed with `error` (-errno): true when it was for want of room and room may be on its
 * way, after a short sleep; *waited_ms is 0 at first. A close and the removal of a file return before the
 * kernel has told us, so a full disk frees what was removed a moment after the remover was told. */
bool hinodes_room_to_come(struct fs *fs, int error, unsigned *waited_ms);

/* The workspace has these files no longer. Lock held. */
void hostdir_detach(struct fs *fs, struct hostdir *hd);

/* Closes what is cached of a workspace that is being closed; frees its files when no node is left. */
void hostdir_closed(struct workspace *ws, void *fs);
void hostdir_emptied(struct workspace *ws, void *fs);
void hostdir_expire(struct workspace *ws, void *fs);

/* ── attr.c ──────────────────────────────────────────────────────────────────────────────── */

#define HSTATX_MASK (STATX_BASIC_STATS | STATX_BTIME)

int host_statx(int dirfd, const char *name, struct statx *st);

/* The ids on disk of the sandbox's user: the tenant's, or, where it has ids of its own, those of the workspace's
 * root directory. Only for a tenant's, between enter and leave. */
void hostdir_owner(const struct hostdir *hd, uid_t *uid, gid_t *gid);
/* What a user sees of it. */
void host_attr(const struct hostdir *hd, const struct statx *st, struct stat *out);

/* ── node kinds ──────────────────────────────────────────────────────────────────────────── */

extern const struct node_ops host_dir_ops;  /* NODE_DIR */
extern const struct node_ops host_file_ops; /* NODE_FILE */
extern const struct node_ops host_link_ops; /* NODE_LINK */

struct look;

/* dir.c: makes a node for the name, seen from d in the directory of the look, with attributes `st`
 * that were read since; counts one reference of the kernel, fills e. 0 or -errno; -EAGAIN: the names
 * of the directory were being changed meanwhile, so the name may lead elsewhere now. */
int host_entry(struct fs *fs, struct dir_node *d, const struct look *l, const char *name,
               const struct statx *st, struct fuse_entry_param *e);

/* The directory of a call's node: for a session's the root of the workspace that was entered. */
struct hdir *call_dir(struct call *c, struct dir_node *d);

/* Whether the workspace's root directory has been removed behind the mount; then the workspace is closed, and
 * a call that is run again finds the one that takes its place. Between enter and leave, no lock held. */
bool call_root_gone(struct call *c);

/* link.c: with the lock held, the node for h seen at (d, name) in `dir`. Takes over the reference to
 * h. NULL when out of memory. */
struct node *link_node_for(struct fs *fs, struct dir_node *d, struct hdir *dir, struct hfile *h, const char *name);

/* link.c: with the lock held, a rename through d's session moves the node along. */
void link_node_moved(struct fs *fs, struct place *session, struct hdir *from, const char *name, struct hdir *to,
                     const char *new_name);

/* link.c: sets st_size to the length of the text that a link node gives. */
void host_link_size(struct call *c, struct stat *st);
void host_link_entry_size(struct fs *fs, struct node *n, struct stat *st);

/* link.c: what is stored on disk for a link that is made with the text `target` (PATH_MAX bytes of
 * `out`): a text that readlink gave, or that names a session of this workspace by its path on this
 * mount, becomes what it stands for inside. -ENAMETOOLONG. */
int host_stored_target(struct call *c, const char *target, char *out);

/* file.c: the descriptor of an open file, -1 for another kind of handle. */
int file_handle_fd(struct handle *h);

/* dir.c: neither the name nor the attributes of such a file are believed. */
bool host_never_cached(const char *name);

/* attr.c: the kernel is about to learn something of this directory, or has. To be called before that is read
 * and before it is answered. */
void dir_node_asked(struct fs *fs, struct dir_node *d);

/* The common operations of session and inner directories, called by both tables. */
void host_dir_lookup(struct fs *, fuse_req_t, struct node *, const char *);
void host_dir_setattr(struct fs *, fuse_req_t, struct node *, struct stat *, int, struct fuse_file_info *);
void host_dir_mknod(struct fs *, fuse_req_t, struct node *, const char *, mode_t, dev_t);
void host_dir_mkdir(struct fs *, fuse_req_t, struct node *, const char *, mode_t);
void host_dir_unlink(struct fs *, fuse_req_t, struct node *, const char *);
void host_dir_rmdir(struct fs *, fuse_req_t, struct node *, const char *);
void host_dir_symlink(struct fs *, fuse_req_t, struct node *, const char *, const char *);
void host_dir_rename(struct fs *, fuse_req_t, struct node *, const char *, struct node *, const char *, unsigned);
void host_dir_create(struct fs *, fuse_req_t, struct node *, const char *, mode_t, struct fuse_file_info *);
void host_dir_opendir(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);
void host_dir_readdir(struct fs *, fuse_req_t, struct node *, size_t, off_t, struct fuse_file_info *, bool);
void host_link(struct fs *, fuse_req_t, struct node *, struct node *, const char *);
void host_getattr(struct fs *, fuse_req_t, struct node *, struct fuse_file_info *);
void host_statfs(struct fs *, fuse_req_t, struct node *);
void host_setxattr(struct fs *, fuse_req_t, struct node *, const char *, const char *, size_t, int);
void host_getxattr(struct fs *, fuse_req_t, struct node *, const char *, size_t);
void host_listxattr(struct fs *, fuse_req_t, struct node *, size_t);
void host_removexattr(struct fs *, fuse_req_t, struct node *, const char *);

/* What some of them run; for a session's directory, which is looked at without being used. */
void host_run_getxattr(struct call *c);
void host_run_listxattr(struct call *c);
void host_run_statfs(struct call *c);
/* POSIX ACLs are neither shown nor taken. */
bool host_is_acl(const char *name);

#endif

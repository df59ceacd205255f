// SPDX-License-Identifier: Apache-2.0
/* The tree above the workspaces' files: users, agents, sessions, and the control directories. */
#ifndef WSMFS_FS_TREE_TREE_H
#define WSMFS_FS_TREE_TREE_H

#include <dirent.h>

#include "fs/fs_internal.h"
#include "fs/handle.h"

#define CONTROL_NAME ".wsm"

/* The root, a user or an agent (NODE_PLACE), or its image below /.wsm/sessions (NODE_MIRROR). */
struct place_node {
    struct node   n;
    struct place *place; /* referenced */
};

extern const struct node_ops place_ops, mirror_ops, session_ops, manager_ops, control_ops, control_file_ops;

/* upper.c: the root node, made once. -ENOMEM. */
int tree_init(struct fs *fs);

/* Finds or makes the node of a place in the main tree or (mirror) below /.wsm/sessions, counts one
 * reference of the kernel and fills e. Takes over the reference to p. 0 or -errno. */
int place_entry(struct fs *fs, struct place *p, bool mirror, struct fuse_entry_param *e);

/* Answers a lookup or mkdir with what an *_entry function gave. */
void reply_entry(struct fs *fs, fuse_req_t req, int r, const struct fuse_entry_param *e);

/* What stat tells of a place. */
void place_stat(struct place *p, struct stat *st);

/* manager_dir.c: /.wsm itself. */
int manager_entry(struct fs *fs, struct fuse_entry_param *e);

/* control.c: a session's control directory, in the session or (mirror) below /.wsm/sessions. Does
 * not take p over. */
int control_entry(struct fs *fs, struct place *p, bool mirror, struct fuse_entry_param *e);
/* Its number: of the session's names, so that sessions which share a workspace differ. */
uint64_t control_ino(struct place *session);

/* names.c: a listing of fixed names, made at opendir. */
struct name_list;
struct name_list *name_list_create(void);
/* False when out of memory. */
bool name_list_add(struct name_list *l, const char *name, uint64_t ino, mode_t type);
bool name_list_has(const struct name_list *l, const char *name);
/* Behind the names what a directory holds, read as it is asked for: it may be large, and a listing is nobody's to
 * fill the memory with. Takes over dir. `number` says what an entry is to be numbered as, 0: it is not shown; `dev` is
 * the directory's. Names of the list are left out. */
void name_list_follow(struct name_list *l, DIR *dir, uint64_t dev,
                      uint64_t (*number)(struct fs *fs, const struct node *n, const struct dirent *de, uint64_t dev));
/* Opens it as a directory handle; takes it over (NULL: ENOMEM). */
void name_list_open(struct fs *fs, fuse_req_t req, struct name_list *l, struct fuse_file_info *fi);
/* The readdir of all kinds that open such lists. */
void name_list_readdir(struct fs *, fuse_req_t, struct node *, size_t, off_t, struct fuse_file_info *, bool plus);

/* hooks.c: what the manager asks for. */
void tree_rebound(struct place *session, void *fs);
void tree_forgotten(struct place *p, void *fs);
void tree_known(struct place *p, void *fs);

/* A name was removed by the kernel's rmdir: its image below /.wsm/sessions goes too. */
void tree_removed(struct fs *fs, struct place *p);

/* Who may enter what, and which users exist, may have changed. */
void tree_reloaded(struct fs *fs);

#endif

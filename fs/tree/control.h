// SPDX-License-Identifier: Apache-2.0
/* Control files: text files that tell a state or take commands. */
#ifndef WSMFS_FS_TREE_CONTROL_H
#define WSMFS_FS_TREE_CONTROL_H

#include "fs/tree/tree.h"

struct control_node;
struct stream_source;

/* One control file. A table of them makes a directory. */
struct control_file {
    const char *name;
    mode_t      mode;
    /* Fixed content: the text now (malloc'ed), its size, when it last changed. NULL: none. */
    char     *(*text)(struct fs *fs, struct place *p, size_t *size, int64_t *changed_ms);
    /* A stream: what it follows. NULL: none. */
    const struct stream_source *stream;
    /* What is written to it. NULL: not writable. */
    const struct verb_table *verbs;
};

/* Finds `name` in a table that ends with an entry without a name; NULL. */
const struct control_file *control_file_find(const struct control_file *table, const char *name);

/* Adds the table's names to a listing. `dir_ino` is the number of the directory. */
void control_files_list(const struct control_file *table, struct name_list *l, uint64_t dir_ino);

/* The node of a file in the directory node `dir` about `p` (NULL: the manager), whose directory has
 * the number `dir_ino`: the one that the kernel had last if a read of it would give the same bytes,
 * else a new one. Counts one reference of the kernel. */
int control_file_entry(struct fs *fs, struct node *dir, const struct control_file *f, struct place *p,
                       uint64_t dir_ino, struct fuse_entry_param *e);

/* ── stream.c ────────────────────────────────────────────────────────────────────────────── */

/* What a stream reads from. `where` is the place (NULL: the manager). */
struct stream_source {
    uint64_t (*start)(struct fs *fs, struct place *p);
    size_t   (*read)(struct fs *fs, struct place *p, uint64_t *pos, char *buf, size_t size, bool *more);
    void     (*listen)(struct fs *fs, struct place *p, struct events_listener *l);
    void     (*unlisten)(struct fs *fs, struct place *p, struct events_listener *l);
};

extern const struct stream_source progress_source, events_source;

/* Opens a stream and answers. Any reader follows from the source's start. */
void stream_open(struct fs *fs, fuse_req_t req, const struct stream_source *s, struct place *p,
                 struct fuse_file_info *fi);

/* ── verbs.c ─────────────────────────────────────────────────────────────────────────────── */

/* How what is written is taken: line by line. */
struct verb_table {
    int (*check)(const char *line, struct err *e); /* NULL: nothing to check beforehand */
    int (*run)(struct fs *fs, struct place *p, const struct caller *who, const char *line, struct waiter *w,
               struct err *e);
    bool one_line;    /* the whole write is one value, and an empty one counts */
};

extern const struct verb_table session_verbs, manager_verbs, bind_verb;

/* Runs a write of `size` bytes and answers when the last line is done: with the errno of the first
 * that failed. Nothing runs when any line is malformed. */
void verbs_write(struct fs *fs, fuse_req_t req, const struct verb_table *t, struct place *p,
                 const char *data, size_t size);

/* The second word of a control directory's key: that of the same place's in the other tree. */
const void *control_other_side(const void *side);
/* Whether it is that of the image below /.wsm/sessions. */
bool control_is_mirror(const void *side);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Nodes of control files. The content of a fixed one is that of its lookup: a reader in one-byte
 * steps never sees two states mixed, and the kernel's page cache may hold it. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/control.h"

#define TEXT_TIMEOUT_S 3600.0 /* the node's text never changes */
#define WRITE_MAX_BYTES 4096

struct control_node {
    struct node   n;
    const struct control_file *file;
    struct place *place;      /* referenced; NULL: the manager */
    uint64_t      st_ino;
    int64_t       changed_ms;
    uid_t         uid;
    gid_t         gid;
    size_t        size;
    char         *text;
};

static struct control_node *of(struct node *n)
{
    return container_of(n, struct control_node, n);
}

const struct control_file *control_file_find(const struct control_file *table, const char *name)
{
    for (; table->name; table++)
        if (!strcmp(table->name, name))
            return table;
    return NULL;
}

static uint64_t file_ino(uint64_t dir_ino, const char *name)
{
    uint64_t h = dir_ino;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h | 1ull << 63;
}

void control_files_list(const struct control_file *table, struct name_list *l, uint64_t dir_ino)
{
    for (; table->name; table++)
        name_list_add(l, table->name, file_ino(dir_ino, table->name), S_IFREG);
}

static void fill_stat(const struct control_node *cn, struct stat *st)
{
    *st = (struct stat){
        .st_ino = cn->st_ino,
        .st_mode = S_IFREG | cn->file->mode,
        .st_nlink = 1,
        .st_uid = cn->uid,
        .st_gid = cn->gid,
        .st_size = (off_t)cn->size,
        .st_blksize = 4096,
        .st_blocks = (blkcnt_t)((cn->size + 511) / 512),
        .st_mtim = {.tv_sec = cn->changed_ms / 1000, .tv_nsec = cn->changed_ms % 1000 * 1000000},
    };
    st->st_atim = st->st_ctim = st->st_mtim;
}

static void free_control(struct control_node *cn)
{
    if (cn->place)
        place_unref(cn->place);
    free(cn->text);
    free(cn);
}

static struct control_node *make(struct fs *fs, struct node *dir, const struct control_file *f,
                                 struct place *p, uint64_t dir_ino)
{
    struct control_node *cn = calloc(1, sizeof *cn);
    mode_t mode;
    if (!cn)
        return NULL;
    cn->n = (struct node){.ops = &control_file_ops, .kind = NODE_CONTROL_FILE, .owner = dir, .second = f};
    cn->file = f;
    cn->st_ino = file_ino(dir_ino, f->name);
    cn->changed_ms = wall_ms();
    place_access(p ? p : manager_root(fs->manager), &cn->uid, &cn->gid, &mode);
    if (p) {
        cn->place = p;
        place_ref(p);
    }
    if (f->text)
        cn->text = f->text(fs, p, &cn->size, &cn->changed_ms);
    if (f->text && !cn->text) {
        free_control(cn);
        return NULL;
    }
    return cn;
}

static bool same_text(const struct node *n, const struct control_node *b)
{
    const struct control_node *a = container_of(n, const struct control_node, n);
    return a->size == b->size && a->changed_ms == b->changed_ms && !memcmp(a->text, b->text, a->size);
}

/* Counts a reference to the node to use: an old one with the same text, else `cn`. */
static int choose(struct fs *fs, struct node *dir, struct control_node **cn)
{
    struct nodes *ns = &fs->nodes;
    bool fixed = (*cn)->file->text;
    scoped_lock(&ns->lock);
    struct node *old = fixed ? nodes_find(ns, NODE_CONTROL_FILE, dir, (*cn)->file, NULL, NULL) : NULL;
    if (old && same_text(old, *cn)) {
        old->nlookup++;
        *cn = of(old);
        return 0;
    }
    if (old)
        nodes_unhash(ns, old);
    int r = nodes_add(ns, &(*cn)->n, NULL, fixed);
    if (r == 0)
        (*cn)->n.nlookup = 1;
    return r;
}

int control_file_entry(struct fs *fs, struct node *dir, const struct control_file *f, struct place *p,
                       uint64_t dir_ino, struct fuse_entry_param *e)
{
    struct control_node *made = make(fs, dir, f, p, dir_ino), *cn = made;
    if (!made)
        return -ENOMEM;
    int r = choose(fs, dir, &cn);
    if (r == 0) {
        *e = (struct fuse_entry_param){.ino = cn->n.id, .attr_timeout = f->text ? TEXT_TIMEOUT_S : 0};
        fill_stat(cn, &e->attr);
    }
    if (r < 0 || cn != made)
        free_control(made);
    return r;
}

static void destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    free_control(of(n));
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    fill_stat(of(n), &st);
    fuse_reply_attr(req, &st, of(n)->file->text ? TEXT_TIMEOUT_S : 0);
}

/* Size, mode and times are accepted and mean nothing: editors and copying tools set them. */
static void setattr(struct fs *fs, fuse_req_t req, struct node *n, struct stat *attr, int to_set,
                    struct fuse_file_info *fi)
{
    (void)attr;
    if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        fuse_reply_err(req, EPERM);
    else
        getattr(fs, req, n, fi);
}

/* ── open files ──────────────────────────────────────────────────────────────────────────── */

/* Outlives the node: it holds what it needs of it. */
struct control_handle {
    struct handle h;
    atomic_uint   refs;     /* the open file's, and a read's: its answer may be taken and the file
                             * closed before the call that sends it has returned */
    const struct verb_table *verbs;
    struct place *place;
    size_t        size;
    char          text[];
};

static void put_handle(struct control_handle *ch)
{
    if (atomic_fetch_sub(&ch->refs, 1) != 1)
        return;
    if (ch->place)
        place_unref(ch->place);
    free(ch);
}

static void drop_handle(struct fs *fs, struct handle *h)
{
    handle_remove(fs, h);
    put_handle(container_of(h, struct control_handle, h));
}

static void read_text(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                      struct fuse_file_info *fi)
{
    struct control_handle *ch = container_of(h, struct control_handle, h);
    size_t at = (size_t)off < ch->size ? (size_t)off : ch->size;
    size_t n = ch->size - at < size ? ch->size - at : size;
    (void)fs;
    (void)fi;
    atomic_fetch_add(&ch->refs, 1);
    fuse_reply_buf(req, ch->text + at, n);
    put_handle(ch);
}

static void too_long(struct fs *fs, fuse_req_t req, struct control_handle *ch)
{
    struct err e;
    err_set(&e, -EFBIG, "a write of more than %d bytes to a control file", WRITE_MAX_BYTES);
    if (ch->place)
        session_set_error(ch->place, &e);
    (void)fs;
    fuse_reply_err(req, EFBIG);
}

static void write_lines(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                        struct fuse_file_info *fi)
{
    struct control_handle *ch = container_of(h, struct control_handle, h);
    char data[WRITE_MAX_BYTES];
    struct fuse_bufvec out = FUSE_BUFVEC_INIT(sizeof data);
    (void)off; /* means nothing here */
    (void)fi;
    if (fuse_buf_size(in) > sizeof data) {
        too_long(fs, req, ch);
        return;
    }
    out.buf[0].mem = data;
    ssize_t n = fuse_buf_copy(&out, in, 0);
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        verbs_write(fs, req, ch->verbs, ch->place, data, (size_t)n);
}

static const struct handle_ops control_handle_ops = {
    .read = read_text,
    .write = write_lines,
    .drop = drop_handle,
};

static void open_text(struct fs *fs, fuse_req_t req, struct control_node *cn, struct fuse_file_info *fi)
{
    struct control_handle *ch = calloc(1, sizeof *ch + cn->size);
    int r = ch ? handle_add(fs, &ch->h, fi) : -ENOMEM;
    if (r < 0) {
        free(ch);
        fuse_reply_err(req, -r);
        return;
    }
    ch->h.ops = &control_handle_ops;
    atomic_init(&ch->refs, 1);
    ch->verbs = cn->file->verbs;
    ch->size = cn->size;
    if (cn->size)
        memcpy(ch->text, cn->text, cn->size);
    ch->place = cn->place;
    if (ch->place)
        place_ref(ch->place);
    if ((fi->flags & O_ACCMODE) == O_RDONLY) {
        fi->keep_cache = 1;
        fi->noflush = 1;
    } else {
        fi->direct_io = 1;
    }
    if (fuse_reply_open(req, fi) == -ENOENT)
        drop_handle(fs, &ch->h);
}

static void open_file(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct control_node *cn = of(n);
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    if (writes && !cn->file->verbs) {
        fuse_reply_err(req, EACCES);
        return;
    }
    if (writes) {
        /* the kernel may set its size to what is written: nobody else shall read this one */
        scoped_lock(&fs->nodes.lock);
        nodes_unhash(&fs->nodes, &cn->n);
    }
    if (cn->file->stream)
        stream_open(fs, req, cn->file->stream, cn->place, fi);
    else
        open_text(fs, req, cn, fi);
}

const struct node_ops control_file_ops = {
    .getattr = getattr,
    .setattr = setattr,
    .open = open_file,
    .destroy = destroy,
};

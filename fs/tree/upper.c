// SPDX-License-Identifier: Apache-2.0
/* The root, users and agents; and the same three levels below /.wsm/sessions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/hostdir.h"
#include "fs/tree/tree.h"

static struct place *place_of(struct node *n)
{
    return container_of(n, struct place_node, n)->place;
}

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

void place_stat(struct place *p, struct stat *st)
{
    mode_t mode;
    *st = (struct stat){.st_ino = place_ino(p), .st_nlink = 2, .st_blksize = 4096};
    place_access(p, &st->st_uid, &st->st_gid, &mode);
    int64_t ms = place_mtime_ms(p);
    st->st_mode = S_IFDIR | mode;
    st->st_mtim = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    st->st_atim = st->st_ctim = st->st_mtim;
}

static size_t node_bytes(enum node_kind kind)
{
    return kind == NODE_SESSION ? sizeof(struct dir_node) : sizeof(struct place_node);
}

/* Fills a new node; takes over the reference to p. */
static struct node *init_node(void *memory, enum node_kind kind, struct place *p)
{
    struct node *n;
    if (kind == NODE_SESSION) {
        struct dir_node *d = memory;
        d->session = p;
        list_init(&d->alias);
        n = &d->n;
        n->ops = &session_ops;
    } else {
        struct place_node *pn = memory;
        pn->place = p;
        n = &pn->n;
        n->ops = kind == NODE_MIRROR ? &mirror_ops : &place_ops;
    }
    n->kind = (uint8_t)kind;
    n->owner = p;
    return n;
}

static int find_or_make(struct fs *fs, struct place *p, enum node_kind kind, uint64_t *id)
{
    void *memory = calloc(1, node_bytes(kind));
    if (!memory)
        return -ENOMEM;
    int r = 0;
    pthread_mutex_lock(&fs->nodes.lock);
    struct node *n = nodes_find(&fs->nodes, kind, p, NULL, NULL, NULL);
    bool found = n;
    if (!n) {
        n = init_node(memory, kind, p);
        r = nodes_add(&fs->nodes, n, NULL, true);
    }
    if (r == 0) {
        n->nlookup++;
        *id = n->id;
    }
    pthread_mutex_unlock(&fs->nodes.lock);
    if (found || r < 0) {
        free(memory);
        place_unref(p);
    }
    return r;
}

int place_entry(struct fs *fs, struct place *p, bool mirror, struct fuse_entry_param *e)
{
    enum node_kind kind = mirror ? NODE_MIRROR : p->level == PLACE_SESSION ? NODE_SESSION : NODE_PLACE;
    *e = (struct fuse_entry_param){.attr_timeout = PLACE_TIMEOUT_S, .entry_timeout = PLACE_TIMEOUT_S};
    place_stat(p, &e->attr);
    if (mirror)
        e->attr.st_ino ^= 1ull << 62;
    if (kind == NODE_SESSION)
        e->attr_timeout = 0; /* the workspace's own are told by getattr */
    return find_or_make(fs, p, kind, &e->ino);
}

void reply_entry(struct fs *fs, fuse_req_t req, int r, const struct fuse_entry_param *e)
{
    if (r < 0)
        fuse_reply_err(req, -r);
    else if (fuse_reply_entry(req, e) == -ENOENT)
        nodes_forget(fs, e->ino, 1);
}

static void destroy_place(struct fs *fs, struct node *n)
{
    (void)fs;
    place_unref(place_of(n));
    free(container_of(n, struct place_node, n));
}

int tree_init(struct fs *fs)
{
    struct place_node *pn = calloc(1, sizeof *pn);
    if (!pn)
        return -ENOMEM;
    struct place *root = manager_root(fs->manager);
    place_ref(root);
    fs->nodes.root = init_node(pn, NODE_PLACE, root);
    fs->nodes.root->id = FUSE_ROOT_ID;
    return 0;
}

/* ── operations ──────────────────────────────────────────────────────────────────────────── */

static void lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    struct place *child;
    int r;
    if (n == fs->nodes.root && !strcmp(name, CONTROL_NAME)) {
        r = manager_entry(fs, &e);
    } else {
        r = place_lookup(place_of(n), name, &child);
        if (r == 0)
            r = place_entry(fs, child, false, &e);
    }
    reply_entry(fs, req, r, &e);
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    place_stat(place_of(n), &st);
    if (n->kind == NODE_MIRROR)
        st.st_ino ^= 1ull << 62;
    fuse_reply_attr(req, &st, PLACE_TIMEOUT_S);
}

static void make(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode)
{
    struct fuse_entry_param e;
    struct place *child;
    struct err err = {0};
    bool control = n == fs->nodes.root && !strcmp(name, CONTROL_NAME);
    (void)mode;
    int r = control ? -EEXIST : place_make(place_of(n), name, &child, &err);
    if (r == 0)
        r = place_entry(fs, child, false, &e);
    reply_entry(fs, req, r, &e);
}

static void forget(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct err err = {0};
    struct place *child = NULL;
    bool control = n == fs->nodes.root && !strcmp(name, CONTROL_NAME);
    int r = control ? -EPERM : place_lookup(place_of(n), name, &child);
    if (r == 0)
        r = place_forget(place_of(n), name, &err);
    if (r == 0)
        tree_removed(fs, child);
    if (child)
        place_unref(child);
    fuse_reply_err(req, -r);
}

static bool list_child(const char *name, uint64_t ino, void *arg)
{
    return name_list_add(arg, name, ino, S_IFDIR);
}

static void opendir_place(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct name_list *l = name_list_create();
    if (l)
        place_each(place_of(n), list_child, l);
    name_list_open(fs, req, l, fi);
}

const struct node_ops place_ops = {
    .lookup = lookup,
    .getattr = getattr,
    .mkdir = make,
    .rmdir = forget,
    .opendir = opendir_place,
    .readdir = name_list_readdir,
    .destroy = destroy_place,
};

/* ── below /.wsm/sessions ────────────────────────────────────────────────────────────────── */

static void mirror_lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    struct place *child;
    int r = place_lookup(place_of(n), name, &child);
    if (r == 0 && child->level == PLACE_SESSION) {
        r = control_entry(fs, child, true, &e);
        place_unref(child);
    } else if (r == 0) {
        r = place_entry(fs, child, true, &e);
    }
    reply_entry(fs, req, r, &e);
}

const struct node_ops mirror_ops = {
    .lookup = mirror_lookup,
    .getattr = getattr,
    .opendir = opendir_place,
    .readdir = name_list_readdir,
    .destroy = destroy_place,
};

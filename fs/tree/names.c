// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/tree.h"

struct name {
    char    *text;
    uint64_t ino;
    mode_t   type;
};

typedef uint64_t numbering(struct fs *fs, const struct node *n, const struct dirent *de, uint64_t dev);

/* Also the handle of the directory that was opened. */
struct name_list {
    struct handle h;
    struct name  *names;
    size_t        n, room;
    pthread_mutex_t lock;  /* guards `taken` and the position in `rest`, whose one reader at a time it lets in */
    DIR          *rest;    /* what is behind the names; NULL: nothing */
    size_t        taken;   /* so many of its entries lie before its position */
    uint64_t      dev;
    numbering    *number;
};

static void drop_list(struct fs *fs, struct handle *h)
{
    struct name_list *l = container_of(h, struct name_list, h);
    if (h->id)
        handle_remove(fs, h);
    for (size_t i = 0; i < l->n; i++)
        free(l->names[i].text);
    free(l->names);
    if (l->rest)
        closedir(l->rest);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static const struct handle_ops list_ops = {.drop = drop_list};

struct name_list *name_list_create(void)
{
    struct name_list *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->h.ops = &list_ops;
    pthread_mutex_init(&l->lock, NULL);
    name_list_add(l, ".", 1, S_IFDIR);
    name_list_add(l, "..", 1, S_IFDIR);
    return l;
}

bool name_list_add(struct name_list *l, const char *name, uint64_t ino, mode_t type)
{
    if (l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 16;
        struct name *names = realloc(l->names, room * sizeof *names);
        if (!names)
            return false;
        l->names = names;
        l->room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        return false;
    l->names[l->n++] = (struct name){.text = copy, .ino = ino, .type = type};
    return true;
}

bool name_list_has(const struct name_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->names[i].text, name))
            return true;
    return false;
}

void name_list_follow(struct name_list *l, DIR *dir, uint64_t dev, numbering *number)
{
    l->rest = dir;
    l->dev = dev;
    l->number = number;
}

void name_list_open(struct fs *fs, fuse_req_t req, struct name_list *l, struct fuse_file_info *fi)
{
    int r = l ? handle_add(fs, &l->h, fi) : -ENOMEM;
    if (r < 0) {
        if (l)
            drop_list(fs, &l->h);
        fuse_reply_err(req, -r);
    } else if (fuse_reply_open(req, fi) == -ENOENT) {
        drop_list(fs, &l->h);
    }
}

/* The space an entry takes; added when it is at most `left`. */
static size_t add_one(fuse_req_t req, char *at, size_t left, const struct name *n, off_t next, bool plus)
{
    /* node id 0: the kernel looks it up when it wants more than number and type */
    struct fuse_entry_param e = {.attr = {.st_ino = n->ino, .st_mode = n->type}};
    if (plus)
        return fuse_add_direntry_plus(req, at, left, n->text, &e, next);
    return fuse_add_direntry(req, at, left, n->text, &e.attr, next);
}

struct filling {
    struct fs  *fs;
    fuse_req_t  req;
    const struct node *node;
    bool        plus;
    char       *out;
    size_t      used, room;
};

/* False when it does not fit. */
static bool fill_one(struct filling *f, const struct name *n, size_t next)
{
    size_t need = add_one(f->req, f->out + f->used, f->room - f->used, n, (off_t)next, f->plus);
    if (need > f->room - f->used)
        return false;
    f->used += need;
    return true;
}

/* From the entry with the number `at` on. The list's lock held: what is read is this handle's own. */
static void fill_rest_locked(struct filling *f, struct name_list *l, size_t at)
{
    struct dirent *de = NULL;
    long position = 0;
    bool fits = true;
    if (at < l->taken) {
        rewinddir(l->rest);
        l->taken = 0;
    }
    for (; fits && (position = telldir(l->rest), de = readdir(l->rest)); l->taken += fits) {
        uint64_t ino = l->taken < at || name_list_has(l, de->d_name) ? 0 : l->number(f->fs, f->node, de, l->dev);
        struct name n = {.text = de->d_name, .ino = ino, .type = (mode_t)de->d_type << 12};
        fits = !ino || fill_one(f, &n, l->n + l->taken + 1);
    }
    if (!fits)
        seekdir(l->rest, position);
}

void name_list_readdir(struct fs *fs, fuse_req_t req, struct node *node, size_t size, off_t off,
                       struct fuse_file_info *fi, bool plus)
{
    struct handle *h = handle_get(fs, fi->fh);
    cleanup_free char *out = malloc(size);
    if (!h || h->ops != &list_ops || !out) {
        fuse_reply_err(req, h ? ENOMEM : EBADF);
        return;
    }
    struct name_list *l = container_of(h, struct name_list, h);
    struct filling f = {.fs = fs, .req = req, .node = node, .plus = plus, .out = out, .room = size};
    bool fits = true;
    for (size_t i = (size_t)off; fits && i < l->n; i++)
        fits = fill_one(&f, &l->names[i], i + 1);
    if (fits && l->rest) {
        scoped_lock(&l->lock);
        fill_rest_locked(&f, l, (size_t)off > l->n ? (size_t)off - l->n : 0);
    }
    fuse_reply_buf(req, out, f.used);
}

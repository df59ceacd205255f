// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/tree.h"

struct name {
    char    *text;
    uint64_t ino;
    mode_t   type;
};

/* Also the handle of the directory that was opened. */
struct name_list {
    struct handle h;
    struct name  *names;
    size_t        n, room;
};

static void drop_list(struct fs *fs, struct handle *h)
{
    struct name_list *l = container_of(h, struct name_list, h);
    if (h->id)
        handle_remove(fs, h);
    for (size_t i = 0; i < l->n; i++)
        free(l->names[i].text);
    free(l->names);
    free(l);
}

static const struct handle_ops list_ops = {.drop = drop_list};

struct name_list *name_list_create(void)
{
    struct name_list *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->h.ops = &list_ops;
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

void name_list_readdir(struct fs *fs, fuse_req_t req, struct node *node, size_t size, off_t off,
                       struct fuse_file_info *fi, bool plus)
{
    struct handle *h = handle_get(fs, fi->fh);
    cleanup_free char *out = malloc(size);
    (void)node;
    if (!h || h->ops != &list_ops || !out) {
        fuse_reply_err(req, h ? ENOMEM : EBADF);
        return;
    }
    struct name_list *l = container_of(h, struct name_list, h);
    size_t used = 0;
    for (size_t i = (size_t)off; i < l->n; i++) {
        size_t need = add_one(req, out + used, size - used, &l->names[i], (off_t)i + 1, plus);
        if (need > size - used)
            break;
        used += need;
    }
    fuse_reply_buf(req, out, used);
}

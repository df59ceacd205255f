// SPDX-License-Identifier: Apache-2.0
/* Directories of a workspace: looking up and listing. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/hostdir.h"
#include "fs/hostdir/watch.h"
#include "fs/tree/tree.h"

#define LISTING_BYTES 32768
#define REPEATS_MOST  16

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

/* With the lock held: the node for h, seen at (d, name). Takes over the reference to h. */
static struct node *dir_node_for(struct fs *fs, struct dir_node *d, struct hdir *h, bool *made)
{
    struct nodes *ns = &fs->nodes;
    struct node *n = nodes_find(ns, NODE_DIR, h, d->session, NULL, NULL);
    if (n) {
        hinode_unref(fs, &h->h);
        return n;
    }
    struct dir_node *new = calloc(1, sizeof *new);
    if (new) {
        new->n = (struct node){.ops = &host_dir_ops, .kind = NODE_DIR, .owner = h, .second = d->session};
        if (nodes_add(ns, &new->n, NULL, true) == 0) {
            new->hi = h;
            new->session = d->session;
            new->asked = true;
            place_ref(d->session);
            list_append(&h->aliases, &new->alias);
            *made = true;
            return &new->n;
        }
    }
    free(new);
    hinode_unref(fs, &h->h);
    return NULL;
}

static struct node *file_node_for(struct fs *fs, struct hfile *h)
{
    if (h->node) {
        hinode_unref(fs, &h->h);
        return h->node;
    }
    struct node *new = calloc(1, sizeof *new);
    if (new) {
        *new = (struct node){.ops = &host_file_ops, .kind = NODE_FILE, .owner = h};
        if (nodes_add(&fs->nodes, new, NULL, false) == 0) {
            h->node = new;
            return new;
        }
    }
    free(new);
    hinode_unref(fs, &h->h);
    return NULL;
}

static struct node *node_for(struct fs *fs, struct dir_node *d, struct hdir *dir, struct hinode *h,
                             const char *name, bool *made_dir)
{
    if (hinode_is_dir(h))
        return dir_node_for(fs, d, hdir_of(h), made_dir);
    if (S_ISLNK(h->type))
        return link_node_for(fs, d, dir, hfile_of(h), name);
    return file_node_for(fs, hfile_of(h));
}

/* SQLite's side files: one process on the mount and one behind it lose data when such a name is
 * believed for even a moment too long (fuse.md, section 14). */
bool host_never_cached(const char *name)
{
    static const char *const endings[] = {"-wal", "-shm", "-journal"};
    size_t n = strlen(name);
    for (size_t i = 0; i < array_size(endings); i++)
        if (n > strlen(endings[i]) && !strcmp(name + n - strlen(endings[i]), endings[i]))
            return true;
    return false;
}

/* Whether it is a directory that others look at too. Lock held. */
static bool is_shared(const struct node *n)
{
    if (n->kind != NODE_DIR)
        return false;
    const struct list *aliases = &container_of(n, const struct dir_node, n)->hi->aliases;
    return aliases->next->next != aliases;
}

/* A directory with other aliases, or a new one, may have missed a notice between these attributes and the
 * answer; a link's text depends on its place; setuid bits go without our knowledge in passthrough. */
static double entry_attr_timeout(struct fs *fs, struct node *n, const struct statx *st, bool unsure_dir, double most)
{
    bool setid = S_ISREG(st->stx_mode) && (st->stx_mode & (S_ISUID | S_ISGID));
    if (unsure_dir || setid || n->kind == NODE_LINK)
        return 0;
    struct hinode *h = n->kind == NODE_DIR ? &container_of(n, struct dir_node, n)->hi->h
                                           : &node_file(n)->h;
    return watch_covers(fs, h, st) || most < HOST_TIMEOUT_S ? most : HOST_TIMEOUT_S;
}

int host_entry(struct fs *fs, struct dir_node *d, const struct look *l, const char *name,
               const struct statx *st, struct fuse_entry_param *e)
{
    struct hdir *dir = l->dir;
    bool unsure_dir = false;
    hinodes_lock(fs);
    if (!l->exclusive && (dir->changes % 2 || dir->changes != l->changes)) {
        hinodes_unlock(fs);
        return -EAGAIN;
    }
    struct hinode *h = hinode_seen(fs, dir, name, st);
    struct node *n = h ? node_for(fs, d, dir, h, name, &unsure_dir) : NULL;
    if (n) {
        n->nlookup++;
        d->asked = true;
        unsure_dir |= is_shared(n);
        if (n->kind == NODE_DIR && !unsure_dir) /* its attributes are believed with its name */
            container_of(n, struct dir_node, n)->asked = true;
    }
    hinodes_unlock(fs);
    if (!n)
        return -ENOMEM;
    *e = (struct fuse_entry_param){.ino = n->id};
    host_attr(dir->h.hd, st, &e->attr);
    if (S_ISLNK(st->stx_mode))
        host_link_entry_size(fs, n, &e->attr);
    e->entry_timeout = host_never_cached(name) ? 0 : look_timeout(fs, l, true);
    e->attr_timeout = entry_attr_timeout(fs, n, st, unsure_dir, look_timeout(fs, l, false));
    if (host_never_cached(name))
        e->attr_timeout = 0; /* a recovery reads as much of a -wal as its size says */
    return 0;
}

static void detach_dir(struct fs *fs, struct node *n)
{
    struct dir_node *d = container_of(n, struct dir_node, n);
    (void)fs;
    list_remove(&d->alias);
}

static void destroy_dir(struct fs *fs, struct node *n)
{
    struct dir_node *d = container_of(n, struct dir_node, n);
    hinodes_lock(fs);
    hinode_unref(fs, &d->hi->h);
    hinodes_unlock(fs);
    place_unref(d->session);
    free(d);
}

/* ── lookup ──────────────────────────────────────────────────────────────────────────────── */

/* An answer that says for how long the name will not be there; false: not even for now. */
static bool missing(struct call *c, const struct look *l, struct fuse_entry_param *e)
{
    double timeout = l->watched && !host_never_cached(c->name) ? look_timeout(c->fs, l, true) : 0;
    dir_node_asked(c->fs, container_of(c->node, struct dir_node, n));
    *e = (struct fuse_entry_param){.entry_timeout = timeout < MISSING_TIMEOUT_S ? timeout : MISSING_TIMEOUT_S};
    return timeout > 0;
}

/* The entry of the call's name in the directory with the descriptor fd. As host_entry. */
static int look_at_name(struct call *c, struct look *l, int fd, struct fuse_entry_param *e)
{
    struct statx st;
    int r = host_statx(fd, c->name, &st);
    return r < 0 ? r : host_entry(c->fs, container_of(c->node, struct dir_node, n), l, c->name, &st, e);
}

/* While another session changes the names of the directory: one after the other. */
static int look_exclusively(struct call *c, struct look *l, int fd, struct fuse_entry_param *e)
{
    scoped_lock(&l->dir->change);
    *l = look_begin(c->fs, l->dir, container_of(c->node, struct dir_node, n));
    l->exclusive = true;
    return look_at_name(c, l, fd, e);
}

/* In a session's directory that was removed behind the mount; not for ever, where each new one is gone at once or the
 * file system counts no links. */
static bool is_to_be_run_again(struct call *c)
{
    c->again = c->node->kind == NODE_SESSION && c->repeats < REPEATS_MOST && call_root_gone(c);
    return c->again;
}

static void run_lookup(struct call *c)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct hdir *dir = call_dir(c, d);
    struct look l = {0};
    struct fuse_entry_param e;
    struct hfd f;
    int r = hinode_fd(c->fs, &dir->h, &f);
    if (r == 0) {
        watch_dir(c->fs, dir, f.fd);
        l = look_begin(c->fs, dir, d);
        r = look_at_name(c, &l, f.fd, &e);
        if (r == -EAGAIN)
            r = look_exclusively(c, &l, f.fd, &e);
        hfd_put(c->fs, &f);
    }
    if (r == -ENOENT && is_to_be_run_again(c))
        return;
    if (r == -ENOENT && missing(c, &l, &e))
        r = 0;
    if (r < 0)
        fuse_reply_err(c->req, -r);
    else if (fuse_reply_entry(c->req, &e) == -ENOENT && e.ino)
        nodes_forget(c->fs, e.ino, 1);
}

void host_dir_lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .run = run_lookup};
    call_start(&c);
}

/* ── listing ─────────────────────────────────────────────────────────────────────────────── */

/* An open directory. Its own description, so that its position is its own. */
struct dir_handle {
    struct handle     h;
    pthread_mutex_t   lock;  /* guards the position and the buffer: one reader at a time. Taken
                              * first, held across getdents, which is this handle's own business */
    struct hostdir   *hd;    /* referenced */
    struct hdir      *dir;   /* referenced */
    int               fd;
    off_t             next;  /* the cookie at which buf[at] continues */
    size_t            at, end;
    _Alignas(8) char  buf[LISTING_BYTES];
};

struct host_dirent {
    uint64_t d_ino;
    int64_t  d_off;
    uint16_t d_reclen;
    uint8_t  d_type;
    char     d_name[];
};

static void drop_dir_handle(struct fs *fs, struct handle *h)
{
    struct dir_handle *dh = container_of(h, struct dir_handle, h);
    handle_remove(fs, h);
    close(dh->fd);
    hinodes_lock(fs);
    hinode_unref(fs, &dh->dir->h);
    hinode_unref(fs, &dh->hd->root.h);
    hinodes_unlock(fs);
    pthread_mutex_destroy(&dh->lock);
    free(dh);
}

static void sync_dir_handle(struct fs *fs, fuse_req_t req, struct handle *h, int datasync)
{
    struct dir_handle *dh = container_of(h, struct dir_handle, h);
    (void)fs;
    int r = datasync ? fdatasync(dh->fd) : fsync(dh->fd);
    fuse_reply_err(req, r < 0 ? errno : 0);
}

static const struct handle_ops dir_handle_ops = {
    .fsync = sync_dir_handle,
    .drop = drop_dir_handle,
};

/* A description for reading of what an O_PATH descriptor stands for. */
static int reopen_dir(int fd)
{
    int r = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return r < 0 ? -errno : r;
}

static int make_dir_handle(struct call *c, struct hdir *dir, struct dir_handle **out)
{
    struct hfd f;
    int r = hinode_fd(c->fs, &dir->h, &f);
    if (r < 0)
        return r;
    watch_dir(c->fs, dir, f.fd);
    r = reopen_dir(f.fd);
    hfd_put(c->fs, &f);
    if (r < 0)
        return r;
    struct dir_handle *dh = malloc(sizeof *dh);
    if (!dh) {
        close(r);
        return -ENOMEM;
    }
    dh->h.ops = &dir_handle_ops;
    dh->fd = r;
    dh->next = 0;
    dh->at = dh->end = 0;
    dh->dir = dir;
    dh->hd = c->hd;
    pthread_mutex_init(&dh->lock, NULL);
    hinodes_lock(c->fs);
    hinode_ref(&dir->h);
    hinode_ref(&c->hd->root.h);
    hinodes_unlock(c->fs);
    *out = dh;
    return 0;
}

static void run_opendir(struct call *c)
{
    struct dir_handle *dh = NULL;
    if (is_to_be_run_again(c))
        return;
    int r = make_dir_handle(c, call_dir(c, container_of(c->node, struct dir_node, n)), &dh);
    if (r == 0)
        r = handle_add(c->fs, &dh->h, c->fi);
    /* the kernel may keep the listing as long as it would be told of a change */
    c->fi->cache_readdir = c->fi->keep_cache = r == 0 && look_begin(c->fs, dh->dir, NULL).watched;
    if (r < 0) {
        if (dh)
            drop_dir_handle(c->fs, &dh->h);
        fuse_reply_err(c->req, -r);
    } else if (fuse_reply_open(c->req, c->fi) == -ENOENT) {
        drop_dir_handle(c->fs, &dh->h);
    }
}

void host_dir_opendir(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct call c = {.fs = fs, .req = req, .node = n, .fi = fi, .run = run_opendir};
    call_start(&c);
}

/* The next entry at cookie `off`, NULL at the end or on an error (*r). Handle's lock held. */
static struct host_dirent *next_entry(struct dir_handle *dh, off_t off, int *r)
{
    *r = 0;
    if (off != dh->next) {
        if (lseek(dh->fd, off, SEEK_SET) < 0) {
            *r = -errno;
            return NULL;
        }
        dh->at = dh->end = 0;
        dh->next = off;
    }
    if (dh->at == dh->end) {
        long n = syscall(SYS_getdents64, dh->fd, dh->buf, sizeof dh->buf);
        /* a directory that was removed while it is open lists nothing */
        *r = n < 0 && errno != ENOENT ? -errno : 0;
        if (n <= 0)
            return NULL;
        dh->at = 0;
        dh->end = (size_t)n;
    }
    return (struct host_dirent *)(void *)(dh->buf + dh->at);
}

static bool hidden(const struct dir_node *d, const char *name)
{
    return d->n.kind == NODE_SESSION && !strcmp(name, CONTROL_NAME);
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

static uint64_t shown_ino(const struct dir_node *d, const struct host_dirent *de)
{
    bool self = d->n.kind == NODE_SESSION && !strcmp(de->d_name, ".");
    return self ? place_ino(d->session) : de->d_ino;
}

struct listing {
    struct fs  *fs;
    fuse_req_t  req;
    struct dir_node *d;
    struct dir_handle *dh;
    bool        plus;
    char       *out;
    size_t      used, room;
    uint64_t   *counted;   /* nodes whose reference was counted for this reply */
    size_t      n_counted;
};

#define PLUS_ENTRY_MIN 128 /* bytes, less than any entry with attributes takes */

/* Adds one entry with its attributes; false when it does not fit. */
static bool add_plus(struct listing *l, const struct host_dirent *de)
{
    struct fuse_entry_param e = {.attr = {.st_ino = shown_ino(l->d, de), .st_mode = (mode_t)de->d_type << 12}};
    struct statx st;
    struct look look = look_begin(l->fs, l->dh->dir, l->d);
    if (!is_dots(de->d_name) && host_statx(l->dh->fd, de->d_name, &st) == 0 &&
        host_entry(l->fs, l->d, &look, de->d_name, &st, &e) < 0)
        e.ino = 0;
    size_t need = fuse_add_direntry_plus(l->req, l->out + l->used, l->room - l->used, de->d_name, &e, de->d_off);
    if (need <= l->room - l->used) {
        l->used += need;
        if (e.ino)
            l->counted[l->n_counted++] = e.ino;
        return true;
    }
    if (e.ino)
        nodes_forget(l->fs, e.ino, 1);
    return false;
}

static bool add_plain(struct listing *l, const struct host_dirent *de)
{
    struct stat st = {.st_ino = shown_ino(l->d, de), .st_mode = (mode_t)de->d_type << 12};
    size_t need = fuse_add_direntry(l->req, l->out + l->used, l->room - l->used, de->d_name, &st, de->d_off);
    if (need > l->room - l->used)
        return false;
    l->used += need;
    return true;
}

/* Behind the last entry, where the control directory is to be seen. */
#define CONTROL_COOKIE INT64_MAX

static void add_control(struct listing *l)
{
    struct fuse_entry_param e = {.attr = {.st_ino = control_ino(l->d->session), .st_mode = S_IFDIR}};
    if (l->d->n.kind != NODE_SESSION || !l->fs->config->show_control)
        return;
    char *at = l->out + l->used;
    size_t left = l->room - l->used;
    size_t need = l->plus ? fuse_add_direntry_plus(l->req, at, left, CONTROL_NAME, &e, CONTROL_COOKIE)
                          : fuse_add_direntry(l->req, at, left, CONTROL_NAME, &e.attr, CONTROL_COOKIE);
    if (need <= left)
        l->used += need;
}

static int fill(struct listing *l, off_t off)
{
    struct dir_handle *dh = l->dh;
    int r;
    if (off == CONTROL_COOKIE)
        return 0;
    for (struct host_dirent *de; (de = next_entry(dh, off, &r));) {
        if (!hidden(l->d, de->d_name) && !(l->plus ? add_plus(l, de) : add_plain(l, de)))
            return 0;
        dh->at += de->d_reclen;
        off = dh->next = de->d_off;
    }
    if (r == 0)
        add_control(l);
    return l->used ? 0 : r;
}

static void reply_listing(struct listing *l, int r)
{
    if (r < 0) {
        fuse_reply_err(l->req, -r);
        return;
    }
    if (fuse_reply_buf(l->req, l->out, l->used) == -ENOENT)
        for (size_t i = 0; i < l->n_counted; i++)
            nodes_forget(l->fs, l->counted[i], 1);
}

void host_dir_readdir(struct fs *fs, fuse_req_t req, struct node *n, size_t size, off_t off,
                      struct fuse_file_info *fi, bool plus)
{
    struct handle *h = handle_get(fs, fi->fh);
    cleanup_free char *out = malloc(size);
    cleanup_free uint64_t *counted = malloc((size / PLUS_ENTRY_MIN + 1) * sizeof *counted);
    if (!h || h->ops != &dir_handle_ops || !out || !counted) {
        fuse_reply_err(req, h ? ENOMEM : EBADF);
        return;
    }
    struct dir_handle *dh = container_of(h, struct dir_handle, h);
    struct listing l = {.fs = fs, .req = req, .d = container_of(n, struct dir_node, n), .dh = dh,
                        .plus = plus, .out = out, .room = size, .counted = counted};
    dir_node_asked(fs, l.d);
    pthread_mutex_lock(&dh->lock);
    int r = fill(&l, off);
    pthread_mutex_unlock(&dh->lock);
    dir_node_asked(fs, l.d);
    reply_listing(&l, r);
}

const struct node_ops host_dir_ops = {
    .lookup = host_dir_lookup,
    .getattr = host_getattr,
    .setattr = host_dir_setattr,
    .mknod = host_dir_mknod,
    .mkdir = host_dir_mkdir,
    .unlink = host_dir_unlink,
    .rmdir = host_dir_rmdir,
    .symlink = host_dir_symlink,
    .rename = host_dir_rename,
    .link = host_link,
    .create = host_dir_create,
    .opendir = host_dir_opendir,
    .readdir = host_dir_readdir,
    .statfs = host_statfs,
    .setxattr = host_setxattr,
    .getxattr = host_getxattr,
    .listxattr = host_listxattr,
    .removexattr = host_removexattr,
    .detach = detach_dir,
    .destroy = destroy_dir,
};

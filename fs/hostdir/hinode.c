// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/hostdir.h"
#include "fs/hostdir/watch.h"

#define FIRST_BUCKETS 1024
#define ROOM_WAIT_MS  50

/* All guarded by nodes.lock. */
struct hinodes {
    struct hinode **buckets;
    size_t          n_buckets, n_hashed;
    struct list     attached;  /* hostdirs */
    struct list     lru;       /* directories with a cached descriptor, the longest unused first */
    unsigned        n_fds, max_fds;
    unsigned        n_removed; /* files without a name that the kernel has not let go of */
    struct hinode  *garbage;   /* to be freed at the unlock, chained by hash_next */
    int             closing[64]; /* descriptors to be closed at the unlock */
    unsigned        n_closing;
};

struct hinodes *hinodes_create(unsigned max_fds)
{
    struct hinodes *hs = calloc(1, sizeof *hs);
    if (!hs)
        return NULL;
    hs->max_fds = max_fds;
    hs->n_buckets = FIRST_BUCKETS;
    hs->buckets = calloc(hs->n_buckets, sizeof(struct hinode *));
    list_init(&hs->lru);
    list_init(&hs->attached);
    if (!hs->buckets) {
        free(hs);
        return NULL;
    }
    return hs;
}

void hinodes_destroy(struct hinodes *hs)
{
    if (!hs)
        return;
    free(hs->buckets);
    free(hs);
}

void hinodes_lock(struct fs *fs)
{
    pthread_mutex_lock(&fs->nodes.lock);
}

static void free_hinode(struct hinode *h)
{
    if (h->fd >= 0)
        close(h->fd);
    free(h->name);
    if (!hinode_is_dir(h)) {
        free(hfile_of(h));
        return;
    }
    struct hdir *d = hdir_of(h);
    pthread_mutex_destroy(&d->change);
    free(d->told);
    if (h->is_root) {
        workspace_unref(h->hd->ws);
        free(h->hd);
    } else {
        free(d);
    }
}

void hinodes_unlock(struct fs *fs)
{
    struct hinodes *hs = fs->hinodes;
    struct hinode *garbage = hs->garbage;
    int closing[array_size(hs->closing)];
    unsigned n = hs->n_closing;
    memcpy(closing, hs->closing, n * sizeof closing[0]);
    hs->garbage = NULL;
    hs->n_closing = 0;
    pthread_mutex_unlock(&fs->nodes.lock);

    for (unsigned i = 0; i < n; i++)
        close(closing[i]);
    while (garbage) {
        struct hinode *next = garbage->hash_next;
        free_hinode(garbage);
        garbage = next;
    }
}

/* ── the hash ────────────────────────────────────────────────────────────────────────────── */

static size_t bucket_of(const struct hinodes *hs, const struct hostdir *hd, uint64_t dev, uint64_t ino)
{
    uint64_t h = (uintptr_t)hd / 64 * 0x9e3779b97f4a7c15u ^ ino * 0xff51afd7ed558ccdu ^ dev;
    return (h ^ h >> 31) % hs->n_buckets;
}

static void grow(struct hinodes *hs)
{
    struct hinodes old = *hs;
    struct hinode **buckets = calloc(old.n_buckets * 2, sizeof *buckets);
    if (!buckets)
        return;
    hs->buckets = buckets;
    hs->n_buckets = old.n_buckets * 2;
    for (size_t i = 0; i < old.n_buckets; i++)
        for (struct hinode *h = old.buckets[i], *next; h; h = next) {
            size_t b = bucket_of(hs, h->hd, h->dev, h->ino);
            next = h->hash_next;
            h->hash_next = buckets[b];
            buckets[b] = h;
        }
    free(old.buckets);
}

static void hash_add(struct hinodes *hs, struct hinode *h)
{
    if (hs->n_hashed++ > hs->n_buckets)
        grow(hs);
    size_t b = bucket_of(hs, h->hd, h->dev, h->ino);
    h->hash_next = hs->buckets[b];
    hs->buckets[b] = h;
    h->hashed = true;
}

void hinode_unhash(struct fs *fs, struct hinode *h)
{
    struct hinodes *hs = fs->hinodes;
    if (!h->hashed)
        return;
    struct hinode **p = &hs->buckets[bucket_of(hs, h->hd, h->dev, h->ino)];
    while (*p != h)
        p = &(*p)->hash_next;
    *p = h->hash_next;
    h->hashed = false;
    hs->n_hashed--;
}

static uint64_t statx_dev(const struct statx *st)
{
    return (uint64_t)st->stx_dev_major << 32 | st->stx_dev_minor;
}

static int64_t statx_birth_ns(const struct statx *st)
{
    if (!(st->stx_mask & STATX_BTIME))
        return 0;
    return st->stx_btime.tv_sec * 1000000000 + st->stx_btime.tv_nsec;
}

static bool is_same(const struct hinode *h, const struct statx *st)
{
    return h->ino == st->stx_ino && h->dev == statx_dev(st) && h->type == (st->stx_mode & S_IFMT) &&
           h->birth_ns == statx_birth_ns(st);
}

struct hinode *hinode_known(struct fs *fs, struct hostdir *hd, const struct statx *st)
{
    struct hinodes *hs = fs->hinodes;
    struct hinode *h = hs->buckets[bucket_of(hs, hd, statx_dev(st), st->stx_ino)];
    while (h && (h->hd != hd || h->ino != st->stx_ino || h->dev != statx_dev(st)))
        h = h->hash_next;
    if (h && !is_same(h, st)) {
        /* the host has given the number to another file */
        hinode_unhash(fs, h);
        return NULL;
    }
    return h;
}

/* ── life ────────────────────────────────────────────────────────────────────────────────── */

void hinode_ref(struct hinode *h)
{
    h->refs++;
}

static void drop_fd(struct hinodes *hs, struct hinode *h)
{
    if (h->fd < 0)
        return;
    if (hinode_is_dir(h) && !list_empty(&hdir_of(h)->lru)) {
        list_remove(&hdir_of(h)->lru);
        hs->n_fds--;
    }
    if (hs->n_closing == array_size(hs->closing))
        return; /* stays open until a quieter moment */
    hs->closing[hs->n_closing++] = steal_fd(&h->fd);
}

static void forget_place(struct fs *fs, struct hinode *h)
{
    struct hinode *parent = steal_ptr(&h->parent);
    if (!parent)
        return;
    list_remove(&h->siblings);
    hinode_unref(fs, parent);
}

void hinode_unref(struct fs *fs, struct hinode *h)
{
    struct hinodes *hs = fs->hinodes;
    if (h->is_root && h->refs == 2 && h->hd->attached && h->hd->closed) {
        h->refs = 1; /* only the attachment is left, and nobody will come back for it */
        hostdir_detach(fs, h->hd);
        return;
    }
    for (struct hinode *parent; h && --h->refs == 0; h = parent) {
        parent = steal_ptr(&h->parent);
        if (parent)
            list_remove(&h->siblings);
        hinode_unhash(fs, h);
        if (hinode_is_dir(h) && !list_empty(&hdir_of(h)->lru)) {
            list_remove(&hdir_of(h)->lru);
            hs->n_fds--;
        }
        if (hinode_is_dir(h))
            watch_forget(fs, hdir_of(h));
        hs->n_removed -= h->removed;
        if (!h->is_root)
            hinode_unref(fs, &h->hd->root.h);
        h->hash_next = hs->garbage;
        hs->garbage = h;
    }
}

static void init_dir(struct hdir *d)
{
    list_init(&d->lru);
    list_init(&d->children);
    list_init(&d->aliases);
    pthread_mutex_init(&d->change, NULL);
}

static struct hinode *make(struct fs *fs, struct hostdir *hd, const struct statx *st)
{
    bool is_dir = S_ISDIR(st->stx_mode);
    void *memory = calloc(1, is_dir ? sizeof(struct hdir) : sizeof(struct hfile));
    if (!memory)
        return NULL;
    struct hinode *h = is_dir ? &((struct hdir *)memory)->h : &((struct hfile *)memory)->h;
    if (is_dir)
        init_dir(memory);
    list_init(&h->siblings);
    h->hd = hd;
    h->fd = -1;
    h->dev = statx_dev(st);
    h->ino = st->stx_ino;
    h->birth_ns = statx_birth_ns(st);
    h->type = st->stx_mode & S_IFMT;
    h->refs = 1;
    hinode_ref(&hd->root.h);
    hash_add(fs->hinodes, h);
    return h;
}

/* A file that has a name is found by that. */
static void drop_needless_fd(struct fs *fs, struct hinode *h)
{
    if (h->parent && !hinode_is_dir(h) && !h->fd_users)
        drop_fd(fs->hinodes, h);
}

int hinode_move(struct fs *fs, struct hinode *h, struct hdir *dir, const char *name)
{
    if (dir && h->parent == &dir->h && h->name && !strcmp(h->name, name))
        return 0;
    char *copy = dir ? strdup(name) : NULL;
    if (dir && !copy)
        return -ENOMEM;
    if (dir)
        hinode_ref(&dir->h); /* before the old place goes: it may be the same */
    forget_place(fs, h);
    free(h->name);
    h->name = copy;
    h->parent = dir ? &dir->h : NULL;
    if (dir)
        list_append(&dir->children, &h->siblings);
    if (dir) {
        fs->hinodes->n_removed -= h->removed;
        h->removed = false;
    }
    drop_needless_fd(fs, h);
    return 0;
}

struct hinode *hinode_seen(struct fs *fs, struct hdir *dir, const char *name, const struct statx *st)
{
    struct hinode *h = hinode_known(fs, dir->h.hd, st);
    if (h)
        hinode_ref(h);
    else
        h = make(fs, dir->h.hd, st);
    if (h && h != &dir->h && hinode_move(fs, h, dir, name) < 0) {
        hinode_unref(fs, h);
        return NULL;
    }
    return h;
}

/* ── descriptors ─────────────────────────────────────────────────────────────────────────── */

/* Takes the cached descriptor if there is one. Lock held. */
static bool borrow(struct fs *fs, struct hinode *h, struct hfd *out)
{
    if (h->fd < 0)
        return false;
    h->fd_users++;
    hinode_ref(h);
    if (hinode_is_dir(h) && !list_empty(&hdir_of(h)->lru)) {
        list_remove(&hdir_of(h)->lru);
        list_append(&fs->hinodes->lru, &hdir_of(h)->lru);
    }
    *out = (struct hfd){.fd = h->fd, .h = h};
    return true;
}

/* Makes room for one more cached descriptor. Lock held. */
static void evict(struct hinodes *hs)
{
    list_for_each_safe(l, &hs->lru) {
        struct hdir *d = container_of(l, struct hdir, lru);
        if (hs->n_fds < hs->max_fds || hs->n_closing == array_size(hs->closing))
            return;
        if (!d->h.fd_users)
            drop_fd(hs, &d->h);
    }
}

bool hinode_hold(struct fs *fs, struct hinode *h, int fd, struct hfd *out)
{
    if (borrow(fs, h, out))
        return false;
    h->fd = fd;
    if (hinode_is_dir(h)) {
        evict(fs->hinodes);
        list_append(&fs->hinodes->lru, &hdir_of(h)->lru);
        fs->hinodes->n_fds++;
    }
    return borrow(fs, h, out);
}

void hinode_nameless(struct fs *fs, struct hinode *h)
{
    if (hinode_is_dir(h) && !list_empty(&hdir_of(h)->lru)) {
        list_remove(&hdir_of(h)->lru);
        fs->hinodes->n_fds--;
    }
    fs->hinodes->n_removed += !hinode_is_dir(h) && !h->removed;
    h->removed = !hinode_is_dir(h);
    hinode_move(fs, h, NULL, NULL);
}

bool hinodes_room_to_come(struct fs *fs, int error, unsigned *waited_ms)
{
    struct timespec nap = {.tv_nsec = 1000000};
    if ((error != -ENOSPC && error != -EDQUOT) || *waited_ms == ROOM_WAIT_MS)
        return false;
    hinodes_lock(fs);
    bool removed = fs->hinodes->n_removed > 0;
    hinodes_unlock(fs);
    if (removed) {
        nanosleep(&nap, NULL);
        ++*waited_ms;
    }
    return removed;
}

/* Opens what lies at (dir, name) when it is still `h`. Takes nothing. */
static int open_at(int dirfd, const char *name, struct hinode *h)
{
    struct statx st;
    int fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
    int r = host_statx(fd, "", &st);
    if (r == 0 && is_same(h, &st))
        return fd;
    close(fd);
    return r < 0 ? r : -ESTALE;
}

/* A place where a hinode may lie. */
struct lies {
    struct hdir *dir;     /* referenced */
    char        *name;
    unsigned     changes; /* of the directory, when it lay there */
};

#define TRIES_MAX 8 /* more often nothing moves between two looks */

/* Where h was last seen, unless `was` says that already. Lock held. */
static int place_of(struct fs *fs, struct hinode *h, struct lies *was)
{
    if (!h->parent || !h->name)
        return -ESTALE;
    struct hdir *dir = hdir_of(h->parent);
    if (dir == was->dir && dir->changes == was->changes && !strcmp(h->name, was->name))
        return -ESTALE;
    char *name = strdup(h->name);
    if (!name)
        return -ENOMEM;
    hinode_ref(&dir->h);
    if (was->dir)
        hinode_unref(fs, &was->dir->h);
    free(was->name);
    *was = (struct lies){.dir = dir, .name = name, .changes = dir->changes};
    return 0;
}

static void lies_put(struct fs *fs, struct lies *l)
{
    hinodes_lock(fs);
    if (l->dir)
        hinode_unref(fs, &l->dir->h);
    hinodes_unlock(fs);
    free(l->name);
}

/* A descriptor of h, when it lies there. */
static int fd_at(struct fs *fs, struct hinode *h, const struct lies *l, struct hfd *out)
{
    struct hfd above;
    int r = hinode_fd(fs, &l->dir->h, &above);
    if (r < 0)
        return r;
    r = open_at(above.fd, l->name, h);
    hfd_put(fs, &above);
    if (r < 0)
        return r;
    *out = (struct hfd){.fd = r, .own = true};
    if (!hinode_is_dir(h))
        return 0;
    hinodes_lock(fs);
    bool kept = hinode_hold(fs, h, r, out);
    hinodes_unlock(fs);
    if (!kept)
        close(r); /* another thread was faster */
    return 0;
}

/* It may move, through another session, just while it is looked for. */
int hinode_fd(struct fs *fs, struct hinode *h, struct hfd *out)
{
    struct lies l = {0};
    int r = -ESTALE;
    if (h->is_root) {
        *out = (struct hfd){.fd = workspace_files_fd(h->hd->ws)};
        return out->fd < 0 ? -ESTALE : 0;
    }
    for (int i = 0; i < TRIES_MAX && r == -ESTALE; i++) {
        hinodes_lock(fs);
        bool done = borrow(fs, h, out);
        r = done ? 0 : place_of(fs, h, &l);
        hinodes_unlock(fs);
        if (done || r < 0)
            break;
        r = fd_at(fs, h, &l, out);
    }
    lies_put(fs, &l);
    return r;
}

/* A descriptor of our own to what is open of h; false when nothing is. Lock held. */
static bool from_handle(struct hinode *h, struct hfd *out)
{
    struct handle *open = hinode_is_dir(h) ? NULL : hfile_of(h)->handles;
    int fd = open ? fcntl(file_handle_fd(open), F_DUPFD_CLOEXEC, 0) : -1;
    *out = (struct hfd){.fd = fd, .own = true, .opened = true};
    return fd >= 0;
}

/* The handle's comes first where it is as good: it is had without a look at the disk, and the kernel has
 * been told if the name leads elsewhere by now. */
int hinode_fd_or_handle(struct fs *fs, struct hinode *h, struct hfd *out)
{
    hinodes_lock(fs);
    bool had = h->fd < 0 && watch_is_on(h->parent) && from_handle(h, out);
    hinodes_unlock(fs);
    int r = had ? 0 : hinode_fd(fs, h, out);
    if (r != -ESTALE)
        return r;
    hinodes_lock(fs);
    had = from_handle(h, out);
    hinodes_unlock(fs);
    return had ? 0 : -ESTALE;
}

void hfd_put(struct fs *fs, struct hfd *f)
{
    if (f->h) {
        hinodes_lock(fs);
        f->h->fd_users--;
        drop_needless_fd(fs, f->h);
        hinode_unref(fs, f->h);
        hinodes_unlock(fs);
    } else if (f->own) {
        close(f->fd);
    }
    *f = (struct hfd){.fd = -1};
}

int hinode_stat(struct fs *fs, struct hinode *h, struct statx *st)
{
    struct lies l = {0};
    struct hfd f = {.fd = -1};
    hinodes_lock(fs);
    bool by_name = !h->is_root && h->fd < 0 && place_of(fs, h, &l) == 0;
    hinodes_unlock(fs);
    int r = by_name ? hinode_fd(fs, &l.dir->h, &f) : hinode_fd_or_handle(fs, h, &f);
    if (r == 0)
        r = host_statx(f.fd, by_name ? l.name : "", st);
    hfd_put(fs, &f);
    if (!by_name)
        return r;
    lies_put(fs, &l);
    if (r != -ENOENT && r != -ENOTDIR && r != -ESTALE && (r < 0 || is_same(h, st)))
        return r;
    r = hinode_fd_or_handle(fs, h, &f);
    if (r == 0)
        r = host_statx(f.fd, "", st);
    hfd_put(fs, &f);
    return r;
}

/* ── a workspace's files ─────────────────────────────────────────────────────────────────── */

static struct hostdir *make_hostdir(struct fs *fs, struct workspace *ws)
{
    struct hostdir *hd = calloc(1, sizeof *hd);
    if (!hd)
        return NULL;
    init_dir(&hd->root);
    list_init(&hd->root.h.siblings);
    hd->root.h.hd = hd;
    hd->root.h.is_root = true;
    hd->root.h.fd = -1;
    hd->root.h.type = S_IFDIR;
    hd->root.h.refs = 1; /* for being attached */
    hd->fs = fs;
    hd->ws = ws;
    hd->attached = true;
    list_append(&fs->hinodes->attached, &hd->all);
    hostdir_note_tenant(hd);
    workspace_ref(ws);
    return hd;
}

struct hostdir *hostdir_get(struct fs *fs, struct workspace *ws)
{
    void **data = workspace_fs_data(ws);
    hinodes_lock(fs);
    struct hostdir *hd = *data;
    if (!hd)
        *data = hd = make_hostdir(fs, ws);
    if (hd) {
        hd->closed = false;
        hinode_ref(&hd->root.h);
    }
    hinodes_unlock(fs);
    return hd;
}

void hostdir_put(struct fs *fs, struct hostdir *hd)
{
    hinodes_lock(fs);
    hinode_unref(fs, &hd->root.h);
    hinodes_unlock(fs);
}

void hostdir_detach(struct fs *fs, struct hostdir *hd)
{
    if (!hd->attached)
        return;
    *workspace_fs_data(hd->ws) = NULL;
    hd->attached = false;
    list_remove(&hd->all);
    hinode_unref(fs, &hd->root.h);
}

/* A pinned descriptor belongs to a removed file and stays; the cached ones have a name again. */
static void drop_cached(struct fs *fs, struct hostdir *hd)
{
    struct hinodes *hs = fs->hinodes;
    list_for_each_safe(l, &hs->lru) {
        struct hdir *d = container_of(l, struct hdir, lru);
        if (hs->n_closing == array_size(hs->closing)) {
            hinodes_unlock(fs);
            hinodes_lock(fs);
            l_next = hs->lru.next;
            continue;
        }
        if (d->h.hd == hd && !d->h.fd_users)
            drop_fd(hs, &d->h);
    }
}

void hostdir_closed(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    void **data = workspace_fs_data(ws);
    hinodes_lock(fs);
    struct hostdir *hd = *data;
    if (hd) {
        hinode_ref(&hd->root.h);
        drop_cached(fs, hd);
        hd->closed = true;
        hinode_unref(fs, &hd->root.h);
    }
    hinodes_unlock(fs);
}

void hostdirs_note_tenants(struct fs *fs)
{
    list_for_each(l, &fs->hinodes->attached) {
        struct hostdir *hd = container_of(l, struct hostdir, all);
        hd->reshown = hostdir_note_tenant(hd);
    }
}

void hostdirs_drain(struct fs *fs)
{
    struct hinodes *hs = fs->hinodes;
    hinodes_lock(fs);
    while (!list_empty(&hs->attached)) {
        hostdir_detach(fs, container_of(hs->attached.next, struct hostdir, all));
        hinodes_unlock(fs);
        hinodes_lock(fs);
    }
    hinodes_unlock(fs);
}

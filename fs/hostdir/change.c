// SPDX-License-Identifier: Apache-2.0
/* Changes of names: make, remove, rename, link. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/change.h"
#include "fs/hostdir/watch.h"
#include "fs/tree/tree.h"

/* ── the frame of every change ───────────────────────────────────────────────────────────── */

/* A name in a session's root that belongs to the control directory. */
static bool reserved(const struct dir_node *d, const char *name)
{
    return d->n.kind == NODE_SESSION && !strcmp(name, CONTROL_NAME);
}

static void lock_dirs(struct hdir *a, struct hdir *b)
{
    if (a == b || !b) {
        pthread_mutex_lock(&a->change);
        return;
    }
    pthread_mutex_lock(a < b ? &a->change : &b->change);
    pthread_mutex_lock(a < b ? &b->change : &a->change);
}

/* Lookups that see the directories change look again (host_entry). */
static void count_change(struct change *ch)
{
    hinodes_lock(ch->fs);
    for (int i = 0; i < 2; i++)
        if (ch->side[i].dir && (i == 0 || ch->side[1].dir != ch->side[0].dir))
            ch->side[i].dir->changes++;
    hinodes_unlock(ch->fs);
}

static void unlock_dirs(struct hdir *a, struct hdir *b)
{
    pthread_mutex_unlock(&a->change);
    if (b && b != a)
        pthread_mutex_unlock(&b->change);
}

int change_begin(struct change *ch, struct call *c, struct dir_node *d1, struct dir_node *d2)
{
    struct dir_node *via[2] = {d1, d2};
    *ch = (struct change){.c = c, .fs = c->fs};
    ch->answer = (struct answer){.fs = c->fs, .req = c->req};
    for (int i = 0; i < 2 && via[i]; i++) {
        ch->side[i].via = via[i];
        ch->side[i].dir = call_dir(c, via[i]);
        int r = hinode_fd(c->fs, &ch->side[i].dir->h, &ch->side[i].fd);
        if (r < 0) {
            if (i)
                hfd_put(c->fs, &ch->side[0].fd);
            return r;
        }
    }
    lock_dirs(ch->side[0].dir, ch->side[1].dir);
    count_change(ch);
    return 0;
}

/* Notices for everybody else who sees the directories, then the answer. */
void change_end(struct change *ch, int r)
{
    struct fs *fs = ch->fs;
    count_change(ch);
    unlock_dirs(ch->side[0].dir, ch->side[1].dir);
    for (int i = 0; i < 2; i++) {
        if (ch->side[i].dir)
            hfd_put(fs, &ch->side[i].fd);
        if (ch->side[i].h)
            hfd_put(fs, &ch->side[i].held);
        hinodes_lock(fs);
        if (r == 0 && ch->side[i].dir)
            notices_change(&ch->notices, ch->side[i].dir, ch->side[i].via, ch->side[i].name);
        if (ch->side[i].h) {
            if (r == 0 && hinode_is_dir(ch->side[i].h))
                notices_attributes(&ch->notices, hdir_of(ch->side[i].h), NULL);
            hinode_unref(fs, ch->side[i].h);
        }
        hinodes_unlock(fs);
    }
    if ((r == -ENOENT || r == -ESTALE) && call_root_gone(ch->c))
        r = -ESTALE; /* the kernel comes again, with a lookup */
    if (r < 0) {
        ch->answer.kind = ANSWER_ERR;
        ch->answer.err = r;
    }
    call_leave(ch->c);
    coherence_answer(fs, &ch->answer, ch->side[0].dir, ch->side[1].dir, &ch->notices);
}

/* ── making ──────────────────────────────────────────────────────────────────────────────── */

int change_made(struct change *ch, int fd)
{
    struct side *s = &ch->side[0];
    struct statx st;
    struct look l = look_begin(ch->fs, s->dir, s->via);
    l.exclusive = true;
    int r = fd < 0 ? host_statx(s->fd.fd, s->name, &st) : host_statx(fd, "", &st);
    if (r == -ENOENT || (r == 0 && !st.stx_nlink))
        r = -ESTALE; /* somebody behind the mount was faster */
    if (r < 0)
        return r;
    r = host_entry(ch->fs, s->via, &l, s->name, &st, &ch->answer.entry);
    if (r < 0)
        return r;
    ch->answer.kind = ANSWER_ENTRY;
    ch->answer.node = nodes_get(&ch->fs->nodes, ch->answer.entry.ino);
    return 0;
}

static int do_mkdir(struct change *ch, int fd)
{
    return mkdirat(fd, ch->c->name, ch->c->mode);
}

static int do_mknod(struct change *ch, int fd)
{
    return mknodat(fd, ch->c->name, ch->c->mode, ch->c->rdev);
}

static int do_symlink(struct change *ch, int fd)
{
    char target[PATH_MAX];
    int r = host_stored_target(ch->c, ch->c->name2, target);
    if (r < 0) {
        errno = -r;
        return -1;
    }
    return symlinkat(target, fd, ch->c->name);
}

/* One make of any kind by the caller. */
static void make(struct call *c, int (*act)(struct change *, int fd))
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct change ch;
    struct creds saved;
    int r = reserved(d, c->name) ? -EEXIST : change_begin(&ch, c, d, NULL);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    ch.side[0].name = c->name;
    creds_assume(c->fs, c->req, c->hd, ch.side[0].fd.fd, &c->mode, &saved);
    unsigned waited_ms = 0;
    do
        r = act(&ch, ch.side[0].fd.fd) < 0 ? -errno : 0;
    while (hinodes_room_to_come(c->fs, r, &waited_ms));
    creds_restore(&saved);
    if (r == 0)
        r = change_made(&ch, -1);
    change_end(&ch, r);
}

static void run_mkdir(struct call *c) { make(c, do_mkdir); }
static void run_mknod(struct call *c) { make(c, do_mknod); }
static void run_symlink(struct call *c) { make(c, do_symlink); }

void host_dir_mkdir(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .mode = mode, .run = run_mkdir};
    call_start(&c);
}

void host_dir_mknod(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode, dev_t rdev)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .mode = mode, .rdev = rdev, .run = run_mknod};
    call_start(&c);
}

void host_dir_symlink(struct fs *fs, fuse_req_t req, struct node *n, const char *target, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .name2 = target, .run = run_symlink};
    call_start(&c);
}

/* ── removing ────────────────────────────────────────────────────────────────────────────── */

/* Finds out whose name is about to change and holds it, so that the kernel's references work while
 * it does, and when the last name has gone. */
static int prepare_victim(struct change *ch, struct side *s)
{
    struct fs *fs = ch->fs;
    cleanup_close int fd = openat(s->fd.fd, s->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : host_statx(fd, "", &s->st);
    if (r < 0)
        return r;
    hinodes_lock(fs);
    s->h = hinode_known(fs, s->dir->h.hd, &s->st);
    if (s->h) {
        hinode_ref(s->h);
        if (hinode_hold(fs, s->h, fd, &s->held))
            fd = -1;
    }
    hinodes_unlock(fs);
    return 0;
}

/* A name of side s has gone. */
static void victim_gone(struct change *ch, struct side *s)
{
    struct fs *fs = ch->fs;
    struct hinode *h = s->h;
    if (!h)
        return;
    hinodes_lock(fs);
    if (hinode_is_dir(h) || s->st.stx_nlink <= 1)
        hinode_unhash(fs, h);
    bool was_here = h->parent == &s->dir->h && h->name && !strcmp(h->name, s->name);
    if (was_here)
        hinode_nameless(fs, h);
    hinodes_unlock(fs);
}

static void remove_name(struct call *c, int flags)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct change ch;
    int r = reserved(d, c->name) ? -EPERM : change_begin(&ch, c, d, NULL);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    struct side *s = &ch.side[0];
    s->name = c->name;
    r = prepare_victim(&ch, s);
    if (r == 0)
        r = unlinkat(s->fd.fd, s->name, flags) < 0 ? -errno : 0;
    if (r == 0)
        victim_gone(&ch, s);
    change_end(&ch, r);
}

static void run_unlink(struct call *c) { remove_name(c, 0); }
static void run_rmdir(struct call *c) { remove_name(c, AT_REMOVEDIR); }

void host_dir_unlink(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .run = run_unlink};
    call_start(&c);
}

void host_dir_rmdir(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .run = run_rmdir};
    call_start(&c);
}

/* ── renaming ────────────────────────────────────────────────────────────────────────────── */

/* Where the names lead now. */
static void renamed(struct change *ch)
{
    struct fs *fs = ch->fs;
    struct side *from = &ch->side[0], *to = &ch->side[1];
    bool exchange = ch->c->flags & RENAME_EXCHANGE;
    if (from->h && from->h == to->h)
        return; /* two names of one file: rename does nothing */
    if (!exchange)
        victim_gone(ch, to);
    hinodes_lock(fs);
    if (from->h)
        hinode_move(fs, from->h, to->dir, to->name);
    if (exchange && to->h)
        hinode_move(fs, to->h, from->dir, from->name);
    if (S_ISLNK(from->st.stx_mode) && !exchange)
        link_node_moved(fs, from->via->session, from->dir, from->name, to->dir, to->name);
    hinodes_unlock(fs);
}

static void run_rename(struct call *c)
{
    struct dir_node *d1 = container_of(c->node, struct dir_node, n);
    struct dir_node *d2 = container_of(c->other, struct dir_node, n);
    struct change ch;
    int r = reserved(d1, c->name) || reserved(d2, c->name2) ? -EPERM : 0;
    if (r == 0 && call_dir(c, d1)->h.hd != call_dir(c, d2)->h.hd)
        r = -EXDEV; /* the session has been bound to another workspace since */
    if (r == 0)
        r = change_begin(&ch, c, d1, d2);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    struct side *from = &ch.side[0], *to = &ch.side[1];
    from->name = c->name;
    to->name = c->name2;
    r = prepare_victim(&ch, from);
    if (r == 0)
        r = prepare_victim(&ch, to);
    if (r == -ENOENT && from->st.stx_mask)
        r = 0;
    if (r == 0)
        r = renameat2(from->fd.fd, c->name, to->fd.fd, c->name2, c->flags) < 0 ? -errno : 0;
    if (r == 0)
        renamed(&ch);
    change_end(&ch, r);
}

static bool is_below(const struct hinode *h, const struct hinode *above)
{
    while (h && h != above)
        h = h->parent;
    return h;
}

/* Between two sessions: EXDEV makes mv copy and delete, which is right but for two cases. */
static void run_rename_across(struct call *c)
{
    struct dir_node *d1 = container_of(c->node, struct dir_node, n);
    struct dir_node *d2 = container_of(c->other, struct dir_node, n);
    struct hdir *dir1 = call_dir(c, d1), *dir2 = d2->hi;
    struct statx st1, st2;
    struct hfd f1 = {.fd = -1}, f2 = {.fd = -1};
    int r = -EXDEV;
    if (dir2 && dir1->h.hd == dir2->h.hd && hinode_fd(c->fs, &dir1->h, &f1) == 0 &&
        hinode_fd(c->fs, &dir2->h, &f2) == 0 && host_statx(f1.fd, c->name, &st1) == 0) {
        bool target = host_statx(f2.fd, c->name2, &st2) == 0;
        hinodes_lock(c->fs);
        struct hinode *h1 = hinode_known(c->fs, dir1->h.hd, &st1);
        if (h1 && is_below(&dir2->h, h1))
            r = -EINVAL; /* a copying mv would lose all */
        else if (target && h1 && h1 == hinode_known(c->fs, dir1->h.hd, &st2))
            r = 0;
        hinodes_unlock(c->fs);
    }
    hfd_put(c->fs, &f1);
    hfd_put(c->fs, &f2);
    fuse_reply_err(c->req, -r);
}

void host_dir_rename(struct fs *fs, fuse_req_t req, struct node *n, const char *name, struct node *to,
                     const char *new_name, unsigned flags)
{
    struct call c = {.fs = fs, .req = req, .node = n, .other = to, .name = name, .name2 = new_name,
                     .flags = flags, .run = run_rename};
    struct dir_node *d1 = container_of(n, struct dir_node, n);
    struct dir_node *d2 = container_of(to, struct dir_node, n);
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE)) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    if (d1->session != d2->session)
        c.run = run_rename_across;
    call_start(&c);
}

/* ── hard links ──────────────────────────────────────────────────────────────────────────── */

static struct hinode *linked_hinode(struct node *n)
{
    if (n->kind == NODE_FILE)
        return &node_file(n)->h;
    if (n->kind == NODE_LINK)
        return &container_of(n, struct link_node, n)->hi->h;
    return NULL;
}

static int do_link(struct change *ch, struct hinode *h)
{
    struct hfd f;
    char name[12];
    int r = hinode_fd(ch->fs, h, &f);
    if (r < 0)
        return r;
    snprintf(name, sizeof name, "%d", f.fd);
    if (linkat(ch->fs->proc_fd_dir, name, ch->side[0].fd.fd, ch->side[0].name, AT_SYMLINK_FOLLOW) < 0)
        r = -errno;
    hfd_put(ch->fs, &f);
    return r;
}

static void run_link(struct call *c)
{
    struct dir_node *d = container_of(c->node, struct dir_node, n);
    struct hinode *h = linked_hinode(c->other);
    struct change ch;
    int r = reserved(d, c->name) ? -EEXIST : 0;
    if (r == 0 && (!h || h->hd != c->hd))
        r = -EXDEV;
    if (r == 0)
        r = change_begin(&ch, c, d, NULL);
    if (r < 0) {
        fuse_reply_err(c->req, -r);
        return;
    }
    ch.side[0].name = c->name;
    r = do_link(&ch, h);
    if (r == 0)
        r = change_made(&ch, -1);
    change_end(&ch, r);
}

void host_link(struct fs *fs, fuse_req_t req, struct node *n, struct node *to, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = to, .other = n, .name = name, .run = run_link};
    call_start(&c);
}

// SPDX-License-Identifier: Apache-2.0
/* `.wsm/root`: the sandbox's own root file system, read-only. Links in it are given as they look from
 * here, so nothing in it leads out of it but into the workspace. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/statfs.h>

#include "fs/base/cleanup.h"
#include "fs/base/walk.h"
#include "fs/hostdir/contained.h"
#include "fs/hostdir/hostdir.h"
#include "fs/tree/control.h"
#include "fs/tree/root.h"

struct root_node {
    struct node   n;
    struct place *session; /* referenced */
    uint64_t      ino;     /* as shown: another file at the same path is another node */
    mode_t        type;
    char          inside[]; /* absolute path in the sandbox */
};

static struct root_node *of(struct node *n)
{
    return container_of(n, struct root_node, n);
}

/* ── the host's side ─────────────────────────────────────────────────────────────────────── */

/* Opens a directory by its absolute path one component at a time, following no link. -1 and errno. */
static int walk_dir(const char *path)
{
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && *(path += strspn(path, "/"))) {
        char name[NAME_MAX + 1];
        cleanup_close int above = steal_fd(&fd);
        size_t n = strcspn(path, "/");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : 0), path);
        fd = openat(above, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
        path += n;
    }
    return fd;
}

/* Opens (O_PATH) a path of this host: its directory with no link in it, then its last component, a
 * link itself unless `follow`. */
static int open_host(const char *path, bool follow)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof dir)
        return -ENAMETOOLONG;
    memcpy(dir, path, n);
    dir[n] = '\0';
    cleanup_close int fd = (int)syscall(SYS_openat2, AT_FDCWD, n ? dir : "/", &how, sizeof how);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) /* an old kernel, or a filter that is older than the call */
        fd = walk_dir(dir);
    if (fd < 0)
        return errno == ELOOP ? -ENOENT : -errno;
    if (!slash || !slash[1])
        return steal_fd(&fd);
    int r = openat(fd, slash + 1, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    return r < 0 ? -errno : r;
}

/* ── a sandbox's own side ────────────────────────────────────────────────────────────────── */

/* Whether it is on a file system that answers by itself: what a sandbox has mounted may be anything, and
 * files of proc keep their readers waiting. What the root itself is on has to be good enough. */
static bool is_plain(int fd, int root)
{
    static const long plain[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC,
                                 OVERLAYFS_SUPER_MAGIC};
    struct statfs here, there;
    if (fstatfs(fd, &here) < 0 || fstatfs(root, &there) < 0)
        return false;
    for (size_t i = 0; i < array_size(plain); i++)
        if (here.f_type == plain[i])
            return true;
    return here.f_type == there.f_type;
}

/* Opens (O_PATH) what a running sandbox has at a path of its own. Those inside may change the path at any
 * moment: each component is opened by its name, a link is none to go through, and no name leads up. */
static int open_own(struct place *session, const char *inside)
{
    const char *slash = strrchr(inside, '/');
    char dir[PATH_MAX];
    int r;
    cleanup_close int root = session_root_open(session);
    if (root < 0)
        return root;
    if (!slash[1])
        return steal_fd(&root);
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - inside), inside);
    cleanup_close int above = walk_open(root, dir[0] ? dir + 1 : ".", false);
    if (above < 0)
        return above;
    r = openat(above, slash + 1, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (r < 0)
        return -errno;
    if (is_plain(r, root))
        return r;
    close(r);
    return -ENOENT;
}

/* Without a running sandbox there is its root, and it is empty. */
static int find_own(struct place *session, const char *inside, struct backend_root_place *p, int *fd)
{
    *fd = open_own(session, inside);
    if (*fd >= 0)
        return 0;
    p->kind = BACKEND_ROOT_ABOVE;
    return inside[1] ? -ENOENT : 0;
}

/* ── both ────────────────────────────────────────────────────────────────────────────────── */

/* What stands at a path of the sandbox's root. For HOST and OWN *fd is an O_PATH descriptor. */
static int find(struct place *session, const char *inside, struct backend_root_place *p, int *fd)
{
    *fd = -1;
    manager_root_look(session->manager, inside, p);
    if (p->kind == BACKEND_ROOT_NOTHING)
        return -ENOENT;
    if (p->kind == BACKEND_ROOT_OWN)
        return find_own(session, inside, p, fd);
    if (p->kind != BACKEND_ROOT_HOST)
        return 0;
    /* a line of the table may be a link of the host's that stands for what it leads to; below it a
     * link is a link */
    bool named = strcmp(p->host, inside) != 0;
    *fd = open_host(p->host, named);
    return *fd < 0 ? *fd : 0;
}

static uint64_t mix(uint64_t dev, uint64_t ino)
{
    return (ino ^ (dev + 1) * 0x9e3779b97f4a7c15u) | 1ull << 62;
}

static uint64_t path_ino(const char *path)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *path; path++)
        h = (h ^ (unsigned char)*path) * 0x100000001b3u;
    return h | 1ull << 62;
}

/* How many components a path has: how far below `.wsm/root` it lies. */
static int depth_of(const char *inside)
{
    int n = 0;
    for (const char *p = inside; *p; p++)
        n += *p == '/' && p[1];
    return n;
}

static bool lies_in_workspace(const char *path)
{
    size_t n = strlen(INSIDE_ROOT);
    return !strncmp(path, INSIDE_ROOT, n) && (!path[n] || path[n] == '/');
}

/* The way from a session's root to its workspace. */
struct way {
    int  up;                            /* so many directories */
    char down[3 * (NAME_MAX + 1) + 1];  /* then by this: "", or a path with a slash behind it */
};

/* `.wsm/root` lies in the session, and `root` of its image in /.wsm/sessions/USER/AGENT/SESSION. */
static void find_way(const struct place *session, const void *side, struct way *w)
{
    const struct place *agent = session->parent, *user = agent->parent;
    bool mirror = control_is_mirror(side);
    w->up = mirror ? 6 : 2;
    w->down[0] = '\0';
    if (mirror)
        snprintf(w->down, sizeof w->down, "%s/%s/%s/", user->name, agent->name, session->name);
}

/* Writes the way from a directory `depth` below the root to `path`, which lies below the root or in the workspace. */
static int express(const char *path, int depth, const struct way *w, char *out)
{
    bool in_workspace = lies_in_workspace(path);
    size_t used = 0;
    for (int i = 0; i < depth + (in_workspace ? w->up : 0) && used < PATH_MAX; i++)
        used += (size_t)snprintf(out + used, PATH_MAX - used, "../");
    if (used >= PATH_MAX)
        return -ENAMETOOLONG;
    const char *rest = path + (in_workspace ? strlen(INSIDE_ROOT) : 0);
    rest += strspn(rest, "/");
    used += (size_t)snprintf(out + used, PATH_MAX - used, "%s%s", in_workspace ? w->down : "", *rest || used ? rest : ".");
    return used < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Walks the text component by component from the link's directory (or the root), as text, never above the root. */
static int resolve(const char *inside, const char *text, int depth, const struct way *w, char *out)
{
    char path[2 * PATH_MAX] = "", todo[2 * PATH_MAX];
    const char *slash = strrchr(inside, '/');
    int n = text[0] == '/' ? snprintf(todo, sizeof todo, "%s", text)
                           : snprintf(todo, sizeof todo, "%.*s/%s", (int)(slash - inside), inside, text);
    if (n >= (int)sizeof todo)
        return -ENAMETOOLONG;
    char *save = NULL;
    for (char *c = strtok_r(todo, "/", &save); c; c = strtok_r(NULL, "/", &save)) {
        if (!strcmp(c, "..")) {
            char *last = strrchr(path, '/');
            if (last)
                *last = '\0';
        } else if (strcmp(c, ".")) {
            strcat(strcat(path, "/"), c);
        }
    }
    return express(path, depth, w, out);
}

/* Whether one of its components is `..`. */
static bool has_dotdot(const char *text)
{
    for (; *text; text += *text == '/') {
        size_t n = strcspn(text, "/");
        if (n == 2 && text[0] == '.' && text[1] == '.')
            return true;
        text += n;
    }
    return false;
}

/* The text of a link at `inside` as it looks from there. `..` behind a name is taken by the text: in
 * the worst case it leads to another place of this read-only root. None is left there, at the end no more than
 * before: the name may be a link that leads to the root, and `..` from that out of it. */
static int shown_text(const char *inside, const char *text, const struct way *w, char *out)
{
    int depth = depth_of(inside) - 1, leading = 0;
    const char *rest = text;
    if (text[0] != '/') {
        for (; !strncmp(rest, "../", 3) || !strcmp(rest, ".."); rest += rest[2] ? 3 : 2)
            leading++;
        if (leading <= depth && !has_dotdot(rest))
            return snprintf(out, PATH_MAX, "%s", text) < PATH_MAX ? 0 : -ENAMETOOLONG;
        return resolve(inside, text, depth, w, out);
    }
    return has_dotdot(text) ? resolve(inside, text, depth, w, out) : express(text, depth, w, out);
}

/* The link's text, as shown. -EINVAL: no link. */
static int link_text(const char *inside, const struct way *w, const struct backend_root_place *p, int fd, char *out)
{
    char text[PATH_MAX];
    if (p->kind == BACKEND_ROOT_LINK)
        return shown_text(inside, p->target, w, out);
    ssize_t n = fd < 0 ? -1 : readlinkat(fd, "", text, sizeof text - 1);
    if (n < 0)
        return -EINVAL;
    text[n] = '\0';
    return shown_text(inside, text, w, out);
}

static void directory_stat(const char *inside, struct stat *st)
{
    *st = (struct stat){.st_ino = path_ino(inside), .st_mode = S_IFDIR | 0755, .st_nlink = 2, .st_blksize = 4096};
}

static int stat_of(const char *inside, const struct way *w, const struct backend_root_place *p, int fd, struct stat *st)
{
    char text[PATH_MAX];
    if (fd >= 0) {
        if (fstat(fd, st) < 0)
            return -errno;
        st->st_ino = mix(st->st_dev, st->st_ino);
    } else {
        directory_stat(inside, st);
        if (p->kind == BACKEND_ROOT_LINK)
            st->st_mode = S_IFLNK | 0777;
    }
    if (S_ISLNK(st->st_mode) && link_text(inside, w, p, fd, text) == 0)
        st->st_size = (off_t)strlen(text);
    /* read-only, and no program of the host gains rights by it */
    st->st_mode &= ~(mode_t)(S_ISUID | S_ISGID | (S_ISLNK(st->st_mode) ? 0 : 0222));
    return 0;
}

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

/* How long the kernel may believe what it was told: the host's programs stay as they are, a sandbox's root does not. */
static double timeout_s(struct fs *fs)
{
    return manager_root_moves(fs->manager) ? 0 : HOST_TIMEOUT_S;
}

/* The key is the path with number and type in front, so that the file that comes in the place of another has a node
 * of its own. */
static bool same_key(const struct node *n, const char *key)
{
    const struct root_node *r = container_of(n, const struct root_node, n);
    char *inside;
    uint64_t ino = strtoull(key, &inside, 16);
    return ino == r->ino && (mode_t)strtoul(inside + 1, &inside, 8) == r->type && !strcmp(r->inside, inside);
}

static int node_for(struct fs *fs, struct place *session, const void *side, const char *inside, const struct stat *st,
                    uint64_t *id)
{
    struct nodes *ns = &fs->nodes;
    mode_t type = st->st_mode & S_IFMT;
    char key[PATH_MAX + 40];
    struct root_node *made = calloc(1, sizeof *made + strlen(inside) + 1);
    int r = made ? 0 : -ENOMEM;
    if (r < 0)
        return r;
    snprintf(key, sizeof key, "%llx %o%s", (unsigned long long)st->st_ino, type, inside);
    pthread_mutex_lock(&ns->lock);
    struct node *n = nodes_find(ns, NODE_ROOT, session, side, key, same_key);
    if (!n) {
        made->n = (struct node){.ops = &root_ops, .kind = NODE_ROOT, .owner = session, .second = side};
        strcpy(made->inside, inside);
        made->ino = st->st_ino;
        made->type = type;
        r = nodes_add(ns, &made->n, key, true);
        if (r == 0) {
            made->session = session;
            place_ref(session);
            n = &made->n;
            made = NULL;
        }
    }
    if (n) {
        n->nlookup++;
        *id = n->id;
    }
    pthread_mutex_unlock(&ns->lock);
    free(made);
    return r;
}

int root_entry(struct fs *fs, struct place *session, const void *side, const char *inside, struct fuse_entry_param *e)
{
    struct backend_root_place p;
    cleanup_close int fd = -1;
    *e = (struct fuse_entry_param){.attr_timeout = timeout_s(fs), .entry_timeout = timeout_s(fs)};
    struct way w;
    find_way(session, side, &w);
    int r = find(session, inside, &p, &fd);
    if (r == 0)
        r = stat_of(inside, &w, &p, fd, &e->attr);
    return r < 0 ? r : node_for(fs, session, side, inside, &e->attr, &e->ino);
}

static void destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    place_unref(of(n)->session);
    free(of(n));
}

static void lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    char inside[PATH_MAX];
    const char *above = of(n)->inside;
    int len = snprintf(inside, sizeof inside, "%s/%s", above[1] ? above : "", name);
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        len = (int)sizeof inside; /* nobody asks for those, and a name must not lead up */
    int r = len < (int)sizeof inside ? root_entry(fs, of(n)->session, n->second, inside, &e) : -ENAMETOOLONG;
    session_root_used(of(n)->session);
    reply_entry(fs, req, r, &e);
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct backend_root_place p;
    struct stat st;
    cleanup_close int fd = -1;
    (void)fi;
    struct way w;
    find_way(of(n)->session, n->second, &w);
    int r = find(of(n)->session, of(n)->inside, &p, &fd);
    if (r == 0)
        r = stat_of(of(n)->inside, &w, &p, fd, &st);
    if (r == 0 && (st.st_mode & S_IFMT) != of(n)->type)
        r = -ESTALE; /* something else stands there now: who comes by the name finds it */
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        fuse_reply_attr(req, &st, timeout_s(fs));
}

static void readlink_root(struct fs *fs, fuse_req_t req, struct node *n)
{
    struct backend_root_place p;
    char out[PATH_MAX];
    cleanup_close int fd = -1;
    (void)fs;
    struct way w;
    find_way(of(n)->session, n->second, &w);
    int r = find(of(n)->session, of(n)->inside, &p, &fd);
    if (r == 0)
        r = link_text(of(n)->inside, &w, &p, fd, out);
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        fuse_reply_readlink(req, out);
}

/* ── listing ─────────────────────────────────────────────────────────────────────────────── */

struct root_listing {
    struct manager   *manager;
    struct name_list *names;
    const char       *inside;
};

static enum backend_root_kind kind_of(const struct root_listing *l, const char *name)
{
    char path[PATH_MAX];
    struct backend_root_place p;
    if (snprintf(path, sizeof path, "%s/%s", l->inside[1] ? l->inside : "", name) >= (int)sizeof path)
        return BACKEND_ROOT_NOTHING;
    manager_root_look(l->manager, path, &p);
    return p.kind;
}

/* What a sandbox has there and the backend does not show. */
static bool is_hidden(const struct root_listing *l, const char *name)
{
    return manager_root_moves(l->manager) && kind_of(l, name) == BACKEND_ROOT_NOTHING;
}

/* The type comes with the lookup: nothing is opened for a listing. */
static void add_child(const char *name, void *arg)
{
    struct root_listing *l = arg;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", l->inside[1] ? l->inside : "", name) >= (int)sizeof path)
        return;
    enum backend_root_kind kind = kind_of(l, name);
    mode_t type = kind == BACKEND_ROOT_LINK ? S_IFLNK : kind == BACKEND_ROOT_ABOVE ? S_IFDIR : 0;
    name_list_add(l->names, name, path_ino(path), type);
}

static uint64_t entry_number(struct fs *fs, const struct node *n, const struct dirent *de, uint64_t dev)
{
    const struct root_listing l = {.manager = fs->manager, .inside = container_of(n, const struct root_node, n)->inside};
    return is_hidden(&l, de->d_name) ? 0 : mix(dev, de->d_ino);
}

static void add_host(struct root_listing *l, int fd)
{
    struct stat st;
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = own >= 0 ? fdopendir(own) : NULL;
    if (d)
        name_list_follow(l->names, d, fstat(own, &st) == 0 ? st.st_dev : 0, entry_number);
    else if (own >= 0)
        close(own);
}

static void opendir_root(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct backend_root_place p;
    cleanup_close int fd = -1;
    int r = find(of(n)->session, of(n)->inside, &p, &fd);
    struct root_listing l = {.manager = fs->manager, .inside = of(n)->inside};
    if (r < 0) {
        fuse_reply_err(req, -r);
        return;
    }
    session_used(of(n)->session);
    l.names = name_list_create();
    if (l.names) {
        manager_root_children(fs->manager, l.inside, add_child, &l);
        if (fd >= 0)
            add_host(&l, fd);
    }
    name_list_open(fs, req, l.names, fi);
}

/* ── files ───────────────────────────────────────────────────────────────────────────────── */

struct root_file {
    struct handle h;
    int           fd;
};

static void drop_file(struct fs *fs, struct handle *h)
{
    struct root_file *f = container_of(h, struct root_file, h);
    handle_remove(fs, h);
    close(f->fd);
    free(f);
}

static void read_file(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                      struct fuse_file_info *fi)
{
    struct fuse_bufvec buf = FUSE_BUFVEC_INIT(size);
    (void)fs;
    (void)fi;
    buf.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK | FUSE_BUF_FD_RETRY;
    buf.buf[0].fd = container_of(h, struct root_file, h)->fd;
    buf.buf[0].pos = off;
    fuse_reply_data(req, &buf, FUSE_BUF_SPLICE_MOVE);
}

static const struct handle_ops root_file_ops = {.read = read_file, .drop = drop_file};

/* Regular files alone: a FIFO would keep a thread, a device would do things. Nor does a lease that somebody in
 * a sandbox has taken keep one. */
static int open_regular(struct fs *fs, struct place *session, const char *inside)
{
    struct backend_root_place p;
    struct stat st;
    char name[12];
    cleanup_close int fd = -1;
    int r = find(session, inside, &p, &fd);
    if (r < 0 || fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return r < 0 ? r : -EACCES;
    snprintf(name, sizeof name, "%d", fd);
    r = openat(fs->proc_fd_dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return r < 0 ? -errno : r;
}

static void open_root(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct root_file *f = calloc(1, sizeof *f);
    int r = (fi->flags & O_ACCMODE) != O_RDONLY ? -EROFS
          : f ? open_regular(fs, of(n)->session, of(n)->inside) : -ENOMEM;
    if (r >= 0) {
        f->fd = r;
        f->h.ops = &root_file_ops;
        r = handle_add(fs, &f->h, fi);
        if (r < 0)
            close(f->fd);
    }
    if (r < 0) {
        free(f);
        fuse_reply_err(req, -r);
    } else if (fuse_reply_open(req, fi) == -ENOENT) {
        drop_file(fs, &f->h);
    }
}

/* ── nothing is written here ─────────────────────────────────────────────────────────────── */

#define READ_ONLY(name, ...) \
    static void name(struct fs *fs, fuse_req_t req, struct node *n, __VA_ARGS__) \
    { (void)fs; (void)n; refuse(req); }

static void refuse(fuse_req_t req)
{
    fuse_reply_err(req, EROFS);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
READ_ONLY(no_setattr, struct stat *st, int to_set, struct fuse_file_info *fi)
READ_ONLY(no_mknod, const char *name, mode_t mode, dev_t rdev)
READ_ONLY(no_mkdir, const char *name, mode_t mode)
READ_ONLY(no_unlink, const char *name)
READ_ONLY(no_symlink, const char *target, const char *name)
READ_ONLY(no_link, struct node *to, const char *name)
READ_ONLY(no_create, const char *name, mode_t mode, struct fuse_file_info *fi)
READ_ONLY(no_setxattr, const char *name, const char *value, size_t size, int flags)
READ_ONLY(no_removexattr, const char *name)
#pragma GCC diagnostic pop

const struct node_ops root_ops = {
    .lookup = lookup,
    .getattr = getattr,
    .setattr = no_setattr,
    .readlink = readlink_root,
    .mknod = no_mknod,
    .mkdir = no_mkdir,
    .unlink = no_unlink,
    .rmdir = no_unlink,
    .symlink = no_symlink,
    .link = no_link,
    .create = no_create,
    .open = open_root,
    .opendir = opendir_root,
    .readdir = name_list_readdir,
    .setxattr = no_setxattr,
    .removexattr = no_removexattr,
    .destroy = destroy,
};

// SPDX-License-Identifier: Apache-2.0
/* Nodes of the files beside the fixed ones in a job's directory, and the file `new` of `jobs`. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/jobs.h"

struct other_node {
    struct node      n;
    struct job_file *file;  /* referenced */
    struct place    *place; /* referenced */
};

static struct other_node *of(struct node *n)
{
    return container_of(n, struct other_node, n);
}

static void fill_stat(const struct other_node *on, struct stat *st)
{
    struct job_file_stat s;
    mode_t mode;
    job_file_stat(on->file, &s);
    *st = (struct stat){
        .st_ino = s.number | 3ull << 62,
        .st_mode = S_IFREG | s.mode,
        .st_nlink = 1,
        .st_size = (off_t)s.size,
        .st_blksize = 4096,
        .st_blocks = (blkcnt_t)((s.size + 511) / 512),
        .st_mtim = {.tv_sec = s.changed_ms / 1000, .tv_nsec = s.changed_ms % 1000 * 1000000},
    };
    place_access(on->place, &st->st_uid, &st->st_gid, &mode);
    st->st_atim = st->st_ctim = st->st_mtim;
}

static void free_other(struct other_node *on)
{
    job_file_unref(on->file);
    place_unref(on->place);
    free(on);
}

int job_other_entry(struct fs *fs, struct job_dir *d, struct job_file *f, struct fuse_entry_param *e)
{
    struct other_node *on = calloc(1, sizeof *on);
    struct nodes *ns = &fs->nodes;
    int r = 0;
    if (!on) {
        job_file_unref(f);
        return -ENOMEM;
    }
    on->n = (struct node){.ops = &job_other_ops, .kind = NODE_JOB_FILE, .owner = f, .second = d->side};
    on->file = f;
    on->place = d->place;
    place_ref(on->place);
    *e = (struct fuse_entry_param){0};
    fill_stat(on, &e->attr);
    pthread_mutex_lock(&ns->lock);
    struct node *n = nodes_find(ns, NODE_JOB_FILE, f, d->side, NULL, NULL);
    bool found = n;
    if (!n) {
        r = nodes_add(ns, &on->n, NULL, true);
        n = r == 0 ? &on->n : NULL;
    }
    if (n) {
        n->nlookup++;
        e->ino = n->id;
    }
    pthread_mutex_unlock(&ns->lock);
    if (found || r < 0)
        free_other(on);
    return r;
}

static void destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    free_other(of(n));
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    fill_stat(of(n), &st);
    fuse_reply_attr(req, &st, 0);
}

static void setattr(struct fs *fs, fuse_req_t req, struct node *n, struct stat *attr, int to_set,
                    struct fuse_file_info *fi)
{
    struct stat st;
    int r = 0;
    fill_stat(of(n), &st);
    if ((to_set & FUSE_SET_ATTR_UID && attr->st_uid != st.st_uid) ||
        (to_set & FUSE_SET_ATTR_GID && attr->st_gid != st.st_gid))
        r = -EPERM;
    else if (to_set & FUSE_SET_ATTR_SIZE)
        r = job_file_truncate(of(n)->file, (uint64_t)attr->st_size);
    if (r == 0 && to_set & FUSE_SET_ATTR_MODE)
        job_file_chmod(of(n)->file, attr->st_mode);
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        getattr(fs, req, n, fi);
}

/* ── open files ──────────────────────────────────────────────────────────────────────────── */

struct other_handle {
    struct handle    h;
    struct job_file *file; /* referenced */
};

static struct job_file *file_of(struct handle *h)
{
    return container_of(h, struct other_handle, h)->file;
}

static void drop(struct fs *fs, struct handle *h)
{
    handle_remove(fs, h);
    job_file_unref(file_of(h));
    free(container_of(h, struct other_handle, h));
}

static void read_other(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                       struct fuse_file_info *fi)
{
    cleanup_free char *buf = malloc(size ? size : 1);
    (void)fs;
    (void)fi;
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    ssize_t n = job_file_read(file_of(h), (uint64_t)off, buf, size);
    fuse_reply_buf(req, buf, (size_t)n);
}

static void write_other(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                        struct fuse_file_info *fi)
{
    size_t size;
    cleanup_free char *data = job_write_bytes(req, in, &size);
    struct job_file_stat s;
    (void)fs;
    if (!data)
        return;
    job_file_stat(file_of(h), &s);
    int r = job_file_write(file_of(h), data, size, fi->flags & O_APPEND ? s.size : (uint64_t)off);
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        fuse_reply_write(req, size);
}

static const struct handle_ops other_handle_ops = {
    .read = read_other,
    .write = write_other,
    .drop = drop,
};

void job_other_open(struct fs *fs, fuse_req_t req, struct job_file *f, struct fuse_entry_param *e,
                    struct fuse_file_info *fi)
{
    struct other_handle *oh = calloc(1, sizeof *oh);
    int r = oh ? handle_add(fs, &oh->h, fi) : -ENOMEM;
    if (r < 0) {
        free(oh);
        job_file_unref(f);
        if (e)
            nodes_forget(fs, e->ino, 1);
        fuse_reply_err(req, -r);
        return;
    }
    oh->h.ops = &other_handle_ops;
    oh->file = f;
    if (fi->flags & O_TRUNC)
        job_file_truncate(f, 0);
    fi->direct_io = 1;
    r = e ? fuse_reply_create(req, e, fi) : fuse_reply_open(req, fi);
    if (r == -ENOENT) {
        drop(fs, &oh->h);
        if (e)
            nodes_forget(fs, e->ino, 1);
    }
}

static void open_other(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    job_file_ref(of(n)->file);
    job_other_open(fs, req, of(n)->file, NULL, fi);
}

const struct node_ops job_other_ops = {
    .getattr = getattr,
    .setattr = setattr,
    .open = open_other,
    .destroy = destroy,
};

/* ── new ─────────────────────────────────────────────────────────────────────────────────── */

struct new_node {
    struct node   n;
    struct place *place; /* referenced */
};

static struct place *new_place(struct node *n)
{
    return container_of(n, struct new_node, n)->place;
}

static void new_stat(struct place *p, struct stat *st)
{
    mode_t mode;
    *st = (struct stat){.st_ino = jobs_dir_ino(p) + 1, .st_mode = S_IFREG | 0400, .st_nlink = 1, .st_blksize = 4096};
    place_access(p, &st->st_uid, &st->st_gid, &mode);
}

int job_new_entry(struct fs *fs, struct place *p, struct fuse_entry_param *e)
{
    struct new_node *nn = calloc(1, sizeof *nn);
    int r = nn ? 0 : -ENOMEM;
    if (r < 0)
        return r;
    nn->n = (struct node){.ops = &job_new_ops, .kind = NODE_JOB_FILE, .nlookup = 1};
    nn->place = p;
    place_ref(p);
    *e = (struct fuse_entry_param){0};
    new_stat(p, &e->attr);
    pthread_mutex_lock(&fs->nodes.lock);
    r = nodes_add(&fs->nodes, &nn->n, NULL, false);
    e->ino = nn->n.id;
    pthread_mutex_unlock(&fs->nodes.lock);
    if (r < 0) {
        place_unref(p);
        free(nn);
    }
    return r;
}

static void new_destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    place_unref(new_place(n));
    free(container_of(n, struct new_node, n));
}

static void new_getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    new_stat(new_place(n), &st);
    fuse_reply_attr(req, &st, 0);
}

static void new_open(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct err e = {0};
    struct job *j;
    char *text = NULL;
    if ((fi->flags & O_ACCMODE) != O_RDONLY) {
        fuse_reply_err(req, EACCES);
        return;
    }
    int r = jobs_make(fs->jobs, new_place(n), NULL, &j, &e);
    if (r < 0) {
        job_say(new_place(n), &e);
        fuse_reply_err(req, -r);
        return;
    }
    int size = asprintf(&text, "%s\n", job_name(j));
    job_unref(j);
    job_open_own_text(fs, req, size < 0 ? NULL : text, (size_t)size, fi);
}

const struct node_ops job_new_ops = {
    .getattr = new_getattr,
    .open = new_open,
    .destroy = new_destroy,
};

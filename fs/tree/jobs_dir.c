// SPDX-License-Identifier: Apache-2.0
/* The directories: `jobs` of a session, and one for each job. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/hostdir.h"
#include "fs/tree/control.h"
#include "fs/tree/jobs.h"

#define NEW_NAME "new"

/* Who stands in `jobs` needs its mode at each step, and that does not change. A job that appears or goes by
 * itself shows in its times within this. */
#define JOBS_TIMEOUT_S 1.0
/* How long a job's name is believed, which does not go by itself before. */
#define JOB_NAME_TIMEOUT_S 1.0

struct jobs_dir {
    struct node   n;
    struct place *place; /* referenced */
};

static struct place *place_of(struct node *n)
{
    return container_of(n, struct jobs_dir, n)->place;
}

int job_say(struct place *p, const struct err *e)
{
    if (p && e->text[0])
        session_set_error(p, e);
    return e->code;
}

static void dir_stat(struct place *p, uint64_t ino, int64_t changed_ms, struct stat *st)
{
    place_stat(p, st);
    st->st_ino = ino;
    st->st_mode = S_IFDIR | 0755; /* who may come here is settled above */
    st->st_mtim = (struct timespec){.tv_sec = changed_ms / 1000, .tv_nsec = changed_ms % 1000 * 1000000};
    st->st_atim = st->st_ctim = st->st_mtim;
}

/* Finds or hashes a directory node; `made` is used up. Returns its id, or -errno as *r. */
static uint64_t find_or_add(struct fs *fs, struct node *made, int *r)
{
    struct nodes *ns = &fs->nodes;
    uint64_t id = 0;
    pthread_mutex_lock(&ns->lock);
    struct node *n = nodes_find(ns, made->kind, made->owner, made->second, NULL, NULL);
    bool found = n;
    if (!n) {
        *r = nodes_add(ns, made, NULL, true);
        n = *r == 0 ? made : NULL;
    }
    if (n) {
        n->nlookup++;
        id = n->id;
    }
    pthread_mutex_unlock(&ns->lock);
    if (found || *r < 0)
        made->ops->destroy(fs, made);
    return id;
}

/* ── jobs ────────────────────────────────────────────────────────────────────────────────── */

uint64_t jobs_dir_ino(struct place *session)
{
    return (control_ino(session) ^ 0x6a6f6273) * 0x100000001b3u | 1ull << 63;
}

static void jobs_stat(struct fs *fs, struct place *p, struct stat *st)
{
    int64_t changed_ms = jobs_changed_ms(fs->jobs, p);
    dir_stat(p, jobs_dir_ino(p), changed_ms ? changed_ms : place_mtime_ms(p), st);
}

int jobs_dir_entry(struct fs *fs, struct place *p, const void *side, struct fuse_entry_param *e)
{
    struct jobs_dir *d = calloc(1, sizeof *d);
    int r = 0;
    if (!d)
        return -ENOMEM;
    d->n = (struct node){.ops = &jobs_dir_ops, .kind = NODE_JOBS, .owner = p, .second = side};
    d->place = p;
    place_ref(p);
    *e = (struct fuse_entry_param){.entry_timeout = PLACE_TIMEOUT_S, .attr_timeout = JOBS_TIMEOUT_S};
    jobs_stat(fs, p, &e->attr);
    e->ino = find_or_add(fs, &d->n, &r);
    return r;
}

static void jobs_destroy_node(struct fs *fs, struct node *n)
{
    (void)fs;
    place_unref(place_of(n));
    free(container_of(n, struct jobs_dir, n));
}

/* Takes over the reference to the job. */
static int job_dir_entry(struct fs *fs, struct job *j, struct node *jobs, struct fuse_entry_param *e)
{
    struct job_dir *d = calloc(1, sizeof *d);
    int r = 0;
    if (!d) {
        job_unref(j);
        return -ENOMEM;
    }
    d->n = (struct node){.ops = &job_dir_ops, .kind = NODE_JOB, .owner = j, .second = jobs->second};
    d->job = j;
    d->side = jobs->second;
    d->place = place_of(jobs);
    place_ref(d->place);
    *e = (struct fuse_entry_param){.attr_timeout = PLACE_TIMEOUT_S};
    if (job_lasts(j, (int64_t)(JOB_NAME_TIMEOUT_S * 1000)))
        e->entry_timeout = JOB_NAME_TIMEOUT_S;
    dir_stat(d->place, job_number(j) | 1ull << 63, job_made_ms(j), &e->attr);
    e->ino = find_or_add(fs, &d->n, &r);
    return r;
}

static void jobs_lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    struct job *j;
    int r;
    if (!strcmp(name, NEW_NAME)) {
        r = job_new_entry(fs, place_of(n), &e);
    } else {
        r = jobs_find(fs->jobs, place_of(n), name, &j);
        if (r == 0)
            r = job_dir_entry(fs, j, n, &e);
    }
    reply_entry(fs, req, r, &e);
}

static void jobs_getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fi;
    jobs_stat(fs, place_of(n), &st);
    fuse_reply_attr(req, &st, JOBS_TIMEOUT_S);
}

static void jobs_mkdir(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode)
{
    struct fuse_entry_param e;
    struct err why = {0};
    struct job *j;
    (void)mode;
    int r = !strcmp(name, NEW_NAME) ? -EEXIST : jobs_make(fs->jobs, place_of(n), name, &j, &why);
    if (r == 0)
        r = job_dir_entry(fs, j, n, &e);
    else if (r != -EEXIST)
        job_say(place_of(n), &why);
    reply_entry(fs, req, r, &e);
}

/* The session has a `jobs` in the other tree too, whose names the kernel knows apart; where it knows this one
 * it has the job's directory. */
static void forget_in_other(struct fs *fs, struct node *n, const struct job *j, const char *name)
{
    const void *side = control_other_side(n->second);
    struct notices ns = {0};
    pthread_mutex_lock(&fs->nodes.lock);
    struct node *other = nodes_find(&fs->nodes, NODE_JOBS, n->owner, side, NULL, NULL);
    bool known = other && nodes_find(&fs->nodes, NODE_JOB, j, side, NULL, NULL);
    if (known)
        notices_entry(&ns, other->id, name);
    pthread_mutex_unlock(&fs->nodes.lock);
    if (known)
        coherence_deliver_bounded(fs, &ns, false);
}

static void jobs_rmdir(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct err why = {0};
    struct job *j = NULL;
    int r = !strcmp(name, NEW_NAME) ? -ENOTDIR : jobs_find(fs->jobs, place_of(n), name, &j);
    if (r == 0)
        r = jobs_remove(fs->jobs, place_of(n), name, &why);
    if (r == -EBUSY)
        job_say(place_of(n), &why);
    if (r == 0)
        forget_in_other(fs, n, j, name);
    if (j)
        job_unref(j);
    fuse_reply_err(req, -r);
}

static void list_job(const char *name, uint64_t number, void *arg)
{
    name_list_add(arg, name, number | 1ull << 63, S_IFDIR);
}

static void jobs_opendir(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct name_list *l = name_list_create();
    if (l)
        jobs_each(fs->jobs, place_of(n), list_job, l);
    name_list_open(fs, req, l, fi);
}

const struct node_ops jobs_dir_ops = {
    .lookup = jobs_lookup,
    .getattr = jobs_getattr,
    .mkdir = jobs_mkdir,
    .rmdir = jobs_rmdir,
    .opendir = jobs_opendir,
    .readdir = name_list_readdir,
    .destroy = jobs_destroy_node,
};

/* ── one job ─────────────────────────────────────────────────────────────────────────────── */

static struct job_dir *of(struct node *n)
{
    return container_of(n, struct job_dir, n);
}

static void job_destroy_node(struct fs *fs, struct node *n)
{
    (void)fs;
    job_unref(of(n)->job);
    place_unref(of(n)->place);
    free(of(n));
}

static void job_lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    const struct job_entry *f = job_entry_find(name);
    struct fuse_entry_param e;
    struct job_file *other;
    int r;
    if (f && job_entry_hidden(of(n)->job, f)) {
        r = -ENOENT;
    } else if (f) {
        r = job_file_entry(fs, of(n), f, &e);
    } else {
        r = job_file_find(of(n)->job, name, &other);
        if (r == 0)
            r = job_other_entry(fs, of(n), other, &e);
    }
    reply_entry(fs, req, r, &e);
}

static void job_getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    dir_stat(of(n)->place, job_number(of(n)->job) | 1ull << 63, job_made_ms(of(n)->job), &st);
    fuse_reply_attr(req, &st, PLACE_TIMEOUT_S);
}

/* Mode and times are accepted and mean nothing. */
static void job_setattr(struct fs *fs, fuse_req_t req, struct node *n, struct stat *attr, int to_set,
                        struct fuse_file_info *fi)
{
    (void)attr;
    if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        fuse_reply_err(req, EPERM);
    else
        job_getattr(fs, req, n, fi);
}

static void list_other(const char *name, uint64_t number, void *arg)
{
    name_list_add(arg, name, number | 3ull << 62, S_IFREG);
}

static void job_opendir(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct name_list *l = name_list_create();
    if (l) {
        job_entries_list(l, of(n)->job);
        job_files_each(of(n)->job, list_other, l);
    }
    name_list_open(fs, req, l, fi);
}

static int make_other(struct fs *fs, struct job_dir *d, const char *name, mode_t mode, struct job_file **f)
{
    (void)fs;
    if (job_entry_find(name))
        return -EEXIST;
    return job_file_make(d->job, name, mode, f);
}

/* A text whose name had been removed is there again. */
static void create_text(struct fs *fs, fuse_req_t req, struct job_dir *d, const struct job_entry *f,
                        struct fuse_file_info *fi)
{
    struct fuse_entry_param e;
    job_text_hide(d->job, (enum job_text)f->which, false);
    int r = job_file_entry(fs, d, f, &e);
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        job_open_text(fs, req, job_node_of(fs, e.ino), &e, fi);
}

static void job_create(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode,
                       struct fuse_file_info *fi)
{
    const struct job_entry *fixed = job_entry_find(name);
    struct fuse_entry_param e;
    struct job_file *f;
    if (fixed && job_entry_hidden(of(n)->job, fixed)) {
        create_text(fs, req, of(n), fixed, fi);
        return;
    }
    int r = make_other(fs, of(n), name, mode, &f);
    if (r == 0) {
        job_file_ref(f); /* one for the node, one for the open file */
        r = job_other_entry(fs, of(n), f, &e);
        if (r == 0) {
            job_other_open(fs, req, f, &e, fi);
            return;
        }
        job_file_unref(f);
    }
    fuse_reply_err(req, -r);
}

static void job_mknod(struct fs *fs, fuse_req_t req, struct node *n, const char *name, mode_t mode, dev_t rdev)
{
    struct fuse_entry_param e;
    struct job_file *f;
    (void)rdev;
    int r = S_ISREG(mode) ? make_other(fs, of(n), name, mode, &f) : -EPERM;
    if (r == 0)
        r = job_other_entry(fs, of(n), f, &e);
    reply_entry(fs, req, r, &e);
}

/* Removing a fixed file succeeds, so that `rm -r` gets through; only texts are gone then. */
static void job_unlink(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    const struct job_entry *f = job_entry_find(name);
    int r = f ? 0 : job_file_remove(of(n)->job, name);
    (void)fs;
    if (f && f->kind == JOB_KIND_TEXT)
        job_text_hide(of(n)->job, (enum job_text)f->which, true);
    fuse_reply_err(req, -r);
}

/* Onto a text: it takes the bytes, and a command starts. */
static int rename_onto(struct job_dir *d, const char *name, const struct job_entry *to, struct err *e)
{
    if (to->kind != JOB_KIND_TEXT)
        return -EPERM;
    enum job_text which = (enum job_text)to->which;
    int r = job_file_to_text(d->job, name, which, e);
    if (r == 0)
        job_text_hide(d->job, which, false);
    if (r < 0 || which > JOB_ARGV)
        return r;
    return job_start(d->job, which, false, e);
}

/* A text becomes a file, and its name is free: `cp --backup` makes a new one that must not be there. */
static int rename_away(struct job_dir *d, const struct job_entry *from, const char *to, bool keep)
{
    if (from->kind != JOB_KIND_TEXT)
        return -EPERM;
    int r = job_file_from_text(d->job, (enum job_text)from->which, to, keep);
    if (r == 0)
        job_text_hide(d->job, (enum job_text)from->which, true);
    return r;
}

static int job_rename_in(struct job_dir *d, const char *name, const char *to, unsigned flags, struct err *e)
{
    const struct job_entry *from_fixed = job_entry_find(name), *to_fixed = job_entry_find(to);
    if (flags & ~(unsigned)RENAME_NOREPLACE)
        return -EINVAL;
    if (from_fixed && to_fixed)
        return from_fixed == to_fixed ? 0 : -EPERM;
    if (to_fixed)
        return flags & RENAME_NOREPLACE && !job_entry_hidden(d->job, to_fixed) ? -EEXIST : rename_onto(d, name, to_fixed, e);
    if (from_fixed)
        return rename_away(d, from_fixed, to, flags & RENAME_NOREPLACE);
    return job_file_rename(d->job, name, to, flags & RENAME_NOREPLACE);
}

static void job_rename(struct fs *fs, fuse_req_t req, struct node *n, const char *name, struct node *to,
                       const char *new_name, unsigned flags)
{
    struct err e = {0};
    (void)fs;
    int r = to->kind != NODE_JOB || of(to)->job != of(n)->job ? -EXDEV
                                                              : job_rename_in(of(n), name, new_name, flags, &e);
    if (r < 0)
        job_say(of(n)->place, &e);
    fuse_reply_err(req, -r);
}

const struct node_ops job_dir_ops = {
    .lookup = job_lookup,
    .getattr = job_getattr,
    .setattr = job_setattr,
    .mknod = job_mknod,
    .unlink = job_unlink,
    .rename = job_rename,
    .create = job_create,
    .opendir = job_opendir,
    .readdir = name_list_readdir,
    .destroy = job_destroy_node,
};

// SPDX-License-Identifier: Apache-2.0
/* Nodes of a job's fixed files. As with other control files a lookup gives the same node as long as a
 * read would give the same bytes, else a new one with the same number. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/jobs.h"

#define FINAL_TIMEOUT_S 3600.0
#define TEXT_TIMEOUT_S  0.1

static const struct job_entry entries[] = {
    {"cmd", 0644, JOB_KIND_TEXT, JOB_CMD},
    {"argv", 0644, JOB_KIND_TEXT, JOB_ARGV},
    {"cwd", 0644, JOB_KIND_TEXT, JOB_CWD},
    {"env", 0644, JOB_KIND_TEXT, JOB_ENV},
    {"timeout", 0644, JOB_KIND_TEXT, JOB_TIMEOUT},
    {"tty", 0644, JOB_KIND_TEXT, JOB_TTY},
    {"user", 0644, JOB_KIND_TEXT, JOB_USER},
    {"stdin", 0200, JOB_KIND_STDIN, 0},
    {"stdout", 0444, JOB_KIND_STREAM, JOB_STDOUT},
    {"stderr", 0444, JOB_KIND_STREAM, JOB_STDERR},
    {"log", 0444, JOB_KIND_LOG, 0},
    {"exit", 0444, JOB_KIND_EXIT, 0},
    {"status", 0444, JOB_KIND_STATUS, 0},
    {"ctl", 0200, JOB_KIND_CTL, 0},
};

static struct job_node *of(struct node *n)
{
    return container_of(n, struct job_node, n);
}

struct job_node *job_node_of(struct fs *fs, uint64_t id)
{
    return of(nodes_get(&fs->nodes, id));
}

const struct job_entry *job_entry_find(const char *name)
{
    for (size_t i = 0; i < array_size(entries); i++)
        if (!strcmp(entries[i].name, name))
            return &entries[i];
    return NULL;
}

bool job_entry_hidden(struct job *j, const struct job_entry *f)
{
    return f->kind == JOB_KIND_TEXT && job_text_hidden(j, (enum job_text)f->which);
}

static uint64_t file_ino(uint64_t dir_number, const struct job_entry *f)
{
    return ((dir_number + 1 + (uint64_t)(f - entries)) * 0x9e3779b97f4a7c15u) | 1ull << 63;
}

void job_entries_list(struct name_list *l, struct job *j)
{
    for (size_t i = 0; i < array_size(entries); i++)
        if (!job_entry_hidden(j, &entries[i]))
            name_list_add(l, entries[i].name, file_ino(job_number(j), &entries[i]), S_IFREG);
}

/* ── what stat tells ─────────────────────────────────────────────────────────────────────── */

static void fill_stat(const struct job_node *jn, struct stat *st)
{
    uint64_t size = jn->size;
    int64_t ms = jn->changed_ms;
    if (jn->file->kind == JOB_KIND_TEXT) {
        size_t now;
        job_text_stat(jn->job, (enum job_text)jn->file->which, &now, &ms); /* as its writer left it */
        size = now;
    } else if (jn->file->kind == JOB_KIND_STREAM && !jn->final) {
        job_stream_size(jn->job, (enum job_stream)jn->file->which, &size);
    }
    *st = (struct stat){
        .st_ino = file_ino(job_number(jn->job), jn->file),
        .st_mode = S_IFREG | jn->file->mode,
        .st_nlink = 1,
        .st_uid = jn->uid,
        .st_gid = jn->gid,
        .st_size = (off_t)size,
        .st_blksize = 4096,
        .st_blocks = (blkcnt_t)((size + 511) / 512),
        .st_mtim = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000},
    };
    st->st_atim = st->st_ctim = st->st_mtim;
}

/* The name is looked up each time, so this is for who has the file open, and for the open that follows a
 * lookup. What a lookup made for itself stays as it is; what a stream has printed shows when it has ended;
 * a text is changed by its writer, of whom the kernel knows, or by one that came by another name. */
static double timeout_of(const struct job_node *jn)
{
    switch (jn->file->kind) {
    case JOB_KIND_TEXT:
        return TEXT_TIMEOUT_S;
    case JOB_KIND_STREAM:
        return jn->final ? FINAL_TIMEOUT_S : 0;
    default:
        return FINAL_TIMEOUT_S;
    }
}

/* ── making ──────────────────────────────────────────────────────────────────────────────── */

static void free_node(struct job_node *jn)
{
    job_unref(jn->job);
    place_unref(jn->place);
    free(jn->text);
    free(jn);
}

/* False: out of memory. */
static bool take_text(struct job_node *jn, char *(*get)(struct job *j, size_t *size, int64_t *changed_ms))
{
    size_t size = 0;
    jn->text = get(jn->job, &size, &jn->changed_ms);
    jn->size = size;
    return jn->text;
}

static bool fill(struct job_node *jn)
{
    size_t size = 0;
    switch (jn->file->kind) {
    case JOB_KIND_TEXT:
        jn->text = job_text(jn->job, (enum job_text)jn->file->which, &size, &jn->changed_ms);
        jn->size = size;
        return jn->text;
    case JOB_KIND_STATUS:
        return take_text(jn, job_status_text);
    case JOB_KIND_EXIT:
        jn->final = take_text(jn, job_exit_text);
        return true;
    case JOB_KIND_STREAM:
        jn->final = job_stream_size(jn->job, (enum job_stream)jn->file->which, &jn->size);
        return true;
    case JOB_KIND_LOG:
        job_log_span(jn->job, &jn->log_start, &jn->size);
        jn->size -= jn->log_start;
        return true;
    default:
        return true;
    }
}

static struct job_node *make(struct job_dir *d, const struct job_entry *f)
{
    struct job_node *jn = calloc(1, sizeof *jn);
    mode_t mode;
    if (!jn)
        return NULL;
    jn->n = (struct node){.ops = &job_node_ops, .kind = NODE_JOB_FILE, .owner = d->job, .second = d->side};
    jn->file = f;
    jn->job = d->job;
    job_ref(jn->job);
    jn->place = d->place;
    place_ref(jn->place);
    jn->changed_ms = wall_ms();
    place_access(jn->place, &jn->uid, &jn->gid, &mode);
    if (fill(jn))
        return jn;
    free_node(jn);
    return NULL;
}

static bool same(const struct job_node *a, const struct job_node *b)
{
    if (a->final != b->final || a->size != b->size || a->log_start != b->log_start || !a->text != !b->text)
        return false;
    if (a->file->kind == JOB_KIND_TEXT && a->changed_ms != b->changed_ms)
        return false;
    return !a->text || !memcmp(a->text, b->text, a->size);
}

/* Who writes to these may wait, and must not keep the next one from it: a node for each. */
static bool is_shared(const struct job_entry *f)
{
    return f->kind != JOB_KIND_STDIN && f->kind != JOB_KIND_CTL;
}

static bool has_name(const struct node *n, const char *name)
{
    return !strcmp(container_of(n, const struct job_node, n)->file->name, name);
}

/* Counts a reference to the node to use: an old one that tells the same, else *jn. */
static int choose(struct fs *fs, struct job_node **jn)
{
    struct nodes *ns = &fs->nodes;
    struct node *n = &(*jn)->n, *old = NULL;
    const char *name = (*jn)->file->name;
    scoped_lock(&ns->lock);
    if (is_shared((*jn)->file))
        old = nodes_find(ns, NODE_JOB_FILE, n->owner, n->second, name, has_name);
    if (old && same(of(old), *jn)) {
        old->nlookup++;
        *jn = of(old);
        return 0;
    }
    if (old)
        nodes_unhash(ns, old);
    int r = nodes_add(ns, n, name, is_shared((*jn)->file));
    if (r == 0)
        n->nlookup = 1;
    return r;
}

int job_file_entry(struct fs *fs, struct job_dir *d, const struct job_entry *f, struct fuse_entry_param *e)
{
    struct job_node *made = make(d, f), *jn = made;
    if (!made)
        return -ENOMEM;
    int r = choose(fs, &jn);
    if (r == 0) {
        *e = (struct fuse_entry_param){.ino = jn->n.id, .attr_timeout = timeout_of(jn)};
        fill_stat(jn, &e->attr);
    }
    if (r < 0 || jn != made)
        free_node(made);
    return r;
}

/* ── operations ──────────────────────────────────────────────────────────────────────────── */

static void destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    free_node(of(n));
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    fill_stat(of(n), &st);
    fuse_reply_attr(req, &st, timeout_of(of(n)));
}

/* Mode and times mean nothing; a size is one, and starts nothing. */
static void setattr(struct fs *fs, fuse_req_t req, struct node *n, struct stat *attr, int to_set,
                    struct fuse_file_info *fi)
{
    struct job_node *jn = of(n);
    int r = 0;
    if ((to_set & FUSE_SET_ATTR_UID && attr->st_uid != jn->uid) ||
        (to_set & FUSE_SET_ATTR_GID && attr->st_gid != jn->gid))
        r = -EPERM;
    else if (to_set & FUSE_SET_ATTR_SIZE && jn->file->kind == JOB_KIND_TEXT)
        r = job_text_truncate(jn->job, (enum job_text)jn->file->which, (uint64_t)attr->st_size);
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        getattr(fs, req, n, fi);
}

/* What a file's mode says holds for root too: nothing would come of it. */
static bool refused(const struct job_entry *f, int flags)
{
    int access = flags & O_ACCMODE;
    return (access != O_RDONLY && !(f->mode & 0200)) || (access != O_WRONLY && !(f->mode & 0400));
}

static void open_node(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct job_node *jn = of(n);
    if (refused(jn->file, fi->flags)) {
        fuse_reply_err(req, EACCES);
        return;
    }
    switch (jn->file->kind) {
    case JOB_KIND_CTL:
        job_open_ctl(fs, req, jn, fi);
        break;
    case JOB_KIND_LOG:
        job_open_bytes(fs, req, jn, fi);
        break;
    case JOB_KIND_STREAM:
        if (jn->final)
            job_open_bytes(fs, req, jn, fi);
        else
            job_open_follow(fs, req, jn, fi);
        break;
    case JOB_KIND_STDIN:
        job_open_follow(fs, req, jn, fi);
        break;
    case JOB_KIND_EXIT:
        if (!jn->final) {
            job_open_follow(fs, req, jn, fi);
            break;
        }
        job_open_text(fs, req, jn, NULL, fi);
        break;
    default:
        job_open_text(fs, req, jn, NULL, fi);
    }
}

const struct node_ops job_node_ops = {
    .getattr = getattr,
    .setattr = setattr,
    .open = open_node,
    .destroy = destroy,
};

// SPDX-License-Identifier: Apache-2.0
/* A session's control directory and the manager's: which files there are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/control.h"
#include "fs/tree/jobs.h"
#include "fs/tree/root.h"

/* Session texts. */
#define SESSION_TEXT(what) \
    static char *text_##what(struct fs *fs, struct place *p, size_t *size, int64_t *changed_ms) \
    { (void)fs; return session_text_##what(p, size, changed_ms); }
SESSION_TEXT(id)
SESSION_TEXT(state)
SESSION_TEXT(status)
SESSION_TEXT(error)

static const struct control_file session_files[] = {
    {"id", 0644, .text = text_id, .verbs = &bind_verb},
    {"state", 0444, .text = text_state},
    {"status", 0444, .text = text_status},
    {"progress", 0444, .stream = &progress_source},
    {"error", 0444, .text = text_error},
    {"ctl", 0200, .verbs = &session_verbs},
    {0},
};

/* Manager texts. */
#define MANAGER_TEXT(what) \
    static char *text_manager_##what(struct fs *fs, struct place *p, size_t *size, int64_t *changed_ms) \
    { (void)p; return manager_text_##what(fs->manager, size, changed_ms); }
MANAGER_TEXT(status)
MANAGER_TEXT(workspaces)
MANAGER_TEXT(metrics)
MANAGER_TEXT(config)

static const struct control_file manager_files[] = {
    {"status", 0444, .text = text_manager_status},
    {"workspaces", 0400, .text = text_manager_workspaces},
    {"metrics", 0444, .text = text_manager_metrics},
    {"config", 0400, .text = text_manager_config},
    {"events", 0400, .stream = &events_source},
    {"ctl", 0200, .verbs = &manager_verbs},
    {0},
};

#define SESSIONS_NAME "sessions"
#define ROOT_NAME     "root"

/* ── a session's ─────────────────────────────────────────────────────────────────────────── */

struct control_dir {
    struct node   n;
    struct place *place; /* referenced */
};

static struct place *place_of(struct node *n)
{
    return container_of(n, struct control_dir, n)->place;
}

static uint64_t mix_names(uint64_t h, const struct place *p)
{
    if (p->parent)
        h = mix_names(h, p->parent);
    for (const char *s = p->name; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return (h ^ '/') * 0x100000001b3u;
}

uint64_t control_ino(struct place *session)
{
    return mix_names(0xcbf29ce484222325u, session) | 1ull << 63;
}

static void dir_stat(struct place *p, struct stat *st)
{
    place_stat(p, st);
    st->st_ino = control_ino(p);
    st->st_mode = S_IFDIR | 0755; /* who may come here is settled above */
}

/* The key's second word tells the two trees apart: a directory node may have one place only. */
static const char in_session, in_mirror;

const void *control_other_side(const void *side) { return side == &in_session ? &in_mirror : &in_session; }

bool control_is_mirror(const void *side) { return side == &in_mirror; }

int control_entry(struct fs *fs, struct place *p, bool mirror, struct fuse_entry_param *e)
{
    struct nodes *ns = &fs->nodes;
    const void *side = mirror ? &in_mirror : &in_session;
    struct control_dir *made = calloc(1, sizeof *made);
    int r = made ? 0 : -ENOMEM;
    if (r < 0)
        return r;
    *e = (struct fuse_entry_param){.attr_timeout = PLACE_TIMEOUT_S, .entry_timeout = PLACE_TIMEOUT_S};
    dir_stat(p, &e->attr);
    pthread_mutex_lock(&ns->lock);
    struct node *n = nodes_find(ns, NODE_CONTROL, p, side, NULL, NULL);
    if (!n) {
        made->n = (struct node){.ops = &control_ops, .kind = NODE_CONTROL, .owner = p, .second = side};
        r = nodes_add(ns, &made->n, NULL, true);
        if (r == 0) {
            n = &made->n;
            made->place = p;
            place_ref(p);
            made = NULL;
        }
    }
    if (n) {
        n->nlookup++;
        e->ino = n->id;
    }
    pthread_mutex_unlock(&ns->lock);
    free(made);
    return r;
}

static void destroy(struct fs *fs, struct node *n)
{
    (void)fs;
    place_unref(place_of(n));
    free(container_of(n, struct control_dir, n));
}

static void lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    struct place *p = place_of(n);
    const struct control_file *f = control_file_find(session_files, name);
    int r = f ? control_file_entry(fs, n, f, p, control_ino(p), &e) : -ENOENT;
    if (!f && !strcmp(name, ROOT_NAME) && manager_has_root(fs->manager))
        r = root_entry(fs, p, n->second, "/", &e);
    if (!f && !strcmp(name, JOBS_NAME) && fs->jobs)
        r = jobs_dir_entry(fs, p, n->second, &e);
    reply_entry(fs, req, r, &e);
}

static void getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fs;
    (void)fi;
    dir_stat(place_of(n), &st);
    fuse_reply_attr(req, &st, PLACE_TIMEOUT_S);
}

static void opendir_control(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct name_list *l = name_list_create();
    if (l)
        control_files_list(session_files, l, control_ino(place_of(n)));
    if (l && manager_has_root(fs->manager))
        name_list_add(l, ROOT_NAME, 1, S_IFDIR);
    if (l && fs->jobs)
        name_list_add(l, JOBS_NAME, jobs_dir_ino(place_of(n)), S_IFDIR);
    name_list_open(fs, req, l, fi);
}

const struct node_ops control_ops = {
    .lookup = lookup,
    .getattr = getattr,
    .opendir = opendir_control,
    .readdir = name_list_readdir,
    .destroy = destroy,
};

/* ── the manager's ───────────────────────────────────────────────────────────────────────── */

#define MANAGER_INO (1ull << 63 | 1)

static void manager_stat(struct fs *fs, struct stat *st)
{
    place_stat(manager_root(fs->manager), st);
    st->st_ino = MANAGER_INO;
    st->st_mode = S_IFDIR | 0755;
}

int manager_entry(struct fs *fs, struct fuse_entry_param *e)
{
    struct nodes *ns = &fs->nodes;
    struct node *made = calloc(1, sizeof *made);
    int r = 0;
    if (!made)
        return -ENOMEM;
    *e = (struct fuse_entry_param){.attr_timeout = PLACE_TIMEOUT_S, .entry_timeout = PLACE_TIMEOUT_S};
    manager_stat(fs, &e->attr);
    pthread_mutex_lock(&ns->lock);
    struct node *n = nodes_find(ns, NODE_MANAGER, NULL, NULL, NULL, NULL);
    if (!n) {
        *made = (struct node){.ops = &manager_ops, .kind = NODE_MANAGER};
        r = nodes_add(ns, made, NULL, true);
        n = r == 0 ? steal_ptr(&made) : NULL;
    }
    if (n) {
        n->nlookup++;
        e->ino = n->id;
    }
    pthread_mutex_unlock(&ns->lock);
    free(made);
    return r;
}

static void destroy_manager(struct fs *fs, struct node *n)
{
    (void)fs;
    free(n);
}

static void manager_lookup(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct fuse_entry_param e;
    const struct control_file *f = control_file_find(manager_files, name);
    int r = f ? control_file_entry(fs, n, f, NULL, MANAGER_INO, &e) : -ENOENT;
    if (!f && !strcmp(name, SESSIONS_NAME)) {
        struct place *root = manager_root(fs->manager);
        place_ref(root);
        r = place_entry(fs, root, true, &e);
    }
    reply_entry(fs, req, r, &e);
}

static void manager_getattr(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct stat st;
    (void)n;
    (void)fi;
    manager_stat(fs, &st);
    fuse_reply_attr(req, &st, PLACE_TIMEOUT_S);
}

static void manager_opendir(struct fs *fs, fuse_req_t req, struct node *n, struct fuse_file_info *fi)
{
    struct name_list *l = name_list_create();
    (void)n;
    if (l) {
        control_files_list(manager_files, l, MANAGER_INO);
        name_list_add(l, SESSIONS_NAME, place_ino(manager_root(fs->manager)) ^ 1ull << 62, S_IFDIR);
    }
    name_list_open(fs, req, l, fi);
}

const struct node_ops manager_ops = {
    .lookup = manager_lookup,
    .getattr = manager_getattr,
    .opendir = manager_opendir,
    .readdir = name_list_readdir,
    .destroy = destroy_manager,
};

// SPDX-License-Identifier: Apache-2.0
/* What the kernel has to forget when something other than a request of its own changed the tree. */
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/hostdir/hostdir.h"
#include "fs/jobs/jobs.h"
#include "fs/tree/tree.h"

/* Every name that the kernel may know in a session's directory. nodes.lock held. */
static void notice_children(struct notices *ns, struct dir_node *d)
{
    list_for_each(l, &d->hi->children)
        notices_entry(ns, d->n.id, container_of(l, struct hinode, siblings)->name);
    notices_inode(ns, d->n.id, false);
}

void tree_rebound(struct place *session, void *arg)
{
    struct fs *fs = arg;
    struct notices ns = {0};
    hinodes_lock(fs);
    struct node *n = nodes_find(&fs->nodes, NODE_SESSION, session, NULL, NULL, NULL);
    struct dir_node *d = n ? container_of(n, struct dir_node, n) : NULL;
    if (d && d->hi) {
        notice_children(&ns, d);
        list_remove(&d->alias);
        hinode_unref(fs, &d->hi->h);
        d->hi = NULL;
    }
    hinodes_unlock(fs);
    coherence_deliver_bounded(fs, &ns, false);
}

/* The node of a place in one of the two trees; 0 when the kernel does not know it. */
static uint64_t place_id(struct fs *fs, struct place *p, bool mirror)
{
    if (p->level == PLACE_ROOT && !mirror)
        return FUSE_ROOT_ID;
    struct node *n = nodes_find(&fs->nodes, mirror ? NODE_MIRROR : NODE_PLACE, p, NULL, NULL, NULL);
    return n ? n->id : 0;
}

/* The kernel keeps attributes for long, and asks anew once a directory was read: a reader would see it change
 * while he reads it. Notices of attributes wait for nobody. */
void tree_known(struct place *p, void *arg)
{
    struct fs *fs = arg;
    struct notices ns = {0};
    hinodes_lock(fs);
    for (p = p->parent; p; p = p->parent)
        for (int mirror = 0; mirror < 2; mirror++) {
            uint64_t id = place_id(fs, p, mirror);
            if (id)
                notices_inode(&ns, id, true);
        }
    hinodes_unlock(fs);
    coherence_deliver(fs, &ns);
}

static void forget_names(struct fs *fs, struct place *parent, const char *name, bool main_tree)
{
    struct notices ns = {0};
    hinodes_lock(fs);
    for (int mirror = !main_tree; mirror < 2; mirror++) {
        uint64_t id = place_id(fs, parent, mirror);
        if (!id)
            continue;
        notices_entry(&ns, id, name);
        notices_inode(&ns, id, true); /* also where the kernel does not know that name */
    }
    hinodes_unlock(fs);
    coherence_deliver_bounded(fs, &ns, false);
}

void tree_forgotten(struct place *p, void *arg)
{
    struct fs *fs = arg;
    if (fs->jobs && p->level == PLACE_SESSION)
        jobs_forget_session(fs->jobs, p);
    forget_names(fs, p->parent, p->name, true);
}

void tree_removed(struct fs *fs, struct place *p)
{
    if (fs->jobs && p->level == PLACE_SESSION)
        jobs_forget_session(fs->jobs, p);
    forget_names(fs, p->parent, p->name, false);
}

void hostdir_emptied(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    struct notices ns = {0};
    hinodes_lock(fs);
    struct hostdir *hd = *workspace_fs_data(ws);
    if (hd) {
        hd->dead = true;
        list_for_each_safe(l, &hd->root.aliases) {
            struct dir_node *d = container_of(l, struct dir_node, alias);
            notice_children(&ns, d);
            list_remove(&d->alias);
            d->hi = NULL;
            hinode_unref(fs, &hd->root.h);
        }
        hostdir_detach(fs, hd);
    }
    hinodes_unlock(fs);
    coherence_deliver_bounded(fs, &ns, false);
}

void hostdir_expire(struct workspace *ws, void *arg)
{
    struct fs *fs = arg;
    struct notices ns = {0};
    hinodes_lock(fs);
    struct hostdir *hd = *workspace_fs_data(ws);
    if (hd)
        list_for_each(l, &hd->root.aliases) {
            struct dir_node *d = container_of(l, struct dir_node, alias);
            list_for_each(c, &hd->root.children)
                notices_entry(&ns, d->n.id, container_of(c, struct hinode, siblings)->name);
        }
    hinodes_unlock(fs);
    coherence_deliver_bounded(fs, &ns, true);
}

/* Whose file is it; NULL: of no workspace. nodes.lock held. */
static const struct hostdir *hostdir_of(const struct node *n)
{
    const struct hdir *d;
    switch (n->kind) {
    case NODE_DIR:
        d = container_of(n, const struct dir_node, n)->hi;
        return d ? d->h.hd : NULL;
    case NODE_FILE:
        return ((const struct hfile *)n->owner)->h.hd;
    case NODE_LINK:
        return container_of(n, const struct link_node, n)->hi->h.hd;
    default:
        return NULL;
    }
}

/* Names of users are looked up anew, and everybody's owner and mode are asked for; those of files where they
 * have become another's. */
static void notice_node(void *object, void *arg)
{
    struct node *n = object;
    struct notices *ns = arg;
    switch (n->kind) {
    case NODE_PLACE:
    case NODE_MIRROR: {
        struct place *p = container_of(n, struct place_node, n)->place;
        if (p->level == PLACE_USER && n->kind == NODE_PLACE)
            notices_entry(ns, FUSE_ROOT_ID, p->name);
        notices_inode(ns, n->id, true);
        break;
    }
    case NODE_SESSION:
    case NODE_CONTROL:
    case NODE_MANAGER:
        notices_inode(ns, n->id, true);
        break;
    default:
        if (hostdir_of(n) && hostdir_of(n)->reshown)
            notices_inode(ns, n->id, true);
        break;
    }
}

void tree_reloaded(struct fs *fs)
{
    struct notices ns = {0};
    hinodes_lock(fs);
    hostdirs_note_tenants(fs);
    idtable_each(fs->nodes.ids, notice_node, &ns);
    hinodes_unlock(fs);
    coherence_deliver_bounded(fs, &ns, false);
}

// SPDX-License-Identifier: Apache-2.0
/* The tree of places: finding, making, forgetting and listing names. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"
#include "fs/manager/place_disk.h"

struct place_names place_names(const struct place *p)
{
    struct place_names n = { "", "", "" };

    for (; p; p = p->parent) {
        if (p->level == PLACE_USER)
            n.user = p->name;
        else if (p->level == PLACE_AGENT)
            n.agent = p->name;
        else if (p->level == PLACE_SESSION)
            n.session = p->name;
    }
    return n;
}

/* ── nodes ───────────────────────────────────────────────────────────────────────────────── */

static bool is_named(const struct table_link *l, const char *name)
{
    return strcmp(container_of(l, struct node, by_name)->pub.name, name) == 0;
}

static struct node *find_locked(struct node *parent, const char *name)
{
    struct table_link *l = table_find(&parent->children, name, is_named);

    return l ? container_of(l, struct node, by_name) : NULL;
}

static uint64_t ino_of(const struct place *p)
{
    struct place_names n = place_names(p);
    char path[3 * (NAME_MAX_BYTES + 1)];

    snprintf(path, sizeof(path), "%s/%s/%s", n.user, n.agent, n.session);
    return identity_number("place", path) | UINT64_C(1) << 63;
}

static struct node *node_new(struct manager *m, struct node *parent, const char *name)
{
    enum place_level level = parent ? parent->pub.level + 1 : PLACE_ROOT;
    size_t size = level == PLACE_SESSION ? sizeof(struct session) : sizeof(struct node);
    struct node *n = calloc(1, size + strlen(name) + 1);

    if (!n)
        return NULL;
    n->pub.level = level;
    n->pub.parent = parent ? &parent->pub : NULL;
    n->pub.name = strcpy((char *)n + size, name);
    n->pub.manager = m;
    atomic_init(&n->refs, 0);
    atomic_init(&n->changed_ms, m->start_ms);
    n->ino = ino_of(&n->pub);
    if (level == PLACE_USER)
        node_refresh_access(n);
    if (parent)
        node_ref(parent);
    return n;
}

/* A session has its workspace from the first moment on; names_lock is held. */
static bool session_init_locked(struct node *n)
{
    struct place_names names = place_names(&n->pub);
    struct session *s = session_of(&n->pub);

    list_init(&s->in_ws);
    s->bound_ms = n->pub.manager->start_ms;
    s->home = workspace_home_locked(n->pub.manager, &names);
    if (!s->home)
        return false;
    workspace_ref(s->home);
    s->ws = s->home;
    list_append(&s->ws->sessions, &s->in_ws);
    return true;
}

struct node *node_child_locked(struct node *parent, const char *name)
{
    struct node *n = find_locked(parent, name);

    if (n)
        return n;
    if (table_reserve(&parent->children) < 0)
        return NULL;
    n = node_new(parent->pub.manager, parent, name);
    if (!n)
        return NULL;
    if (n->pub.level == PLACE_SESSION && !session_init_locked(n)) {
        atomic_fetch_sub(&parent->refs, 1); /* the caller holds another one */
        free(n);
        return NULL;
    }
    table_add(&parent->children, &n->by_name, n->pub.name);
    return n;
}

void node_ref(struct node *n)
{
    atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
}

void place_ref(struct place *p)
{
    node_ref(node_of(p));
}

/* Takes a reference away unless it is the last one. */
static bool unref_not_last(struct node *n)
{
    unsigned refs = atomic_load_explicit(&n->refs, memory_order_relaxed);

    while (refs > 1)
        if (atomic_compare_exchange_weak_explicit(&n->refs, &refs, refs - 1, memory_order_release,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void detach_locked(struct node *n)
{
    if (n->detached || !n->pub.parent)
        return;
    table_remove(&node_of(n->pub.parent)->children, &n->by_name);
    n->detached = true;
}

static void node_free(struct node *n)
{
    if (n->pub.level == PLACE_SESSION) {
        struct session *s = session_of(&n->pub);
        workspace_release(s->ws);
        workspace_unref(s->ws);
        workspace_unref(s->home);
        free(s->failure);
    }
    table_finish(&n->children);
    free(n);
}

/* Drops what may be the last reference; true when the node is to be freed. */
static bool unref_last(struct node *n)
{
    scoped_lock(&n->pub.manager->names_lock);

    if (atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) > 1)
        return false;
    detach_locked(n);
    if (n->pub.level == PLACE_SESSION)
        list_remove(&session_of(&n->pub)->in_ws);
    return true;
}

void place_unref(struct place *p)
{
    while (p && !unref_not_last(node_of(p))) {
        struct place *parent = p->parent;
        if (!unref_last(node_of(p)))
            return;
        node_free(node_of(p));
        p = parent;
    }
}

bool node_attached_locked(const struct node *n)
{
    for (const struct place *p = &n->pub; p; p = p->parent)
        if (((const struct node *)p)->detached)
            return false;
    return true;
}

static void store_place(struct node *n)
{
    struct registry *r = n->pub.manager->registry;
    struct registry_op *op = r ? place_op(&n->pub, REGISTRY_PLACE) : NULL;

    if (op)
        registry_add(r, op);
}

void node_know_locked(struct node *n, bool store)
{
    for (; n->pub.level != PLACE_ROOT && !atomic_load(&n->known); n = node_of(n->pub.parent)) {
        struct node *parent = node_of(n->pub.parent);
        atomic_store(&n->known, true);
        node_ref(n);
        parent->n_known++;
        atomic_store(&parent->changed_ms, wall_ms());
        if (n->pub.level == PLACE_SESSION) {
            session_of(&n->pub)->home->n_deriving++;
            atomic_fetch_add(&n->pub.manager->known_sessions, 1);
        }
        if (store)
            store_place(n);
    }
}

void node_tell_known(struct node *n)
{
    struct manager *m = n->pub.manager;

    if (m->hooks.known)
        m->hooks.known(&n->pub, m->hooks_arg);
}

/* ── finding and making ──────────────────────────────────────────────────────────────────── */

/* Whether the rule alone lets a valid name exist. */
static bool exists_by_rule(const struct manager *m, const char *name)
{
    switch (m->config->names) {
    case NAMES_ANY:
        return true;
    case NAMES_MADE:
        return false;
    case NAMES_PLAIN:
    default:
        return name_plain(name);
    }
}

/* What no rule lets exist: not a name, a user who is not listed, an agent whose id would be another
 * tenant's as well. */
static bool possible(const struct place *parent, const char *name, bool *listed)
{
    struct manager *m = parent->manager;

    *listed = true;
    if (parent->level == PLACE_SESSION || !name_valid(name))
        return false;
    if (parent->level == PLACE_ROOT)
        *listed = user_allowed(m, name);
    if (parent->level == PLACE_USER &&
        identity_ambiguous(m->config->isolation, m->config->id_scheme, parent->name, name))
        return false;
    return *listed;
}

/* 1 and a reference: known. 0: the parent is there, the name is not known. -ENOENT: the parent has
 * been forgotten. */
static int find_known(struct node *parent, const char *name, struct place **out)
{
    scoped_lock(&parent->pub.manager->names_lock);
    struct node *n;

    if (!node_attached_locked(parent))
        return -ENOENT;
    n = find_locked(parent, name);
    if (!n || !atomic_load(&n->known))
        return 0;
    node_ref(n);
    *out = &n->pub;
    return 1;
}

static int get_child(struct node *parent, const char *name, struct place **out)
{
    scoped_lock(&parent->pub.manager->names_lock);
    struct node *n;

    if (!node_attached_locked(parent))
        return -ENOENT;
    n = node_child_locked(parent, name);
    if (!n)
        return -ENOMEM;
    node_ref(n);
    *out = &n->pub;
    return 0;
}

int place_lookup(struct place *parent, const char *name, struct place **out)
{
    bool listed;
    int  r;

    if (!possible(parent, name, &listed))
        return -ENOENT;
    r = find_known(node_of(parent), name, out);
    if (r != 0)
        return r < 0 ? r : 0;
    if (!exists_by_rule(parent->manager, name) && !place_on_disk(parent, name))
        return -ENOENT;
    return get_child(node_of(parent), name, out);
}

static int make_locked(struct node *parent, const char *name, struct place **out)
{
    struct node *n;

    if (!node_attached_locked(parent))
        return -ENOENT;
    n = node_child_locked(parent, name);
    if (!n)
        return -ENOMEM;
    if (atomic_load(&n->known))
        return -EEXIST;
    node_know_locked(n, true);
    node_ref(n);
    *out = &n->pub;
    return 0;
}

int place_make(struct place *parent, const char *name, struct place **out, struct err *e)
{
    struct manager *m = parent->manager;
    bool listed;
    int  r;

    if (!possible(parent, name, &listed)) {
        if (!listed)
            return err_set(e, -EPERM, "only configured users exist here (users = listed)");
        return err_set(e, -EINVAL, "this is not a name that a user, agent or session can have");
    }
    if (exists_by_rule(m, name) || place_on_disk(parent, name))
        return err_set(e, -EEXIST, "%s exists already", name);
    pthread_mutex_lock(&m->names_lock);
    r = make_locked(node_of(parent), name, out);
    pthread_mutex_unlock(&m->names_lock);
    if (r < 0)
        return err_sys(e, r, "%s cannot be made", name);
    node_tell_known(node_of(*out));
    return 0;
}

/* ── forgetting ──────────────────────────────────────────────────────────────────────────── */

/* A forgotten session has its derived id again, also for whoever still holds it. Returns what it was
 * bound to, whose reference the caller drops. */
static struct workspace *unbind_locked(struct node *n)
{
    struct session *s = session_of(&n->pub);

    if (n->pub.level != PLACE_SESSION || !s->bound)
        return NULL;
    workspace_ref(s->home);
    return session_switch_locked(s, s->home, false);
}

/* Takes a name out of the tree; *dropped says that it was known, so that the reference of being
 * known is the caller's to drop. */
static int forget_locked(struct node *n, bool *dropped, struct err *e)
{
    struct registry *r = n->pub.manager->registry;

    if (n->configured)
        return err_set(e, -EBUSY, "%s is in the configuration", n->pub.name);
    if (n->pub.level == PLACE_SESSION && session_of(&n->pub)->running_jobs)
        return err_set(e, -EBUSY, "jobs of %s run (%u)", n->pub.name, session_of(&n->pub)->running_jobs);
    if (n->n_known)
        return err_set(e, -ENOTEMPTY, "%s has known names in it", n->pub.name);
    *dropped = atomic_load(&n->known);
    if (*dropped) {
        struct registry_op *op = r ? place_op(&n->pub, REGISTRY_FORGET) : NULL;
        if (r && !op)
            return err_set(e, -ENOMEM, "out of memory");
        atomic_store(&n->known, false);
        node_of(n->pub.parent)->n_known--;
        if (n->pub.level == PLACE_SESSION) {
            session_of(&n->pub)->home->n_deriving--;
            atomic_fetch_sub(&n->pub.manager->known_sessions, 1);
        }
        if (op)
            registry_add(r, op);
    }
    atomic_store(&node_of(n->pub.parent)->changed_ms, wall_ms());
    detach_locked(n);
    return 0;
}

static int forget_child(struct node *parent, const char *name, struct place **out, bool *dropped,
                        struct workspace **bound, struct err *e)
{
    scoped_lock(&parent->pub.manager->names_lock);
    struct node *n = find_locked(parent, name);
    int r;

    *out = NULL;
    if (!n)
        return 0;
    r = forget_locked(n, dropped, e);
    if (r < 0)
        return r;
    *bound = unbind_locked(n);
    node_ref(n);
    *out = &n->pub;
    return 0;
}

int place_forget(struct place *parent, const char *name, struct err *e)
{
    struct place *p;
    struct workspace *bound = NULL;
    bool dropped = false;
    int  r = place_lookup(parent, name, &p);

    if (r < 0)
        return err_set(e, r, "%s does not exist", name);
    place_unref(p);
    r = forget_child(node_of(parent), name, &p, &dropped, &bound, e);
    if (r < 0)
        return r;
    if (dropped)
        place_forgotten(p);
    place_remove_empty(parent, name);
    if (bound) {
        workspace_release(bound);
        workspace_unref(bound);
    }
    if (p && dropped)
        place_unref(p);
    place_unref(p);
    return 0;
}

/* ── listing and attributes ──────────────────────────────────────────────────────────────── */

/* References to all known children, NULL-terminated; NULL when out of memory. */
static struct node **known_children(struct node *parent)
{
    scoped_lock(&parent->pub.manager->names_lock);
    struct node **all = calloc(parent->n_known + 1, sizeof(struct node *));
    size_t n = 0;

    if (!all)
        return NULL;
    for (struct table_link *l = NULL; (l = table_next(&parent->children, l));) {
        struct node *child = container_of(l, struct node, by_name);
        if (!atomic_load(&child->known))
            continue;
        node_ref(child);
        all[n++] = child;
    }
    return all;
}

void place_each(struct place *p, bool (*fn)(const char *name, uint64_t ino, void *arg), void *arg)
{
    cleanup_free struct node **all = known_children(node_of(p));
    bool go_on = true;

    for (size_t i = 0; all && all[i]; i++) {
        struct place *child = &all[i]->pub;
        if (go_on && (p->level != PLACE_ROOT || user_allowed(p->manager, child->name)))
            go_on = fn(child->name, place_ino(child), arg);
        place_unref(child);
    }
}

uint64_t place_ino(struct place *p)
{
    uint64_t ino;

    if (p->level != PLACE_SESSION)
        return node_of(p)->ino;
    struct workspace *ws = session_workspace(p);
    ino = identity_number("workspace", workspace_id(ws)) | UINT64_C(1) << 63;
    workspace_unref(ws);
    return ino;
}

int64_t place_mtime_ms(struct place *p)
{
    return atomic_load(&node_of(p)->changed_ms);
}

struct place *manager_root(struct manager *m)
{
    return &m->root->pub;
}

/* ── beginning and end ───────────────────────────────────────────────────────────────────── */

int places_init(struct manager *m)
{
    m->root = node_new(m, NULL, "");
    if (!m->root)
        return -ENOMEM;
    node_ref(m->root);
    return 0;
}

/* Drops what keeps the known children, depth first. */
static void drop_known(struct node *n)
{
    cleanup_free struct node **all = known_children(n);

    for (size_t i = 0; all && all[i]; i++) {
        drop_known(all[i]);
        atomic_store(&all[i]->known, false);
        place_unref(&all[i]->pub);
        place_unref(&all[i]->pub);
    }
}

void places_finish(struct manager *m)
{
    if (!m->root)
        return;
    drop_known(m->root);
    place_unref(&m->root->pub);
    m->root = NULL;
}

struct node *place_restore(struct manager *m, const struct place_names *names)
{
    const char *path[] = { names->user, names->agent, names->session };
    struct node *n = m->root;
    scoped_lock(&m->names_lock);

    for (size_t i = 0; i < array_size(path) && *path[i]; i++) {
        n = node_child_locked(n, path[i]);
        if (!n)
            return NULL;
        node_know_locked(n, false);
    }
    node_ref(n);
    return n;
}

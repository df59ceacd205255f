// SPDX-License-Identifier: Apache-2.0
#include "fs/node.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/fs_internal.h"

#define FIRST_BUCKETS 1024

int nodes_init(struct nodes *ns)
{
    ns->ids = idtable_create();
    ns->n_buckets = FIRST_BUCKETS;
    ns->buckets = calloc(ns->n_buckets, sizeof(struct node *));
    if (!ns->ids || !ns->buckets)
        return -ENOMEM;
    return pthread_mutex_init(&ns->lock, NULL) ? -ENOMEM : 0;
}

void nodes_finish(struct nodes *ns)
{
    idtable_destroy(ns->ids);
    free(ns->buckets);
}

struct node *nodes_get(struct nodes *ns, uint64_t id)
{
    return id == FUSE_ROOT_ID ? ns->root : idtable_get(ns->ids, id);
}

static uint32_t key_hash(enum node_kind kind, const void *owner, const void *second, const char *name)
{
    uint64_t h = (uint64_t)kind * 0x9e3779b97f4a7c15u;
    h = (h ^ (uintptr_t)owner) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 32 ^ (uintptr_t)second) * 0xc4ceb9fe1a85ec53u;
    for (; name && *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 29);
}

struct node *nodes_find(struct nodes *ns, enum node_kind kind, const void *owner, const void *second,
                        const char *name, bool (*same)(const struct node *, const char *name))
{
    uint32_t hash = key_hash(kind, owner, second, name);
    for (struct node *n = ns->buckets[hash % ns->n_buckets]; n; n = n->hash_next)
        if (n->hash == hash && n->kind == kind && n->owner == owner && n->second == second &&
            (!same || same(n, name)))
            return n;
    return NULL;
}

static void grow(struct nodes *ns)
{
    size_t n_buckets = ns->n_buckets * 2;
    struct node **buckets = calloc(n_buckets, sizeof *buckets);
    if (!buckets)
        return; /* longer chains then */
    for (size_t i = 0; i < ns->n_buckets; i++)
        for (struct node *n = ns->buckets[i], *next; n; n = next) {
            next = n->hash_next;
            n->hash_next = buckets[n->hash % n_buckets];
            buckets[n->hash % n_buckets] = n;
        }
    free(ns->buckets);
    ns->buckets = buckets;
    ns->n_buckets = n_buckets;
}

int nodes_add(struct nodes *ns, struct node *n, const char *name, bool hashed)
{
    n->id = idtable_add(ns->ids, n);
    if (!n->id)
        return -ENOMEM;
    atomic_fetch_add(&ns->count, 1);
    if (hashed)
        nodes_hash(ns, n, name);
    return 0;
}

void nodes_hash(struct nodes *ns, struct node *n, const char *name)
{
    n->hashed = true;
    if (ns->n_hashed++ > ns->n_buckets)
        grow(ns);
    n->hash = key_hash(n->kind, n->owner, n->second, name);
    n->hash_next = ns->buckets[n->hash % ns->n_buckets];
    ns->buckets[n->hash % ns->n_buckets] = n;
}

void nodes_unhash(struct nodes *ns, struct node *n)
{
    if (!n->hashed)
        return;
    struct node **p = &ns->buckets[n->hash % ns->n_buckets];
    while (*p != n)
        p = &(*p)->hash_next;
    *p = n->hash_next;
    n->hashed = false;
    ns->n_hashed--;
}

/* Takes `count` references of the kernel away; true when the node is to be freed. */
static bool drop(struct fs *fs, struct node *n, uint64_t count)
{
    struct nodes *ns = &fs->nodes;
    scoped_lock(&ns->lock);
    n->nlookup -= count < n->nlookup ? count : n->nlookup;
    if (n->nlookup || n == ns->root)
        return false;
    nodes_unhash(ns, n);
    if (n->ops->detach)
        n->ops->detach(fs, n);
    idtable_remove(ns->ids, n->id);
    atomic_fetch_sub(&ns->count, 1);
    return true;
}

void nodes_forget(struct fs *fs, uint64_t id, uint64_t count)
{
    struct node *n = nodes_get(&fs->nodes, id);
    if (n && drop(fs, n, count))
        n->ops->destroy(fs, n);
}

void nodes_put(struct fs *fs, struct node *n)
{
    if (drop(fs, n, 1))
        n->ops->destroy(fs, n);
}

static void drain_one(void *object, void *arg)
{
    struct node *n = object;
    nodes_forget(arg, n->id, UINT64_MAX);
}

void nodes_drain(struct fs *fs)
{
    idtable_each(fs->nodes.ids, drain_one, fs);
}

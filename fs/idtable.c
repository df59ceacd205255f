// SPDX-License-Identifier: Apache-2.0
#include "fs/idtable.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "fs/base/cleanup.h"

#define CHUNK_SLOTS 1024u
#define CHUNKS_MAX  (1u << 20)

/* In use: its id and object. Free: the number of its uses and the next free slot plus one, with
 * which no id can be confused. */
struct slot {
    _Atomic(uint64_t) id;
    _Atomic(void *)   object;
};

#define IN_USE 0x40000000u /* in the upper half of every id */

static uint64_t free_id(uint32_t uses, uint32_t next_free)
{
    return (uint64_t)(uses & 0x3fffffff) << 32 | next_free;
}

struct idtable {
    pthread_mutex_t lock; /* guards the free list and growth; a leaf */
    uint32_t        first_use, n_slots, free_head, n_chunks_max;
    _Atomic(struct slot *) *chunks;
};

struct idtable *idtable_create(void)
{
    struct idtable *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->n_chunks_max = CHUNKS_MAX;
    /* untouched pages of this array cost nothing */
    t->chunks = calloc(t->n_chunks_max, sizeof *t->chunks);
    if (!t->chunks) {
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    t->first_use = (uint32_t)time(NULL) & 0x3fffffff;
    return t;
}

void idtable_destroy(struct idtable *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i * CHUNK_SLOTS < t->n_slots; i++)
        free(atomic_load(&t->chunks[i]));
    free(t->chunks);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct slot *slot_at(struct idtable *t, uint32_t n)
{
    if (n / CHUNK_SLOTS >= t->n_chunks_max)
        return NULL;
    struct slot *c = atomic_load_explicit(&t->chunks[n / CHUNK_SLOTS], memory_order_acquire);
    return c ? &c[n % CHUNK_SLOTS] : NULL;
}

/* Adds a chunk of free slots. */
static int grow(struct idtable *t)
{
    if (t->n_slots / CHUNK_SLOTS >= t->n_chunks_max)
        return -1;
    struct slot *c = calloc(CHUNK_SLOTS, sizeof *c);
    if (!c)
        return -1;
    for (uint32_t i = CHUNK_SLOTS; i-- > 0;) {
        atomic_init(&c[i].id, free_id(t->first_use, t->free_head));
        t->free_head = t->n_slots + i + 1;
    }
    atomic_store_explicit(&t->chunks[t->n_slots / CHUNK_SLOTS], c, memory_order_release);
    t->n_slots += CHUNK_SLOTS;
    return 0;
}

uint64_t idtable_add(struct idtable *t, void *object)
{
    scoped_lock(&t->lock);
    if (!t->free_head && grow(t) < 0)
        return 0;
    uint32_t n = t->free_head - 1;
    struct slot *s = slot_at(t, n);
    uint64_t was = atomic_load(&s->id);
    t->free_head = (uint32_t)was;
    uint64_t id = (uint64_t)((((uint32_t)(was >> 32) + 1) & 0x3fffffff) | IN_USE) << 32 | n;
    atomic_store(&s->object, object);
    atomic_store(&s->id, id);
    return id;
}

void *idtable_get(struct idtable *t, uint64_t id)
{
    struct slot *s = slot_at(t, (uint32_t)id);
    if (!s || !(id >> 32 & IN_USE) || atomic_load(&s->id) != id)
        return NULL;
    return atomic_load(&s->object);
}

void idtable_remove(struct idtable *t, uint64_t id)
{
    scoped_lock(&t->lock);
    struct slot *s = slot_at(t, (uint32_t)id);
    if (!s || !(id >> 32 & IN_USE) || atomic_load(&s->id) != id)
        return;
    atomic_store(&s->id, free_id((uint32_t)(id >> 32), t->free_head));
    atomic_store(&s->object, NULL);
    t->free_head = (uint32_t)id + 1;
}

void idtable_each(struct idtable *t, void (*fn)(void *object, void *arg), void *arg)
{
    for (uint32_t n = 0; n < t->n_slots; n++) {
        struct slot *s = slot_at(t, n);
        if (atomic_load(&s->id) >> 32 & IN_USE)
            fn(atomic_load(&s->object), arg);
    }
}

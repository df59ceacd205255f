// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/table.h"

#include <errno.h>
#include <stdlib.h>

#define SLOTS_FIRST 8

/* FNV-1a, finished by a multiply and shift so that the low bits depend on all others. */
static uint64_t hash_of(const char *key)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 0x100000001b3u;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static struct table_link **slot_of(const struct table *t, uint64_t hash)
{
    return &t->slots[hash & (t->n_slots - 1)];
}

static void put(struct table *t, struct table_link *l)
{
    struct table_link **slot = slot_of(t, l->hash);

    l->next = *slot;
    *slot = l;
}

int table_reserve(struct table *t)
{
    struct table bigger = { .n_slots = t->n_slots ? t->n_slots * 2 : SLOTS_FIRST, .used = t->used };

    if (t->used < t->n_slots)
        return 0;
    bigger.slots = calloc(bigger.n_slots, sizeof(struct table_link *));
    if (!bigger.slots)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_slots; i++) {
        for (struct table_link *l = t->slots[i], *next; l; l = next) {
            next = l->next;
            put(&bigger, l);
        }
    }
    free(t->slots);
    *t = bigger;
    return 0;
}

void table_add(struct table *t, struct table_link *l, const char *key)
{
    l->hash = hash_of(key);
    put(t, l);
    t->used++;
}

void table_remove(struct table *t, struct table_link *l)
{
    struct table_link **at = slot_of(t, l->hash);

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    l->next = NULL;
    t->used--;
}

struct table_link *table_find(const struct table *t, const char *key,
                              bool (*is)(const struct table_link *l, const char *key))
{
    uint64_t hash = hash_of(key);

    if (!t->n_slots)
        return NULL;
    for (struct table_link *l = *slot_of(t, hash); l; l = l->next)
        if (l->hash == hash && is(l, key))
            return l;
    return NULL;
}

struct table_link *table_next(const struct table *t, const struct table_link *l)
{
    size_t i = 0;

    if (l) {
        if (l->next)
            return l->next;
        i = (size_t)(l->hash & (t->n_slots - 1)) + 1;
    }
    for (; i < t->n_slots; i++)
        if (t->slots[i])
            return t->slots[i];
    return NULL;
}

void table_finish(struct table *t)
{
    free(t->slots);
    *t = (struct table){ 0 };
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/refused.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define KEPT      64
#define KEEP_NS   60000000000
#define NAME_SIZE 256

struct entry {
    int64_t  until_ns;
    pid_t    pid;
    uint64_t parent;
    char     name[NAME_SIZE];
};

struct refused {
    pthread_mutex_t  lock;      /* guards the entries; a leaf */
    _Atomic(int64_t) until_ns;  /* of the youngest; 0: there never was one */
    unsigned         next;
    struct entry     entries[KEPT];
};

struct refused *refused_create(void)
{
    struct refused *r = calloc(1, sizeof *r);
    if (r)
        pthread_mutex_init(&r->lock, NULL);
    return r;
}

void refused_destroy(struct refused *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void refused_add(struct refused *r, pid_t pid, uint64_t parent, const char *name)
{
    if (strlen(name) >= NAME_SIZE)
        return;
    scoped_lock(&r->lock);
    struct entry *e = &r->entries[r->next++ % KEPT];
    e->until_ns = clock_ns() + KEEP_NS;
    e->pid = pid;
    e->parent = parent;
    strcpy(e->name, name);
    atomic_store(&r->until_ns, e->until_ns);
}

bool refused_has(struct refused *r, pid_t pid, uint64_t parent, const char *name)
{
    int64_t until_ns = atomic_load(&r->until_ns), now_ns;
    if (!until_ns || until_ns < (now_ns = clock_ns()))
        return false;
    scoped_lock(&r->lock);
    for (unsigned i = 0; i < KEPT; i++) {
        const struct entry *e = &r->entries[i];
        if (e->until_ns >= now_ns && e->pid == pid && e->parent == parent && !strcmp(e->name, name))
            return true;
    }
    return false;
}

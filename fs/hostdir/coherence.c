// SPDX-License-Identifier: Apache-2.0
#include "fs/hostdir/coherence.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/loop.h"

#define DEADLINE_NS     20000000
/* A thread may sit in a notice for as long as a parked request holds the kernel's lock of that
 * directory, so there are many. */
#define POOL_THREADS    512
#define POOL_STACK      (64 * 1024)
#define BOUNDED_NS      50000000

struct coherence {
    struct fs   *fs;
    struct pool *pool;
    unsigned     max_delivering;
    atomic_uint  delivering;   /* threads of the loop that are inside a delivery */
};

/* A delivery in progress. Lives on the stack of the handler's thread. */
struct delivery {
    struct answer answer;
    struct timer  deadline;
    struct hdir  *groups[2];
};

/* Notices left to the pool. */
struct errand {
    struct task    task;
    struct fs     *fs;
    struct notices notices;
    bool           expire;
    sem_t          done;
    atomic_uint    refs;   /* the pool's, and that of somebody who waits */
};

struct coherence *coherence_create(struct fs *fs, unsigned max_delivering)
{
    struct coherence *co = calloc(1, sizeof *co);
    if (!co)
        return NULL;
    co->fs = fs;
    co->max_delivering = max_delivering;
    co->pool = pool_create(POOL_THREADS, POOL_STACK);
    if (!co->pool) {
        free(co);
        return NULL;
    }
    return co;
}

void coherence_destroy(struct coherence *co)
{
    if (!co)
        return;
    pool_destroy(co->pool);
    free(co);
}

/* ── collecting ──────────────────────────────────────────────────────────────────────────── */

static void add(struct notices *ns, uint64_t ino, const char *name, bool attributes_only)
{
    if (ns->n == ns->room) {
        size_t room = ns->room ? ns->room * 2 : 8;
        struct notice *list = realloc(ns->list, room * sizeof *list);
        if (!list)
            return;
        ns->list = list;
        ns->room = room;
    }
    char *copy = name ? strdup(name) : NULL;
    if (name && !copy)
        return;
    ns->list[ns->n++] = (struct notice){.ino = ino, .name = copy, .attributes_only = attributes_only};
}

void notices_name(struct notices *ns, struct hdir *d, const struct dir_node *via, const char *name)
{
    list_for_each(l, &d->aliases) {
        struct dir_node *a = container_of(l, struct dir_node, alias);
        if (a == via || !a->n.nlookup)
            continue;
        add(ns, a->n.id, name, false);
        add(ns, a->n.id, NULL, false);
    }
}

/* Unpacking over a tree removes and makes the same names one after the other, and nobody looks at them
 * meanwhile in most of the other sessions. */
void notices_change(struct notices *ns, struct hdir *d, struct dir_node *via, const char *name)
{
    bool again = d->told && !strcmp(d->told, name);
    list_for_each(l, &d->aliases) {
        struct dir_node *a = container_of(l, struct dir_node, alias);
        /* a session's directory is answered for in more places than say so */
        bool asked = a->asked || a->n.kind == NODE_SESSION;
        a->asked = a == via;
        if (a == via || !a->n.nlookup)
            continue;
        if (asked || !again)
            add(ns, a->n.id, name, false);
        if (asked)
            add(ns, a->n.id, NULL, false);
    }
    if (again)
        return;
    free(d->told);
    d->told = strdup(name);
}

/* What was collected is delivered after the answer: the next change does not rely on it. Lock held. */
static void count_as_asked(struct hdir *d)
{
    if (d)
        list_for_each(l, &d->aliases)
            container_of(l, struct dir_node, alias)->asked = true;
}

void notices_attributes(struct notices *ns, struct hdir *d, const struct dir_node *via)
{
    list_for_each(l, &d->aliases) {
        struct dir_node *a = container_of(l, struct dir_node, alias);
        if (a != via && a->n.nlookup)
            add(ns, a->n.id, NULL, true);
    }
}

void notices_entry(struct notices *ns, uint64_t ino, const char *name)
{
    if (name)
        add(ns, ino, name, false);
}

void notices_inode(struct notices *ns, uint64_t ino, bool attributes_only)
{
    add(ns, ino, NULL, attributes_only);
}

void notices_take_entries(struct notices *from, struct notices *to)
{
    size_t kept = 0;
    for (size_t i = 0; i < from->n; i++) {
        struct notice *n = &from->list[i];
        if (!n->name) {
            from->list[kept++] = *n;
            continue;
        }
        add(to, n->ino, n->name, false);
        free(n->name);
    }
    from->n = kept;
}

/* ── delivering ──────────────────────────────────────────────────────────────────────────── */

/* Older kernels know no expiry: there the entries go (mounts on them too, which nobody makes on
 * the first level of a workspace). */
void coherence_expire(struct fs *fs, struct notices *ns)
{
    if (!fs->expire_only) {
        coherence_deliver(fs, ns);
        return;
    }
    for (size_t i = 0; i < ns->n; i++) {
        struct notice *n = &ns->list[i];
        fuse_lowlevel_notify_expire_entry(fs->session, n->ino, n->name, strlen(n->name));
        free(n->name);
    }
    free(ns->list);
    *ns = (struct notices){0};
}

void coherence_deliver_again(struct fs *fs, struct notices *ns, struct notices *unknown)
{
    for (size_t i = 0; i < ns->n; i++) {
        struct notice *n = &ns->list[i];
        int r;
        if (n->name)
            r = fuse_lowlevel_notify_inval_entry(fs->session, n->ino, n->name, strlen(n->name));
        else
            r = fuse_lowlevel_notify_inval_inode(fs->session, n->ino, n->attributes_only ? -1 : 0, 0);
        if (unknown && !n->name && r == -ENOENT)
            add(unknown, n->ino, NULL, n->attributes_only);
        free(n->name);
    }
    free(ns->list);
    *ns = (struct notices){0};
}

void coherence_deliver(struct fs *fs, struct notices *ns)
{
    coherence_deliver_again(fs, ns, NULL);
}

/* Whether this thread may deliver before it answers. Lock held by nobody. */
static bool become_waiter(struct fs *fs, struct delivery *d)
{
    struct coherence *co = fs->coherence;
    if (atomic_fetch_add(&co->delivering, 1) >= co->max_delivering) {
        atomic_fetch_sub(&co->delivering, 1);
        return false;
    }
    hinodes_lock(fs);
    bool taken = (d->groups[0] && d->groups[0]->waiter) || (d->groups[1] && d->groups[1]->waiter);
    for (int i = 0; i < 2 && !taken; i++)
        if (d->groups[i]) {
            d->groups[i]->waiter = true;
            hinode_ref(&d->groups[i]->h);
        }
    hinodes_unlock(fs);
    if (taken)
        atomic_fetch_sub(&co->delivering, 1);
    return !taken;
}

/* Just before the answer, so that the next change of the directory may wait in its turn. */
static void answer_delivery(struct delivery *d, bool early)
{
    struct fs *fs = d->answer.fs;
    hinodes_lock(fs);
    for (int i = 0; i < 2; i++)
        if (d->groups[i]) {
            if (early)
                count_as_asked(d->groups[i]);
            d->groups[i]->waiter = false;
            hinode_unref(fs, &d->groups[i]->h);
            d->groups[i] = NULL;
        }
    hinodes_unlock(fs);
    answer_send(&d->answer);
}

static void on_deadline(struct timer *t)
{
    answer_delivery(container_of(t, struct delivery, deadline), true);
}

static void put_errand(struct errand *er)
{
    if (atomic_fetch_sub(&er->refs, 1) != 1)
        return;
    sem_destroy(&er->done);
    free(er);
}

static void run_errand(struct task *t)
{
    struct errand *er = container_of(t, struct errand, task);
    if (er->expire)
        coherence_expire(er->fs, &er->notices);
    else
        coherence_deliver(er->fs, &er->notices);
    sem_post(&er->done);
    put_errand(er);
}

/* Takes ns over. With `refs` 2 the caller has one; NULL when out of memory. */
static struct errand *send_errand(struct fs *fs, struct notices *ns, bool expire, unsigned refs)
{
    struct errand *er = calloc(1, sizeof *er);
    if (!er) {
        for (size_t i = 0; i < ns->n; i++)
            free(ns->list[i].name);
        free(ns->list);
        return NULL;
    }
    er->task.run = run_errand;
    er->fs = fs;
    er->notices = *ns;
    er->expire = expire;
    sem_init(&er->done, 0, 0);
    atomic_init(&er->refs, refs);
    pool_add(fs->coherence->pool, &er->task);
    return er;
}

bool coherence_deliver_bounded(struct fs *fs, struct notices *ns, bool expire)
{
    struct errand *er = ns->n ? send_errand(fs, ns, expire, 2) : NULL;
    if (!er)
        return true;
    int r;
    int64_t due_ns = clock_ns() + BOUNDED_NS;
    struct timespec due = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
    while ((r = sem_clockwait(&er->done, CLOCK_MONOTONIC, &due)) < 0 && errno == EINTR)
        ;
    put_errand(er);
    return r == 0;
}

void coherence_leave(struct fs *fs, struct notices *ns)
{
    if (ns->n)
        send_errand(fs, ns, false, 1);
}

/* Attribute notices take no lock of a directory and cannot tie a knot. */
static bool only_attributes(const struct notices *ns)
{
    for (size_t i = 0; i < ns->n; i++)
        if (!ns->list[i].attributes_only)
            return false;
    return true;
}

void coherence_answer(struct fs *fs, const struct answer *a, struct hdir *d1, struct hdir *d2,
                      struct notices *ns)
{
    struct delivery d = {.answer = *a, .deadline = {.fire = on_deadline},
                         .groups = {d1, d2 == d1 ? NULL : d2}};
    d.answer.sent = (atomic_flag)ATOMIC_FLAG_INIT;
    if (only_attributes(ns)) {
        coherence_deliver(fs, ns);
        answer_send(&d.answer);
    } else if (!become_waiter(fs, &d)) {
        hinodes_lock(fs);
        count_as_asked(d1);
        count_as_asked(d2);
        hinodes_unlock(fs);
        answer_send(&d.answer);
        send_errand(fs, ns, false, 1);
    } else {
        readers_expect_wait(fs);
        timer_set(fs->timers, &d.deadline, clock_ns() + DEADLINE_NS);
        coherence_deliver(fs, ns);
        if (timer_cancel(fs->timers, &d.deadline))
            answer_delivery(&d, false);
        atomic_fetch_sub(&fs->coherence->delivering, 1);
    }
}

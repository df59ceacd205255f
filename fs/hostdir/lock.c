// SPDX-License-Identifier: Apache-2.0
#include "fs/hostdir/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/coherence.h"
#include "fs/loop.h"

#define WAITERS_MAX   4096
#define WAITER_STACK  (64 * 1024)
#define NUDGE_AGAIN_NS 5000000

/* A lock owner's open description of one file. */
struct owner {
    struct list       links;   /* in lockers.owners */
    struct hfile     *hi;
    struct open_file *seen;    /* through which it was first seen */
    uint64_t          id;
    bool              is_flock;
    unsigned          uses;    /* threads that are in a call with fd */
    bool              gone;    /* close it when the last of them is done */
    int               fd;
};

struct lockers {
    pthread_mutex_t lock;      /* guards owners and waits; a leaf */
    struct list     owners;
    struct list     waits;
    struct pool    *pool;      /* a thread for each lock that waits */
    atomic_bool     ending;
};

/* A request that waits for a lock. */
struct lock_wait {
    struct list   links;       /* in lockers.waits */
    struct fs    *fs;
    fuse_req_t    req;
    struct owner *owner;
    struct flock  want;
    int           op;          /* of flock */
    uint64_t      ino;
    struct task   task;
    pthread_t     thread;
    bool          in_call;     /* thread is valid; lockers.lock */
    atomic_bool   interrupted;
    struct timer  nudge;       /* repeats the signal until the call has ended */
};

struct lockers *lockers_create(void)
{
    struct lockers *ls = calloc(1, sizeof *ls);
    if (!ls)
        return NULL;
    pthread_mutex_init(&ls->lock, NULL);
    list_init(&ls->owners);
    list_init(&ls->waits);
    ls->pool = pool_create(WAITERS_MAX, WAITER_STACK);
    if (!ls->pool) {
        free(ls);
        return NULL;
    }
    return ls;
}

/* True when somebody was still waiting. */
static bool nudge_all(struct lockers *ls)
{
    scoped_lock(&ls->lock);
    list_for_each(l, &ls->waits) {
        struct lock_wait *w = container_of(l, struct lock_wait, links);
        atomic_store(&w->interrupted, true);
        pthread_kill(w->thread, NUDGE_SIGNAL);
    }
    return !list_empty(&ls->waits);
}

void lockers_destroy(struct lockers *ls)
{
    struct timespec nap = {.tv_nsec = NUDGE_AGAIN_NS};
    if (!ls)
        return;
    atomic_store(&ls->ending, true);
    while (nudge_all(ls))
        nanosleep(&nap, NULL);
    pool_destroy(ls->pool);
    pthread_mutex_destroy(&ls->lock);
    free(ls);
}

/* ── owners ──────────────────────────────────────────────────────────────────────────────── */

static struct owner *find(struct lockers *ls, struct hfile *hi, uint64_t id, bool is_flock)
{
    list_for_each(l, &ls->owners) {
        struct owner *o = container_of(l, struct owner, links);
        if (o->hi == hi && o->id == id && o->is_flock == is_flock)
            return o;
    }
    return NULL;
}

/* A description of its own of the file behind fd, for reading and writing where that is allowed. */
static int describe(struct fs *fs, int fd)
{
    char name[12];
    snprintf(name, sizeof name, "%d", fd);
    int own = openat(fs->proc_fd_dir, name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (own < 0) {
        int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
        own = openat(fs->proc_fd_dir, name, mode | O_NONBLOCK | O_CLOEXEC);
    }
    return own < 0 ? -errno : own;
}

/* Finds or makes the owner and counts a use. */
static int use(struct fs *fs, struct open_file *of, uint64_t id, bool is_flock, struct owner **out)
{
    struct lockers *ls = fs->lockers;
    pthread_mutex_lock(&ls->lock);
    struct owner *o = find(ls, of->hi, id, is_flock);
    if (o)
        o->uses++;
    pthread_mutex_unlock(&ls->lock);
    *out = o;
    if (o)
        return 0;

    struct owner *made = calloc(1, sizeof *made);
    int fd = made ? describe(fs, of->fd) : -ENOMEM;
    if (fd < 0) {
        free(made);
        return fd;
    }
    *made = (struct owner){.hi = of->hi, .seen = of, .id = id, .is_flock = is_flock, .uses = 1, .fd = fd};
    pthread_mutex_lock(&ls->lock);
    o = find(ls, of->hi, id, is_flock);
    if (o)
        o->uses++;
    else
        list_append(&ls->owners, &made->links);
    pthread_mutex_unlock(&ls->lock);
    if (o) { /* another thread of the same owner was faster */
        close(fd);
        free(made);
    }
    *out = o ? o : made;
    return 0;
}

static void unuse(struct fs *fs, struct owner *o)
{
    struct lockers *ls = fs->lockers;
    pthread_mutex_lock(&ls->lock);
    bool last = --o->uses == 0 && o->gone;
    pthread_mutex_unlock(&ls->lock);
    if (!last)
        return;
    close(o->fd);
    free(o);
}

/* The owner's locks go: at once, or when its last call has ended. Takes it out of the list. */
static void drop(struct fs *fs, struct owner *o)
{
    struct lockers *ls = fs->lockers;
    struct flock all = {.l_type = F_UNLCK};
    pthread_mutex_lock(&ls->lock);
    list_remove(&o->links);
    o->gone = true;
    o->uses++;
    pthread_mutex_unlock(&ls->lock);
    fcntl(o->fd, F_OFD_SETLK, &all);
    unuse(fs, o);
}

static struct owner *next_to_drop(struct lockers *ls, struct open_file *of, const uint64_t *id)
{
    scoped_lock(&ls->lock);
    list_for_each(l, &ls->owners) {
        struct owner *o = container_of(l, struct owner, links);
        if (id ? o->hi == of->hi && o->id == *id && !o->is_flock : o->seen == of)
            return o;
    }
    return NULL;
}

void lock_flush(struct fs *fs, struct open_file *of, uint64_t owner)
{
    struct owner *o = next_to_drop(fs->lockers, of, &owner);
    if (o)
        drop(fs, o);
}

void lock_release(struct fs *fs, struct open_file *of)
{
    for (struct owner *o; (o = next_to_drop(fs->lockers, of, NULL));)
        drop(fs, o);
}

/* ── taking ──────────────────────────────────────────────────────────────────────────────── */

/* A granted lock is where both sides agree: what the kernel believes of the file is asked anew. */
static void agree(struct fs *fs, uint64_t ino)
{
    struct notices ns = {0};
    if (ino)
        notices_inode(&ns, ino, fs->passthrough);
    coherence_deliver(fs, &ns);
}

static uint64_t node_id(struct fs *fs, struct open_file *of)
{
    hinodes_lock(fs);
    uint64_t id = of->hi->node ? of->hi->node->id : 0;
    hinodes_unlock(fs);
    return id;
}

static int attempt(struct owner *o, const struct flock *want, int op, bool wait)
{
    if (o->is_flock)
        return flock(o->fd, wait ? op & ~LOCK_NB : op | LOCK_NB) < 0 ? -errno : 0;
    struct flock lk = *want;
    lk.l_pid = 0;
    return fcntl(o->fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lk) < 0 ? -errno : 0;
}

static void nudge(struct timer *t)
{
    struct lock_wait *w = container_of(t, struct lock_wait, nudge);
    struct lockers *ls = w->fs->lockers;
    pthread_mutex_lock(&ls->lock);
    bool again = w->in_call;
    if (again)
        pthread_kill(w->thread, NUDGE_SIGNAL);
    pthread_mutex_unlock(&ls->lock);
    /* the signal may have come just before the call slept */
    if (again)
        timer_set(w->fs->timers, t, clock_ns() + NUDGE_AGAIN_NS);
}

/* Called by libfuse with a lock of the request held. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct lock_wait *w = data;
    (void)req;
    if (!atomic_exchange(&w->interrupted, true))
        timer_set(w->fs->timers, &w->nudge, clock_ns());
}

static void set_in_call(struct lock_wait *w, bool in_call)
{
    struct lockers *ls = w->fs->lockers;
    pthread_mutex_lock(&ls->lock);
    w->thread = pthread_self();
    w->in_call = in_call;
    if (in_call)
        list_append(&ls->waits, &w->links);
    else
        list_remove(&w->links);
    pthread_mutex_unlock(&ls->lock);
}

static void run_wait(struct task *t)
{
    struct lock_wait *w = container_of(t, struct lock_wait, task);
    struct fs *fs = w->fs;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, NUDGE_SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    set_in_call(w, true);
    int r = -EINTR;
    while (r == -EINTR && !atomic_load(&w->interrupted) && !atomic_load(&fs->lockers->ending))
        r = attempt(w->owner, &w->want, w->op, true);
    set_in_call(w, false);
    fuse_req_interrupt_func(w->req, NULL, NULL);
    timer_cancel(fs->timers, &w->nudge);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (r == 0)
        agree(fs, w->ino);
    unuse(fs, w->owner);
    fuse_reply_err(w->req, -r);
    free(w);
}

/* Parks the request in a thread of its own; takes over the use of the owner. */
static void wait_for(struct fs *fs, fuse_req_t req, struct owner *o, const struct flock *want, int op, uint64_t ino)
{
    struct lock_wait *w = calloc(1, sizeof *w);
    if (!w) {
        unuse(fs, o);
        fuse_reply_err(req, ENOLCK);
        return;
    }
    w->fs = fs;
    w->req = req;
    w->owner = o;
    w->op = op;
    w->ino = ino;
    if (want)
        w->want = *want;
    list_init(&w->links);
    w->task.run = run_wait;
    w->nudge.fire = nudge;
    fuse_req_interrupt_func(req, on_interrupt, w);
    pool_add(fs->lockers->pool, &w->task);
}

static void take(struct fs *fs, fuse_req_t req, struct open_file *of, uint64_t id, const struct flock *want,
                 int op, bool sleep)
{
    struct owner *o;
    bool is_flock = !want, unlock = is_flock ? (op & ~LOCK_NB) == LOCK_UN : want->l_type == F_UNLCK;
    int r = use(fs, of, id, is_flock, &o);
    if (r < 0) {
        fuse_reply_err(req, -r);
        return;
    }
    uint64_t ino = unlock ? 0 : node_id(fs, of);
    r = attempt(o, want, op, false);
    if ((r == -EAGAIN || r == -EACCES || r == -EWOULDBLOCK) && sleep) {
        wait_for(fs, req, o, want, op, ino);
        return;
    }
    if (r == 0)
        agree(fs, ino);
    unuse(fs, o);
    fuse_reply_err(req, -r);
}

void lock_set(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi, struct flock *lk,
              int sleep)
{
    take(fs, req, container_of(h, struct open_file, h), fi->lock_owner, lk, 0, sleep);
}

void lock_flock(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi, int op)
{
    take(fs, req, container_of(h, struct open_file, h), fi->lock_owner, NULL, op, !(op & LOCK_NB));
}

void lock_get(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi, struct flock *lk)
{
    struct owner *o;
    int r = use(fs, container_of(h, struct open_file, h), fi->lock_owner, false, &o);
    if (r == 0) {
        lk->l_pid = 0;
        r = fcntl(o->fd, F_OFD_GETLK, lk) < 0 ? -errno : 0;
        unuse(fs, o);
    }
    if (r < 0)
        fuse_reply_err(req, -r);
    else
        fuse_reply_lock(req, lk);
}

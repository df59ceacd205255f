// SPDX-License-Identifier: Apache-2.0
#include "fs/hostdir/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/hostdir/coherence.h"

#define BUCKETS       4096
#define EVENTS_BYTES  32768
#define GATHER_NS     5000000 /* our own changes are events too: not a wake-up for each */
#define RETRY_MS      20 /* a node that the kernel is about to learn of is told again */
#define WATCHED_MASK  (FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO | FAN_MODIFY | FAN_ATTRIB | \
                       FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD | FAN_ONDIR)
#define NAMES_MASK    (FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO)
/* Linux, include/uapi/linux/fanotify.h (5.19): the mark does not keep the directory in memory. */
#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x00000200
#endif
#ifndef FAN_REPORT_DFID_NAME
#define FAN_REPORT_DFID_NAME 0x00000c00
#endif

struct watch {
    struct watch *next;       /* in its bucket */
    struct hdir  *dir;        /* not referenced: it frees us */
    bool          on;         /* false: tried in vain */
    uint64_t      events;     /* seen so far */
    uint64_t      names;      /* those of them that changed names */
    unsigned      n_handle;
    unsigned char handle[];   /* struct file_handle's type and bytes */
};

struct watcher {
    struct fs      *fs;
    int             fd, stop_fd;
    pid_t           self;
    pthread_t       thread;
    bool            stopped;  /* the main thread's */
    pthread_mutex_t reading;  /* one reader of the events, held until they are delivered, so that
                               * watch_sync() waits for those too. Before nodes.lock; across I/O */
    struct watch   *buckets[BUCKETS]; /* nodes.lock */
    struct notices  again;            /* to be told once more; reading */
    struct notices  entries;          /* of what was read at once, to be told after it; reading */
    bool            late;             /* some could not be told in time: no more is waited for now; reading */
    _Alignas(struct fanotify_event_metadata) char buf[EVENTS_BYTES];
};

/* ── handles ─────────────────────────────────────────────────────────────────────────────── */

static unsigned hash(const unsigned char *bytes, unsigned n)
{
    uint32_t h = 2166136261u;
    while (n--)
        h = (h ^ *bytes++) * 16777619u;
    return h % BUCKETS;
}

static struct watch *find(struct watcher *w, const struct file_handle *fh)
{
    const unsigned char *bytes = (const unsigned char *)&fh->handle_type;
    unsigned n = (unsigned)sizeof fh->handle_type + fh->handle_bytes;
    struct watch *x = w->buckets[hash(bytes, n)];
    while (x && (x->n_handle != n || memcmp(x->handle, bytes, n)))
        x = x->next;
    return x;
}

static struct watch *make(struct hdir *d, int fd)
{
    struct { struct file_handle fh; unsigned char room[MAX_HANDLE_SZ]; } h = {.fh.handle_bytes = MAX_HANDLE_SZ};
    int mount_id;
    unsigned n = 0;
    bool on = name_to_handle_at(fd, "", &h.fh, &mount_id, AT_EMPTY_PATH) == 0;
    if (on)
        n = (unsigned)sizeof h.fh.handle_type + h.fh.handle_bytes;
    struct watch *x = calloc(1, sizeof *x + n);
    if (!x)
        return NULL;
    x->dir = d;
    x->on = on;
    x->n_handle = n;
    memcpy(x->handle, &h.fh.handle_type, n);
    return x;
}

static bool mark(struct watcher *w, int fd)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    unsigned flags = FAN_MARK_ADD | FAN_MARK_ONLYDIR;
    if (fanotify_mark(w->fd, flags | FAN_MARK_EVICTABLE, WATCHED_MASK, AT_FDCWD, path) == 0)
        return true;
    return errno == EINVAL && fanotify_mark(w->fd, flags, WATCHED_MASK, AT_FDCWD, path) == 0;
}

/* A workspace's root stays the same object when its directory is removed and made again: its watch is
 * then that of a directory that is gone, and what the kernel keeps would be believed for ever. */
static bool outlived(struct fs *fs, struct hdir *d, const struct watch *x)
{
    struct notices ns = {0};
    hinodes_lock(fs);
    const struct watch *old = d->watch;
    bool gone = old && (old->n_handle != x->n_handle || memcmp(old->handle, x->handle, x->n_handle));
    if (gone) {
        watch_forget(fs, d);
        notices_attributes(&ns, d, NULL);
    }
    hinodes_unlock(fs);
    coherence_deliver(fs, &ns);
    return gone;
}

void watch_dir(struct fs *fs, struct hdir *d, int fd)
{
    struct watcher *w = fs->watcher;
    hinodes_lock(fs);
    bool had = d->watch, tried = !w || (had && !d->h.is_root);
    hinodes_unlock(fs);
    struct watch *x = tried ? NULL : make(d, fd);
    if (!x)
        return;
    if (had && !outlived(fs, d, x)) {
        free(x);
        return;
    }
    x->on = x->on && mark(w, fd);
    manager_count(fs->manager, x->on ? "wsmfs_watches_total" : "wsmfs_watch_failures_total", 1);
    hinodes_lock(fs);
    if (d->watch) {
        free(x); /* another thread was faster: the mark is the same */
    } else {
        d->watch = x;
        if (x->on) {
            struct watch **b = &w->buckets[hash(x->handle, x->n_handle)];
            x->next = *b;
            *b = x;
        }
    }
    hinodes_unlock(fs);
}

void watch_forget(struct fs *fs, struct hdir *d)
{
    struct watch *x = steal_ptr(&d->watch);
    if (x && x->on && fs->watcher) {
        struct watch **p = &fs->watcher->buckets[hash(x->handle, x->n_handle)];
        while (*p != x)
            p = &(*p)->next;
        *p = x->next;
    }
    free(x);
}

/* ── how long to believe ─────────────────────────────────────────────────────────────────── */

struct look look_begin(struct fs *fs, struct hdir *d, struct dir_node *via)
{
    struct look l = {.dir = d};
    hinodes_lock(fs);
    l.changes = d->changes;
    if (via)
        via->asked = true;
    if (d->watch && d->watch->on) {
        l.watched = true;
        l.events = d->watch->events;
        l.names = d->watch->names;
    }
    hinodes_unlock(fs);
    return l;
}

double look_timeout(struct fs *fs, const struct look *l, bool name_alone)
{
    if (!l->watched)
        return HOST_TIMEOUT_S;
    hinodes_lock(fs);
    const struct watch *x = l->dir->watch;
    bool quiet = name_alone ? x->names == l->names : x->events == l->events;
    hinodes_unlock(fs);
    return quiet ? WATCHED_TIMEOUT_S : 0;
}

bool watch_is_on(const struct hinode *dir)
{
    const struct watch *x = dir && hinode_is_dir(dir) ? container_of(dir, const struct hdir, h)->watch : NULL;
    return x && x->on;
}

bool watch_covers(struct fs *fs, struct hinode *h, const struct statx *st)
{
    if (!fs->watcher)
        return false;
    hinodes_lock(fs);
    bool covered;
    if (hinode_is_dir(h)) /* its parent tells of its mode, it itself of its content's changes */
        covered = watch_is_on(h) && (h->is_root || watch_is_on(h->parent));
    else /* another name may be used by whoever changes it, and a written mapping tells nothing */
        covered = st->stx_nlink == 1 && watch_is_on(h->parent) && !hfile_of(h)->tainted;
    hinodes_unlock(fs);
    return covered;
}

/* ── events ──────────────────────────────────────────────────────────────────────────────── */

/* A name of a watched directory about which something was told. */
struct news {
    struct hdir *dir;   /* referenced */
    char         name[NAME_MAX + 1];
    uint64_t     mask;
};

/* What the kernel believes of the file itself is asked anew. */
static void tell_child(struct fs *fs, struct news *n, struct notices *ns)
{
    struct hfd f;
    struct statx st;
    if (hinode_fd(fs, &n->dir->h, &f) < 0)
        return;
    int r = host_statx(f.fd, n->name, &st);
    hfd_put(fs, &f);
    if (r < 0)
        return;
    hinodes_lock(fs);
    struct hinode *h = hinode_known(fs, n->dir->h.hd, &st);
    if (h && hinode_is_dir(h)) {
        notices_attributes(ns, hdir_of(h), NULL);
    } else if (h) {
        struct hfile *hf = hfile_of(h);
        /* while it is open for writing in passthrough such events are mostly the mount's own, and
         * its attributes are not believed for long anyway */
        bool known = hf->tainted && !(n->mask & ~(uint64_t)FAN_MODIFY);
        /* a new name of a file that was known: nobody else tells how many it has now */
        if (!(n->mask & ~(uint64_t)NAMES_MASK))
            known = st.stx_nlink <= 1;
        if (n->mask & FAN_CLOSE_WRITE)
            hf->tainted = false;
        if (hf->node && !known)
            notices_inode(ns, hf->node->id, hf->opens_passthrough > 0);
    }
    hinodes_unlock(fs);
}

static void tell_self(struct fs *fs, struct hdir *d, struct notices *ns)
{
    hinodes_lock(fs);
    notices_attributes(ns, d, NULL);
    hinodes_unlock(fs);
}

static void tell(struct fs *fs, struct news *n, struct notices *ns)
{
    if (!strcmp(n->name, ".")) {
        tell_self(fs, n->dir, ns);
        return;
    }
    if (n->mask & NAMES_MASK) {
        hinodes_lock(fs);
        notices_name(ns, n->dir, NULL, n->name);
        hinodes_unlock(fs);
    }
    if (n->mask & (~(uint64_t)NAMES_MASK | FAN_CREATE))
        tell_child(fs, n, ns);
}

/* The workspace is closed, so nobody can look what the name leads to now: what it led to last. */
static void tell_closed(struct fs *fs, struct news *n, struct notices *ns)
{
    hinodes_lock(fs);
    notices_name(ns, n->dir, NULL, n->name);
    list_for_each(l, &n->dir->children) {
        struct hinode *h = container_of(l, struct hinode, siblings);
        if (strcmp(h->name, n->name))
            continue;
        if (hinode_is_dir(h))
            notices_attributes(ns, hdir_of(h), NULL);
        else if (hfile_of(h)->node)
            notices_inode(ns, hfile_of(h)->node->id, false);
    }
    hinodes_unlock(fs);
}

/* A request that is parked may hold the lock of the directory, and may be parked until somebody has ended who waits
 * for what is told here: a close, for instance, waits for jobs and these for watch_sync(). */
static void deliver_entries(struct watcher *w, struct notices *ns)
{
    if (w->late)
        coherence_leave(w->fs, ns);
    else
        w->late = !coherence_deliver_bounded(w->fs, ns, false);
    *ns = (struct notices){0};
}

/* Entering keeps the workspace's root open meanwhile, and does not count as use. Where that is shut requests are
 * parked: their directories' names hold up no others. */
static void handle_news(struct watcher *w, struct news *n)
{
    struct fs *fs = w->fs;
    struct notices ns = {0}, entries = {0};
    struct workspace *ws = n->dir->h.hd->ws;
    if (workspace_peek(ws) == 0) {
        tell(fs, n, &ns);
        workspace_peek_end(ws);
        notices_take_entries(&ns, &w->entries);
    } else {
        tell_closed(fs, n, &ns);
        notices_take_entries(&ns, &entries);
        deliver_entries(w, &entries);
    }
    hinodes_lock(fs);
    hinode_unref(fs, &n->dir->h);
    hinodes_unlock(fs);
    coherence_deliver_again(fs, &ns, &w->again);
}

/* Takes the event at `start` apart; false when it is not for anybody here. */
static bool parse(struct watcher *w, const struct fanotify_event_metadata *ev, const char *start, struct news *n)
{
    const char *at = start + ev->metadata_len, *end = start + ev->event_len;
    const struct fanotify_event_info_fid *info = (const void *)at;
    if (at + sizeof *info > end || info->hdr.info_type != FAN_EVENT_INFO_TYPE_DFID_NAME)
        return false;
    const struct file_handle *fh = (const void *)info->handle;
    const char *name = (const char *)fh->f_handle + fh->handle_bytes;
    if (name >= end || strnlen(name, (size_t)(end - name)) > NAME_MAX)
        return false;
    hinodes_lock(w->fs);
    struct watch *x = find(w, fh);
    if (x) {
        x->events++;
        x->names += (ev->mask & NAMES_MASK) != 0;
        n->dir = x->dir;
        hinode_ref(&x->dir->h);
    }
    hinodes_unlock(w->fs);
    n->mask = ev->mask;
    strcpy(n->name, name);
    return x;
}

static void forget_everything(void *object, void *arg)
{
    struct node *n = object;
    struct notices *ns = arg;
    if (n->kind == NODE_FILE) {
        notices_inode(ns, n->id, false);
    } else if (n->kind == NODE_DIR || n->kind == NODE_SESSION) {
        struct dir_node *d = container_of(n, struct dir_node, n);
        notices_inode(ns, n->id, false);
        if (d->hi)
            list_for_each(l, &d->hi->children)
                notices_entry(ns, n->id, container_of(l, struct hinode, siblings)->name);
    }
}

/* The queue was too long: what was lost may be anything. Names that were not there are missed by
 * this; their answers were given short lives while events were pouring in. */
static void overflow(struct watcher *w)
{
    struct fs *fs = w->fs;
    struct notices ns = {0};
    log_info("the host's change notices overflowed: everything cached is asked anew");
    manager_count(fs->manager, "wsmfs_watch_overflows_total", 1);
    hinodes_lock(fs);
    idtable_each(fs->nodes.ids, forget_everything, &ns);
    hinodes_unlock(fs);
    deliver_entries(w, &ns);
}

/* Same name, same kind of news, in a row: once. */
static bool repeats(const struct news *a, const struct news *b)
{
    return a->dir == b->dir && a->mask == b->mask && !strcmp(a->name, b->name);
}

/* How many events there were. */
static int handle_batch(struct watcher *w, const char *at, const char *end)
{
    struct news last = {0}, now;
    struct fanotify_event_metadata ev; /* copied: events are aligned to 4 bytes, it wants 8 */
    int n = 0;
    for (; at + sizeof ev <= end; at += ev.event_len) {
        memcpy(&ev, at, sizeof ev);
        if (ev.event_len < sizeof ev || at + ev.event_len > end)
            break;
        n++;
        if (ev.mask & FAN_Q_OVERFLOW) {
            overflow(w);
            continue;
        }
        if (ev.pid == w->self || !parse(w, &ev, at, &now))
            continue;
        if (last.dir && repeats(&last, &now)) {
            hinodes_lock(w->fs);
            hinode_unref(w->fs, &now.dir->h);
            hinodes_unlock(w->fs);
            continue;
        }
        if (last.dir)
            handle_news(w, &last);
        last = now;
    }
    if (last.dir)
        handle_news(w, &last);
    deliver_entries(w, &w->entries);
    return n;
}

/* Events that wait: the kernel counts the fixed part of each (fanotify's FIONREAD). */
static int count_events(struct watcher *w)
{
    int bytes;
    return ioctl(w->fd, FIONREAD, &bytes) < 0 ? INT_MAX : bytes / (int)FAN_EVENT_METADATA_LEN;
}

/* Reads and delivers what there is now. Not what comes meanwhile: somebody who writes without a pause would
 * keep everybody here who waits for what was written before. */
static void drain(struct watcher *w)
{
    ssize_t n;
    pthread_mutex_lock(&w->reading);
    w->late = false;
    for (int left = count_events(w); left > 0 && (n = read(w->fd, w->buf, sizeof w->buf)) > 0;)
        left -= handle_batch(w, w->buf, w->buf + n);
    pthread_mutex_unlock(&w->reading);
}

void watch_sync(struct fs *fs)
{
    if (fs->watcher)
        drain(fs->watcher);
}

/* Tells once more what the kernel did not know a moment ago. */
static void tell_again(struct watcher *w)
{
    pthread_mutex_lock(&w->reading);
    coherence_deliver(w->fs, &w->again);
    pthread_mutex_unlock(&w->reading);
}

static bool has_again(struct watcher *w)
{
    scoped_lock(&w->reading);
    return w->again.n;
}

static void *run(void *arg)
{
    struct watcher *w = arg;
    struct pollfd p[2] = {{.fd = w->fd, .events = POLLIN}, {.fd = w->stop_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(p, 2, has_again(w) ? RETRY_MS : -1);
        if (n > 0 && p[1].revents)
            break;
        if (n > 0) {
            nanosleep(&(struct timespec){.tv_nsec = GATHER_NS}, NULL);
            drain(w);
        } else {
            tell_again(w);
        }
    }
    return NULL;
}

/* ── life ────────────────────────────────────────────────────────────────────────────────── */

static int start(struct watcher *w)
{
    sigset_t all, old;
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (w->stop_fd < 0)
        return -errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = -pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0)
        close(w->stop_fd);
    return r;
}

struct watcher *watcher_create(struct fs *fs, const char **why)
{
    struct watcher *w = calloc(1, sizeof *w);
    *why = "out of memory";
    if (!w)
        return NULL;
    w->fs = fs;
    w->self = getpid();
    pthread_mutex_init(&w->reading, NULL);
    unsigned flags = FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_DFID_NAME;
    w->fd = fanotify_init(flags | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS, O_RDONLY | O_CLOEXEC);
    if (w->fd < 0) /* an ordinary user has limits */
        w->fd = fanotify_init(flags, O_RDONLY | O_CLOEXEC);
    if (w->fd < 0) {
        *why = errno == EPERM ? "fanotify is not permitted" : errno == ENOSYS ? "the kernel has no fanotify"
               : errno == EMFILE ? "the limit of fanotify groups is reached" : "fanotify is too old here";
        free(w);
        return NULL;
    }
    if (start(w) == 0)
        return w;
    close(w->fd);
    free(w);
    return NULL;
}

void watcher_stop(struct watcher *w)
{
    uint64_t one = 1;
    if (!w || w->stopped)
        return;
    (void)!write(w->stop_fd, &one, sizeof one);
    pthread_join(w->thread, NULL);
    w->stopped = true;
}

void watcher_destroy(struct watcher *w)
{
    if (!w)
        return;
    watcher_stop(w);
    close(w->stop_fd);
    close(w->fd);
    free(w->again.list);
    pthread_mutex_destroy(&w->reading);
    free(w);
}

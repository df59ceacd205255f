// SPDX-License-Identifier: Apache-2.0
#include "fs/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define READERS_THREADS_MAX 64
#define PAGE          4096
#define NUDGE_NS      5000000 /* how often a reader that is to end is woken */
#define PATIENCE_NS   2000000000 /* with those that are to end */
#define TICK_NS       2000000 /* after this a reader that has not come back counts as stuck */
#define QUIET_TICKS   10      /* without a request, until nobody watches any more */
#define BUSY_ROW      8       /* requests of several clients without a gap: who reads does not keep up */
#define TRUST_MAX     3       /* in the next request coming soon */
#define LOAD_NS       1000000 /* how long what was seen of the machine's load is believed */
#define SETTLE_NS     50000000 /* how long is waited for requests that others handle */
#define SETTLE_NAP_NS 200000

struct readers;

struct seat {
    struct readers *rs;
    atomic_uint     turn; /* odd: from before it looks for a request until that is handled, or there was none */
    char            apart[48]; /* a reader writes its own all the time */
};

struct readers {
    struct fs      *fs;
    void          (*first)(struct fs *fs);
    unsigned        max, n_cpus;
    int64_t         spin_ns;
    int             load_fd; /* /proc/loadavg */
    pthread_mutex_t lock;    /* guards threads and n; a leaf */
    pthread_t       threads[READERS_THREADS_MAX];
    struct seat     seats[READERS_THREADS_MAX]; /* of each thread; not under the lock */
    unsigned        n;
    /* Those that will look for a request before they sleep for any other reason. Never 0 while all
     * others sleep, but for a tick: see oversee(). */
    atomic_uint     reading;
    atomic_uint     in_reserve, running;
    atomic_ullong   taken;    /* requests */
    atomic_bool     stop, first_done, unwatched;
    sem_t           reserve;  /* one is posted for each reader that is called from the reserve */
    sem_t           news;     /* something has ended, or begun while unwatched */
};

/* What a reader expects of the next request. */
struct pace {
    int64_t  idle_since_ns; /* when it found nothing to do; 0: it has not */
    unsigned trust;         /* how often of late the next request came within spin_ns */
    unsigned in_a_row;      /* requests without a gap between them, each by another client than the last */
    uint32_t last_pid;
    int64_t  load_seen_ns;
    bool     spare_cpu;     /* then */
};

static void nudged(int sig)
{
    (void)sig;
}

static bool ended(const struct readers *rs)
{
    return atomic_load(&rs->stop) || fuse_session_exited(rs->fs->session);
}

static void block_signals(void)
{
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, NUDGE_SIGNAL);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
}

/* ── how many read ───────────────────────────────────────────────────────────────────────── */

static void *reader(void *arg);

/* One more thread, unless there are enough. */
static int add_reader(struct readers *rs)
{
    scoped_lock(&rs->lock);
    if (rs->n == rs->max)
        return -EAGAIN;
    atomic_fetch_add(&rs->running, 1);
    rs->seats[rs->n].rs = rs;
    int r = pthread_create(&rs->threads[rs->n], NULL, reader, &rs->seats[rs->n]);
    if (r) {
        atomic_fetch_sub(&rs->running, 1);
        return -r;
    }
    rs->n++;
    return 0;
}

/* Takes one away unless that would leave fewer than `least`. */
static bool decrease(atomic_uint *n, unsigned least)
{
    unsigned was = atomic_load(n);
    while (was > least)
        if (atomic_compare_exchange_weak(n, &was, was - 1))
            return true;
    return false;
}

static void call_reader(struct readers *rs)
{
    if (!atomic_load(&rs->first_done))
        return; /* what `first` settles is settled before a second thread looks at it */
    atomic_fetch_add(&rs->reading, 1); /* for the one that is called */
    if (decrease(&rs->in_reserve, 0))
        sem_post(&rs->reserve);
    else if (add_reader(rs) < 0)
        atomic_fetch_sub(&rs->reading, 1);
}

/* Goes into the reserve if another one reads, and comes back when called. */
static bool rest(struct readers *rs)
{
    if (!decrease(&rs->reading, 1))
        return false;
    atomic_fetch_add(&rs->in_reserve, 1);
    while (sem_wait(&rs->reserve) < 0 && !ended(rs))
        ;
    return true;
}

void readers_expect_wait(struct fs *fs)
{
    if (fs->readers && atomic_load(&fs->readers->reading) == 0)
        call_reader(fs->readers);
}

static const struct fuse_in_header *header(const struct fuse_buf *buf)
{
    return buf->mem;
}

/* Requests that often wait for a disk or for somebody; what else may take long is seen by oversee(). */
static bool may_wait(const struct fuse_buf *buf)
{
    const struct fuse_in_header *in = header(buf);
    switch (in->opcode) {
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE:
    case FUSE_LSEEK:
    case FUSE_STATFS:
    case FUSE_SETLKW:
        return true;
    default:
        return false;
    }
}

/* ── waiting for a request ───────────────────────────────────────────────────────────────── */

/* Whether nobody on this machine waits for a CPU. */
static bool has_spare_cpu(const struct readers *rs, struct pace *p)
{
    char text[64] = "";
    unsigned runnable = UINT_MAX;
    if (p->idle_since_ns - p->load_seen_ns > LOAD_NS) {
        p->load_seen_ns = p->idle_since_ns;
        if (pread(rs->load_fd, text, sizeof text - 1, 0) > 0)
            (void)sscanf(text, "%*s %*s %*s %u/", &runnable);
        p->spare_cpu = runnable <= rs->n_cpus; /* with us and the client */
    }
    return p->spare_cpu;
}

/* Whether the next request may be looked for without sleeping: it is likely to come soon, and nobody
 * wants the CPU, who might be the very client. */
static bool spins(const struct readers *rs, struct pace *p)
{
    return rs->spin_ns && p->trust > TRUST_MAX / 2 && has_spare_cpu(rs, p);
}

/* The size of a request, -EAGAIN: there is none now, -ENODEV: the mount has ended. Not by libfuse, which
 * complains of an end that comes between two requests (then the kernel says ECONNABORTED). */
static int receive(struct seat *seat, struct fuse_buf *buf)
{
    struct readers *rs = seat->rs;
    atomic_fetch_add(&seat->turn, 1);
    ssize_t n = read(fuse_session_fd(rs->fs->session), buf->mem, READERS_REQUEST_MAX);
    if (n >= (ssize_t)sizeof(struct fuse_in_header)) {
        buf->size = (size_t)n;
        return (int)n;
    }
    int r = n < 0 ? -errno : -EIO;
    atomic_fetch_add(&seat->turn, 1);
    if (r == -EINTR || r == -ENOENT) /* ENOENT: it was interrupted before it was read */
        return -EAGAIN;
    if (r != -EAGAIN && r != -ENODEV && r != -ECONNABORTED)
        log_error("cannot read requests from the kernel: %s", strerror(-r));
    return r;
}

/* -EAGAIN: it did not come. */
static int spin(struct seat *seat, struct fuse_buf *buf, const struct pace *p)
{
    int64_t end = p->idle_since_ns + seat->rs->spin_ns;
    int n;
    do
        n = receive(seat, buf);
    while (n == -EAGAIN && clock_ns() < end);
    return n;
}

static void wait_readable(struct readers *rs)
{
    struct pollfd p = {.fd = fuse_session_fd(rs->fs->session), .events = POLLIN};
    poll(&p, 1, -1);
}

/* A request came: so late after the last one, a wake-up included if one was needed. */
static void note_gap(const struct readers *rs, struct pace *p)
{
    if (!p->idle_since_ns)
        return;
    if (clock_ns() - p->idle_since_ns > 2 * rs->spin_ns)
        p->trust = 0;
    else if (p->trust < TRUST_MAX)
        p->trust++;
    p->idle_since_ns = 0;
}

/* The size of the next request, -EAGAIN: look again, any other error: the end. */
static int next_request(struct seat *seat, struct fuse_buf *buf, struct pace *p)
{
    struct readers *rs = seat->rs;
    int n = receive(seat, buf);
    if (n == -EAGAIN) {
        p->in_a_row = 0;
        if (rest(rs)) {
            *p = (struct pace){0};
            return n;
        }
        if (!p->idle_since_ns)
            p->idle_since_ns = clock_ns();
        if (spins(rs, p))
            n = spin(seat, buf, p);
        if (n == -EAGAIN)
            wait_readable(rs);
    }
    return n;
}

/* ── the readers ─────────────────────────────────────────────────────────────────────────── */

/* Whether a client waits for the answer. */
static bool is_awaited(const struct fuse_in_header *in)
{
    switch (in->opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_INTERRUPT:
        return false;
    default:
        return true;
    }
}

/* Whether there is so much to do that a reader more would help: not when the next request is there each
 * time because its only client had the CPU meanwhile. */
static bool is_pressed(const struct readers *rs, const struct fuse_buf *buf, struct pace *p)
{
    const struct fuse_in_header *in = header(buf);
    if (!is_awaited(in))
        return false;
    p->in_a_row += !in->pid || in->pid != p->last_pid; /* 0: of another pid namespace */
    p->last_pid = in->pid;
    if (p->in_a_row < BUSY_ROW)
        return false;
    p->in_a_row = 0;
    return atomic_load(&rs->running) - atomic_load(&rs->in_reserve) < rs->n_cpus;
}

static void handle(struct seat *seat, struct fuse_buf *buf, struct pace *p)
{
    struct readers *rs = seat->rs;
    note_gap(rs, p);
    unsigned left = atomic_fetch_sub(&rs->reading, 1) - 1;
    atomic_fetch_add(&rs->taken, 1);
    if (atomic_load(&rs->unwatched) && atomic_exchange(&rs->unwatched, false))
        sem_post(&rs->news);
    if (left == 0 && (is_pressed(rs, buf, p) || may_wait(buf)))
        call_reader(rs);
    fuse_session_process_buf(rs->fs->session, buf);
    atomic_fetch_add(&seat->turn, 1);
    atomic_fetch_add(&rs->reading, 1);
}

static void *reader(void *arg)
{
    struct seat *seat = arg;
    struct readers *rs = seat->rs;
    struct fuse_buf buf = {.mem = aligned_alloc(PAGE, READERS_REQUEST_MAX)};
    struct pace pace = {0};
    block_signals();
    while (buf.mem && !ended(rs)) {
        int n = next_request(seat, &buf, &pace);
        if (n == -EAGAIN)
            continue;
        if (n < 0)
            break;
        handle(seat, &buf, &pace);
        if (!atomic_load(&rs->first_done)) {
            rs->first(rs->fs);
            atomic_store(&rs->first_done, true);
        }
    }
    free(buf.mem);
    readers_stop(rs->fs); /* what ended one ends all */
    atomic_fetch_sub(&rs->running, 1);
    return NULL;
}

/* ── those that others handle ────────────────────────────────────────────────────────────── */

static void wait_turn(const struct seat *seat, unsigned turn, int64_t end_ns)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};
    while (atomic_load(&seat->turn) == turn && clock_ns() < end_ns)
        nanosleep(&nap, NULL);
}

void readers_settle(struct fs *fs)
{
    struct readers *rs = fs->readers;
    struct seat *own = NULL;
    unsigned turns[READERS_THREADS_MAX], n, others = 0;
    pthread_mutex_lock(&rs->lock);
    n = rs->n;
    for (unsigned i = 0; i < n; i++) {
        bool is_own = pthread_equal(rs->threads[i], pthread_self());
        own = is_own ? &rs->seats[i] : own;
        turns[i] = is_own ? 0 : atomic_load(&rs->seats[i].turn);
        others += turns[i] & 1;
    }
    pthread_mutex_unlock(&rs->lock);
    if (!others)
        return;
    readers_expect_wait(fs);
    int64_t end_ns = clock_ns() + SETTLE_NS;
    if (own)
        atomic_fetch_add(&own->turn, 1); /* two that wait do not wait for each other */
    for (unsigned i = 0; i < n; i++)
        if (turns[i] & 1)
            wait_turn(&rs->seats[i], turns[i], end_ns);
    if (own)
        atomic_fetch_add(&own->turn, 1);
}

/* ── seeing to it that one reads ─────────────────────────────────────────────────────────── */

static struct timespec in_a_tick(void)
{
    int64_t due_ns = clock_ns() + TICK_NS;
    return (struct timespec){.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
}

/* Sleeps until the next request is taken, or the end. */
static void sleep_unwatched(struct readers *rs, uint64_t seen)
{
    atomic_store(&rs->unwatched, true);
    if (atomic_load(&rs->taken) == seen)
        sem_wait(&rs->news);
    atomic_store(&rs->unwatched, false);
}

/* While requests come: when all that took one have been at it for a tick, another one reads. */
static void oversee(struct readers *rs)
{
    uint64_t seen = 0;
    unsigned quiet = 0;
    while (!ended(rs)) {
        struct timespec due = in_a_tick();
        /* with none that reads nobody would take the request that ends the sleep */
        if (quiet > QUIET_TICKS && atomic_load(&rs->reading) > 0)
            sleep_unwatched(rs, seen);
        else
            sem_clockwait(&rs->news, CLOCK_MONOTONIC, &due);
        uint64_t now = atomic_load(&rs->taken);
        quiet = now == seen ? quiet + 1 : 0;
        if (now == seen && atomic_load(&rs->reading) == 0)
            call_reader(rs);
        seen = now;
    }
}

/* Ends the threads. One that tells the kernel something may wait for a client whose request nobody reads now. */
static void end_readers(struct readers *rs)
{
    int64_t cut_ns = clock_ns() + PATIENCE_NS;
    while (atomic_load(&rs->running)) {
        if (clock_ns() > cut_ns)
            fs_cut_off(rs->fs);
        struct timespec nap = {.tv_nsec = NUDGE_NS};
        pthread_mutex_lock(&rs->lock);
        for (unsigned i = 0; i < rs->n; i++)
            pthread_kill(rs->threads[i], NUDGE_SIGNAL);
        pthread_mutex_unlock(&rs->lock);
        nanosleep(&nap, NULL);
    }
    for (unsigned i = 0; i < rs->n; i++)
        pthread_join(rs->threads[i], NULL);
}

static unsigned n_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

int readers_run(struct fs *fs, unsigned max_readers, unsigned spin_us, void (*first)(struct fs *fs))
{
    struct sigaction sa = {.sa_handler = nudged}; /* no SA_RESTART */
    struct readers *rs = fs->readers;
    int fd = fuse_session_fd(fs->session);
    sigaction(NUDGE_SIGNAL, &sa, NULL);
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
        return -errno;
    rs->fs = fs;
    rs->first = first;
    rs->max = max_readers < READERS_THREADS_MAX ? max_readers : READERS_THREADS_MAX;
    rs->n_cpus = n_cpus();
    /* on one CPU whoever spins keeps the client from asking */
    rs->load_fd = rs->n_cpus > 1 ? open("/proc/loadavg", O_RDONLY | O_CLOEXEC) : -1;
    rs->spin_ns = rs->load_fd >= 0 ? spin_us * (int64_t)1000 : 0;
    atomic_store(&rs->reading, 1);
    int r = add_reader(rs);
    if (r < 0)
        return r;
    oversee(rs);
    readers_stop(fs);
    end_readers(rs);
    return 0;
}

void readers_stop(struct fs *fs)
{
    atomic_store(&fs->readers->stop, true);
    sem_post(&fs->readers->news);
}

struct readers *readers_create(void)
{
    struct readers *rs = calloc(1, sizeof *rs);
    if (rs) {
        rs->load_fd = -1;
        pthread_mutex_init(&rs->lock, NULL);
        sem_init(&rs->news, 0, 0);
        sem_init(&rs->reserve, 0, 0);
    }
    return rs;
}

void readers_destroy(struct readers *rs)
{
    if (!rs)
        return;
    if (rs->load_fd >= 0)
        close(rs->load_fd);
    pthread_mutex_destroy(&rs->lock);
    sem_destroy(&rs->news);
    sem_destroy(&rs->reserve);
    free(rs);
}

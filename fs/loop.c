// SPDX-License-Identifier: Apache-2.0
#include "fs/loop.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define READERS_MAX 64
#define NUDGE_NS    5000000 /* how often a reader that is to end is woken */

struct readers {
    struct fs      *fs;
    void          (*first)(struct fs *fs);
    unsigned        max;
    pthread_mutex_t lock;    /* guards threads and n; a leaf */
    pthread_t       threads[READERS_MAX];
    unsigned        n;
    atomic_uint     idle, running;
    atomic_bool     stop, first_done;
    sem_t           news;    /* posted when something has ended */
};

static void nudged(int sig)
{
    (void)sig;
}

static void *reader(void *arg);

/* One more thread, unless there are enough. */
static int add_reader(struct readers *rs)
{
    scoped_lock(&rs->lock);
    if (rs->n == rs->max)
        return 0;
    atomic_fetch_add(&rs->running, 1);
    int r = pthread_create(&rs->threads[rs->n], NULL, reader, rs);
    if (r) {
        atomic_fetch_sub(&rs->running, 1);
        return -r;
    }
    rs->n++;
    return 0;
}

static void block_signals(void)
{
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, NUDGE_SIGNAL);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
}

static bool ended(const struct readers *rs)
{
    return atomic_load(&rs->stop) || fuse_session_exited(rs->fs->session);
}

static void *reader(void *arg)
{
    struct readers *rs = arg;
    struct fuse_session *se = rs->fs->session;
    struct fuse_buf buf = {0};
    block_signals();
    while (!ended(rs)) {
        atomic_fetch_add(&rs->idle, 1);
        int n = fuse_session_receive_buf(se, &buf);
        /* until `first` has run there is one reader: what it settles is settled for all */
        if (atomic_fetch_sub(&rs->idle, 1) == 1 && n > 0 && atomic_load(&rs->first_done))
            add_reader(rs);
        if (n == -EINTR || n == -EAGAIN)
            continue;
        if (n <= 0)
            break;
        fuse_session_process_buf(se, &buf);
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

int readers_run(struct fs *fs, unsigned max_readers, void (*first)(struct fs *fs))
{
    struct sigaction sa = {.sa_handler = nudged}; /* no SA_RESTART */
    struct readers *rs = fs->readers;
    sigaction(NUDGE_SIGNAL, &sa, NULL);
    rs->fs = fs;
    rs->first = first;
    rs->max = max_readers < READERS_MAX ? max_readers : READERS_MAX;
    int r = add_reader(rs);
    if (r < 0)
        return r;
    while (!ended(rs))
        sem_wait(&rs->news);
    readers_stop(fs);
    while (atomic_load(&rs->running)) {
        struct timespec nap = {.tv_nsec = NUDGE_NS};
        pthread_mutex_lock(&rs->lock);
        for (unsigned i = 0; i < rs->n; i++)
            pthread_kill(rs->threads[i], NUDGE_SIGNAL);
        pthread_mutex_unlock(&rs->lock);
        nanosleep(&nap, NULL);
    }
    for (unsigned i = 0; i < rs->n; i++)
        pthread_join(rs->threads[i], NULL);
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
        pthread_mutex_init(&rs->lock, NULL);
        sem_init(&rs->news, 0, 0);
    }
    return rs;
}

void readers_destroy(struct readers *rs)
{
    if (!rs)
        return;
    pthread_mutex_destroy(&rs->lock);
    sem_destroy(&rs->news);
    free(rs);
}

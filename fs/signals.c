// SPDX-License-Identifier: Apache-2.0
#include "fs/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define NS_PER_S 1000000000LL

struct signals {
    struct config  *config;
    struct manager *manager;
    pthread_mutex_t lock;    /* guards fs and stop_ns; before the locks of fs/ and of the manager */
    struct fs      *fs;      /* NULL once the mount has ended */
    int64_t         stop_ns; /* when the end was asked for, 0 before */
    atomic_bool     detach, finish;
    sigset_t        set;
    pthread_t       thread;
};

/* ── what each one does ──────────────────────────────────────────────────────────────────── */

static void reload(struct signals *s)
{
    struct err e = {0};
    int r = 0;

    pthread_mutex_lock(&s->lock);
    if (s->fs)
        r = fs_reload(s->fs, &e);
    pthread_mutex_unlock(&s->lock);
    if (r < 0)
        log_error("nothing was reloaded: %s", e.text);
    else
        log_info(s->config->config_file ? "reloaded %s" : "nothing to reload: mounted without a config file",
                 s->config->config_file);
}

static void tell_progress(struct signals *s, int64_t stop_ns)
{
    int64_t left_s = s->config->shutdown_timeout_s - (clock_ns() - stop_ns) / NS_PER_S;

    log_info("already ending; workspaces are being closed, for at most %lld s more",
             (long long)(left_s > 0 ? left_s : 0));
}

static void stop(struct signals *s, int signal)
{
    int64_t before;

    pthread_mutex_lock(&s->lock);
    before = s->stop_ns;
    if (!before)
        s->stop_ns = clock_ns();
    if (!before && s->fs)
        fs_stop(s->fs);
    pthread_mutex_unlock(&s->lock);
    if (before)
        tell_progress(s, before);
    else
        log_info("ending: %s", strsignal(signal));
}

static void end(struct signals *s) { stop(s, SIGTERM); }
static void interrupt(struct signals *s) { stop(s, SIGINT); }

static void keep_all(struct signals *s)
{
    bool ending;

    pthread_mutex_lock(&s->lock);
    ending = s->stop_ns != 0;
    pthread_mutex_unlock(&s->lock);
    if (!ending)
        atomic_store(&s->detach, true);
    stop(s, SIGUSR1);
}

static const struct {
    int    signal;
    void (*handle)(struct signals *s);
} table[] = {
    {SIGTERM, end},
    {SIGINT, interrupt},
    {SIGUSR1, keep_all},
    {SIGHUP, reload},
};

/* ── the thread ──────────────────────────────────────────────────────────────────────────── */

static void *signal_thread(void *arg)
{
    struct signals *s = arg;
    int signal;

    while (sigwait(&s->set, &signal) == 0 && !atomic_load(&s->finish))
        for (size_t i = 0; i < array_size(table); i++)
            if (table[i].signal == signal)
                table[i].handle(s);
    return NULL;
}

static int start_thread(struct signals *s)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&s->thread, NULL, signal_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int signals_start(struct config *c, struct manager *m, struct fs *fs, struct signals **out, struct err *e)
{
    struct signals *s = calloc(1, sizeof(*s));
    int r;

    *out = NULL;
    if (!s)
        return err_set(e, -ENOMEM, "out of memory");
    s->config = c;
    s->manager = m;
    s->fs = fs;
    pthread_mutex_init(&s->lock, NULL);
    sigemptyset(&s->set);
    for (size_t i = 0; i < array_size(table); i++)
        sigaddset(&s->set, table[i].signal);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    r = start_thread(s);
    if (r != 0) {
        pthread_mutex_destroy(&s->lock);
        free(s);
        return err_sys(e, -r, "cannot start a thread");
    }
    *out = s;
    return 0;
}

bool signals_detach(const struct signals *s) { return atomic_load(&s->detach); }

void signals_mount_ended(struct signals *s)
{
    scoped_lock(&s->lock);
    s->fs = NULL;
    if (!s->stop_ns)
        s->stop_ns = clock_ns();
}

void signals_finish(struct signals *s)
{
    if (!s)
        return;
    atomic_store(&s->finish, true);
    pthread_kill(s->thread, SIGTERM);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

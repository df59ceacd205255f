// SPDX-License-Identifier: Apache-2.0
/* The loop thread: calls from others, events, a turn for each link that has something to do. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>

#include "fs/link/internal.h"

#define EVENTS 128

int64_t link_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void link_id_random(struct link_id *id)
{
    for (size_t at = 0; at < sizeof(id->b);) {
        ssize_t n = getrandom(id->b + at, sizeof(id->b) - at, 0);

        at += n > 0 ? (size_t)n : 0;
    }
}

bool link_loop_here(const struct link_loop *loop) { return pthread_equal(pthread_self(), loop->thread); }

static void wake(struct link_loop *loop)
{
    uint64_t one = 1;
    ssize_t n = write(loop->event_fd, &one, sizeof(one));

    (void)n; /* a full counter wakes as well */
}

/* The lock is held to the end: this call may be what closes the last link, and the loop go when it has been made. */
void link_loop_call(struct link_loop *loop, struct link_call *c)
{
    scoped_lock(&loop->lock);

    list_append(&loop->calls, &c->links);
    if (!loop->woken)
        wake(loop);
    loop->woken = true;
}

void link_wake_at(struct link_loop *loop, int64_t due_ns)
{
    if (!loop->next_ns || due_ns < loop->next_ns)
        loop->next_ns = due_ns;
}

void link_busy(struct link *l)
{
    if (list_empty(&l->busy))
        list_append(&l->loop->busy, &l->busy);
}

/* ── one turn ── */

static struct link_call *next_call(struct link_loop *loop)
{
    scoped_lock(&loop->lock);
    if (list_empty(&loop->calls)) {
        loop->woken = false; /* whoever adds one now wakes the thread from its sleep */
        return NULL;
    }
    struct list *first = loop->calls.next;
    list_remove(first);
    return container_of(first, struct link_call, links);
}

/* While calls are being made nobody needs to wake the thread. */
static void make_calls(struct link_loop *loop)
{
    struct link_call *c;

    {
        scoped_lock(&loop->lock);
        loop->woken = true;
    }
    while ((c = next_call(loop)))
        c->run(c);
}

static void take_turns(struct link_loop *loop)
{
    struct list turn;

    list_init(&turn);
    list_splice(&turn, &loop->busy);
    while (!list_empty(&turn)) {
        struct link *l = container_of(turn.next, struct link, busy);

        list_remove(&l->busy);
        l->refs++;
        link_receive(l);
        link_send(l);
        if (l->fd >= 0 && (l->readable || (l->writable && link_has_output(l))))
            link_busy(l);
        link_unref(l);
    }
}

static void check_deadlines(struct link_loop *loop)
{
    int64_t now;

    if (!loop->next_ns || (now = link_now_ns()) < loop->next_ns)
        return;
    loop->next_ns = 0;
    list_for_each_safe(pos, &loop->links)
        link_deadlines(container_of(pos, struct link, all), now);
}

static int timeout_ms(const struct link_loop *loop)
{
    int64_t left;

    if (!list_empty(&loop->busy))
        return 0;
    if (!loop->next_ns)
        return -1;
    left = loop->next_ns - link_now_ns();
    return left <= 0 ? 0 : (int)((left + 999999) / 1000000);
}

static void on_event(struct link_loop *loop, const struct epoll_event *e)
{
    struct link *l = e->data.ptr;
    uint64_t count;

    if (!l) {
        ssize_t n = read(loop->event_fd, &count, sizeof(count));
        (void)n;
        return;
    }
    if (e->events & EPOLLOUT)
        l->writable = true;
    if (e->events & ~(uint32_t)EPOLLOUT)
        l->readable = true;
    link_busy(l);
}

static bool is_ending(struct link_loop *loop)
{
    scoped_lock(&loop->lock);
    return loop->ending;
}

static void *run(void *arg)
{
    struct link_loop *loop = arg;
    struct epoll_event e[EVENTS];

    while (!is_ending(loop)) {
        int n = epoll_wait(loop->epoll_fd, e, EVENTS, timeout_ms(loop));

        /* A link cannot go before its event is looked at: only calls free links. */
        for (int i = 0; i < n; i++)
            on_event(loop, &e[i]);
        check_deadlines(loop);
        take_turns(loop);
        make_calls(loop);
    }
    return NULL;
}

/* ── life ── */

static int start_thread(struct link_loop *loop)
{
    sigset_t all, old;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = -pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r;
}

static void free_loop(struct link_loop *loop)
{
    if (loop->event_fd >= 0)
        close(loop->event_fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    pthread_mutex_destroy(&loop->lock);
    pthread_cond_destroy(&loop->none);
    free(loop->buf);
    free(loop);
}

static struct link_loop *alloc_loop(struct pool *pool, const struct link_id *host)
{
    struct link_loop *loop = calloc(1, sizeof(*loop));
    struct link_id epoch;

    if (!loop)
        return NULL;
    link_id_random(&epoch);
    memcpy(loop->host.b, host->b, sizeof(loop->host.b));
    memcpy(loop->epoch.b, epoch.b, sizeof(loop->epoch.b));
    loop->pool = pool;
    list_init(&loop->links);
    list_init(&loop->busy);
    list_init(&loop->calls);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->none, NULL);
    loop->buf = malloc(LOOP_BUF_BYTES);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return loop;
}

struct link_loop *link_loop_create(struct pool *pool, const struct link_id *host, struct err *e)
{
    struct link_loop *loop = alloc_loop(pool, host);
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = NULL };
    int r = -ENOMEM;

    if (loop && loop->buf) {
        r = loop->epoll_fd < 0 || loop->event_fd < 0 ||
            epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->event_fd, &ev) != 0 ? -errno : 0;
        if (r == 0)
            r = start_thread(loop);
    }
    if (r == 0)
        return loop;
    if (loop)
        free_loop(loop);
    err_sys(e, r, "the event loop of the sandboxes cannot be started");
    return NULL;
}

void link_loop_destroy(struct link_loop *loop)
{
    if (!loop)
        return;
    {
        scoped_lock(&loop->lock);
        while (atomic_load(&loop->n_links) > 0)
            pthread_cond_wait(&loop->none, &loop->lock);
        loop->ending = true;
    }
    wake(loop);
    pthread_join(loop->thread, NULL);
    free_loop(loop);
}

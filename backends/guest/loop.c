// SPDX-License-Identifier: Apache-2.0
/* The loop: a batch of events, then one turn for each stream that can be read and each connection that
 * can be written, so that nobody waits for a busy neighbour longer than a few hundred kilobytes take. */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define EVENTS 128

int64_t guest_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

uint64_t guest_wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void guest_wake_at(struct guest *g, int64_t due_ns)
{
    if (!g->next_ns || due_ns < g->next_ns)
        g->next_ns = due_ns;
}

int guest_watch(struct guest *g, struct source *s, uint32_t events)
{
    struct epoll_event e = { .events = events | EPOLLET, .data.ptr = s };

    if (fcntl(s->fd, F_SETFL, O_NONBLOCK) != 0 || epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, s->fd, &e) != 0)
        return -errno;
    return 0;
}

/* A child has copies of all descriptors until its execve is over, and the kernel lets its parent go on
 * before that: closing alone would leave the descriptor in the epoll set, with a pointer to memory that
 * is freed soon. */
void source_close(struct guest *g, struct source *s)
{
    if (s->fd < 0)
        return;
    epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    s->fd = -1;
}

/* ── deadlines ── */

static void greeting_deadlines(struct guest *g, int64_t now)
{
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &g->conns[i];

        if (c->state != CONN_GREETING)
            continue;
        if (now >= c->hello_by_ns)
            conn_close(g, c);
        else
            guest_wake_at(g, c->hello_by_ns);
    }
}

static void job_deadlines(struct guest *g, int64_t now, bool starved)
{
    list_for_each_safe(pos, &g->jobs) {
        struct job *j = container_of(pos, struct job, all);

        if (j->deadline_ns && now >= j->deadline_ns)
            job_deadline(g, j);
        if (j->deadline_ns)
            guest_wake_at(g, j->deadline_ns);
        if (starved) {
            output_retry(g, &j->out[PROTO_STDOUT]);
            output_retry(g, &j->out[PROTO_STDERR]);
        }
    }
}

/* The earliest deadline has come: whose it is, a look at all of them tells. */
static void deadlines(struct guest *g)
{
    int64_t now = guest_now_ns();
    bool starved = g->starved;

    if (!g->next_ns || now < g->next_ns)
        return;
    g->next_ns = 0;
    g->starved = false;
    greeting_deadlines(g, now);
    job_deadlines(g, now, starved);
    outputs_trim(g, now);
    if (g->lonely_ns)
        guest_lonely(g, now);
    if (g->stopping)
        guest_stop_step(g);
}

/* ── turns ── */

static void read_turn(struct guest *g)
{
    struct list turn;

    list_init(&turn);
    list_splice(&turn, &g->readable);
    while (!list_empty(&turn))
        output_read(g, container_of(turn.next, struct output, readable));
}

static void conn_turns(struct guest *g)
{
    for (unsigned i = 0; i < CONNS_MAX; i++)
        if (g->conns[i].state != CONN_FREE && g->conns[i].readable)
            conn_read(g, &g->conns[i]);
    for (unsigned i = 0; i < CONNS_MAX; i++)
        if (g->conns[i].state != CONN_FREE)
            conn_write(g, &g->conns[i]);
}

static bool more_to_do(const struct guest *g)
{
    if (!list_empty(&g->readable))
        return true;
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        const struct conn *c = &g->conns[i];

        if (c->state != CONN_FREE && (c->readable || (c->writable && conn_has_output(c))))
            return true;
    }
    return false;
}

static int timeout_ms(const struct guest *g)
{
    int64_t left;

    if (more_to_do(g))
        return 0;
    if (!g->next_ns)
        return -1;
    left = g->next_ns - guest_now_ns();
    return left <= 0 ? 0 : left > 1000000000000ll ? 1000000 : (int)((left + 999999) / 1000000);
}

/* Children are looked at last: most have closed their streams by then, and there is nothing to ask for. */
static void events(struct guest *g, struct epoll_event *e, int n)
{
    bool children = false;

    for (int i = 0; i < n; i++) {
        struct source *s = e[i].data.ptr;

        if (s == &g->signals)
            children = true;
        else if (s->fd >= 0)
            s->ready(g, s, e[i].events);
    }
    if (children)
        g->signals.ready(g, &g->signals, EPOLLIN);
}

int guest_loop(struct guest *g)
{
    struct epoll_event e[EVENTS];

    while (!g->over) {
        int n = epoll_wait(g->epoll_fd, e, EVENTS, timeout_ms(g));

        if (n < 0 && errno != EINTR)
            return -errno;
        events(g, e, n);
        deadlines(g);
        read_turn(g);
        conn_turns(g);
        tree_forget(g);
        jobs_free_dead(g);
        drains_free_dead(g);
    }
    return 0;
}

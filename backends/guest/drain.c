// SPDX-License-Identifier: Apache-2.0
/* Pipes that outlive their job: what it left in the background goes on printing to nobody. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define TURNS 16 /* reads of one event, so that an endless printer leaves time for others */

struct drain {
    struct source src;
    struct list   links; /* guest.drains; once closed, until the end of the turn, guest.dead_drains */
};

static void ready(struct guest *g, struct source *s, uint32_t events)
{
    struct drain *d = (struct drain *)(void *)s;
    char buf[16384];
    ssize_t n = 0;

    (void)events;
    for (int i = 0; i < TURNS; i++)
        if ((n = read(s->fd, buf, sizeof(buf))) <= 0)
            break;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    source_close(g, s);
    list_remove(&d->links);
    list_append(&g->dead_drains, &d->links);
}

void drain_add(struct guest *g, int fd)
{
    struct drain *d = malloc(sizeof(*d));
    struct epoll_event e = { .events = EPOLLIN };

    if (!d) {
        close(fd);
        return;
    }
    *d = (struct drain){ .src = { fd, ready } };
    e.data.ptr = &d->src;
    /* Level-triggered: what one turn leaves is for the next. */
    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, fd, &e) != 0) {
        close(fd);
        free(d);
        return;
    }
    list_append(&g->drains, &d->links);
}

void drains_free_dead(struct guest *g)
{
    while (!list_empty(&g->dead_drains)) {
        struct list *l = g->dead_drains.next;

        list_remove(l);
        free((char *)l - offsetof(struct drain, links));
    }
}

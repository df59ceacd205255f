// SPDX-License-Identifier: Apache-2.0
/* Who speaks to this guest, and the answers kept for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/guest/guest.h"

static void forget_records(struct host *h)
{
    for (unsigned b = 0; b < RECORD_BUCKETS; b++) {
        struct record *r = h->records[b], *next;

        for (; r; r = next) {
            next = r->next;
            list_remove(&r->unsent);
            free(r);
        }
        h->records[b] = NULL;
    }
    h->n_records = 0;
}

static struct host *known(struct guest *g, const struct proto_id *id)
{
    for (unsigned i = 0; i < HOSTS_MAX; i++)
        if (g->hosts[i].used && proto_id_equal(&g->hosts[i].id, id))
            return &g->hosts[i];
    return NULL;
}

static bool owns_jobs(struct guest *g, const struct host *h)
{
    list_for_each(pos, &g->jobs)
        if (container_of(pos, struct job, all)->host == h)
            return true;
    return false;
}

static void disown(struct guest *g, const struct host *h)
{
    list_for_each(pos, &g->jobs)
        if (container_of(pos, struct job, all)->host == h)
            container_of(pos, struct job, all)->host = NULL;
}

/* A free place, else that of the host that has been away longest, those without jobs first. */
static struct host *vacate(struct guest *g)
{
    struct host *best = NULL;
    bool best_owns = false;

    for (unsigned i = 0; i < HOSTS_MAX; i++) {
        struct host *h = &g->hosts[i];

        if (!h->used)
            return h;
        if (h->conn)
            continue;
        bool owns = owns_jobs(g, h);
        if (!best || (best_owns && !owns) || (best_owns == owns && h->seen < best->seen)) {
            best = h;
            best_owns = owns;
        }
    }
    if (best) {
        forget_records(best);
        disown(g, best);
    }
    return best;
}

struct host *host_enter(struct guest *g, const struct proto_id *id, const struct proto_id *epoch)
{
    struct host *h = known(g, id);

    if (!h) {
        h = vacate(g);
        if (!h)
            return NULL;
        memset(h, 0, sizeof(*h));
        h->used = true;
        h->id = *id;
        h->epoch = *epoch;
    }
    if (h->conn)
        conn_goodbye(g, h->conn, -ESTALE, "this host has connected anew");
    if (!proto_id_equal(&h->epoch, epoch)) {
        forget_records(h);
        h->epoch = *epoch;
    }
    h->seen = ++g->serial;
    return h;
}

static struct record **place(struct host *h, uint64_t tag)
{
    struct record **at = &h->records[tag % RECORD_BUCKETS];

    while (*at && (*at)->tag != tag)
        at = &(*at)->next;
    return at;
}

struct record *host_record(struct host *h, uint64_t tag) { return *place(h, tag); }

void host_keep(struct host *h, struct record *r)
{
    r->kept = true;
    r->next = NULL;
    *place(h, r->tag) = r;
    h->n_records++;
}

static void drop(struct host *h, struct record **at)
{
    struct record *r = *at;

    *at = r->next;
    list_remove(&r->unsent);
    free(r);
    h->n_records--;
}

void host_acknowledge(struct host *h, const struct proto_ack *m)
{
    for (unsigned b = 0; b < RECORD_BUCKETS && h->n_records; b++)
        for (struct record **at = &h->records[b]; *at;) {
            if ((*at)->tag < m->below)
                drop(h, at);
            else
                at = &(*at)->next;
        }
    for (uint32_t i = 0; i < proto_tag_count(m); i++) {
        struct record **at = place(h, proto_tag_at(m, i));

        if (*at)
            drop(h, at);
    }
}

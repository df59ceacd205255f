// SPDX-License-Identifier: Apache-2.0
/* Output for which the disk has no room: kept in memory, in its order, until it has. It is not acknowledged
 * meanwhile, so the guest sends no more than its window and the job waits; nor is the job's end told. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"

struct piece {
    struct list links;   /* in job.unsaved */
    int    stream;
    size_t size;
    char   data[];
};

/* job.store_lock held. */
static void free_pieces(struct job *j)
{
    while (!list_empty(&j->unsaved)) {
        struct piece *p = container_of(j->unsaved.next, struct piece, links);
        list_remove(&p->links);
        free(p);
    }
    atomic_store(&j->unsaved_bytes, 0);
}

static int append(struct job *j, int stream, const void *data, size_t size)
{
    int r = spool_append(&j->spool, stream, data, size);

    if (r == 0)
        job_charge(j, size);
    return r;
}

/* They are counted as dropped, and so is what the stream had before: a file has one hole, in front. */
static void lose(struct job *j, int stream, size_t size, int r)
{
    uint64_t had = atomic_load(&j->spool.size[stream]);

    if (!j->lost)
        log_warning("output of job %s cannot be stored and is lost: %s", job_name(j), strerror(-r));
    j->lost = true;
    job_uncharge(j, had - atomic_load(&j->spool.start[stream])); /* who waits is told without the lock */
    spool_skip(&j->spool, stream, had + size);
}

static bool keep_piece(struct job *j, int stream, const void *data, size_t size)
{
    struct piece *p = malloc(sizeof(*p) + size);

    if (!p)
        return false;
    p->stream = stream;
    p->size = size;
    memcpy(p->data, data, size);
    list_append(&j->unsaved, &p->links);
    atomic_fetch_add(&j->unsaved_bytes, size);
    return true;
}

/* True: there may be room for others. */
static bool store(struct job *j, int stream, const void *data, size_t size)
{
    scoped_lock(&j->store_lock);
    bool first = list_empty(&j->unsaved);
    int r = j->sealed ? 0 : first ? append(j, stream, data, size) : -ENOSPC;

    if (r == 0)
        return false;
    if (job_must_not_wait(j) || !keep_piece(j, stream, data, size)) {
        lose(j, stream, size, r);
        return true;
    }
    if (first)
        log_warning("output of job %s cannot be stored: %s; the job waits", job_name(j), strerror(-r));
    return false;
}

void job_store(struct job *j, int stream, const void *data, size_t size)
{
    if (store(j, stream, data, size))
        jobs_room(j->jobs);
}

/* job.store_lock held. As far as there is room now; with `lose_rest` none is left. True: there may be room for
 * others. */
static bool save_locked(struct job *j, bool lose_rest)
{
    bool room = false;

    while (!list_empty(&j->unsaved)) {
        struct piece *p = container_of(j->unsaved.next, struct piece, links);
        int r = append(j, p->stream, p->data, p->size);
        if (r < 0 && !lose_rest)
            return room;
        if (r < 0)
            lose(j, p->stream, p->size, r);
        room = room || r < 0;
        atomic_fetch_sub(&j->unsaved_bytes, p->size);
        list_remove(&p->links);
        free(p);
    }
    return room;
}

void job_save(struct job *j)
{
    struct link_exit end;
    bool ends, room;

    job_spool_use(j);
    pthread_mutex_lock(&j->store_lock);
    room = save_locked(j, job_must_not_wait(j));
    ends = j->end_held && list_empty(&j->unsaved);
    end = j->held_end;
    if (ends)
        j->end_held = false;
    pthread_mutex_unlock(&j->store_lock);
    job_spool_unuse(j);
    if (room)
        jobs_room(j->jobs);
    for (int s = 0; s < SPOOL_STREAMS; s++)
        job_output_news(j, s);
    if (!ends)
        return;
    job_end(j, &end);
    free((char *)end.text);
}

bool job_hold_end(struct job *j, const struct link_exit *x)
{
    if (atomic_load(&j->unsaved_bytes) == 0)
        return false;
    scoped_lock(&j->store_lock);
    if (list_empty(&j->unsaved) || job_must_not_wait(j))
        return false;
    j->end_held = true;
    j->held_end = *x;
    j->held_end.text = x->text ? strdup(x->text) : NULL;
    return true;
}

void job_save_last(struct job *j)
{
    bool room;

    job_spool_use(j);
    pthread_mutex_lock(&j->store_lock);
    room = save_locked(j, true);
    j->sealed = true;
    pthread_mutex_unlock(&j->store_lock);
    job_spool_unuse(j);
    if (room)
        jobs_room(j->jobs);
}

void job_unsaved_free(struct job *j)
{
    free_pieces(j);
    if (j->end_held)
        free((char *)j->held_end.text);
    pthread_mutex_destroy(&j->store_lock);
}

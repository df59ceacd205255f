// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/flight.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define ALONE_MS 300000 /* for work that nobody can cancel: the close of the workspace waits for it */
#define LOOK_MS  100    /* between two looks at whether it is cancelled */

/* What the one who works tells. */
struct word {
    unsigned number; /* 0: nothing yet */
    char step[16], text[256];
    uint64_t done_bytes, total_bytes;
};

struct flight {
    struct flight *next;
    char *name;
    unsigned users;
    bool over;
    int  result;
    struct err why;
    struct word word;
};

struct flights {
    pthread_mutex_t lock; /* guards all flights; a leaf: nothing is called under it */
    pthread_cond_t  news; /* some flight has a new word, or is over */
    struct flight  *first; /* those that are not over */
};

int flights_create(struct flights **out, struct err *e)
{
    struct flights *fs = calloc(1, sizeof(*fs));
    pthread_condattr_t a;

    if (!fs)
        return err_set(e, -ENOMEM, "out of memory");
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&fs->news, &a);
    pthread_condattr_destroy(&a);
    pthread_mutex_init(&fs->lock, NULL);
    *out = fs;
    return 0;
}

void flights_destroy(struct flights *fs)
{
    if (!fs)
        return;
    pthread_cond_destroy(&fs->news);
    pthread_mutex_destroy(&fs->lock);
    free(fs);
}

/* ── who is there ────────────────────────────────────────────────────────────────────────── */

static int64_t now_ms(void) { return clock_ns() / 1000000; }

/* The flight of that name, with one user more; *leads: it is new, and the caller's to do. NULL: out of memory. */
static struct flight *enter(struct flights *fs, const char *name, bool *leads)
{
    struct flight *f;
    scoped_lock(&fs->lock);

    for (f = fs->first; f && strcmp(f->name, name) != 0;)
        f = f->next;
    *leads = !f;
    if (!f) {
        f = calloc(1, sizeof(*f));
        if (!f || !(f->name = strdup(name))) {
            free(f);
            return NULL;
        }
        f->next = fs->first;
        fs->first = f;
    }
    f->users++;
    return f;
}

static void leave(struct flights *fs, struct flight *f)
{
    bool last;

    pthread_mutex_lock(&fs->lock);
    last = --f->users == 0;
    pthread_mutex_unlock(&fs->lock);
    if (!last)
        return;
    free(f->name);
    free(f);
}

/* ── the one who works ───────────────────────────────────────────────────────────────────── */

struct teller {
    struct backend_progress all; /* first */
    struct backend_progress *own; /* or NULL */
    struct flights *fs;
    struct flight *f;
    int64_t until_ms;             /* of one that has no `own` */
};

static void tell_all(struct backend_progress *p, const char *step, const char *text, uint64_t done, uint64_t total)
{
    struct teller *t = (struct teller *)p;
    struct word *w = &t->f->word;

    pthread_mutex_lock(&t->fs->lock);
    w->number++;
    snprintf(w->step, sizeof(w->step), "%s", step);
    snprintf(w->text, sizeof(w->text), "%s", text);
    w->done_bytes = done;
    w->total_bytes = total;
    pthread_cond_broadcast(&t->fs->news);
    pthread_mutex_unlock(&t->fs->lock);
    if (t->own)
        t->own->step(t->own, step, text, done, total);
}

static bool is_over(struct backend_progress *own, int64_t until_ms)
{
    return own ? own->cancelled(own) : now_ms() > until_ms;
}

static bool teller_cancelled(struct backend_progress *p)
{
    struct teller *t = (struct teller *)p;

    return is_over(t->own, t->until_ms);
}

static void finish(struct flights *fs, struct flight *f, int result, const struct err *why)
{
    struct flight **at = &fs->first;
    scoped_lock(&fs->lock);

    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    f->over = true;
    f->result = result;
    f->why = *why;
    pthread_cond_broadcast(&fs->news);
}

/* ── those who wait ──────────────────────────────────────────────────────────────────────── */

/* Waits a moment for anything newer than `seen`, and copies what there is. */
static bool look(struct flights *fs, struct flight *f, unsigned seen, struct word *word)
{
    struct timespec until;
    scoped_lock(&fs->lock);

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (!f->over && f->word.number == seen)
        if (pthread_cond_timedwait(&fs->news, &fs->lock, &until) == ETIMEDOUT)
            break;
    *word = f->word;
    return f->over;
}

/* -ECANCELED as the flight's own end is no end for who waits. */
static int follow(struct flights *fs, struct flight *f, struct backend_progress *p, int64_t until_ms, struct err *e)
{
    struct word word = { 0 };
    unsigned seen = 0;
    bool over = false;

    while (!over && !is_over(p, until_ms)) {
        over = look(fs, f, seen, &word);
        if (p && word.number != seen)
            p->step(p, word.step, word.text, word.done_bytes, word.total_bytes);
        seen = word.number;
    }
    if (!over)
        return err_set(e, -ECANCELED, "cancelled");
    if (e && f->result < 0)
        *e = f->why;
    return f->result;
}

int flights_join(struct flights *fs, const char *name, struct backend_progress *p, flight_work *work, void *arg,
                 struct err *e)
{
    int64_t until_ms = now_ms() + ALONE_MS;
    int r;

    do {
        struct err why = { 0 };
        bool leads;
        struct flight *f = enter(fs, name, &leads);
        struct teller t = { { tell_all, teller_cancelled }, p, fs, f, until_ms };
        if (!f)
            return err_set(e, -ENOMEM, "out of memory");
        r = leads ? work(arg, &t.all, &why) : follow(fs, f, p, until_ms, &why);
        if (leads)
            finish(fs, f, r, &why);
        leave(fs, f);
        if (e && r < 0)
            *e = why;
        if (leads)
            break;
    } while (r == -ECANCELED && !is_over(p, until_ms));
    if (r == -ECANCELED && !p)
        return err_set(e, -ETIMEDOUT, "the image takes longer than %d s", ALONE_MS / 1000);
    return r;
}

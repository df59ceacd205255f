// SPDX-License-Identifier: Apache-2.0
/* What jobs take of the daemon's memory: counted for each user, so that none can take all of it by writing to jobs that
 * never start, and given back when a job has ended. */
#include <errno.h>
#include <stdlib.h>

#include "fs/jobs/internal.h"

#define USER_MAX_BYTES (UINT64_C(256) << 20)
#define KEPT_TEXT_BYTES 512 /* a longer text of an ended job is read from its record when somebody wants it */

bool job_memory_take(struct job *j, size_t bytes)
{
    uint64_t before;

    if (!j->share)
        return true;
    before = atomic_fetch_add(&j->share->memory_bytes, bytes);
    if (bytes <= USER_MAX_BYTES && before <= USER_MAX_BYTES - bytes)
        return true;
    atomic_fetch_sub(&j->share->memory_bytes, bytes);
    return false;
}

void job_memory_give(struct job *j, size_t bytes)
{
    if (j->share)
        atomic_fetch_sub(&j->share->memory_bytes, bytes);
}

int job_memory_full(struct err *e)
{
    return err_set(e, -EDQUOT, "this user's jobs that have not ended take %d MiB of memory: remove or start some",
                   (int)(USER_MAX_BYTES >> 20));
}

bool job_hold_locked(struct job *j, size_t more, size_t less)
{
    if (more > less && !job_memory_take(j, more - less))
        return false;
    if (less > more)
        job_memory_give(j, less - more);
    j->held_bytes += more - less;
    return true;
}

/* ── texts of ended jobs ─────────────────────────────────────────────────────────────────── */

void job_texts_use(struct job *j)
{
    scoped_lock(&j->lock);

    j->text_users++;
}

void job_texts_unuse(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    j->text_users--;
    pthread_mutex_unlock(&j->lock);
    job_texts_settle(j);
}

void job_texts_settle(struct job *j)
{
    scoped_lock(&j->lock);
    size_t left = j->file_bytes;

    if (j->state != JOB_ENDED || !j->recorded || !j->in_record || j->text_users)
        return;
    for (int i = 0; i < JOB_TEXTS; i++) {
        struct record_text *t = &j->rec.texts[i];
        if (t->text && t->size > KEPT_TEXT_BYTES) {
            free(t->text);
            t->text = NULL;
            t->stored = true;
        }
        left += t->stored ? 0 : t->size;
    }
    if (j->held_bytes > left)
        job_hold_locked(j, left, j->held_bytes);
}

char *job_text_stored(struct job *j, enum job_text which, size_t size)
{
    struct record r;
    char *text = NULL;
    scoped_lock(&j->io_lock);

    if (j->unrecorded || record_read(j->jobs->dir_fd, j->hex, &r) < 0)
        return NULL;
    if (r.texts[which].size == size) {
        text = r.texts[which].text;
        r.texts[which].text = NULL;
    }
    record_finish(&r);
    return text;
}

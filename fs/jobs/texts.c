// SPDX-License-Identifier: Apache-2.0
/* The texts that are written about a job before its start. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"

char *job_text(struct job *j, enum job_text which, size_t *size, int64_t *changed_ms)
{
    const struct record_text *t = &j->rec.texts[which];
    char *copy = NULL;
    bool stored;

    pthread_mutex_lock(&j->lock);
    stored = t->stored;
    if (!stored)
        copy = malloc(t->size + 1);
    if (copy && t->size)
        memcpy(copy, t->text, t->size);
    *size = t->size;
    *changed_ms = t->changed_ms ? t->changed_ms : j->rec.made_ms;
    pthread_mutex_unlock(&j->lock);
    return stored ? job_text_stored(j, which, *size) : copy;
}

void job_text_stat(struct job *j, enum job_text which, size_t *size, int64_t *changed_ms)
{
    scoped_lock(&j->lock);
    const struct record_text *t = &j->rec.texts[which];

    *size = t->size;
    *changed_ms = t->changed_ms ? t->changed_ms : j->rec.made_ms;
}

void job_writer_add(struct job *j)
{
    scoped_lock(&j->lock);

    j->writers++;
}

void job_writer_remove(struct job *j)
{
    scoped_lock(&j->lock);

    j->writers--;
}

void job_text_hide(struct job *j, enum job_text which, bool hidden)
{
    scoped_lock(&j->lock);

    j->hidden = hidden ? j->hidden | 1u << which : j->hidden & ~(1u << which);
}

bool job_text_hidden(struct job *j, enum job_text which)
{
    scoped_lock(&j->lock);

    return j->hidden & 1u << which;
}

/* ── what they mean ──────────────────────────────────────────────────────────────────────── */

static int no_nul(const char *text, size_t size, struct err *e)
{
    return memchr(text, '\0', size) ? err_set(e, -EINVAL, "a command holds no NUL byte") : 0;
}

/* Between pieces at their offsets there may be a gap before all of it is there. */
static int mean_cmd(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    (void)j;
    return whole ? no_nul(text, size, e) : 0;
}

/* Cannot be judged before all of it is there. */
static int mean_argv(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    settings_list l = NULL;
    int r = whole ? settings_argv(text, size, &l, e) : 0;

    (void)j;
    free(l);
    return r;
}

static int mean_cwd(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    cleanup_free char *own = job_own_path(j), *out = NULL;

    (void)whole;
    return settings_cwd(text, size, own, &out, e);
}

static int mean_env(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    settings_list l = NULL;
    int r = settings_env(text, size, whole, &l, e);

    (void)j;
    free(l);
    return r;
}

static int mean_timeout(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    uint64_t ms;

    (void)j;
    (void)whole;
    return settings_timeout(text, size, &ms, e);
}

static int mean_tty(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    uint16_t cols, rows;

    (void)j;
    (void)whole;
    return settings_tty(text, size, &cols, &rows, e);
}

static int mean_user(struct job *j, const char *text, size_t size, bool whole, struct err *e)
{
    cleanup_free char *user = NULL;

    (void)j;
    (void)whole;
    return settings_user(text, size, &user, e);
}

/* `whole`: no more is to come. */
static int (*const meanings[JOB_TEXTS])(struct job *j, const char *text, size_t size, bool whole, struct err *e) = {
    [JOB_CMD] = mean_cmd,         [JOB_ARGV] = mean_argv, [JOB_CWD] = mean_cwd,   [JOB_ENV] = mean_env,
    [JOB_TIMEOUT] = mean_timeout, [JOB_TTY] = mean_tty,   [JOB_USER] = mean_user,
};

int job_text_meaning(struct job *j, enum job_text which, struct err *e)
{
    size_t size;
    int64_t changed_ms;
    cleanup_free char *text = job_text(j, which, &size, &changed_ms);

    if (!text)
        return err_set(e, -ENOMEM, "out of memory");
    if (size == 0)
        return 0;
    return meanings[which](j, text, size, true, e);
}

int job_text_check(struct job *j, enum job_text which, struct err *e)
{
    int r = job_state(j) == JOB_NEW ? job_text_meaning(j, which, e) : 0;

    if (r == 0 && which <= JOB_ARGV && job_state(j) == JOB_NEW)
        r = session_job_check(j->place, e);
    return r;
}

#define REPLACE UINT64_MAX /* in place of an offset: all of it */

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

/* The text with the piece in it, malloc'ed; what lies between is zeros. */
static char *merge(const struct record_text *t, const void *data, size_t size, uint64_t at, size_t *out_size)
{
    char *text;

    *out_size = at + size > t->size ? (size_t)(at + size) : t->size;
    text = calloc(1, *out_size + 1);
    if (!text)
        return NULL;
    if (t->size)
        memcpy(text, t->text, t->size);
    memcpy(text + at, data, size);
    return text;
}

/* job.lock held. Takes over the text, unless there is no memory for it: false. */
static bool put_locked(struct job *j, enum job_text which, char *text, size_t size)
{
    struct record_text *t = &j->rec.texts[which];
    int64_t now_ms = wall_ms(), old_ms = t->changed_ms ? t->changed_ms : j->rec.made_ms;

    if (!job_hold_locked(j, size, t->size))
        return false;
    free(t->text);
    t->text = text;
    t->size = size;
    t->changed_ms = now_ms > old_ms ? now_ms : old_ms + 1; /* never the same for another text */
    if (which <= JOB_ARGV)
        j->last_written = which;
    return true;
}

/* What the text would be; NULL and *r: it cannot be. */
static char *merged(struct job *j, enum job_text which, const void *data, size_t size, uint64_t at, size_t *new_size,
                    int *r, struct err *e)
{
    static const struct record_text none;
    scoped_lock(&j->lock);
    char *text = NULL;

    if (j->state != JOB_NEW) {
        *r = err_set(e, -EBUSY, "the job was started before");
        return NULL;
    }
    text = merge(at == REPLACE ? &none : &j->rec.texts[which], data, size, at == REPLACE ? 0 : at, new_size);
    *r = text ? 0 : err_set(e, -ENOMEM, "out of memory");
    return text;
}

static int put(struct job *j, enum job_text which, const void *data, size_t size, uint64_t at, struct err *e)
{
    size_t new_size = 0;
    int r = which <= JOB_ARGV ? session_job_check(j->place, e) : 0;

    if (r == 0 && which == JOB_CMD)
        r = no_nul(data, size, e);
    cleanup_free char *text = r == 0 ? merged(j, which, data, size, at, &new_size, &r, e) : NULL;

    if (r == 0)
        r = meanings[which](j, text, new_size, at == REPLACE, e);
    if (r < 0)
        return r;
    scoped_lock(&j->lock);
    if (j->state != JOB_NEW)
        return err_set(e, -EBUSY, "the job was started before");
    if (!put_locked(j, which, text, new_size))
        return job_memory_full(e);
    text = NULL;
    return 0;
}

int job_text_write(struct job *j, enum job_text which, const void *data, size_t size, uint64_t at, struct err *e)
{
    if (at > SETTINGS_TEXT_MAX_BYTES || size > SETTINGS_TEXT_MAX_BYTES - at)
        return err_set(e, -EFBIG, "this text has at most 1 MiB");
    return put(j, which, data, size, at, e);
}

int job_text_replace(struct job *j, enum job_text which, const void *data, size_t size, struct err *e)
{
    if (size > SETTINGS_TEXT_MAX_BYTES)
        return err_set(e, -EFBIG, "this text has at most 1 MiB");
    return put(j, which, data, size, REPLACE, e);
}

int job_text_truncate(struct job *j, enum job_text which, uint64_t size)
{
    scoped_lock(&j->lock);
    const struct record_text *t = &j->rec.texts[which];
    char *text;

    if (j->state != JOB_NEW || size == t->size)
        return 0;
    if (size > SETTINGS_TEXT_MAX_BYTES)
        return -EFBIG;
    text = calloc(1, size + 1);
    if (!text)
        return -ENOMEM;
    if (t->size && size)
        memcpy(text, t->text, t->size < size ? t->size : (size_t)size);
    if (put_locked(j, which, text, (size_t)size))
        return 0;
    free(text);
    return -EDQUOT;
}

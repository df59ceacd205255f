// SPDX-License-Identifier: Apache-2.0
/* Files in a job's directory beside the fixed ones. Their bytes are guarded by the job's lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"

#define FILE_COST 128 /* of one that is empty, its name included */

struct job_file {
    atomic_uint refs;
    struct job *job;   /* referenced by each reference but the job's own */
    struct list links; /* job.files; empty: removed */
    uint64_t    number;
    char       *name;
    char       *data;
    size_t      size;
    mode_t      mode;
    int64_t     changed_ms;
};

/* job.lock held. */
static struct job_file *find_locked(struct job *j, const char *name)
{
    list_for_each(pos, &j->files) {
        struct job_file *f = container_of(pos, struct job_file, links);
        if (strcmp(f->name, name) == 0)
            return f;
    }
    return NULL;
}

/* job.lock held: takes or gives back what the limit counts. */
static bool charge_locked(struct job *j, size_t more, size_t less)
{
    if (more > less && (more - less > JOB_FILES_MAX_BYTES || j->file_bytes + (more - less) > JOB_FILES_MAX_BYTES))
        return false;
    if (!job_hold_locked(j, more, less))
        return false;
    j->file_bytes += more;
    j->file_bytes -= less;
    return true;
}

static struct job_file *file_new(struct job *j, const char *name, mode_t mode)
{
    struct job_file *f = calloc(1, sizeof(*f));

    if (f)
        f->name = strdup(name);
    if (!f || !f->name) {
        free(f);
        return NULL;
    }
    atomic_init(&f->refs, 2); /* the job's and the caller's */
    f->job = j;
    f->mode = mode & 0777;
    f->changed_ms = wall_ms();
    list_init(&f->links);
    return f;
}

static void file_free(struct job_file *f)
{
    free(f->name);
    free(f->data);
    free(f);
}

/* job.lock held: one reference less. */
static void drop_locked(struct job_file *f)
{
    if (atomic_fetch_sub(&f->refs, 1) != 1)
        return;
    charge_locked(f->job, 0, f->size + FILE_COST);
    file_free(f);
}

void job_file_ref(struct job_file *f)
{
    atomic_fetch_add(&f->refs, 1);
    job_ref(f->job);
}

void job_file_unref(struct job_file *f)
{
    struct job *j = f->job;

    pthread_mutex_lock(&j->lock);
    drop_locked(f);
    pthread_mutex_unlock(&j->lock);
    job_unref(j);
}

/* What nobody has open; whoever has one open holds the job. */
void job_files_free(struct job *j)
{
    list_for_each_safe(pos, &j->files)
        file_free(container_of(pos, struct job_file, links));
}

static int make_locked(struct job *j, struct job_file *f)
{
    if (j->state != JOB_NEW)
        return -EPERM;
    if (find_locked(j, f->name))
        return -EEXIST;
    if (!charge_locked(j, FILE_COST, 0))
        return -EDQUOT;
    f->number = ++j->last_file;
    list_append(&j->files, &f->links);
    return 0;
}

int job_file_make(struct job *j, const char *name, mode_t mode, struct job_file **out)
{
    struct job_file *f = file_new(j, name, mode);
    int r;

    if (!f)
        return -ENOMEM;
    pthread_mutex_lock(&j->lock);
    r = make_locked(j, f);
    pthread_mutex_unlock(&j->lock);
    if (r < 0) {
        file_free(f);
        return r;
    }
    job_ref(j);
    *out = f;
    return 0;
}

int job_file_find(struct job *j, const char *name, struct job_file **out)
{
    scoped_lock(&j->lock);
    struct job_file *f = find_locked(j, name);

    if (!f)
        return -ENOENT;
    atomic_fetch_add(&f->refs, 1);
    job_ref(j);
    *out = f;
    return 0;
}

void job_files_each(struct job *j, void (*fn)(const char *name, uint64_t number, void *arg), void *arg)
{
    scoped_lock(&j->lock);

    list_for_each(pos, &j->files) {
        struct job_file *f = container_of(pos, struct job_file, links);
        fn(f->name, f->number, arg);
    }
}

/* ── names ───────────────────────────────────────────────────────────────────────────────── */

/* job.lock held: out of the list, with the job's reference. */
static void remove_locked(struct job_file *f)
{
    list_remove(&f->links);
    drop_locked(f);
}

int job_file_remove(struct job *j, const char *name)
{
    scoped_lock(&j->lock);
    struct job_file *f = find_locked(j, name);

    if (!f)
        return -ENOENT;
    remove_locked(f);
    return 0;
}

int job_file_rename(struct job *j, const char *name, const char *to, bool keep)
{
    char *copy = strdup(to);
    scoped_lock(&j->lock);
    struct job_file *f = find_locked(j, name), *other = find_locked(j, to);

    if (!copy || !f || f == other || (other && keep)) {
        free(copy);
        return !copy ? -ENOMEM : !f ? -ENOENT : other && keep ? -EEXIST : 0;
    }
    if (other)
        remove_locked(other);
    free(f->name);
    f->name = copy;
    return 0;
}

/* ── bytes ───────────────────────────────────────────────────────────────────────────────── */

void job_file_stat(struct job_file *f, struct job_file_stat *out)
{
    scoped_lock(&f->job->lock);

    *out = (struct job_file_stat){ f->number, f->size, f->mode, f->changed_ms };
}

ssize_t job_file_read(struct job_file *f, uint64_t at, void *buf, size_t size)
{
    scoped_lock(&f->job->lock);

    if (at >= f->size)
        return 0;
    if (size > f->size - at)
        size = f->size - (size_t)at;
    memcpy(buf, f->data + at, size);
    return (ssize_t)size;
}

/* job.lock held. */
static int resize_locked(struct job_file *f, size_t size)
{
    char *data;

    if (!charge_locked(f->job, size, f->size))
        return -EDQUOT;
    data = realloc(f->data, size + 1);
    if (!data) {
        charge_locked(f->job, f->size, size);
        return -ENOMEM;
    }
    if (size > f->size)
        memset(data + f->size, 0, size - f->size);
    f->data = data;
    f->size = size;
    f->changed_ms = wall_ms();
    return 0;
}

int job_file_write(struct job_file *f, const void *data, size_t size, uint64_t at)
{
    scoped_lock(&f->job->lock);
    int r = 0;

    if (at > JOB_FILES_MAX_BYTES || size > JOB_FILES_MAX_BYTES)
        return -EDQUOT;
    if (at + size > f->size)
        r = resize_locked(f, (size_t)at + size);
    if (r < 0)
        return r;
    if (size)
        memcpy(f->data + at, data, size);
    f->changed_ms = wall_ms();
    return 0;
}

int job_file_truncate(struct job_file *f, uint64_t size)
{
    scoped_lock(&f->job->lock);

    return size > JOB_FILES_MAX_BYTES ? -EDQUOT : resize_locked(f, (size_t)size);
}

void job_file_chmod(struct job_file *f, mode_t mode)
{
    scoped_lock(&f->job->lock);

    f->mode = mode & 0777;
}

/* ── between files and texts ─────────────────────────────────────────────────────────────── */

int job_file_to_text(struct job *j, const char *name, enum job_text which, struct err *e)
{
    cleanup_free char *copy = NULL;
    struct job_file *f;
    size_t size = 0;
    int r;

    pthread_mutex_lock(&j->lock);
    f = find_locked(j, name);
    if (f) {
        size = f->size;
        copy = malloc(size + 1);
        if (copy && size)
            memcpy(copy, f->data, size);
    }
    pthread_mutex_unlock(&j->lock);
    if (!copy)
        return err_set(e, f ? -ENOMEM : -ENOENT, f ? "out of memory" : "there is no such file");
    r = job_text_replace(j, which, copy, size, e);
    if (r == 0)
        job_file_remove(j, name);
    return r;
}

int job_file_from_text(struct job *j, enum job_text which, const char *to, bool keep)
{
    size_t size;
    int64_t changed_ms;
    cleanup_free char *text = job_text(j, which, &size, &changed_ms);
    struct job_file *f;
    int r;

    if (!text)
        return -ENOMEM;
    if (job_state(j) != JOB_NEW)
        return -EBUSY;
    if (!keep)
        job_file_remove(j, to);
    r = job_file_make(j, to, 0644, &f);
    if (r < 0)
        return r;
    r = job_file_write(f, text, size, 0);
    if (r < 0)
        job_file_remove(j, to);
    job_file_unref(f);
    return r == 0 ? job_text_truncate(j, which, 0) : r;
}

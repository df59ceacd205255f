// SPDX-License-Identifier: Apache-2.0
/* Open files of a job that never wait: its texts, fixed contents, the log, streams of an ended job. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/jobs.h"

struct job_handle {
    struct handle h;
    atomic_uint   refs;  /* the open file's, and a read's: its answer may be taken and the file closed
                          * before the call that sends it has returned */
    struct job   *job;   /* referenced; NULL: a text of its own */
    struct place *place; /* referenced; NULL as above */
    const struct job_entry *file;
    char         *text;  /* what is read; NULL: the job's bytes */
    size_t        held;  /* of the job's user's memory: the text, and the node's, which may be an old one */
    uint64_t      start, size; /* what is read: of the log its span, of a stream from its first byte kept */
    bool          bytes;  /* they are read until the end, whatever becomes of the job: it is counted as their user */
    bool          writes; /* a text that is written */
    bool          wrote, failed;
};

static struct job_handle *of(struct handle *h)
{
    return container_of(h, struct job_handle, h);
}

static void put_handle(struct job_handle *jh)
{
    if (atomic_fetch_sub(&jh->refs, 1) != 1)
        return;
    if (jh->bytes)
        job_spool_unuse(jh->job);
    if (jh->held)
        job_memory_give(jh->job, jh->held);
    if (jh->job)
        job_unref(jh->job);
    if (jh->place)
        place_unref(jh->place);
    free(jh->text);
    free(jh);
}

char *job_write_bytes(fuse_req_t req, struct fuse_bufvec *in, size_t *size)
{
    *size = fuse_buf_size(in);
    struct fuse_bufvec out = FUSE_BUFVEC_INIT(*size);
    char *data = malloc(*size ? *size : 1);
    if (!data) {
        fuse_reply_err(req, ENOMEM);
        return NULL;
    }
    out.buf[0].mem = data;
    ssize_t n = fuse_buf_copy(&out, in, 0);
    if (n >= 0) {
        *size = (size_t)n;
        return data;
    }
    fuse_reply_err(req, (int)-n);
    free(data);
    return NULL;
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

static ssize_t read_job(struct job_handle *jh, uint64_t at, char *buf, size_t size)
{
    if (jh->file->kind == JOB_KIND_LOG)
        return job_log_read(jh->job, jh->start + at, buf, size);
    return job_stream_read(jh->job, (enum job_stream)jh->file->which, at, buf, size);
}

static void read_bytes(fuse_req_t req, struct job_handle *jh, uint64_t at, size_t size)
{
    cleanup_free char *buf = malloc(size ? size : 1);
    ssize_t n = buf ? read_job(jh, at, buf, size) : -ENOMEM;
    if (n < 0)
        fuse_reply_err(req, (int)-n);
    else
        fuse_reply_buf(req, buf, (size_t)n);
}

/* A text that may be written to is read as it is now. */
static void read_live(fuse_req_t req, struct job_handle *jh, uint64_t at, size_t size)
{
    size_t all;
    int64_t changed_ms;
    cleanup_free char *text = job_text(jh->job, (enum job_text)jh->file->which, &all, &changed_ms);
    if (!text) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    at = at < all ? at : all;
    fuse_reply_buf(req, text + at, all - at < size ? all - at : size);
}

static void read_handle(struct fs *fs, fuse_req_t req, struct handle *h, size_t size, off_t off,
                        struct fuse_file_info *fi)
{
    struct job_handle *jh = of(h);
    uint64_t at = (uint64_t)off < jh->size ? (uint64_t)off : jh->size;
    (void)fs;
    (void)fi;
    if (jh->writes) {
        read_live(req, jh, (uint64_t)off, size);
        return;
    }
    if (size > jh->size - at)
        size = (size_t)(jh->size - at);
    if (!jh->text) {
        read_bytes(req, jh, at, size);
        return;
    }
    atomic_fetch_add(&jh->refs, 1);
    fuse_reply_buf(req, jh->text + at, size);
    put_handle(jh);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static void write_handle(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                         struct fuse_file_info *fi)
{
    struct job_handle *jh = of(h);
    enum job_text which = (enum job_text)jh->file->which;
    struct err e = {0};
    size_t size;
    (void)fs;
    cleanup_free char *data = jh->writes ? job_write_bytes(req, in, &size) : NULL;
    if (!jh->writes)
        fuse_reply_err(req, EBADF);
    if (!data)
        return;
    uint64_t at = (uint64_t)off;
    if (fi->flags & O_APPEND) {
        size_t now;
        int64_t changed_ms;
        job_text_stat(jh->job, which, &now, &changed_ms);
        at = now;
    }
    int r = job_text_write(jh->job, which, data, size, at, &e);
    if (r < 0) {
        jh->failed = true;
        job_say(jh->place, &e);
        fuse_reply_err(req, -r);
        return;
    }
    if (!jh->wrote && which <= JOB_ARGV)
        job_writer_add(jh->job);
    jh->wrote = true;
    fuse_reply_write(req, size);
}

/* Comes at every close of a duplicate, also before all has been written: it may complain, and decides
 * nothing. */
static void flush_handle(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
    struct job_handle *jh = of(h);
    struct err e = {0};
    (void)fs;
    (void)fi;
    int r = jh->wrote ? job_text_check(jh->job, (enum job_text)jh->file->which, &e) : 0;
    if (r < 0)
        job_say(jh->place, &e);
    fuse_reply_err(req, -r);
}

static void drop_handle(struct fs *fs, struct handle *h)
{
    handle_remove(fs, h);
    put_handle(of(h));
}

/* The last descriptor is closed: what was written as a command starts. */
static void release_handle(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
    struct job_handle *jh = of(h);
    enum job_text which = jh->file ? (enum job_text)jh->file->which : JOB_TEXTS;
    struct err e = {0};
    (void)fi;
    if (jh->wrote && which <= JOB_ARGV) {
        if (!jh->failed && job_start(jh->job, which, true, &e) < 0)
            job_say(jh->place, &e);
        job_writer_remove(jh->job);
    }
    drop_handle(fs, h);
    fuse_reply_err(req, 0);
}

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

static const struct handle_ops read_ops = {
    .read = read_handle,
    .drop = drop_handle,
};

static const struct handle_ops write_ops = {
    .read = read_handle,
    .write = write_handle,
    .flush = flush_handle,
    .release = release_handle,
    .drop = drop_handle,
};

/* A create's entry that is not wanted after all. */
static void drop_entry(struct fs *fs, const struct fuse_entry_param *e)
{
    if (e)
        nodes_forget(fs, e->ino, 1);
}

/* Takes over *template, whose references are made here; answers. */
static void open_handle(struct fs *fs, fuse_req_t req, const struct job_handle *template, struct fuse_entry_param *e,
                        struct fuse_file_info *fi)
{
    struct job_handle *jh = malloc(sizeof *jh);
    int r = -ENOMEM;
    if (jh) {
        *jh = *template;
        atomic_init(&jh->refs, 1);
        r = handle_add(fs, &jh->h, fi);
    }
    if (r < 0) {
        free(jh);
        free(template->text);
        if (template->held)
            job_memory_give(template->job, template->held);
        drop_entry(fs, e);
        fuse_reply_err(req, -r);
        return;
    }
    if (jh->job)
        job_ref(jh->job);
    if (jh->bytes)
        job_spool_use(jh->job);
    if (jh->place)
        place_ref(jh->place);
    jh->h.ops = jh->writes ? &write_ops : &read_ops;
    fi->direct_io = 1;
    fi->noflush = !jh->writes;
    r = e ? fuse_reply_create(req, e, fi) : fuse_reply_open(req, fi);
    if (r == -ENOENT) {
        drop_handle(fs, &jh->h);
        drop_entry(fs, e);
    }
}

static int begin_writing(struct job_node *jn, int flags)
{
    enum job_text which = (enum job_text)jn->file->which;
    if (job_state(jn->job) != JOB_NEW)
        return -EBUSY;
    return flags & O_TRUNC ? job_text_truncate(jn->job, which, 0) : 0;
}

static int copy_text(struct job_node *jn, struct job_handle *jh)
{
    size_t held = 2 * (size_t)jn->size;
    if (!job_memory_take(jn->job, held))
        return -EDQUOT;
    jh->text = malloc(jn->size + 1);
    if (!jh->text) {
        job_memory_give(jn->job, held);
        return -ENOMEM;
    }
    memcpy(jh->text, jn->text, jn->size);
    jh->held = held;
    return 0;
}

void job_open_text(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_entry_param *entry,
                   struct fuse_file_info *fi)
{
    struct job_handle jh = {.job = jn->job, .place = jn->place, .file = jn->file, .size = jn->size};
    jh.writes = jn->file->kind == JOB_KIND_TEXT && (fi->flags & O_ACCMODE) != O_RDONLY;
    int r = jh.writes ? begin_writing(jn, fi->flags) : 0;
    if (r == 0 && !jh.writes)
        r = copy_text(jn, &jh);
    if (r < 0) {
        struct err e = {0};
        if (r == -EBUSY)
            err_set(&e, r, "the job was started before");
        else if (r == -EDQUOT)
            job_memory_full(&e);
        job_say(jn->place, &e);
        drop_entry(fs, entry);
        fuse_reply_err(req, -r);
        return;
    }
    open_handle(fs, req, &jh, entry, fi);
}

void job_open_bytes(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi)
{
    const struct job_handle jh = {.job = jn->job, .place = jn->place, .file = jn->file, .start = jn->log_start,
                                  .size = jn->size, .bytes = true};
    open_handle(fs, req, &jh, NULL, fi);
}

void job_open_own_text(struct fs *fs, fuse_req_t req, char *text, size_t size, struct fuse_file_info *fi)
{
    const struct job_handle jh = {.text = text, .size = size};
    if (text)
        open_handle(fs, req, &jh, NULL, fi);
    else
        fuse_reply_err(req, ENOMEM);
}

// SPDX-License-Identifier: Apache-2.0
/* Writes to a job's `ctl`: one verb a line, in order, each to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/tree/jobs.h"

#define WRITE_MAX_BYTES 4096

struct ctl_handle {
    struct handle h;
    struct job   *job;   /* referenced */
    struct place *place; /* referenced */
};

/* A write whose lines are being run. It is not given up when its writer is interrupted: guests answer
 * at once or not at all, and what was asked of one cannot be taken back. */
struct ctl_run {
    struct task   task;
    struct fs    *fs;
    fuse_req_t    req;
    struct job   *job;   /* referenced */
    struct place *place; /* referenced */
    size_t        size;
    int           status;
    char         *next;  /* the line to run next; NULL: none */
    char          lines[];
};

static void finish(struct ctl_run *c, int r)
{
    if (r < 0)
        fuse_reply_err(c->req, -r);
    else
        fuse_reply_write(c->req, c->size);
    job_unref(c->job);
    place_unref(c->place);
    free(c);
}

static char *take_line(struct ctl_run *c)
{
    while (c->next) {
        char *line = c->next, *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        c->next = end && end[1] ? end + 1 : NULL;
        if (line[strspn(line, " \t\r")])
            return line;
    }
    return NULL;
}

static void run(struct ctl_run *c);

/* What the guest has said no to. */
static void say_refused(struct ctl_run *c)
{
    struct err e = {0};
    if (c->status == -ENOTTY)
        err_set(&e, c->status, "the job has no terminal: its size is written to tty before the start");
    else if (c->status == -ESRCH)
        err_set(&e, c->status, "the job has ended");
    else
        err_sys(&e, c->status, "the sandbox does not do it");
    job_say(c->place, &e);
}

static void go_on(struct task *t)
{
    struct ctl_run *c = container_of(t, struct ctl_run, task);
    if (c->status < 0) {
        say_refused(c);
        finish(c, c->status);
    } else {
        run(c);
    }
}

static void on_done(void *arg, int status)
{
    struct ctl_run *c = arg;
    c->status = status;
    c->task.run = go_on;
    pool_add(c->fs->pool, &c->task);
}

static void run(struct ctl_run *c)
{
    struct err e = {0};
    int r = 0;
    for (char *line; r == 0 && (line = take_line(c));)
        r = job_verb(c->job, line, on_done, c, &e);
    if (r == MANAGER_WAIT)
        return;
    if (r < 0)
        job_say(c->place, &e);
    finish(c, r);
}

static int check(char *text, size_t size, struct err *e)
{
    char *save = NULL;
    int r = 0;
    if (memchr(text, '\0', size))
        return err_set(e, -EINVAL, "ctl takes lines of text, not a NUL byte");
    for (char *line = strtok_r(text, "\n", &save); line && r == 0; line = strtok_r(NULL, "\n", &save))
        r = line[strspn(line, " \t\r")] ? job_verb_check(line, e) : 0;
    return r;
}

static int make(struct fs *fs, fuse_req_t req, struct ctl_handle *ch, const char *data, size_t size,
                struct ctl_run **out, struct err *e)
{
    struct ctl_run *c = size <= WRITE_MAX_BYTES ? calloc(1, sizeof *c + size + 1) : NULL;
    if (size > WRITE_MAX_BYTES)
        return err_set(e, -EFBIG, "a write of more than %d bytes to ctl", WRITE_MAX_BYTES);
    if (!c)
        return err_set(e, -ENOMEM, "out of memory");
    memcpy(c->lines, data, size);
    int r = check(c->lines, size, e);
    if (r < 0) {
        free(c);
        return r;
    }
    memcpy(c->lines, data, size);
    c->fs = fs;
    c->req = req;
    c->size = size;
    c->next = c->lines;
    c->job = ch->job;
    job_ref(c->job);
    c->place = ch->place;
    place_ref(c->place);
    *out = c;
    return 0;
}

static void write_ctl(struct fs *fs, fuse_req_t req, struct handle *h, struct fuse_bufvec *in, off_t off,
                      struct fuse_file_info *fi)
{
    struct ctl_handle *ch = container_of(h, struct ctl_handle, h);
    struct ctl_run *c = NULL;
    struct err e = {0};
    size_t size;
    (void)off;
    (void)fi;
    cleanup_free char *data = job_write_bytes(req, in, &size);
    if (!data)
        return;
    int r = make(fs, req, ch, data, size, &c, &e);
    if (r == 0) {
        run(c);
        return;
    }
    job_say(ch->place, &e);
    fuse_reply_err(req, -r);
}

static void drop_ctl(struct fs *fs, struct handle *h)
{
    struct ctl_handle *ch = container_of(h, struct ctl_handle, h);
    handle_remove(fs, h);
    job_unref(ch->job);
    place_unref(ch->place);
    free(ch);
}

static const struct handle_ops ctl_ops = {
    .write = write_ctl,
    .drop = drop_ctl,
};

void job_open_ctl(struct fs *fs, fuse_req_t req, struct job_node *jn, struct fuse_file_info *fi)
{
    struct ctl_handle *ch = calloc(1, sizeof *ch);
    int r = ch ? handle_add(fs, &ch->h, fi) : -ENOMEM;
    if (r < 0) {
        free(ch);
        fuse_reply_err(req, -r);
        return;
    }
    ch->h.ops = &ctl_ops;
    ch->job = jn->job;
    job_ref(ch->job);
    ch->place = jn->place;
    place_ref(ch->place);
    fi->direct_io = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        drop_ctl(fs, &ch->h);
}

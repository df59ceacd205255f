// SPDX-License-Identifier: Apache-2.0
/* Writes to control files: commands, one a line, run in order, each to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/loop.h"
#include "fs/tree/control.h"
#include "fs/wait.h"

/* A write whose lines are being run. */
struct verb_run {
    struct wait   wait;
    const struct verb_table *table;
    struct place *place;     /* referenced; NULL: the manager */
    struct caller who;
    size_t        size;      /* what the write is answered with */
    char         *next;      /* the line to run next; NULL: none */
    char          lines[];
};

static void free_run(struct wait *w)
{
    struct verb_run *v = container_of(w, struct verb_run, wait);
    if (v->place)
        place_unref(v->place);
    free(v);
}

static void answer(struct verb_run *v, int r)
{
    wait_answer(&v->wait);
    if (r < 0)
        fuse_reply_err(v->wait.req, -r);
    else
        fuse_reply_write(v->wait.req, v->size);
    wait_put(&v->wait);
}

/* The next line that says something, cut out of the text; NULL at the end. */
static char *take_line(struct verb_run *v)
{
    while (v->next) {
        char *line = v->next, *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        v->next = end && end[1] ? end + 1 : NULL;
        if (v->table->one_line || line[strspn(line, " \t\r")])
            return line;
    }
    return NULL;
}

/* What is refused because files are open is tried again: one of them may just have been closed. */
static int run_line(struct verb_run *v, const char *line)
{
    struct fs *fs = v->wait.fs;
    struct err e = {0};
    int r = v->table->run(fs, v->place, &v->who, line, &v->wait.waiter, &e);
    if (r != -EBUSY)
        return r;
    readers_settle(fs);
    return v->table->run(fs, v->place, &v->who, line, &v->wait.waiter, &e);
}

/* Runs lines until one has to wait. The caller holds a reference. */
static void run_lines(struct verb_run *v)
{
    int r = 0;
    for (char *line; r == 0 && (line = take_line(v));)
        r = run_line(v, line);
    if (r == MANAGER_WAIT)
        wait_queued(&v->wait);
    else
        answer(v, r);
}

static void on_woken(struct wait *w, int status)
{
    struct verb_run *v = container_of(w, struct verb_run, wait);
    if (status < 0)
        answer(v, status);
    else
        run_lines(v);
}

/* Whether every line is well formed; a malformed one changes nothing. */
static int check(const struct verb_table *t, const char *data, size_t size, struct err *e)
{
    char text[4096 + 1];
    if (size > sizeof text - 1)
        return err_set(e, -EFBIG, "a write of more than %zu bytes to a control file", sizeof text - 1);
    if (memchr(data, '\0', size))
        return err_set(e, -EINVAL, "a control file takes lines of text, not a NUL byte");
    memcpy(text, data, size);
    text[size] = '\0';
    const char *first_end = strchr(text, '\n');
    if (t->one_line && first_end && first_end[1])
        return err_set(e, -EINVAL, "this file takes one line");
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line && t->check; line = strtok_r(NULL, "\n", &save)) {
        int r = line[strspn(line, " \t\r")] ? t->check(line, e) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static struct verb_run *make(fuse_req_t req, const struct verb_table *t, struct place *p, const char *data,
                             size_t size)
{
    struct verb_run *v = calloc(1, sizeof *v + size + 1);
    if (!v)
        return NULL;
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    v->table = t;
    v->place = p;
    if (p)
        place_ref(p);
    v->who = (struct caller){.uid = ctx->uid, .gid = ctx->gid, .pid = ctx->pid};
    v->size = size;
    memcpy(v->lines, data, size);
    v->next = v->lines;
    return v;
}

void verbs_write(struct fs *fs, fuse_req_t req, const struct verb_table *t, struct place *p,
                 const char *data, size_t size)
{
    struct err e = {0};
    int r = check(t, data, size, &e);
    struct verb_run *v = r == 0 ? make(req, t, p, data, size) : NULL;
    if (!v) {
        if (r < 0 && p)
            session_set_error(p, &e);
        fuse_reply_err(req, r < 0 ? -r : ENOMEM);
        return;
    }
    wait_begin(&v->wait, fs, req, on_woken, free_run);
    run_lines(v);
    wait_put(&v->wait);
}

/* ── the tables ──────────────────────────────────────────────────────────────────────────── */

static int run_session(struct fs *fs, struct place *p, const struct caller *who, const char *line,
                       struct waiter *w, struct err *e)
{
    (void)fs;
    return session_verb(p, who, line, w, e);
}

static int run_bind(struct fs *fs, struct place *p, const struct caller *who, const char *line,
                    struct waiter *w, struct err *e)
{
    (void)fs;
    return session_bind(p, who, line, w, e);
}

static int run_manager(struct fs *fs, struct place *p, const struct caller *who, const char *line,
                       struct waiter *w, struct err *e)
{
    (void)p;
    return manager_verb(fs->manager, who, line, w, e);
}

const struct verb_table session_verbs = {.check = session_verb_check, .run = run_session};
const struct verb_table manager_verbs = {.check = manager_verb_check, .run = run_manager};
const struct verb_table bind_verb = {.run = run_bind, .one_line = true};

// SPDX-License-Identifier: Apache-2.0
#include "backends/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/local/box.h"
#include "backends/shared/files.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/config/config.h"

struct local {
    int  base_fd; /* borrowed */
    bool read_only;
    struct local_keys keys;
    struct shown *shown; /* what a confined job sees of the host */
    struct boxes *boxes;
    char  *unconfined;   /* path of the base directory, where jobs are not confined; else NULL */
};

static int make_table(struct local *l, const struct backend_mount *m, struct err *e)
{
    const char *const places[] = { m->basedir, m->state_dir, m->mountpoint };
    const char *secrets[array_size(places) + 1] = { NULL };
    size_t n = 0;
    cleanup_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    for (size_t i = 0; i < array_size(places); i++)
        if (places[i] && *places[i])
            secrets[n++] = places[i];
    if (root < 0)
        return err_sys(e, -errno, "/ cannot be opened");
    return shown_create(root, l->keys.binds, l->keys.n_binds, secrets, &l->shown, e);
}

static void free_local(struct local *l)
{
    boxes_destroy(l->boxes);
    shown_destroy(l->shown);
    local_keys_finish(&l->keys);
    free(l->unconfined);
    free(l);
}

static int make(struct local *l, const struct backend_mount *m, struct err *e)
{
    int r = local_keys_read(m->pairs, &l->keys, e);

    if (r == 0)
        r = make_table(l, m, e);
    if (r == 0)
        r = boxes_create(m, &l->keys, l->shown, &l->boxes, e);
    if (r == 0 && !m->confine && !(l->unconfined = strdup(m->basedir)))
        r = err_set(e, -ENOMEM, "out of memory");
    return r;
}

static int local_init(const struct backend_mount *m, void **state, struct err *e)
{
    struct local *l;
    int r;

    l = calloc(1, sizeof(*l));
    if (!l)
        return err_set(e, -ENOMEM, "out of memory");
    l->base_fd = m->basedir_fd;
    l->read_only = m->read_only;
    r = make(l, m, e);
    if (r < 0) {
        free_local(l);
        return r;
    }
    *state = l;
    return 0;
}

static void local_finish(void *state)
{
    free_local(state);
}

/* ── jobs ────────────────────────────────────────────────────────────────────────────────── */

static int local_stream(void *state, const struct backend_workspace *w, bool start, struct err *e)
{
    return boxes_stream(((struct local *)state)->boxes, w, start, e);
}

static int local_close(void *state, const struct backend_workspace *w, struct err *e)
{
    return boxes_close(((struct local *)state)->boxes, w, e);
}

static bool local_processes(void *state, const struct backend_workspace *w)
{
    return boxes_processes(((struct local *)state)->boxes, w);
}

static void local_job_root(void *state, const struct backend_workspace *w, char *out, size_t size)
{
    const struct local *l = state;

    if (l->unconfined)
        snprintf(out, size, "%s/%s", l->unconfined, w->host_dir);
    else
        snprintf(out, size, SHOWN_WORKSPACE);
}

static void root_look(void *state, const char *inside, struct backend_root_place *out)
{
    local_root_look(((struct local *)state)->shown, inside, out);
}

static void root_children(void *state, const char *inside, void (*each)(const char *name, void *arg), void *arg)
{
    local_root_children(((struct local *)state)->shown, inside, each, arg);
}

/* ── files ───────────────────────────────────────────────────────────────────────────────── */

static int local_files_open(void *state, const struct backend_workspace *w, struct err *e)
{
    struct local *l = state;

    return host_files_open(l->base_fd, w, l->read_only, e);
}

static int local_destroy(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    return host_files_remove(((struct local *)state)->base_fd, w->host_dir, p, e);
}

/* What an interrupted removal has left is removed now too. */
static int local_list(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg,
                      struct err *e)
{
    struct local *l = state;
    struct err why = { 0 };
    int r = boxes_list(l->boxes, found, arg, e);

    if (r < 0)
        return r;
    if (boxes_check(l->boxes, &why) < 0)
        log_info("jobs will be refused here: %s", why.text);
    return l->read_only ? 0 : host_files_empty_trash(l->base_fd, e);
}

/* ── --check ─────────────────────────────────────────────────────────────────────────────── */

static int try_all(struct local *l, const struct backend_mount *m, bool *mounts, struct err *e)
{
    int r = local_keys_read(m->pairs, &l->keys, e);

    if (r == 0)
        r = make_table(l, m, e);
    return r == 0 ? boxes_try(m, &l->keys, l->shown, mounts, e) : r;
}

static int local_check(const struct backend_mount *m, char *found, size_t size, struct err *e)
{
    struct local *l = calloc(1, sizeof(*l));
    bool mounts = false;
    int r;

    if (!l)
        return err_set(e, -ENOMEM, "out of memory");
    r = try_all(l, m, &mounts, e);
    if (r < 0)
        snprintf(found, size, "%s", mounts ? "jobs cannot run here" : "");
    else
        snprintf(found, size, m->confine ? "bubblewrap works: jobs run in a sandbox of their workspace"
                                         : "off, as was said: jobs are plain processes of this host");
    free_local(l);
    return r;
}

const struct backend local_backend = {
    .abi = BACKEND_ABI,
    .size_bytes = sizeof(struct backend),
    .name = "local",
    .files_wait = false,
    .init = local_init,
    .finish = local_finish,
    .files_open = local_files_open,
    .close = local_close,
    .destroy = local_destroy,
    .list = local_list,
    .stream = local_stream,
    .job_root = local_job_root,
    .root_look = root_look,
    .root_children = root_children,
    .processes = local_processes,
    .check = local_check,
};

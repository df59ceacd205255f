// SPDX-License-Identifier: Apache-2.0
#include "backends/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/local/box.h"
#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/base/walk.h"
#include "fs/config/config.h"

#define TRASH ".wsmfs/trash"

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

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

/* *made: the directory was not there. What somebody removes in this moment because it is empty (its
 * name was forgotten) is made again. */
static int open_files(const struct local *l, const char *path, bool *made)
{
    int fd = walk_open(l->base_fd, path, false);

    *made = fd == -ENOENT && !l->read_only;
    for (int tries = 0; *made && fd == -ENOENT && tries < 3; tries++)
        fd = walk_open(l->base_fd, path, true);
    return fd;
}

/* The descriptor is O_PATH, so the way is by its name in /proc. */
static int set_mode(int fd, uint32_t mode)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return chmod(path, mode) < 0 ? -errno : 0;
}

/* Gives a directory that is still the daemon's to its tenant: the one just made, or one whose maker
 * was killed before this. */
static int give_away(int fd, const struct backend_workspace *w, bool made)
{
    struct stat st;
    int r;

    if (fstat(fd, &st) < 0)
        return -errno;
    bool owed = w->tenant && geteuid() == 0 && st.st_uid == 0 && (w->uid != 0 || st.st_gid != w->gid);
    if ((made || owed) && w->mode && w->mode != (st.st_mode & 07777)) {
        r = set_mode(fd, w->mode);
        if (r < 0)
            return r;
    }
    return owed && fchownat(fd, "", w->uid, w->gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

static int say_open_failed(int r, const struct backend_workspace *w, bool read_only, struct err *e)
{
    if (r == -ENOTDIR || r == -ELOOP)
        return err_set(e, -EIO, "%s in the base directory, or a part of it, is a link or a file and no directory; "
                       "nothing is followed there: move it away", w->host_dir);
    if (r == -ENOENT && read_only)
        return err_set(e, -EROFS, "the workspace has no directory yet, and the mount is read-only");
    return err_sys(e, r, "the directory %s of the base directory cannot be opened", w->host_dir);
}

static int local_files_open(void *state, const struct backend_workspace *w, struct err *e)
{
    struct local *l = state;
    bool made;
    int fd = open_files(l, w->host_dir, &made);
    int r;

    if (fd < 0)
        return say_open_failed(fd, w, l->read_only, e);
    r = l->read_only ? 0 : give_away(fd, w, made);
    if (r < 0) {
        close(fd);
        return err_sys(e, r, "the directory %s cannot be given to uid %u", w->host_dir, w->uid);
    }
    return fd;
}

/* ── removing ────────────────────────────────────────────────────────────────────────────── */

static int local_destroy(void *state, const struct backend_workspace *w, struct backend_progress *p,
                         struct err *e)
{
    struct local *l = state;
    cleanup_close int trash = walk_open(l->base_fd, TRASH, true);

    if (trash < 0)
        return err_sys(e, trash, TRASH " of the base directory cannot be opened");
    return trash_remove(l->base_fd, w->host_dir, trash, p, e);
}

/* What an interrupted removal has left is removed now too. */
static int local_list(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg,
                      struct err *e)
{
    struct local *l = state;
    cleanup_close int trash = -1;
    struct err why = { 0 };
    int r = boxes_list(l->boxes, found, arg, e);

    if (r < 0)
        return r;
    if (boxes_check(l->boxes, &why) < 0)
        log_info("jobs will be refused here: %s", why.text);
    if (l->read_only)
        return 0;
    trash = walk_open(l->base_fd, TRASH, false);
    return trash < 0 ? 0 : trash_empty(trash, NULL, e);
}

/* ── --check ─────────────────────────────────────────────────────────────────────────────── */

static int try_all(struct local *l, const struct backend_mount *m, struct err *e)
{
    int r = local_keys_read(m->pairs, &l->keys, e);

    if (r == 0)
        r = make_table(l, m, e);
    return r == 0 ? boxes_try(m, &l->keys, l->shown, e) : r;
}

static int local_check(const struct backend_mount *m, char *found, size_t size, struct err *e)
{
    struct local *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return err_set(e, -ENOMEM, "out of memory");
    r = try_all(l, m, e);
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

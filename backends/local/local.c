// SPDX-License-Identifier: Apache-2.0
#include "backends/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/walk.h"
#include "fs/config/config.h"

#define TRASH ".wsmfs/trash"

struct local {
    int  base_fd; /* borrowed */
    bool read_only;
    struct shown *shown; /* what a confined job sees of the host */
};

static int make_table(struct local *l, const struct backend_mount *m, struct err *e)
{
    const char *const secrets[] = { m->basedir, m->state_dir, NULL };
    cleanup_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (root < 0)
        return err_sys(e, -errno, "/ cannot be opened");
    return shown_create(root, NULL, 0, secrets, &l->shown, e);
}

static int local_init(const struct backend_mount *m, void **state, struct err *e)
{
    struct local *l;
    int r;

    for (const struct config_pair *p = m->pairs; p; p = p->next)
        return err_set(e, -EINVAL, "the local backend has no setting \"%s\" (section [%s])", p->key, p->section);
    l = calloc(1, sizeof(*l));
    if (!l)
        return err_set(e, -ENOMEM, "out of memory");
    l->base_fd = m->basedir_fd;
    l->read_only = m->read_only;
    r = make_table(l, m, e);
    if (r < 0) {
        free(l);
        return r;
    }
    *state = l;
    return 0;
}

static void local_finish(void *state)
{
    struct local *l = state;

    shown_destroy(l->shown);
    free(l);
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

/* What somebody removes in this moment because it is empty (its name was forgotten) is made again. */
static int open_files(const struct local *l, const char *path)
{
    int fd = -ENOENT;

    for (int tries = 0; fd == -ENOENT && tries < 3; tries++)
        fd = walk_open(l->base_fd, path, !l->read_only);
    return fd;
}

/* Gives a directory that is still the daemon's to its tenant: the one just made, or one whose maker
 * was killed before this. */
static int give_away(int fd, const struct backend_workspace *w)
{
    struct stat st;

    if (!w->tenant || geteuid() != 0)
        return 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_uid != geteuid() || (st.st_uid == w->uid && st.st_gid == w->gid))
        return 0;
    return fchownat(fd, "", w->uid, w->gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
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
    int fd = open_files(l, w->host_dir);
    int r;

    if (fd < 0)
        return say_open_failed(fd, w, l->read_only, e);
    r = l->read_only ? 0 : give_away(fd, w);
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

/* There are no sandboxes to be found, but what an interrupted removal has left is removed now. */
static int local_list(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg,
                      struct err *e)
{
    struct local *l = state;
    cleanup_close int trash = -1;

    (void)found;
    (void)arg;
    if (l->read_only)
        return 0;
    trash = walk_open(l->base_fd, TRASH, false);
    return trash < 0 ? 0 : trash_empty(trash, NULL, e);
}

const struct backend local_backend = {
    .abi = BACKEND_ABI,
    .size_bytes = sizeof(struct backend),
    .name = "local",
    .files_wait = false,
    .init = local_init,
    .finish = local_finish,
    .files_open = local_files_open,
    .destroy = local_destroy,
    .list = local_list,
    .root_look = root_look,
    .root_children = root_children,
};

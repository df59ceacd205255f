// SPDX-License-Identifier: Apache-2.0
#include "backends/shared/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

#define TRASH ".wsmfs/trash"

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

/* *made: the directory was not there. What somebody removes in this moment because it is empty (its
 * name was forgotten) is made again. */
static int open_files(int base_fd, const char *path, bool read_only, bool *made)
{
    int fd = walk_open(base_fd, path, false);

    *made = fd == -ENOENT && !read_only;
    for (int tries = 0; *made && fd == -ENOENT && tries < 3; tries++)
        fd = walk_open(base_fd, path, true);
    return fd;
}

/* The descriptor is O_PATH, so the way is by its name in /proc. */
static int set_mode(int fd, uint32_t mode)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return chmod(path, mode) < 0 ? -errno : 0;
}

/* Whose a directory is to be. */
struct heir {
    bool     any;
    bool     of_new;   /* of one that was just made, alone */
    uint32_t uid, gid;
};

/* Gives a directory that is still the daemon's to its heir: the one just made, or one whose maker
 * was killed before this. */
static int give_away(int fd, const struct heir *h, uint32_t mode, bool made)
{
    struct stat st;
    int r;

    if (fstat(fd, &st) < 0)
        return -errno;
    bool owed = h->any && (made || !h->of_new) && geteuid() == 0 && st.st_uid == 0 &&
                (h->uid != 0 || st.st_gid != h->gid);
    if ((made || owed) && mode && mode != (st.st_mode & 07777)) {
        r = set_mode(fd, mode);
        if (r < 0)
            return r;
    }
    return owed && fchownat(fd, "", h->uid, h->gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

static int say_open_failed(int r, int base_fd, const struct backend_workspace *w, bool read_only, struct err *e)
{
    struct stat base;

    if (r == -ENOTDIR || r == -ELOOP)
        return err_set(e, -EIO, "%s in the base directory, or a part of it, is a link or a file and no directory; "
                       "nothing is followed there: move it away", w->host_dir);
    if (r == -ENOENT && w->adopt)
        return err_set(e, r, "the workspace has no directory any more");
    if (r == -ENOENT && read_only)
        return err_set(e, -EROFS, "the workspace has no directory yet, and the mount is read-only");
    if (r == -ENOENT && fstat(base_fd, &base) == 0 && base.st_nlink == 0)
        return err_set(e, r, "the base directory has been removed: unmount, and mount again");
    return err_sys(e, r, "the directory %s of the base directory cannot be opened", w->host_dir);
}

static int open_for(int base_fd, const struct backend_workspace *w, const struct heir *h, bool read_only, struct err *e)
{
    bool made;
    int fd = open_files(base_fd, w->host_dir, read_only || w->adopt, &made);
    int r;

    if (fd < 0)
        return say_open_failed(fd, base_fd, w, read_only, e);
    r = read_only ? 0 : give_away(fd, h, w->mode, made);
    if (r < 0) {
        close(fd);
        return err_sys(e, r, "the directory %s cannot be given to uid %u", w->host_dir, h->uid);
    }
    return fd;
}

int host_files_open(int base_fd, const struct backend_workspace *w, bool read_only, struct err *e)
{
    const struct heir h = { .any = w->tenant, .uid = w->uid, .gid = w->gid };

    return open_for(base_fd, w, &h, read_only, e);
}

int host_files_open_for(int base_fd, const struct backend_workspace *w, uint32_t uid, uint32_t gid, bool read_only,
                        struct err *e)
{
    const struct heir h = { .any = true, .of_new = true, .uid = uid, .gid = gid };

    return open_for(base_fd, w, &h, read_only, e);
}

/* ── removing ────────────────────────────────────────────────────────────────────────────── */

int host_files_remove(int base_fd, const char *path, struct backend_progress *p, struct err *e)
{
    cleanup_close int trash = walk_open(base_fd, TRASH, true);

    if (trash < 0)
        return err_sys(e, trash, TRASH " of the base directory cannot be opened");
    return trash_remove(base_fd, path, trash, p, e);
}

int host_files_empty_trash(int base_fd, struct err *e)
{
    cleanup_close int trash = walk_open(base_fd, TRASH, false);

    return trash < 0 ? 0 : trash_empty(trash, NULL, e);
}

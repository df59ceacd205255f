// SPDX-License-Identifier: Apache-2.0
/* Whose the files are in a sandbox whose user has ids that only its image knows. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define DEPTH_MAX 512 /* a descriptor each */

struct giving {
    dev_t    dev;
    uid_t    from;
    uint32_t to_uid, to_gid;
    unsigned depth;
};

static void give_all_in(struct giving *v, int fd);

static void give(struct giving *v, int dir, const char *name)
{
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != v->dev)
        return;
    if (st.st_uid == v->from)
        (void)!fchownat(dir, name, v->to_uid, v->to_gid, AT_SYMLINK_NOFOLLOW);
    if (!S_ISDIR(st.st_mode) || v->depth == DEPTH_MAX)
        return;
    v->depth++;
    give_all_in(v, openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    v->depth--;
}

/* Takes over fd. A directory has been given away before it is listed, so that what is made in it from outside
 * meanwhile is either listed or belongs to the new owner from the beginning. */
static void give_all_in(struct giving *v, int fd)
{
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            give(v, dirfd(d), e->d_name);
    closedir(d);
}

void own_directory(const char *path, const char *user)
{
    struct giving v = { 0 };
    struct user u;
    struct stat st;
    int fd;

    if (user_find(user, &u) != 0 || u.uid == 0)
        return;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) < 0 || st.st_uid == u.uid || fchown(fd, u.uid, u.gid) < 0) {
        close(fd);
        return;
    }
    v = (struct giving){ .dev = st.st_dev, .from = st.st_uid, .to_uid = u.uid, .to_gid = u.gid };
    give_all_in(&v, fd);
}

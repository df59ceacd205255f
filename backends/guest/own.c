// SPDX-License-Identifier: Apache-2.0
/* Whose the files are in a sandbox whose user has ids that only its image knows. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/guest/guest.h"
#include "backends/shared/give.h"

#define CAP_CHOWN_BIT 0 /* linux/capability.h */

struct giving {
    uid_t    from;
    uint32_t to_uid, to_gid;
};

static int give(void *arg, int dir, const char *name, const struct stat *st)
{
    const struct giving *v = arg;

    return st->st_uid == v->from &&
           fchownat(dir, name, v->to_uid, v->to_gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0;
}

/* Without this it would be looked for in vain at each start. */
static bool may_give(void)
{
    struct cap_head head = { CAP_VERSION_3, 0 };
    struct cap_data now[2] = { { 0, 0, 0 }, { 0, 0, 0 } };

    return syscall(SYS_capget, &head, now) < 0 || (now[0].effective >> CAP_CHOWN_BIT & 1);
}

void own_directory(const char *path, const char *user)
{
    cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct giving v;
    struct user u;
    struct stat st;

    if (fd < 0 || user_find(user, &u) != 0 || u.uid == 0 || fstat(fd, &st) < 0 || st.st_uid == u.uid || !may_give())
        return;
    v = (struct giving){ .from = st.st_uid, .to_uid = u.uid, .to_gid = u.gid };
    give_tree(fd, give, &v);
}

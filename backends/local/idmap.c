// SPDX-License-Identifier: Apache-2.0
#include "backends/local/idmap.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

/* A process that is in a new user namespace from its birth, and does nothing but be there until `end`
 * closes. By bare system calls: unshare(2) wants a process without threads, and ours has some, as
 * may have what a sanitizer makes of a fork. */
static pid_t make_child(int end_r, int end_w)
{
    char c;
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);

    if (pid != 0)
        return pid < 0 ? -errno : (pid_t)pid;
    syscall(SYS_close, end_w);
    syscall(SYS_read, end_r, &c, 1);
    for (;;)
        syscall(SYS_exit_group, 0);
}

static int write_map(pid_t pid, const char *file, uint32_t first_id)
{
    char path[64], text[64];
    int n;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* All ids from 0 on that still fit: (uid_t)-1 is none. */
    n = snprintf(text, sizeof(text), "0 %u %u\n", first_id, UINT32_MAX - first_id);
    return write(fd, text, (size_t)n) == n ? 0 : -errno;
}

static int open_namespace(pid_t pid, uint32_t first_id)
{
    char path[64];
    int r = write_map(pid, "uid_map", first_id);

    if (r == 0)
        r = write_map(pid, "gid_map", first_id);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    r = open(path, O_RDONLY | O_CLOEXEC);
    return r < 0 ? -errno : r;
}

/* A user namespace with the map, held by nothing but the descriptor that is returned. */
static int make_namespace(uint32_t first_id)
{
    int end[2], r;

    if (pipe2(end, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = make_child(end[0], end[1]);
    r = pid < 0 ? pid : open_namespace(pid, first_id);
    close(end[0]);
    close(end[1]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return r;
}

static int say_failed(int r, struct err *e)
{
    if (r == -EINVAL || r == -EOPNOTSUPP || r == -ENOSYS)
        return err_set(e, -EOPNOTSUPP,
                       "the file system of the workspaces does not support mapped owners, which root's own jobs "
                       "need: put the base directory on ext4, xfs or btrfs with Linux 5.12 or newer, give each "
                       "user a uid ([user NAME] uid =), or mount as an ordinary user");
    return err_sys(e, r, "the workspace cannot be mounted with mapped owners");
}

int idmap_mount(int fd, uint32_t first_id, struct err *e)
{
    cleanup_close int tree = -1;
    cleanup_close int ns = make_namespace(first_id);

    if (ns < 0)
        return err_sys(e, ns, "a user namespace for mapped owners cannot be made");
    tree = open_tree(fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0)
        return say_failed(-errno, e);
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)ns};
    if (mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return say_failed(-errno, e);
    return steal_fd(&tree);
}

// SPDX-License-Identifier: Apache-2.0
/* `.wsm/root`: a running container's own root file system, through its guest's /proc/PID/root. No engine is
 * asked: who listens on the guest's socket is known to the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

/* The kernel's own, what was bound for wsmfs, and the workspace, which is no part of the root. */
static const char *const hidden[] = { "/proc", "/sys", "/dev", "/.wsm", DOCKER_WORKSPACE };

void docker_root_look(void *state, const char *inside, struct backend_root_place *out)
{
    (void)state;
    *out = (struct backend_root_place){ .kind = BACKEND_ROOT_OWN };
    for (size_t i = 0; i < array_size(hidden); i++) {
        size_t n = strlen(hidden[i]);
        if (strncmp(inside, hidden[i], n) == 0 && (inside[n] == '\0' || inside[n] == '/'))
            out->kind = BACKEND_ROOT_NOTHING;
    }
}

void docker_root_children(void *state, const char *inside, void (*each)(const char *name, void *arg), void *arg)
{
    (void)state, (void)inside, (void)each, (void)arg;
}

/* ── whose root it is ────────────────────────────────────────────────────────────────────── */

static _Atomic pid_t *hint_of(struct docker *d, const char *id)
{
    unsigned h = 5381;

    for (; *id; id++)
        h = h * 33 + (unsigned char)*id;
    return &d->pids[h % DOCKER_PIDS];
}

/* The process that listens for the workspace's guest: -ENXIO, there is none that we could see. */
static pid_t find_guest(struct docker *d, const struct backend_workspace *w)
{
    struct err silence;
    struct ucred who = { 0 };
    socklen_t size = sizeof(who);
    cleanup_close int fd = docker_connect(d, w, &silence);

    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 || who.pid <= 0)
        return -ENXIO;
    return who.pid;
}

/* Whether the workspace's own directory for the socket is bound in this root. That is so in its container alone,
 * whatever has become of the process whose number led here. */
static bool is_its_root(struct docker *d, const struct backend_workspace *w, int root)
{
    cleanup_close int ours = docker_open_run(d, w), there = walk_open(root, DOCKER_RUN + 1, false);
    struct stat a, b;

    return ours >= 0 && there >= 0 && fstat(ours, &a) == 0 && fstat(there, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static int open_root(struct docker *d, const struct backend_workspace *w, pid_t pid)
{
    char path[40];

    if (pid <= 0)
        return -ENXIO;
    snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
    cleanup_close int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root >= 0 && is_its_root(d, w, root) ? steal_fd(&root) : -ENXIO;
}

int docker_root_open(void *state, const struct backend_workspace *w)
{
    struct docker *d = state;
    _Atomic pid_t *hint = hint_of(d, w->id);
    int fd = open_root(d, w, atomic_load(hint));

    if (fd >= 0)
        return fd;
    atomic_store(hint, find_guest(d, w));
    return open_root(d, w, atomic_load(hint));
}

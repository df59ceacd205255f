// SPDX-License-Identifier: Apache-2.0
/* A sandbox's socket, and a running sandbox: found again, looked at, ended. */
#include "backends/local/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define BACKLOG 64

/* ── the socket ──────────────────────────────────────────────────────────────────────────── */

/* By way of the directory's descriptor: a socket's address holds only 107 bytes. */
static int make_address(int dir_fd, const char *name, struct sockaddr_un *a)
{
    int n;

    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d/%s", dir_fd, name);
    return n < 0 || (size_t)n >= sizeof(a->sun_path) ? -ENAMETOOLONG : 0;
}

static int bind_and_listen(int fd, int dir_fd, const char *name)
{
    struct sockaddr_un a;
    int r = make_address(dir_fd, name, &a);

    if (r < 0)
        return r;
    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || fchmodat(dir_fd, name, 0600, 0) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    return 0;
}

int sandbox_listen(int dir_fd, const char *name, struct err *e)
{
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = fd < 0 ? -errno : bind_and_listen(fd, dir_fd, name);

    if (r < 0)
        return err_sys(e, r, "the sandbox's socket cannot be made");
    return steal_fd(&fd);
}

int sandbox_connect(int dir_fd, const char *name)
{
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un a;
    int r = fd < 0 ? -errno : make_address(dir_fd, name, &a);

    if (r == 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
        r = -errno;
    return r < 0 ? r : steal_fd(&fd);
}

/* ── finding it again ────────────────────────────────────────────────────────────────────── */

static bool read_text(const char *path, char *text, size_t size)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

bool sandbox_read_stat(pid_t pid, pid_t *parent, uint64_t *start_ticks, char *state)
{
    char path[64], text[1024];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (!read_text(path, text, sizeof(text)))
        return false;
    /* The name, in parentheses, may hold anything; field 3 follows it (proc(5)). */
    const char *rest = strrchr(text, ')');
    return rest && sscanf(rest + 1, " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %"
                          SCNu64, state, parent, start_ticks) == 3;
}

/* Tells one start of the machine from another. */
static void read_boot(char boot[40])
{
    read_text("/proc/sys/kernel/random/boot_id", boot, 40);
    boot[strcspn(boot, "\n")] = '\0';
}

void sandbox_mark(const struct sandbox *s, char mark[SANDBOX_MARK_SIZE])
{
    char boot[40];

    read_boot(boot);
    snprintf(mark, SANDBOX_MARK_SIZE, "%d.%" PRIu64 ".%s", (int)s->pid, s->start_ticks, boot);
}

int sandbox_adopt(const char *mark, struct sandbox *out)
{
    char boot[40], marked[40];
    uint64_t ticks, found_ticks;
    pid_t parent;
    char state;
    int pid;

    *out = (struct sandbox){.pid_fd = -1};
    if (sscanf(mark, "%d.%" SCNu64 ".%39s", &pid, &ticks, marked) != 3 || pid <= 0 || ticks == 0)
        return -EINVAL;
    read_boot(boot);
    if (strcmp(boot, marked) != 0)
        return -ESRCH;
    cleanup_close int fd = pidfd_open(pid, 0);
    /* Read with the descriptor open: then the two are of the same process. */
    if (fd < 0 || !sandbox_read_stat(pid, &parent, &found_ticks, &state) || found_ticks != ticks)
        return -ESRCH;
    struct sandbox found = {.pid = pid, .pid_fd = fd, .start_ticks = ticks};
    if (!sandbox_alive(&found))
        return -ESRCH;
    steal_fd(&fd);
    *out = found;
    return 0;
}

/* True for a child of `s` that has not ended. */
static bool is_child(const char *name, const struct sandbox *s)
{
    uint64_t ticks;
    pid_t parent;
    char state;

    return sandbox_read_stat((pid_t)atoi(name), &parent, &ticks, &state) && parent == s->pid && state != 'Z';
}

bool sandbox_has_children(const struct sandbox *s)
{
    cleanup_dir DIR *d = opendir("/proc");

    for (struct dirent *entry; d && (entry = readdir(d));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_child(entry->d_name, s))
            return true;
    return false;
}

/* ── its end ─────────────────────────────────────────────────────────────────────────────── */

static bool has_ended(const struct sandbox *s, int timeout_ms)
{
    struct pollfd p = {.fd = s->pid_fd, .events = POLLIN};
    int64_t until_ns = clock_ns() + (int64_t)timeout_ms * 1000000;
    int r;

    do {
        int64_t left_ns = until_ns - clock_ns();
        r = poll(&p, 1, left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0);
    } while (r < 0 && errno == EINTR);
    return r > 0;
}

bool sandbox_alive(const struct sandbox *s)
{
    return s->pid > 0 && !has_ended(s, 0);
}

/* The first process of a pid namespace ends only when all others of it have: the kernel kills them
 * and waits for them (pid_namespaces(7)). */
int sandbox_end(struct sandbox *s, int timeout_ms, struct err *e)
{
    if (s->pid <= 0)
        return 0;
    if (pidfd_send_signal(s->pid_fd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        return err_sys(e, -errno, "the sandbox's first process cannot be ended");
    if (!has_ended(s, timeout_ms))
        return err_set(e, -ETIMEDOUT, "the sandbox's processes have not ended within %d ms of SIGKILL", timeout_ms);
    close(s->pid_fd);
    *s = (struct sandbox){.pid_fd = -1};
    return 0;
}

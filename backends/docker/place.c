// SPDX-License-Identifier: Apache-2.0
/* What lies in the base directory for containers: the guest and its sockets. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "backends/docker/docker.h"
#include "backends/shared/files.h"
#include "backends/shared/guest_program.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"
#include "fs/base/walk.h"

#define GUEST_DIR ".wsmfs/guest"
#define RUN_DIR   ".wsmfs/run"
#define SOCKET    "guest.sock"
#define TURNS     ".turns" /* no id begins with a dot */
#define TURN_NS   180000000000ll /* for whoever has it to end */
#define NAP_FIRST_NS 1000000
#define NAP_MOST_NS  20000000
#define HASH_BYTES 8

/* ── the guest program ───────────────────────────────────────────────────────────────────── */

static int hash_of(int fd, char hex[2 * HASH_BYTES + 1])
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    unsigned char hash[EVP_MAX_MD_SIZE], block[16384];
    off_t at = 0;
    ssize_t n = -1;
    int good = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL);

    while (good && (n = pread(fd, block, sizeof(block), at)) > 0) {
        good = EVP_DigestUpdate(c, block, (size_t)n);
        at += n;
    }
    good = good && n == 0 && EVP_DigestFinal_ex(c, hash, NULL);
    EVP_MD_CTX_free(c);
    for (int i = 0; good && i < HASH_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    return good ? 0 : -EIO;
}

/* Copies it beside and renames, so that there is always a whole one. Another mount may do the same in this moment,
 * as a process of the same number: in a container of its own. */
static int copy(int from, int dir, const char *name)
{
    char temporary[64];
    struct stat st;
    off_t at = 0;
    unsigned random;
    int r = 0;

    if (getrandom(&random, sizeof(random), 0) < 0)
        return -errno;
    snprintf(temporary, sizeof(temporary), ".%s.%08x", name, random);
    cleanup_close int to = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    if (to < 0 || fstat(from, &st) < 0)
        return -errno;
    while (r == 0 && at < st.st_size)
        if (sendfile(to, from, &at, (size_t)(st.st_size - at)) <= 0)
            r = errno ? -errno : -EIO;
    if (r == 0 && (fchmod(to, 0755) < 0 || fsync(to) < 0 || renameat(dir, temporary, dir, name) < 0))
        r = -errno;
    if (r < 0)
        unlinkat(dir, temporary, 0);
    return r;
}

int docker_place_guest(struct docker *d, struct err *e)
{
    cleanup_free char *program = guest_program();
    cleanup_close int from = program ? open(program, O_RDONLY | O_CLOEXEC) : -1;
    char hex[2 * HASH_BYTES + 1], name[48];
    int r;

    if (from < 0)
        return err_sys(e, program ? -errno : -ENOMEM, "the guest program %s cannot be read", program ? program : "");
    r = hash_of(from, hex);
    if (r < 0)
        return err_sys(e, r, "the guest program %s cannot be read", program);
    snprintf(name, sizeof(name), "wsm-guest-%s", hex);
    cleanup_close int dir = walk_open(d->mount.basedir_fd, GUEST_DIR, !d->mount.read_only);
    r = dir < 0 ? dir : 0;
    if (r == 0 && faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        r = copy(from, dir, name);
    if (r < 0)
        return err_sys(e, r, "the guest program cannot be put into " GUEST_DIR " of the base directory");
    if (asprintf(&d->guest, "%s/" GUEST_DIR "/%s", docker_engine_base(d), name) < 0) {
        d->guest = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    return 0;
}

/* ── where a guest listens ───────────────────────────────────────────────────────────────── */

static void run_path(const struct backend_workspace *w, char out[96]) { snprintf(out, 96, RUN_DIR "/%s", w->id); }

int docker_place_run(struct docker *d, const struct backend_workspace *w, struct err *e)
{
    char path[96];

    run_path(w, path);
    cleanup_close int fd = walk_open(d->mount.basedir_fd, path, true);
    int r = fd < 0 ? fd : docker_shift_directory(d, fd);

    return r < 0 ? err_sys(e, r, "%s of the base directory cannot be made", path) : 0;
}

int docker_open_run(struct docker *d, const struct backend_workspace *w)
{
    char path[96];

    run_path(w, path);
    return walk_open(d->mount.basedir_fd, path, false);
}

int docker_remove_run(struct docker *d, const struct backend_workspace *w, struct err *e)
{
    char path[96];

    run_path(w, path);
    return host_files_remove(d->mount.basedir_fd, path, NULL, e);
}

/* What stands there was made by a container, which may be hostile: a link is not followed. */
static int open_socket(struct docker *d, const struct backend_workspace *w)
{
    struct stat st;
    cleanup_close int dir = docker_open_run(d, w);
    int fd = dir < 0 ? dir : openat(dir, SOCKET, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return dir < 0 ? dir : -errno;
    if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
        return fd;
    close(fd);
    return -ECONNREFUSED;
}

int docker_connect(struct docker *d, const struct backend_workspace *w, struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    cleanup_close int at = open_socket(d, w);
    int fd, r;

    if (at < 0)
        return err_sys(e, at, "the guest of the container does not listen");
    /* One that listens and never accepts would hold whoever waits to be connected, and the close with them. */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, -errno, "no socket");
    snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d", at);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        return fd;
    r = -errno;
    close(fd);
    return err_sys(e, r, "the guest of the container does not answer");
}

/* ── turns ───────────────────────────────────────────────────────────────────────────────── */

/* The workspace's byte. Two that have the same one wait for each other, and nothing worse. */
static off_t byte_of(const char *id)
{
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */

    while (*id)
        h = (h ^ (unsigned char)*id++) * UINT64_C(1099511628211);
    return (off_t)(h >> 2);
}

/* Where it cannot be made nothing else can be either, which has sentences of its own. */
static int open_turns(const struct docker *d)
{
    cleanup_close int dir = walk_open(d->mount.basedir_fd, RUN_DIR, true);
    int fd = dir < 0 ? -1 : openat(dir, TURNS, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    return fd < 0 ? fcntl(d->mount.basedir_fd, F_DUPFD_CLOEXEC, 0) : fd;
}

/* A lock of the open file, not of the process: threads of ours exclude each other as well. */
int docker_take_turn(struct docker *d, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte_of(w->id), .l_len = 1 };
    int64_t end_ns = clock_ns() + TURN_NS;
    struct timespec nap = { .tv_nsec = NAP_FIRST_NS };
    cleanup_close int fd = open_turns(d);

    if (fd < 0)
        return err_sys(e, -errno, RUN_DIR " of the base directory cannot be opened");
    while (fcntl(fd, F_OFD_SETLK, &lock) < 0 && (errno == EAGAIN || errno == EACCES)) {
        if (p && p->cancelled(p))
            return err_set(e, -ECANCELED, "cancelled");
        if (clock_ns() > end_ns)
            return err_set(e, -ETIMEDOUT, "another mount works at the container %s, and that does not end", w->sandbox);
        nanosleep(&nap, NULL);
        nap.tv_nsec = nap.tv_nsec * 2 < NAP_MOST_NS ? nap.tv_nsec * 2 : NAP_MOST_NS;
    }
    return steal_fd(&fd);
}

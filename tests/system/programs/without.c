// SPDX-License-Identifier: Apache-2.0
/* Preloaded: makes system calls fail as on a kernel or in a container that does not have them.
 * WSMFS_TEST_WITHOUT names them, separated by commas: openat2, fanotify, evictable (marks that do
 * not hold their directory in memory), marks (none is to be had any more), queue (one without a limit,
 * which only root has), handles (name_to_handle_at), birth (statx tells no birth
 * time), renameat2, copy_file_range. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x00000200
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif

static bool gone(const char *call)
{
    const char *list = getenv("WSMFS_TEST_WITHOUT");
    size_t n = strlen(call);
    for (const char *at = list ? list : ""; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !memcmp(at, call, n))
            return true;
    return false;
}

static int fail(int error)
{
    errno = error;
    return -1;
}

/* The next definition of the function `name`, as a pointer of the type of this one. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

long syscall(long number, ...)
{
    va_list ap;
    long a[6];
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if (number == SYS_openat2 && gone("openat2"))
        return fail(ENOSYS);
    return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int fanotify_init(unsigned flags, unsigned event_flags)
{
    if (gone("queue"))
        flags &= ~(unsigned)FAN_UNLIMITED_QUEUE;
    return gone("fanotify") ? fail(ENOSYS) : NEXT(fanotify_init)(flags, event_flags);
}

int fanotify_mark(int fd, unsigned flags, uint64_t mask, int dir, const char *path)
{
    if ((flags & FAN_MARK_EVICTABLE) && gone("evictable"))
        return fail(EINVAL);
    if (gone("marks"))
        return fail(ENOSPC);
    return NEXT(fanotify_mark)(fd, flags, mask, dir, path);
}

int name_to_handle_at(int dir, const char *name, struct file_handle *handle, int *mount_id, int flags)
{
    return gone("handles") ? fail(EOPNOTSUPP) : NEXT(name_to_handle_at)(dir, name, handle, mount_id, flags);
}

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
    int r = NEXT(statx)(dir, path, flags, mask, st);
    if (r == 0 && gone("birth"))
        st->stx_mask &= ~STATX_BTIME;
    return r;
}

int renameat2(int old_dir, const char *old_name, int new_dir, const char *new_name, unsigned flags)
{
    if (flags && gone("renameat2"))
        return fail(EINVAL);
    return NEXT(renameat2)(old_dir, old_name, new_dir, new_name, flags);
}

ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t n, unsigned flags)
{
    return gone("copy_file_range") ? fail(ENOSYS) : NEXT(copy_file_range)(in, in_at, out, out_at, n, flags);
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/hostdir/creds.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAP_BIT(cap) (1u << ((cap) & 31))

static bool caps_get(struct __user_cap_data_struct data[2])
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    return syscall(SYS_capget, &head, data) == 0;
}

static void caps_set(struct __user_cap_data_struct data[2])
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    (void)!syscall(SYS_capset, &head, data);
}

/* Sets or clears one of the first 32 capabilities, as far as it is permitted. */
static void effective(unsigned cap, bool on)
{
    struct __user_cap_data_struct data[2];
    if (!caps_get(data))
        return;
    if (on)
        data[0].effective |= data[0].permitted & CAP_BIT(cap);
    else
        data[0].effective &= ~CAP_BIT(cap);
    caps_set(data);
}

void creds_drop_fsetid(void)
{
    effective(CAP_FSETID, false);
}

void creds_raise_fsetid(void)
{
    effective(CAP_FSETID, true);
}

void creds_lower_fsetid(void)
{
    effective(CAP_FSETID, false);
}

/* A change of the fsuid away from 0 takes the capabilities of files away, and back to 0 gives them
 * all back, CAP_FSETID too (capabilities(7), effect of user ID changes): both are mended here. */
static void keep_access(void)
{
    struct __user_cap_data_struct data[2];
    if (!caps_get(data))
        return;
    data[0].effective |= data[0].permitted & (CAP_BIT(CAP_DAC_OVERRIDE) | CAP_BIT(CAP_DAC_READ_SEARCH) |
                                              CAP_BIT(CAP_MKNOD));
    data[0].effective &= ~CAP_BIT(CAP_FSETID);
    caps_set(data);
}

/* The system call, not glibc's wrapper, which changes all threads. */
static void thread_setgroups(size_t n, const gid_t *groups)
{
    (void)!syscall(SYS_setgroups, n, groups);
}

/* A new file's setgid bit survives only if its maker is in the directory's group: the one case in
 * which supplementary groups decide, and reading them is not free. */
static bool groups_matter(int dir_fd, mode_t mode)
{
    struct stat st;
    if ((mode & (S_ISGID | S_IXGRP)) != (S_ISGID | S_IXGRP))
        return false;
    return fstat(dir_fd, &st) == 0 && (st.st_mode & S_ISGID);
}

/* Where the sandbox has ids of its own: then whoever may change a directory inside may change what is made in it
 * from outside, whichever of the sandbox's users that is. */
static void owner_by_directory(const struct hostdir *hd, int dir_fd, mode_t *mode, uid_t *uid, gid_t *gid)
{
    struct stat st;
    uid_t own_uid;
    gid_t own_gid;
    if (fstat(dir_fd, &st) < 0)
        return;
    *uid = st.st_uid;
    *gid = st.st_gid;
    if (!(*mode & (S_ISUID | S_ISGID)))
        return;
    hostdir_owner(hd, &own_uid, &own_gid);
    if (*uid != own_uid || *gid != own_gid)
        *mode &= ~(mode_t)(S_ISUID | S_ISGID);
}

void creds_assume(struct fs *fs, fuse_req_t req, const struct hostdir *hd, int dir_fd, mode_t *mode,
                  struct creds *saved)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    uid_t uid = ctx->uid;
    gid_t gid = ctx->gid;
    bool tenant = hostdir_tenant(hd, &uid, &gid);
    *saved = (struct creds){0};
    if (!fs->as_callers)
        return;
    if (hostdir_foreign(hd))
        owner_by_directory(hd, dir_fd, mode, &uid, &gid);
    if (uid == 0 && gid == 0) {
        saved->changed = *mode & (S_ISUID | S_ISGID);
        if (saved->changed)
            creds_raise_fsetid();
        return;
    }
    if (!tenant && groups_matter(dir_fd, *mode)) {
        gid_t groups[256];
        int n = fuse_req_getgroups(req, array_size(groups), groups);
        if (n >= 0) {
            thread_setgroups((size_t)n < array_size(groups) ? (size_t)n : array_size(groups), groups);
            saved->groups_changed = true;
        }
    }
    setfsgid(gid);
    setfsuid(uid);
    keep_access();
    saved->changed = true;
}

void creds_restore(struct creds *saved)
{
    if (!saved->changed)
        return;
    setfsuid(0);
    setfsgid(0);
    if (saved->groups_changed)
        thread_setgroups(0, NULL);
    creds_lower_fsetid();
}

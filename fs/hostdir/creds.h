// SPDX-License-Identifier: Apache-2.0
/* Acting for a caller: whose ids a new file gets, and the one capability that must not be on by
 * default. All of it is of the calling thread alone. */
#ifndef WSMFS_FS_HOSTDIR_CREDS_H
#define WSMFS_FS_HOSTDIR_CREDS_H

#include "fs/hostdir/hostdir.h"

/* Takes CAP_FSETID out of the effective set, before threads are made: with it the backing file
 * system keeps setuid bits when somebody else writes (fuse.md, section 9). */
void creds_drop_fsetid(void);

/* From here to creds_restore() new files belong to the caller of `req` (or to the tenant; where the sandbox
 * has ids of its own, to whoever their directory belongs to), as far as the daemon has the right; access is still
 * the daemon's, since the kernel has checked the caller's. `dir_fd`, where they are made, and *mode decide
 * whether the caller's groups matter. *mode loses the bits by which a tenant would make a setuid program of
 * somebody who is not the sandbox's user. */
struct creds {
    bool changed, groups_changed;
};
void creds_assume(struct fs *fs, fuse_req_t req, const struct hostdir *hd, int dir_fd, mode_t *mode,
                  struct creds *saved);
void creds_restore(struct creds *saved);

/* CAP_FSETID on and off again, around a chmod that the kernel has already judged. */
void creds_raise_fsetid(void);
void creds_lower_fsetid(void);

#endif

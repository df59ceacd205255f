// SPDX-License-Identifier: Apache-2.0
/* The mounted filesystem as main sees it. */
#ifndef WSMFS_FS_H
#define WSMFS_FS_H

#include "fs/base/err.h"
#include "fs/base/pool.h"
#include "fs/base/timers.h"
#include "fs/config/config.h"
#include "fs/manager/manager.h"

struct fs;

/* Makes the filesystem over a manager and sets its hooks. Main thread. */
int fs_create(struct config *c, struct manager *m, struct pool *pool, struct timers *timers,
              struct fs **out, struct err *e);

/* Mounts at the configured place (through fusermount3 for an ordinary user). Main thread. */
int fs_mount(struct fs *fs, struct err *e);

/* Serves until the mount ends or fs_stop(). `ready` is called once INIT has been answered, so the
 * mount answers (from a thread of the loop). Returns 0 or -errno, also where what was asked for turns
 * out not to be had: `ready` is not called then. Main thread. */
int fs_run(struct fs *fs, void (*ready)(void *arg), void *arg, struct err *e);

/* Ends fs_run soon. Any thread. */
void fs_stop(struct fs *fs);

/* Reads the configuration file again, and makes the kernel forget what depended on it. -errno with a
 * sentence: nothing has changed. Options that changed but need a new mount are logged. Any thread,
 * not one that serves a request. */
int fs_reload(struct fs *fs, struct err *e);

/* Unmounts (lazily where files are open) and waits for own threads; requests that are parked are
 * answered with EINTR or die with the connection. After fs_run. */
void fs_unmount(struct fs *fs);

void fs_destroy(struct fs *fs);

#endif

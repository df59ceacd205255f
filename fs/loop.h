// SPDX-License-Identifier: Apache-2.0
/* The threads that read requests from the kernel. libfuse's own loop is not used: it cannot be
 * stopped from another thread before 3.18, and its readers are not ours to count. */
#ifndef WSMFS_FS_LOOP_H
#define WSMFS_FS_LOOP_H

#include <signal.h>

#include "fs/fs_internal.h"

struct readers *readers_create(void);
void readers_destroy(struct readers *rs);

/* A signal whose only use is to end a waiting system call with EINTR. Blocked everywhere but in the
 * readers and in threads that wait for locks. */
#define NUDGE_SIGNAL SIGRTMIN

/* Reads and handles requests with up to `max_readers` threads, made when all others are busy, until
 * the mount ends or readers_stop(). `first` is called once, after the first request was handled.
 * 0 or -errno. */
int readers_run(struct fs *fs, unsigned max_readers, void (*first)(struct fs *fs));

/* Any thread, also before readers_run. */
void readers_stop(struct fs *fs);

#endif

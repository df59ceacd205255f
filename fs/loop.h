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

/* What a request can take at most: the data of a write and its headers (struct fuse_in_header and so on,
 * fuse_lowlevel's own reserve). The kernel refuses to be read with less. */
#define READERS_WRITE_MAX   (1 << 20)
#define READERS_REQUEST_MAX (READERS_WRITE_MAX + 4096)

/* Reads and handles requests until the mount ends or readers_stop(): with one thread as long as it keeps
 * up, with up to `max_readers` when requests wait or are many. A reader that has nothing to do while
 * requests come thick looks for the next one for `spin_us` microseconds before it sleeps; 0: never.
 * `first` is called once, after the first request was handled. Runs in the calling thread too. 0 or
 * -errno. */
int readers_run(struct fs *fs, unsigned max_readers, unsigned spin_us, void (*first)(struct fs *fs));

/* The calling thread is about to wait for something that takes another request to be handled: sees to
 * it that one is read. Any thread. */
void readers_expect_wait(struct fs *fs);

/* Waits, for 50 ms at most, until the requests that other threads have taken by now are handled: the kernel
 * does not wait for some, so that of the close of a file may be on its way yet when somebody asks for what
 * needs it closed. Any thread, with no lock held. */
void readers_settle(struct fs *fs);

/* Any thread, also before readers_run. */
void readers_stop(struct fs *fs);

#endif

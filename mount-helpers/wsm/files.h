// SPDX-License-Identifier: Apache-2.0
/* Plain calls that go on after EINTR. Stopping a process, suspending the machine and a tracer all
 * interrupt what waits in a FUSE file system, also where the program has no signal handler. */
#ifndef WSM_FILES_H
#define WSM_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* openat with O_CLOEXEC. The descriptor, or -errno. */
int file_open(int dir, const char *name, int flags);

/* The whole text of a file with an ending, malloc'ed and terminated. NULL: errno says why. */
char *file_read(int dir, const char *name);

/* The same without the newline at its end. */
char *file_read_line(int dir, const char *name);

/* Writes all of it in one write where the file takes that, and closes. 0 or -errno, that of the
 * close included. A write that was interrupted is made again. */
int file_write(int dir, const char *name, const char *data, size_t size);

/* One write(2) to a file that is open: 0, -errno, -EINTR included; a short one is -EIO. */
int file_write_once(int fd, const char *data, size_t size);

/* Waits. Nothing but poll(2) is used for it. */
void wait_ms(int ms);

/* Waits until `fd` can be read or has ended. Several waiters use poll themselves. */
void wait_readable(int fd);

#endif

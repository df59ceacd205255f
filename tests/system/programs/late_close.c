// SPDX-License-Identifier: Apache-2.0
/* Preloaded: every close of a regular file that is open for writing takes 20 ms. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int close(int fd)
{
    const struct timespec late = { .tv_nsec = 20000000 };
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
        nanosleep(&late, 0);
    return (int)syscall(SYS_close, fd);
}

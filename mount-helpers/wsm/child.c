// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>

#include "files.h"
#include "wsm.h"

#define PIECE_BYTES 4096
#define KILL_WAIT_MS 1000 /* one that hangs in a mount may not go even then */
#define LOOK_MS 10

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads until the other end is closed. False when the time was over before. */
static bool read_until(int fd, int64_t end_ms, FILE *out)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    char    piece[PIECE_BYTES];
    ssize_t n;

    for (int64_t left_ms; (left_ms = end_ms - now_ms()) > 0;) {
        if (poll(&p, 1, (int)left_ms) <= 0)
            continue;
        n = read(fd, piece, sizeof(piece));
        if (n > 0)
            fwrite(piece, 1, (size_t)n, out);
        else if (n == 0 || errno != EINTR)
            return true;
    }
    return false;
}

static int status_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Waits for the end of a child, with polls of no descriptor. */
static int reap(pid_t pid, int64_t end_ms)
{
    int   status = 0;
    pid_t r;

    while ((r = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < end_ms)
        wait_ms(LOOK_MS);
    return r == pid ? status_of(status) : CHILD_TIMEOUT;
}

static int attend(pid_t pid, int fd, int timeout_ms, FILE *out)
{
    int64_t end_ms = now_ms() + timeout_ms;
    int status = CHILD_TIMEOUT;

    if (read_until(fd, end_ms, out))
        status = reap(pid, end_ms);
    if (status != CHILD_TIMEOUT)
        return status;
    kill(pid, SIGKILL);
    reap(pid, now_ms() + KILL_WAIT_MS);
    return CHILD_TIMEOUT;
}

/* A child whose output comes by `*from`; 0 in the child. */
static pid_t start(int *from)
{
    int   ends[2], null;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    fflush(NULL);
    pid = fork();
    if (pid != 0) {
        close(ends[1]);
        *from = ends[0];
        return pid;
    }
    null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    return 0;
}

int child_run(const char *const *argv, int timeout_ms, char **text)
{
    size_t size;
    FILE  *out = open_memstream(text, &size);
    cleanup_close int from = -1;
    pid_t pid = out ? start(&from) : -1;
    int   status;

    if (pid == 0) {
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    status = pid < 0 ? CHILD_FAILED : attend(pid, from, timeout_ms, out);
    if (out)
        fclose(out);
    return status;
}

int child_call(int (*function)(const char *arg), const char *arg, int timeout_ms)
{
    cleanup_free char *text = NULL;
    size_t size;
    FILE  *out = open_memstream(&text, &size);
    cleanup_close int from = -1;
    pid_t pid = out ? start(&from) : -1;
    int   status;

    if (pid == 0)
        _exit(function(arg));
    status = pid < 0 ? CHILD_FAILED : attend(pid, from, timeout_ms, out);
    if (out)
        fclose(out);
    return status;
}

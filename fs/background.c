// SPDX-License-Identifier: Apache-2.0
#include "fs/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

/* What the child says first: this alone, or a sentence. */
#define SAY_READY '\n'

static void print_failure(const char *text) { dprintf(STDERR_FILENO, "wsmfs: %s\n", text); }

/* The child ended without a word. */
static void print_end(pid_t child)
{
    int status = 0;

    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        dprintf(STDERR_FILENO, "wsmfs: the daemon was ended by signal %d (%s) before it was mounted\n",
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        dprintf(STDERR_FILENO, "wsmfs: the daemon ended with status %d before it was mounted\n",
                WEXITSTATUS(status));
}

static __attribute__((noreturn)) void wait_for_child(int fd, pid_t child)
{
    char text[ERR_TEXT_MAX + 1];
    size_t n = 0;
    ssize_t r;

    do {
        r = read(fd, text + n, sizeof(text) - 1 - n);
        n += r > 0 ? (size_t)r : 0;
        if (n > 0 && text[0] == SAY_READY)
            _exit(0);
    } while ((r > 0 && n < sizeof(text) - 1) || (r < 0 && errno == EINTR));
    text[n] = '\0';
    if (n > 0)
        print_failure(text);
    else
        print_end(child);
    _exit(1);
}

int background_start(struct background *b, bool foreground, struct err *e)
{
    const char *notify = getenv("NOTIFY_SOCKET");
    int fds[2];
    pid_t child;

    *b = (struct background){.foreground = foreground, .parent_fd = -1};
    if (notify && !(b->notify_socket = strdup(notify)))
        return err_set(e, -ENOMEM, "out of memory");
    unsetenv("NOTIFY_SOCKET"); /* not for the programs that we start */
    if (foreground)
        return 0;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, -errno, "cannot make a pipe");
    fflush(NULL);
    child = fork();
    if (child < 0)
        return err_sys(e, -errno, "cannot go to the background");
    if (child > 0) {
        close(fds[1]);
        wait_for_child(fds[0], child);
    }
    close(fds[0]);
    b->parent_fd = fds[1];
    return 0;
}

static void tell_parent(struct background *b, const char *text, size_t n)
{
    (void)!write(b->parent_fd, text, n); /* a parent that has gone needs no answer */
    close(steal_fd(&b->parent_fd));
}

/* Nothing may hold the terminal or a directory of somebody's from now on. */
static void leave_terminal(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    setsid();
    if (chdir("/") < 0)
        log_warning("cannot change to /: %s", strerror(errno));
    for (int std = STDIN_FILENO; fd >= 0 && std <= STDERR_FILENO; std++)
        dup2(fd, std);
    if (fd > STDERR_FILENO)
        close(fd);
}

void background_ready(struct background *b)
{
    static const char ready = SAY_READY;

    if (!b->foreground) {
        log_open(LOG_TARGET_SYSTEM);
        leave_terminal();
        tell_parent(b, &ready, 1);
    }
    background_notify(b, "READY=1\nSTATUS=mounted");
}

void background_fail(struct background *b, const char *text)
{
    if (b->parent_fd >= 0)
        tell_parent(b, text, strlen(text));
    else
        print_failure(text);
    background_notify(b, "STATUS=could not be mounted");
}

void background_notify(const struct background *b, const char *state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = b->notify_socket ? strlen(b->notify_socket) : 0;
    cleanup_close int fd = -1;

    if (n < 2 || n > sizeof(a.sun_path) || !strchr("/@", b->notify_socket[0]))
        return;
    memcpy(a.sun_path, b->notify_socket, n);
    if (a.sun_path[0] == '@')
        a.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
}

void background_finish(struct background *b)
{
    if (b->parent_fd >= 0)
        close(steal_fd(&b->parent_fd));
    free(steal_ptr(&b->notify_socket));
}

// SPDX-License-Identifier: Apache-2.0
/* A guest for the tests of the sandbox alone: statically linked, first process, refuses tracers.
 * A connection brings a shell script up to its end of file and gets the script's output and then, on
 * a line of its own, how it ended. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT_MAX (100 * 1024)

static void read_script(int fd, char *script)
{
    size_t len = 0;
    ssize_t n;

    while (len < SCRIPT_MAX && (n = read(fd, script + len, SCRIPT_MAX - len)) > 0)
        len += (size_t)n;
    script[len] = '\0';
}

static void run(int fd, char *script)
{
    int null = open("/dev/null", O_RDONLY);

    dup2(null, 0);
    dup2(fd, 1);
    dup2(fd, 2);
    if (null > 2)
        close(null);
    execl("/bin/sh", "sh", "-c", script, (char *)NULL);
    _exit(127);
}

static void serve_one(int fd)
{
    static char script[SCRIPT_MAX + 1];
    int status = 0;
    pid_t pid;

    read_script(fd, script);
    pid = fork();
    if (pid == 0)
        run(fd, script);
    if (pid < 0)
        dprintf(fd, "\nno fork: %s\n", strerror(errno));
    else
        waitpid(pid, &status, 0);
    dprintf(fd, "\nended %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    _exit(0);
}

static int serve(int listen_fd)
{
    fcntl(listen_fd, F_SETFD, FD_CLOEXEC);
    if (prctl(PR_SET_DUMPABLE, 0) < 0)
        return 1;
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (fd >= 0 && fork() == 0)
            serve_one(fd);
        if (fd >= 0)
            close(fd);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "version") == 0)
        return 0;
    if (argc == 4 && strcmp(argv[1], "serve") == 0 && strcmp(argv[2], "--fd") == 0)
        return serve(atoi(argv[3]));
    return 2;
}

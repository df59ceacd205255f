// SPDX-License-Identifier: Apache-2.0
/* The programs that keep credentials. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/docker/credentials.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define ANSWER_MAX 65536
#define LOOK_MS    50
#define ENDING_MS  2 /* once it has closed what it says */
#define LETTERS    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

extern char **environ;

enum { SAID, COMPLAINED, STREAMS };

struct helper {
    pid_t pid;
    int   fd[STREAMS];
    char *text[STREAMS];  /* what has come, with a NUL */
    size_t n[STREAMS];
    int   status;         /* of its end */
};

static int64_t now_ms(void) { return clock_ns() / 1000000; }

/* ── starting ────────────────────────────────────────────────────────────────────────────── */

/* The shell is there for the mask alone: ours is 0, and what a helper keeps is for nobody else. */
static int spawn(struct helper *h, const char *name, const int ends[3])
{
    const char *const argv[] = { "sh", "-c", "umask 077; exec \"docker-credential-$1\" get", "sh", name, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    int r;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&files, ends[i], i);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    r = posix_spawn(&h->pid, "/bin/sh", &files, &how, (char *const *)argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return -r;
}

/* The question lies in its pipe before the helper runs, so that one which does not read it breaks nothing. */
static int ask(int fd[2], const char *question)
{
    size_t n = strlen(question);

    if (pipe2(fd, O_CLOEXEC) < 0)
        return -errno;
    if (n > 4096 || write(fd[1], question, n) != (ssize_t)n)
        return -EINVAL;
    close(fd[1]);
    fd[1] = -1;
    return 0;
}

static int start(struct helper *h, const char *name, const char *question)
{
    int in[2] = { -1, -1 }, out[2] = { -1, -1 }, err[2] = { -1, -1 }, r;
    int *const pipes[] = { in, out, err };

    r = ask(in, question);
    if (r == 0 && (pipe2(out, O_CLOEXEC | O_NONBLOCK) < 0 || pipe2(err, O_CLOEXEC | O_NONBLOCK) < 0))
        r = -errno;
    if (r == 0)
        fcntl(out[1], F_SETFL, 0); /* the helper's own ends block as usual */
    if (r == 0)
        fcntl(err[1], F_SETFL, 0);
    if (r == 0)
        r = spawn(h, name, (const int[]){ in[0], out[1], err[1] });
    if (r == 0) {
        h->fd[SAID] = steal_fd(&out[0]);
        h->fd[COMPLAINED] = steal_fd(&err[0]);
    }
    for (size_t i = 0; i < array_size(pipes); i++)
        for (int end = 0; end < 2; end++)
            if (pipes[i][end] >= 0)
                close(pipes[i][end]);
    return r;
}

/* ── listening ───────────────────────────────────────────────────────────────────────────── */

/* What is more than fits is dropped, so that the helper ends all the same. */
static void take(struct helper *h, int i)
{
    char rest[4096];
    size_t room = ANSWER_MAX - 1 - h->n[i];
    ssize_t n = 1;

    while (h->fd[i] >= 0 && n > 0) {
        n = read(h->fd[i], room ? h->text[i] + h->n[i] : rest, room ? room : sizeof(rest));
        if (n > 0 && room) {
            h->n[i] += (size_t)n;
            room -= (size_t)n;
        }
    }
    if (h->fd[i] >= 0 && (n == 0 || errno != EAGAIN)) {
        close(h->fd[i]);
        h->fd[i] = -1;
    }
}

/* Until it has ended: what it leaves in the background, e.g. an agent, may keep the pipes. */
static int listen_until(struct helper *h, int64_t until_ms, bool (*cancelled)(void *arg), void *arg)
{
    for (;;) {
        struct pollfd p[STREAMS] = { { h->fd[SAID], POLLIN, 0 }, { h->fd[COMPLAINED], POLLIN, 0 } };
        bool silent = h->fd[SAID] < 0 && h->fd[COMPLAINED] < 0, ended;
        poll(p, STREAMS, silent ? ENDING_MS : LOOK_MS);
        ended = waitpid(h->pid, &h->status, WNOHANG) == h->pid;
        for (int i = 0; i < STREAMS; i++)
            take(h, i);
        if (ended)
            return 0;
        if (cancelled && cancelled(arg))
            return -ECANCELED;
        if (now_ms() > until_ms)
            return -ETIMEDOUT;
    }
}

static void end(struct helper *h)
{
    kill(-h->pid, SIGKILL);
    waitpid(h->pid, NULL, 0);
}

/* ── what it means ───────────────────────────────────────────────────────────────────────── */

/* A helper says on stdout what goes wrong, and whoever runs it on stderr. */
static int understand(const struct helper *h, const char *name, struct json_object **out, struct err *e)
{
    const char *text = h->text[SAID] + strspn(h->text[SAID], " \n");

    if (WIFEXITED(h->status) && WEXITSTATUS(h->status) == 0) {
        *out = json_tokener_parse(text);
        return *out ? 0 : err_set(e, -EACCES, "the credential helper docker-credential-%s prints no JSON", name);
    }
    if (strstr(text, "credentials not found"))
        return err_set(e, -ENOENT, "the credential helper docker-credential-%s knows none", name);
    if (!*text)
        text = h->text[COMPLAINED] + strspn(h->text[COMPLAINED], " \n");
    return err_set(e, -EACCES, "the credential helper docker-credential-%s fails: %.*s", name,
                   (int)(*text ? strcspn(text, "\n") : 13), *text ? text : "it is silent");
}

static int talk(struct helper *h, const char *name, const char *registry, int64_t timeout_ms,
                bool (*cancelled)(void *arg), void *arg, struct json_object **out, struct err *e)
{
    int r = start(h, name, registry);

    if (r < 0)
        return err_sys(e, r, "the credential helper docker-credential-%s cannot be started", name);
    r = listen_until(h, now_ms() + timeout_ms, cancelled, arg);
    if (r == 0)
        return understand(h, name, out, e);
    end(h);
    if (r == -ECANCELED)
        return err_set(e, r, "cancelled");
    return err_set(e, r, "the credential helper docker-credential-%s does not answer", name);
}

int credential_helper_ask(const char *helper, const char *registry, int64_t timeout_ms, bool (*cancelled)(void *arg),
                          void *arg, struct json_object **out, struct err *e)
{
    cleanup_free char *said = calloc(1, ANSWER_MAX), *complained = calloc(1, ANSWER_MAX);
    struct helper h = { .fd = { -1, -1 }, .text = { said, complained } };
    int r;

    *out = NULL;
    if (!said || !complained)
        return err_set(e, -ENOMEM, "out of memory");
    if (!*helper || helper[strspn(helper, LETTERS)])
        return err_set(e, -EINVAL, "\"%s\" is not the name of a credential helper", helper);
    r = talk(&h, helper, registry, timeout_ms, cancelled, arg, out, e);
    for (int i = 0; i < STREAMS; i++)
        if (h.fd[i] >= 0)
            close(h.fd[i]);
    return r;
}

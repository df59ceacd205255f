// SPDX-License-Identifier: Apache-2.0
/* Runs commands one behind the other or many at a time, as jobs through their files or by posix_spawn,
 * and reads streams to their end. Prints nanoseconds:
 *
 *      jobclient jobs DIR N AT_ONCE FILE TEXT  job directories below DIR, started by writing TEXT to FILE in
 *                                              each; one number a job
 *      jobclient spawn N AT_ONCE WORD…         posix_spawn + waitpid; one number a process
 *      jobclient read FILE                     bytes read (-: of standard input), and the time from the first
 *                                              to the last
 *
 * The first line of the first two is what all of them took together. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE_MAX 256
#define READ_BYTES  (128u << 10)

extern char **environ;

struct run {
    void     (*one)(const struct run *r, int i);
    int        dir;      /* of jobs */
    const char *file;    /* of a job: what is written, */
    const char *text;    /* and what to it */
    char     **words;    /* of a process */
    int        n;
    atomic_int next;
    int64_t   *took_ns;
};

static void die(const char *what)
{
    fprintf(stderr, "jobclient: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ── a job ───────────────────────────────────────────────────────────────────────────────── */

static void start_job(const struct run *r, const char *name)
{
    char path[64];
    size_t size = strlen(r->text);
    int fd;

    if (mkdirat(r->dir, name, 0755) < 0)
        die("mkdir");
    snprintf(path, sizeof(path), "%s/%s", name, r->file);
    fd = openat(r->dir, path, O_WRONLY | O_TRUNC);
    if (fd < 0 || write(fd, r->text, size) != (ssize_t)size || close(fd) < 0)
        die(path);
}

static void wait_for_job(const struct run *r, const char *name)
{
    char path[64], text[256];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "%s/exit", name);
    fd = openat(r->dir, path, O_RDONLY);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n < 0 || close(fd) < 0)
        die("exit");
    text[n] = '\0';
    if (strcmp(text, "0\n") != 0) {
        fprintf(stderr, "jobclient: a job ended with %s", text);
        exit(1);
    }
}

static void run_job(const struct run *r, int i)
{
    int64_t start = now_ns();
    char name[32];

    snprintf(name, sizeof(name), "b%d-%d", (int)getpid(), i);
    start_job(r, name);
    wait_for_job(r, name);
    r->took_ns[i] = now_ns() - start;
    if (unlinkat(r->dir, name, AT_REMOVEDIR) < 0)
        die("rmdir");
}

/* ── a process ───────────────────────────────────────────────────────────────────────────── */

static void run_process(const struct run *r, int i)
{
    int64_t start = now_ns();
    int status;
    pid_t pid;

    errno = posix_spawnp(&pid, r->words[0], NULL, NULL, r->words, environ);
    if (errno || waitpid(pid, &status, 0) < 0)
        die(r->words[0]);
    if (status) {
        fprintf(stderr, "jobclient: %s ended with status %d\n", r->words[0], status);
        exit(1);
    }
    r->took_ns[i] = now_ns() - start;
}

/* ── all of them ─────────────────────────────────────────────────────────────────────────── */

static void *worker(void *arg)
{
    struct run *r = arg;

    for (int i; (i = atomic_fetch_add(&r->next, 1)) < r->n;)
        r->one(r, i);
    return NULL;
}

static void run_all(struct run *r, const char *n, const char *at_once_text)
{
    pthread_t threads[AT_ONCE_MAX];
    int at_once = atoi(at_once_text);
    int64_t start;

    r->n = atoi(n);
    r->took_ns = calloc((size_t)r->n + 1, sizeof(*r->took_ns));
    if (at_once > AT_ONCE_MAX || !r->took_ns)
        die("too many");
    start = now_ns();
    for (int i = 0; i < at_once; i++)
        if ((errno = pthread_create(&threads[i], NULL, worker, r)))
            die("thread");
    for (int i = 0; i < at_once; i++)
        pthread_join(threads[i], NULL);
    printf("%lld\n", (long long)(now_ns() - start));
    for (int i = 0; i < r->n; i++)
        printf("%lld\n", (long long)r->took_ns[i]);
}

/* ── a stream ────────────────────────────────────────────────────────────────────────────── */

/* The time begins with the first bytes: what starting takes is measured elsewhere. */
static void read_all(const char *path)
{
    static char buf[READ_BYTES];
    int fd = strcmp(path, "-") == 0 ? 0 : open(path, O_RDONLY);
    int64_t start = 0;
    uint64_t bytes = 0;
    ssize_t n;

    if (fd < 0)
        die(path);
    while ((n = read(fd, buf, sizeof(buf))) > 0) {
        if (!bytes)
            start = now_ns();
        bytes += (uint64_t)n;
    }
    if (n < 0)
        die(path);
    printf("%llu\n%lld\n", (unsigned long long)bytes, (long long)(now_ns() - start));
}

int main(int argc, char **argv)
{
    struct run r = { 0 };

    if (argc == 7 && strcmp(argv[1], "jobs") == 0) {
        r.one = run_job;
        r.file = argv[5];
        r.text = argv[6];
        r.dir = open(argv[2], O_PATH | O_DIRECTORY);
        if (r.dir < 0)
            die(argv[2]);
        run_all(&r, argv[3], argv[4]);
    } else if (argc > 4 && strcmp(argv[1], "spawn") == 0) {
        r.one = run_process;
        r.words = argv + 4;
        run_all(&r, argv[2], argv[3]);
    } else if (argc == 3 && strcmp(argv[1], "read") == 0) {
        read_all(argv[2]);
    } else {
        fprintf(stderr, "jobclient: wrong words\n");
        return 2;
    }
    return 0;
}

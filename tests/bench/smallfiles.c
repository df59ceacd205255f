// SPDX-License-Identifier: Apache-2.0
/* Loops of one system call each over many small files, and clients that do the same at once.
 *
 *   smallfiles PHASE DIRECTORY N                    one pass over N files; prints nanoseconds
 *   smallfiles clients PHASE DIRECTORY N P MS       P processes for MS milliseconds; prints operations
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES_A_DIRECTORY 100
#define FILE_BYTES        1024
#define CLIENTS_MAX       64

static char content[FILE_BYTES];

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "smallfiles: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct name {
    char text[32];
};

static const char *name_of(struct name *n, char kind, int i)
{
    snprintf(n->text, sizeof n->text, "d%04d/%c%07d", i / FILES_A_DIRECTORY, kind, i);
    return n->text;
}

/* ── the phases: each does one thing to file number i ────────────────────────────────────── */

static void do_create(int i)
{
    struct name n;
    int fd = open(name_of(&n, 'f', i), O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0 || write(fd, content, sizeof content) != sizeof content || close(fd) < 0)
        fail("create", n.text);
}

static void do_stat(int i)
{
    struct name n;
    struct stat st;
    if (stat(name_of(&n, 'f', i), &st) < 0 || st.st_size != FILE_BYTES)
        fail("stat", n.text);
}

/* What is cached does not count: the file system has to be asked. */
static void do_ask(int i)
{
    struct name n;
    struct statx st;
    if (statx(AT_FDCWD, name_of(&n, 'f', i), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st) < 0)
        fail("statx", n.text);
}

static void do_open(int i)
{
    struct name n;
    char buf[2 * FILE_BYTES];
    int fd = open(name_of(&n, 'f', i), O_RDONLY);
    if (fd < 0 || read(fd, buf, sizeof buf) != FILE_BYTES || close(fd) < 0)
        fail("open", n.text);
}

static void do_rename(int i)
{
    struct name from, to;
    if (rename(name_of(&from, 'f', i), name_of(&to, 'g', i)) < 0)
        fail("rename", from.text);
}

static void do_unlink(int i)
{
    struct name n;
    if (unlink(name_of(&n, 'g', i)) < 0)
        fail("unlink", n.text);
}

static void do_mkdir(int i)
{
    struct name n;
    if (i % FILES_A_DIRECTORY)
        return;
    name_of(&n, 'f', i);
    *strchr(n.text, '/') = '\0';
    if (mkdir(n.text, 0755) < 0)
        fail("mkdir", n.text);
}

static void do_rmdir(int i)
{
    struct name n;
    if (i % FILES_A_DIRECTORY)
        return;
    name_of(&n, 'f', i);
    *strchr(n.text, '/') = '\0';
    if (rmdir(n.text) < 0)
        fail("rmdir", n.text);
}

static const struct phase {
    const char *name;
    void      (*act)(int i);
} phases[] = {
    { "mkdir", do_mkdir }, { "create", do_create }, { "stat", do_stat },     { "ask", do_ask },
    { "open", do_open },   { "rename", do_rename }, { "unlink", do_unlink }, { "rmdir", do_rmdir },
};

static const struct phase *phase_named(const char *name)
{
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
        if (strcmp(phases[i].name, name) == 0)
            return &phases[i];
    fprintf(stderr, "smallfiles: there is no phase %s\n", name);
    exit(2);
}

static void enter(const char *dir)
{
    if (chdir(dir) < 0)
        fail("enter", dir);
}

static void one_pass(const struct phase *p, int n)
{
    int64_t start_ns = now_ns();
    for (int i = 0; i < n; i++)
        p->act(i);
    printf("%lld\n", (long long)(now_ns() - start_ns));
}

/* ── several clients ─────────────────────────────────────────────────────────────────────── */

struct shared {
    _Atomic int      ready;
    _Atomic int      go;
    _Atomic uint64_t done;
};

static void client(struct shared *s, const struct phase *p, int first, int n, int64_t for_ns)
{
    uint64_t done = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    s->ready++;
    while (!s->go)
        usleep(200);
    for (int64_t end_ns = now_ns() + for_ns; now_ns() < end_ns;)
        for (int k = 0; k < 16; k++, done++)
            p->act((first + (int)(done % (uint64_t)n)) % n);
    s->done += done;
    _exit(0);
}

static void many_clients(const struct phase *p, int n, int clients, int64_t for_ns)
{
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status, failed = 0;
    if (s == MAP_FAILED || clients > CLIENTS_MAX)
        fail("start", "clients");
    for (int c = 0; c < clients; c++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork", "");
        if (pid == 0)
            client(s, p, c * (n / clients), n, for_ns);
    }
    while (s->ready < clients && waitpid(-1, &status, WNOHANG) == 0)
        usleep(200);
    s->go = 1;
    while (wait(&status) > 0)
        failed |= status;
    if (failed)
        exit(1);
    printf("%llu\n", (unsigned long long)s->done);
}

int main(int argc, char **argv)
{
    memset(content, 'x', sizeof content);
    if (argc == 4) {
        enter(argv[2]);
        one_pass(phase_named(argv[1]), atoi(argv[3]));
    } else if (argc == 7 && strcmp(argv[1], "clients") == 0) {
        enter(argv[3]);
        many_clients(phase_named(argv[2]), atoi(argv[4]), atoi(argv[5]), atoll(argv[6]) * 1000000);
    } else {
        fprintf(stderr, "usage: smallfiles PHASE DIRECTORY N | smallfiles clients PHASE DIRECTORY N P MS\n");
        return 2;
    }
    return 0;
}

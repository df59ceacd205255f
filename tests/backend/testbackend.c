// SPDX-License-Identifier: Apache-2.0
/* A backend for the tests alone: once ready it hands out a host directory, but its callers wait as for
 * remote files, and its provisioning is slow, hangs, fails or succeeds as a test says.
 *
 * Its control directory is `control` in [backend testbackend], or <basedir>/.wsmfs-test. For a workspace
 * the first of these files that exists there says what happens, one word a line:
 *     <user>.<agent>.<session or id>   <user>.<agent>   <id>   default
 *
 *     delay_ms 200           provisioning takes this long
 *     hang                   it takes until the file changes or goes, or nobody wants it any more
 *     hang hard              … and does not ask whether anybody wants it
 *     fail ENXIO some words  it fails
 *     close_delay_ms 200     closing takes this long
 *     close_fail EIO words   it fails
 *
 * `log` there gets a line for each callback ("provision <id>", "provisioned <id>", "cancelled <id>",
 * "failed <id>", "close <id>", "destroy <id>"), `sandboxes/<id>` is there while a sandbox is. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/backend.h"
#include "fs/base/cleanup.h"
#include "fs/config/config.h"

#define POLL_MS    10
#define TEXT_MAX   4096
#define OPEN_DIR   (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define NAME_BYTES 256

const struct backend *wsmfs_backend(void);

struct test {
    int base_fd;    /* borrowed */
    int control_fd; /* of the control directory */
};

static int say(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    e->code = code;
    return code;
}

static void log_line(struct test *t, const char *what, const char *id)
{
    char line[128];
    int  n = snprintf(line, sizeof(line), "%s %s\n", what, id);
    cleanup_close int fd = openat(t->control_fd, "log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);

    if (fd >= 0 && write(fd, line, (size_t)n) != n)
        fprintf(stderr, "testbackend: the log cannot be written\n");
}

static void sleep_ms(long ms)
{
    const struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&ts, NULL);
}

/* ── what the test says ──────────────────────────────────────────────────────────────────── */

struct orders {
    char name[3 * NAME_BYTES]; /* of the file; "" when there is none */
    char text[TEXT_MAX];
};

static bool read_orders(struct test *t, const char *name, struct orders *o)
{
    cleanup_close int fd = openat(t->control_fd, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, o->text, sizeof(o->text) - 1);

    if (n < 0)
        return false;
    o->text[n] = '\0';
    snprintf(o->name, sizeof(o->name), "%.*s", (int)sizeof(o->name) - 1, name);
    return true;
}

static void find_orders(struct test *t, const struct backend_workspace *w, struct orders *o)
{
    char names[4][3 * NAME_BYTES];

    snprintf(names[0], sizeof(names[0]), "%s.%s.%s", w->user, w->agent, *w->session ? w->session : w->id);
    snprintf(names[1], sizeof(names[1]), "%s.%s", w->user, w->agent);
    snprintf(names[2], sizeof(names[2]), "%s", w->id);
    snprintf(names[3], sizeof(names[3]), "default");
    o->name[0] = o->text[0] = '\0';
    for (size_t i = 0; i < array_size(names); i++)
        if (read_orders(t, names[i], o))
            return;
}

/* What stands behind a word at the start of a line; false when no line has it. */
static bool order(const struct orders *o, const char *word, char *rest, size_t size)
{
    size_t len = strlen(word);

    for (const char *line = o->text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, len) != 0 || !strchr(" \n", line[len]))
            continue;
        line += len;
        line += *line == ' ';
        snprintf(rest, size, "%.*s", (int)strcspn(line, "\n"), line);
        return true;
    }
    return false;
}

static long order_ms(const struct orders *o, const char *word)
{
    char rest[32];

    return order(o, word, rest, sizeof(rest)) ? strtol(rest, NULL, 10) : 0;
}

/* Fails as "ENXIO some words" says. */
static int fail_with(const char *rest, struct err *e)
{
    static const struct {
        const char *name;
        int         code;
    } codes[] = {
        { "EHOSTUNREACH", EHOSTUNREACH }, { "EACCES", EACCES },       { "ENXIO", ENXIO },
        { "EINVAL", EINVAL },             { "EDQUOT", EDQUOT },       { "ETIMEDOUT", ETIMEDOUT },
        { "EIO", EIO },                   { "ENOSPC", ENOSPC },       { "EPERM", EPERM },
    };
    size_t len = strcspn(rest, " ");
    const char *text = rest[len] ? rest + len + 1 : "the test says so";

    for (size_t i = 0; i < array_size(codes); i++)
        if (strlen(codes[i].name) == len && strncmp(codes[i].name, rest, len) == 0)
            return say(e, -codes[i].code, "%s", text);
    return say(e, -EIO, "unknown errno in the test's orders: %s", rest);
}

/* ── provisioning ────────────────────────────────────────────────────────────────────────── */

static bool wait_ms(struct backend_progress *p, long ms)
{
    for (; ms > 0; ms -= POLL_MS) {
        if (p->cancelled(p))
            return false;
        sleep_ms(ms < POLL_MS ? ms : POLL_MS);
    }
    return true;
}

/* Until the file says something else. False: nobody wants it any more. */
static bool hang(struct test *t, const struct backend_workspace *w, struct orders *o, struct backend_progress *p)
{
    struct orders now;
    char kind[16];

    while (order(o, "hang", kind, sizeof(kind))) {
        if (strcmp(kind, "hard") != 0 && p->cancelled(p))
            return false;
        sleep_ms(POLL_MS);
        find_orders(t, w, &now);
        *o = now;
    }
    return true;
}

static int cancelled(struct test *t, const struct backend_workspace *w, struct err *e)
{
    log_line(t, "cancelled", w->id);
    return say(e, -ECANCELED, "nobody wants it any more");
}

/* The sandbox is a file with the names. */
static int make_sandbox(struct test *t, const struct backend_workspace *w, struct err *e)
{
    char path[NAME_BYTES];

    snprintf(path, sizeof(path), "sandboxes/%s", w->id);
    cleanup_close int fd = openat(t->control_fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || dprintf(fd, "%s\n%s\n%s\n", w->user, w->agent, w->session) < 0)
        return say(e, -EIO, "the test's sandbox cannot be made: %s", strerror(errno));
    log_line(t, "provisioned", w->id);
    return 0;
}

static int test_provision(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    struct test *t = state;
    struct orders o;
    char rest[200];

    log_line(t, "provision", w->id);
    find_orders(t, w, &o);
    p->step(p, "start", "the test's sandbox", 0, 0);
    if (!wait_ms(p, order_ms(&o, "delay_ms")) || !hang(t, w, &o, p))
        return cancelled(t, w, e);
    if (order(&o, "fail", rest, sizeof(rest))) {
        log_line(t, "failed", w->id);
        return fail_with(rest, e);
    }
    p->step(p, "ready", NULL, 1, 1);
    return make_sandbox(t, w, e);
}

/* ── files ───────────────────────────────────────────────────────────────────────────────── */

static int open_component(int dir, const char *name)
{
    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -1;
    return openat(dir, name, OPEN_DIR);
}

static int test_files_open(void *state, const struct backend_workspace *w, struct err *e)
{
    struct test *t = state;
    int at = dup(t->base_fd);

    for (const char *s = w->host_dir; at >= 0 && *s;) {
        char name[NAME_BYTES];
        size_t len = strcspn(s, "/");
        snprintf(name, sizeof(name), "%.*s", (int)len, s);
        int next = open_component(at, name);
        close(at);
        at = next;
        s += len + (s[len] == '/');
    }
    if (at < 0)
        return say(e, -EIO, "the test's directory %s cannot be opened: %s", w->host_dir, strerror(errno));
    if (w->tenant && geteuid() == 0 && fchownat(at, "", w->uid, w->gid, AT_EMPTY_PATH) < 0)
        fprintf(stderr, "testbackend: the directory cannot be given away\n");
    char own[64];
    snprintf(own, sizeof(own), "/proc/self/fd/%d", at);
    if (w->mode && chmod(own, w->mode) < 0)
        fprintf(stderr, "testbackend: the directory's mode cannot be set\n");
    return at;
}

static int test_close(void *state, const struct backend_workspace *w, struct err *e)
{
    struct test *t = state;
    struct orders o;
    char rest[200], path[NAME_BYTES];

    log_line(t, "close", w->id);
    find_orders(t, w, &o);
    sleep_ms(order_ms(&o, "close_delay_ms"));
    if (order(&o, "close_fail", rest, sizeof(rest)))
        return fail_with(rest, e);
    snprintf(path, sizeof(path), "sandboxes/%s", w->id);
    if (unlinkat(t->control_fd, path, 0) < 0 && errno != ENOENT)
        return say(e, -EIO, "the test's sandbox cannot be removed: %s", strerror(errno));
    return 0;
}

static void remove_tree(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);

    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlinkat(dirfd(d), e->d_name, 0) < 0)
            remove_tree(dirfd(d), e->d_name);
    unlinkat(dir, name, AT_REMOVEDIR);
}

static int test_destroy(void *state, const struct backend_workspace *w, struct backend_progress *p, struct err *e)
{
    struct test *t = state;

    (void)e;
    log_line(t, "destroy", w->id);
    p->step(p, "remove", w->host_dir, 0, 0);
    remove_tree(t->base_fd, w->host_dir);
    return 0;
}

/* ── life ────────────────────────────────────────────────────────────────────────────────── */

static void tell_found(int dir, const char *id, void (*found)(const struct backend_found *f, void *arg), void *arg)
{
    char names[4 * NAME_BYTES];
    cleanup_close int fd = openat(dir, id, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, names, sizeof(names) - 1);

    if (n < 0)
        return;
    names[n] = '\0';
    char *rest = names;
    struct backend_found f = { .id = id };
    f.user = strsep(&rest, "\n");
    f.agent = strsep(&rest, "\n");
    f.session = strsep(&rest, "\n");
    if (f.user && f.agent && f.session)
        found(&f, arg);
}

static int test_list(void *state, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    struct test *t = state;
    int fd = openat(t->control_fd, "sandboxes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d)
        return say(e, -EIO, "the test's sandboxes cannot be listed: %s", strerror(errno));
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.')
            tell_found(dirfd(d), entry->d_name, found, arg);
    return 0;
}

/* The control directory, made when missing. */
static int open_control(const struct backend_mount *m, const char *path, struct err *e)
{
    char own[TEXT_MAX];
    int  fd;

    if (!path) {
        snprintf(own, sizeof(own), "%s/.wsmfs-test", m->basedir);
        path = own;
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return say(e, -errno, "%s cannot be made: %s", path, strerror(errno));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (mkdirat(fd, "sandboxes", 0700) < 0 && errno != EEXIST))
        return say(e, -errno, "%s cannot be used: %s", path, strerror(errno));
    return fd;
}

static int test_init(const struct backend_mount *m, void **state, struct err *e)
{
    const char *control = NULL;
    struct test *t;
    int fd;

    for (const struct config_pair *p = m->pairs; p; p = p->next) {
        if (strcmp(p->section, "backend") != 0 || strcmp(p->key, "control") != 0)
            return say(e, -EINVAL, "the test backend has no setting \"%s\"", p->key);
        control = p->value;
    }
    fd = open_control(m, control, e);
    if (fd < 0)
        return fd;
    t = calloc(1, sizeof(*t));
    if (!t) {
        close(fd);
        return say(e, -ENOMEM, "out of memory");
    }
    *t = (struct test){ m->basedir_fd, fd };
    *state = t;
    return 0;
}

static void test_finish(void *state)
{
    struct test *t = state;

    close(t->control_fd);
    free(t);
}

static const struct backend test_backend = {
    .abi = BACKEND_ABI,
    .size_bytes = sizeof(struct backend),
    .name = "test",
    .files_wait = true,
    .init = test_init,
    .finish = test_finish,
    .provision = test_provision,
    .files_open = test_files_open,
    .close = test_close,
    .destroy = test_destroy,
    .list = test_list,
};

const struct backend *wsmfs_backend(void)
{
    return &test_backend;
}

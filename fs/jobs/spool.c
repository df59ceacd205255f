// SPDX-License-Identifier: Apache-2.0
#include "fs/jobs/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"

#define BLOCK_BYTES 4096u
#define STREAM_BIT  (UINT64_C(1) << 63)

/* An entry of `order`: from this place in the log on, the stream goes on at this offset of its own. */
struct entry {
    uint64_t log;
    uint64_t at; /* STREAM_BIT: of the second stream */
};

static const char *const names[SPOOL_STREAMS] = { "out", "err" };
static const char order_name[] = "order";

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

/* Opens a file of the spool once; readers may meet here. Who does not write makes none: it may have been removed,
 * and is nowhere then (-ESTALE). */
static int file_fd(struct spool *s, _Atomic int *slot, const char *name, bool make)
{
    int fd = atomic_load(slot), none = -1;
    char path[sizeof(s->job) + 8];

    if (fd >= 0)
        return fd;
    if (make)
        atomic_store(&s->has_files, true);
    snprintf(path, sizeof(path), "%s.%s", s->job, name);
    fd = openat(s->top_fd, path, O_RDWR | (make ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    if (atomic_compare_exchange_strong(slot, &none, fd))
        return fd;
    close(fd);
    return none;
}

static int stream_fd(struct spool *s, int stream, bool make) { return file_fd(s, &s->fd[stream], names[stream], make); }
static int order_fd(struct spool *s, bool make) { return file_fd(s, &s->order_fd, order_name, make); }

/* What was given up is a hole in front. */
static uint64_t first_data(struct spool *s, int stream, uint64_t size)
{
    int fd = stream_fd(s, stream, false);
    off_t at = fd < 0 ? -1 : lseek(fd, 0, SEEK_DATA);

    if (at < 0)
        return fd >= 0 && errno == ENXIO ? size : 0;
    return (uint64_t)at;
}

static int stat_file(const struct spool *s, const char *name, struct stat *st)
{
    char path[sizeof(s->job) + 8];

    snprintf(path, sizeof(path), "%s.%s", s->job, name);
    return fstatat(s->top_fd, path, st, AT_SYMLINK_NOFOLLOW);
}

static int load_stream(struct spool *s, int stream)
{
    struct stat st;

    if (stat_file(s, names[stream], &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISREG(st.st_mode))
        return -EIO;
    atomic_store(&s->size[stream], (uint64_t)st.st_size);
    if (st.st_size)
        atomic_store(&s->start[stream], first_data(s, stream, (uint64_t)st.st_size));
    return 0;
}

static bool read_entry(struct spool *s, uint64_t i, struct entry *e)
{
    int fd = order_fd(s, false);

    return fd >= 0 && pread(fd, e, sizeof(*e), (off_t)(i * sizeof(*e))) == sizeof(*e);
}

static int load_order(struct spool *s)
{
    struct stat st;
    struct entry e;

    if (stat_file(s, order_name, &st) < 0) {
        if (errno != ENOENT)
            return -errno;
        for (int i = 0; i < SPOOL_STREAMS; i++)
            if (atomic_load(&s->size[i]))
                atomic_store(&s->last, i);
        return 0;
    }
    atomic_store(&s->n_entries, (uint64_t)st.st_size / sizeof(e));
    if (st.st_size && read_entry(s, (uint64_t)st.st_size / sizeof(e) - 1, &e))
        atomic_store(&s->last, e.at & STREAM_BIT ? 1 : 0);
    return 0;
}

void spool_init(struct spool *s, int top_fd, const char *job)
{
    *s = (struct spool){ .top_fd = top_fd };
    snprintf(s->job, sizeof(s->job), "%s", job);
    atomic_init(&s->order_fd, -1);
    atomic_init(&s->last, -1);
    for (int i = 0; i < SPOOL_STREAMS; i++)
        atomic_init(&s->fd[i], -1);
}

int spool_open(struct spool *s, int top_fd, const char *job)
{
    int r = 0;

    spool_init(s, top_fd, job);
    atomic_store(&s->has_files, true);
    for (int i = 0; i < SPOOL_STREAMS && r == 0; i++)
        r = load_stream(s, i);
    return r == 0 ? load_order(s) : r;
}

void spool_close(struct spool *s)
{
    for (int i = 0; i < SPOOL_STREAMS; i++) {
        int fd = atomic_exchange(&s->fd[i], -1);
        if (fd >= 0)
            close(fd);
    }
    int fd = atomic_exchange(&s->order_fd, -1);
    if (fd >= 0)
        close(fd);
}

void spool_remove_files(int top_fd, const char *job)
{
    const char *const all[] = { names[0], names[1], order_name };
    char path[sizeof(((struct spool *)0)->job) + 8];

    for (size_t i = 0; i < array_size(all); i++) {
        snprintf(path, sizeof(path), "%s.%s", job, all[i]);
        if (unlinkat(top_fd, path, 0) < 0 && errno != ENOENT)
            log_warning("the file %s of a removed job stays: %s", path, strerror(errno));
    }
}

void spool_keep_open(struct spool *s)
{
    for (int i = 0; i < SPOOL_STREAMS; i++)
        (void)stream_fd(s, i, false);
    (void)order_fd(s, false);
}

void spool_remove(struct spool *s)
{
    if (atomic_load(&s->has_files))
        spool_remove_files(s->top_fd, s->job);
}

/* ── appending ───────────────────────────────────────────────────────────────────────────── */

static int write_all(int fd, const void *data, size_t len, uint64_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const char *)data + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

static uint64_t log_size(const struct spool *s)
{
    return atomic_load(&s->size[0]) + atomic_load(&s->size[1]);
}

static int add_entry(struct spool *s, uint64_t log, int stream, uint64_t at)
{
    struct entry e = { log, at | (stream ? STREAM_BIT : 0) };
    uint64_t n = atomic_load(&s->n_entries);
    int fd = order_fd(s, true);
    int r = fd < 0 ? fd : write_all(fd, &e, sizeof(e), n * sizeof(e));

    if (r == 0)
        atomic_store(&s->n_entries, n + 1);
    return r;
}

/* The other stream goes on: that is written down first. */
static int turn_to(struct spool *s, int stream)
{
    int last = atomic_load(&s->last), r = 0;

    if (last == stream)
        return 0;
    if (last >= 0 && atomic_load(&s->n_entries) == 0)
        r = add_entry(s, 0, last, 0);
    if (last >= 0 && r == 0)
        r = add_entry(s, log_size(s), stream, atomic_load(&s->size[stream]));
    if (r == 0)
        atomic_store(&s->last, stream);
    return r;
}

int spool_append(struct spool *s, int stream, const void *data, size_t len)
{
    uint64_t at = atomic_load(&s->size[stream]);
    int fd = stream_fd(s, stream, true);
    int r = fd < 0 ? fd : turn_to(s, stream);

    if (r == 0)
        r = write_all(fd, data, len, at);
    if (r == 0)
        atomic_store(&s->size[stream], at + len);
    return r;
}

void spool_skip(struct spool *s, int stream, uint64_t at)
{
    if (at <= atomic_load(&s->size[stream]))
        return;
    atomic_store(&s->start[stream], at);
    atomic_store(&s->size[stream], at);
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

static ssize_t read_some(int fd, void *buf, size_t size, uint64_t at)
{
    ssize_t n;

    do
        n = pread(fd, buf, size, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

ssize_t spool_read(struct spool *s, int stream, uint64_t at, void *buf, size_t size)
{
    uint64_t end = atomic_load(&s->size[stream]);
    int fd;

    if (at >= end)
        return 0;
    fd = stream_fd(s, stream, false);
    if (fd < 0)
        return fd;
    return read_some(fd, buf, end - at < size ? (size_t)(end - at) : size, at);
}

uint64_t spool_drop(struct spool *s, int stream, uint64_t upto)
{
    uint64_t start = atomic_load(&s->start[stream]);
    int fd = stream_fd(s, stream, false);

    upto -= upto % BLOCK_BYTES;
    if (fd < 0 || upto <= start)
        return 0;
    atomic_store(&s->start[stream], upto);
    /* Where there are no holes the bytes stay on the disk, and nobody gets them any more. */
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)(upto - start));
    return upto - start;
}

uint64_t spool_dropped(const struct spool *s)
{
    return atomic_load(&s->start[0]) + atomic_load(&s->start[1]);
}

uint64_t spool_kept(const struct spool *s)
{
    return log_size(s) - spool_dropped(s);
}

/* ── the log ─────────────────────────────────────────────────────────────────────────────── */

/* One piece of the log that is of one stream. */
struct piece {
    int      stream;
    uint64_t log, at; /* where it begins, in the log and in its stream */
    uint64_t end;     /* in the log */
};

static void set_piece(struct piece *p, const struct entry *e)
{
    p->stream = e->at & STREAM_BIT ? 1 : 0;
    p->log = e->log;
    p->at = e->at & ~STREAM_BIT;
}

/* The piece that holds `at`. A binary search over a file that the kernel has in memory. */
static bool find_piece(struct spool *s, uint64_t at, struct piece *p)
{
    uint64_t low = 0, high = atomic_load(&s->n_entries);
    struct entry e;

    p->end = log_size(s);
    if (high == 0) {
        *p = (struct piece){ .stream = atomic_load(&s->size[1]) ? 1 : 0, .end = p->end };
        return true;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (!read_entry(s, middle, &e))
            return false;
        if (e.log <= at) {
            low = middle;
        } else {
            high = middle;
            p->end = e.log;
        }
    }
    if (!read_entry(s, low, &e))
        return false;
    set_piece(p, &e);
    return p->log <= at && p->end > at;
}

ssize_t spool_log_read(struct spool *s, uint64_t at, void *buf, size_t size)
{
    size_t done = 0;

    while (done < size && at < log_size(s)) {
        struct piece p;
        ssize_t n;
        if (!find_piece(s, at, &p))
            return done ? (ssize_t)done : -EIO;
        n = spool_read(s, p.stream, p.at + (at - p.log), (char *)buf + done,
                       p.end - at < size - done ? (size_t)(p.end - at) : size - done);
        if (n <= 0)
            return done ? (ssize_t)done : n;
        done += (size_t)n;
        at += (uint64_t)n;
    }
    return (ssize_t)done;
}

/* Where a stream's byte `at` stands in the log: a binary search by its own offsets needs entries of
 * that stream alone, so it goes by pieces of the log and the stream's next entry. */
static uint64_t log_of(struct spool *s, int stream, uint64_t at)
{
    uint64_t low = 0, high = log_size(s);

    /* the first place from which on no byte of the stream before `at` follows */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, reached;
        struct piece p;
        if (!find_piece(s, middle, &p))
            return high;
        /* bytes of `stream` before `middle` */
        reached = p.stream == stream ? p.at + (middle - p.log) : middle - (p.at + (middle - p.log));
        if (reached < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void spool_log_span(struct spool *s, uint64_t *start, uint64_t *end)
{
    *end = log_size(s);
    *start = 0;
    for (int i = 0; i < SPOOL_STREAMS; i++) {
        uint64_t gone = atomic_load(&s->start[i]);
        uint64_t at = gone ? log_of(s, i, gone) : 0;
        if (at > *start)
            *start = at;
    }
}

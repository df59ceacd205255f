// SPDX-License-Identifier: Apache-2.0
/* A job's standard input: whatever is written is put in a file first, and handed to the link from
 * there, so that it may be written before the start, in any amount, and is not lost with the daemon. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/jobs/internal.h"

#define BACKLOG_BYTES (1u << 20)  /* handed in and not yet taken: then a writer waits */
#define CHUNK_BYTES   (64u << 10)
#define KEPT_BYTES    (1u << 20)  /* taken by the link; it may have to be read again by a new daemon */

static int open_file(struct job *j)
{
    char path[KEY_HEX + 8];
    int fd;

    snprintf(path, sizeof(path), "%s.stdin", j->hex);
    atomic_store(&j->has_files, true);
    atomic_store(&j->in.has_file, true);
    fd = openat(j->jobs->dir_fd, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

/* job.io_lock held: the file is there. */
static int make_file(struct job *j)
{
    int fd;

    if (j->in.fd >= 0)
        return 0;
    fd = open_file(j);
    if (fd < 0)
        return fd;
    scoped_lock(&j->lock);
    j->in.fd = fd;
    return 0;
}

/* These bytes of what it has on the disk count no longer. */
static void uncount(struct job *j, uint64_t bytes)
{
    uint64_t kept = atomic_load(&j->in.kept_bytes), less;

    do
        less = bytes < kept ? bytes : kept;
    while (!atomic_compare_exchange_weak(&j->in.kept_bytes, &kept, kept - less));
    job_give_back(j, less);
}

static void count(struct job *j, uint64_t bytes)
{
    atomic_fetch_add(&j->in.kept_bytes, bytes);
    job_charge(j, bytes);
}

void job_stdin_load(struct job *j)
{
    struct stat st;
    scoped_lock(&j->io_lock);

    j->in.ended = true; /* who wrote has gone with the mount */
    if (j->rec.stdin_pipe && make_file(j) == 0 && fstat(j->in.fd, &st) == 0) {
        j->in.written = (uint64_t)st.st_size;
        count(j, (uint64_t)st.st_blocks * 512);
    }
}

/* ── letting go of the file ──────────────────────────────────────────────────────────────── */

/* job.lock held: nobody uses its descriptor. One that nobody has open needs none before the start, nor when all of it has
 * been handed on: there may be very many of both. */
static bool is_idle_locked(const struct job *j)
{
    const struct job_stdin *in = &j->in;

    return !in->pumping && (in->over || (in->opens == 0 && (j->state == JOB_NEW || in->end_sent || in->broken)));
}

static int take_idle_fd(struct job *j, bool *over)
{
    scoped_lock(&j->lock);
    bool idle = is_idle_locked(j);
    int fd = idle ? j->in.fd : -1;

    if (idle)
        j->in.fd = -1;
    *over = idle && j->in.over;
    return fd;
}

void job_stdin_finish(struct job *j)
{
    uint64_t kept = atomic_load(&j->in.kept_bytes);

    if (j->in.fd >= 0)
        close(j->in.fd);
    if (kept) /* of one that was removed while it was being written */
        job_uncharge(j, kept);
}

void job_stdin_remove(struct job *j)
{
    char path[KEY_HEX + 8];

    if (!atomic_exchange(&j->in.has_file, false))
        return;
    snprintf(path, sizeof(path), "%s.stdin", j->hex);
    if (unlinkat(j->jobs->dir_fd, path, 0) < 0 && errno != ENOENT)
        log_warning("the file %s of an ended job stays: %s", path, strerror(errno));
    uncount(j, UINT64_MAX);
}

static void let_go(struct job *j)
{
    bool idle, over;
    int fd;

    pthread_mutex_lock(&j->lock);
    idle = is_idle_locked(j);
    pthread_mutex_unlock(&j->lock);
    if (!idle)
        return;
    pthread_mutex_lock(&j->io_lock); /* of whoever writes to it */
    fd = take_idle_fd(j, &over);
    pthread_mutex_unlock(&j->io_lock);
    if (fd >= 0)
        close(fd);
    if (over)
        job_stdin_remove(j);
}

/* ── opening and releasing ───────────────────────────────────────────────────────────────── */

void job_stdin_open(struct job *j)
{
    scoped_lock(&j->lock);

    j->in.opens++;
    j->in.opened = true;
}

void job_stdin_release(struct job *j)
{
    bool ended;

    pthread_mutex_lock(&j->lock);
    ended = --j->in.opens == 0 && j->state != JOB_NEW;
    j->in.ended = j->in.ended || ended;
    pthread_mutex_unlock(&j->lock);
    if (ended)
        job_stdin_pump(j);
    else
        let_go(j);
}

/* ── handing it on ───────────────────────────────────────────────────────────────────────── */

/* job.lock held: gives the next chunk to the link. False: there is nothing to do now. */
static bool hand_locked(struct job *j, const void *data, size_t len, uint64_t at)
{
    struct job_stdin *in = &j->in;
    bool end = in->ended && at + len == in->written;
    ssize_t n;

    if (!j->link_job || at != in->sent)
        return false;
    n = link_job_stdin(j->link_job, at, data, len, end);
    if (n == -EPIPE || n == -EINVAL)
        in->broken = true;
    if (n < 0)
        return false;
    in->sent += (uint64_t)n;
    in->end_sent = end && (size_t)n == len;
    return (size_t)n == len && !in->end_sent && in->sent < in->written;
}

/* What is to be handed on next: 0 bytes may mean the end. False: nothing. */
static bool next_chunk(struct job *j, uint64_t *at, size_t *len)
{
    scoped_lock(&j->lock);
    struct job_stdin *in = &j->in;

    *at = in->sent;
    *len = in->written - in->sent < CHUNK_BYTES ? (size_t)(in->written - in->sent) : CHUNK_BYTES;
    return j->link_job && !in->broken && !in->end_sent && (*len || in->ended);
}

static bool pump_once(struct job *j, char *buf)
{
    uint64_t at;
    size_t len;

    if (!next_chunk(j, &at, &len))
        return false;
    if (len) {
        ssize_t n = pread(j->in.fd, buf, len, (off_t)at);
        if (n <= 0)
            return false;
        len = (size_t)n;
    }
    scoped_lock(&j->lock);
    return hand_locked(j, buf, len, at);
}

/* What the guest has got is not needed any more. */
static void free_taken(struct job *j)
{
    uint64_t from, upto;
    int fd;

    pthread_mutex_lock(&j->lock);
    from = j->in.punched;
    upto = j->in.sent > KEPT_BYTES ? (j->in.sent - KEPT_BYTES) & ~(uint64_t)4095 : 0;
    fd = j->in.fd;
    if (upto > from + KEPT_BYTES)
        j->in.punched = upto;
    pthread_mutex_unlock(&j->lock);
    if (fd >= 0 && upto > from + KEPT_BYTES &&
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(upto - from)) == 0)
        uncount(j, upto - from);
}

static bool begin_pump(struct job *j)
{
    scoped_lock(&j->lock);

    j->in.again = true;
    if (j->in.pumping)
        return false;
    j->in.pumping = true;
    return true;
}

static bool again(struct job *j)
{
    scoped_lock(&j->lock);

    if (j->in.again) {
        j->in.again = false;
        return true;
    }
    j->in.pumping = false;
    return false;
}

/* One thread at a time; another one has it look again. */
void job_stdin_pump(struct job *j)
{
    char buf[CHUNK_BYTES];

    if (!begin_pump(j))
        return;
    while (again(j)) {
        while (pump_once(j, buf))
            ;
        free_taken(j);
    }
    let_go(j);
    job_news(j);
}

/* Opens the file again where it was closed. The link is handed all of it again, and passes over what the guest has
 * got. Should a crash of the machine have lost bytes that it got, anything will do in their place. */
static void open_again(struct job *j, uint64_t offset)
{
    scoped_lock(&j->io_lock);

    if (j->in.written && make_file(j) < 0)
        log_warning("the input of job %s cannot be read", job_name(j));
    if (j->taken_over && j->in.written < offset && j->in.fd >= 0 && ftruncate(j->in.fd, (off_t)offset) == 0) {
        scoped_lock(&j->lock);
        j->in.written = offset;
    }
}

void job_stdin_started(struct job *j, uint64_t offset)
{
    if (!j->rec.stdin_pipe)
        return;
    open_again(j, offset);
    job_stdin_pump(j);
}

void stdin_room_callback(struct link_job *lj, void *arg)
{
    (void)lj;
    job_stdin_pump(arg);
}

void job_stdin_close(struct job *j)
{
    scoped_lock(&j->lock);

    j->in.broken = true;
}

void job_stdin_again_locked(struct job *j)
{
    j->in.sent = 0;
    j->in.end_sent = j->in.broken = false;
}

void job_stdin_over(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    j->in.broken = j->in.over = true;
    pthread_mutex_unlock(&j->lock);
    let_go(j);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static bool is_over(struct job *j)
{
    scoped_lock(&j->lock);

    return j->in.broken || j->in.ended || j->removed || (j->state != JOB_NEW && !j->rec.stdin_pipe);
}

/* A job that has not been started takes any amount, which must not fill the disk for others. */
static bool is_too_much(struct job *j)
{
    return job_state(j) == JOB_NEW && !job_share_has_room(j);
}

/* job.io_lock held. */
static int append(struct job *j, const void *data, size_t size, uint64_t at)
{
    int r = 0;

    for (size_t done = 0; done < size && r == 0;) {
        ssize_t n = pwrite(j->in.fd, (const char *)data + done, size - done, (off_t)(at + done));
        r = n < 0 && errno != EINTR ? -errno : 0;
        done += n > 0 ? (size_t)n : 0;
    }
    if (r == 0)
        count(j, size);
    return r;
}

/* Writers come one behind the other, by the lock. */
static int store(struct job *j, const void *data, size_t size, struct err *e)
{
    scoped_lock(&j->io_lock);
    uint64_t at = j->in.written; /* only we change it */
    int r;

    if (is_over(j))
        return err_set(e, -EPIPE, "nobody reads the job's standard input");
    if (is_too_much(j))
        return job_spool_full(e);
    r = make_file(j);
    if (r == 0)
        r = append(j, data, size, at);
    if (r < 0)
        return err_sys(e, r, "the job's standard input cannot be stored in the state directory");
    scoped_lock(&j->lock);
    j->in.written = at + size;
    return 0;
}

int job_stdin_write(struct job *j, const void *data, size_t size, struct err *e)
{
    int r = store(j, data, size, e);

    if (r == 0)
        job_stdin_pump(j);
    return r;
}

bool job_stdin_ready(struct job *j)
{
    scoped_lock(&j->lock);

    return j->in.broken || j->state == JOB_NEW || j->in.written - j->in.sent < BACKLOG_BYTES;
}

bool job_stdin_broken(struct job *j)
{
    scoped_lock(&j->lock);

    return j->in.broken || (j->state != JOB_NEW && !j->rec.stdin_pipe);
}

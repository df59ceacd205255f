// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/test_link_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/base/cleanup.h"

#define LONG_S 100 /* nothing here takes this long on any machine */

static struct timespec long_from_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += LONG_S;
    return t;
}

void wait_until(bool (*cond)(void *arg), void *arg)
{
    for (int i = 0; i < LONG_S * 200; i++) {
        if (cond(arg))
            return;
        usleep(5000);
    }
    fail_msg("waited too long");
}

/* Waits on t->changed until the expression holds. */
#define WAIT(o, expression) do { \
        struct timespec until_ = long_from_now(); \
        pthread_mutex_lock(&(o)->lock); \
        while (!(expression)) \
            if (pthread_cond_timedwait(&(o)->changed, &(o)->lock, &until_) == ETIMEDOUT) { \
                pthread_mutex_unlock(&(o)->lock); \
                fail_msg("waited too long for %s", #expression); \
            } \
        pthread_mutex_unlock(&(o)->lock); \
    } while (0)
#define CHANGE(o, statement) do { \
        pthread_mutex_lock(&(o)->lock); \
        statement; \
        pthread_cond_broadcast(&(o)->changed); \
        pthread_mutex_unlock(&(o)->lock); \
    } while (0)

/* ── a guest ── */

static int listen_at(const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 64) != 0)
        fail_msg("cannot listen at %s: %s", path, strerror(errno));
    return fd;
}

void sandbox_start(struct sandbox *s)
{
    const char *guest = getenv("WSM_GUEST");
    int fd;

    assert_non_null(guest);
    strcpy(s->dir, "/tmp/wsm-guest-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/socket", s->dir);
    fd = listen_at(s->path);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves nothing behind */
        dup2(fd, 3);
        setenv("WSM_TEST_MARK", "of-the-guest", 1);
        execl(guest, "wsm-guest", "serve", "--fd", "3", "--grace", "3000", (char *)NULL);
        _exit(126);
    }
    close(fd);
}

void sandbox_stop(struct sandbox *s, int signo)
{
    int status = 0;

    if (s->pid <= 0)
        return;
    kill(s->pid, signo);
    while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
        ;
    s->pid = 0;
    unlink(s->path);
    rmdir(s->dir);
    if (signo == SIGTERM)
        assert_int_equal(status, 0);
}

int sandbox_dial(const struct sandbox *s)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", s->path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        return fd;
    int error = -errno;
    if (fd >= 0)
        close(fd);
    return error;
}

/* ── a host ── */

static int on_connect(void *arg, struct err *e)
{
    struct host_side *h = arg;
    pthread_mutex_lock(&h->lock);
    struct sandbox *s = h->sandbox;
    pthread_mutex_unlock(&h->lock);
    int fd = h->dial ? h->dial(h) : sandbox_dial(s);

    return fd >= 0 ? fd : err_sys(e, fd, "dial");
}

static void on_up(struct link *l, void *arg, const struct link_guest *g)
{
    struct host_side *h = arg;

    (void)l, (void)g;
    CHANGE(h, h->ups++);
}

static void on_down(struct link *l, void *arg, const struct err *e)
{
    struct host_side *h = arg;

    (void)l;
    if (getenv("WSM_TEST_VERBOSE"))
        fprintf(stderr, "down: %s\n", e->text);
    CHANGE(h, h->downs++);
}

static void on_lost(struct link *l, void *arg, const struct err *e)
{
    struct host_side *h = arg;

    (void)l;
    CHANGE(h, h->lost = true; snprintf(h->lost_text, sizeof(h->lost_text), "%s", e->text));
}

static void on_closed(void *arg)
{
    struct host_side *h = arg;

    CHANGE(h, h->closed = true);
}

static const struct link_ops host_ops = { on_connect, on_up, on_down, on_lost, on_closed };

void host_start_with(struct host_side *h, struct sandbox *s, uint8_t id, int (*dial)(struct host_side *), void *arg)
{
    struct link_setup setup = { &host_ops, h, NULL };
    struct link_id host = { { id } };
    struct err e;

    memset(h, 0, sizeof(*h));
    h->sandbox = s;
    h->dial = dial;
    h->dial_arg = arg;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->pool = pool_create(4, 0);
    h->loop = link_loop_create(h->pool, &host, &e);
    assert_non_null(h->loop);
    h->link = link_open(h->loop, &setup);
    assert_non_null(h->link);
}

void host_start(struct host_side *h, struct sandbox *s, uint8_t id) { host_start_with(h, s, id, NULL, NULL); }

void host_wait_up(struct host_side *h) { WAIT(h, h->ups > 0); }

void host_move(struct host_side *h, struct sandbox *s) { CHANGE(h, h->sandbox = s); }

const char *host_wait_lost(struct host_side *h)
{
    WAIT(h, h->lost);
    return h->lost_text;
}

static bool is_closed(struct host_side *h)
{
    pthread_mutex_lock(&h->lock);
    bool closed = h->closed;
    pthread_mutex_unlock(&h->lock);
    return closed;
}

void host_stop(struct host_side *h)
{
    int tries = 0;

    link_close(h->link);
    while (!is_closed(h) && tries++ < 2000)
        usleep(5000);
    if (!is_closed(h)) {
        fprintf(stderr, "a job was not released\n");
        abort();
    }
    link_loop_destroy(h->loop);
    pool_destroy(h->pool);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
}

/* ── callbacks of jobs ── */

static void on_started(struct link_job *j, void *arg, const struct link_started *s)
{
    struct tjob *t = arg;

    (void)j;
    CHANGE(t, t->started = true; t->start = *s;
           for (int i = 0; i < 2; i++) t->total[i] = t->first[i] = s->first[i]);
}

static void keep(struct tjob *t, int stream, const void *data, size_t len)
{
    if (t->len[stream] + len >= t->size[stream]) { /* a NUL behind it */
        t->size[stream] = (t->len[stream] + len) * 2 + 1;
        t->data[stream] = realloc(t->data[stream], t->size[stream]);
    }
    memcpy(t->data[stream] + t->len[stream], data, len);
    t->len[stream] += len;
    t->data[stream][t->len[stream]] = '\0';
}

static void keep_piece(struct tjob *t, int stream, uint64_t offset, uint64_t at, size_t len)
{
    if (t->n_pieces == t->max_pieces) {
        t->max_pieces = t->max_pieces ? t->max_pieces * 2 : 64;
        t->pieces = realloc(t->pieces, t->max_pieces * sizeof(*t->pieces));
    }
    t->pieces[t->n_pieces++] = (struct log_piece){ at, stream, offset, len };
}

static void on_output(struct link_job *j, void *arg, enum link_stream stream, uint64_t offset,
                      uint64_t log_offset, const void *data, size_t len)
{
    struct tjob *t = arg;
    bool ack;

    pthread_mutex_lock(&t->lock);
    if (offset != t->total[stream] || len == 0)
        abort();
    t->total[stream] += len;
    if (!t->discard) {
        keep(t, stream, data, len);
        keep_piece(t, stream, offset, log_offset, len);
    }
    ack = !t->hold[stream];
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (t->within_output)
        t->within_output(j, t);
    if (ack)
        link_job_ack(j, stream, offset + len);
}

static void on_room(struct link_job *j, void *arg)
{
    struct tjob *t = arg;

    (void)j;
    CHANGE(t, t->rooms++);
}

static void on_exited(struct link_job *j, void *arg, const struct link_exit *x)
{
    struct tjob *t = arg;

    (void)j;
    if (tjob_has_exited(t))
        abort();
    CHANGE(t, t->exited = true; t->exit = *x; snprintf(t->text, sizeof(t->text), "%s", x->text));
}

static void on_taken(struct link_job *j, void *arg)
{
    struct tjob *t = arg;

    (void)j;
    CHANGE(t, t->taken = true);
}

static void on_released(void *arg)
{
    struct tjob *t = arg;

    CHANGE(t, t->released = true);
}

static const struct link_job_ops job_ops = { on_started, on_output, on_room, on_exited, on_taken, on_released };

/* ── jobs ── */

void tjob_init(struct tjob *t, struct host_side *h, uint64_t key)
{
    memset(t, 0, sizeof(*t));
    t->host = h;
    memcpy(t->key.b, &key, sizeof(key));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
}

void tjob_spawn(struct tjob *t, struct link_spawn *s)
{
    struct err e = { 0 };

    s->key = t->key;
    if (link_job_spawn(t->host->link, s, &job_ops, t, &t->job, &e) != 0)
        fail_msg("spawn: %s", e.text);
}

void tjob_sh(struct tjob *t, const char *script)
{
    struct link_spawn s = { .script = script, .env_guest = true, .grace_ms = 1000 };

    tjob_spawn(t, &s);
}

void tjob_attach(struct tjob *t, const uint64_t from[2])
{
    memcpy(t->total, from, sizeof(t->total));
    assert_int_equal(link_job_attach(t->host->link, &t->key, from, &job_ops, t, &t->job), 0);
}

void tjob_wait_started(struct tjob *t) { WAIT(t, t->started || t->exited); }
void tjob_wait_exit(struct tjob *t) { WAIT(t, t->exited); }
void tjob_wait_output(struct tjob *t, int stream, uint64_t n) { WAIT(t, t->total[stream] >= n); }

void tjob_wait_taken(struct tjob *t) { WAIT(t, t->taken); }

uint64_t tjob_total(struct tjob *t, int stream)
{
    pthread_mutex_lock(&t->lock);
    uint64_t n = t->total[stream];
    pthread_mutex_unlock(&t->lock);
    return n;
}

bool tjob_has_exited(struct tjob *t)
{
    pthread_mutex_lock(&t->lock);
    bool exited = t->exited;
    pthread_mutex_unlock(&t->lock);
    return exited;
}

void tjob_let_flow(struct tjob *t, int stream)
{
    CHANGE(t, t->hold[stream] = false);
    link_job_ack(t->job, (enum link_stream)stream, tjob_total(t, stream));
}

void tjob_wait_released(struct tjob *t) { WAIT(t, t->released); }

void tjob_forget(struct tjob *t)
{
    link_job_forget(t->job);
    tjob_wait_released(t);
}

void tjob_release(struct tjob *t)
{
    link_job_release(t->job);
    tjob_wait_released(t);
}

void tjob_finish(struct tjob *t)
{
    free(t->data[0]);
    free(t->data[1]);
    free(t->pieces);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
}

static unsigned rooms_of(struct tjob *t)
{
    pthread_mutex_lock(&t->lock);
    unsigned n = t->rooms;
    pthread_mutex_unlock(&t->lock);
    return n;
}

bool tjob_feed(struct tjob *t, uint64_t offset, const void *data, size_t len, bool end)
{
    const char *p = data;

    for (;;) {
        unsigned rooms = rooms_of(t);
        ssize_t n = link_job_stdin(t->job, offset, p, len, end);

        if (n == -EPIPE)
            return false;
        if (n < 0)
            fail_msg("stdin: %s", strerror((int)-n));
        if ((size_t)n == len)
            return true;
        p += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
        WAIT(t, t->rooms != rooms);
    }
}

void tjob_done(void *arg, int status, const char *text)
{
    struct tjob *t = arg;

    CHANGE(t, t->done_calls++; t->done_status = status; snprintf(t->text, sizeof(t->text), "%s", text));
}

int tjob_wait_done(struct tjob *t, unsigned n)
{
    WAIT(t, t->done_calls >= n);
    return t->done_status;
}

static int by_place(const void *a, const void *b)
{
    const struct log_piece *p = a, *q = b;

    return (p->at > q->at) - (p->at < q->at);
}

char *tjob_log(struct tjob *t)
{
    char *log = malloc(t->len[0] + t->len[1] + 1);
    size_t at = 0;

    qsort(t->pieces, t->n_pieces, sizeof(*t->pieces), by_place);
    for (size_t i = 0; i < t->n_pieces; i++) {
        const struct log_piece *p = &t->pieces[i];

        assert_int_equal(p->at, at);
        memcpy(log + at, t->data[p->stream] + p->offset, p->len);
        at += p->len;
    }
    assert_int_equal(at, t->len[0] + t->len[1]);
    log[at] = '\0';
    return log;
}

void run_sh(struct tjob *t, struct host_side *h, uint64_t key, const char *script, int code)
{
    tjob_init(t, h, key);
    tjob_sh(t, script);
    tjob_wait_exit(t);
    if (t->exit.kind != LINK_END_EXITED || t->exit.code != code)
        fail_msg("%s: kind %d code %d %s", script, t->exit.kind, t->exit.code, t->text);
    tjob_forget(t);
}

// SPDX-License-Identifier: Apache-2.0
/* A link to which a guest says anything: one job that has been spawned, one that is to be attached, and
 * some open requests. No thread: the loop's turns are taken here. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "fs/link/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct link_loop loop;
static int guest_fd;

/* ── callbacks, which hold what link.h promises ── */

struct seen {
    uint64_t next[LINK_STREAMS], log_end[LINK_STREAMS];
    bool started, exited, released;
    struct link_job *job;
};

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void started(struct link_job *j, void *arg, const struct link_started *s)
{
    struct seen *n = arg;

    (void)j;
    require(!n->started && !n->exited);
    n->started = true;
    memcpy(n->next, s->first, sizeof(n->next));
}

static void output(struct link_job *j, void *arg, enum link_stream stream, uint64_t offset, uint64_t log_offset,
                   const void *data, size_t len)
{
    struct seen *n = arg;

    require(n->started && !n->exited && offset == n->next[stream] && log_offset >= n->log_end[stream] && len > 0);
    require(((const uint8_t *)data)[len - 1] + 1 > 0);
    n->next[stream] += len;
    n->log_end[stream] = log_offset + len;
    if (offset & 1)
        link_job_ack(j, stream, offset + len);
}

static void room(struct link_job *j, void *arg)
{
    struct seen *n = arg;

    (void)j;
    require(!n->released);
}

static void ended(struct link_job *j, void *arg, const struct link_exit *x)
{
    struct seen *n = arg;

    (void)j;
    require(!n->exited && strlen(x->text) < 1000);
    if (x->kind == LINK_END_EXITED)
        require(x->total[0] == n->next[0] && x->total[1] == n->next[1]);
    n->exited = true;
}

static void taken(struct link_job *j, void *arg)
{
    (void)j;
    require(!((struct seen *)arg)->exited);
}

static void released(void *arg) { ((struct seen *)arg)->released = true; }

static const struct link_job_ops job_ops = { started, output, room, ended, taken, released };

static int no_connect(void *arg, struct err *e)
{
    (void)arg;
    return err_set(e, -EHOSTUNREACH, "not here");
}

static bool closed;
static void on_closed(void *arg) { (void)arg; closed = true; }
static const struct link_ops ops = { no_connect, NULL, NULL, NULL, on_closed };

static unsigned answered;
static void on_done(void *arg, int status, const char *text) { (void)arg, (void)status; answered += strlen(text) < 1000; }
static void on_listed(void *arg, const struct link_listed *j) { (void)arg; require(strlen(j->label) <= PROTO_LABEL_MAX_BYTES); }
static void on_ping(void *arg, int status, int64_t ns) { (void)arg, (void)status, (void)ns; answered++; }

/* ── turns ── */

static void make_calls(void)
{
    while (!list_empty(&loop.calls)) {
        struct list *first = loop.calls.next;

        list_remove(first);
        container_of(first, struct link_call, links)->run(container_of(first, struct link_call, links));
    }
}

static void connect_now(struct link *l)
{
    int pair[2], size = 1 << 20;

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    l->fd = pair[0];
    guest_fd = pair[1];
    l->readable = l->writable = true;
    l->retry_ns = 0;
}

static void say(const uint8_t *p, size_t n)
{
    ssize_t r = n ? send(guest_fd, p, n, MSG_NOSIGNAL) : 0;

    (void)r;
}

static void say_hello(void)
{
    struct proto_guest_hello m = {
        .magic = PROTO_GUEST_MAGIC, .version = 1, .instance = { { 1 } }, .max_frame_bytes = PROTO_TO_GUEST_MAX_BYTES,
        .program = proto_str_of("g"),
    };
    uint8_t buf[256];
    struct proto_out o = { buf, sizeof(buf), 0, false };

    proto_encode(&o, PROTO_GUEST_HELLO, 0, &m);
    say(buf, o.len);
}

static void turn(struct link *l)
{
    static uint8_t sink[1 << 16];

    l->readable = l->fd >= 0;
    l->writable = l->fd >= 0;
    link_receive(l);
    link_send(l);
    while (guest_fd >= 0 && read(guest_fd, sink, sizeof(sink)) > 0)
        ;
    make_calls();
    link_send(l);
}

static void start_jobs(struct link *l, struct seen seen[2])
{
    struct link_spawn s = { .key = { { 1 } }, .script = "x", .stdin_pipe = true };
    const struct link_id other = { { 2 } };
    const uint64_t from[2] = { 5, 0 };

    require(link_job_spawn(l, &s, &job_ops, &seen[0], &seen[0].job, NULL) == 0);
    seen[1].next[0] = 5;
    require(link_job_attach(l, &other, from, &job_ops, &seen[1], &seen[1].job) == 0);
    link_job_stdin(seen[0].job, 0, "some input", 10, true);
    link_job_signal(seen[0].job, 10, LINK_SCOPE_TREE, on_done, NULL);
    link_list(l, on_listed, on_done, NULL);
    link_ping(l, on_ping, NULL);
    make_calls();
}

static void cut(struct link *l)
{
    if (guest_fd >= 0)
        close(guest_fd);
    guest_fd = -1;
    turn(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct link_setup setup = { &ops, NULL, NULL };
    struct seen seen[2] = { 0 };
    struct link *l;

    if (size < 2 || size > 1 << 15)
        return 0;
    closed = false;
    l = link_open(&loop, &setup);
    l->connecting = true; /* nobody connects but we */
    make_calls();
    start_jobs(l, seen);
    connect_now(l);
    if (data[0] & 1)
        say_hello();
    turn(l);
    /* The second part comes after another turn, or on another connection. */
    size_t first = 1 + (size - 1) * (data[0] >> 4) / 16;
    say(data + 1, first - 1);
    turn(l);
    if (data[0] & 2) {
        cut(l);
        if (l->state != LINK_LOST) {
            connect_now(l);
            say_hello();
            turn(l);
        }
    }
    say(data + first, size - first);
    turn(l);
    if (data[0] & 4)
        link_job_forget(seen[0].job);
    else
        link_job_release(seen[0].job);
    link_job_release(seen[1].job);
    turn(l);
    link_close(l);
    make_calls();
    require(closed && seen[0].released && seen[1].released);
    if (guest_fd >= 0)
        close(guest_fd);
    guest_fd = -1;
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    signal(SIGPIPE, SIG_IGN);
    list_init(&loop.links);
    list_init(&loop.busy);
    list_init(&loop.calls);
    pthread_mutex_init(&loop.lock, NULL);
    pthread_cond_init(&loop.none, NULL);
    loop.thread = pthread_self();
    loop.woken = true; /* nobody sleeps */
    loop.buf = malloc(LOOP_BUF_BYTES);
    loop.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop.event_fd = -1;
    return 0;
}

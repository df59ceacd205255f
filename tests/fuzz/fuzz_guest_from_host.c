// SPDX-License-Identifier: Apache-2.0
/* A guest that a greeted host sends anything to. Its processes are stand-ins: a job's "child" is a pair of
 * pipes that holds some output already. The first byte says what they do. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/guest/guest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ── stand-ins ── */

static struct { pid_t pid; int in, out, err; } children[8];
static unsigned n_children, n_reported;
static uint8_t behaviour;

bool spawn_command(struct guest *g, const struct proto_spawn *m, uint64_t tag, struct spawned *s)
{
    int in[2], out[2], err[2];

    (void)g, (void)tag;
    *s = (struct spawned){ .in = -1, .out = -1, .err = -1 };
    if ((behaviour & 1) || n_children == 8 || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
        s->error = -ENOENT;
        s->exit_code = behaviour & 2 ? 127 : 0;
        strcpy(s->text, "stand-in");
        return false;
    }
    if (!(m->flags & PROTO_SPAWN_STDIN) || (m->flags & PROTO_SPAWN_TTY))
        close(in[1]);
    s->in = (m->flags & PROTO_SPAWN_STDIN) && !(m->flags & PROTO_SPAWN_TTY) ? in[1] : -1;
    s->out = out[0];
    s->err = m->flags & PROTO_SPAWN_TTY ? -1 : err[0];
    if (s->err < 0)
        close(err[0]);
    s->pid = 0x40000000 + (pid_t)n_children; /* above any real one */
    children[n_children].pid = s->pid;
    children[n_children].in = in[0];
    children[n_children].out = out[1];
    children[n_children++].err = err[1];
    ssize_t n = write(out[1], "hello", 5);
    n += write(err[1], "there", 5);
    return n == 10;
}

/* One that ends may have been such a one; so may any number that comes along. */
bool spawn_report(struct guest *guest, uint64_t *tag, struct spawned *s)
{
    unsigned i = n_reported++;

    (void)guest;
    if (!(behaviour & 2) || i >= n_children)
        return false;
    *s = (struct spawned){ .pid = children[i].pid, .error = -ENOENT, .exit_code = i % 2 ? 0 : 126, .text = "stand-in" };
    *tag = i + 1;
    return true;
}

static void end_child(struct guest *g, unsigned i)
{
    if (!children[i].pid)
        return;
    close(children[i].in);
    close(children[i].out);
    close(children[i].err);
    job_reap(g, children[i].pid, behaviour & 4 ? 9 : 0x300);
    children[i].pid = 0;
}

int spawn_resize(int fd, uint16_t cols, uint16_t rows) { (void)fd, (void)cols, (void)rows; return 0; }
uint64_t tree_tag(const struct guest *g, uint64_t serial) { (void)g; return serial; }
pid_t tree_parent(pid_t pid) { (void)pid; return 0; }
void tree_signal_group(const struct job *j, int signo) { (void)j, (void)signo; }
unsigned tree_signal(struct guest *g, struct job *j, int signo, bool skip_group)
{
    (void)g, (void)signo, (void)skip_group;
    return !j->reaped;
}
void tree_signal_all(struct guest *g, int signo) { (void)g, (void)signo; }
int tree_kill_group(const struct job *j, int signo) { (void)j, (void)signo; return 0; }
int64_t tree_next_look(const struct guest *g) { (void)g; return 0; }
void tree_forget(struct guest *g) { (void)g; }
void guest_stop(struct guest *g, uint32_t grace_ms) { (void)grace_ms; g->stopping = true; }
void guest_stop_step(struct guest *g) { (void)g; }
void guest_lonely(struct guest *g, int64_t now_ns) { (void)g, (void)now_ns; }

/* ── one guest for each input ── */

static struct guest g;

static void init(void)
{
    memset(&g, 0, sizeof(g));
    g.listener.fd = g.signals.fd = g.null_fd = -1;
    g.pid = getpid();
    for (unsigned i = 0; i < CONNS_MAX; i++)
        g.conns[i].src.fd = -1;
    list_init(&g.jobs);
    list_init(&g.dead);
    list_init(&g.readable);
    list_init(&g.grown);
    list_init(&g.drains);
    list_init(&g.dead_drains);
    g.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    n_children = n_reported = 0;
}

static const struct proto_id host = { { 1 } }, epoch = { { 2 } }, other_epoch = { { 3 } };

static int connected(int pair[2])
{
    struct conn *c = &g.conns[0];
    int size = 1 << 20;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        abort();
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    *c = (struct conn){ .src = { pair[1], NULL }, .state = CONN_OPEN, .writable = true };
    list_init(&c->answers);
    list_init(&c->ready);
    c->out = malloc(OUT_BUF_BYTES);
    c->in = malloc(IN_BUF_BYTES);
    c->in_size = IN_BUF_BYTES;
    c->host = host_enter(&g, &host, &epoch);
    c->host->conn = c;
    return pair[0];
}

/* As guest_loop() does in one turn, without waiting. */
static void turn(void)
{
    struct list list;

    list_init(&list);
    list_splice(&list, &g.readable);
    while (!list_empty(&list))
        output_read(&g, container_of(list.next, struct output, readable));
    g.conns[0].readable = g.conns[0].state != CONN_FREE;
    if (g.conns[0].state != CONN_FREE)
        conn_read(&g, &g.conns[0]);
    if (g.conns[0].state != CONN_FREE)
        conn_write(&g, &g.conns[0]);
    list_for_each_safe(pos, &g.jobs) {
        struct job *j = container_of(pos, struct job, all);

        output_retry(&g, &j->out[0]);
        output_retry(&g, &j->out[1]);
    }
    jobs_free_dead(&g);
    drains_free_dead(&g);
}

static void finish(int host_fd)
{
    for (unsigned i = 0; i < n_children; i++)
        end_child(&g, i);
    for (int i = 0; i < 4; i++)
        turn();
    conn_close(&g, &g.conns[0]);
    while (!list_empty(&g.jobs))
        job_forget(&g, container_of(g.jobs.next, struct job, all));
    jobs_free_dead(&g);
    while (!list_empty(&g.drains)) {
        struct list *first = g.drains.next;

        list_remove(first);
        list_append(&g.dead_drains, first);
        close(*(int *)((char *)first - sizeof(struct source)));
    }
    drains_free_dead(&g);
    host_enter(&g, &host, &other_epoch); /* forgets all answers */
    close(host_fd);
    close(g.epoll_fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t sink[1 << 16];
    int pair[2], fd;

    if (size < 2 || size > 1 << 15)
        return 0;
    behaviour = data[0];
    init();
    fd = connected(pair);
    /* In two pieces, with a child that ends between them. */
    size_t first = 1 + (size - 1) * (behaviour >> 4) / 16;
    if (write(fd, data + 1, first - 1) < 0)
        abort();
    turn();
    turn();
    if (n_children && (behaviour & 8))
        end_child(&g, 0);
    if (g.conns[0].state != CONN_FREE && write(fd, data + first, size - first) < 0 && errno != EPIPE)
        abort();
    turn();
    while (read(fd, sink, sizeof(sink)) > 0)
        ;
    turn();
    finish(fd);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* The life of a job: running, ending (its main process is gone, or its tree is being killed), ended.
 * Ended ones stay until the host forgets them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/guest/guest.h"

#define MS 1000000ll
#define RESCAN_MAX_NS (200 * MS)

/* ── finding ── */

static struct job **key_place(struct guest *g, const struct proto_id *key)
{
    uint32_t h = 2166136261u;

    for (int i = 0; i < PROTO_ID_BYTES; i++)
        h = (h ^ key->b[i]) * 16777619u; /* FNV-1a: keys need not be random */
    return &g->by_key[h % BUCKETS];
}

struct job *job_find(struct guest *g, const struct proto_id *key)
{
    struct job *j = *key_place(g, key);

    while (j && !proto_id_equal(&j->key, key))
        j = j->key_next;
    return j;
}

static void remove_key(struct guest *g, struct job *j)
{
    struct job **at = key_place(g, &j->key);

    while (*at != j)
        at = &(*at)->key_next;
    *at = j->key_next;
}

static struct job **pid_place(struct guest *g, pid_t pid)
{
    struct job **at = &g->by_pid[(unsigned)pid % BUCKETS];

    while (*at && (*at)->pid != pid)
        at = &(*at)->pid_next;
    return at;
}

/* ── starting ── */

static struct job *job_new(struct guest *g, struct host *h, const struct proto_spawn *m)
{
    struct job *j = calloc(1, sizeof(*j));
    char *label = j ? strdup(m->label.s) : NULL;
    struct job **at = key_place(g, &m->key);

    if (!label) {
        free(j);
        return NULL;
    }
    j->key = m->key;
    j->key_next = *at;
    *at = j;
    j->label = label;
    j->host = h;
    j->serial = ++g->serial;
    j->state = PROTO_JOB_RUNNING;
    j->tty = (m->flags & PROTO_SPAWN_TTY) != 0;
    j->grace_ms = m->grace_ms;
    j->start_ms = guest_wall_ms();
    j->in.src.fd = -1;
    j->in.limit = PROTO_STDIN_WINDOW_BYTES;
    output_init(&j->out[PROTO_STDOUT], j);
    output_init(&j->out[PROTO_STDERR], j);
    list_init(&j->ready);
    list_append(&g->jobs, &j->all);
    g->n_jobs++;
    return j;
}

static void set_deadline(struct guest *g, struct job *j, int64_t due_ns)
{
    j->deadline_ns = due_ns;
    guest_wake_at(g, due_ns);
}

/* Its streams are ours now; one that cannot be watched is closed, which the job sees as a broken pipe. */
static void open_streams(struct guest *g, struct job *j, const struct spawned *s)
{
    const int fds[PROTO_STREAMS] = { s->out, s->err };

    for (int i = 0; i < PROTO_STREAMS; i++)
        if (fds[i] >= 0 && output_open(g, &j->out[i], fds[i]) != 0)
            source_close(g, &j->out[i].src);
    if (j->tty)
        return;
    if (s->in < 0)
        j->in.closed = true;
    else if (input_open(g, j, s->in) != 0)
        input_close(g, j);
}

/* Its command was never executed: how it ends. */
static void never_ran(struct guest *g, struct job *j, const struct spawned *s)
{
    j->never_ran = true;
    j->end_kind = s->exit_code ? PROTO_END_EXITED : PROTO_END_FAILED;
    j->end_code = s->exit_code ? s->exit_code : s->error;
    j->end_text = strdup(s->text);
    if (s->exit_code) {
        struct output *o = &j->out[j->tty ? PROTO_STDOUT : PROTO_STDERR];

        output_say(g, o, "wsm: ");
        output_say(g, o, s->text);
        output_say(g, o, j->tty ? "\r\n" : "\n");
    }
}

/* There is not even a process. */
static void failed(struct guest *g, struct job *j, const struct spawned *s)
{
    j->reaped = true;
    j->in.closed = true;
    never_ran(g, j, s);
    job_advance(g, j);
}

struct job *job_spawn(struct guest *g, struct host *h, const struct proto_spawn *m, const char **why)
{
    struct spawned s;
    struct job *j;

    if (g->n_jobs >= JOBS_MAX) {
        *why = "the guest remembers 16384 jobs already: remove finished ones";
        return NULL;
    }
    j = job_new(g, h, m);
    if (!j) {
        *why = "the guest is out of memory";
        return NULL;
    }
    g->n_running++;
    if (!spawn_command(g, m, tree_tag(g, j->serial), &s)) {
        failed(g, j, &s);
        return j;
    }
    j->pid = s.pid;
    *pid_place(g, s.pid) = j;
    tree_forget(g); /* what was seen of /proc in this turn has not seen this one */
    if (m->timeout_ms)
        set_deadline(g, j, guest_now_ns() + (int64_t)m->timeout_ms * MS);
    open_streams(g, j, &s);
    return j;
}

/* When the tree is looked at again: not so often that others suffer, nor later than the end of the grace. */
static void set_look(struct guest *g, struct job *j, int64_t due_ns)
{
    int64_t fair = tree_next_look(g);

    if (due_ns < fair)
        due_ns = fair;
    if (j->killing != KILLING_KILL && due_ns > j->kill_ns)
        due_ns = j->kill_ns;
    set_deadline(g, j, due_ns);
}

/* ── ending ── */

/* The pipe is nobody's output any more. */
static void part_with(struct guest *g, struct output *o, bool tty)
{
    list_remove(&o->readable);
    if (o->src.fd >= 0 && !tty) {
        drain_add(g, steal_fd(&o->src.fd));
        return;
    }
    source_close(g, &o->src);
}

static void end(struct guest *g, struct job *j)
{
    j->state = PROTO_JOB_ENDED;
    j->end_ms = guest_wall_ms();
    j->deadline_ns = 0;
    j->killing = KILLING_NOT;
    if (!j->tty)
        input_close(g, j);
    j->in.closed = true;
    for (int i = 0; i < PROTO_STREAMS; i++) {
        part_with(g, &j->out[i], j->tty);
        if (j->out[i].ring.head == j->out[i].ring.tail)
            output_trim(g, &j->out[i]);
    }
    g->n_running--;
    conn_ready_job(j);
}

void job_advance(struct guest *g, struct job *j)
{
    if (job_ended(j) || !j->reaped || j->killing != KILLING_NOT)
        return;
    j->state = PROTO_JOB_ENDING;
    if (output_done(&j->out[PROTO_STDOUT]) && output_done(&j->out[PROTO_STDERR]))
        end(g, j);
}

/* Nothing of the job runs any more, or what does is left alone: what it has written is all. */
static void collect_rest(struct guest *g, struct job *j)
{
    output_last(g, &j->out[PROTO_STDOUT]);
    output_last(g, &j->out[PROTO_STDERR]);
    job_advance(g, j);
}

/* What children said that could not execute their commands: one that has died, and others that are about to. */
static void read_reports(struct guest *g)
{
    struct spawned s;
    uint64_t tag;

    while (spawn_report(g, &tag, &s)) {
        struct job *j = *pid_place(g, s.pid);

        if (j && tag == tree_tag(g, j->serial))
            never_ran(g, j, &s);
    }
}

void job_reap(struct guest *g, pid_t pid, int wait_status)
{
    struct job **at = pid_place(g, pid), *j = *at;

    if (!j)
        return;
    if (wait_status != 0)
        read_reports(g);
    *at = j->pid_next;
    j->pid_next = NULL;
    j->reaped = true;
    j->state = PROTO_JOB_ENDING;
    if (!j->never_ran) {
        j->end_kind = WIFSIGNALED(wait_status) ? PROTO_END_SIGNALED : PROTO_END_EXITED;
        j->end_code = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    }
    if (j->killing == KILLING_NOT) {
        j->deadline_ns = 0;
        collect_rest(g, j);
    } else {
        j->rescan_ns = RESCAN_MS * MS;
        if (j->deadline_ns > guest_now_ns())
            set_look(g, j, guest_now_ns());
    }
}

/* ── killing ── */

/* The tree was told to end. Ends the job when nothing of it is left, else looks again later. */
static void look_again(struct guest *g, struct job *j, unsigned left, int64_t now_ns)
{
    if (left == 0 && j->reaped) {
        j->killing = KILLING_NOT;
        j->deadline_ns = 0;
        collect_rest(g, j);
        return;
    }
    j->rescan_ns = j->rescan_ns * 2 < RESCAN_MAX_NS ? j->rescan_ns * 2 : RESCAN_MAX_NS;
    if (j->killing == KILLING_TERM && !j->reaped)
        set_deadline(g, j, j->kill_ns);
    else
        set_look(g, j, now_ns + j->rescan_ns);
}

void job_kill(struct guest *g, struct job *j, uint32_t grace_ms)
{
    int64_t now = guest_now_ns(), kill_ns = now + grace_ms * MS;

    if (job_ended(j) || j->killing == KILLING_KILL)
        return;
    if (j->killing != KILLING_NOT) {
        if (kill_ns < j->kill_ns)
            j->kill_ns = kill_ns;
        set_deadline(g, j, j->kill_ns < j->deadline_ns ? j->kill_ns : j->deadline_ns);
        return;
    }
    j->killing = KILLING_GROUP;
    j->kill_ns = kill_ns;
    j->rescan_ns = RESCAN_MS * MS;
    if (grace_ms)
        tree_signal_group(j, SIGTERM);
    set_look(g, j, now);
}

/* The grace is over, or the tree is to be looked at. */
static void go_on_killing(struct guest *g, struct job *j, int64_t now)
{
    int signo = j->killing == KILLING_GROUP ? SIGTERM : 0;

    if (j->killing != KILLING_KILL && now >= j->kill_ns) {
        j->killing = KILLING_KILL;
        j->rescan_ns = RESCAN_MS * MS;
    }
    if (j->killing == KILLING_KILL) {
        tree_signal_group(j, SIGKILL);
        signo = SIGKILL;
    } else {
        j->killing = KILLING_TERM;
    }
    look_again(g, j, tree_signal(g, j, signo, signo == SIGTERM), now);
}

void job_deadline(struct guest *g, struct job *j)
{
    if (j->killing != KILLING_NOT) {
        go_on_killing(g, j, guest_now_ns());
        return;
    }
    j->timed_out = true;
    j->deadline_ns = 0;
    job_kill(g, j, j->grace_ms);
}

/* ── hosts ── */

void job_attach(struct guest *g, struct job *j, struct host *h, const uint64_t from[PROTO_STREAMS])
{
    struct proto_taken taken = { j->key };

    if (j->host != h) {
        conn_drop_job(g, j);
        if (j->attached)
            conn_queue(j->host->conn, PROTO_TAKEN, 0, &taken);
    }
    list_remove(&j->ready);
    j->host = h;
    j->attached = true;
    j->exit_sent = false;
    for (int i = 0; i < PROTO_STREAMS; i++) {
        struct output *o = &j->out[i];

        o->sent = o->ring.head;
        output_acknowledge(g, o, from[i]);
        o->sent = from[i] > o->ring.tail ? from[i] : o->ring.tail;
    }
    conn_ready_job(j);
}

void job_forget(struct guest *g, struct job *j)
{
    conn_drop_job(g, j);
    list_remove(&j->ready);
    list_remove(&j->all);
    remove_key(g, j);
    list_append(&g->dead, &j->all);
    g->n_jobs--;
}

void jobs_free_dead(struct guest *g)
{
    while (!list_empty(&g->dead)) {
        struct job *j = container_of(g->dead.next, struct job, all);

        list_remove(&j->all);
        output_finish(g, &j->out[PROTO_STDOUT]);
        output_finish(g, &j->out[PROTO_STDERR]);
        ring_free(g, &j->in.ring);
        free(j->label);
        free(j->end_text);
        free(j);
    }
}

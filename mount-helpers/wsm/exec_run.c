// SPDX-License-Identifier: Apache-2.0
/* Attends a job: its streams, our signals, its end. All waiting is one poll(2). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "exec.h"
#include "files.h"
#include "flow.h"
#include "terminal.h"
#include "wsm.h"

#define EXIT_TEXT_MAX 1024

/* Signals that are the job's, by the names that its `ctl` knows. */
static const struct {
    int number;
    const char *name;
} passed[] = {
    { SIGINT, "INT" }, { SIGTERM, "TERM" }, { SIGHUP, "HUP" }, { SIGQUIT, "QUIT" }, { SIGUSR1, "USR1" },
    { SIGUSR2, "USR2" },
};

struct attendance {
    const struct exec_options *o;
    const struct job *job;
    struct terminal terminal;
    struct flow in, out, err;
    int    signals;     /* signalfd */
    int    exit;        /* the job's */
    size_t exit_used;
    int    exit_error;  /* errno that ended reading it */
    bool   exit_done, pipe_told;
    char   exit_text[EXIT_TEXT_MAX];
};

/* ── signals ─────────────────────────────────────────────────────────────────────────────── */

/* A job that has not got as far as to have a process can only be ended. */
static void signal_job(struct attendance *a, const char *name)
{
    cleanup_free char *line = text_format("signal %s", name);
    int r = job_ctl(a->job, line);

    if (r < 0 && strncmp(name, "USR", 3) != 0)
        job_ctl(a->job, "kill");
}

static void tell_size(struct attendance *a)
{
    char size[TERMINAL_SIZE_MAX];

    if (!a->o->tty)
        return;
    cleanup_free char *line = text_format("resize %s", terminal_size(size));
    job_ctl(a->job, line);
}

static void make_raw(struct attendance *a)
{
    if (a->o->tty && a->o->stdin_too)
        terminal_raw(&a->terminal);
}

/* Stopped from outside: the terminal must not stay raw for whoever has it then. */
static void stop(struct attendance *a)
{
    terminal_back(&a->terminal);
    raise(SIGSTOP);
}

/* Whoever had the terminal meanwhile may have set and resized it. */
static void go_on(struct attendance *a)
{
    a->terminal.raw = false;
    make_raw(a);
    tell_size(a);
}

static void take_signal(struct attendance *a, int number)
{
    if (number == SIGWINCH)
        tell_size(a);
    else if (number == SIGTSTP)
        stop(a);
    else if (number == SIGCONT)
        go_on(a);
    for (size_t i = 0; i < array_size(passed); i++)
        if (passed[i].number == number)
            signal_job(a, passed[i].name);
}

static void take_signals(struct attendance *a)
{
    struct signalfd_siginfo info;

    while (read(a->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        take_signal(a, (int)info.ssi_signo);
}

/* From here on they come by a descriptor. SIGPIPE is told by EPIPE. */
static int catch_signals(struct attendance *a)
{
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < array_size(passed); i++)
        sigaddset(&set, passed[i].number);
    sigaddset(&set, SIGWINCH);
    sigaddset(&set, SIGCONT);
    if (a->o->tty)
        sigaddset(&set, SIGTSTP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    a->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return a->signals < 0 ? complain("signals: %m") : 0;
}

/* ── streams ─────────────────────────────────────────────────────────────────────────────── */

static int open_output(struct attendance *a, struct flow *f, const char *file, int ours)
{
    int from = job_file(a->job, file, O_RDONLY | O_NONBLOCK), to;
    size_t piece_bytes;

    if (from < 0)
        return -1;
    to = flow_output(ours, &piece_bytes);
    flow_init(f, from, to, piece_bytes);
    return 0;
}

static int open_input(struct attendance *a)
{
    int to = a->o->stdin_too ? job_file(a->job, "stdin", O_WRONLY | O_NONBLOCK) : -1;

    if (!a->o->stdin_too)
        return 0;
    if (to < 0)
        return -1;
    flow_init(&a->in, fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0), to, 0);
    return 0;
}

/* All of them before the start: then nothing that is done to the job directory later matters. */
static int open_streams(struct attendance *a)
{
    if (open_input(a) < 0 || open_output(a, &a->out, "stdout", STDOUT_FILENO) < 0 ||
        open_output(a, &a->err, "stderr", STDERR_FILENO) < 0)
        return -1;
    a->exit = job_file(a->job, "exit", O_RDONLY | O_NONBLOCK);
    return a->exit < 0 ? -1 : 0;
}

static void read_exit(struct attendance *a)
{
    size_t  room = sizeof(a->exit_text) - 1 - a->exit_used;
    ssize_t n = room ? read(a->exit, a->exit_text + a->exit_used, room) : 0;

    if (n > 0) {
        a->exit_used += (size_t)n;
        a->exit_done = a->exit_text[a->exit_used - 1] == '\n'; /* that is all of it */
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        a->exit_error = n < 0 ? errno : 0;
        a->exit_done = true;
    }
}

/* What a shell's pipeline would do: nobody reads any more, so the writer is told. */
static void tell_pipe(struct attendance *a)
{
    if (a->pipe_told || (a->out.write_error != EPIPE && a->err.write_error != EPIPE))
        return;
    a->pipe_told = true;
    signal_job(a, "PIPE");
}

/* ── the loop ────────────────────────────────────────────────────────────────────────────── */

static bool output_done(const struct attendance *a)
{
    return flow_done(&a->out) && flow_done(&a->err);
}

static void wait_for_news(struct attendance *a)
{
    struct pollfd list[8];
    size_t n = 0;

    list[n++] = (struct pollfd){ .fd = a->signals, .events = POLLIN };
    if (a->in.buf)
        flow_poll(&a->in, list, &n);
    flow_poll(&a->out, list, &n);
    flow_poll(&a->err, list, &n);
    if (output_done(a))
        list[n++] = (struct pollfd){ .fd = a->exit, .events = POLLIN };
    poll(list, n, -1); /* interrupted or not: everybody looks */
}

/* A job that has just been started has nothing to say yet: first it is waited for. */
static void attend(struct attendance *a)
{
    wait_for_news(a);
    while (!a->exit_done) {
        take_signals(a);
        if (a->in.buf)
            flow_step(&a->in, true);
        flow_step(&a->out, false);
        flow_step(&a->err, false);
        tell_pipe(a);
        if (output_done(a))
            read_exit(a);
        if (!a->exit_done)
            wait_for_news(a);
    }
}

/* ── the end ─────────────────────────────────────────────────────────────────────────────── */

static int lost(const struct attendance *a, int error)
{
    complain("%s: the job can no longer be seen (%s); where it went on, wsm logs -f shows it as %s",
             a->job->session->names, strerror(error), a->job->name);
    return EXIT_EXEC_FAILED;
}

/* Output that was thrown away, other than because its reader did not want it. */
static int check_written(const struct flow *f, const char *what)
{
    if (!f->write_error || f->write_error == EPIPE)
        return 0;
    return complain("%s: %s", what, strerror(f->write_error));
}

static int passed_on(struct attendance *a, bool limited, int status)
{
    if (limited && job_timed_out(a->job))
        complain("%s: its time was over, and it was ended", a->job->session->names);
    if (check_written(&a->out, "standard output") < 0 || check_written(&a->err, "standard error") < 0)
        return status ? status : EXIT_EXEC_FAILED;
    return status;
}

static int end(struct attendance *a, bool limited)
{
    const char *sentence = "";
    int error = a->exit_error ? a->exit_error : a->out.read_error ? a->out.read_error : a->err.read_error, status;

    if (error)
        return lost(a, error);
    status = job_status(a->exit_text, &sentence);
    if (status >= 0)
        return passed_on(a, limited, status);
    complain("%s: %.*s", a->job->session->names, (int)strcspn(sentence, "\n"), sentence);
    return EXIT_EXEC_FAILED;
}

static void finish(struct attendance *a)
{
    terminal_back(&a->terminal);
    flow_finish(&a->in);
    flow_finish(&a->out);
    flow_finish(&a->err);
    if (a->exit >= 0)
        close(a->exit);
    if (a->signals >= 0)
        close(a->signals);
}

int exec_run(const struct exec_options *o, const struct job *j, const struct job_settings *s)
{
    struct attendance a = { .o = o, .job = j, .signals = -1, .exit = -1 };
    int status = EXIT_EXEC_FAILED;

    if (catch_signals(&a) == 0 && job_set(j, s) == 0 && open_streams(&a) == 0 && job_start(j, s) == 0) {
        make_raw(&a);
        attend(&a);
        status = end(&a, s->timeout);
    }
    finish(&a);
    job_remove(j);
    return status;
}

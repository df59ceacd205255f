// SPDX-License-Identifier: Apache-2.0
/* A job's `ctl`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"
#include "fs/manager/verbs.h"

/* A verb that the guest carries out. */
struct asking {
    void (*done)(void *arg, int status);
    void *arg;
};

static void on_done(void *arg, int status, const char *text)
{
    struct asking *a = arg;

    (void)text;
    a->done(a->arg, status);
    free(a);
}

struct call {
    struct job *job;
    const char *word;
    void (*done)(void *arg, int status);
    void *arg;
};

/* job.lock held by the caller. Has `ask` given to the guest. */
static int with_guest(const struct call *c, int (*ask)(struct link_job *lj, const char *word, uint32_t grace_ms,
                                                       struct asking *a), struct err *e)
{
    struct asking *a;
    int r;

    if (c->job->state == JOB_NEW)
        return err_set(e, -ESRCH, "the job has not been started");
    if (c->job->state == JOB_ENDED || c->job->ending)
        return err_set(e, -ESRCH, "the job has ended");
    if (!c->job->link_job)
        return err_set(e, -EAGAIN, "the job is being started");
    a = malloc(sizeof(*a));
    if (!a)
        return err_set(e, -ENOMEM, "out of memory");
    *a = (struct asking){ c->done, c->arg };
    r = ask(c->job->link_job, c->word, (uint32_t)(c->job->jobs->config->grace_s * 1000), a);
    if (r == 0)
        return MANAGER_WAIT;
    free(a);
    return err_sys(e, r, "the guest cannot be asked");
}

/* ── the verbs ───────────────────────────────────────────────────────────────────────────── */

static int verb_start(const struct call *c, struct err *e) { return job_start(c->job, JOB_TEXTS, false, e); }

static int ask_kill(struct link_job *lj, const char *word, uint32_t grace_ms, struct asking *a)
{
    (void)word;
    return link_job_kill(lj, grace_ms, on_done, a);
}

static int verb_kill(const struct call *c, struct err *e)
{
    struct job *j = c->job;
    bool early, now;
    int r = 0;

    pthread_mutex_lock(&j->lock);
    early = j->state == JOB_STARTING && !j->link_job && !j->taken_over;
    now = early && j->accepted;
    if (!early)
        r = with_guest(c, ask_kill, e);
    else if (!now)
        j->kill_asked = true;
    pthread_mutex_unlock(&j->lock);
    if (now)
        job_end_early(j);
    else if (r == MANAGER_WAIT)
        job_allow(j, ALLOW_ALL);
    return r;
}

static int ask_signal(struct link_job *lj, const char *word, uint32_t grace_ms, struct asking *a)
{
    (void)grace_ms;
    return link_job_signal(lj, settings_signal(word), LINK_SCOPE_GROUP, on_done, a);
}

static int verb_signal(const struct call *c, struct err *e)
{
    int r;

    job_allow(c->job, ALLOW_A_PIPE);
    pthread_mutex_lock(&c->job->lock);
    r = with_guest(c, ask_signal, e);
    pthread_mutex_unlock(&c->job->lock);
    return r;
}

static int ask_resize(struct link_job *lj, const char *word, uint32_t grace_ms, struct asking *a)
{
    uint16_t cols, rows;

    (void)grace_ms;
    settings_tty(word, strlen(word), &cols, &rows, NULL);
    return link_job_resize(lj, cols, rows, on_done, a);
}

/* job.lock held. Before the guest has it, it is told with the start: a terminal may be resized while a sandbox is made,
 * and nobody would say it again. */
static int resize_early(struct job *j, const char *word, struct err *e)
{
    if (!j->rec.texts[JOB_TTY].size)
        return err_set(e, -ENOTTY, "the job has no terminal: its size is written to tty before the start");
    return settings_tty(word, strlen(word), &j->early_cols, &j->early_rows, e);
}

static int verb_resize(const struct call *c, struct err *e)
{
    struct job *j = c->job;
    scoped_lock(&j->lock);

    if (j->state == JOB_STARTING && !j->link_job && !j->taken_over && !j->ending)
        return resize_early(j, c->word, e);
    return with_guest(c, ask_resize, e);
}

static int check_signal(const char *word, struct err *e)
{
    return settings_signal(word) < 0 ? err_set(e, -EINVAL, "\"%s\" is no signal", word) : 0;
}

static int check_size(const char *word, struct err *e)
{
    uint16_t cols, rows;

    return settings_tty(word, strlen(word), &cols, &rows, e);
}

static const struct verb {
    const char *name;
    int (*check)(const char *word, struct err *e); /* NULL: takes no word */
    int (*run)(const struct call *c, struct err *e);
} verbs[] = {
    { "start", NULL, verb_start },
    { "kill", NULL, verb_kill },
    { "signal", check_signal, verb_signal },
    { "resize", check_size, verb_resize },
};

static int parse(const char *line, struct verb_words *words, const struct verb **v, struct err *e)
{
    int r = verb_split(line, words, e);

    if (r < 0)
        return r;
    for (size_t i = 0; i < array_size(verbs); i++) {
        if (strcmp(verbs[i].name, words->verb) != 0)
            continue;
        *v = &verbs[i];
        if (!(*v)->check)
            return *words->word ? err_set(e, -EINVAL, "%s takes no word", words->verb) : 0;
        return *words->word ? (*v)->check(words->word, e) : err_set(e, -EINVAL, "%s needs a word behind it", words->verb);
    }
    return err_set(e, -EINVAL, "unknown verb \"%s\" (there are start, kill, signal and resize)", words->verb);
}

int job_verb_check(const char *line, struct err *e)
{
    struct verb_words words;
    const struct verb *v = NULL;

    return parse(line, &words, &v, e);
}

int job_verb(struct job *j, const char *line, void (*done)(void *arg, int status), void *arg, struct err *e)
{
    struct verb_words words;
    const struct verb *v = NULL;
    int r = parse(line, &words, &v, e);
    const struct call c = { j, words.word, done, arg };

    if (r < 0)
        return r;
    job_ref(j); /* whose done() has been called may let go of it before we are through */
    r = v->run(&c, e);
    job_unref(j);
    return r;
}

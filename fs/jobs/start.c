// SPDX-License-Identifier: Apache-2.0
/* From an accepted start to a command that runs. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"

/* ── accepting ───────────────────────────────────────────────────────────────────────────── */

static int claim(struct job *j, enum job_text which, struct err *e)
{
    scoped_lock(&j->lock);

    if (j->state != JOB_NEW)
        return err_set(e, -EBUSY, "the job was started before");
    if (j->unnamed)
        return err_set(e, -ENOENT, "the job was removed");
    j->rec.which = which == JOB_TEXTS ? j->last_written : which;
    if (j->rec.texts[j->rec.which].size == 0)
        return err_set(e, -EINVAL, "nothing has been written to cmd or argv");
    j->state = JOB_STARTING;
    j->kill_asked = false;
    j->rec.stdin_pipe = j->in.opened || j->rec.texts[JOB_TTY].size; /* a terminal has one anyway */
    j->in.ended = j->in.opens == 0;
    return 0;
}

/* Takes the job off those that count as made and not started. */
static void count_started(struct job *j, int by)
{
    scoped_lock(&j->jobs->lock);

    if (j->session)
        j->session->n_new -= (size_t)by;
}

/* Every text of it, and the limits. */
static int check_all(struct job *j, struct err *e)
{
    for (int i = 0; i < JOB_TEXTS; i++) {
        bool other = i <= JOB_ARGV && i != (int)j->rec.which;
        int r = other ? 0 : job_text_meaning(j, (enum job_text)i, e);
        if (r < 0)
            return r;
    }
    if (job_record_is_large(j) && !job_share_has_room(j))
        return job_spool_full(e);
    return session_job_begin(j->place, false, &j->ws, e);
}

/* Writes down what is to be started; which guest will be asked too, when it is there already. */
static int write_down(struct job *j, struct err *e)
{
    struct guest *g = guest_peek(j->jobs, j->ws);
    int r;

    j->rec.workspace = strdup(workspace_id(j->ws));
    j->rec.asked = g && guest_up(g, &j->rec.instance);
    if (g)
        guest_unref(g);
    r = job_write_record(j, RECORD_ALL);
    return r < 0 ? err_sys(e, r, "the job cannot be written down in the state directory") : 0;
}

/* A start that was refused: the job is as it was. */
static void take_back(struct job *j)
{
    struct workspace *ws = j->ws;

    j->ws = NULL;
    free(j->rec.workspace);
    j->rec.workspace = NULL;
    j->rec.asked = false;
    if (ws)
        session_job_end(j->place, ws);
    count_started(j, -1);
    pthread_mutex_lock(&j->lock);
    j->state = JOB_NEW;
    j->in.ended = false;
    pthread_mutex_unlock(&j->lock);
}

/* It has been written down and may end from now on. False: it is to end at once. */
static bool accept_start(struct job *j)
{
    scoped_lock(&j->lock);

    j->accepted = true;
    return !j->kill_asked;
}

int job_start(struct job *j, enum job_text which, bool final, struct err *e)
{
    int r = claim(j, which, e);

    if (r < 0)
        return r;
    count_started(j, 1);
    r = check_all(j, e);
    if (r == 0)
        r = write_down(j, e);
    if (r < 0 && !final) {
        take_back(j);
        return r;
    }
    if (r < 0) {
        job_fail(j, LINK_END_FAILED, e);
        return r;
    }
    manager_count(j->jobs->manager, "wsmfs_job_starts_total", 1);
    session_set_error(j->place, NULL);
    if (accept_start(j))
        job_enter(j);
    else
        job_end_early(j);
    return 0;
}

/* ── entering ────────────────────────────────────────────────────────────────────────────── */

static void on_woken(struct waiter *w, int status)
{
    struct job *j = container_of(w, struct job, waiter);
    struct jobs *js = j->jobs;

    (void)status; /* asking again gives the same errno, and the sentence with it */
    job_enter(j);
    job_unref(j);
    jobs_task_end(js);
}

/* False: it has come to its end meanwhile (killed). */
static bool set_guest(struct job *j, struct guest *g)
{
    struct guest *old;
    bool ending;

    pthread_mutex_lock(&j->lock);
    ending = j->ending;
    old = ending ? g : j->guest;
    if (!ending)
        j->guest = g;
    pthread_mutex_unlock(&j->lock);
    if (old)
        guest_unref(old);
    return !ending;
}

/* Writes down that this guest may have been asked, which is what happens next. */
static int write_down_in(struct job *j, struct guest *g, struct err *e)
{
    int r = session_job_begin(j->place, true, &j->ws, e);

    if (r < 0)
        return r;
    j->rec.workspace = strdup(workspace_id(j->ws));
    j->rec.asked = guest_up(g, &j->rec.instance);
    r = job_write_record(j, RECORD_ALL);
    return r < 0 ? err_sys(e, r, "the job cannot be written down in the state directory") : 0;
}

int job_start_in(struct job *j, struct guest *g, struct err *e)
{
    struct err lost;
    int r = claim(j, JOB_CMD, e);

    if (r < 0)
        return r;
    count_started(j, 1);
    r = write_down_in(j, g, e);
    if (r < 0) {
        take_back(j);
        return r;
    }
    manager_count(j->jobs->manager, "wsmfs_job_starts_total", 1);
    if (!accept_start(j)) {
        job_end_early(j);
        return 0;
    }
    guest_ref(g);
    if (set_guest(j, g) && guest_add(g, j))
        return 0;
    err_set(&lost, -EIO, "the sandbox was lost");
    job_fail(j, LINK_END_LOST, &lost);
    return 0;
}

/* The job's reference to its guest goes when the job is killed, and all others when the sandbox is lost: while it is
 * being added the caller has one too. */
static void hand_to(struct job *j, struct guest *g)
{
    struct err e;

    guest_ref(g);
    if (!set_guest(j, g) || guest_add(g, j))
        return;
    if (j->taken_over) { /* the one that was asked is gone */
        err_set(&e, -EIO, "the sandbox was lost");
        job_fail(j, LINK_END_LOST, &e);
    } else {
        job_enter_later(j);
    }
}

static bool is_ending(struct jobs *js)
{
    scoped_lock(&js->lock);

    return js->ending;
}

/* The workspace is entered: nobody closes it until the guest has the job. */
static void hand_over(struct job *j, struct workspace *ws)
{
    struct guest *g = guest_get(j->jobs, ws, !j->taken_over);
    struct err e;

    if (!g) {
        err_set(&e, -ENOMEM, "out of memory");
        if (!is_ending(j->jobs))
            job_fail(j, LINK_END_FAILED, &e);
        return;
    }
    hand_to(j, g);
    guest_unref(g);
}

void job_enter(struct job *j)
{
    struct workspace *ws = NULL;
    struct err e = { 0 };
    int r;

    j->waiter.wake = on_woken;
    job_ref(j);
    jobs_task_begin(j->jobs);
    r = session_enter_sandbox(j->place, &j->waiter, &ws, &e);
    if (r == MANAGER_WAIT)
        return;
    if (r == 0) {
        hand_over(j, ws);
        workspace_leave(ws);
        workspace_unref(ws);
    } else if (r != -ESHUTDOWN) { /* else: the next life makes the start */
        e.code = r;
        job_fail(j, LINK_END_FAILED, &e);
    }
    jobs_task_end(j->jobs);
    job_unref(j);
}

/* ── asking the guest ────────────────────────────────────────────────────────────────────── */

/* What a struct link_spawn points to. */
struct plan {
    settings_list argv, env;
    char *cwd, *user;
    char  dir[PATH_MAX];
    char  label[1201];
};

static void plan_finish(struct plan *p)
{
    free(p->argv);
    free(p->env);
    free(p->cwd);
    free(p->user);
}

static const struct record_text *text_of(const struct job *j, enum job_text which)
{
    static const struct record_text none = { .text = (char *)"" };

    return j->rec.texts[which].text ? &j->rec.texts[which] : &none;
}

char *job_own_path(const struct job *j)
{
    char *path;

    return asprintf(&path, "%s/%s/%s/%s", j->jobs->config->mountpoint ? j->jobs->config->mountpoint : "", j->rec.user,
                    j->rec.agent, j->rec.session) < 0 ? NULL : path;
}

static int plan_dir(struct job *j, struct workspace *ws, struct plan *p, struct link_spawn *s, struct err *e)
{
    const struct record_text *t = text_of(j, JOB_CWD);
    cleanup_free char *own = job_own_path(j);
    char root[PATH_MAX];
    int r = settings_cwd(t->text, t->size, own, &p->cwd, e);

    if (r < 0 || !*p->cwd)
        return r;
    workspace_job_root(ws, root, sizeof(root));
    if (snprintf(p->dir, sizeof(p->dir), "%s/%s", root, p->cwd) >= (int)sizeof(p->dir))
        return err_set(e, -ENAMETOOLONG, "the path of cwd is too long");
    s->cwd = p->dir;
    return 0;
}

static int plan_command(struct job *j, struct plan *p, struct link_spawn *s, struct err *e)
{
    const struct record_text *t = text_of(j, j->rec.which);

    if (j->rec.which == JOB_CMD) {
        s->script = t->text;
        return 0;
    }
    s->argv = NULL;
    int r = settings_argv(t->text, t->size, &p->argv, e);
    s->argv = (const char *const *)p->argv;
    return r;
}

static int plan_spawn(struct job *j, struct workspace *ws, struct plan *p, struct link_spawn *s, struct err *e)
{
    const struct record_text *env = text_of(j, JOB_ENV), *time = text_of(j, JOB_TIMEOUT), *tty = text_of(j, JOB_TTY),
                             *user = text_of(j, JOB_USER);
    int r = plan_command(j, p, s, e);

    if (r == 0)
        r = settings_env(env->text, env->size, true, &p->env, e);
    if (r == 0)
        r = plan_dir(j, ws, p, s, e);
    if (r == 0)
        r = settings_timeout(time->text, time->size, &s->timeout_ms, e);
    if (r == 0)
        r = settings_tty(tty->text, tty->size, &s->cols, &s->rows, e);
    if (r == 0)
        r = settings_user(user->text, user->size, &p->user, e);
    if (r < 0)
        return r;
    s->env = (const char *const *)p->env;
    s->user = *p->user ? p->user : NULL;
    s->tty = s->cols != 0;
    snprintf(p->label, sizeof(p->label), "%s/%s/%s/%s", j->rec.user, j->rec.agent, j->rec.session, j->rec.name);
    s->label = p->label;
    return 0;
}

/* The guest is named in the record before it is asked. */
static int name_guest(struct job *j, const struct guest *g, struct err *e)
{
    int r;

    if (j->rec.asked && memcmp(&j->rec.instance, &g->instance, sizeof(g->instance)) == 0)
        return 0;
    if (j->taken_over)
        return err_set(e, -ENOENT, "the sandbox in which it ran is gone");
    j->rec.instance = g->instance;
    j->rec.asked = true;
    r = job_write_record(j, RECORD_GUEST);
    return r < 0 ? err_sys(e, r, "the job cannot be written down in the state directory") : 0;
}

static int ask(struct job *j, struct guest *g, const struct link_spawn *s, struct err *e)
{
    struct link_spawn with = *s;
    scoped_lock(&g->lock);
    scoped_lock(&j->lock);
    int r;

    if (s->tty && j->early_cols) {
        with.cols = j->early_cols;
        with.rows = j->early_rows;
    }
    if (j->ending || list_empty(&j->in_guest))
        return -ECANCELED; /* nobody would let go of it */
    if (!g->link)
        return err_set(e, -EIO, "the sandbox was lost");
    job_ref(j); /* until `released` */
    r = link_job_spawn(g->link, &with, &job_link_ops, j, &j->link_job, e);
    if (r < 0)
        atomic_fetch_sub(&j->refs, 1);
    return r;
}

void job_spawn_on(struct job *j, struct guest *g)
{
    struct link_spawn s = {
        .key = j->key,
        .env_guest = true,
        .stdin_pipe = j->rec.stdin_pipe,
        .grace_ms = (uint32_t)(j->jobs->config->grace_s * 1000),
        .from = { atomic_load(&j->spool.size[0]), atomic_load(&j->spool.size[1]) },
        .instance = &j->rec.instance,
    };
    struct plan p = { 0 };
    struct err e = { 0 };
    int r;

    job_texts_use(j); /* it may be killed and end meanwhile */
    r = plan_spawn(j, g->ws, &p, &s, &e);
    if (r == 0)
        r = name_guest(j, g, &e);
    if (r == 0)
        r = ask(j, g, &s, &e);
    plan_finish(&p);
    job_texts_unuse(j);
    /* One that has ended meanwhile has left the guest before it came to it; one that was taken from the guest is
     * the next life's. */
    if (r == -ECANCELED || (r < 0 && !job_fail(j, j->taken_over ? LINK_END_LOST : LINK_END_FAILED, &e)))
        guest_remove(g, j);
}

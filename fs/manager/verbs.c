// SPDX-License-Identifier: Apache-2.0
/* A session's `ctl`. */
#include "fs/manager/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

/* ── words ───────────────────────────────────────────────────────────────────────────────── */

int verb_split(const char *line, struct verb_words *out, struct err *e)
{
    static const char blank[] = " \t\r\v\f";
    char *rest = NULL;

    if (strlen(line) >= sizeof(out->line))
        return err_set(e, -EINVAL, "a line has fewer than %d characters", VERB_LINE_MAX);
    strcpy(out->line, line);
    out->verb = strtok_r(out->line, blank, &rest);
    if (!out->verb)
        return err_set(e, -EINVAL, "an empty line is no verb");
    out->word = strtok_r(NULL, blank, &rest);
    if (!out->word)
        out->word = (char *)"";
    if (strtok_r(NULL, blank, &rest))
        return err_set(e, -EINVAL, "too many words: \"%s\"", line);
    return 0;
}

/* ── provisioning with a waiter that is told the result ──────────────────────────────────── */

/* One `provision` that waits: it enters again until it is in or has failed. */
struct provisioning {
    struct waiter     own; /* first */
    struct workspace *ws;      /* referenced */
    struct place     *session; /* referenced */
    struct list       waiters; /* wait_lock */
    struct task       check;
};

static void provisioning_free(struct provisioning *p)
{
    struct manager *m = p->ws->manager;

    workspace_unref(p->ws);
    place_unref(p->session);
    free(p);
    manager_job_end(m);
}

static void provisioning_end(struct provisioning *p, int status)
{
    waiters_finish(p->ws->manager, &p->waiters, status);
    provisioning_free(p);
}

static void provisioning_woken(struct waiter *w, int status)
{
    struct provisioning *p = container_of(w, struct provisioning, own);

    if (status == 0) /* a failure's sentence is kept by the workspace */
        status = workspace_provision(p->ws, &p->own, false, NULL);
    if (status != MANAGER_WAIT)
        provisioning_end(p, status);
}

/* Nobody may have noticed yet that its sandbox is gone. */
static void provisioning_check(struct task *t)
{
    struct provisioning *p = container_of(t, struct provisioning, check);
    struct err e;
    int r = notice_check(p->ws, &e);

    if (r == 0) {
        provisioning_woken(&p->own, 0);
        return;
    }
    session_fail(session_of(p->session), &e);
    provisioning_end(p, r);
}

static int begin_check(struct provisioning *p)
{
    struct manager *m = p->ws->manager;

    if (!m->backend->look)
        return 0;
    p->check.run = provisioning_check;
    pool_add(m->provisioners, &p->check);
    return MANAGER_WAIT;
}

static int verb_provision(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    struct provisioning *p = calloc(1, sizeof(*p));
    bool wait = strcmp(word, "nowait") != 0, was_there;
    int  r;

    if (!p)
        return err_set(e, -ENOMEM, "out of memory");
    p->own.wake = provisioning_woken;
    p->session = &s->node.pub;
    node_ref(&s->node);
    p->ws = session_workspace(p->session);
    manager_job_begin(p->ws->manager);
    list_init(&p->waiters);
    if (wait)
        waiters_add(p->ws->manager, &p->waiters, w);
    was_there = workspace_has_sandbox(p->ws); /* what is made just now needs no look */
    r = workspace_provision(p->ws, &p->own, true, e);
    if (r == 0 && was_there)
        r = begin_check(p);
    if (r == MANAGER_WAIT)
        return wait ? MANAGER_WAIT : 0;
    if (wait)
        waiter_cancel(p->ws->manager, w);
    provisioning_free(p);
    return r;
}

/* ── closing ─────────────────────────────────────────────────────────────────────────────── */

#define OTHERS_NAMED 3

/* The other known sessions of a workspace: how many, and some of them in words. */
static size_t other_sessions(struct session *s, char *text, size_t size)
{
    scoped_lock(&s->node.pub.manager->names_lock);
    size_t n = 0, used = 0;

    text[0] = '\0';
    list_for_each(pos, &s->ws->sessions) {
        struct session *other = container_of(pos, struct session, in_ws);
        if (other == s || !atomic_load(&other->node.known))
            continue;
        struct place_names names = place_names(&other->node.pub);
        if (n++ < OTHERS_NAMED && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s/%s/%s", n > 1 ? ", " : "", names.user,
                                     names.agent, names.session);
    }
    if (n > OTHERS_NAMED && used < size)
        snprintf(text + used, size - used, " and %zu more", n - OTHERS_NAMED);
    return n;
}

static int close_session(struct session *s, bool destroy, bool force, struct waiter *w, struct err *e)
{
    const struct close_request req = { .why = CLOSE_ASKED, .destroy = destroy };
    struct workspace *ws = session_workspace(&s->node.pub);
    char others[ERR_TEXT_MAX / 2];
    size_t n = force ? 0 : other_sessions(s, others, sizeof(others));
    int r;

    if (n && destroy)
        r = err_set(e, -EBUSY, "other sessions have this workspace: %s; `destroy force` destroys it all the same",
                    others);
    else if (n && atomic_load(&ws->running_jobs) > session_running_jobs(s))
        r = err_set(e, -EBUSY, "jobs of other sessions run in this workspace: %s; `close force` closes it all the same",
                    others);
    else if (n && atomic_load(&ws->open_files) > 0)
        r = err_set(e, -EBUSY, "files are open, and other sessions have this workspace: %s; `close force` closes "
                    "it all the same", others);
    else if (destroy && s->node.pub.manager->config->read_only)
        r = err_set(e, -EROFS, "the mount is read-only");
    else
        r = workspace_close(ws, &req, w, e);
    workspace_unref(ws);
    return r;
}

static int verb_close(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    return close_session(s, false, *word, w, e);
}

static int verb_destroy(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    return close_session(s, true, *word, w, e);
}

/* ── names and bindings ──────────────────────────────────────────────────────────────────── */

static int verb_fresh(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return session_fresh(&s->node.pub, w, e);
}

/* The kernel is told on the pool, as by every hook. */
struct forgetting {
    struct task   task; /* first */
    struct place *place; /* referenced */
    struct list   waiters; /* wait_lock */
};

static void task_forgotten(struct task *t)
{
    struct forgetting *f = container_of(t, struct forgetting, task);
    struct manager *m = f->place->manager;

    if (m->hooks.forgotten)
        m->hooks.forgotten(f->place, m->hooks_arg);
    waiters_finish(m, &f->waiters, 0);
    place_unref(f->place);
    free(f);
    manager_job_end(m);
}

static int verb_forget(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    struct place *p = &s->node.pub;
    struct forgetting *f = calloc(1, sizeof(*f));
    int r;

    (void)word;
    if (!f)
        return err_set(e, -ENOMEM, "out of memory");
    r = place_forget(p->parent, p->name, e);
    if (r < 0) {
        free(f);
        return r;
    }
    f->task.run = task_forgotten;
    f->place = p;
    place_ref(p);
    list_init(&f->waiters);
    manager_job_begin(p->manager);
    waiters_add(p->manager, &f->waiters, w);
    pool_add(p->manager->pool, &f->task);
    return MANAGER_WAIT;
}

static int verb_touch(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    struct workspace *ws = session_workspace(&s->node.pub);

    (void)word;
    (void)w;
    (void)e;
    workspace_touch(ws);
    workspace_unref(ws);
    return 0;
}

/* ── pin and ttl ─────────────────────────────────────────────────────────────────────────── */

static void keep(struct workspace *ws)
{
    bool drop;

    pthread_mutex_lock(&ws->manager->names_lock);
    drop = workspace_keep_locked(ws);
    pthread_mutex_unlock(&ws->manager->names_lock);
    if (drop)
        workspace_unref(ws);
}

/* After pin or ttl have changed: stored, and the next deadline is another one. */
static int changed(struct workspace *ws, struct waiter *w, struct err *e)
{
    int r;

    keep(ws);
    sweeper_changed(ws);
    r = workspace_store_wait(ws, w, e);
    workspace_unref(ws);
    return r;
}

static int set_pinned(struct session *s, bool pinned, struct waiter *w, struct err *e)
{
    struct workspace *ws = session_workspace(&s->node.pub);

    atomic_store(&ws->pinned, pinned);
    return changed(ws, w, e);
}

static int verb_pin(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return set_pinned(s, true, w, e);
}

static int verb_unpin(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return set_pinned(s, false, w, e);
}

/* -1 is the configured default. */
static int parse_ttl(const char *word, int64_t *ttl_s, struct err *e)
{
    *ttl_s = -1;
    if (strcmp(word, "default") != 0 && duration_parse(word, ttl_s) < 0)
        return err_set(e, -EINVAL, "ttl \"%s\": a number of seconds, 10m, 2h, 1d, 0 for never, or default", word);
    return 0;
}

static int verb_ttl(struct session *s, const char *word, struct waiter *w, struct err *e)
{
    int64_t ttl_s;
    struct workspace *ws;

    if (parse_ttl(word, &ttl_s, e) < 0)
        return -EINVAL;
    ws = session_workspace(&s->node.pub);
    atomic_store(&ws->ttl_s, ttl_s);
    return changed(ws, w, e);
}

/* ── the table ───────────────────────────────────────────────────────────────────────────── */

enum verb_word { WORD_NONE, WORD_MAY, WORD_MUST };

static const struct verb {
    const char    *name;
    enum verb_word takes;
    const char    *only;  /* the one word that may follow, NULL: the verb judges */
    bool           knows; /* makes the session known */
    int          (*run)(struct session *s, const char *word, struct waiter *w, struct err *e);
} verbs[] = {
    { "provision", WORD_MAY, "nowait", true, verb_provision },
    { "close", WORD_MAY, "force", false, verb_close },
    { "destroy", WORD_MAY, "force", false, verb_destroy },
    { "fresh", WORD_NONE, NULL, true, verb_fresh },
    { "forget", WORD_NONE, NULL, false, verb_forget },
    { "touch", WORD_NONE, NULL, true, verb_touch },
    { "pin", WORD_NONE, NULL, true, verb_pin },
    { "unpin", WORD_NONE, NULL, true, verb_unpin },
    { "ttl", WORD_MUST, NULL, true, verb_ttl },
};

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < array_size(verbs); i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

static int check_word(const struct verb *v, const char *word, struct err *e)
{
    if (v->takes == WORD_MUST && !*word)
        return err_set(e, -EINVAL, "%s needs a word behind it", v->name);
    if (*word && (v->takes == WORD_NONE || (v->only && strcmp(word, v->only) != 0)))
        return err_set(e, -EINVAL, "%s takes no \"%s\"", v->name, word);
    return 0;
}

/* Finds the verb of a line and judges its form. */
static int parse_line(const char *line, struct verb_words *words, const struct verb **v, struct err *e)
{
    int64_t ttl_s;
    int r = verb_split(line, words, e);

    if (r < 0)
        return r;
    *v = find_verb(words->verb);
    if (!*v)
        return err_set(e, -EINVAL,
                       "unknown verb \"%s\" (there are provision, close, destroy, fresh, forget, touch, pin, unpin "
                       "and ttl)", words->verb);
    r = check_word(*v, words->word, e);
    if (r == 0 && (*v)->takes == WORD_MUST)
        r = parse_ttl(words->word, &ttl_s, e);
    return r;
}

int session_verb_check(const char *line, struct err *e)
{
    struct verb_words words;
    const struct verb *v;

    return parse_line(line, &words, &v, e);
}

static int run_line(struct session *s, const char *line, struct waiter *w, struct err *e)
{
    struct verb_words words;
    const struct verb *v;
    int r = parse_line(line, &words, &v, e);

    if (r == 0 && v->knows && session_know(s) < 0)
        r = err_set(e, -ENOENT, "this session was forgotten: open its directory again");
    return r < 0 ? r : v->run(s, words.word, w, e);
}

/* A failure that the workspace itself keeps goes when the workspace is ready; the session's own copy
 * would stay. */
static bool workspace_keeps(struct place *session, const struct err *e)
{
    struct workspace *ws = session_workspace(session);
    bool same;

    pthread_mutex_lock(&ws->lock);
    same = ws->failure && strcmp(ws->failure->text, e->text) == 0;
    pthread_mutex_unlock(&ws->lock);
    workspace_unref(ws);
    return same;
}

int session_verb(struct place *session, const struct caller *who, const char *line, struct waiter *w, struct err *e)
{
    struct session *s = session_of(session);
    struct err own;
    int r;

    (void)who; /* who may write here may run every verb */
    err_clear(&own);
    session_fail(s, NULL);
    r = run_line(s, line, w, &own);
    err_escape(&own);
    if (r < 0 && !workspace_keeps(session, &own))
        session_fail(s, &own);
    if (r < 0 && e)
        *e = own;
    return r;
}

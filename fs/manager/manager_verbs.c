// SPDX-License-Identifier: Apache-2.0
/* The manager's `ctl`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"
#include "fs/manager/verbs.h"

static int verb_close(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    const struct close_request req = { .why = CLOSE_ASKED };
    struct workspace *ws;
    int r;

    pthread_mutex_lock(&m->names_lock);
    ws = workspace_find_locked(m, word);
    if (ws)
        workspace_ref(ws);
    pthread_mutex_unlock(&m->names_lock);
    if (!ws)
        return err_set(e, -ENOENT, "there is no workspace \"%s\"", word);
    r = workspace_close(ws, &req, w, e);
    workspace_unref(ws);
    return r;
}

static int verb_close_all(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    const struct close_request req = { .why = CLOSE_ASKED };

    (void)word;
    return close_many(m, &req, false, w, e);
}

static int verb_sweep(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return sweeper_sweep(m, w, e);
}

/* A verb that fs/ or main carries out, on the pool as every hook. */
struct errand {
    struct task     task; /* first */
    struct manager *manager;
    struct list     waiters; /* wait_lock */
    int           (*run)(struct manager *m);
};

static void task_errand(struct task *t)
{
    struct errand *a = container_of(t, struct errand, task);
    struct manager *m = a->manager;

    waiters_finish(m, &a->waiters, a->run(m));
    free(a);
    manager_job_end(m);
}

static int send_errand(struct manager *m, int (*run)(struct manager *m), struct waiter *w, struct err *e)
{
    struct errand *a = calloc(1, sizeof(*a));

    if (!a)
        return err_set(e, -ENOMEM, "out of memory");
    a->manager = m;
    a->run = run;
    a->task.run = task_errand;
    list_init(&a->waiters);
    manager_job_begin(m);
    waiters_add(m, &a->waiters, w);
    pool_add(m->pool, &a->task);
    return MANAGER_WAIT;
}

static int run_reload(struct manager *m)
{
    struct err e;
    int r;

    err_clear(&e);
    r = m->hooks.reload ? m->hooks.reload(m->hooks_arg, &e) : -EOPNOTSUPP;
    if (r < 0)
        log_warning("reload: %s", e.code ? e.text : strerror(-r));
    return r;
}

static int verb_reload(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return send_errand(m, run_reload, w, e);
}

static int run_detach(struct manager *m)
{
    if (!m->hooks.detach)
        return -EOPNOTSUPP;
    m->hooks.detach(m->hooks_arg);
    return 0;
}

static int verb_detach(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    (void)word;
    return send_errand(m, run_detach, w, e);
}

static int verb_log_level(struct manager *m, const char *word, struct waiter *w, struct err *e)
{
    int level = log_level_parse(word);

    (void)w;
    if (level < 0)
        return err_set(e, -EINVAL, "log-level \"%s\": error, warning, info or debug", word);
    log_set_level((enum log_level)level);
    scoped_lock(&m->config->lock); /* `config` shows what is in force */
    m->config->log_level = level;
    return 0;
}

static const struct verb {
    const char *name;
    bool        takes_word;
    int       (*run)(struct manager *m, const char *word, struct waiter *w, struct err *e);
} verbs[] = {
    { "close", true, verb_close },      { "close-all", false, verb_close_all },
    { "sweep", false, verb_sweep },     { "reload", false, verb_reload },
    { "detach", false, verb_detach },   { "log-level", true, verb_log_level },
};

/* The index of a line's verb, its form judged; -EINVAL. */
static int parse_line(const char *line, struct verb_words *words, struct err *e)
{
    int r = verb_split(line, words, e);

    if (r < 0)
        return r;
    for (size_t i = 0; i < array_size(verbs); i++) {
        if (strcmp(verbs[i].name, words->verb) != 0)
            continue;
        if (verbs[i].takes_word != (*words->word != '\0'))
            return err_set(e, -EINVAL, "%s takes %s word behind it", words->verb,
                           verbs[i].takes_word ? "one" : "no");
        return (int)i;
    }
    return err_set(e, -EINVAL, "unknown verb \"%s\" (there are close ID, close-all, sweep, reload, detach and "
                   "log-level LEVEL)", words->verb);
}

int manager_verb_check(const char *line, struct err *e)
{
    struct verb_words words;
    int i = parse_line(line, &words, e);

    return i < 0 ? i : 0;
}

int manager_verb(struct manager *m, const struct caller *who, const char *line, struct waiter *w, struct err *e)
{
    struct verb_words words;
    int i = parse_line(line, &words, e);

    (void)who;
    return i < 0 ? i : verbs[i].run(m, words.word, w, e);
}

// SPDX-License-Identifier: Apache-2.0
/* `setup` of [sandbox]: a command that runs once in each new sandbox, as a job of that name in the session
 * whose job came first, before any other job there.
 *
 *     WANTED ──a job comes──> RUNS ──exit 0──> DONE: those that wait run, the job is removed
 *        └──────────any other end──────┘       those that wait fail with its last lines, it stays
 *
 * What has been done in which guest is written down in <state_dir>/jobs/<workspace>.setup, a line of two
 * words: the guest's instance, and "done" or the job's key. A job's key is there before the job is. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/config/config.h"
#include "fs/jobs/internal.h"

#define SETUP_NAME  "setup"
#define WORD_DONE   "done"
#define TAIL_BYTES  240 /* of its output, in the sentence for those that waited */
#define MARK_NAME   128
#define MARK_BYTES  (2 * KEY_HEX + 2)

int setup_init(struct jobs *js, struct err *e)
{
    const struct config_pair *p = config_pair_find(js->config->pairs, "sandbox", "setup");

    if (p)
        js->setup = p->value;
    return !p || manager_runs_jobs(js->manager) ? 0
                                                : config_pair_refuse(p, "sandbox", -EINVAL, "the backend runs no jobs", e);
}

/* ── the mark ────────────────────────────────────────────────────────────────────────────── */

static void hex_of(const struct link_id *id, char hex[KEY_HEX])
{
    for (int i = 0; i < LINK_ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", id->b[i]);
}

static void mark_name(const struct guest *g, const char *behind, char name[MARK_NAME])
{
    snprintf(name, MARK_NAME, "%s.setup%s", workspace_id(g->ws), behind);
}

/* `word`: what is said of this guest, which is up. */
static int mark_write(struct guest *g, const char *word)
{
    struct link_id instance;
    char name[MARK_NAME], new_name[MARK_NAME], hex[KEY_HEX], text[MARK_BYTES + 1];
    int n, dir = g->jobs->dir_fd;

    mark_name(g, "", name);
    mark_name(g, ".new", new_name);
    guest_up(g, &instance);
    hex_of(&instance, hex);
    n = snprintf(text, sizeof(text), "%s %s\n", hex, word);
    cleanup_close int fd = openat(dir, new_name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if (write(fd, text, (size_t)n) != n)
        return -EIO;
    return renameat(dir, new_name, dir, name) < 0 ? -errno : 0;
}

/* False: nothing is known of this guest. */
static bool mark_read(const struct guest *g, const struct link_id *instance, char word[KEY_HEX])
{
    char name[MARK_NAME], hex[KEY_HEX], own[KEY_HEX], text[MARK_BYTES + 1];

    mark_name(g, "", name);
    cleanup_close int fd = openat(g->jobs->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n < 0)
        return false;
    text[n] = '\0';
    hex_of(instance, own);
    return sscanf(text, "%32s %32s", hex, word) == 2 && strcmp(hex, own) == 0;
}

void setup_forget(struct guest *g)
{
    char name[MARK_NAME];

    if (!g->jobs->setup)
        return;
    mark_name(g, "", name);
    unlinkat(g->jobs->dir_fd, name, 0);
}

/* ── what an earlier life has left ───────────────────────────────────────────────────────── */

/* The job of a key, referenced; NULL. A pass over all of them, once in a daemon's life for a guest that
 * was being set up when it began. */
static struct job *job_of(struct jobs *js, const char *hex)
{
    scoped_lock(&js->lock);

    for (struct table_link *l = NULL; (l = table_next(&js->sessions, l));)
        list_for_each(pos, &container_of(l, struct job_session, by_path)->jobs) {
            struct job *j = container_of(pos, struct job, in_session);
            if (strcmp(j->hex, hex) != 0)
                continue;
            job_ref(j);
            return j;
        }
    return NULL;
}

static void set_state(struct guest *g, enum guest_setup state, const struct link_id *key)
{
    scoped_lock(&g->lock);

    g->setup = state;
    if (key)
        g->setup_key = *key;
}

/* The end of a job that was found: good, bad, or it is still to come. */
static enum guest_setup state_after(struct job *j)
{
    scoped_lock(&j->lock);

    if (j->state != JOB_ENDED)
        return SETUP_RUNS;
    return j->rec.kind == LINK_END_EXITED && j->rec.code == 0 ? SETUP_DONE : SETUP_WANTED;
}

void setup_look(struct guest *g, const struct link_id *instance)
{
    char word[KEY_HEX];
    enum guest_setup state;
    struct job *j;

    if (!g->jobs->setup || !mark_read(g, instance, word))
        return;
    if (strcmp(word, WORD_DONE) == 0) {
        set_state(g, SETUP_DONE, NULL);
        return;
    }
    j = job_of(g->jobs, word);
    if (!j)
        return;
    /* In this order: whoever ends it now finds us, or we find that it has ended. */
    atomic_store(&j->sets_up, true);
    set_state(g, SETUP_RUNS, &j->key);
    state = state_after(j);
    if (state != SETUP_RUNS) /* else setup_ended() says, which it may have done by now */
        set_state(g, state, NULL);
    job_unref(j);
}

/* ── which jobs may run ──────────────────────────────────────────────────────────────────── */

/* What an earlier life has asked for runs already, or is lost. */
bool setup_lets_in_locked(const struct guest *g, const struct job *j)
{
    return g->setup == SETUP_DONE || atomic_load(&j->sets_up) || j->taken_over;
}

bool setup_claim_locked(struct guest *g)
{
    if (g->setup != SETUP_WANTED || !g->was_up || g->stopping || g->leaving || g->gone)
        return false;
    g->setup = SETUP_RUNS;
    memset(&g->setup_key, 0, sizeof(g->setup_key));
    return true;
}

/* ── beginning ───────────────────────────────────────────────────────────────────────────── */

/* The session whose job waits first, referenced. NULL: none waits any more, and setup is as it was. */
static struct place *take_place(struct guest *g)
{
    scoped_lock(&g->lock);
    struct place *p;

    if (list_empty(&g->waiting)) {
        g->setup = SETUP_WANTED;
        return NULL;
    }
    p = container_of(g->waiting.next, struct job, in_guest)->place;
    place_ref(p);
    return p;
}

static bool remove_ended(struct jobs *js, struct place *p)
{
    struct job *j;
    bool ended;

    if (jobs_find(js, p, SETUP_NAME, &j) < 0)
        return true;
    ended = job_state(j) == JOB_ENDED;
    job_unref(j);
    return ended && jobs_remove(js, p, SETUP_NAME, NULL) == 0;
}

/* In place of the one that failed before; where somebody has a job of that name, with another name. */
static int make_job(struct jobs *js, struct place *p, struct job **out, struct err *e)
{
    int r = jobs_make(js, p, SETUP_NAME, out, e);

    if (r == -EEXIST)
        r = jobs_make(js, p, remove_ended(js, p) ? SETUP_NAME : NULL, out, e);
    return r;
}

static int set_text(struct job *j, enum job_text which, char *text)
{
    struct record_text *t = &j->rec.texts[which];

    if (!text)
        return -ENOMEM;
    scoped_lock(&j->lock);
    free(t->text);
    *t = (struct record_text){ .text = text, .size = strlen(text), .changed_ms = wall_ms() };
    return 0;
}

static int set_texts(struct job *j, struct err *e)
{
    int64_t limit_s = j->jobs->config->provision_timeout_s;
    char *limit;
    int r = set_text(j, JOB_CMD, strdup(j->jobs->setup));

    if (r == 0 && limit_s > 0)
        r = set_text(j, JOB_TIMEOUT, asprintf(&limit, "%lld", (long long)limit_s) < 0 ? NULL : limit);
    return r < 0 ? err_set(e, r, "out of memory") : 0;
}

static int start_job(struct guest *g, struct job *j, struct err *e)
{
    int r = set_texts(j, e);

    if (r < 0)
        return r;
    r = mark_write(g, j->hex);
    if (r < 0)
        return err_sys(e, r, "the sandbox's setup cannot be written down in the state directory");
    atomic_store(&j->sets_up, true);
    set_state(g, SETUP_RUNS, &j->key);
    workspace_step(g->ws, "setup", "runs");
    return job_start_in(j, g, e);
}

static int begin(struct guest *g, struct place *p, struct err *e)
{
    struct job *j;
    int r = make_job(g->jobs, p, &j, e);

    if (r < 0)
        return r;
    r = start_job(g, j, e);
    if (r < 0)
        jobs_remove(g->jobs, p, job_name(j), NULL);
    job_unref(j);
    return r;
}

void setup_begin(struct guest *g)
{
    struct place *p = take_place(g);
    struct err e = { 0 };

    if (!p)
        return;
    if (begin(g, p, &e) < 0) {
        set_state(g, SETUP_WANTED, NULL);
        guest_fail_waiting(g, &e, false);
    }
    place_unref(p);
}

/* ── its end ─────────────────────────────────────────────────────────────────────────────── */

/* The guest that this job sets up, referenced; NULL: it is gone. */
static struct guest *guest_of(struct job *j)
{
    scoped_lock(&j->jobs->lock);

    list_for_each(pos, &j->jobs->guests) {
        struct guest *g = container_of(pos, struct guest, all);
        scoped_lock(&g->lock);
        if (g->setup != SETUP_RUNS || memcmp(&g->setup_key, &j->key, sizeof(j->key)) != 0)
            continue;
        guest_ref(g);
        return g;
    }
    return NULL;
}

/* The end of what it has printed, as one line. */
static void read_tail(struct job *j, char tail[TAIL_BYTES + 1])
{
    uint64_t start, end, at;
    ssize_t n;
    char *line;

    job_log_span(j, &start, &end);
    at = end - start > TAIL_BYTES ? end - TAIL_BYTES : start;
    n = job_log_read(j, at, tail, TAIL_BYTES);
    tail[n > 0 ? n : 0] = '\0';
    for (size_t len = strlen(tail); len && strchr("\r\n\t ", tail[len - 1]); len--)
        tail[len - 1] = '\0';
    line = at > start ? strchr(tail, '\n') : NULL; /* the first one is not whole */
    if (line)
        memmove(tail, line + 1, strlen(line + 1) + 1);
    for (line = tail; (line = strchr(line, '\n'));)
        *line = ';';
}

static void say_failed(struct job *j, struct err *e)
{
    char tail[TAIL_BYTES + 1] = "";
    const struct record *r = &j->rec; /* of an ended job: it does not change */
    const char *colon;

    read_tail(j, tail);
    colon = tail[0] ? ": " : "";
    if (r->timed_out)
        err_set(e, -ETIMEDOUT, "the sandbox's setup did not end within provision_timeout%s%s", colon, tail);
    else if (r->kind == LINK_END_EXITED)
        err_set(e, -EIO, "the sandbox's setup ended with %d%s%s", r->code, colon, tail);
    else if (r->kind == LINK_END_SIGNALED)
        err_set(e, -EIO, "the sandbox's setup was ended by signal %d%s%s", r->code, colon, tail);
    else
        err_set(e, -EIO, "the sandbox's setup could not run: %s", r->text ? r->text : strerror(-r->code));
}

/* False: it is being closed, and those that wait are asked of the next one. */
static bool settle(struct guest *g, enum guest_setup state)
{
    scoped_lock(&g->lock);

    g->setup = state;
    return !g->stopping && !g->gone;
}

static void end_good(struct guest *g, struct job *j)
{
    struct job *named;

    if (mark_write(g, WORD_DONE) < 0)
        log_warning("the setup of a sandbox cannot be written down: it may run again after a restart");
    workspace_step(g->ws, "setup", "done");
    workspace_forget_errors(g->ws);
    if (settle(g, SETUP_DONE))
        guest_run_waiting(g);
    if (jobs_find(j->jobs, j->place, job_name(j), &named) < 0)
        return;
    if (named == j)
        jobs_remove(j->jobs, j->place, job_name(j), NULL);
    job_unref(named);
}

static void end_bad(struct guest *g, struct job *j)
{
    struct err e = { 0 };

    say_failed(j, &e);
    if (!settle(g, SETUP_WANTED))
        return;
    workspace_step(g->ws, "setup", e.text);
    session_set_error(j->place, &e);
    guest_fail_waiting(g, &e, false);
}

void setup_ended(struct job *j)
{
    struct guest *g = guest_of(j);

    if (!g)
        return;
    if (state_after(j) == SETUP_DONE)
        end_good(g, j);
    else
        end_bad(g, j);
    guest_unref(g);
}

/* Nothing tries again by itself: it may be the setup that ends the sandbox. */
bool setup_lost(struct guest *g, struct err *e)
{
    scoped_lock(&g->lock);

    if (g->setup != SETUP_RUNS || g->stopping)
        return false;
    err_set(e, -EIO, "the sandbox ended while its setup ran in it");
    return true;
}

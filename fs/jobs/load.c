// SPDX-License-Identifier: Apache-2.0
/* What an earlier life has left in <state_dir>/jobs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"

/* The job whose file this is. */
static bool key_of(const char *name, struct link_id *key, char hex[KEY_HEX])
{
    if (strspn(name, "0123456789abcdef") != KEY_HEX - 1 || name[KEY_HEX - 1] != '.')
        return false;
    snprintf(hex, KEY_HEX, "%.*s", KEY_HEX - 1, name);
    for (int i = 0; i < LINK_ID_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        key->b[i] = (uint8_t)byte;
    }
    return true;
}

static bool is_record(const char *name) { return strcmp(name + KEY_HEX - 1, ".record") == 0; }

/* Files without a record: of a job that was made and never started, or was being removed. */
static void remove_orphan(struct jobs *js, const char *hex)
{
    char name[KEY_HEX + 8];

    snprintf(name, sizeof(name), "%s.record", hex);
    if (faccessat(js->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        jobs_remove_files(js, hex);
}

/* By the time of their end, since that is the order in which they are removed. */
static int by_end(const void *a, const void *b)
{
    const struct job *const *x = a, *const *y = b;
    int64_t p = (*x)->rec.ended ? (*x)->rec.end_ms : INT64_MAX, q = (*y)->rec.ended ? (*y)->rec.end_ms : INT64_MAX;

    return (p > q) - (p < q);
}

/* A job of a record; NULL when the file is none. */
static struct job *load_job(struct jobs *js, const char *name)
{
    char hex[KEY_HEX];
    struct link_id key;
    struct record r;
    struct job *j;
    int result;

    if (!key_of(name, &key, hex))
        return NULL;
    if (!is_record(name)) {
        remove_orphan(js, hex);
        return NULL;
    }
    result = record_read(js->dir_fd, hex, &r);
    if (result == -ENOENT)
        jobs_remove_files(js, hex); /* its start was not accepted */
    else if (result < 0)
        log_warning("the record of job %s is damaged and left out: %s", hex, strerror(-result));
    j = result == 0 ? job_new(js) : NULL;
    if (!j) {
        record_finish(&r);
        return NULL;
    }
    j->rec = r;
    j->state = r.ended ? JOB_ENDED : JOB_STARTING;
    j->ending = j->recorded = r.ended;
    j->accepted = true;
    j->in_record = true;
    atomic_store(&j->has_files, true);
    job_set_key(j, &key);
    atomic_store(&j->in.has_file, true);
    if (r.ended)
        job_stdin_remove(j);
    if (spool_open(&j->spool, js->dir_fd, j->hex) < 0)
        log_warning("the output of job %s cannot be read", hex);
    spool_close(&j->spool);
    return j;
}

/* The session of a job, made known again if need be. */
static struct place *place_of(struct jobs *js, const struct record *r)
{
    const char *names[] = { r->user, r->agent, r->session };
    struct place *p = manager_root(js->manager);

    place_ref(p);
    for (size_t i = 0; i < array_size(names); i++) {
        struct place *child = NULL;
        int found = place_lookup(p, names[i], &child);
        if (found < 0)
            found = place_make(p, names[i], &child, NULL);
        place_unref(p);
        if (found < 0)
            return NULL;
        p = child;
    }
    return p;
}

/* Before anything can be closed for being idle, or make room: one that may run counts. Why it cannot is found out
 * once more when it is taken over. */
static void count(struct jobs *js, struct job *j)
{
    j->place = place_of(js, &j->rec);
    if (j->place && session_job_begin(j->place, true, &j->ws, NULL) < 0)
        j->ws = NULL;
}

static int add(struct jobs *js, struct job *j)
{
    cleanup_free char *path = NULL;
    struct job_session *s;
    int r = -ENOMEM;

    if (asprintf(&path, "%s/%s/%s", j->rec.user, j->rec.agent, j->rec.session) < 0)
        return -ENOMEM;
    pthread_mutex_lock(&js->lock);
    s = jobs_session_locked(js, path, true);
    j->share = jobs_share_locked(js, j->rec.user);
    if (s && j->share && !jobs_named_locked(s, job_name(j)))
        r = jobs_add_locked(s, j);
    pthread_mutex_unlock(&js->lock);
    if (r < 0)
        return r;
    job_charge(j, spool_kept(&j->spool));
    job_record_count(j);
    job_texts_settle(j);
    if (j->state == JOB_ENDED)
        jobs_keep(j);
    else
        count(js, j);
    return 0;
}

static int add_all(struct jobs *js, struct job **all, size_t n)
{
    int r = 0;

    if (n > 1)
        qsort(all, n, sizeof(all[0]), by_end);
    for (size_t i = 0; i < n; i++) {
        if (r == 0)
            r = add(js, all[i]);
        job_unref(all[i]);
    }
    return r;
}

int jobs_load(struct jobs *js, struct err *e)
{
    int fd = openat(js->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);
    cleanup_free struct job **all = NULL;
    size_t n = 0, room = 0;
    int r;

    if (!d)
        return err_sys(e, -errno, "the jobs in %s cannot be read", manager_state_dir(js->manager));
    for (struct dirent *entry; (entry = readdir(d));) {
        struct job *j = load_job(js, entry->d_name);
        if (!j)
            continue;
        if (n == room) {
            struct job **more = realloc(all, (room = room * 2 + 64) * sizeof(*all));
            if (!more) {
                job_unref(j);
                break;
            }
            all = more;
        }
        all[n++] = j;
    }
    r = add_all(js, all, n);
    return r < 0 ? err_sys(e, r, "the jobs of an earlier run cannot be loaded") : 0;
}

/* ── taking over ─────────────────────────────────────────────────────────────────────────── */

static void take_over(struct job *j)
{
    struct err e = { 0 };
    int r = 0;

    j->taken_over = j->rec.asked;
    if (!j->place)
        r = err_set(&e, -ENOENT, "the session is not known any more");
    else if (!j->ws)
        r = session_job_begin(j->place, true, &j->ws, &e);
    if (r == 0 && j->rec.asked && j->rec.workspace && strcmp(j->rec.workspace, workspace_id(j->ws)) != 0)
        r = err_set(&e, -ENOENT, "the session has another workspace now");
    job_stdin_load(j);
    if (r < 0)
        job_fail(j, LINK_END_LOST, &e);
    else
        job_enter_later(j);
}

/* References to what has not ended, NULL-terminated. No request has been served yet. */
static struct job **unended(struct jobs *js)
{
    scoped_lock(&js->lock);
    struct job **all = NULL;
    size_t n = 0;

    for (struct table_link *l = NULL; (l = table_next(&js->sessions, l));)
        list_for_each(pos, &container_of(l, struct job_session, by_path)->jobs) {
            struct job *j = container_of(pos, struct job, in_session);
            struct job **more = job_state(j) == JOB_STARTING ? realloc(all, (n + 2) * sizeof(*all)) : NULL;
            if (!more)
                continue;
            all = more;
            all[n++] = j;
            all[n] = NULL;
            job_ref(j);
        }
    return all;
}

void jobs_take_over(struct jobs *js)
{
    cleanup_free struct job **all = unended(js);

    for (size_t i = 0; all && all[i]; i++) {
        take_over(all[i]);
        job_unref(all[i]);
    }
}

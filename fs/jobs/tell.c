// SPDX-License-Identifier: Apache-2.0
/* What a job tells of itself: `exit` and `status`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/jobs/internal.h"
#include "fs/manager/json.h"

/* One line whatever a sandbox wrote into it. */
static void tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

/* job.lock held. */
static int exit_line_locked(const struct job *j, char **text)
{
    const struct record *r = &j->rec;
    const char *why = r->text ? r->text : "";

    switch (r->kind) {
    case LINK_END_EXITED:
        return asprintf(text, "%d", r->code);
    case LINK_END_SIGNALED:
        return asprintf(text, "signal %d", r->code);
    default:
        return asprintf(text, "error %s", *why ? why : strerror(-r->code));
    }
}

char *job_exit_text(struct job *j, size_t *size, int64_t *changed_ms)
{
    char *line = NULL, *text = NULL;
    int n;

    pthread_mutex_lock(&j->lock);
    n = j->state == JOB_ENDED ? exit_line_locked(j, &line) : -1;
    *changed_ms = j->rec.end_ms;
    pthread_mutex_unlock(&j->lock);
    if (n < 0)
        return NULL;
    tame(line);
    n = asprintf(&text, "%s\n", line);
    free(line);
    if (n < 0)
        return NULL;
    *size = (size_t)n;
    return text;
}

static const char *state_name(const struct job *j)
{
    static const char *const names[] = { "new", "starting", "running", "ended" };

    return j->state == JOB_ENDED && j->rec.kind >= LINK_END_FAILED ? "failed" : names[j->state];
}

static void put_or_null(struct json_object *o, const char *key, bool there, int64_t n)
{
    json_object_object_add(o, key, there ? json_object_new_int64(n) : NULL);
}

char *job_status_text(struct job *j, size_t *size, int64_t *changed_ms)
{
    struct json_object *o = json_object_new_object();
    const struct record *r = &j->rec;
    char *text = NULL;
    int n;

    pthread_mutex_lock(&j->lock);
    bool ended = j->state == JOB_ENDED;
    json_put_text(o, "state", state_name(j));
    put_or_null(o, "pid", r->pid, r->pid);
    json_put_time(o, "start", r->start_ms);
    json_put_time(o, "end", ended ? r->end_ms : 0);
    put_or_null(o, "exit_code", ended && r->kind == LINK_END_EXITED, r->code);
    put_or_null(o, "signal", ended && r->kind == LINK_END_SIGNALED, r->code);
    json_put_bool(o, "timed_out", ended && r->timed_out);
    json_put_text_or_null(o, "error", ended && r->kind >= LINK_END_FAILED ? (r->text ? r->text : strerror(-r->code))
                                                                             : NULL);
    *changed_ms = ended ? r->end_ms : wall_ms();
    pthread_mutex_unlock(&j->lock);
    json_put_int(o, "stdout_bytes", (int64_t)atomic_load(&j->spool.size[0]));
    json_put_int(o, "stderr_bytes", (int64_t)atomic_load(&j->spool.size[1]));
    json_put_int(o, "dropped_bytes", (int64_t)spool_dropped(&j->spool));
    n = asprintf(&text, "%s\n", json_line(o));
    json_object_put(o);
    *size = n < 0 ? 0 : (size_t)n;
    return n < 0 ? NULL : text;
}

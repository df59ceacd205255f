// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <poll.h>
#include <string.h>

#include "files.h"
#include "lines.h"
#include "table.h"
#include "values.h"
#include "verb.h"
#include "wsm.h"

#define LOOK_MS 50 /* between two looks while it neither provisions nor has ended */

struct provision_options {
    bool nowait, quiet;
};

static const struct option_row options[] = {
    { 'n', "nowait", NULL, "only begin", OPTION_FLAG, offsetof(struct provision_options, nowait) },
    { 'q', "quiet", NULL, "no lines about its progress", OPTION_FLAG, offsetof(struct provision_options, quiet) },
    {0},
};

/* ── progress ────────────────────────────────────────────────────────────────────────────── */

/* What was printed of it, so that a stream opened again goes on behind that. */
struct progress {
    bool   quiet;
    size_t seen, at; /* lines: printed or to be left out; of this opening */
};

static void print_progress(const char *line, void *arg)
{
    struct progress *pr = arg;
    struct json_object *o;
    int64_t total_bytes;

    if (++pr->at <= pr->seen)
        return;
    pr->seen = pr->at;
    o = pr->quiet ? NULL : json_tokener_parse(line);
    if (!o)
        return;
    total_bytes = value_number(o, "total_bytes");
    printf("%s: ", value_text(o, "step"));
    text_print(value_text(o, "text"));
    if (total_bytes > 0)
        printf(" (%lld of %lld MB)", (long long)(value_number(o, "done_bytes") / 1000000),
               (long long)(total_bytes / 1000000));
    putchar('\n');
    fflush(stdout);
    json_object_put(o);
}

/* Follows it to its end, which comes at once unless it provisions. */
static int follow(const struct place *p, struct progress *pr)
{
    cleanup_close int fd = file_open(p->dir, "progress", O_RDONLY | O_NONBLOCK);
    struct lines l = {0};
    int r;

    if (fd < 0)
        return place_complain(p, "progress", -fd);
    pr->at = 0;
    while ((r = lines_read(&l, fd, print_progress, pr)) > 0)
        wait_readable(fd);
    lines_free(&l);
    return r < 0 ? place_complain(p, "progress", -r) : 0;
}

/* ── provisioning ────────────────────────────────────────────────────────────────────────── */

static bool has_error(const struct place *p)
{
    cleanup_free char *words = file_read_line(p->dir, "error");

    return words && *words;
}

/* 1: ready; 0: not yet; -1: it failed and that was said. */
static int look(const struct place *p)
{
    cleanup_free char *state = session_state(p);

    if (!state)
        return -1;
    if (strcmp(state, "ready") == 0)
        return 1;
    if (strcmp(state, "failed") == 0 || (strcmp(state, "absent") == 0 && has_error(p)))
        return session_complain(p, "provision", EIO);
    return 0;
}

/* It is asked for without waiting, and waited for with poll on its progress. A close that is still
 * going on comes first; then it is asked for again. */
static int provision(const struct place *p, struct progress *pr)
{
    int r;

    while ((r = look(p)) == 0) {
        if (follow(p, pr) < 0)
            return -1;
        r = look(p);
        if (r != 0)
            break;
        wait_ms(LOOK_MS);
        cleanup_free char *state = session_state(p);
        if (state && strcmp(state, "absent") == 0 && session_verb(p, "provision nowait", AGAIN_WRITE) < 0)
            return -1;
    }
    return r;
}

/* Whether it is ready already; else what earlier attempts said is counted as printed. */
static bool was_ready(const struct place *p, struct progress *pr)
{
    cleanup_free char *state = session_state(p);
    struct progress old = { .quiet = true };

    if (state && strcmp(state, "ready") == 0)
        return true;
    if (state && strcmp(state, "provisioning") != 0 && follow(p, &old) == 0)
        pr->seen = old.seen;
    return false;
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct provision_options *o = given;
    struct progress pr = { .quiet = o->quiet };
    cleanup_place struct place p;
    bool ready;

    (void)self;
    (void)n_words;
    if (session_find(words[0], &p) < 0)
        return EXIT_FAILURE;
    ready = was_ready(&p, &pr);
    if (session_verb(&p, "provision nowait", AGAIN_WRITE) < 0)
        return EXIT_FAILURE;
    if (o->nowait || ready)
        return EXIT_SUCCESS;
    return provision(&p, &pr) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command provision_commands[] = {
    { .name = "provision", .words = "PATH", .summary = "Make a workspace ready, and show how that goes",
      .options = options, .options_size = sizeof(struct provision_options), .min_words = 1, .max_words = 1,
      .run = run },
    {0},
};

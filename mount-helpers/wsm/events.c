// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <poll.h>
#include <string.h>

#include "files.h"
#include "lines.h"
#include "place.h"
#include "table.h"
#include "values.h"
#include "wsm.h"

struct events_options {
    bool follow, json;
};

static const struct option_row options[] = {
    { 'f', "follow", NULL, "go on until interrupted; there is nothing else to do, so it may be left out",
      OPTION_FLAG, offsetof(struct events_options, follow) },
    { 0, "json", NULL, "the lines as the mount gives them", OPTION_FLAG, offsetof(struct events_options, json) },
    {0},
};

/* One mount's events. */
struct source {
    char        *point;
    int          fd;     /* -1: ended */
    struct lines lines;
    bool         json, named; /* named: lines say of which mount they are */
};

struct sources {
    struct source *list;
    size_t n;
};

/* ── a line ──────────────────────────────────────────────────────────────────────────────── */

static void print_names(struct json_object *o)
{
    static const char *const keys[] = {"user", "agent", "session"};

    for (size_t i = 0; i < array_size(keys); i++) {
        const char *name = value_text(o, keys[i]);
        if (!*name)
            return;
        fputs(i ? "/" : "  ", stdout);
        text_print(name);
    }
}

static void print_event(const char *line, void *arg)
{
    struct source *s = arg;
    struct json_object *o = s->json ? NULL : json_tokener_parse(line);
    const char *text = value_text(o, "text");

    if (o) {
        printf("%s%s%s  %-14s", s->named ? s->point : "", s->named ? "  " : "", value_text(o, "time"),
               value_text(o, "event"));
        print_names(o);
        if (*text)
            fputs("  ", stdout), text_print(text);
        putchar('\n');
    } else {
        puts(line);
    }
    json_object_put(o);
}

/* ── all of them ─────────────────────────────────────────────────────────────────────────── */

static int add_source(struct sources *all, const char *path)
{
    cleanup_place struct place p;
    int fd;

    if (place_find(path, &p) < 0)
        return -1;
    cleanup_free char *name = text_format("%s/.wsm/events", strcmp(p.point, "/") == 0 ? "" : p.point);
    fd = file_open(AT_FDCWD, name, O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return complain("%s: %s", name, strerror(-fd));
    all->list = more_memory(all->list, all->n + 1, sizeof(*all->list));
    all->list[all->n++] = (struct source){ .point = text_format("%s", p.point), .fd = fd };
    return 0;
}

static int add_all(struct sources *all)
{
    struct mounts m;
    int r = mounts_read(&m);

    if (r == 0 && m.n == 0)
        r = complain("no wsmfs is mounted here");
    for (size_t i = 0; r == 0 && i < m.n; i++)
        if (strcmp(m.list[i].root, "/") == 0)
            add_source(all, m.list[i].point);
    mounts_free(&m);
    return r;
}

static void end_source(struct source *s, int error)
{
    complain("%s: %s", s->point, error ? strerror(error) : "the mount has ended");
    close(s->fd);
    s->fd = -1;
}

/* Reads what there is; true as long as one may still say something. */
static bool read_sources(struct sources *all)
{
    bool more = false;

    for (size_t i = 0; i < all->n; i++) {
        struct source *s = &all->list[i];
        int r = s->fd < 0 ? 0 : lines_read(&s->lines, s->fd, print_event, s);
        if (s->fd >= 0 && r <= 0)
            end_source(s, -r);
        more |= s->fd >= 0;
    }
    fflush(stdout);
    return more && !ferror(stdout);
}

static void follow(struct sources *all)
{
    struct pollfd *p = take_memory(all->n, sizeof(*p));

    while (read_sources(all)) {
        for (size_t i = 0; i < all->n; i++)
            p[i] = (struct pollfd){ .fd = all->list[i].fd, .events = POLLIN };
        poll(p, all->n, -1);
    }
    free(p);
}

static void free_sources(struct sources *all)
{
    for (size_t i = 0; i < all->n; i++) {
        free(all->list[i].point);
        lines_free(&all->list[i].lines);
        if (all->list[i].fd >= 0)
            close(all->list[i].fd);
    }
    free(all->list);
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    const struct events_options *o = given;
    struct sources all = {0};
    int r = n_words ? 0 : add_all(&all);

    (void)self;
    for (int i = 0; r == 0 && i < n_words; i++)
        r = add_source(&all, words[i]);
    for (size_t i = 0; i < all.n; i++) {
        all.list[i].json = o->json;
        all.list[i].named = all.n > 1;
    }
    if (r == 0 && all.n)
        follow(&all);
    free_sources(&all);
    return EXIT_FAILURE; /* it ends by a signal alone */
}

const struct command events_commands[] = {
    { .name = "events", .words = "[MOUNT…]", .summary = "Show what happens, as it happens",
      .text = "Without MOUNT: in all wsmfs mounts of this machine.", .options = options,
      .options_size = sizeof(struct events_options), .min_words = 0, .max_words = -1, .run = run },
    {0},
};

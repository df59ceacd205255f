// SPDX-License-Identifier: Apache-2.0
/* What the sections of a config file mean. */
#include <errno.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

/* One run over the items. */
struct reading {
    struct config *c;
    const char *path;
    const struct ini_item *items;
    struct user_config *user; /* of the section we are in */
    bool ours;                /* [backend NAME] is this mount's */
    int  line, section_line;  /* what a sentence is about */
};

/* "/x/mine.so" is spoken of as `mine`. */
static bool is_our_backend(const struct config *c, const char *name)
{
    const char *base, *dot;

    if (!c->backend || strcmp(c->backend, name) == 0)
        return true;
    base = strrchr(c->backend, '/');
    if (!base++)
        return false;
    dot = strrchr(base, '.');
    return dot && strlen(name) == (size_t)(dot - base) && strncmp(base, name, strlen(name)) == 0;
}

/* The file says a key twice: which one was meant? */
static int refuse_twice(const struct reading *r, const struct ini_item *i, struct err *e)
{
    for (const struct ini_item *p = r->items; p != i; p = p->next)
        if (p->key && strcmp(p->key, i->key) == 0 && strcmp(p->section, i->section) == 0 &&
            strcmp(p->name ? p->name : "", i->name ? i->name : "") == 0)
            return err_set(e, -EINVAL, "%s stands in line %d already", i->key, p->line);
    return 0;
}

static int key_mount(struct reading *r, const struct ini_item *i, struct err *e)
{
    return config_apply(r->c, FROM_FILE, i->key, i->value, e);
}

static int begin_user(struct reading *r, const struct ini_item *i, struct err *e)
{
    return user_section_begin(r->c, i->name, &r->user, e);
}

static int key_user(struct reading *r, const struct ini_item *i, struct err *e)
{
    return user_key_set(r->user, i->key, i->value, e);
}

static int end_user(struct reading *r, struct err *e) { return user_section_end(r->user, e); }

static int begin_backend(struct reading *r, const struct ini_item *i, struct err *e)
{
    struct suggestion s = {.typed = i->name};
    char hint[80];

    r->ours = is_our_backend(r->c, i->name);
    if (r->ours || !r->c->known_backends || word_index(r->c->known_backends, i->name) >= 0)
        return 0;
    for (const char *const *b = r->c->known_backends; *b; b++)
        suggest_word(&s, *b);
    return err_set(e, -EINVAL, "[backend %s]: there is no such backend%s", i->name,
                   suggest_text(&s, hint, sizeof(hint)));
}

static int add_pair(struct reading *r, const struct ini_item *i, struct err *e)
{
    if (!i->value)
        return err_set(e, -EINVAL, "%s: needs a value", i->key);
    return config_pair_set(r->c, &(struct config_pair){ .section = i->section, .key = i->key, .value = i->value,
                                                        .line = i->line, .file = (char *)r->path }, e);
}

/* Another backend's section waits for the day it is this mount's. */
static int key_backend(struct reading *r, const struct ini_item *i, struct err *e)
{
    return r->ours ? add_pair(r, i, e) : 0;
}

static const struct section {
    const char *name;
    bool        named; /* [user NAME] */
    int       (*begin)(struct reading *r, const struct ini_item *i, struct err *e);
    int       (*key)(struct reading *r, const struct ini_item *i, struct err *e);
    int       (*end)(struct reading *r, struct err *e);
} sections[] = {
    {.name = "mount", .key = key_mount},
    {.name = "sandbox", .key = add_pair},
    {.name = "backend", .named = true, .begin = begin_backend, .key = key_backend},
    {.name = "user", .named = true, .begin = begin_user, .key = key_user, .end = end_user},
};

static int unknown_section(const struct ini_item *i, struct err *e)
{
    struct suggestion s = {.typed = i->section};
    char hint[80];

    for (size_t k = 0; k < array_size(sections); k++)
        suggest_word(&s, sections[k].name);
    return err_set(e, -EINVAL, "unknown section [%s]%s", i->section, suggest_text(&s, hint, sizeof(hint)));
}

/* Finds and opens the section of a header. */
static int enter(struct reading *r, const struct ini_item *i, const struct section **out, struct err *e)
{
    for (size_t k = 0; k < array_size(sections); k++) {
        const struct section *s = &sections[k];
        if (strcmp(s->name, i->section) != 0)
            continue;
        if (s->named != (i->name != NULL))
            return err_set(e, -EINVAL, s->named ? "[%s NAME] needs a name" : "[%s] takes no name", s->name);
        *out = s;
        return s->begin ? s->begin(r, i, e) : 0;
    }
    return unknown_section(i, e);
}

/* What a section lacks is said of its first line. */
static int leave(struct reading *r, const struct section *s, struct err *e)
{
    int here = r->line, result;

    if (!s || !s->end)
        return 0;
    r->line = r->section_line;
    result = s->end(r, e);
    if (result == 0)
        r->line = here;
    return result;
}

static int take(struct reading *r, const struct ini_item *i, const struct section **s, struct err *e)
{
    int result;

    r->line = i->line;
    if (!i->key) {
        result = leave(r, *s, e);
        r->section_line = i->line;
        return result < 0 ? result : enter(r, i, s, e);
    }
    result = refuse_twice(r, i, e);
    return result < 0 ? result : (*s)->key(r, i, e);
}

int sections_apply(struct config *c, const char *path, const struct ini_item *items, struct err *e)
{
    struct reading r = {.c = c, .path = path, .items = items};
    const struct section *s = NULL;
    struct err why = {0};

    for (const struct ini_item *i = items; i && !why.code; i = i->next)
        take(&r, i, &s, &why);
    if (!why.code)
        leave(&r, s, &why);
    if (why.code)
        return err_set(e, why.code, "%s:%d: %s", path, r.line, why.text);
    return mount_words_finish(c, e);
}

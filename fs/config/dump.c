// SPDX-License-Identifier: Apache-2.0
/* The effective configuration as a file that could be read again. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

#define MASK "********"

static void dump_options(FILE *out, struct config *c)
{
    for (const struct option_spec *o = config_options(); o->name; o++) {
        cleanup_free char *text = o->get(c, o);
        if (text && strcmp(o->name, "config") != 0)
            fprintf(out, "%s = %s\n", o->name, text);
    }
    for (const struct config_word *w = c->mount_words; w; w = w->next)
        fprintf(out, w->value ? "%s = %s\n" : "%s\n", w->name, w->value);
}

/* Keys that hold secrets are known by their last word. */
static bool is_secret(const char *key, size_t n)
{
    static const char *const ends[] = {"token", "password", "secret", "key"};

    for (size_t i = 0; i < array_size(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && strncasecmp(key + n - k, ends[i], k) == 0)
            return true;
    }
    return false;
}

/* K=V, separated by blanks: each has a name of its own. */
static void dump_variables(FILE *out, const char *value)
{
    const char *before = "";

    for (const char *p = value + strspn(value, " \t"); *p; p += strspn(p, " \t")) {
        int n = (int)strcspn(p, " \t"), name = (int)strcspn(p, "= \t");
        if (name < n && is_secret(p, (size_t)name))
            fprintf(out, "%s%.*s=" MASK, before, name, p);
        else
            fprintf(out, "%s%.*s", before, n, p);
        before = " ";
        p += n;
    }
    putc('\n', out);
}

static void dump_pair(FILE *out, const struct config_pair *p)
{
    fprintf(out, "%s = ", p->key);
    if (strcmp(p->key, "env") == 0)
        dump_variables(out, p->value);
    else
        fprintf(out, "%s\n", is_secret(p->key, strlen(p->key)) ? MASK : p->value);
}

static void dump_pairs(FILE *out, const struct config *c, const char *section, const char *title)
{
    bool open = false;

    for (const struct config_pair *p = c->pairs; p; p = p->next) {
        if (strcmp(p->section, section) != 0)
            continue;
        if (!open)
            fprintf(out, "\n[%s]\n", title);
        open = true;
        dump_pair(out, p);
    }
}

static void dump_user(FILE *out, const struct user_config *u)
{
    fprintf(out, "\n[user %s]\n", u->name);
    if (u->has_uid)
        fprintf(out, "uid = %u\ngid = %u\n", u->uid, u->gid);
    for (size_t i = 0; i < u->n_groups; i++)
        fprintf(out, "%s%u", i ? "," : "groups = ", u->groups[i]);
    fprintf(out, "%smode = %04o\n", u->n_groups ? "\n" : "", u->mode);
    if (u->max_live)
        fprintf(out, "max_live = %u\n", u->max_live);
}

static void dump_backend(FILE *out, const struct config *c)
{
    cleanup_free char *title = NULL;

    if (c->backend && asprintf(&title, "backend %s", c->backend) >= 0)
        dump_pairs(out, c, "backend", title);
}

char *config_dump(struct config *c)
{
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    pthread_mutex_lock(&c->lock);
    fprintf(out, "# source: %s\n# mount point: %s\n", c->source_full ? c->source_full : "",
            c->mountpoint ? c->mountpoint : "");
    if (c->config_file)
        fprintf(out, "# config file: %s\n", c->config_file);
    fputs("[mount]\n", out);
    dump_options(out, c);
    dump_pairs(out, c, "sandbox", "sandbox");
    dump_backend(out, c);
    for (const struct user_config *u = c->user_list; u; u = u->next)
        dump_user(out, u);
    pthread_mutex_unlock(&c->lock);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

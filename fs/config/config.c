// SPDX-License-Identifier: Apache-2.0
/* The configuration as a whole: making it, the source, the file, the live parts. */
#include "fs/config/config.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/log.h"
#include "fs/config/internal.h"

/* All that comes from options lies from here to the end of the struct. */
#define OPTIONS_AT offsetof(struct config, isolation)

struct config *config_create(void)
{
    struct config *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->reload, NULL);
    for (const struct option_spec *o = config_options(); o->name; o++) {
        if (o->initial && o->set(c, o, o->initial, NULL) < 0) {
            config_destroy(c);
            return NULL;
        }
    }
    return c;
}

static void pairs_free(struct config_pair *p)
{
    while (p) {
        struct config_pair *next = p->next;
        free(p->section);
        free(p->key);
        free(p->value);
        free(p->file);
        free(p);
        p = next;
    }
}

void config_destroy(struct config *c)
{
    if (!c)
        return;
    free(c->backend);
    free(c->source);
    free(c->source_full);
    free(c->mountpoint);
    free(c->config_file);
    free(c->state_dir);
    free(c->basedir);
    free(c->instance);
    free(c->fuse_opts);
    config_words_free(c->command);
    config_words_free(c->mount_words);
    users_free(c->user_list);
    pairs_free(c->pairs);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->reload);
    free(c);
}

const struct config_pair *config_pair_find(const struct config_pair *pairs, const char *section, const char *key)
{
    while (pairs && (strcmp(pairs->section, section) != 0 || strcmp(pairs->key, key) != 0))
        pairs = pairs->next;
    return pairs;
}

int config_pair_refuse(const struct config_pair *p, const char *title, int code, const char *why, struct err *e)
{
    if (p->file)
        return err_set(e, code, "%s:%d: %s of section [%s]: %s", p->file, p->line, p->key, title, why);
    return err_set(e, code, "%s of section [%s]: %s", p->key, title, why);
}

int config_pair_set(struct config *c, const struct config_pair *pair, struct err *e)
{
    struct config_pair **at = &c->pairs, *p;

    while (*at && (strcmp((*at)->section, pair->section) != 0 || strcmp((*at)->key, pair->key) != 0))
        at = &(*at)->next;
    p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(e, -ENOMEM, "out of memory");
    p->line = pair->line;
    p->section = strdup(pair->section);
    p->key = strdup(pair->key);
    p->value = strdup(pair->value);
    p->file = pair->file ? strdup(pair->file) : NULL;
    if (*at) {
        p->next = (*at)->next;
        (*at)->next = NULL;
        pairs_free(*at);
    }
    *at = p;
    return p->section && p->key && p->value && (p->file || !pair->file) ? 0 : err_set(e, -ENOMEM, "out of memory");
}

/* ── the source ──────────────────────────────────────────────────────────────────────────── */

static int check_backend_word(const char *source, const char *word, bool colon, struct err *e)
{
    size_t n = strlen(word);

    if (n == 0)
        return err_set(e, -EINVAL, "'%s': no backend in front of the colon, as in local:/srv/workspaces", source);
    if (!strchr(word, '/')) {
        if (strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n && word[0] != '-')
            return 0;
        return err_set(e, -EINVAL, "'%s': '%s' is no name of a backend", source, word);
    }
    if (!colon && (n < 4 || strcmp(word + n - 3, ".so") != 0))
        return err_set(e, -EINVAL, "'%s': a source begins with the backend's name: local:%s", source, source);
    return 0;
}

int config_set_source(struct config *c, const char *source, struct err *e)
{
    const char *colon = strchr(source, ':');
    cleanup_free char *word = strndup(source, colon ? (size_t)(colon - source) : strlen(source));
    int r;

    if (!word)
        return err_set(e, -ENOMEM, "out of memory");
    if (source[0] == '\0')
        return err_set(e, -EINVAL, "an empty source; it looks like local:/srv/workspaces");
    for (const char *s = source; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return err_set(e, -EINVAL, "a control character in the source");
    r = check_backend_word(source, word, colon != NULL, e);
    if (r < 0)
        return r;
    free(c->backend);
    free(c->source);
    free(c->source_full);
    c->backend = strchr(word, '/') ? path_absolute(word) : steal_ptr(&word);
    c->source = strdup(colon ? colon + 1 : "");
    c->source_full = strdup(source);
    if (!c->backend || !c->source || !c->source_full)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

#define PASSWD_BYTES 65536

/* malloc'ed, NULL when there is none. */
static char *home(void)
{
    const char *dir = getenv("HOME");
    cleanup_free char *buf = malloc(PASSWD_BYTES);
    struct passwd pw, *found = NULL;

    if (dir && dir[0] == '/')
        return strdup(dir);
    if (!buf || getpwuid_r(geteuid(), &pw, buf, PASSWD_BYTES, &found) != 0 || !found)
        return NULL;
    return strdup(pw.pw_dir);
}

char *config_default_dir(void)
{
    const char *state = getenv("XDG_STATE_HOME");
    cleanup_free char *dir = home();
    char *path = NULL;
    int n;

    if (geteuid() == 0)
        return strdup("/var/lib/wsmfs");
    if (state && state[0] == '/')
        n = asprintf(&path, "%s/wsmfs", state);
    else
        n = dir ? asprintf(&path, "%s/.local/state/wsmfs", dir) : -1;
    return n < 0 ? NULL : path;
}

static char *default_basedir(void)
{
    cleanup_free char *dir = config_default_dir();
    char *path;

    return dir && asprintf(&path, "%s/workspaces", dir) >= 0 ? path : NULL;
}

static int take_local_source(struct config *c, struct err *e)
{
    cleanup_free char *dir = path_absolute(c->source);

    if (!dir)
        return err_set(e, -errno, "cannot make %s absolute", c->source);
    if (c->basedir && strcmp(c->basedir, dir) != 0)
        return err_set(e, -EINVAL, "the source says %s and basedir says %s: leave one out", dir, c->basedir);
    free(c->basedir);
    c->basedir = steal_ptr(&dir);
    return 0;
}

int config_finish(struct config *c, struct err *e)
{
    if (c->backend && strcmp(c->backend, "local") == 0 && c->source[0]) {
        int r = take_local_source(c, e);
        if (r < 0)
            return r;
    }
    if (!c->basedir)
        c->basedir = default_basedir();
    if (!c->basedir)
        return err_set(e, -EINVAL, "there is no home directory to keep workspaces in: say basedir=DIR");
    return 0;
}

/* ── the file ────────────────────────────────────────────────────────────────────────────── */

/* Another configuration for the same command line with what the file says now. */
static int load_beside(const struct config *c, const char *path, struct config **out, struct err *e)
{
    struct config *n = config_create();
    struct ini_item *items = NULL;
    int r;

    *out = NULL;
    if (!n || (c->backend && !(n->backend = strdup(c->backend))) ||
        (c->source && !(n->source = strdup(c->source)))) {
        config_destroy(n);
        return err_set(e, -ENOMEM, "out of memory");
    }
    n->known_backends = c->known_backends;
    r = ini_file_load(path, &items, e);
    if (r == 0)
        r = sections_apply(n, path, items, e);
    if (r == 0)
        r = config_apply_command(n, c->command, e);
    ini_items_free(items);
    if (r < 0)
        config_destroy(n);
    else
        *out = n;
    return r;
}

static void swap_bytes(void *a, void *b, size_t n)
{
    for (unsigned char *x = a, *y = b; n > 0; n--, x++, y++) {
        unsigned char t = *x;
        *x = *y;
        *y = t;
    }
}

int config_read_file(struct config *c, const char *path, struct err *e)
{
    struct config *n;
    int r = load_beside(c, path, &n, e);

    if (r < 0)
        return r;
    swap_bytes((char *)c + OPTIONS_AT, (char *)n + OPTIONS_AT, sizeof(*c) - OPTIONS_AT);
    c->debug_fuse |= n->debug_fuse;
    config_destroy(n);
    return 0;
}

/* ── reload ──────────────────────────────────────────────────────────────────────────────── */

static bool same_pairs(const struct config_pair *a, const struct config_pair *b, const char *section)
{
    for (;; a = a->next, b = b->next) {
        while (a && strcmp(a->section, section) != 0)
            a = a->next;
        while (b && strcmp(b->section, section) != 0)
            b = b->next;
        if (!a || !b)
            return !a && !b;
        if (strcmp(a->key, b->key) != 0 || strcmp(a->value, b->value) != 0)
            return false;
    }
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_option(const struct config *a, const struct config *b, const struct option_spec *o)
{
    cleanup_free char *x = o->get(a, o), *y = o->get(b, o);

    return same_text(x, y);
}

static void say_kept(FILE *out, const char *name)
{
    if (ftell(out) > 0)
        fputs(", ", out);
    fputs(name, out);
}

/* Names what differs and will not be taken over. */
static char *kept_options(const struct config *c, const struct config *n)
{
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    for (const struct option_spec *o = config_options(); o->name; o++)
        if (!o->live && o->offset >= OPTIONS_AT && !same_option(c, n, o))
            say_kept(out, o->name);
    if (!same_text(c->fuse_opts, n->fuse_opts))
        say_kept(out, "libfuse's options");
    if (!same_pairs(c->pairs, n->pairs, "sandbox"))
        say_kept(out, "[sandbox]");
    if (!same_pairs(c->pairs, n->pairs, "backend"))
        say_kept(out, "[backend]");
    if (fclose(out) != 0 || text[0] == '\0') {
        free(text);
        return NULL;
    }
    return text;
}

static void take_live(struct config *c, struct config *n)
{
    scoped_lock(&c->lock);
    c->ttl_s = n->ttl_s;
    c->users = n->users;
    /* Where the file says the same as before, a level that was set by hand stays. */
    if (c->log_level != n->log_level)
        log_set_level((enum log_level)n->log_level);
    c->log_level = n->log_level;
    swap_bytes(&c->user_list, &n->user_list, sizeof(c->user_list));
}

int config_reload(struct config *c, char **kept, struct err *e)
{
    struct config *n;
    int r;

    *kept = NULL;
    if (!c->config_file)
        return 0;
    scoped_lock(&c->reload);
    r = load_beside(c, c->config_file, &n, e);
    if (r == 0) {
        r = config_finish(n, e);
        if (r == 0) {
            *kept = kept_options(c, n);
            take_live(c, n);
        }
        config_destroy(n);
    }
    return r;
}

/* ── reading live parts ──────────────────────────────────────────────────────────────────── */

bool config_user(struct config *c, const char *name, struct user_config *out)
{
    scoped_lock(&c->lock);
    for (const struct user_config *u = c->user_list; u; u = u->next) {
        if (strcmp(u->name, name) != 0)
            continue;
        *out = *u;
        out->next = NULL;
        out->name = NULL;
        out->groups = NULL;
        out->n_groups = 0;
        return true;
    }
    return false;
}

size_t config_user_groups(struct config *c, const char *name, gid_t *groups, size_t max)
{
    scoped_lock(&c->lock);
    for (const struct user_config *u = c->user_list; u; u = u->next) {
        size_t n = u->n_groups < max ? u->n_groups : max;
        if (strcmp(u->name, name) != 0)
            continue;
        if (n)
            memcpy(groups, u->groups, n * sizeof(*groups));
        return n;
    }
    return 0;
}

void config_each_user(struct config *c, void (*fn)(const char *name, void *arg), void *arg)
{
    scoped_lock(&c->lock);
    for (const struct user_config *u = c->user_list; u; u = u->next)
        fn(u->name, arg);
}

int64_t config_ttl_s(struct config *c)
{
    scoped_lock(&c->lock);
    return c->ttl_s;
}

enum users_rule config_users(struct config *c)
{
    scoped_lock(&c->lock);
    return c->users;
}

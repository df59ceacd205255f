// SPDX-License-Identifier: Apache-2.0
/* The words of libfuse, mount(8) and /etc/fstab that stand among our options. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

struct mount_word {
    const char    *name;
    bool           has_value;
    enum word_kind kind;
    const char    *group;  /* the last word of a group holds */
    const char    *reason; /* for WORD_REFUSE */
};

#define ALWAYS "every mount of wsmfs is nosuid and nodev: what a sandbox wrote must not gain rights on this host"

/* fuse.md section 15 lists what libfuse takes; the rest is mount(8)'s and fstab(5)'s. */
static const struct mount_word table[] = {
    {"allow_other", .kind = WORD_KEEP, .group = "allow"},
    {"allow_root", .kind = WORD_KEEP, .group = "allow"},
    {"ro", .kind = WORD_KEEP, .group = "ro"},
    {"rw", .kind = WORD_DROP, .group = "ro"},
    {"noexec", .kind = WORD_KEEP, .group = "exec"},
    {"exec", .kind = WORD_DROP, .group = "exec"},
    {"noatime", .kind = WORD_KEEP, .group = "atime"},
    {"atime", .kind = WORD_DROP, .group = "atime"},
    {"relatime", .kind = WORD_DROP, .group = "atime"},
    {"norelatime", .kind = WORD_DROP},
    {"strictatime", .kind = WORD_DROP},
    {"nostrictatime", .kind = WORD_DROP},
    {"lazytime", .kind = WORD_DROP},
    {"nolazytime", .kind = WORD_DROP},
    {"nodiratime", .kind = WORD_KEEP, .group = "diratime"},
    {"diratime", .kind = WORD_DROP, .group = "diratime"},
    {"sync", .kind = WORD_KEEP, .group = "sync"},
    {"async", .kind = WORD_DROP, .group = "sync"},
    {"dirsync", .kind = WORD_KEEP, .group = "dirsync"},
    {"nosymfollow", .kind = WORD_KEEP, .group = "symfollow"},
    {"symfollow", .kind = WORD_DROP, .group = "symfollow"},
    {"fsname", true, .kind = WORD_KEEP, .group = "fsname"},
    {"context", true, .kind = WORD_KEEP, .group = "context"},
    {"fscontext", true, .kind = WORD_KEEP, .group = "fscontext"},
    {"defcontext", true, .kind = WORD_KEEP, .group = "defcontext"},
    {"rootcontext", true, .kind = WORD_KEEP, .group = "rootcontext"},
    {"subtype", true, .kind = WORD_DROP}, /* always wsmfs: mounts are recognised by it */
    {"nosuid", .kind = WORD_DROP},
    {"nodev", .kind = WORD_DROP},
    {"default_permissions", .kind = WORD_DROP},
    {"debug", .kind = WORD_DROP},
    {"suid", .kind = WORD_REFUSE, .reason = ALWAYS},
    {"dev", .kind = WORD_REFUSE, .reason = ALWAYS},
    {"auto_unmount", .kind = WORD_REFUSE,
     .reason = "a crash would turn the mount into an empty directory, and what mirrors it would delete "
               "its copies; a dead mount is replaced by the next start instead"},
    {"remount", .kind = WORD_REFUSE,
     .reason = "a mount of FUSE cannot be changed in place: unmount it and mount it again, or change "
               "the config file and reload"},
    {"max_read", true, .kind = WORD_REFUSE, .reason = "wsmfs chooses it"},
    {"blkdev", .kind = WORD_REFUSE, .reason = "there is no block device below"},
    {"defaults", .kind = WORD_DROP},
    {"auto", .kind = WORD_DROP},
    {"noauto", .kind = WORD_DROP},
    {"user", .kind = WORD_DROP},
    {"user", true, .kind = WORD_DROP},
    {"nouser", .kind = WORD_DROP},
    {"users", .kind = WORD_DROP},
    {"nousers", .kind = WORD_DROP},
    {"owner", .kind = WORD_DROP},
    {"noowner", .kind = WORD_DROP},
    {"group", .kind = WORD_DROP},
    {"nogroup", .kind = WORD_DROP},
    {"nofail", .kind = WORD_DROP},
    {"_netdev", .kind = WORD_DROP},
    {"silent", .kind = WORD_DROP},
    {"loud", .kind = WORD_DROP},
    {"comment", true, .kind = WORD_DROP},
    {"uhelper", true, .kind = WORD_DROP},
    {"helper", true, .kind = WORD_DROP},
};

static const struct mount_word *find(const char *name, bool has_value)
{
    for (size_t i = 0; i < array_size(table); i++)
        if (table[i].has_value == has_value && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

/* In a file one likes to write `allow_other = yes`. Returns 1 and 0 for yes and no, else -1. */
static int flag_value(const char *value)
{
    static const char *const words[] = {"no", "yes", "off", "on", "false", "true", "0", "1", NULL};
    int i = word_index(words, value);

    return i < 0 ? -1 : i % 2;
}

enum word_kind mount_word_kind(const char *name, const char *value)
{
    const struct mount_word *w = find(name, value != NULL);

    if (!w && value && flag_value(value) >= 0)
        w = find(name, false);
    if (w)
        return w->kind;
    return fnmatch("[xX]-*", name, 0) == 0 ? WORD_DROP : WORD_NONE;
}

void mount_words_suggest(struct suggestion *s)
{
    for (size_t i = 0; i < array_size(table); i++)
        if (table[i].kind != WORD_REFUSE)
            suggest_word(s, table[i].name);
}

void config_words_free(struct config_word *w)
{
    while (w) {
        struct config_word *next = w->next;
        free(w->name);
        free(w->value);
        free(w);
        w = next;
    }
}

int config_words_append(struct config_word **list, const char *name, const char *value)
{
    struct config_word *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->name = strdup(name);
    w->value = value ? strdup(value) : NULL;
    if (!w->name || (value && !w->value)) {
        config_words_free(w);
        return -ENOMEM;
    }
    while (*list)
        list = &(*list)->next;
    *list = w;
    return 0;
}

static void remove_group(struct config_word **list, const char *group)
{
    while (*list) {
        struct config_word *w = *list;
        const struct mount_word *known = find(w->name, w->value != NULL);
        if (!known || !known->group || strcmp(known->group, group) != 0) {
            list = &w->next;
            continue;
        }
        *list = w->next;
        w->next = NULL;
        config_words_free(w);
    }
}

int mount_word_set(struct config *c, const char *name, const char *value, struct err *e)
{
    const struct mount_word *w = find(name, value != NULL);
    bool on = true;

    if (!w && value && (w = find(name, false))) {
        on = flag_value(value) > 0;
        value = NULL;
    }
    if (!w)
        return 0; /* x-something */
    if (w->kind == WORD_REFUSE && on)
        return err_set(e, -EINVAL, "%s: %s", name, w->reason);
    if (strcmp(name, "debug") == 0)
        c->debug_fuse = on;
    if (w->group)
        remove_group(&c->mount_words, w->group);
    if (w->kind == WORD_KEEP && on && config_words_append(&c->mount_words, name, value) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

/* libfuse takes a backslash off what it escapes (fuse_opt.c). */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == ',' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static char *join(const struct config_word *w)
{
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    for (; w; w = w->next) {
        put_escaped(out, w->name);
        if (w->value) {
            fputc('=', out);
            put_escaped(out, w->value);
        }
        if (w->next)
            fputc(',', out);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int mount_words_finish(struct config *c, struct err *e)
{
    char *text = c->mount_words ? join(c->mount_words) : NULL;

    if (c->mount_words && !text)
        return err_set(e, -ENOMEM, "out of memory");
    free(c->fuse_opts);
    c->fuse_opts = text;
    c->allow_other = c->read_only = false;
    for (const struct config_word *w = c->mount_words; w; w = w->next) {
        c->allow_other |= strcmp(w->name, "allow_other") == 0;
        c->read_only |= strcmp(w->name, "ro") == 0;
    }
    return 0;
}

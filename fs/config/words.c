// SPDX-License-Identifier: Apache-2.0
/* One setting, whether it comes as a word of -o or as a line of the file. */
#include <errno.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

static int unknown(enum origin origin, const char *name, const char *value, struct err *e)
{
    struct suggestion s = {.typed = name};
    char hint[80];

    /* A bare word that is known with a value, or the other way round. */
    if (mount_word_kind(name, value ? NULL : "") != WORD_NONE)
        return err_set(e, -EINVAL, value ? "%s takes no value" : "%s needs a value", name);
    for (const struct option_spec *o = config_options(); o->name; o++)
        suggest_word(&s, o->name);
    mount_words_suggest(&s);
    return err_set(e, -EINVAL, "unknown %s '%s'%s", origin == FROM_FILE ? "key" : "option", name,
                   suggest_text(&s, hint, sizeof(hint)));
}

static int apply_option(struct config *c, const struct option_spec *o, const char *value, struct err *e)
{
    struct err why;
    int r = option_set(c, o, value, &why);

    if (r == 0)
        return 0;
    return err_set(e, r, "%s%s%s: %s", o->name, value ? "=" : "", value ? value : "", why.text);
}

int config_apply(struct config *c, enum origin origin, const char *name, const char *value,
                 struct err *e)
{
    const struct option_spec *o = option_find(name);
    enum word_kind kind = mount_word_kind(name, value);

    if (origin == FROM_FILE && o && strcmp(name, "config") == 0)
        return err_set(e, -EINVAL, "config: a config file names no other");
    /* `users` and `owner` alone are fstab's, with a value ours. */
    if (o && (value || kind == WORD_NONE))
        return apply_option(c, o, value, e);
    if (kind == WORD_NONE)
        return unknown(origin, name, value, e);
    return mount_word_set(c, name, value, e);
}

int config_apply_command(struct config *c, const struct config_word *w, struct err *e)
{
    for (; w; w = w->next) {
        int r = config_apply(c, FROM_COMMAND, w->name, w->value, e);
        if (r < 0)
            return r;
    }
    return mount_words_finish(c, e);
}

/* Cuts the next word off *rest in place and takes its backslashes away. */
static char *next_word(char **rest)
{
    char *word = *rest, *to = word, *from = word;

    for (; *from && *from != ','; from++) {
        if (*from == '\\' && (from[1] == ',' || from[1] == '\\'))
            from++;
        *to++ = *from;
    }
    *rest = *from ? from + 1 : from;
    *to = '\0';
    return word;
}

int config_parse_words(struct config *c, const char *words, struct err *e)
{
    cleanup_free char *copy = strdup(words);
    char *rest = copy;

    if (!copy)
        return err_set(e, -ENOMEM, "out of memory");
    while (*rest) {
        char *word = next_word(&rest), *value = strchr(word, '=');
        int r;
        if (value)
            *value++ = '\0';
        if (!value && word[0] == '\0')
            continue;
        r = config_apply(c, FROM_COMMAND, word, value, e);
        if (r < 0)
            return r;
        if (config_words_append(&c->command, word, value) < 0)
            return err_set(e, -ENOMEM, "out of memory");
    }
    return mount_words_finish(c, e);
}

// SPDX-License-Identifier: Apache-2.0
/* The [user NAME] sections. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "fs/base/cleanup.h"
#include "fs/base/utf8.h"
#include "fs/config/internal.h"

#define NAME_MAX_BYTES 255
#define ID_MAX 0xfffffffeu /* the highest means "no change" to chown(2) */
#define GROUPS_MAX 256     /* what backends and guests take (BACKEND_GROUPS_MAX) */
/* What getgr*_r may need: groups with thousands of members are no rarity. */
#define LOOKUP_BYTES (1 << 20)

/* A gid that no key has set: no valid id. */
#define UNSET ((gid_t)-1)

void users_free(struct user_config *u)
{
    while (u) {
        struct user_config *next = u->next;
        free(u->name);
        free(u->groups);
        free(u);
        u = next;
    }
}

/* The rule for names of the upper levels: design section 1. */
static bool valid_name(const char *name)
{
    size_t n = strlen(name);
    uint32_t c;

    if (n == 0 || n > NAME_MAX_BYTES || name[0] == '.' || strchr(name, '/'))
        return false;
    while (*name) {
        size_t len = utf8_read(name, &c);
        if (len == 0 || utf8_is_control(c))
            return false;
        name += len;
    }
    return true;
}

int user_section_begin(struct config *c, const char *name, struct user_config **out, struct err *e)
{
    struct user_config *u, **end = &c->user_list;

    if (!valid_name(name))
        return err_set(e, -EINVAL, "[user %s]: not a valid user name", name);
    for (; *end; end = &(*end)->next)
        if (strcmp((*end)->name, name) == 0)
            return err_set(e, -EINVAL, "[user %s] stands here a second time", name);
    u = calloc(1, sizeof(*u));
    if (!u || !(u->name = strdup(name))) {
        free(u);
        return err_set(e, -ENOMEM, "out of memory");
    }
    u->gid = UNSET;
    u->mode = 0700;
    *end = *out = u;
    return 0;
}

/* A number, or a name that the machine knows. */
static int parse_uid(const char *value, uid_t *uid)
{
    struct passwd pw, *found = NULL;
    cleanup_free char *buf = malloc(LOOKUP_BYTES);
    uint64_t v;

    if (number_parse(value, ID_MAX, &v) == 0) {
        *uid = (uid_t)v;
        return 0;
    }
    if (!buf || getpwnam_r(value, &pw, buf, LOOKUP_BYTES, &found) != 0 || !found)
        return -EINVAL;
    *uid = pw.pw_uid;
    return 0;
}

static int parse_gid(const char *value, gid_t *gid)
{
    struct group gr, *found = NULL;
    cleanup_free char *buf = malloc(LOOKUP_BYTES);
    uint64_t v;

    if (number_parse(value, ID_MAX, &v) == 0) {
        *gid = (gid_t)v;
        return 0;
    }
    if (!buf || getgrnam_r(value, &gr, buf, LOOKUP_BYTES, &found) != 0 || !found)
        return -EINVAL;
    *gid = gr.gr_gid;
    return 0;
}

static int set_uid(struct user_config *u, const char *value, struct err *e)
{
    if (parse_uid(value, &u->uid) < 0)
        return err_set(e, -EINVAL, "neither a number nor a user of this machine");
    u->has_uid = true;
    return 0;
}

static int set_gid(struct user_config *u, const char *value, struct err *e)
{
    if (parse_gid(value, &u->gid) < 0)
        return err_set(e, -EINVAL, "neither a number nor a group of this machine");
    return 0;
}

static int add_group(struct user_config *u, const char *word, struct err *e)
{
    gid_t gid, *more;

    if (parse_gid(word, &gid) < 0)
        return err_set(e, -EINVAL, "'%s' is neither a number nor a group of this machine", word);
    if (u->n_groups >= GROUPS_MAX)
        return err_set(e, -EINVAL, "more than %d groups", GROUPS_MAX);
    more = reallocarray(u->groups, u->n_groups + 1, sizeof(*more));
    if (!more)
        return err_set(e, -ENOMEM, "out of memory");
    u->groups = more;
    u->groups[u->n_groups++] = gid;
    return 0;
}

static int set_groups(struct user_config *u, const char *value, struct err *e)
{
    cleanup_free char *copy = strdup(value);
    char *save = NULL;

    if (!copy)
        return err_set(e, -ENOMEM, "out of memory");
    for (char *w = strtok_r(copy, ", \t", &save); w; w = strtok_r(NULL, ", \t", &save)) {
        int r = add_group(u, w, e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int set_mode(struct user_config *u, const char *value, struct err *e)
{
    size_t n = strlen(value);
    unsigned mode = 0;

    if (n >= 3 && n <= 4 && strspn(value, "01234567") == n)
        sscanf(value, "%o", &mode);
    if ((mode & 0700) != 0700 || (mode & ~0755u) != 0)
        return err_set(e, -EINVAL, "not an octal mode from 0700 to 0755 that lets only the user write");
    u->mode = mode;
    return 0;
}

static int set_max_live(struct user_config *u, const char *value, struct err *e)
{
    uint64_t v;

    if (number_parse(value, 1000000000, &v) < 0)
        return err_set(e, -EINVAL, "not a number from 0 (max_live_per_user) to 1000000000");
    u->max_live = (unsigned)v;
    return 0;
}

static const struct {
    const char *name;
    int       (*set)(struct user_config *u, const char *value, struct err *e);
} keys[] = {
    {"uid", set_uid},
    {"gid", set_gid},
    {"groups", set_groups},
    {"mode", set_mode},
    {"max_live", set_max_live},
};

int user_key_set(struct user_config *u, const char *key, const char *value, struct err *e)
{
    struct suggestion s = {.typed = key};
    struct err why;
    char hint[80];

    for (size_t i = 0; i < array_size(keys); i++) {
        if (strcmp(keys[i].name, key) != 0)
            continue;
        if (!value)
            return err_set(e, -EINVAL, "%s: needs a value", key);
        int r = keys[i].set(u, value, &why);
        return r < 0 ? err_set(e, r, "%s=%s: %s", key, value, why.text) : 0;
    }
    for (size_t i = 0; i < array_size(keys); i++)
        suggest_word(&s, keys[i].name);
    return err_set(e, -EINVAL, "unknown key '%s' in [user %s]%s", key, u->name,
                   suggest_text(&s, hint, sizeof(hint)));
}

int user_section_end(struct user_config *u, struct err *e)
{
    struct passwd pw, *found = NULL;
    cleanup_free char *buf = malloc(LOOKUP_BYTES);

    if (!u->has_uid && (u->gid != UNSET || u->n_groups))
        return err_set(e, -EINVAL, "[user %s]: gid and groups need a uid", u->name);
    if (u->gid != UNSET)
        return 0;
    if (!buf)
        return err_set(e, -ENOMEM, "out of memory");
    if (u->has_uid && getpwuid_r(u->uid, &pw, buf, LOOKUP_BYTES, &found) == 0 && found)
        u->gid = pw.pw_gid;
    else
        u->gid = u->uid;
    return 0;
}

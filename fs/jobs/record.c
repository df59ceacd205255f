// SPDX-License-Identifier: Apache-2.0
#include "fs/jobs/record.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

#define RECORD_MAX_BYTES (64u << 20)
#define RECORD_VERSION   1

static const char *const text_keys[JOB_TEXTS] = { "cmd", "argv", "cwd", "env", "timeout", "tty", "inside_user" };
static const char *const kinds[] = {
    [LINK_END_EXITED] = "exited",
    [LINK_END_SIGNALED] = "signaled",
    [LINK_END_FAILED] = "failed",
    [LINK_END_LOST] = "lost",
};

/* The members of a record that are plain texts. */
static const struct {
    const char *key;
    size_t      at;
} words[] = {
    { "user", offsetof(struct record, user) },
    { "agent", offsetof(struct record, agent) },
    { "session", offsetof(struct record, session) },
    { "name", offsetof(struct record, name) },
    { "workspace", offsetof(struct record, workspace) },
    { "text", offsetof(struct record, text) },
};

static char **word_at(const struct record *r, size_t i)
{
    return (char **)(void *)((char *)(uintptr_t)r + words[i].at);
}

/* ── writing ─────────────────────────────────────────────────────────────────────────────── */

static void put(struct json_object *o, const char *key, struct json_object *value)
{
    json_object_object_add(o, key, value);
}

static void put_texts(struct json_object *o, const struct record *r)
{
    for (int i = 0; i < JOB_TEXTS; i++) {
        const struct record_text *t = &r->texts[i];
        struct json_object *pair;
        if (!t->changed_ms)
            continue;
        pair = json_object_new_array();
        json_object_array_add(pair, json_object_new_int64(t->changed_ms));
        json_object_array_add(pair, json_object_new_string_len(t->text ? t->text : "", (int)t->size));
        put(o, text_keys[i], pair);
    }
}

static void put_id(struct json_object *o, const char *key, const struct link_id *id)
{
    char hex[2 * LINK_ID_BYTES + 1];

    for (int i = 0; i < LINK_ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", id->b[i]);
    put(o, key, json_object_new_string(hex));
}

static struct json_object *to_json(const struct record *r)
{
    struct json_object *o = json_object_new_object();

    put(o, "version", json_object_new_int(RECORD_VERSION));
    for (size_t i = 0; i < array_size(words); i++)
        if (*word_at(r, i))
            put(o, words[i].key, json_object_new_string(*word_at(r, i)));
    put(o, "which", json_object_new_string(text_keys[r->which]));
    put(o, "made_ms", json_object_new_int64(r->made_ms));
    put(o, "stdin", json_object_new_boolean(r->stdin_pipe));
    put_texts(o, r);
    if (r->asked)
        put_id(o, "instance", &r->instance);
    put(o, "pid", json_object_new_int64(r->pid));
    put(o, "start_ms", json_object_new_int64(r->start_ms));
    if (!r->ended)
        return o;
    put(o, "ended", json_object_new_string(kinds[r->kind]));
    put(o, "code", json_object_new_int(r->code));
    put(o, "timed_out", json_object_new_boolean(r->timed_out));
    put(o, "end_ms", json_object_new_int64(r->end_ms));
    return o;
}

static int write_file(int fd, const char *text, size_t size)
{
    while (size) {
        ssize_t n = write(fd, text, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        text += n;
        size -= (size_t)n;
    }
    return 0;
}

int record_write(int dir_fd, const struct record *r)
{
    struct json_object *o = to_json(r);
    size_t size;
    const char *text = json_object_to_json_string_length(o, JSON_C_TO_STRING_PLAIN, &size);
    cleanup_close int fd = openat(dir_fd, "record.new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int result = fd < 0 ? -errno : text ? write_file(fd, text, size) : -ENOMEM;

    json_object_put(o);
    if (result == 0 && renameat(dir_fd, "record.new", dir_fd, "record") < 0)
        result = -errno;
    return result;
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

static int read_file(int dir_fd, char **text, size_t *size)
{
    cleanup_close int fd = openat(dir_fd, "record", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size > RECORD_MAX_BYTES)
        return -EIO;
    *text = malloc((size_t)st.st_size + 1);
    if (!*text)
        return -ENOMEM;
    n = pread(fd, *text, (size_t)st.st_size, 0);
    *size = n < 0 ? 0 : (size_t)n;
    return n == st.st_size ? 0 : -EIO;
}

static int64_t number(struct json_object *o, const char *key)
{
    return json_object_get_int64(json_object_object_get(o, key));
}

static const char *string(struct json_object *o, const char *key)
{
    struct json_object *s = json_object_object_get(o, key);

    return json_object_is_type(s, json_type_string) ? json_object_get_string(s) : NULL;
}

static void get_text(struct json_object *o, const char *key, struct record_text *t)
{
    struct json_object *pair = json_object_object_get(o, key), *s;

    if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2)
        return;
    s = json_object_array_get_idx(pair, 1);
    t->changed_ms = json_object_get_int64(json_object_array_get_idx(pair, 0));
    t->size = (size_t)json_object_get_string_len(s);
    t->text = malloc(t->size + 1);
    if (t->text)
        memcpy(t->text, json_object_get_string(s), t->size + 1);
    else
        t->size = 0;
}

static bool get_id(struct json_object *o, const char *key, struct link_id *id)
{
    const char *hex = string(o, key);

    if (!hex || strlen(hex) != 2 * LINK_ID_BYTES)
        return false;
    for (int i = 0; i < LINK_ID_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        id->b[i] = (uint8_t)byte;
    }
    return true;
}

static void from_json(struct json_object *o, struct record *r)
{
    const char *which = string(o, "which"), *ended = string(o, "ended");

    for (size_t i = 0; i < array_size(words); i++) {
        const char *s = string(o, words[i].key);
        *word_at(r, i) = s ? strdup(s) : NULL;
    }
    for (int i = 0; i < JOB_TEXTS; i++)
        get_text(o, text_keys[i], &r->texts[i]);
    r->which = which && strcmp(which, text_keys[JOB_ARGV]) == 0 ? JOB_ARGV : JOB_CMD;
    r->made_ms = number(o, "made_ms");
    r->stdin_pipe = json_object_get_boolean(json_object_object_get(o, "stdin"));
    r->asked = get_id(o, "instance", &r->instance);
    r->pid = (uint32_t)number(o, "pid");
    r->start_ms = number(o, "start_ms");
    r->ended = ended != NULL;
    for (size_t i = 0; ended && i < array_size(kinds); i++)
        if (strcmp(ended, kinds[i]) == 0)
            r->kind = (enum link_end)i;
    r->code = (int)number(o, "code");
    r->timed_out = json_object_get_boolean(json_object_object_get(o, "timed_out"));
    r->end_ms = number(o, "end_ms");
}

int record_read(int dir_fd, struct record *out)
{
    cleanup_free char *text = NULL;
    size_t size = 0;
    struct json_tokener *t;
    struct json_object *o;
    int r;

    *out = (struct record){ 0 };
    r = read_file(dir_fd, &text, &size);
    if (r < 0)
        return r;
    t = json_tokener_new();
    o = t ? json_tokener_parse_ex(t, text, (int)size) : NULL;
    if (json_object_is_type(o, json_type_object) && number(o, "version") == RECORD_VERSION)
        from_json(o, out);
    json_object_put(o);
    if (t)
        json_tokener_free(t);
    if (out->user && out->agent && out->session && out->name)
        return 0;
    record_finish(out);
    return -EIO;
}

void record_finish(struct record *r)
{
    for (size_t i = 0; i < array_size(words); i++)
        free(*word_at(r, i));
    for (int i = 0; i < JOB_TEXTS; i++)
        free(r->texts[i].text);
    *r = (struct record){ 0 };
}

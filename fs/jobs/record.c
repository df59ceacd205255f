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
#include "fs/base/log.h"

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

static void put_all(struct json_object *o, const struct record *r)
{
    put(o, "version", json_object_new_int(RECORD_VERSION));
    for (size_t i = 0; i < array_size(words); i++)
        if (*word_at(r, i))
            put(o, words[i].key, json_object_new_string(*word_at(r, i)));
    put(o, "which", json_object_new_string(text_keys[r->which]));
    put(o, "made_ms", json_object_new_int64(r->made_ms));
    put(o, "stdin", json_object_new_boolean(r->stdin_pipe));
    put_texts(o, r);
}

static void put_guest(struct json_object *o, const struct record *r)
{
    if (r->asked)
        put_id(o, "instance", &r->instance);
}

static void put_end(struct json_object *o, const struct record *r)
{
    put(o, "ended", json_object_new_string(kinds[r->kind]));
    put(o, "code", json_object_new_int(r->code));
    put(o, "timed_out", json_object_new_boolean(r->timed_out));
    put(o, "pid", json_object_new_int64(r->pid));
    put(o, "start_ms", json_object_new_int64(r->start_ms));
    put(o, "end_ms", json_object_new_int64(r->end_ms));
    if (r->text)
        put(o, "text", json_object_new_string(r->text));
}

static struct json_object *to_json(const struct record *r, enum record_part part)
{
    struct json_object *o = json_object_new_object();

    if (part == RECORD_ALL)
        put_all(o, r);
    if (part != RECORD_END)
        put_guest(o, r);
    if (r->ended)
        put_end(o, r);
    return o;
}

/* All of the line or nothing: what comes behind a piece of one could not be read. */
static int append(int fd, const char *line, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t n = write(fd, line + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int r = -errno;
            off_t end = lseek(fd, 0, SEEK_CUR);
            if (done && (end < (off_t)done || ftruncate(fd, end - (off_t)done) < 0))
                log_warning("the record of a job ends in a piece of a line: %s", strerror(-r));
            return r;
        }
        done += (size_t)n;
    }
    return 0;
}

#define NAME_BYTES 64

int record_write(int dir_fd, const char *job, const struct record *r, enum record_part part)
{
    struct json_object *o = to_json(r, part);
    char name[NAME_BYTES];
    cleanup_free char *line = NULL;
    int n = asprintf(&line, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));

    json_object_put(o);
    if (n < 0)
        return -ENOMEM;
    snprintf(name, sizeof(name), "%s.record", job);
    cleanup_close int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : append(fd, line, (size_t)n);
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

static int read_file(int dir_fd, const char *job, char **text, size_t *size)
{
    char name[NAME_BYTES];
    struct stat st;
    ssize_t n;

    snprintf(name, sizeof(name), "%s.record", job);
    cleanup_close int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

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
    free(t->text);
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

static void get_end(struct json_object *o, struct record *r)
{
    const char *ended = string(o, "ended");

    if (!ended)
        return;
    r->ended = true;
    for (size_t i = 0; i < array_size(kinds); i++)
        if (strcmp(ended, kinds[i]) == 0)
            r->kind = (enum link_end)i;
    r->code = (int)number(o, "code");
    r->timed_out = json_object_get_boolean(json_object_object_get(o, "timed_out"));
    r->pid = (uint32_t)number(o, "pid");
    r->start_ms = number(o, "start_ms");
    r->end_ms = number(o, "end_ms");
}

/* What a line holds takes the place of what was there. */
static void from_json(struct json_object *o, struct record *r)
{
    const char *which = string(o, "which");

    for (size_t i = 0; i < array_size(words); i++) {
        const char *s = string(o, words[i].key);
        if (!s)
            continue;
        free(*word_at(r, i));
        *word_at(r, i) = strdup(s);
    }
    for (int i = 0; i < JOB_TEXTS; i++)
        get_text(o, text_keys[i], &r->texts[i]);
    if (which) {
        r->which = strcmp(which, text_keys[JOB_ARGV]) == 0 ? JOB_ARGV : JOB_CMD;
        r->made_ms = number(o, "made_ms");
        r->stdin_pipe = json_object_get_boolean(json_object_object_get(o, "stdin"));
    }
    if (get_id(o, "instance", &r->instance))
        r->asked = true;
    get_end(o, r);
}

static bool take_line(struct json_tokener *t, const char *line, size_t size, bool first, struct record *out)
{
    struct json_object *o;

    json_tokener_reset(t);
    o = json_tokener_parse_ex(t, line, (int)size);
    bool good = json_object_is_type(o, json_type_object) && (!first || number(o, "version") == RECORD_VERSION);
    if (good)
        from_json(o, out);
    json_object_put(o);
    return good;
}

/* A line that its writer did not finish (the machine stopped): what is added behind it could not be read. */
static void cut_torn_line(int dir_fd, const char *job, const char *text, size_t size)
{
    const char *last = memrchr(text, '\n', size);
    char name[NAME_BYTES];

    if (last == text + size - 1)
        return;
    snprintf(name, sizeof(name), "%s.record", job);
    cleanup_close int fd = openat(dir_fd, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, last ? last + 1 - text : 0) < 0)
        log_warning("the record of job %s ends in a piece of a line: %s", job, strerror(errno));
}

int record_read(int dir_fd, const char *job, struct record *out)
{
    cleanup_free char *text = NULL;
    size_t size = 0;
    struct json_tokener *t;
    int r;

    *out = (struct record){ 0 };
    r = read_file(dir_fd, job, &text, &size);
    if (r < 0 || size == 0)
        return r < 0 ? r : -ENOENT;
    cut_torn_line(dir_fd, job, text, size);
    t = json_tokener_new();
    if (!t)
        return -ENOMEM;
    for (const char *line = text, *end; line < text + size; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + size - line));
        if (!end || !take_line(t, line, (size_t)(end - line), line == text, out))
            break;
    }
    json_tokener_free(t);
    if (out->user && out->agent && out->session && out->name)
        return 0;
    record_finish(out);
    return memchr(text, '\n', size) ? -EIO : -ENOENT; /* the first line was under way */
}

void record_finish(struct record *r)
{
    for (size_t i = 0; i < array_size(words); i++)
        free(*word_at(r, i));
    for (int i = 0; i < JOB_TEXTS; i++)
        free(r->texts[i].text);
    *r = (struct record){ 0 };
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/jobs/settings.h"

#include <ctype.h>
#include <errno.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fs/base/cleanup.h"

#define TIMEOUT_MAX_S 1000000000ull
#define NAME_MAX_LEN  256

/* The text without white space at both ends, malloc'ed; NULL with a sentence when it holds a NUL or
 * a newline, or memory is lacking. */
static char *one_line(const char *what, const char *text, size_t size, int *r, struct err *e)
{
    char *line;

    while (size && isspace((unsigned char)text[size - 1]))
        size--;
    while (size && isspace((unsigned char)*text)) {
        text++;
        size--;
    }
    if (memchr(text, '\0', size) || memchr(text, '\n', size)) {
        *r = err_set(e, -EINVAL, "%s is one line without a NUL byte", what);
        return NULL;
    }
    line = malloc(size + 1);
    *r = line ? 0 : err_set(e, -ENOMEM, "out of memory");
    if (!line)
        return NULL;
    if (size) /* text may be none, and has no NUL at its end */
        memcpy(line, text, size);
    line[size] = '\0';
    return line;
}

/* ── lists ───────────────────────────────────────────────────────────────────────────────── */

/* Room for `n` texts of `bytes` together, their NULs included; the texts begin at *texts. */
static settings_list list_new(size_t n, size_t bytes, char **texts)
{
    settings_list l = malloc((n + 1) * sizeof(char *) + bytes);

    if (l)
        *texts = (char *)(l + n + 1);
    return l;
}

static int argv_error(struct err *e, const char *why)
{
    return err_set(e, -EINVAL, "argv is a JSON array of strings such as [\"ls\", \"-l\"]: %s", why);
}

static int argv_of(struct json_object *a, settings_list *out, struct err *e)
{
    size_t n = json_object_array_length(a), bytes = 0;
    char *at = NULL;

    for (size_t i = 0; i < n; i++) {
        struct json_object *o = json_object_array_get_idx(a, i);
        if (!json_object_is_type(o, json_type_string))
            return argv_error(e, "an element is no string");
        if (strlen(json_object_get_string(o)) != (size_t)json_object_get_string_len(o))
            return argv_error(e, "an element holds a NUL");
        bytes += (size_t)json_object_get_string_len(o) + 1;
    }
    if (n == 0 || json_object_get_string_len(json_object_array_get_idx(a, 0)) == 0)
        return argv_error(e, "there is no program in it");
    *out = list_new(n, bytes, &at);
    if (!*out)
        return err_set(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = at;
        at = stpcpy(at, json_object_get_string(json_object_array_get_idx(a, i))) + 1;
    }
    (*out)[n] = NULL;
    return 0;
}

int settings_argv(const char *text, size_t size, settings_list *out, struct err *e)
{
    struct json_tokener *t = json_tokener_new();
    struct json_object *a;
    int r;

    if (!t)
        return err_set(e, -ENOMEM, "out of memory");
    json_tokener_set_flags(t, JSON_TOKENER_STRICT);
    while (size && isspace((unsigned char)text[size - 1])) /* strict: nothing may stand behind */
        size--;
    a = json_tokener_parse_ex(t, text, (int)size);
    if (!a || json_tokener_get_error(t) != json_tokener_success || json_tokener_get_parse_end(t) != size)
        r = argv_error(e, json_tokener_get_error(t) == json_tokener_continue ? "it ends too early"
                          : json_tokener_error_desc(json_tokener_get_error(t)));
    else if (!json_object_is_type(a, json_type_array))
        r = argv_error(e, "it is no array");
    else
        r = argv_of(a, out, e);
    json_object_put(a);
    json_tokener_free(t);
    return r;
}

static int check_variable(const char *line, size_t len, struct err *e)
{
    const char *eq = memchr(line, '=', len);

    if (eq && eq != line)
        return 0;
    return err_set(e, -EINVAL, "env has lines K=V, and this is none: \"%.*s\"", len < 60 ? (int)len : 60, line);
}

int settings_env(const char *text, size_t size, bool whole, settings_list *out, struct err *e)
{
    char end = size && memchr(text, '\0', size) ? '\0' : '\n';
    const char *stop = text + size, *next;
    size_t n = 0;
    char *at = NULL;

    for (const char *p = text; p < stop; p++)
        n += *p == end;
    *out = list_new(n + 1, size + 1, &at);
    if (!*out)
        return err_set(e, -ENOMEM, "out of memory");
    n = 0;
    for (const char *p = text; p < stop; p = next) {
        const char *q = memchr(p, end, (size_t)(stop - p));
        size_t len = (size_t)((q ? q : stop) - p);
        next = q ? q + 1 : stop;
        if (len && end == '\n' && p[len - 1] == '\r')
            len--;
        if (len == 0 || (!q && !whole))
            continue;
        if (check_variable(p, len, e) < 0) {
            free(*out);
            *out = NULL;
            return -EINVAL;
        }
        (*out)[n++] = memcpy(at, p, len);
        at[len] = '\0';
        at += len + 1;
    }
    (*out)[n] = NULL;
    return 0;
}

/* ── the directory ───────────────────────────────────────────────────────────────────────── */

/* What stands behind `top` in an absolute path; NULL when it is not below it. */
static const char *below(const char *path, const char *top)
{
    size_t n = top ? strlen(top) : 0;

    if (n == 0 || strncmp(path, top, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return path + n;
}

/* Copies the components of `path` behind one another; false when it climbs out. */
static bool copy_components(const char *path, char *out)
{
    char *at = out;

    while (*path) {
        size_t n = strcspn(path, "/");
        if (n == 2 && path[0] == '.' && path[1] == '.') {
            if (at == out)
                return false;
            while (at > out && *--at != '/')
                ;
        } else if (n && !(n == 1 && *path == '.')) {
            if (at > out)
                *at++ = '/';
            memcpy(at, path, n);
            at += n;
        }
        path += n + (path[n] == '/');
    }
    *at = '\0';
    return true;
}

int settings_cwd(const char *text, size_t size, const char *own, char **out, struct err *e)
{
    int r;
    cleanup_free char *line = one_line("cwd", text, size, &r, e);
    const char *path = line;

    if (!line)
        return r;
    if (*path == '/') {
        path = below(line, own);
        if (!path)
            path = below(line, "/workspace");
    }
    *out = path ? malloc(strlen(path) + 1) : NULL;
    if (path && !*out)
        return err_set(e, -ENOMEM, "out of memory");
    if (path && copy_components(path, *out))
        return 0;
    free(*out);
    *out = NULL;
    return err_set(e, -EINVAL, "cwd is a directory of the workspace: relative, or below /workspace, or below the "
                   "session's own path");
}

/* ── small ones ──────────────────────────────────────────────────────────────────────────── */

int settings_timeout(const char *text, size_t size, uint64_t *timeout_ms, struct err *e)
{
    int r;
    cleanup_free char *line = one_line("timeout", text, size, &r, e);
    char *p = line;
    uint64_t ms = 0, unit = 100;

    *timeout_ms = 0;
    if (!line || !*line)
        return r;
    for (; isdigit((unsigned char)*p) && ms <= TIMEOUT_MAX_S; p++)
        ms = ms * 10 + (uint64_t)(*p - '0');
    if (ms > TIMEOUT_MAX_S || p == line)
        return err_set(e, -EINVAL, "timeout is a number of seconds, such as 90 or 0.5");
    ms *= 1000;
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p); p++, unit /= 10)
            ms += (uint64_t)(*p - '0') * unit;
    if (*p == 's')
        p++;
    if (*p)
        return err_set(e, -EINVAL, "timeout is a number of seconds, such as 90 or 0.5");
    *timeout_ms = ms;
    return 0;
}

/* One of the two numbers; NULL when it is none. */
static const char *take_cells(const char *p, uint16_t *out)
{
    unsigned v = 0;

    if (!isdigit((unsigned char)*p))
        return NULL;
    for (; isdigit((unsigned char)*p) && v <= UINT16_MAX; p++)
        v = v * 10 + (unsigned)(*p - '0');
    *out = (uint16_t)v;
    return v && v <= UINT16_MAX ? p : NULL;
}

int settings_tty(const char *text, size_t size, uint16_t *cols, uint16_t *rows, struct err *e)
{
    int r;
    cleanup_free char *line = one_line("tty", text, size, &r, e);
    const char *p;

    *cols = *rows = 0;
    if (!line || !*line)
        return r;
    p = take_cells(line, cols);
    if (p && *p == 'x')
        p = take_cells(p + 1, rows);
    else
        p = NULL;
    if (p && !*p)
        return 0;
    return err_set(e, -EINVAL, "a terminal's size is COLSxROWS, such as 120x40");
}

int settings_user(const char *text, size_t size, char **out, struct err *e)
{
    int r;
    char *line = one_line("user", text, size, &r, e);

    if (!line)
        return r;
    if (strlen(line) >= NAME_MAX_LEN || strpbrk(line, " \t")) {
        free(line);
        return err_set(e, -EINVAL, "user is one name or number of the sandbox");
    }
    *out = line;
    return 0;
}

int settings_signal(const char *word)
{
    char *end;
    long n = strtol(word, &end, 10);

    if (*word && !*end)
        return n >= 1 && n <= 64 ? (int)n : -EINVAL;
    if (strncasecmp(word, "SIG", 3) == 0)
        word += 3;
    for (int s = 1; s < NSIG; s++) {
        const char *name = sigabbrev_np(s);
        if (name && strcasecmp(name, word) == 0)
            return s;
    }
    return -EINVAL;
}

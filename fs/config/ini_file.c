// SPDX-License-Identifier: Apache-2.0
/* Reads a config file with inih. inih looks at the lines; we hand it each one ourselves, because it
 * reports no line numbers to the handler, cuts long lines and section names without a word, and
 * takes an indented key for the continuation of a value. */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/cleanup.h"
#include "fs/config/internal.h"

#define LINE_MAX_BYTES 65536

struct load {
    const char *path;
    FILE  *file;
    char  *line;      /* getline's */
    size_t line_size;
    int    number;    /* of the line */
    char  *section, *name; /* where we are */
    struct ini_item *items, **end;
    struct err *e;    /* code is 0 until something failed */
};

void ini_items_free(struct ini_item *i)
{
    while (i) {
        struct ini_item *next = i->next;
        free(i->section);
        free(i->name);
        free(i->key);
        free(i->value);
        free(i);
        i = next;
    }
}

static int fail(struct load *l, const char *what)
{
    return err_set(l->e, -EINVAL, "%s:%d: %s", l->path, l->number, what);
}

static bool dup_into(char **to, const char *text)
{
    *to = text ? strdup(text) : NULL;
    return !text || *to;
}

static int add_item(struct load *l, const char *key, const char *value)
{
    struct ini_item *i = calloc(1, sizeof(*i));

    if (!i)
        return err_set(l->e, -ENOMEM, "out of memory");
    *l->end = i;
    l->end = &i->next;
    i->line = l->number;
    if (!dup_into(&i->section, l->section) || !dup_into(&i->name, l->name) || !dup_into(&i->key, key) ||
        !dup_into(&i->value, value))
        return err_set(l->e, -ENOMEM, "out of memory");
    return 0;
}

/* `text` is "[user alice]" without blanks around it: kind and name. inih would keep 49 bytes of it
 * and end it at the first ']'. */
static int enter_section(struct load *l, char *text)
{
    size_t n = strlen(text);
    char *name;

    if (text[n - 1] != ']')
        return fail(l, "a section's name ends with ']' and nothing follows it");
    text[n - 1] = '\0';
    text += 1 + strspn(text + 1, " \t");
    for (n = strlen(text); n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'); n--)
        text[n - 1] = '\0';
    name = text + strcspn(text, " \t");
    if (*name) {
        *name++ = '\0';
        name += strspn(name, " \t");
    }
    free(l->section);
    free(l->name);
    l->name = NULL;
    if (!dup_into(&l->section, text) || (*name && !dup_into(&l->name, name)))
        return err_set(l->e, -ENOMEM, "out of memory");
    return add_item(l, NULL, NULL);
}

/* The next line without blanks at both ends, or NULL at the end and when something failed. */
static char *next_line(struct load *l)
{
    ssize_t n = getline(&l->line, &l->line_size, l->file);
    char *text = l->line;

    if (n < 0) {
        if (ferror(l->file))
            err_sys(l->e, -errno, "cannot read %s", l->path);
        return NULL;
    }
    l->number++;
    if (memchr(text, '\0', (size_t)n)) {
        fail(l, "a NUL byte: not a text file");
        return NULL;
    }
    if (n > LINE_MAX_BYTES) {
        fail(l, "a line of more than 65536 bytes");
        return NULL;
    }
    if (l->number == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    text += strspn(text, " \t\r\n");
    for (n = (ssize_t)strlen(text); n > 0 && strchr(" \t\r\n", text[n - 1]); n--)
        text[n - 1] = '\0';
    return text;
}

/* inih's fgets: it gets every line but those that open a section. */
static char *read_line(char *buf, int size, void *stream)
{
    struct load *l = stream;
    char *text;

    do {
        text = l->e->code ? NULL : next_line(l);
        if (!text)
            return NULL;
        if (text[0] == '[' && enter_section(l, text) < 0)
            return NULL;
    } while (text[0] == '[');
    if ((size_t)snprintf(buf, (size_t)size, "%s\n", text) >= (size_t)size) {
        fail(l, "a line that is too long for the library that reads it");
        return NULL;
    }
    return buf;
}

/* Called by inih for each key; false stops it. */
static int take_key(void *user, const char *section, const char *key, const char *value)
{
    struct load *l = user;

    (void)section;
    if (l->e->code)
        return 0;
    if (key[0] == '\0')
        return fail(l, "a line without a key") == 0;
    if (!l->section) {
        err_set(l->e, -EINVAL, "%s:%d: the key '%s' stands in front of the first section, such as [mount]",
                l->path, l->number, key);
        return 0;
    }
    return add_item(l, key, value) == 0;
}

/* inih as the distributions build it can be told at run time. */
static void set_up_inih(void)
{
    ini_use_stack = false;
    ini_allow_realloc = false;
    ini_max_line = LINE_MAX_BYTES + 3;
    ini_initial_alloc = LINE_MAX_BYTES + 3;
    ini_allow_multiline = false;
    ini_allow_inline_comments = false;
    ini_allow_no_value = true;
    ini_stop_on_first_error = true;
}

static int open_file(const char *path, FILE **out, struct err *e)
{
    /* O_NONBLOCK: a FIFO must not hold up the start. */
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, -errno, "cannot read the config file %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "the config file %s is not a regular file", path);
    if (st.st_mode & S_IWOTH)
        return err_set(e, -EPERM, "anybody may write to the config file %s: chmod o-w it", path);
    *out = fdopen(fd, "r");
    if (!*out)
        return err_set(e, -ENOMEM, "out of memory");
    steal_fd(&fd);
    return 0;
}

int ini_file_load(const char *path, struct ini_item **out, struct err *e)
{
    struct err why = {0};
    struct load l = {.path = path, .e = &why};
    cleanup_file FILE *file = NULL;
    int line, r = open_file(path, &file, e);

    *out = NULL;
    if (r < 0)
        return r;
    l.file = file;
    l.end = &l.items;
    set_up_inih();
    line = ini_parse_stream(read_line, &l, take_key, &l);
    if (!why.code && line > 0)
        fail(&l, "not a line of the form key = value");
    if (!why.code && line < 0)
        err_set(&why, -ENOMEM, "out of memory");
    free(l.line);
    free(l.section);
    free(l.name);
    if (why.code) {
        ini_items_free(l.items);
        return err_set(e, why.code, "%s", why.text);
    }
    *out = l.items;
    return 0;
}

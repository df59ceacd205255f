// SPDX-License-Identifier: Apache-2.0
#include "mounts.h"

#include <string.h>

#include "wsm.h"

#define TYPE "fuse.wsmfs"

/* Decodes \040 and the like in place, as proc_pid_mountinfo(5) writes blanks and backslashes. */
static char *decode(char *s)
{
    char *to = s;

    for (char *from = s; *from; to++) {
        int c = 0;
        if (from[0] == '\\' && sscanf(from + 1, "%3o", (unsigned *)&c) == 1) {
            *to = (char)c;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
    return s;
}

/* A later mount at the same place hides the earlier ones. */
static void forget_point(struct mounts *m, const char *point)
{
    for (size_t i = 0; i < m->n; i++) {
        if (strcmp(m->list[i].point, point) != 0)
            continue;
        free(m->list[i].point);
        free(m->list[i].root);
        m->list[i--] = m->list[--m->n];
    }
}

/* A line: id parent device root point options [optional…] - type source options. */
static void take_line(struct mounts *m, char *line)
{
    char *save = NULL, *field[5] = {0}, *dash = strstr(line, " - ");

    if (!dash)
        return;
    *dash = '\0';
    for (size_t i = 0; i < array_size(field); i++)
        field[i] = strtok_r(i ? NULL : line, " ", &save);
    if (!field[4])
        return;
    decode(field[3]);
    forget_point(m, decode(field[4]));
    if (strncmp(dash + 3, TYPE " ", sizeof(TYPE)) != 0)
        return;
    m->list = more_memory(m->list, m->n + 1, sizeof(*m->list));
    m->list[m->n] = (struct mount){ text_format("%s", field[4]), text_format("%s", field[3]), "" };
    snprintf(m->list[m->n++].device, sizeof(m->list->device), "%s", field[2]);
}

int mounts_read(struct mounts *m)
{
    cleanup_file FILE *f = fopen("/proc/self/mountinfo", "re");
    cleanup_free char *line = NULL;
    size_t size = 0;

    *m = (struct mounts){0};
    if (!f)
        return complain("/proc/self/mountinfo: %m");
    while (getline(&line, &size, f) > 0)
        take_line(m, line);
    return 0;
}

void mounts_free(struct mounts *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->list[i].point);
        free(m->list[i].root);
    }
    free(m->list);
}

bool path_below(const char *path, const char *dir, const char **rest)
{
    size_t n = strlen(dir);

    if (n == 1) /* the root */
        n = 0;
    if (strncmp(path, dir, n) != 0 || (path[n] && path[n] != '/'))
        return false;
    *rest = path + n + (path[n] == '/');
    return true;
}

const struct mount *mounts_holding(const struct mounts *m, const char *path)
{
    const struct mount *best = NULL;
    const char *rest;

    for (size_t i = 0; i < m->n; i++)
        if (path_below(path, m->list[i].point, &rest) && (!best || strlen(m->list[i].point) > strlen(best->point)))
            best = &m->list[i];
    return best;
}

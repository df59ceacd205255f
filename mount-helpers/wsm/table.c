// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "wsm.h"

#define GAP 2 /* columns between two */

/* Copies one character to `out`; the columns it takes. Moves `at` behind it. */
static size_t one_character(const char **at, mbstate_t *state, FILE *out)
{
    wchar_t c;
    size_t  n = mbrtowc(&c, *at, strlen(*at), state);
    int     width = n == (size_t)-1 || n == (size_t)-2 ? -1 : wcwidth(c);

    if (n == (size_t)-1 || n == (size_t)-2) {
        memset(state, 0, sizeof(*state));
        n = 1;
    }
    if (width < 0)
        fputc('?', out), width = 1;
    else
        fwrite(*at, 1, n, out);
    *at += n;
    return (size_t)width;
}

static size_t put(const char *text, FILE *out)
{
    mbstate_t state = {0};
    size_t    width = 0;

    while (*text)
        width += one_character(&text, &state, out);
    return width;
}

size_t text_print(const char *text)
{
    return put(text, stdout);
}

static size_t width_of(const char *text)
{
    cleanup_free char *copy = NULL;
    size_t size, width;
    FILE  *out = open_memstream(&copy, &size);

    if (!out)
        return 0;
    width = put(text, out);
    fclose(out);
    return width;
}

void table_add(struct table *t, const char *const *texts)
{
    char **row = take_memory(t->columns, sizeof(*row));

    for (size_t i = 0; i < t->columns; i++)
        row[i] = text_format("%s", texts[i]);
    t->rows = more_memory(t->rows, t->n + 1, sizeof(*t->rows));
    t->rows[t->n++] = row;
}

static void find_widths(const struct table *t, size_t *widths)
{
    for (size_t c = 0; c < t->columns; c++) {
        widths[c] = 0;
        for (size_t r = 0; r < t->n; r++) {
            size_t w = width_of(t->rows[r][c]);
            widths[c] = w > widths[c] ? w : widths[c];
        }
    }
}

static void print_row(const struct table *t, char **row, const size_t *widths)
{
    for (size_t c = 0; c < t->columns; c++) {
        size_t w = text_print(row[c]);
        if (c + 1 < t->columns)
            printf("%*s", (int)(widths[c] - w + GAP), "");
        free(row[c]);
    }
    putchar('\n');
    free(row);
}

void table_print(struct table *t)
{
    size_t widths[TABLE_COLUMNS_MAX];

    find_widths(t, widths);
    for (size_t r = 0; r < t->n; r++)
        print_row(t, t->rows[r], widths);
    free(t->rows);
    *t = (struct table){ .columns = t->columns };
}

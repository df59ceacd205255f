// SPDX-License-Identifier: Apache-2.0
/* Which known word did somebody mean? */
#include <stdio.h>
#include <string.h>

#include "fs/config/internal.h"

#define WORD_MAX 40

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;

    return m < c ? m : c;
}

/* Letters to insert, drop, change, or swap with their neighbour (optimal string alignment). */
static unsigned distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned d[WORD_MAX + 1][WORD_MAX + 1];

    if (na > WORD_MAX || nb > WORD_MAX)
        return WORD_MAX;
    for (size_t i = 0; i <= na; i++) {
        for (size_t j = 0; j <= nb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (unsigned)(i + j);
                continue;
            }
            d[i][j] = least(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1, WORD_MAX);
        }
    }
    return d[na][nb];
}

void suggest_word(struct suggestion *s, const char *candidate)
{
    unsigned d = distance(s->typed, candidate);

    if (s->best && d >= s->distance)
        return;
    s->best = candidate;
    s->distance = d;
}

const char *suggest_text(const struct suggestion *s, char *buf, size_t size)
{
    size_t n = strlen(s->typed);
    unsigned near = n < 4 ? 1 : n < 8 ? 2 : 3;

    buf[0] = '\0';
    if (s->best && s->distance <= near)
        snprintf(buf, size, "; did you mean '%s'?", s->best);
    return buf;
}

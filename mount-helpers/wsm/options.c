// SPDX-License-Identifier: Apache-2.0
#include <getopt.h>
#include <string.h>

#include "wsm.h"

#define LONG_VALUE 256 /* an option's number in its table, beyond all letters */
#define HELP_COLUMN 24

static size_t count(const struct option_row *rows)
{
    size_t n = 0;

    while (rows && rows[n].name)
        n++;
    return n;
}

/* ── help ────────────────────────────────────────────────────────────────────────────────── */

static void help_row(char letter, const char *name, const char *value, const char *help)
{
    char left[64];

    snprintf(left, sizeof(left), "%c%c%s--%s%s%s", letter ? '-' : ' ', letter ? letter : ' ', letter ? ", " : "  ",
             name, value ? "=" : "", value ? value : "");
    printf("  %-*s  %s\n", HELP_COLUMN, left, help);
}

void options_help(const struct command *c)
{
    size_t n = count(c->options);

    printf("usage: wsm %s%s%s%s\n\n%s.\n", c->name, n ? " [OPTION…]" : "", *c->words ? " " : "", c->words, c->summary);
    if (c->text)
        printf("%s\n", c->text);
    putchar('\n');
    for (size_t i = 0; i < n; i++)
        help_row(c->options[i].letter, c->options[i].name, c->options[i].value, c->options[i].help);
    help_row('h', "help", NULL, "print this");
}

/* ── reading ─────────────────────────────────────────────────────────────────────────────── */

/* The two tables that getopt_long wants. */
struct getopt_tables {
    char           letters[64];
    struct option *longs; /* malloc'ed */
};

static void add_letter(struct getopt_tables *t, char letter, bool value)
{
    size_t n = strlen(t->letters);

    if (letter)
        snprintf(t->letters + n, sizeof(t->letters) - n, "%c%s", letter, value ? ":" : "");
}

static void make_tables(const struct command *c, struct getopt_tables *t)
{
    size_t n = count(c->options);

    /* ':' tells a missing value from an unknown option; '+' stops at the first word. */
    strcpy(t->letters, c->ends_at_word ? "+:h" : ":h");
    t->longs = take_memory(n + 2, sizeof(*t->longs));
    for (size_t i = 0; i < n; i++) {
        const struct option_row *o = &c->options[i];
        add_letter(t, o->letter, o->value);
        t->longs[i] = (struct option){ o->name, o->value ? required_argument : no_argument, NULL, LONG_VALUE + (int)i };
    }
    t->longs[n] = (struct option){ "help", no_argument, NULL, 'h' };
}

static const struct option_row *find_row(const struct command *c, int found)
{
    if (found >= LONG_VALUE)
        return &c->options[found - LONG_VALUE];
    for (const struct option_row *o = c->options; o && o->name; o++)
        if (o->letter == found)
            return o;
    return NULL;
}

static void add_text(struct texts *t, const char *value)
{
    t->list = more_memory(t->list, t->n + 1, sizeof(*t->list));
    t->list[t->n++] = value;
}

static void store(const struct option_row *o, void *options, const char *value)
{
    void *at = (char *)options + o->at;

    switch (o->kind) {
    case OPTION_FLAG: *(bool *)at = true; break;
    case OPTION_TEXT: *(const char **)at = value; break;
    case OPTION_LIST: add_text(at, value); break;
    }
}

static int wrong(const struct command *c)
{
    fprintf(stderr, "usage: wsm %s%s%s%s (wsm %s --help says more)\n", c->name, count(c->options) ? " [OPTION…]" : "",
            *c->words ? " " : "", c->words, c->name);
    return c->wrong_use ? c->wrong_use : EXIT_WRONG_USE;
}

static int refuse_option(const struct command *c, int found, char *word)
{
    char letter[] = { '-', (char)optopt, '\0' };
    bool is_long = strncmp(word, "--", 2) == 0;

    complain("%s: %s%s", c->name, is_long ? word : letter,
             found == ':' ? " needs a value" : is_long ? " is no option, or takes no value" : " is no option");
    return wrong(c);
}

static int check_count(const struct command *c, int n_words)
{
    if (n_words < c->min_words)
        complain("%s: it wants %s", c->name, c->words);
    else if (c->max_words >= 0 && n_words > c->max_words)
        complain("%s: too many words", c->name);
    else
        return -1;
    return wrong(c);
}

int options_read(const struct command *c, int argc, char **argv, void *options, char ***words, int *n_words)
{
    struct getopt_tables t;
    int found, status = -1;

    make_tables(c, &t);
    opterr = 0;
    while (status < 0 && (found = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1) {
        const struct option_row *o = find_row(c, found);
        if (o)
            store(o, options, optarg);
        else if (found == 'h')
            status = EXIT_SUCCESS, options_help(c);
        else
            status = refuse_option(c, found, argv[optind - 1]);
    }
    free(t.longs);
    *words = argv + optind;
    *n_words = argc - optind;
    return status < 0 ? check_count(c, *n_words) : status;
}

void options_free(const struct command *c, void *options)
{
    for (const struct option_row *o = c->options; o && o->name; o++)
        if (o->kind == OPTION_LIST)
            free(((struct texts *)(void *)((char *)options + o->at))->list);
}

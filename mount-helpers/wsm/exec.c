// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "exec.h"
#include "terminal.h"
#include "wsm.h"

struct given {
    bool stdin_too, tty;
    const char *cwd, *timeout, *user;
    struct texts env;
};

static const struct option_row options[] = {
    { 'i', "stdin", NULL, "pass on standard input; without it the command's is empty", OPTION_FLAG,
      offsetof(struct given, stdin_too) },
    { 't', "tty", NULL, "give it a terminal", OPTION_FLAG, offsetof(struct given, tty) },
    { 'w', "workdir", "DIR", "run it in this directory of the workspace", OPTION_TEXT, offsetof(struct given, cwd) },
    { 'e', "env", "K[=V]", "set a variable; K alone passes on ours; may be repeated", OPTION_LIST,
      offsetof(struct given, env) },
    { 0, "timeout", "S", "end it with all its processes after so many seconds", OPTION_TEXT,
      offsetof(struct given, timeout) },
    { 'u', "user", "USER", "run it as this user of the sandbox", OPTION_TEXT, offsetof(struct given, user) },
    {0},
};

/* ── its environment ─────────────────────────────────────────────────────────────────────── */

/* Adds one variable: K=V, or K with our own value; K that is not set here is left out. */
static void add_variable(FILE *out, const char *word)
{
    const char *value = strchr(word, '=') ? NULL : getenv(word);

    if (strchr(word, '='))
        fprintf(out, "%s%c", word, '\0');
    else if (value)
        fprintf(out, "%s=%s%c", word, value, '\0');
}

static bool names_term(const struct texts *env)
{
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->list[i], "TERM", 4) == 0 && (env->list[i][4] == '=' || !env->list[i][4]))
            return true;
    return false;
}

/* malloc'ed; what draws on a terminal must know which. */
static char *environment(const struct given *g, size_t *size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, size);

    if (!out)
        return NULL;
    if (g->tty && !names_term(&g->env))
        add_variable(out, "TERM");
    for (size_t i = 0; i < g->env.n; i++)
        add_variable(out, g->env.list[i]);
    fclose(out);
    return text;
}

/* ── the command ─────────────────────────────────────────────────────────────────────────── */

static int start(const struct given *g, const struct place *p, char **words, int n_words)
{
    struct job_settings s = { .cwd = g->cwd, .timeout = g->timeout, .user = g->user,
                              .argv = (const char *const *)words, .argc = n_words };
    const struct exec_options o = { g->stdin_too, g->tty };
    cleanup_free char *env = environment(g, &s.env_size);
    char size[TERMINAL_SIZE_MAX];
    cleanup_job struct job j;

    s.env = env;
    if (g->tty)
        s.tty = terminal_size(size);
    return job_new(p, &j) < 0 ? EXIT_EXEC_FAILED : exec_run(&o, &j, &s);
}

static int run(const struct command *self, void *options_given, char **words, int n_words)
{
    int dashes = strcmp(words[1], "--") == 0;
    cleanup_place struct place p = { .dir = -1 };

    if (n_words - 1 - dashes < 1) {
        complain("%s: which command?", self->name);
        return EXIT_EXEC_FAILED;
    }
    if (session_find(words[0], &p) < 0)
        return EXIT_EXEC_FAILED;
    return start(options_given, &p, words + 1 + dashes, n_words - 1 - dashes);
}

const struct command exec_commands[] = {
    { .name = "exec", .words = "PATH -- COMMAND [WORD…]", .summary = "Run a command in a session's sandbox",
      .text = "It runs in the workspace's root, without a shell. The exit status is the command's, 128 + N when\n"
              "signal N ended it, and 125 when it could not be run at all.",
      .options = options, .options_size = sizeof(struct given), .min_words = 2, .max_words = -1,
      .ends_at_word = true, .wrong_use = EXIT_EXEC_FAILED, .run = run },
    {0},
};

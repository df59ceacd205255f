// SPDX-License-Identifier: Apache-2.0
/* wsm: a mounted wsmfs from the command line. */
#include <locale.h>
#include <string.h>

#include "wsm.h"

/* In the order of the help. */
static const struct command *const tables[] = {
    exec_commands, jobs_commands, logs_commands, ps_commands, status_commands, provision_commands, close_commands,
    destroy_commands, plain_commands, fresh_commands, bind_commands, events_commands, doctor_commands,
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < array_size(tables); i++)
        for (const struct command *c = tables[i]; c->name; c++)
            if (strcmp(c->name, name) == 0)
                return c;
    return NULL;
}

static int help(void)
{
    puts("usage: wsm COMMAND [OPTION…] [WORD…]\n\n"
         "Looks after the sessions of a mounted wsmfs and runs commands in them.\n"
         "PATH is a session's directory, or anything in it.\n");
    for (size_t i = 0; i < array_size(tables); i++)
        for (const struct command *c = tables[i]; c->name; c++)
            printf("  %-10s %s\n", c->name, c->summary);
    puts("\n  wsm COMMAND --help says more about one of them, wsm --version which one this is.");
    return EXIT_SUCCESS;
}

static int run(const struct command *c, int argc, char **argv)
{
    cleanup_free void *options = take_memory(1, c->options_size);
    char **words;
    int    n_words, status = options_read(c, argc, argv, options, &words, &n_words);

    if (status < 0)
        status = c->run(c, options, words, n_words);
    options_free(c, options);
    return status;
}

/* What was printed must have arrived, or the exit status says that it has not. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    complain("standard output: %m");
    return status ? status : EXIT_FAILURE;
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int help_about(const char *name)
{
    const struct command *c = find_command(name);

    if (!c) {
        complain("there is no command \"%s\": wsm --help lists them", name);
        return EXIT_WRONG_USE;
    }
    options_help(c);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const struct command *c;

    setlocale(LC_ALL, "");
    if (argc < 2) {
        complain("which command? wsm --help lists them");
        return EXIT_WRONG_USE;
    }
    if (is_help(argv[1]))
        return finish(argc > 2 ? help_about(argv[2]) : help());
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return printf("wsm %s\n", WSMFS_VERSION), finish(EXIT_SUCCESS);
    c = find_command(argv[1]);
    if (!c)
        return help_about(argv[1]);
    return finish(run(c, argc - 1, argv + 1));
}

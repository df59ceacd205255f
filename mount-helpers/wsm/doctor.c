// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "child.h"
#include "doctor.h"
#include "wsm.h"

#define CHECK_TIMEOUT_MS 60000
#define WORDS_MAX 2

struct doctor_options {
    const char *mount;
};

static const struct option_row options[] = {
    { 'o', "options", "OPTIONS", "those of the mount, as for wsmfs", OPTION_TEXT,
      offsetof(struct doctor_options, mount) },
    {0},
};

/* Where wsmfs lies as seen from this program: beside it, as installed, and in a build tree. */
static const char *const beside[] = {"wsmfs", "../sbin/wsmfs", "../../fs/wsmfs"};

void finding_say(char *to, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(to, FOUND_MAX, fmt, ap);
    va_end(ap);
}

void doctor_print(enum verdict v, const char *what, const struct finding *f)
{
    static const char *const words[] = {[OK] = "ok", [NOTE] = "note", [MISSING] = "missing"};

    printf("%-8s %-16s %s\n", words[v], what, f->found);
    if (v != OK && f->mend[0])
        printf("%-8s %-16s %s\n", "", "", f->mend);
    fflush(stdout);
}

/* ── wsmfs --check ───────────────────────────────────────────────────────────────────────── */

/* malloc'ed; what execvp looks up where there is none beside us. */
static char *find_wsmfs(void)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < array_size(beside); i++) {
        cleanup_free char *path = text_format("%.*s/%s", (int)(slash - self), self, beside[i]);
        char *plain = access(path, X_OK) == 0 ? realpath(path, NULL) : NULL;
        if (plain)
            return plain;
    }
    return text_format("wsmfs");
}

static bool is_finding(const char *line)
{
    return strncmp(line, "ok ", 3) == 0 || strncmp(line, "note ", 5) == 0 || strncmp(line, "missing ", 8) == 0 ||
           *line == ' ';
}

/* All but its sum of them, to which we have not come yet. Where it has said only that, or something
 * else, all is shown. */
static void print_checked(const char *text, bool all)
{
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        if (all || is_finding(line))
            printf("%.*s\n", (int)(end - line), line);
    }
}

static enum verdict check_program(const char *program, int status, struct finding *f)
{
    finding_say(f->found, "%s", program);
    if (status == 127)
        finding_say(f->mend, "not found: install it (docs/install.md), or name its directory in PATH");
    else if (status == CHILD_TIMEOUT)
        finding_say(f->mend, "%s --check did not end within %d s", program, CHECK_TIMEOUT_MS / 1000);
    else if (status != 0 && status != 1)
        finding_say(f->mend, "%s --check ended with %d", program, status);
    return f->mend[0] ? MISSING : OK;
}

/* 0: a mount would work. Its output is for the other checks too. */
static int run_check(const char *mount, char **words, int n_words, char **text)
{
    cleanup_free char *program = find_wsmfs();
    const char *argv[WORDS_MAX + 5] = { program, "--check" };
    struct finding f = {0};
    enum verdict v;
    int status;

    for (int i = 0; i < n_words; i++)
        argv[2 + i] = words[i];
    if (mount) {
        argv[2 + n_words] = "-o";
        argv[3 + n_words] = mount;
    }
    status = child_run(argv, CHECK_TIMEOUT_MS, text);
    v = check_program(program, status, &f);
    doctor_print(v, "wsmfs", &f);
    print_checked(*text ? *text : "", v != OK || (status != 0 && !strstr(*text ? *text : "", "missing ")));
    return v == OK ? status : 1;
}

/* Whether wsmfs has a backend of that name: the line "ok backend none was named (there are local, docker)". */
static bool has_backend(const char *checked, const char *name)
{
    const char *at = strstr(checked, " backend "), *end;

    at = at ? strstr(at, " (there are ") : NULL;
    if (!at)
        return false;
    end = strchrnul(at, '\n');
    for (size_t n = strlen(name); (at = strstr(at, name)) && at < end; at += n)
        if (at[-1] == ' ' && (at[n] == ',' || at[n] == ')'))
            return true;
    return false;
}

static int run_own(const char *checked)
{
    int status = 0;

    for (const struct doctor_check *c = doctor_checks; c->what; c++) {
        struct finding f = {0};
        enum verdict v;
        if (c->of_backend && !has_backend(checked, c->what))
            continue;
        v = c->check(checked, &f);
        if (f.found[0])
            doctor_print(v, c->what, &f);
        if (v == MISSING)
            status = 1;
    }
    return status;
}

static int run(const struct command *self, void *given, char **words, int n_words)
{
    cleanup_free char *checked = NULL;
    const struct doctor_options *o = given;
    int status = run_check(o->mount, words, n_words, &checked);
    const char *what = n_words ? words[0] : "Local workspaces";

    (void)self;
    status |= run_own(checked ? checked : "");
    doctor_mounts();
    printf(status ? "%s would not work here yet.\n" : n_words ? "%s would work here.\n" : "%s work here.\n", what);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}

const struct command doctor_commands[] = {
    { .name = "doctor", .words = "[SOURCE DIRECTORY]", .options = options, .options_size = sizeof(struct doctor_options),
      .summary = "Say what this machine lacks, and how to mend it",
      .text = "What would be mounted where is looked at too, when it is named. The exit status is 0 when what\n"
              "is named works, else local workspaces; what only other backends need is a note.",
      .min_words = 0, .max_words = WORDS_MAX, .run = run },
    {0},
};

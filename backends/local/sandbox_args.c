// SPDX-License-Identifier: Apache-2.0
/* The options of bubblewrap (bwrap(1), 0.8.0 and newer): the sandbox is built from nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"

#define ENV_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The environment that every job has, besides HOME. */
static const char *const base_env[] = {ENV_PATH, "TERM=xterm-256color", "LANG=C.UTF-8"};

static const char *const isolation[] = {
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--hostname", "wsm", "--new-session", "--cap-drop", "ALL",
};

/* /proc/sys is the host's to whoever has uid 0 to the kernel, so it is bound read-only over the new
 * /proc, and so are the other places there that take writes. All that may be written is /workspace
 * and memory: /tmp, /dev/shm. */
static const char *const own_places[] = {
    "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
    "--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger", "--ro-bind-try", "/proc/irq", "/proc/irq",
    "--ro-bind-try", "/proc/bus", "/proc/bus", "--ro-bind-try", "/proc/fs", "/proc/fs",
    "--ro-bind-try", "/proc/pressure", "/proc/pressure",
    "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp",
    "--perms", "0755", "--dir", "/var", "--symlink", "../tmp", "/var/tmp", "--perms", "0755", "--dir", "/run",
    "--perms", "0755", "--dir", "/run/wsm",
};

static const char *const closing[] = {
    "--remount-ro", "/", "--remount-ro", "/dev", "--as-pid-1", "--chdir", SHOWN_WORKSPACE,
};

static void put(FILE *f, const char *word)
{
    fwrite(word, 1, strlen(word) + 1, f);
}

static void put_all(FILE *f, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(f, words[i]);
}

static void put3(FILE *f, const char *a, const char *b, const char *c)
{
    put_all(f, (const char *const[]){a, b, c}, 3);
}

static void put_number(FILE *f, const char *option, uint32_t n)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", n);
    put(f, option);
    put(f, text);
}

static void put_data(FILE *f, int fd, const char *inside)
{
    put_all(f, (const char *const[]){"--perms", "0644"}, 2);
    put_number(f, "--ro-bind-data", (uint32_t)fd);
    put(f, inside);
}

/* "KEY=VALUE" as --setenv KEY VALUE; what bubblewrap is told later counts. */
static void put_env(FILE *f, const char *pair)
{
    const char *eq = strchr(pair, '=');

    if (!eq || eq == pair)
        return;
    put(f, "--setenv");
    fwrite(pair, 1, (size_t)(eq - pair), f);
    fputc('\0', f);
    put(f, eq + 1);
}

static void put_environment(FILE *f, const struct sandbox_spec *spec)
{
    put(f, "--clearenv");
    put_env(f, "HOME=" SHOWN_WORKSPACE);
    for (size_t i = 0; i < array_size(base_env); i++)
        put_env(f, base_env[i]);
    for (size_t i = 0; spec->env && spec->env[i]; i++)
        put_env(f, spec->env[i]);
}

/* The sandbox's own /etc/passwd and /etc/group stand in for these. */
static bool is_replaced(const struct shown_entry *e)
{
    return !e->bind && (strcmp(e->inside, "/etc/passwd") == 0 || strcmp(e->inside, "/etc/group") == 0);
}

static void put_directory(FILE *f, const char *path)
{
    put_all(f, (const char *const[]){"--perms", "0755", "--dir", path}, 4);
}

/* bubblewrap would make the directories above a place itself, but for its own user alone. */
static void put_directories_above(FILE *f, const struct shown *shown, const char *inside)
{
    for (const char *slash = strchr(inside + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        char path[PATH_MAX];
        struct shown_place place;
        snprintf(path, sizeof(path), "%.*s", (int)(slash - inside), inside);
        shown_look(shown, path, &place);
        if (place.kind == SHOWN_ABOVE)
            put_directory(f, path);
    }
}

static void put_host(FILE *f, const struct shown *shown)
{
    size_t n;
    const struct shown_entry *e = shown_entries(shown, &n);

    for (size_t i = 0; i < n; i++) {
        if (e[i].bind || is_replaced(&e[i]))
            continue;
        put_directories_above(f, shown, e[i].inside);
        if (e[i].kind == SHOWN_LINK)
            put3(f, "--symlink", e[i].target, e[i].inside);
        else
            put3(f, "--ro-bind-try", e[i].host, e[i].inside);
    }
}

/* By their host paths, or by those where the private mount namespace has them. */
static void put_binds(FILE *f, const struct shown *shown, const struct sandbox_plan *p)
{
    size_t n, tree = 2;
    const struct shown_entry *e = shown_entries(shown, &n);

    for (size_t i = 0; i < n; i++) {
        if (!e[i].bind)
            continue;
        put_directories_above(f, shown, e[i].inside);
        put3(f, e[i].writable ? "--bind" : "--ro-bind", p->stage ? p->trees[tree++].path : e[i].host, e[i].inside);
    }
}

static void put_ids(FILE *f, const struct sandbox_spec *spec, enum sandbox_kind kind)
{
    uint32_t uid, gid;

    if (!sandbox_inside_ids(spec, kind, &uid, &gid))
        return;
    put_number(f, "--uid", uid);
    put_number(f, "--gid", gid);
}

/* Where a directory that is open has its name. The components were opened without following links,
 * and those above a workspace are out of the reach of every job. */
static int path_of(int fd, char path[PATH_MAX], struct err *e)
{
    char link[64];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, PATH_MAX - 1);
    if (n < 0)
        return err_sys(e, -errno, "the workspace's path cannot be read");
    path[n] = '\0';
    return 0;
}

static int put_files(FILE *f, const struct sandbox_spec *spec, const struct sandbox_plan *p, struct err *e)
{
    char path[PATH_MAX];
    int r = p->stage ? 0 : path_of(spec->workspace_fd, path, e);

    if (r < 0)
        return r;
    put_binds(f, spec->shown, p);
    put3(f, "--bind", p->stage ? p->trees[0].path : path, SHOWN_WORKSPACE);
    put3(f, "--ro-bind", p->stage ? p->trees[1].path : spec->guest, SHOWN_GUEST);
    return 0;
}

static int put_everything(FILE *f, const struct sandbox_spec *spec, const struct sandbox_plan *p, struct err *e)
{
    int r;

    put_all(f, isolation, array_size(isolation));
    if (spec->no_nesting)
        put(f, "--disable-userns");
    if (!spec->network_host)
        put(f, "--unshare-net");
    put_ids(f, spec, p->kind);
    put_host(f, spec->shown);
    put_data(f, SANDBOX_FD_PASSWD, "/etc/passwd");
    put_data(f, SANDBOX_FD_GROUP, "/etc/group");
    put_all(f, own_places, array_size(own_places));
    put_environment(f, spec);
    r = put_files(f, spec, p, e);
    put_all(f, closing, array_size(closing));
    return r;
}

int sandbox_args(const struct sandbox_spec *spec, const struct sandbox_plan *p, struct err *e)
{
    cleanup_free char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    int r;

    if (!f)
        return err_set(e, -ENOMEM, "out of memory");
    r = put_everything(f, spec, p, e);
    if (fclose(f) != 0 && r == 0)
        r = err_set(e, -ENOMEM, "out of memory");
    if (r < 0)
        return r;
    r = sandbox_memory_file("wsm-options", text, len);
    return r < 0 ? err_sys(e, r, "the sandbox's options cannot be kept in memory") : r;
}

int sandbox_memory_file(const char *name, const void *text, size_t len)
{
    cleanup_close int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)text + done, len - done);
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : steal_fd(&fd);
}

/* ── without bubblewrap ──────────────────────────────────────────────────────────────────── */

/* Puts `pair` (malloc'ed, taken) in place of one with the same key, or behind the last. */
static bool set_pair(char **list, size_t *n, char *pair)
{
    size_t key = pair ? strcspn(pair, "=") + 1 : 0;

    if (!pair)
        return false;
    for (size_t i = 0; i < *n; i++) {
        if (strncmp(list[i], pair, key) != 0)
            continue;
        free(list[i]);
        list[i] = pair;
        return true;
    }
    list[(*n)++] = pair;
    return true;
}

static size_t count(const char *const *list)
{
    size_t n = 0;

    while (list && list[n])
        n++;
    return n;
}

char **sandbox_environment(const struct sandbox_spec *spec, const char *home)
{
    size_t more = count(spec->env), n = 0;
    char **list = calloc(array_size(base_env) + more + 2, sizeof(*list));
    char *home_pair = NULL;
    bool good = list && asprintf(&home_pair, "HOME=%s", home) >= 0 && set_pair(list, &n, home_pair);

    for (size_t i = 0; good && i < array_size(base_env); i++)
        good = set_pair(list, &n, strdup(base_env[i]));
    for (size_t i = 0; good && i < more; i++)
        if (strchr(spec->env[i], '=') > spec->env[i])
            good = set_pair(list, &n, strdup(spec->env[i]));
    if (good)
        return list;
    sandbox_strings_free(list);
    return NULL;
}

void sandbox_strings_free(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

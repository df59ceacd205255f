// SPDX-License-Identifier: Apache-2.0
/* What is made before the fork: everything that takes memory or can be said in a sentence. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/local/idmap.h"
#include "backends/local/sandbox_internal.h"
#include "fs/base/cleanup.h"

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

static int out_of_memory(struct err *e)
{
    return err_set(e, -ENOMEM, "out of memory");
}

/* ── whose rights ────────────────────────────────────────────────────────────────────────── */

static enum sandbox_kind kind_of(const struct sandbox_spec *spec)
{
    if (!spec->confine)
        return SANDBOX_OFF;
    if (geteuid() != 0)
        return SANDBOX_PLAIN;
    return spec->tenant && spec->uid != 0 ? SANDBOX_TENANT : SANDBOX_MAPPED;
}

static void set_mapped_ids(struct sandbox_plan *p, uint32_t first_id)
{
    p->uid = p->gid = first_id ? first_id : SANDBOX_MAPPED_ID;
    p->drop = true;
}

static int set_ids(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    if (p->kind == SANDBOX_MAPPED) {
        set_mapped_ids(p, spec->mapped_id);
        return 0;
    }
    if (!spec->tenant)
        return 0;
    if (geteuid() != 0 && spec->uid != geteuid())
        return err_set(e, -EPERM, "jobs of uid %u can only be run by a mount of root's or of their own", spec->uid);
    p->drop = geteuid() == 0;
    p->uid = spec->uid;
    p->gid = spec->gid;
    p->groups = spec->groups;
    p->n_groups = spec->n_groups;
    return 0;
}

/* ── what root's private mount namespace holds ───────────────────────────────────────────── */

/* Nothing that a job sees is there, and every host has one of them. */
static const char *const stages[] = {"/mnt", "/media", "/root", "/srv", "/opt", "/home"};

static int choose_stage(struct sandbox_plan *p, struct err *e)
{
    struct stat st;

    for (size_t i = 0; i < array_size(stages); i++) {
        if (lstat(stages[i], &st) < 0 || !S_ISDIR(st.st_mode))
            continue;
        p->stage = stages[i];
        return 0;
    }
    return err_set(e, -ENOENT, "a sandbox of root's needs a directory /mnt: make it");
}

/* Gives the tree its place and ownership of `fd`. */
static int set_tree(struct sandbox_plan *p, size_t i, int fd, const char *what, struct err *e)
{
    struct sandbox_tree *t = &p->trees[i];
    struct stat st;

    if (fd < 0)
        return err_sys(e, fd, "%s cannot be mounted for the sandbox", what);
    t->fd = fd;
    snprintf(t->path, sizeof(t->path), "%s/%zu", p->stage, i);
    if (fstat(fd, &st) < 0)
        return err_sys(e, -errno, "%s", what);
    t->directory = S_ISDIR(st.st_mode);
    return 0;
}

static int clone_tree(int dir_fd, const char *path, unsigned flags)
{
    int fd = open_tree(dir_fd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);

    return fd < 0 ? -errno : fd;
}

static int stage_workspace(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    int fd;

    if (p->kind == SANDBOX_TENANT)
        return set_tree(p, 0, clone_tree(spec->workspace_fd, "", AT_EMPTY_PATH), "the workspace", e);
    fd = idmap_mount(spec->workspace_fd, p->uid, e);
    return fd < 0 ? fd : set_tree(p, 0, fd, "the workspace", e);
}

static size_t count_binds(const struct shown_entry *list, size_t n)
{
    size_t binds = 0;

    for (size_t i = 0; i < n; i++)
        binds += list[i].bind;
    return binds;
}

static int make_trees(struct sandbox_plan *p, size_t n)
{
    p->trees = calloc(n, sizeof(*p->trees));
    if (!p->trees)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        p->trees[i].fd = -1;
    p->n_trees = n;
    return 0;
}

static int stage_all(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    size_t n, tree = 2;
    const struct shown_entry *list = shown_entries(spec->shown, &n);
    int r = choose_stage(p, e);

    if (r < 0)
        return r;
    if (make_trees(p, 2 + count_binds(list, n)) < 0)
        return out_of_memory(e);
    r = stage_workspace(spec, p, e);
    if (r == 0)
        r = set_tree(p, 1, clone_tree(AT_FDCWD, spec->guest, 0), spec->guest, e);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (list[i].bind)
            r = set_tree(p, tree++, clone_tree(AT_FDCWD, list[i].host, AT_RECURSIVE), list[i].host, e);
    return r;
}

/* ── the program ─────────────────────────────────────────────────────────────────────────── */

static char **make_argv(const char *const *words, size_t n)
{
    char **list = calloc(n + 1, sizeof(*list));

    for (size_t i = 0; list && i < n; i++) {
        list[i] = strdup(words[i]);
        if (list[i])
            continue;
        sandbox_strings_free(list);
        return NULL;
    }
    return list;
}

#define TEXT_OF(n) TEXT_OF_(n)
#define TEXT_OF_(n) #n
#define FD_TEXT TEXT_OF(SANDBOX_GUEST_FD)
#define WORDS_MAX 16

/* The places where a distribution puts it; the daemon's PATH is not asked. */
static const char *const bubblewraps[] = {"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"};

static int find_bubblewrap(struct sandbox_plan *p, struct err *e)
{
    for (size_t i = 0; i < array_size(bubblewraps); i++) {
        if (access(bubblewraps[i], X_OK) < 0)
            continue;
        p->exec_path = bubblewraps[i];
        return 0;
    }
    return err_set(e, -ENOENT, "bubblewrap is not installed: install the package bubblewrap, or set confine=off");
}

/* What the guest is told, from words[at] on; returns the number of words there are then. */
static size_t put_guest_words(const struct sandbox_spec *spec, bool serve, const char **words, size_t at,
                              char grace[16])
{
    if (!serve) {
        words[at++] = "version";
        return at;
    }
    words[at++] = "serve";
    words[at++] = "--fd";
    words[at++] = FD_TEXT;
    if (spec->grace_ms == 0)
        return at;
    snprintf(grace, 16, "%u", spec->grace_ms);
    words[at++] = "--grace";
    words[at++] = grace;
    return at;
}

static int plan_bubblewrap(const struct sandbox_spec *spec, bool serve, struct sandbox_plan *p, struct err *e)
{
    const char *words[WORDS_MAX] = {"bwrap", "--info-fd", "4", "--args", "5", "--", SHOWN_GUEST};
    char grace[16];
    size_t n = put_guest_words(spec, serve, words, 7, grace);
    int r = find_bubblewrap(p, e);

    _Static_assert(SANDBOX_FD_INFO == 4 && SANDBOX_FD_ARGS == 5, "the words above name them");
    if (r < 0)
        return r;
    p->argv = make_argv(words, n);
    p->envp = calloc(1, sizeof(*p->envp));
    return p->argv && p->envp ? 0 : out_of_memory(e);
}

static int plan_unconfined(const struct sandbox_spec *spec, bool serve, struct sandbox_plan *p, struct err *e)
{
    const char *words[WORDS_MAX] = {spec->guest};
    char link[64], home[PATH_MAX], grace[16];
    size_t n_words = put_guest_words(spec, serve, words, 1, grace);
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", spec->workspace_fd);
    n = readlink(link, home, sizeof(home) - 1);
    if (n < 0)
        return err_sys(e, -errno, "the workspace's path cannot be read");
    home[n] = '\0';
    p->cwd_fd = spec->workspace_fd;
    p->detach = serve;
    p->argv = make_argv(words, n_words);
    p->envp = sandbox_environment(spec, home);
    return p->argv && p->envp ? 0 : out_of_memory(e);
}

/* ── descriptors ─────────────────────────────────────────────────────────────────────────── */

static int open_common_fds(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    p->fds[SANDBOX_FD_IN] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    p->fds[SANDBOX_FD_OUT] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (p->fds[SANDBOX_FD_IN] < 0 || p->fds[SANDBOX_FD_OUT] < 0)
        return err_sys(e, -errno, "/dev/null cannot be opened");
    p->fds[SANDBOX_FD_ERR] = sandbox_memory_file("wsm-stderr", "", 0);
    if (p->fds[SANDBOX_FD_ERR] < 0)
        return err_sys(e, p->fds[SANDBOX_FD_ERR], "no memory behind a descriptor");
    p->fds[SANDBOX_FD_LISTEN] = spec->listen_fd;
    return 0;
}

static int open_guest(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    int fd = open(spec->guest, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return err_sys(e, -errno, "the guest program %s cannot be opened", spec->guest);
    p->fds[SANDBOX_FD_EXEC] = fd;
    return 0;
}

static int open_bubblewrap_fds(const struct sandbox_spec *spec, struct sandbox_plan *p, struct err *e)
{
    uint32_t uid, gid;
    int fd = sandbox_args(spec, p, e);

    if (fd < 0)
        return fd;
    p->fds[SANDBOX_FD_ARGS] = fd;
    if (!sandbox_inside_ids(spec, p->kind, &uid, &gid)) {
        uid = p->drop ? p->uid : geteuid();
        gid = p->drop ? p->gid : getegid();
    }
    fd = sandbox_passwd(uid, gid, e);
    if (fd < 0)
        return fd;
    p->fds[SANDBOX_FD_PASSWD] = fd;
    fd = sandbox_group(gid, e);
    if (fd < 0)
        return fd;
    p->fds[SANDBOX_FD_GROUP] = fd;
    return 0;
}

static int plan_confined(const struct sandbox_spec *spec, bool serve, struct sandbox_plan *p, struct err *e)
{
    int r = plan_bubblewrap(spec, serve, p, e);

    if (r == 0 && p->kind != SANDBOX_PLAIN)
        r = stage_all(spec, p, e);
    return r == 0 ? open_bubblewrap_fds(spec, p, e) : r;
}

int sandbox_plan_make(const struct sandbox_spec *spec, bool serve, struct sandbox_plan *p, struct err *e)
{
    int r;

    *p = (struct sandbox_plan){.kind = kind_of(spec), .cwd_fd = -1};
    for (int i = 0; i < SANDBOX_FD_N; i++)
        p->fds[i] = -1;
    p->join_fds = spec->join_fds;
    p->n_join_fds = spec->n_join_fds;
    r = set_ids(spec, p, e);
    if (r == 0)
        r = open_common_fds(spec, p, e);
    if (r == 0)
        r = open_guest(spec, p, e);
    if (r < 0)
        return r;
    return p->kind == SANDBOX_OFF ? plan_unconfined(spec, serve, p, e) : plan_confined(spec, serve, p, e);
}

void sandbox_plan_finish(struct sandbox_plan *p)
{
    for (int i = 0; i < SANDBOX_FD_N; i++)
        if (p->fds[i] >= 0 && i != SANDBOX_FD_LISTEN)
            close(p->fds[i]);
    for (size_t i = 0; i < p->n_trees; i++)
        if (p->trees[i].fd >= 0)
            close(p->trees[i].fd);
    free(p->trees);
    sandbox_strings_free(p->argv);
    sandbox_strings_free(p->envp);
}

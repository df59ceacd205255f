// SPDX-License-Identifier: Apache-2.0
#include "backends/local/box.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/local/cgroup.h"
#include "backends/local/sandbox.h"
#include "backends/shared/guest_program.h"
#include "fs/base/cleanup.h"
#include "fs/base/list.h"
#include "fs/base/log.h"
#include "fs/base/walk.h"

#define END_MS          10000
#define FILE_NAME_BYTES 64
/* Root's own workspaces run under ids of their own, so that what the kernel counts by user is each
 * one's. */
#define MAPPED_IDS 60000u

struct box {
    struct list links;
    char  id[48];
    struct sandbox sandbox;
    struct cgroup *cgroup; /* NULL: none */
};

struct boxes {
    struct backend_mount mount;
    const struct local_keys *keys;
    const struct shown *shown;
    char   *guest;
    int     dir_fd;
    uint32_t dir_hash;    /* tells our groups from those of another mount of the same base directory */
    struct cgroups *cgroups;
    pthread_mutex_t lock; /* guards the list, and that nobody enters it while what an ended sandbox has left is
                           * removed; what is in a box belongs to whoever works for its workspace, one at a time */
    struct list all;
};

/* ── the list ────────────────────────────────────────────────────────────────────────────── */

static struct box *find_locked(struct boxes *bs, const char *id)
{
    list_for_each(pos, &bs->all) {
        struct box *b = container_of(pos, struct box, links);
        if (strcmp(b->id, id) == 0)
            return b;
    }
    return NULL;
}

static struct box *find(struct boxes *bs, const char *id)
{
    scoped_lock(&bs->lock);

    return find_locked(bs, id);
}

static struct box *add(struct boxes *bs, const char *id)
{
    struct box *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    snprintf(b->id, sizeof(b->id), "%s", id);
    b->sandbox.pid_fd = -1;
    pthread_mutex_lock(&bs->lock);
    list_append(&bs->all, &b->links);
    pthread_mutex_unlock(&bs->lock);
    return b;
}

static void box_free(struct boxes *bs, struct box *b)
{
    pthread_mutex_lock(&bs->lock);
    list_remove(&b->links);
    pthread_mutex_unlock(&bs->lock);
    if (b->sandbox.pid && b->sandbox.pid_fd >= 0)
        close(b->sandbox.pid_fd);
    cgroup_destroy(b->cgroup);
    free(b);
}

/* FNV-1a. */
static uint32_t hash_of(const void *data, size_t size)
{
    const unsigned char *p = data;
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < size; i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static void socket_name(const char *id, char *out) { snprintf(out, FILE_NAME_BYTES, "%s.sock", id); }

/* Each mount has sandboxes of its own, also where two share a base directory and so the instance: whoever makes
 * one ends what is in its group. */
static char *cgroup_name(const struct boxes *bs, const char *id)
{
    char *name;

    return asprintf(&name, "wsm-%s-%08x-%s", bs->mount.instance, bs->dir_hash, id) < 0 ? NULL : name;
}

/* Unconfined jobs are found by their group alone. */
static bool wants_group(const struct boxes *bs) { return bs->keys->limited || !bs->mount.confine; }

/* ── marks ───────────────────────────────────────────────────────────────────────────────── */

/* Five lines: the mark, id, user, agent, session. No name holds a newline. */
static int write_mark(struct boxes *bs, const struct box *b, const struct backend_workspace *w)
{
    char mark[SANDBOX_MARK_SIZE], name[FILE_NAME_BYTES];
    cleanup_free char *text = NULL;
    int n;

    sandbox_mark(&b->sandbox, mark);
    n = asprintf(&text, "%s\n%s\n%s\n%s\n%s\n", mark, w->id, w->user, w->agent, w->session);
    if (n < 0)
        return -ENOMEM;
    snprintf(name, sizeof(name), "%s.new", w->id);
    cleanup_close int fd = openat(bs->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if (write(fd, text, (size_t)n) != n)
        return -EIO;
    return renameat(bs->dir_fd, name, bs->dir_fd, w->id) < 0 ? -errno : 0;
}

#define MARK_LINES 5

/* The lines of a mark's file, in `text`. */
static int read_mark(struct boxes *bs, const char *id, char *text, size_t size, char *lines[MARK_LINES])
{
    cleanup_close int fd = openat(bs->dir_fd, id, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    for (int i = 0; i < MARK_LINES; i++) {
        char *end = strchr(text, '\n');
        if (!end)
            return -EIO;
        lines[i] = text;
        *end = '\0';
        text = end + 1;
    }
    return 0;
}

static void remove_files(struct boxes *bs, const char *id)
{
    char name[FILE_NAME_BYTES];

    socket_name(id, name);
    unlinkat(bs->dir_fd, name, 0);
    unlinkat(bs->dir_fd, id, 0);
}

/* The sandbox that an earlier life has started; NULL when there is none. */
static struct box *adopt(struct boxes *bs, const char *id)
{
    char text[2048], *lines[MARK_LINES];
    struct sandbox s = { .pid_fd = -1 };
    struct box *b;

    if (read_mark(bs, id, text, sizeof(text), lines) < 0 || sandbox_adopt(lines[0], &s) < 0)
        return NULL;
    b = add(bs, id);
    if (!b) {
        close(s.pid_fd);
        return NULL;
    }
    b->sandbox = s;
    if (wants_group(bs)) {
        cleanup_free char *name = cgroup_name(bs, id);
        struct err e = { 0 };
        if (name && cgroup_adopt(bs->cgroups, name, s.pid, &bs->keys->limits, &b->cgroup, &e) < 0)
            log_warning("the limits of a sandbox that was taken over could not be set: %s", e.text);
    }
    return b;
}

/* ── ending ──────────────────────────────────────────────────────────────────────────────── */

/* Whatever is left of a sandbox, running or not. */
static int end(struct boxes *bs, const char *id, struct box *b, struct err *e)
{
    int r = b && b->sandbox.pid ? sandbox_end(&b->sandbox, END_MS, e) : 0;

    if (r == 0 && b && b->cgroup)
        r = cgroup_kill(b->cgroup, END_MS, e);
    if (r == 0 && b && b->cgroup)
        r = cgroup_remove(b->cgroup, e);
    if (r < 0)
        return r;
    remove_files(bs, id);
    if (b)
        box_free(bs, b);
    return 0;
}

static struct box *present(struct boxes *bs, const char *id)
{
    struct box *b = find(bs, id);

    return b ? b : adopt(bs, id);
}

int boxes_close(struct boxes *bs, const struct backend_workspace *w, struct err *e)
{
    return end(bs, w->id, present(bs, w->id), e);
}

/* ── starting ────────────────────────────────────────────────────────────────────────────── */

static uint32_t mapped_id(const char *id)
{
    return SANDBOX_MAPPED_ID + hash_of(id, strlen(id)) % MAPPED_IDS;
}

static struct sandbox_spec spec_of(const struct boxes *bs, const struct backend_workspace *w)
{
    struct sandbox_spec s = {
        .guest = bs->guest,
        .grace_ms = (uint32_t)bs->mount.grace_ms,
        .workspace_fd = -1,
        .listen_fd = -1,
        .shown = bs->shown,
        .confine = bs->mount.confine,
        .network_host = bs->keys->network_host,
        .named = bs->keys->named,
        .inside_uid = bs->keys->inside_uid,
        .inside_gid = bs->keys->inside_gid,
        .env = (const char *const *)bs->keys->env.list,
    };

    if (!w)
        return s;
    s.mapped_id = mapped_id(w->id);
    s.tenant = w->tenant;
    s.uid = w->uid;
    s.gid = w->gid;
    s.groups = w->groups;
    s.n_groups = w->n_groups;
    return s;
}

/* The group in which it will be, empty. */
static int make_group(struct boxes *bs, struct box *b, struct err *e)
{
    cleanup_free char *name = cgroup_name(bs, b->id);
    int r;

    if (!wants_group(bs))
        return 0;
    if (!name)
        return err_set(e, -ENOMEM, "out of memory");
    r = cgroup_create(bs->cgroups, name, &bs->keys->limits, &b->cgroup, e);
    if (r == 0)
        r = cgroup_kill(b->cgroup, END_MS, e);
    if (r < 0)
        return r;
    cgroup_destroy(b->cgroup); /* its limits again: the killing allows no process any more */
    b->cgroup = NULL;
    return cgroup_create(bs->cgroups, name, &bs->keys->limits, &b->cgroup, e);
}

/* The workspace's directory and the socket are open; joins the group and starts. */
static int start_in_group(struct box *b, struct sandbox_spec *s, struct err *e)
{
    int fds[CGROUP_PARTS_MAX], n = 0, r;

    if (b->cgroup)
        n = cgroup_join_fds(b->cgroup, fds, e);
    if (n < 0)
        return n;
    s->join_fds = fds;
    s->n_join_fds = (size_t)n;
    r = sandbox_start(s, &b->sandbox, e);
    while (n > 0)
        close(fds[--n]);
    return r;
}

static int start_box(struct boxes *bs, struct box *b, const struct backend_workspace *w, struct err *e)
{
    struct sandbox_spec s = spec_of(bs, w);
    char name[FILE_NAME_BYTES];
    cleanup_close int files = walk_open(bs->mount.basedir_fd, w->host_dir, false), listen = -1;
    int r = make_group(bs, b, e);

    if (r < 0)
        return r;
    if (files < 0)
        return err_sys(e, files, "the workspace's directory cannot be opened");
    socket_name(w->id, name);
    listen = sandbox_listen(bs->dir_fd, name, e);
    if (listen < 0)
        return listen;
    s.workspace_fd = files;
    s.listen_fd = listen;
    r = start_in_group(b, &s, e);
    if (r < 0)
        return r;
    r = write_mark(bs, b, w);
    return r < 0 ? err_sys(e, r, "the sandbox cannot be written down") : 0;
}

static int start(struct boxes *bs, const struct backend_workspace *w, struct err *e)
{
    struct box *b = add(bs, w->id);
    struct err more;
    int r;

    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    r = start_box(bs, b, w, e);
    if (r < 0)
        end(bs, w->id, b, &more);
    return r == -ENXIO ? -EIO : r;
}

static int dial(struct boxes *bs, const char *id)
{
    char name[FILE_NAME_BYTES];

    socket_name(id, name);
    return sandbox_connect(bs->dir_fd, name);
}

int boxes_stream(struct boxes *bs, const struct backend_workspace *w, bool may_start, struct err *e)
{
    struct box *b = present(bs, w->id);
    int fd = b && sandbox_alive(&b->sandbox) ? dial(bs, w->id) : -ENXIO, r;

    if (fd >= 0)
        return fd;
    if (fd != -ENXIO && fd != -ECONNREFUSED && fd != -ENOENT)
        return err_sys(e, fd, "the sandbox's guest cannot be reached");
    if (!may_start)
        return err_set(e, -ENXIO, "the sandbox has ended");
    r = end(bs, w->id, b, e);
    if (r == 0)
        r = start(bs, w, e);
    if (r < 0)
        return r;
    fd = dial(bs, w->id);
    return fd < 0 ? err_sys(e, fd == -ENXIO ? -EIO : fd, "the sandbox's guest cannot be reached") : fd;
}

/* ── what runs there ─────────────────────────────────────────────────────────────────────── */

/* By what is on disk, so that it may be asked while somebody else works for the workspace. */
bool boxes_processes(struct boxes *bs, const struct backend_workspace *w)
{
    char text[2048], *lines[MARK_LINES];
    struct sandbox s = { .pid_fd = -1 };
    bool found;

    if (read_mark(bs, w->id, text, sizeof(text), lines) < 0 || sandbox_adopt(lines[0], &s) < 0)
        return false;
    found = sandbox_has_children(&s);
    close(s.pid_fd);
    return found;
}

/* ── the beginning ───────────────────────────────────────────────────────────────────────── */

/* A file name that is an id. */
static bool is_id(const char *name)
{
    size_t n = strlen(name);

    return n >= 1 && n <= 40 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

/* Removes what a sandbox that has ended has left, unless somebody has begun to work for its workspace since that
 * was seen: the files may be a new one's then. Whoever starts one is in the list before there is a file of it. */
static void remove_left(struct boxes *bs, const char *id)
{
    scoped_lock(&bs->lock);

    if (!find_locked(bs, id))
        remove_files(bs, id);
}

static void tell(struct boxes *bs, const char *id, void (*found)(const struct backend_found *f, void *arg), void *arg)
{
    char text[2048], *lines[MARK_LINES];
    struct sandbox s = { .pid_fd = -1 };
    struct backend_found f;

    if (read_mark(bs, id, text, sizeof(text), lines) < 0 || strcmp(lines[1], id) != 0)
        return;
    if (sandbox_adopt(lines[0], &s) < 0) {
        remove_left(bs, id);
        return;
    }
    close(s.pid_fd); /* whoever works for the workspace takes it over */
    f = (struct backend_found){ lines[1], lines[2], lines[3], lines[4] };
    found(&f, arg);
}

int boxes_list(struct boxes *bs, void (*found)(const struct backend_found *f, void *arg), void *arg, struct err *e)
{
    int fd = openat(bs->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_dir DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d)
        return err_sys(e, -errno, "the sandboxes in the state directory cannot be listed");
    for (struct dirent *entry; (entry = readdir(d));)
        if (is_id(entry->d_name))
            tell(bs, entry->d_name, found, arg);
    return 0;
}

int boxes_check(struct boxes *bs, struct err *e)
{
    struct sandbox_spec s = spec_of(bs, NULL);
    cleanup_close int base = fcntl(bs->mount.basedir_fd, F_DUPFD_CLOEXEC, 0);

    s.workspace_fd = base;
    return bs->mount.confine ? sandbox_check(&s, e) : 0;
}

static int open_dir(struct boxes *bs, struct err *e)
{
    cleanup_free char *path = NULL;
    struct stat st;

    if (asprintf(&path, "%s/sandbox", bs->mount.state_dir) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, -errno, "%s cannot be made", path);
    bs->dir_fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (bs->dir_fd < 0 || fstat(bs->dir_fd, &st) < 0)
        return err_sys(e, -errno, "%s cannot be opened", path);
    const uint64_t which[] = { st.st_dev, st.st_ino };
    bs->dir_hash = hash_of(which, sizeof(which));
    return 0;
}

/* What this machine must have. */
static int look_around(struct boxes *bs, struct err *e)
{
    int r = 0;

    bs->guest = guest_program();
    if (!bs->guest)
        return err_set(e, -ENOMEM, "out of memory");
    if (wants_group(bs))
        r = cgroups_create(NULL, NULL, &bs->cgroups, e);
    if (r == 0 && bs->keys->limited)
        r = cgroups_check(bs->cgroups, &bs->keys->limits, e);
    return r;
}

static void init(struct boxes *bs, const struct backend_mount *m, const struct local_keys *keys,
                 const struct shown *shown)
{
    *bs = (struct boxes){ .mount = *m, .keys = keys, .shown = shown, .dir_fd = -1 };
    pthread_mutex_init(&bs->lock, NULL);
    list_init(&bs->all);
}

static void finish(struct boxes *bs)
{
    while (!list_empty(&bs->all))
        box_free(bs, container_of(bs->all.next, struct box, links));
    cgroups_destroy(bs->cgroups);
    if (bs->dir_fd >= 0)
        close(bs->dir_fd);
    free(bs->guest);
    pthread_mutex_destroy(&bs->lock);
}

int boxes_try(const struct backend_mount *m, const struct local_keys *keys, const struct shown *shown, bool *mounts,
              struct err *e)
{
    struct boxes bs;
    int r;

    init(&bs, m, keys, shown);
    r = look_around(&bs, e);
    *mounts = r == 0;
    if (r == 0)
        r = boxes_check(&bs, e);
    finish(&bs);
    return r;
}

int boxes_create(const struct backend_mount *m, const struct local_keys *keys, const struct shown *shown,
                 struct boxes **out, struct err *e)
{
    struct boxes *bs = calloc(1, sizeof(*bs));
    int r;

    *out = NULL;
    if (!bs)
        return err_set(e, -ENOMEM, "out of memory");
    init(bs, m, keys, shown);
    r = open_dir(bs, e);
    if (r == 0)
        r = look_around(bs, e);
    if (r < 0)
        boxes_destroy(bs);
    else
        *out = bs;
    return r;
}

void boxes_destroy(struct boxes *bs)
{
    if (!bs)
        return;
    finish(bs);
    free(bs);
}

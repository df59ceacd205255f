// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/place_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/base/walk.h"

int layout_levels(const struct manager *m)
{
    static const int levels[] = {
        [ISOLATION_PER_AGENT] = PLACE_AGENT,
        [ISOLATION_PER_SESSION] = PLACE_SESSION,
        [ISOLATION_PER_USER] = PLACE_USER,
    };

    return levels[m->config->isolation];
}

/* A descriptor of the directory of `p`, whose level the layout has; -errno. */
static int open_place(const struct place *p)
{
    struct place_names n = place_names(p);
    int base = p->manager->base.fd;
    int user, agent;

    if (p->level == PLACE_ROOT)
        return walk_open(base, ".", false);
    user = walk_open(base, n.user, false);
    if (user < 0 || p->level == PLACE_USER)
        return user;
    agent = walk_open(user, n.agent, false);
    close(user);
    return agent;
}

bool place_on_disk(struct place *parent, const char *name)
{
    cleanup_close int fd = -1;
    struct stat st;

    if ((int)parent->level >= layout_levels(parent->manager))
        return false;
    fd = open_place(parent);
    return fd >= 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

void place_remove_empty(struct place *parent, const char *name)
{
    cleanup_close int fd = -1;

    if ((int)parent->level + 1 >= layout_levels(parent->manager))
        return;
    fd = open_place(parent);
    if (fd >= 0 && unlinkat(fd, name, AT_REMOVEDIR) == 0)
        log_debug("the empty directory of %s was removed", name);
}

void place_forgotten(struct place *p)
{
    struct place_names n = place_names(p);
    const char *agent = *n.agent ? n.agent : NULL;
    const char *session = *n.session ? n.session : NULL;
    struct log_fields f = { .user = n.user, .agent = agent, .session = session };

    events_add(p->manager->events, "forgotten", NULL, n.user, agent, session, NULL);
    log_event(LOG_LEVEL_INFO, &f, "forgotten");
}

static void op_done(struct registry_op *op, int status)
{
    if (status < 0)
        log_warning("a known name could not be stored: %s", strerror(-status));
    place_unref(op->place);
    free(op);
}

struct registry_op *place_op(struct place *p, enum registry_kind kind)
{
    struct registry_op *op = calloc(1, sizeof(*op));

    if (!op)
        return NULL;
    list_init(&op->links);
    op->kind = kind;
    op->place = p;
    op->done = op_done;
    place_ref(p);
    return op;
}

/* ── the start: what is on disk ──────────────────────────────────────────────────────────── */

static bool is_directory(int dir, const struct dirent *d)
{
    struct stat st;

    if (d->d_type != DT_UNKNOWN)
        return d->d_type == DT_DIR;
    return fstatat(dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* mkfs made it, where the base directory is the root of a file system. */
static bool is_lost_and_found(const struct node *parent, const char *name)
{
    return parent->pub.level == PLACE_ROOT && strcmp(name, "lost+found") == 0;
}

/* Makes known what is found in one directory of the layout, whose place is `parent`. */
static void scan_level(struct node *parent, int fd)
{
    struct manager *m = parent->pub.manager;
    int   list = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_dir DIR *dir = list >= 0 ? fdopendir(list) : NULL;

    if (!dir) {
        if (list >= 0)
            close(list);
        return;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        if (!name_valid(d->d_name) || !is_directory(dirfd(dir), d) || is_lost_and_found(parent, d->d_name))
            continue;
        pthread_mutex_lock(&m->names_lock);
        struct node *n = node_child_locked(parent, d->d_name);
        if (n)
            node_know_locked(n, false);
        pthread_mutex_unlock(&m->names_lock);
        cleanup_close int child = -1;
        if (n && (int)n->pub.level < layout_levels(m))
            child = walk_open(fd, d->d_name, false);
        if (child >= 0)
            scan_level(n, child);
    }
}

void places_scan(struct manager *m)
{
    scan_level(m->root, m->base.fd);
}

/* ── who may enter ───────────────────────────────────────────────────────────────────────── */

void node_refresh_access(struct node *user)
{
    struct manager *m = user->pub.manager;
    struct user_config u;
    uint64_t ids = (uint64_t)m->mount_uid << 32 | m->mount_gid;
    unsigned mode = 0700;

    if (config_user(m->config, user->pub.name, &u)) {
        if (u.has_uid)
            ids = (uint64_t)u.uid << 32 | u.gid;
        mode = u.mode;
    }
    atomic_store(&user->access_ids, ids);
    atomic_store(&user->access_mode, mode);
}

void place_access(struct place *p, uid_t *uid, gid_t *gid, mode_t *mode)
{
    struct place *user = p;

    if (p->level == PLACE_ROOT) {
        *uid = p->manager->mount_uid;
        *gid = p->manager->mount_gid;
        *mode = 0755;
        return;
    }
    while (user->level != PLACE_USER)
        user = user->parent;
    uint64_t ids = atomic_load_explicit(&node_of(user)->access_ids, memory_order_relaxed);
    *uid = (uid_t)(ids >> 32);
    *gid = (gid_t)ids;
    *mode = (mode_t)atomic_load_explicit(&node_of(user)->access_mode, memory_order_relaxed);
}

/* Supplementary groups are not looked at: who is let in by one alone is told to ask another way,
 * which is safe. */
bool place_may_enter(struct place *p, const struct caller *who)
{
    uid_t  uid;
    gid_t  gid;
    mode_t mode;

    place_access(p, &uid, &gid, &mode);
    if (who->uid == 0)
        return true;
    if (who->uid == uid)
        return mode & 0100;
    if (who->gid == gid)
        return mode & 0010;
    return mode & 0001;
}

bool user_allowed(struct manager *m, const char *user)
{
    struct user_config u;

    return config_users(m->config) != USERS_LISTED || config_user(m->config, user, &u);
}

struct configured {
    struct configured *next;
    char               name[];
};

static void collect_user(const char *name, void *arg)
{
    struct configured **all = arg;
    struct configured *c = malloc(sizeof(*c) + strlen(name) + 1);

    if (!c)
        return;
    strcpy(c->name, name);
    c->next = *all;
    *all = c;
}

static void know_configured(struct manager *m, const char *name)
{
    scoped_lock(&m->names_lock);
    struct node *n = name_valid(name) ? node_child_locked(m->root, name) : NULL;

    if (!n)
        return;
    node_know_locked(n, false);
    n->configured = true;
}

/* All users' flags and access are taken anew; who left the configuration stays known. */
static void refresh_users(struct manager *m)
{
    scoped_lock(&m->names_lock);

    for (struct table_link *l = NULL; (l = table_next(&m->root->children, l));) {
        struct node *n = container_of(l, struct node, by_name);
        n->configured = false;
        node_refresh_access(n);
    }
}

void places_configured(struct manager *m)
{
    struct configured *all = NULL, *next;

    refresh_users(m);
    config_each_user(m->config, collect_user, &all);
    for (struct configured *c = all; c; c = next) {
        next = c->next;
        know_configured(m, c->name);
        free(c);
    }
}

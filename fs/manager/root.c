// SPDX-License-Identifier: Apache-2.0
/* The sandbox's own root file system, as the backend shows it. */
#include <errno.h>

#include "fs/manager/internal.h"

bool manager_has_root(struct manager *m)
{
    return m->backend->root_look && m->backend->root_children;
}

void manager_root_look(struct manager *m, const char *inside, struct backend_root_place *out)
{
    m->backend->root_look(m->backend_state, inside, out);
}

void manager_root_children(struct manager *m, const char *inside, void (*each)(const char *name, void *arg), void *arg)
{
    m->backend->root_children(m->backend_state, inside, each, arg);
}

bool manager_root_moves(struct manager *m) { return m->backend->root_open; }

int session_root_open(struct place *session)
{
    struct manager *m = session->manager;
    struct workspace *ws = session_workspace(session);
    char dir[HOST_DIR_MAX];
    struct backend_workspace w;
    int fd = -ENXIO;

    workspace_describe(ws, &w, dir);
    if (m->backend->root_open)
        fd = m->backend->root_open(m->backend_state, &w);
    workspace_unref(ws);
    return fd;
}

void session_root_used(struct place *session)
{
    struct workspace *ws;
    struct err e = { 0 };

    if (!manager_root_moves(session->manager) || session_enter(session, NULL, &ws, &e) != 0) {
        session_used(session);
        return;
    }
    workspace_leave(ws);
    workspace_unref(ws);
}

void session_used(struct place *session)
{
    struct workspace *ws = session_workspace(session);

    workspace_touch(ws);
    workspace_unref(ws);
}

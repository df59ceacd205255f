// SPDX-License-Identifier: Apache-2.0
/* The sandbox's own root file system, as the backend shows it. */
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

void session_used(struct place *session)
{
    struct workspace *ws = session_workspace(session);

    workspace_touch(ws);
    workspace_unref(ws);
}

// SPDX-License-Identifier: Apache-2.0
/* Writing a workspace's row behind, or with a waiter that is told. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/manager/internal.h"

struct store {
    struct registry_op op; /* first */
    struct manager    *manager;
    struct list        waiters; /* wait_lock */
};

static void store_done(struct registry_op *op, int status)
{
    struct store *s = container_of(op, struct store, op);
    struct manager *m = s->manager;

    if (status < 0)
        log_event(LOG_LEVEL_WARNING, &(struct log_fields){ .id = op->ws->id }, "not stored: %s",
                  strerror(-status));
    waiters_finish(m, &s->waiters, status);
    workspace_unref(op->ws);
    free(s);
}

static struct store *store_new(struct workspace *ws)
{
    struct store *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->op.kind = REGISTRY_WORKSPACE;
    s->op.ws = ws;
    s->op.done = store_done;
    s->manager = ws->manager;
    list_init(&s->op.links);
    list_init(&s->waiters);
    workspace_ref(ws);
    return s;
}

void workspace_store(struct workspace *ws)
{
    struct registry *r = ws->manager->registry;
    struct store *s;

    if (!r || atomic_exchange(&ws->row_queued, true))
        return;
    s = store_new(ws);
    if (s)
        registry_add(r, &s->op);
    else
        atomic_store(&ws->row_queued, false);
}

int workspace_store_wait(struct workspace *ws, struct waiter *w, struct err *e)
{
    struct registry *r = ws->manager->registry;
    struct store *s = store_new(ws);

    if (!s)
        return err_set(e, -ENOMEM, "out of memory");
    s->op.urgent = true;
    waiters_add(ws->manager, &s->waiters, w);
    registry_add(r, &s->op);
    return MANAGER_WAIT;
}

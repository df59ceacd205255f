// SPDX-License-Identifier: Apache-2.0
/* What must survive a restart, in one SQLite file of the state directory: known names, bindings,
 * and for each workspace its owner, pin, ttl and whether it is live. One thread writes; nobody else
 * ever waits for the disk, but a waiter can be told when something is stored. */
#ifndef WSMFS_MANAGER_REGISTRY_H
#define WSMFS_MANAGER_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/base/err.h"
#include "fs/base/list.h"

struct manager;
struct place;
struct registry;
struct workspace;

/* A workspace's row. Strings are borrowed for the call. */
struct registry_workspace {
    const char *id, *user, *agent, *session;
    bool    derived, pinned, live;
    int64_t ttl_s;          /* -1: the configured one */
    int64_t created_ms;     /* wall clock, 0: never */
    int64_t last_access_ms; /* wall clock */
};

/* A known name's row: agent and session are "" above their level; bound NULL: derived id. */
struct registry_place {
    const char *user, *agent, *session, *bound;
};

enum registry_kind {
    REGISTRY_PLACE,     /* the name is known */
    REGISTRY_FORGET,    /* … no longer, and its binding goes too */
    REGISTRY_BIND,      /* the session's explicit id is `id`, "" for none; the name is known */
    REGISTRY_WORKSPACE, /* the workspace's row as it is when it is written */
};

/* One piece of writing. The registry takes it and, after COMMIT (status 0) or failure (-errno),
 * calls `done` on its own thread, no lock held, in the order of adding; `done` frees it. */
struct registry_op {
    struct list        links;
    enum registry_kind kind;
    struct place      *place;  /* referenced; NULL for REGISTRY_WORKSPACE */
    struct workspace  *ws;     /* referenced; REGISTRY_WORKSPACE, or with REGISTRY_BIND: written too */
    char               id[41]; /* REGISTRY_BIND */
    bool               urgent; /* somebody waits for it: written at once */
    void             (*done)(struct registry_op *op, int status);
};

/* Opens or makes the file. Main thread. */
int registry_open(const char *dir, struct manager *m, struct registry **out, struct err *e);

/* Calls the functions for all rows; main thread, before registry_start. */
int registry_load(struct registry *r, void (*place)(const struct registry_place *p, void *arg),
                  void (*workspace)(const struct registry_workspace *w, void *arg), void *arg,
                  struct err *e);

/* Starts the writer. -errno. */
int registry_start(struct registry *r);

/* Queues `op`. Any thread, also with names_lock or a workspace's lock held (the queue's lock is a
 * leaf), never blocks. */
void registry_add(struct registry *r, struct registry_op *op);

/* Writes everything out and ends the thread. NULL is fine. Main thread. */
void registry_close(struct registry *r);

#endif

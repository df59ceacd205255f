// SPDX-License-Identifier: Apache-2.0
/* What happens to workspaces, as JSON lines in a bounded ring that any number of readers follow. */
#ifndef WSMFS_MANAGER_EVENTS_H
#define WSMFS_MANAGER_EVENTS_H

#include <stdint.h>
#include <sys/types.h>

#include "fs/base/list.h"

struct events;

/* Lives inside a reader; `more` is called (any thread, no lock held, must not block) after events
 * were added. */
struct events_listener {
    struct list links; /* the events' */
    uint64_t    told;  /* the events' */
    void       *owner; /* of whoever listens on the caller's behalf */
    void (*more)(struct events_listener *l);
};

/* Keeps the newest `max_bytes` of lines. */
struct events *events_create(size_t max_bytes);
void events_destroy(struct events *ev);

/* Adds one line {"time":…,"event":…,"user":…,…}; NULL members are left out. Any thread. */
void events_add(struct events *ev, const char *event, const char *id, const char *user,
                const char *agent, const char *session, const char *text);

/* Adds a line as it is (no newline in it). Any thread. */
void events_add_line(struct events *ev, const char *line);

/* Tells all listeners that something has changed though no line was added. Any thread. */
void events_poke(struct events *ev);

/* The position of the next line to come: where a new reader starts. */
uint64_t events_end(struct events *ev);

/* Copies whole lines from *pos on, as many as fit (a line longer than `size` is cut into pieces),
 * and moves *pos. A reader that fell behind the ring goes on at the oldest line kept, after a line
 * {"event":"lost",…}. Returns the bytes copied, 0 when there is nothing yet. */
size_t events_read(struct events *ev, uint64_t *pos, char *buf, size_t size);

void events_listen(struct events *ev, struct events_listener *l);
/* Afterwards `more` is not running and will not be called (from within `more` itself: it returns at
 * once). Not with a lock held that `more` takes. */
void events_unlisten(struct events *ev, struct events_listener *l);

#endif

// SPDX-License-Identifier: Apache-2.0
/* Threads for work that may take long. A task that hangs holds one thread and delays no other task
 * as long as fewer than `max_threads` hang. */
#ifndef WSMFS_BASE_POOL_H
#define WSMFS_BASE_POOL_H

#include <stdint.h>

#include "fs/base/list.h"

struct pool;

/* One piece of work. Lives inside its owner; may be queued again once `run` has been entered. */
struct task {
    struct list links;
    void (*run)(struct task *t);
};

/* Makes a pool whose threads start when there is work and nobody idle, end after a few idle
 * seconds, block all signals and have `stack_bytes` of stack (0: the default). NULL when out of
 * memory. */
struct pool *pool_create(unsigned max_threads, size_t stack_bytes);

/* Waits until no task is queued or runs, at most for `timeout_ns`. False: one still does (it hangs,
 * or others were queued all the time). Not from a task. */
bool pool_drain(struct pool *p, int64_t timeout_ns);

/* Waits until all queued tasks have run, then ends the threads. NULL is fine. Not from a task. */
void pool_destroy(struct pool *p);

/* Queues `t`; run() is called once on a thread of the pool with no lock held. Any thread, never
 * blocks. When no thread can be made and none exists the task runs in the caller. */
void pool_add(struct pool *p, struct task *t);

#endif

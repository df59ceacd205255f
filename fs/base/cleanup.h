// SPDX-License-Identifier: Apache-2.0
/* Attributes that release what a scope holds, and helpers that pass ownership on. */
#ifndef WSMFS_BASE_CLEANUP_H
#define WSMFS_BASE_CLEANUP_H

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_fn(void *p) { free(*(void **)p); }
static inline void cleanup_close_fn(int *fd) { if (*fd >= 0) close(*fd); }
static inline void cleanup_dir_fn(DIR **d) { if (*d) closedir(*d); }
static inline void cleanup_file_fn(FILE **f) { if (*f) fclose(*f); }
static inline void cleanup_unlock_fn(pthread_mutex_t **m) { if (*m) pthread_mutex_unlock(*m); }

#define cleanup_free  __attribute__((cleanup(cleanup_free_fn)))
#define cleanup_close __attribute__((cleanup(cleanup_close_fn)))
#define cleanup_dir   __attribute__((cleanup(cleanup_dir_fn)))
#define cleanup_file  __attribute__((cleanup(cleanup_file_fn)))

/* Locks `m` until the end of the enclosing scope. */
#define SCOPED_LOCK_JOIN(a, b) a##b
#define SCOPED_LOCK_NAME(line) SCOPED_LOCK_JOIN(scoped_lock_, line)
#define scoped_lock(m) \
    __attribute__((cleanup(cleanup_unlock_fn), unused)) pthread_mutex_t *SCOPED_LOCK_NAME(__LINE__) = \
        (pthread_mutex_lock(m), (m))

/* Gives the descriptor away and forgets it. */
static inline int steal_fd(int *fd) { int r = *fd; *fd = -1; return r; }
/* Gives the pointer away and forgets it. */
#define steal_ptr(pp) ({ __typeof__(*(pp)) steal_ptr_r = *(pp); *(pp) = NULL; steal_ptr_r; })

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define array_size(a) (sizeof(a) / sizeof((a)[0]))

#endif

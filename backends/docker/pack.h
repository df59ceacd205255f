// SPDX-License-Identifier: Apache-2.0
/* A directory as an engine wants it for a build: a tar, and a hash that says whether two are the same. */
#ifndef WSMFS_DOCKER_PACK_H
#define WSMFS_DOCKER_PACK_H

#include <stddef.h>
#include <sys/types.h>

#include "fs/base/err.h"

#define PACK_HASH_SIZE 65

/* The stream is a function of the names, modes, link targets and bytes of what the directory holds, in order of
 * names; owners and times are always the same. What its .dockerignore names is left out, but never the
 * Dockerfile and the .dockerignore themselves; so are devices, FIFOs and sockets. */
struct pack;

/* `directory` is absolute. `hash` is how its hash begins (NULL: any): a stream that turns out to have another one
 * has no end, so that nobody takes it. Reads the .dockerignore alone. -ENXIO: there is no such directory, or no Dockerfile in it;
 * -EACCES, -EIO, -ENOMEM; with a sentence. */
int pack_open(const char *directory, const char *hash, struct pack **out, struct err *e);
/* NULL is fine. */
void pack_close(struct pack *p);

/* The next bytes of the stream: how many, 0 at its end; -EAGAIN: the directory changes meanwhile, or it has not
 * that hash; else -errno; with a sentence. Reads the disk, so it may take a while. */
ssize_t pack_read(struct pack *p, char *buf, size_t size_bytes, struct err *e);

/* The hash of a stream that has been read to its end. Borrowed. */
const char *pack_hash(const struct pack *p);

#endif

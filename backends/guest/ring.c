// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "backends/guest/guest.h"

int ring_pieces(const struct ring *r, uint64_t offset, uint32_t len, struct iovec iov[2])
{
    uint32_t at = (uint32_t)(offset & (r->size_bytes - 1));
    uint32_t first = r->size_bytes - at < len ? r->size_bytes - at : len;

    iov[0] = (struct iovec){ r->buf + at, first };
    iov[1] = (struct iovec){ r->buf, len - first };
    return len == first ? 1 : 2;
}

/* What a ring of this size adds to the account of grown ones. */
static uint64_t counted(uint32_t size_bytes) { return size_bytes > RING_MIN_BYTES ? size_bytes : 0; }

void ring_free(struct guest *g, struct ring *r)
{
    g->rings_bytes -= counted(r->size_bytes);
    if (r->buf)
        munmap(r->buf, r->size_bytes);
    r->buf = NULL;
    r->size_bytes = 0;
}

/* Memory straight from the kernel: only the pages that are used count, and all are given back. A job's child has
 * no use for what a large one holds, and a fork would make each page cost a fault. */
static uint8_t *memory(uint32_t size_bytes)
{
    void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p != MAP_FAILED && counted(size_bytes))
        madvise(p, size_bytes, MADV_DONTFORK);
    return p == MAP_FAILED ? NULL : p;
}

/* Puts `len` bytes in at `offset`, whose room is there. */
static void put(struct ring *r, uint64_t offset, const uint8_t *p, uint32_t len)
{
    struct iovec to[2];

    if (ring_pieces(r, offset, len, to) == 2)
        memcpy(to[1].iov_base, p + to[0].iov_len, to[1].iov_len);
    memcpy(to[0].iov_base, p, to[0].iov_len);
}

uint32_t ring_put(struct guest *g, struct ring *r, const uint8_t *p, uint32_t len)
{
    uint32_t room = ring_room(g, r), n = len < room ? len : room;

    if (n)
        put(r, r->head, p, n);
    r->head += n;
    return n;
}

/* Moves what it holds into a buffer of `size_bytes`; without memory nothing changes. */
static void resize(struct guest *g, struct ring *r, uint32_t size_bytes)
{
    struct ring bigger = { memory(size_bytes), size_bytes, r->tail, r->head };
    uint32_t used = (uint32_t)(r->head - r->tail);
    struct iovec from[2];

    if (!bigger.buf)
        return;
    if (used) {
        int n = ring_pieces(r, r->tail, used, from);

        put(&bigger, r->tail, from[0].iov_base, (uint32_t)from[0].iov_len);
        if (n == 2)
            put(&bigger, r->tail + from[0].iov_len, from[1].iov_base, (uint32_t)from[1].iov_len);
    }
    ring_free(g, r);
    *r = bigger;
    g->rings_bytes += counted(size_bytes);
}

static bool may_grow(const struct guest *g, const struct ring *r)
{
    return r->size_bytes < RING_MAX_BYTES &&
           g->rings_bytes - counted(r->size_bytes) + r->size_bytes * 4 <= RINGS_MAX_BYTES;
}

uint32_t ring_room(struct guest *g, struct ring *r)
{
    if (!r->buf)
        resize(g, r, RING_MIN_BYTES);
    else if (r->head - r->tail == r->size_bytes && may_grow(g, r))
        resize(g, r, r->size_bytes * 4);
    return r->size_bytes - (uint32_t)(r->head - r->tail);
}

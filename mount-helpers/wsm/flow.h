// SPDX-License-Identifier: Apache-2.0
/* Bytes from one descriptor to another, a step at a time, so that one poll(2) serves several. */
#ifndef WSM_FLOW_H
#define WSM_FLOW_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#define FLOW_BYTES (256 << 10)

struct flow {
    int    from, to;    /* owned; -1: not any more */
    char  *buf;         /* FLOW_BYTES */
    size_t at, end;     /* what was read and is not written yet */
    size_t piece_bytes; /* at most so much in one write; what blocks nobody */
    int    read_error, write_error; /* errno that ended it; 0: none, or the end of the file */
};

/* Takes both descriptors. `from` has O_NONBLOCK or is read once poll says that it can be. */
void flow_init(struct flow *f, int from, int to, size_t piece_bytes);
/* Closes and frees. Fine on a zeroed one that flow_init never saw, and twice. */
void flow_finish(struct flow *f);

/* Whether all has been written, or can never be. */
bool flow_done(const struct flow *f);

/* Adds what it waits for to a list for poll(2); at most two entries. */
void flow_poll(const struct flow *f, struct pollfd *list, size_t *n);

/* Reads and writes what can be without waiting. Interruptions and "not now" are no errors. After a
 * write error it goes on reading and throws away, so that the other end does not wait for ever,
 * unless `stop` is set: then it ends. */
void flow_step(struct flow *f, bool stop);

/* A descriptor of its own for writing to what `fd` writes to, that never blocks; O_NONBLOCK on `fd`
 * itself would be everybody's. -1 where it is not open. `piece_bytes` is what flow_init wants. */
int flow_output(int fd, size_t *piece_bytes);

#endif

// SPDX-License-Identifier: Apache-2.0
/* The codec of the guest protocol: whatever is accepted must encode to the same bytes again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/guest/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok)
        abort();
}

static void check_jobs(const struct proto_list_answer *m)
{
    static uint8_t again[1 << 16];
    struct proto_out o = { again, sizeof(again), 0, false };
    struct proto_job j;
    size_t pos = 0;
    int r;

    while ((r = proto_job_next(&m->jobs, &pos, &j)) == 1)
        proto_job_put(&o, &j);
    if (r == 0 && !o.full) {
        require(o.len == m->jobs.len);
        require(memcmp(again, m->jobs.p, o.len) == 0);
    }
}

static void check(const struct proto_head *h, const uint8_t *frame)
{
    static uint8_t again[1 << 16];
    static union { uint64_t align; uint8_t bytes[1024]; struct proto_list_answer list; } msg;
    struct proto_out o = { again, sizeof(again), 0, false };
    int r = proto_decode(h->type, frame + PROTO_HEAD_BYTES, h->size_bytes - PROTO_HEAD_BYTES, &msg);

    if (r != 0)
        return;
    require(proto_msg_size(h->type) <= sizeof(msg));
    proto_encode(&o, h->type, h->tag, &msg);
    require(!o.full && o.len == h->size_bytes && memcmp(again, frame, o.len) == 0);
    if (h->type == (PROTO_LIST | PROTO_ANSWER) && msg.list.status.code == 0)
        check_jobs(&msg.list);
}

static void check_output(const struct proto_head *h, const uint8_t *p, size_t size)
{
    struct proto_output m;

    if (h->type == PROTO_OUTPUT && size >= PROTO_OUTPUT_HEAD_BYTES && proto_output_decode(h, p, &m) == 0)
        require(m.stream <= PROTO_STDERR && m.data.len == h->size_bytes - PROTO_OUTPUT_HEAD_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proto_head h;

    if (size > 1 << 16)
        return 0;
    while (proto_head_decode(data, size, 1 << 16, &h) == 0) {
        check_output(&h, data, size);
        if (h.size_bytes > size)
            break;
        check(&h, data);
        data += h.size_bytes;
        size -= h.size_bytes;
    }
    return 0;
}

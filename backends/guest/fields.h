// SPDX-License-Identifier: Apache-2.0
/* Walks a table of fields over a struct and bytes: the inside of protocol.c. */
#ifndef WSMFS_GUEST_FIELDS_H
#define WSMFS_GUEST_FIELDS_H

#include "backends/guest/protocol.h"

enum field_kind {
    FIELD_END,
    FIELD_U8, FIELD_U16, FIELD_U32, FIELD_U64, /* lo to hi */
    FIELD_I32,
    FIELD_ID,
    FIELD_STR,    /* at most hi bytes */
    FIELD_LIST,   /* lo to hi texts, of PROTO_LIST_MAX_BYTES together */
    FIELD_WORDS,  /* at most hi */
    FIELD_STATUS, /* ends the message where it is not 0; its text at most hi bytes */
    FIELD_DATA,   /* the rest: lo to hi bytes, a multiple of step (0: any) */
};

struct field {
    uint8_t  kind;
    uint8_t  step;
    uint16_t at; /* of the member in its struct */
    uint64_t lo, hi;
};

/* Where a decoder reads; `bad` sticks, and what was read after it is worthless. */
struct field_in {
    const uint8_t *p;
    size_t         left;
    bool           bad;
};

void fields_decode(const struct field *f, struct field_in *in, void *msg);
/* As above, but stops before a FIELD_DATA. */
void fields_decode_fixed(const struct field *f, struct field_in *in, void *msg);
/* Checks the same limits. `data_len` not NULL: a FIELD_DATA is not written, its length goes there. */
void fields_encode(const struct field *f, struct proto_out *o, const void *msg, size_t *data_len);
/* Appends raw bytes. */
void fields_put(struct proto_out *o, const void *p, size_t n);

#endif

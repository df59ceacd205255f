// SPDX-License-Identifier: Apache-2.0
#include "backends/guest/fields.h"

#include <string.h>

#include "backends/guest/wire.h"

/* A message whose status is not 0 ends there. */
#define GO_ON true
#define ENDS  false

static const uint8_t *take(struct field_in *in, size_t n)
{
    static const uint8_t nothing[PROTO_ID_BYTES];

    if (in->bad || in->left < n) {
        in->bad = true;
        return nothing;
    }
    in->p += n;
    in->left -= n;
    return in->p - n;
}

/* ── numbers ── */

static const uint8_t width_of[] = { [FIELD_U8] = 1, [FIELD_U16] = 2, [FIELD_U32] = 4, [FIELD_U64] = 8 };

static void store(uint8_t width, void *to, uint64_t v)
{
    if (width == 1) *(uint8_t *)to = (uint8_t)v;
    else if (width == 2) *(uint16_t *)to = (uint16_t)v;
    else if (width == 4) *(uint32_t *)to = (uint32_t)v;
    else *(uint64_t *)to = v;
}

static uint64_t load(uint8_t width, const void *from)
{
    return width == 1 ? *(const uint8_t *)from : width == 2 ? *(const uint16_t *)from
         : width == 4 ? *(const uint32_t *)from : *(const uint64_t *)from;
}

static void decode_number(const struct field *f, struct field_in *in, void *to)
{
    uint8_t width = width_of[f->kind];
    const uint8_t *p = take(in, width);
    uint64_t v = width == 1 ? *p : width == 2 ? wire_get16(p) : width == 4 ? wire_get32(p) : wire_get64(p);

    if (v < f->lo || v > f->hi)
        in->bad = true;
    store(width, to, v);
}

static void put_number(struct proto_out *o, uint8_t width, uint64_t v)
{
    uint8_t b[8];

    wire_put64(b, v);
    fields_put(o, b, width);
}

static void encode_number(const struct field *f, struct proto_out *o, const void *from)
{
    uint64_t v = load(width_of[f->kind], from);

    if (v < f->lo || v > f->hi)
        o->full = true;
    put_number(o, width_of[f->kind], v);
}

/* ── texts and lists ── */

static void decode_str(const struct field *f, struct field_in *in, struct proto_str *to)
{
    uint32_t len = wire_get32(take(in, 4));

    if (in->bad || len > f->hi || in->left < (size_t)len + 1 || in->p[len] != 0 || memchr(in->p, 0, len)) {
        in->bad = true;
        len = 0;
    }
    to->s = len ? (const char *)in->p : "";
    to->len = len;
    take(in, (size_t)len + 1);
}

static void encode_str(const struct field *f, struct proto_out *o, const struct proto_str *from)
{
    uint32_t len = from->s ? from->len : 0;

    if (len > f->hi || (len && memchr(from->s, 0, len)))
        o->full = true;
    put_number(o, 4, len);
    fields_put(o, from->s, len);
    put_number(o, 1, 0);
}

static bool list_is_good(const struct field *f, const char *s, uint32_t count, uint32_t size)
{
    uint32_t nuls = 0;

    if (count < f->lo || count > f->hi || size > PROTO_LIST_MAX_BYTES)
        return false;
    if (size == 0)
        return count == 0;
    if (s[size - 1] != 0)
        return false;
    for (const char *at = s; at < s + size; at = (const char *)memchr(at, 0, (size_t)(s + size - at)) + 1)
        nuls++;
    return nuls == count;
}

static void decode_list(const struct field *f, struct field_in *in, struct proto_list *to)
{
    uint32_t count = wire_get32(take(in, 4));
    uint32_t size = wire_get32(take(in, 4));

    to->s = "";
    if (in->bad || size > in->left || !list_is_good(f, (const char *)in->p, count, size)) {
        in->bad = true;
        return;
    }
    *to = (struct proto_list){ size ? (const char *)in->p : "", count, size };
    take(in, size);
}

static void encode_list(const struct field *f, struct proto_out *o, const struct proto_list *from)
{
    if (!list_is_good(f, from->s, from->count, from->size))
        o->full = true;
    put_number(o, 4, from->count);
    put_number(o, 4, from->size);
    fields_put(o, from->s, from->size);
}

static void decode_words(const struct field *f, struct field_in *in, struct proto_words *to)
{
    uint32_t count = wire_get32(take(in, 4));

    if (in->bad || count > f->hi) {
        in->bad = true;
        return;
    }
    to->p = take(in, 4 * (size_t)count);
    to->count = in->bad ? 0 : count;
}

static void encode_words(const struct field *f, struct proto_out *o, const struct proto_words *from)
{
    if (from->count > f->hi)
        o->full = true;
    put_number(o, 4, from->count);
    fields_put(o, from->p, 4 * (size_t)from->count);
}

/* ── the rest of a payload ── */

static bool data_is_good(const struct field *f, size_t len)
{
    return len >= f->lo && len <= f->hi && (!f->step || len % f->step == 0);
}

static void decode_data(const struct field *f, struct field_in *in, struct proto_data *to)
{
    size_t len = in->left;

    if (in->bad || !data_is_good(f, len)) {
        in->bad = true;
        return;
    }
    to->p = take(in, len);
    to->len = (uint32_t)len;
}

static void encode_data(const struct field *f, struct proto_out *o, const struct proto_data *from,
                        size_t *data_len)
{
    if (!data_is_good(f, from->len))
        o->full = true;
    if (data_len)
        *data_len = from->len;
    else
        fields_put(o, from->p, from->len);
}

/* ── a status ── */

static bool decode_status(const struct field *f, struct field_in *in, struct proto_status *to)
{
    to->code = (int32_t)wire_get32(take(in, 4));
    if (to->code > 0 || to->code < -4095)
        in->bad = true;
    decode_str(f, in, &to->text);
    return to->code == 0;
}

static bool encode_status(const struct field *f, struct proto_out *o, const struct proto_status *from)
{
    if (from->code > 0 || from->code < -4095)
        o->full = true;
    put_number(o, 4, (uint32_t)from->code);
    encode_str(f, o, &from->text);
    return from->code == 0;
}

/* ── walking ── */

static bool decode_one(const struct field *f, struct field_in *in, void *to)
{
    switch ((enum field_kind)f->kind) {
    case FIELD_U8: case FIELD_U16: case FIELD_U32: case FIELD_U64: decode_number(f, in, to); break;
    case FIELD_I32:    *(int32_t *)to = (int32_t)wire_get32(take(in, 4)); break;
    case FIELD_ID:     memcpy(to, take(in, PROTO_ID_BYTES), PROTO_ID_BYTES); break;
    case FIELD_STR:    decode_str(f, in, to); break;
    case FIELD_LIST:   decode_list(f, in, to); break;
    case FIELD_WORDS:  decode_words(f, in, to); break;
    case FIELD_DATA:   decode_data(f, in, to); break;
    case FIELD_STATUS: return decode_status(f, in, to);
    case FIELD_END:    break;
    }
    return GO_ON;
}

static bool encode_one(const struct field *f, struct proto_out *o, const void *from, size_t *data_len)
{
    switch ((enum field_kind)f->kind) {
    case FIELD_U8: case FIELD_U16: case FIELD_U32: case FIELD_U64: encode_number(f, o, from); break;
    case FIELD_I32:    put_number(o, 4, (uint32_t)*(const int32_t *)from); break;
    case FIELD_ID:     fields_put(o, from, PROTO_ID_BYTES); break;
    case FIELD_STR:    encode_str(f, o, from); break;
    case FIELD_LIST:   encode_list(f, o, from); break;
    case FIELD_WORDS:  encode_words(f, o, from); break;
    case FIELD_DATA:   encode_data(f, o, from, data_len); break;
    case FIELD_STATUS: return encode_status(f, o, from);
    case FIELD_END:    break;
    }
    return GO_ON;
}

static void decode_until(const struct field *f, enum field_kind stop, struct field_in *in, void *msg)
{
    for (; f->kind != FIELD_END && f->kind != stop && !in->bad; f++)
        if (decode_one(f, in, (char *)msg + f->at) == ENDS)
            return;
}

void fields_decode(const struct field *f, struct field_in *in, void *msg)
{
    decode_until(f, FIELD_END, in, msg);
}

void fields_decode_fixed(const struct field *f, struct field_in *in, void *msg)
{
    decode_until(f, FIELD_DATA, in, msg);
}

void fields_encode(const struct field *f, struct proto_out *o, const void *msg, size_t *data_len)
{
    for (; f->kind != FIELD_END; f++)
        if (encode_one(f, o, (const char *)msg + f->at, data_len) == ENDS)
            return;
}

void fields_put(struct proto_out *o, const void *p, size_t n)
{
    if (o->buf && o->size - o->len < n)
        o->full = true;
    if (o->full || n == 0)
        return;
    if (o->buf)
        memcpy(o->buf + o->len, p, n);
    o->len += n;
}

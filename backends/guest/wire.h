// SPDX-License-Identifier: Apache-2.0
/* Little-endian numbers at any address. */
#ifndef WSMFS_GUEST_WIRE_H
#define WSMFS_GUEST_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t wire_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return le16toh(v); }
static inline uint32_t wire_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return le32toh(v); }
static inline uint64_t wire_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return le64toh(v); }
static inline void wire_put16(uint8_t *p, uint16_t v) { v = htole16(v); memcpy(p, &v, 2); }
static inline void wire_put32(uint8_t *p, uint32_t v) { v = htole32(v); memcpy(p, &v, 4); }
static inline void wire_put64(uint8_t *p, uint64_t v) { v = htole64(v); memcpy(p, &v, 8); }

#endif

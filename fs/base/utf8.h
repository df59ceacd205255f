// SPDX-License-Identifier: Apache-2.0
/* Looking at UTF-8 text that others wrote. */
#ifndef WSMFS_BASE_UTF8_H
#define WSMFS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the character at `s` (NUL-terminated text) into *c and returns its length in bytes, or 0
 * when it is not valid UTF-8 (overlong forms, surrogates and what lies above U+10FFFF are not:
 * RFC 3629, section 3). */
size_t utf8_read(const char *s, uint32_t *c);

/* A control character: U+0000 to U+001F and U+007F to U+009F. */
bool utf8_is_control(uint32_t c);

#endif

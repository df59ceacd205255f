// SPDX-License-Identifier: Apache-2.0
#include "fs/base/utf8.h"

static size_t length_by_lead(unsigned char lead)
{
    static const struct { unsigned char below, length; } table[] = {
        {0x80, 1}, {0xc2, 0}, {0xe0, 2}, {0xf0, 3}, {0xf5, 4},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (lead < table[i].below)
            return table[i].length;
    return 0;
}

size_t utf8_read(const char *s, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = length_by_lead((unsigned char)s[0]);

    *c = (unsigned char)s[0];
    if (n < 2)
        return n;
    *c &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        *c = *c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return *c < least[n] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000) ? 0 : n;
}

bool utf8_is_control(uint32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

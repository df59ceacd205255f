// SPDX-License-Identifier: Apache-2.0
#include "backends/shared/guest_program.h"

#include <stddef.h>

#include "backends/shared/beside.h"

char *guest_program(void)
{
    static const char *const places[] = { "../backends/guest/wsm-guest", "../libexec/wsmfs/wsm-guest", NULL };

    return beside_program(places, WSMFS_GUEST);
}

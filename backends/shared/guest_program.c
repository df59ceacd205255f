// SPDX-License-Identifier: Apache-2.0
#include "backends/shared/guest_program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

char *guest_program(void)
{
    static const char *const places[] = { "../backends/guest/wsm-guest", "../libexec/wsmfs/wsm-guest", NULL };
    char exe[PATH_MAX], *path;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    char *slash;

    if (n < 0)
        return strdup(WSMFS_GUEST);
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    *slash = '\0';
    for (int i = 0; places[i]; i++) {
        cleanup_free char *beside = NULL;
        if (asprintf(&beside, "%s/%s", exe, places[i]) < 0)
            return NULL;
        path = access(beside, X_OK) == 0 ? realpath(beside, NULL) : NULL;
        if (path)
            return path;
    }
    return strdup(WSMFS_GUEST);
}

// SPDX-License-Identifier: Apache-2.0
#include "backends/shared/beside.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/base/cleanup.h"

char *beside_program(const char *const *places, const char *otherwise)
{
    char exe[PATH_MAX], *path, *slash;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    if (n < 0)
        return strdup(otherwise);
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    *slash = '\0';
    for (; *places; places++) {
        cleanup_free char *beside = NULL;
        if (asprintf(&beside, "%s/%s", exe, *places) < 0) {
            beside = NULL;
            return NULL;
        }
        path = access(beside, R_OK) == 0 ? realpath(beside, NULL) : NULL;
        if (path)
            return path;
    }
    return strdup(otherwise);
}

// SPDX-License-Identifier: Apache-2.0
/* Where serve listens and connect connects: "@name" is an abstract socket, anything else a path. */
#ifndef WSMFS_GUEST_ADDRESS_H
#define WSMFS_GUEST_ADDRESS_H

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

/* 0 or -ENAMETOOLONG, -EINVAL for an empty one. */
static inline int address_parse(const char *name, struct sockaddr_un *a, socklen_t *len)
{
    size_t n = strlen(name);

    if (n == 0 || (n == 1 && name[0] == '@'))
        return -EINVAL;
    if (n >= sizeof(a->sun_path))
        return -ENAMETOOLONG;
    memset(a, 0, sizeof(*a));
    a->sun_family = AF_UNIX;
    memcpy(a->sun_path, name, n);
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
    if (name[0] == '@') {
        a->sun_path[0] = '\0';
        (*len)--; /* every byte of an abstract name counts */
    }
    return 0;
}

#endif

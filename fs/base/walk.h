// SPDX-License-Identifier: Apache-2.0
/* Opening directories without ever letting the kernel resolve a path: one component at a time, no
 * link followed. */
#ifndef WSMFS_BASE_WALK_H
#define WSMFS_BASE_WALK_H

#include <stdbool.h>

/* Opens the directory of `path` (relative, no empty component) below `fd`, which stays open. `make`:
 * what is missing is made with mode 0700. Returns an O_PATH descriptor, which the caller owns, or
 * -errno: -ENOENT, -ENOTDIR (a link or a file stands there), -EINVAL for an absolute path, an empty
 * component, "..", or one above 255 bytes: nothing leads out of `fd`, whatever the path. What was made
 * before such a component stays. "." is `fd` itself, opened again. Any thread. */
int walk_open(int fd, const char *path, bool make);

#endif

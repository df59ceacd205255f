// SPDX-License-Identifier: Apache-2.0
/* Paths as text, for the table of what is shown and for `bind =`. Pure functions. */
#ifndef WSMFS_LOCAL_SHOWN_BIND_H
#define WSMFS_LOCAL_SHOWN_BIND_H

#include <stdbool.h>

/* Absolute and in its shortest form: no empty component, no "." or "..", no slash at the end but in
 * "/" itself; shorter than PATH_MAX, components of at most 255 bytes. */
bool shown_path_is_plain(const char *path);

/* Is `path` the path `dir`, or does it lie below it? Both plain. */
bool shown_lies_in(const char *path, const char *dir);

#endif

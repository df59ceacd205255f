// SPDX-License-Identifier: Apache-2.0
/* Files that belong to the program: beside it where it was built, else where they are installed. */
#ifndef WSMFS_SHARED_BESIDE_H
#define WSMFS_SHARED_BESIDE_H

/* The first of `places` (paths relative to the directory of the running program, NULL-terminated) at which there is
 * such a file, made absolute, else `otherwise`. malloc'ed; NULL: out of memory. Any thread. */
char *beside_program(const char *const *places, const char *otherwise);

#endif

// SPDX-License-Identifier: Apache-2.0
#ifndef WSMFS_BACKENDS_SHARED_GUEST_PROGRAM_H
#define WSMFS_BACKENDS_SHARED_GUEST_PROGRAM_H

/* The path of the guest (wsm-guest) of the same build or installation as the program that runs, whether
 * it is there or not. malloc'ed; NULL: out of memory. */
char *guest_program(void);

#endif

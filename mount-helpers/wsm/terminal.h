// SPDX-License-Identifier: Apache-2.0
/* The terminal that a command with a terminal of its own is shown on. */
#ifndef WSM_TERMINAL_H
#define WSM_TERMINAL_H

#include <stdbool.h>
#include <termios.h>

#define TERMINAL_SIZE_MAX 24

struct terminal {
    bool raw;             /* it is now */
    bool known;           /* how it was at first: `found` */
    struct termios found;
};

/* Makes standard input raw where it is a terminal, so that every key goes to the job. */
void terminal_raw(struct terminal *t);
/* Sets it back to what it was at first. */
void terminal_back(struct terminal *t);

/* "COLSxROWS" of the terminal that one of the standard descriptors is, else 80x24. Returns `to`. */
const char *terminal_size(char *to);

#endif

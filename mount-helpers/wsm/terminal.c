// SPDX-License-Identifier: Apache-2.0
#include "terminal.h"

#include <errno.h>
#include <sys/ioctl.h>

#include "wsm.h"

static void set(const struct termios *how)
{
    /* From the background this stops us, and goes on when we are in front again. */
    while (tcsetattr(STDIN_FILENO, TCSADRAIN, how) < 0 && errno == EINTR)
        ;
}

void terminal_raw(struct terminal *t)
{
    struct termios how;

    /* What is found later may be our own doing, or that of whoever stopped us. */
    if (t->raw || (!t->known && tcgetattr(STDIN_FILENO, &t->found) < 0))
        return;
    t->known = true;
    how = t->found;
    cfmakeraw(&how);
    set(&how);
    t->raw = true;
}

void terminal_back(struct terminal *t)
{
    if (t->raw)
        set(&t->found);
    t->raw = false;
}

const char *terminal_size(char *to)
{
    struct winsize w;

    snprintf(to, TERMINAL_SIZE_MAX, "80x24");
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row) {
            snprintf(to, TERMINAL_SIZE_MAX, "%ux%u", w.ws_col, w.ws_row);
            break;
        }
    }
    return to;
}

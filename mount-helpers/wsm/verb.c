// SPDX-License-Identifier: Apache-2.0
#include "verb.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "files.h"
#include "wsm.h"

#define CLOSING_LOOK_MS 100 /* between two looks at a workspace that closes */

int session_complain(const struct place *p, const char *what, int error_number)
{
    cleanup_free char *words = file_read_line(p->dir, "error");

    if (words && *words)
        return complain("%s: %s: %s", p->names, what, words);
    return place_complain(p, what, error_number);
}

char *session_state(const struct place *p)
{
    char *state = file_read_line(p->dir, "state");

    if (!state)
        place_complain(p, "state", errno);
    return state;
}

/* Waits for what goes on without its writer. 0, or -1 when it has failed. */
static int wait_closed(const struct place *p, const char *what)
{
    bool closing = true;

    while (closing) {
        cleanup_free char *state = session_state(p);
        if (!state)
            return -1;
        closing = strcmp(state, "closing") == 0;
        if (closing)
            wait_ms(CLOSING_LOOK_MS);
    }
    cleanup_free char *words = file_read_line(p->dir, "error");
    return words && *words ? complain("%s: %s: %s", p->names, what, words) : 0;
}

/* One line, written until it is done. 0 or -errno; 1: interrupted, and only a look can tell. */
static int write_line(const struct place *p, const char *file, const char *line, enum again again)
{
    int r = -EINTR;

    for (bool before = false; r == -EINTR; before = true) {
        cleanup_close int fd = file_open(p->dir, file, O_WRONLY | O_NOFOLLOW);
        if (fd < 0)
            return before && again == AGAIN_GONE && fd == -ENOENT ? 0 : fd;
        r = file_write_once(fd, line, strlen(line));
        if (r == -EINTR && again == AGAIN_LOOK)
            return 1;
        if (r == -ENOENT && before && again == AGAIN_GONE)
            return 0;
    }
    return r;
}

/* Refused at the door: nothing was said to the session, so its `error` is of something else. */
static bool refused_before(int error_number)
{
    return error_number == EACCES || error_number == EROFS || error_number == ENOENT || error_number == ENOTCONN ||
           error_number == ECONNABORTED;
}

int session_verb(const struct place *p, const char *line, enum again again)
{
    cleanup_free char *whole = text_format("%s\n", line);
    int r = write_line(p, "ctl", whole, again);

    if (r == 1)
        return wait_closed(p, line);
    if (r == 0)
        return 0;
    return refused_before(-r) && r != -EROFS ? place_complain(p, line, -r) : session_complain(p, line, -r);
}

int session_bind(const struct place *p, const char *id)
{
    cleanup_free char *whole = text_format("%s\n", id);
    int r = write_line(p, "id", whole, AGAIN_WRITE);

    if (r == 0)
        return 0;
    return refused_before(-r) ? place_complain(p, "bind", -r) : session_complain(p, "bind", -r);
}

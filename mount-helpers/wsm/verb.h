// SPDX-License-Identifier: Apache-2.0
/* Verbs: what is written to a session's `ctl` and `id`, and how that went. */
#ifndef WSM_VERB_H
#define WSM_VERB_H

#include "place.h"

/* How to tell, after the wait for a verb was interrupted, that there is nothing left to wait for. The
 * daemon goes on with a verb whose writer was interrupted. */
enum again {
    AGAIN_WRITE, /* saying it twice does no harm: say it again, which waits on */
    AGAIN_LOOK,  /* saying it twice might: wait until the workspace is no longer closing */
    AGAIN_GONE,  /* say it again; that there is no such session any more is then success */
};

/* Writes one line to `ctl` and returns when it is done. Says what is wrong, in the words of `error`,
 * and returns -1. */
int session_verb(const struct place *p, const char *line, enum again again);

/* Writes `id`: binds the session, "" unbinds it. Says what is wrong and returns -1. */
int session_bind(const struct place *p, const char *id);

/* The session's `state`, malloc'ed. NULL: said. */
char *session_state(const struct place *p);

/* Says in the words of `error` that `what` failed with `error_number` (positive). Returns -1. */
int session_complain(const struct place *p, const char *what, int error_number);

#endif

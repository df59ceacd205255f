// SPDX-License-Identifier: Apache-2.0
/* From a PATH on the command line to the control directory that it stands for. */
#ifndef WSM_PLACE_H
#define WSM_PLACE_H

#include "mounts.h"

/* A place of a mounted wsmfs. */
struct place {
    char *point;   /* the mount point */
    char *names;   /* USER/AGENT/SESSION; for a place above a session as much of it as there is */
    char *rest;    /* the path inside the session, "" for the session itself */
    int   levels;  /* how many names there are: 3 for a session */
    char *control; /* the path of the control directory: the session's, above it the manager's */
    int   dir;     /* the control directory, open (O_PATH) */
};

/* Finds the place of a path, relative ones too. Symlinks on the way to the mount are followed, as
 * realpath(3) does; nothing inside a session is looked at: what an agent put there must not choose
 * the session, and looking would start a sandbox. Says what is wrong and returns -1; else 0, and
 * place_free is to be called. */
int  place_find(const char *path, struct place *p);
void place_free(struct place *p);

/* The same, but only a session will do. */
int session_find(const char *path, struct place *p);

/* Says that opening `what` in a control directory has failed; knows what a dead mount looks like.
 * Returns -1. */
int place_complain(const struct place *p, const char *what, int error);

#define cleanup_place __attribute__((cleanup(place_free)))

#endif

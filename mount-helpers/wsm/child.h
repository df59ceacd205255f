// SPDX-License-Identifier: Apache-2.0
/* Children that are asked something, and do not hang us when they hang. */
#ifndef WSM_CHILD_H
#define WSM_CHILD_H

#define CHILD_TIMEOUT (-1)
#define CHILD_FAILED (-2)

/* Runs a program, found by PATH, without input and waits for its end. Its standard output and error
 * are `*text` (malloc'ed, "" for nothing). Returns its exit status, 128 + N when signal N ended it,
 * 127 where it could not be run; CHILD_TIMEOUT when it had to be killed, CHILD_FAILED when none could
 * be made. */
int child_run(const char *const *argv, int timeout_ms, char **text);

/* The same with a function of ours, in a process of its own, that returns the exit status. */
int child_call(int (*function)(const char *arg), const char *arg, int timeout_ms);

#endif

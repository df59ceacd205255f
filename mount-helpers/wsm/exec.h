// SPDX-License-Identifier: Apache-2.0
/* Between exec.c, which reads the command line, and exec_run.c, which attends a job to its end. */
#ifndef WSM_EXEC_H
#define WSM_EXEC_H

#include <stdbool.h>

#include "job.h"

struct exec_options {
    bool stdin_too, tty;
};

/* Starts the job, passes on streams and signals until it has ended, and removes it. Returns the exit
 * status, EXIT_EXEC_FAILED after having said what is wrong. */
int exec_run(const struct exec_options *o, const struct job *j, const struct job_settings *s);

#endif

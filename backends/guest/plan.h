// SPDX-License-Identifier: Apache-2.0
/* What a command needs to be executed, prepared before there is a child. */
#ifndef WSMFS_GUEST_PLAN_H
#define WSMFS_GUEST_PLAN_H

#include "backends/guest/guest.h"

struct plan {
    uint32_t    flags;       /* PROTO_SPAWN_… */
    uint16_t    cols, rows;
    const char *cwd;         /* NULL: stay */
    struct user user;
    char      **argv, **envp;
    char       *candidates;    /* paths to try, each with its NUL, and one NUL more */
    char       *texts;         /* a long script in parts, to which argv points */
    char        env_texts[2048]; /* entries of ours in envp */
    int         script_fd;     /* -1; a long script once more, for a sandbox with a low limit of arguments */
    char        script_path[32];
    char       *file_argv[3];
};

/* Fills *p; the message's buffer must outlive it. 0, or -errno with a sentence in `why`. plan_free()
 * in either case. */
int plan_make(struct plan *p, struct guest *g, const struct proto_spawn *m, char *why, size_t why_size);
void plan_free(struct plan *p);

#endif

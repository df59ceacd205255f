// SPDX-License-Identifier: Apache-2.0
/* What the parts of the sandbox share: the plan that a start follows. */
#ifndef WSMFS_LOCAL_SANDBOX_INTERNAL_H
#define WSMFS_LOCAL_SANDBOX_INTERNAL_H

#include "backends/local/sandbox.h"

enum sandbox_kind {
    SANDBOX_OFF,    /* not confined */
    SANDBOX_PLAIN,  /* an ordinary user's: bubblewrap alone does it */
    SANDBOX_TENANT, /* root's, for a tenant */
    SANDBOX_MAPPED, /* root's own, with mapped owners */
};

/* Where descriptors are in the new process. Those up to SANDBOX_GUEST_FD are the guest's, the next
 * ones bubblewrap closes when it has read or written them, the last ones close at the exec. */
enum sandbox_fd {
    SANDBOX_FD_IN,
    SANDBOX_FD_OUT,
    SANDBOX_FD_ERR,
    SANDBOX_FD_LISTEN = SANDBOX_GUEST_FD,
    SANDBOX_FD_INFO,   /* bubblewrap writes the first process's pid here */
    SANDBOX_FD_ARGS,   /* its options, kept off the command line that `ps` shows */
    SANDBOX_FD_PASSWD,
    SANDBOX_FD_GROUP,
    SANDBOX_FD_STATUS, /* tells the parent which step failed; closed by a good exec */
    SANDBOX_FD_EXEC,   /* the program, when it is not started by its path */
    SANDBOX_FD_N,
};

/* What a private mount namespace must offer to somebody who cannot reach it by its path. */
struct sandbox_tree {
    int  fd;       /* a detached mount, or -1 */
    bool directory;
    char path[64]; /* where it is attached; bubblewrap takes it from there */
};

/* All that the forked process needs, made before: it may only make system calls. */
struct sandbox_plan {
    enum sandbox_kind kind;
    uid_t uid;                /* whom it becomes, when `drop` is set */
    gid_t gid;
    const gid_t *groups;
    size_t n_groups;
    bool  drop;
    bool  detach;             /* it forks once more, and the parent does not wait for it */
    int   fds[SANDBOX_FD_N];  /* by their places; -1: none. The plan's own but LISTEN */
    int   cwd_fd;             /* borrowed; -1: "/" */
    const int *join_fds;
    size_t n_join_fds;
    const char *stage;        /* an existing directory that the private namespace may cover, or NULL */
    struct sandbox_tree *trees; /* 0: the workspace, 1: the guest, then the binds in their order */
    size_t n_trees;
    const char *exec_path;    /* or NULL: SANDBOX_FD_EXEC */
    char **argv, **envp;
};

/* Steps of the forked process that can fail. */
enum sandbox_step {
    SANDBOX_STEP_OK,
    SANDBOX_STEP_FORK,
    SANDBOX_STEP_JOIN,
    SANDBOX_STEP_NAMESPACE,
    SANDBOX_STEP_STAGE,
    SANDBOX_STEP_ATTACH,
    SANDBOX_STEP_DROP,
    SANDBOX_STEP_FDS,
    SANDBOX_STEP_CHDIR,
    SANDBOX_STEP_EXEC,
};

/* What the forked process writes to SANDBOX_FD_STATUS when a step fails. */
struct sandbox_failure {
    int step;
    int error; /* errno */
};

/* The forked process: does what the plan says and becomes the program. Does not return. */
void sandbox_child(const struct sandbox_plan *p) __attribute__((noreturn));

/* Makes the plan of a start (`serve`), or of a trial (`version`); -errno with a sentence. The plan
 * borrows from the spec. sandbox_plan_finish() is to be called in any case. */
int sandbox_plan_make(const struct sandbox_spec *spec, bool serve, struct sandbox_plan *p, struct err *e);
void sandbox_plan_finish(struct sandbox_plan *p);

/* Who jobs are to themselves: false when that is just who they are to the kernel. */
bool sandbox_inside_ids(const struct sandbox_spec *spec, enum sandbox_kind kind, uint32_t *uid, uint32_t *gid);

/* A descriptor from which bubblewrap reads its options, each ended by a NUL. */
int sandbox_args(const struct sandbox_spec *spec, const struct sandbox_plan *p, struct err *e);

/* The guest's environment when there is no bubblewrap to make it: malloc'ed, as are its strings;
 * NULL when out of memory. */
char **sandbox_environment(const struct sandbox_spec *spec, const char *home);
void sandbox_strings_free(char **list);

/* Text in memory behind a descriptor, to be read from its start; -errno. */
int sandbox_memory_file(const char *name, const void *text, size_t len);

/* The sandbox's /etc/passwd and /etc/group: the host's, with a line for who jobs are (home:
 * /workspace) in front. Descriptors as above; -errno with a sentence. */
int sandbox_passwd(uint32_t uid, uint32_t gid, struct err *e);
int sandbox_group(uint32_t gid, struct err *e);

/* The sentence for what bubblewrap wrote before it gave up (`error_fd`), with the remedy where it is
 * known. Returns a negative errno. */
int sandbox_say_refused(int error_fd, struct err *e);
/* The sentence for a step that failed. */
int sandbox_say_step(const struct sandbox_failure *f, const struct sandbox_plan *p, struct err *e);

/* Fields 4, 22 and 3 of /proc/PID/stat: the parent, when the process began, its state. False when it is
 * gone. */
bool sandbox_read_stat(pid_t pid, pid_t *parent, uint64_t *start_ticks, char *state);

#endif

// SPDX-License-Identifier: Apache-2.0
/* One bubblewrap a workspace, with the guest program as its first process. docs/security.md says
 * what it keeps apart and what it does not.
 *
 *     LISTEN ──START──> running ──END──> gone
 *                          │  the daemon dies, is upgraded
 *                          └──ADOPT──> running
 *
 * Whose rights a sandbox has:
 *  - the daemon is root and the workspace has a tenant: the tenant's uid, gid and groups;
 *  - the daemon is root and there is no tenant: a user id that belongs to nobody (`mapped_id`), to
 *    whom the workspace is shown with mapped owners, so that files stay root's on disk, jobs are uid
 *    0 inside and never uid 0 to the kernel;
 *  - else the user who runs the daemon. */
#ifndef WSMFS_LOCAL_SANDBOX_H
#define WSMFS_LOCAL_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backends/local/shown.h"
#include "fs/base/err.h"

/* The first of the kernel's ids under which root's own jobs run, when no other is said. */
#define SANDBOX_MAPPED_ID 100000u

/* How a sandbox is made. All is borrowed and only read; nothing is kept. */
struct sandbox_spec {
    const char *guest;      /* absolute path of the guest program, a static executable */
    uint32_t grace_ms;      /* `--grace`: from TERM to KILL when the guest is told to end; 0: its default */
    int  workspace_fd;      /* directory of the files (O_PATH), opened without following any link */
    int  listen_fd;         /* from sandbox_listen() */
    const struct shown *shown;
    bool confine;           /* false: the guest runs as a plain process, with the host's files and
                             * network, as the tenant, in the workspace's directory */
    bool no_nesting;        /* no user namespaces inside (bwrap's --disable-userns): less of the kernel is
                             * in a job's reach, and sandboxes in the sandbox do not work. Fails where
                             * /proc/sys is read-only, as in most containers */
    bool network_host;      /* the host's network, loopback and abstract sockets included; else none */

    bool     tenant;        /* uid, gid and groups count; needs a daemon that is root, or whose own
                             * uid this is */
    uid_t    uid;
    gid_t    gid;
    const gid_t *groups;
    size_t   n_groups;
    uint32_t mapped_id;     /* root's daemon without a tenant, or with uid 0; 0: SANDBOX_MAPPED_ID. A
                             * workspace each: then the kernel's limits per user are its own as well */

    bool     named;         /* jobs see themselves as inside_uid and inside_gid; else as the tenant's,
                             * or 0 where ids are mapped. Changes no right and no file's owner */
    uint32_t inside_uid, inside_gid;

    const char *const *env; /* "KEY=VALUE", NULL-terminated, or NULL: added to or in place of
                             * HOME, PATH, TERM and LANG; nothing of the daemon's own */
    const int *join_fds;    /* from cgroup_join_fds() */
    size_t     n_join_fds;
};

/* A running sandbox, or none (pid 0). Copy it freely; who drops the last copy closes pid_fd. */
struct sandbox {
    pid_t    pid;    /* of the guest, as the daemon sees it */
    int      pid_fd; /* readable (poll) once the guest has ended */
    uint64_t start_ticks; /* when it began, /proc/PID/stat field 22: tells it from a later one */
};

/* Makes the unix socket `name` in the directory `dir_fd` (mode 0700, the daemon's alone), in place of
 * one that is there, and listens. Returns a close-on-exec descriptor, which the caller owns; -errno
 * with a sentence. The path may be of any length. */
int sandbox_listen(int dir_fd, const char *name, struct err *e);

/* Connects to that socket: a non-blocking, close-on-exec descriptor that the caller owns.
 * -ECONNREFUSED or -ENOENT when no sandbox listens there any more. */
int sandbox_connect(int dir_fd, const char *name);

/* The descriptor under which the guest finds the listening socket: `GUEST serve --fd 3`,
 * with `--grace MS` behind it when that is set. */
#define SANDBOX_GUEST_FD 3

/* Starts a sandbox and returns once the guest program runs in it. The guest gets descriptors 0 and 1
 * on /dev/null, 2 on memory that takes nothing more once the start is over (writes to it then fail
 * with EPERM), SANDBOX_GUEST_FD, and no other. It is in a session of its own, with default signals
 * and umask 022, and depends on no process of ours: it goes on when the daemon ends, also by SIGKILL.
 * -errno with a sentence that says what is missing and how to mend it; nothing is left then.
 * Blocks (20 to 30 ms; at most half a minute). Forks; any thread. SIGCHLD must not be ignored, and
 * nobody else may wait for any child (waitpid(-1)). */
int sandbox_start(const struct sandbox_spec *spec, struct sandbox *out, struct err *e);

/* Tries it: the same command line as sandbox_start(), with `GUEST version` in place of serving. 0, or
 * -errno and the sentence. `listen_fd` may be -1, `workspace_fd` any directory of the file system
 * that will hold the workspaces, such as the base directory itself. */
int sandbox_check(const struct sandbox_spec *spec, struct err *e);

#define SANDBOX_MARK_SIZE 128

/* Writes what is needed to find the sandbox again (NUL-terminated text without white space, to be
 * kept in the daemon's state). */
void sandbox_mark(const struct sandbox *s, char mark[SANDBOX_MARK_SIZE]);

/* Finds the sandbox of that mark, started by another life of the daemon: 0, or -ESRCH when it is
 * gone (ended, or the machine was started anew). -EINVAL for a text that is no mark. */
int sandbox_adopt(const char *mark, struct sandbox *out);

/* False once the guest has ended; then all its confined jobs have ended too. */
bool sandbox_alive(const struct sandbox *s);

/* Whether any process in it lives besides the guest: all that an ended job leaves become the guest's
 * children. Reads through /proc. */
bool sandbox_has_children(const struct sandbox *s);

/* Ends the guest with SIGKILL, and with it every process of a confined sandbox, and waits until the
 * kernel has ended all of them, at most `timeout_ms`: -ETIMEDOUT. Jobs of one that is not confined
 * are left to cgroup_kill(). Closes pid_fd and forgets the sandbox on success. */
int sandbox_end(struct sandbox *s, int timeout_ms, struct err *e);

/* Looks up `user =` of [sandbox]: a user of this host by name, or UID, or UID:GID. -EINVAL with a
 * sentence. */
int sandbox_user_parse(const char *text, uint32_t *uid, uint32_t *gid, struct err *e);

#endif

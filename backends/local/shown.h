// SPDX-License-Identifier: Apache-2.0
/* What a confined job sees of the host: one table. The sandbox's command line is made from it, and
 * the read-only view of a sandbox's root file system answers from it, so the two cannot differ.
 *
 * What is shown: /usr, and /bin, /sbin and the /lib directories as the host has them (links stay
 * links); named files of /etc; what `bind =` adds. Nothing else of the host has a name inside:
 * /tmp, /dev, /proc, /run and /workspace are the sandbox's own and not in the table.
 *
 * Paths inside are compared as text: absolute, no empty component, no "." or "..", no slash at the
 * end but in "/" itself. Who follows links does so himself, component by component. */
#ifndef WSMFS_LOCAL_SHOWN_H
#define WSMFS_LOCAL_SHOWN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "fs/base/err.h"

#define SHOWN_WORKSPACE "/workspace"         /* where the workspace is in every sandbox */
#define SHOWN_GUEST     "/run/wsm/wsm-guest" /* where the guest program is in every sandbox */

/* One `bind =` path. */
struct shown_bind {
    char *host;     /* absolute */
    char *inside;   /* absolute, a path of the sandbox's own choosing */
    bool  writable;
};

/* Reads "HOST[:INSIDE][:ro|rw]"; INSIDE is HOST unless said, and the default is ro. -EINVAL with a
 * sentence for a path that is not absolute or not in its shortest form, and for a place that the
 * sandbox needs itself ("/", /proc, /dev, /etc, /usr, the workspace, …; below /usr and /etc is
 * fine). Looks at no file. The caller frees *out with shown_bind_finish(). */
int shown_bind_parse(const char *text, struct shown_bind *out, struct err *e);
void shown_bind_finish(struct shown_bind *b);

enum shown_kind {
    SHOWN_NOTHING, /* no such name */
    SHOWN_ABOVE,   /* a directory that exists because something below it is shown */
    SHOWN_TREE,    /* what stands at a path of the host: a file, or a directory with all below it */
    SHOWN_LINK,    /* a symbolic link */
};

/* One line of the table. */
struct shown_entry {
    char *inside;
    enum shown_kind kind; /* SHOWN_TREE or SHOWN_LINK */
    char *host;     /* of a tree; its last component may be a link of the host's, to be followed */
    char *target;   /* of a link */
    bool  writable; /* of a tree; the view is read-only whatever this says */
    bool  bind;     /* from `bind =` */
};

struct shown;

/* Makes the table by looking at the host once; it does not change afterwards and may be read by any
 * thread. A file that the host lacks is left out. `root_fd`: the host's root directory (a test gives
 * another), not kept. `binds` are copied; the host's path of each must exist (-ENOENT) and is taken
 * with its links resolved. `secrets` (NULL-terminated, or NULL): absolute paths of directories that
 * no job may see: the base directory, the state directory, the mount. One that a tree would show, or
 * a bind that lies in one, is refused by name: -EINVAL. */
int shown_create(int root_fd, const struct shown_bind *binds, size_t n_binds, const char *const *secrets,
                 struct shown **out, struct err *e);
void shown_destroy(struct shown *s); /* NULL is fine */

/* The table's lines, parents before what lies in them; *n is their number. Borrowed. */
const struct shown_entry *shown_entries(const struct shown *s, size_t *n);

/* What a path inside stands for. */
struct shown_place {
    enum shown_kind kind;
    char        host[PATH_MAX]; /* of SHOWN_TREE: where it is on the host; may not exist there */
    const char *target;         /* of SHOWN_LINK; lives as long as the table */
    bool        writable;       /* to jobs */
};

/* Looks `inside` up. A pure function: no file is looked at. "/" is always SHOWN_ABOVE, what lies
 * below a link or is no path of the form above is SHOWN_NOTHING. */
void shown_look(const struct shown *s, const char *inside, struct shown_place *out);

/* Calls `each` once for every name directly in the directory `inside` that the table says, in order.
 * For a SHOWN_ABOVE directory these are all its names; for a SHOWN_TREE those that something else is
 * bound to, in place of what the host's directory has under that name. A pure function. */
void shown_children(const struct shown *s, const char *inside,
                    void (*each)(const char *name, enum shown_kind kind, void *arg), void *arg);

#endif

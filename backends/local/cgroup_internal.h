// SPDX-License-Identifier: Apache-2.0
/* The hierarchies of control groups on this machine, and our place in them. */
#ifndef WSMFS_LOCAL_CGROUP_INTERNAL_H
#define WSMFS_LOCAL_CGROUP_INTERNAL_H

#include "backends/local/cgroup.h"

/* Bits of a set of controllers, in the order of their table. */
enum { CGROUP_MEMORY = 1, CGROUP_CPU = 2, CGROUP_PIDS = 4 };

/* Where v2 groups are made; see cgroup.h. */
enum cgroup_home { CGROUP_IN_PARENT, CGROUP_IN_TOP, CGROUP_IN_OWN };

struct cgroup_hierarchy {
    bool     v2;
    unsigned controllers; /* those that it has and that we use */
    char    *mount;       /* where it is mounted */
    char    *root;        /* which of its groups the mount shows at its top */
    char    *own;         /* the directory of the daemon's own group */
};

struct cgroups {
    struct cgroup_hierarchy list[CGROUP_PARTS_MAX];
    size_t n;
    enum cgroup_home home; /* of the v2 hierarchy */
};

/* The file of limits in one of the two versions. */
struct cgroup_file {
    unsigned    controller;
    bool        v2;
    bool        optional;  /* a kernel may lack it (swap accounting) */
    const char *name;
    const char *unlimited;
    void      (*format)(const struct sandbox_limits *l, char text[64]);
};

/* The files in the order in which they are written, ended by one without a name. */
const struct cgroup_file *cgroup_files(void);

/* The key of [sandbox] for a controller. */
const char *cgroup_key(unsigned controller);

/* The controllers that these limits need. */
unsigned cgroup_needed(const struct sandbox_limits *l);

/* The directory of the group that the text of a /proc/PID/cgroup names in the hierarchy: malloc'ed;
 * NULL when it names none, or one that cannot be reached from here. */
char *cgroup_directory(const struct cgroup_hierarchy *h, const char *text);

/* Reads a whole file of /proc; malloc'ed, NULL with errno. */
char *cgroup_read(const char *path);

#endif

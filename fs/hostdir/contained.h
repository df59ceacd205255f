// SPDX-License-Identifier: Apache-2.0
/* Contained links: a text that means, for a program that reads the mount, what the link means
 * inside the sandbox, and never leads out of the workspace. */
#ifndef WSMFS_FS_HOSTDIR_CONTAINED_H
#define WSMFS_FS_HOSTDIR_CONTAINED_H

/* The workspace's place inside every sandbox. */
#define INSIDE_ROOT "/workspace"

/* Writes to `out` (PATH_MAX bytes) what readlink gives for a link with the text `disk` that lies in
 * `dir` ("" or "a/b/", `depth` components below the workspace's root, opened as root_fd):
 *   relative, all its `..` in front, not climbing out: as it is;
 *   /workspace and below: relative;
 *   a `..` behind a name, which may pass through another link: resolved, then as above; one that
 *   cannot be resolved (a name is missing, links in a circle) as a text that cannot be either;
 *   everything else: the relative path of .wsm/root/<path>.
 * With an `anchor` (the session's absolute path) every link that is absolute or holds a `..` is
 * given as an absolute path below it. -ENAMETOOLONG. Blocks on the local disk only. */
int contained_target(int root_fd, const char *dir, int depth, const char *anchor, const char *disk, char *out);

#endif

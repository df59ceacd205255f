// SPDX-License-Identifier: Apache-2.0
#include "fs/manager/basedir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "fs/base/cleanup.h"
#include "fs/base/walk.h"
#include "fs/manager/identity.h"

#define META_DIR      ".wsmfs"
#define META_TEXT_MAX 256

/* ── directories ─────────────────────────────────────────────────────────────────────────── */

int basedir_make_path(const char *path, mode_t mode)
{
    cleanup_free char *copy = strdup(path);

    if (!copy)
        return -ENOMEM;
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST && errno != EROFS)
            return -errno;
        *slash = '/';
    }
    if (mkdir(copy, mode) == 0)
        return 0;
    if (errno == EEXIST)
        return 0;
    struct stat st;
    int r = -errno;
    return stat(copy, &st) == 0 ? 0 : r;
}

int basedir_check_private(int fd, const char *what, const char *path, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(e, -errno, "%s %s cannot be looked at", what, path);
    if (st.st_uid != geteuid())
        return err_set(e, -EPERM,
                       "%s %s belongs to uid %u, but must belong to uid %u, which mounts it: name another one or, "
                       "where it is for wsmfs alone, chown %u %s", what, path,
                       (unsigned)st.st_uid, (unsigned)geteuid(), (unsigned)geteuid(), path);
    if (st.st_mode & 077)
        return err_set(e, -EPERM,
                       "%s %s has mode %04o, so that others could reach what is in it: name another one or, where it "
                       "is for wsmfs alone, chmod 700 %s", what, path, (unsigned)(st.st_mode & 07777), path);
    return 0;
}

/* ── what is recorded in it ──────────────────────────────────────────────────────────────── */

/* Reads a small file without its last newline: 1, 0 when there is none, -errno. */
static int read_text(int dir, const char *name, char *out)
{
    cleanup_close int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    n = read(fd, out, META_TEXT_MAX - 1);
    if (n < 0)
        return -errno;
    while (n > 0 && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
    return 1;
}

/* Puts a whole file there, or leaves the one that somebody else has put there first. */
static int write_text_once(int dir, const char *name, const char *text)
{
    char temporary[64];
    int  r = 0;
    unsigned random = 0;

    if (getrandom(&random, sizeof(random), 0) < 0)
        return -errno;
    snprintf(temporary, sizeof(temporary), "%s.%08x", name, random);
    cleanup_close int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if (dprintf(fd, "%s\n", text) < 0 || fsync(fd) < 0)
        r = errno ? -errno : -EIO;
    else if (linkat(dir, temporary, dir, name, 0) < 0 && errno != EEXIST)
        r = -errno;
    unlinkat(dir, temporary, 0);
    return r;
}

/* What the file says in the end: what was there, else `text`. On a read-only file system `text`
 * holds without being written. */
static int settle_text(int meta, const char *name, const char *text, bool read_only, char *out)
{
    int r = meta >= 0 ? read_text(meta, name, out) : 0;

    if (r != 0)
        return r < 0 ? r : 0;
    snprintf(out, META_TEXT_MAX, "%s", text);
    if (read_only)
        return 0;
    r = write_text_once(meta, name, text);
    if (r < 0)
        return r;
    r = read_text(meta, name, out);
    return r < 0 ? r : 0;
}

static bool instance_valid(const char *s)
{
    size_t len = strlen(s);

    if (len == 0 || len > INSTANCE_MAX_BYTES || *s == '.')
        return false;
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

/* The instance of a directory that has none: said, or random; of a read-only one, by its path, so
 * that the next mount finds the same state again. */
static int propose_instance(const struct basedir *b, const struct config *c, char *out)
{
    char minted[ID_MINTED_DIGITS + 1];
    int  r;

    if (c->instance) {
        snprintf(out, META_TEXT_MAX, "%s", c->instance);
        return 0;
    }
    if (c->read_only) {
        snprintf(out, META_TEXT_MAX, "%016" PRIx64, identity_number("instance", b->path));
        return 0;
    }
    r = identity_mint(minted);
    snprintf(out, META_TEXT_MAX, "%.16s", minted);
    return r;
}

static int settle_instance(struct basedir *b, const struct config *c, int meta, struct err *e)
{
    char proposal[META_TEXT_MAX], text[META_TEXT_MAX];
    int  r;

    if (c->instance && !instance_valid(c->instance))
        return err_set(e, -EINVAL, "instance=%s: 1 to %d letters, digits, '.', '_' and '-', not starting with a dot",
                       c->instance, INSTANCE_MAX_BYTES);
    r = propose_instance(b, c, proposal);
    if (r == 0)
        r = settle_text(meta, "instance", proposal, c->read_only, text);
    if (r < 0)
        return err_sys(e, r, "%s/" META_DIR "/instance cannot be read or written", b->path);
    if (!instance_valid(text))
        return err_set(e, -EINVAL, "%s/" META_DIR "/instance does not hold a valid instance", b->path);
    if (c->instance && strcmp(text, c->instance) != 0)
        return err_set(e, -EINVAL,
                       "the base directory %s belongs to the instance %s, not %s: mount it with instance=%s or "
                       "without that option, or use another base directory",
                       b->path, text, c->instance, text);
    memcpy(b->instance, text, strlen(text) + 1); /* instance_valid() has seen its length */
    return 0;
}

/* What a daemon has written, not what a disk or an editor has made of it. */
static bool policy_valid(const char *text)
{
    char isolation[16], scheme[16], again[META_TEXT_MAX];

    if (sscanf(text, "isolation=%15[a-z_],id_scheme=%15[a-z_]", isolation, scheme) != 2)
        return false;
    snprintf(again, sizeof(again), "isolation=%s,id_scheme=%s", isolation, scheme);
    return strcmp(again, text) == 0;
}

static int settle_policy(const struct basedir *b, const struct config *c, int meta, struct err *e)
{
    char proposal[META_TEXT_MAX], text[META_TEXT_MAX];
    int  r;

    snprintf(proposal, sizeof(proposal), "isolation=%s,id_scheme=%s", identity_policy(c->isolation),
             c->id_scheme == ID_SCHEME_AGENTSCOPE ? "agentscope" : "wsmfs");
    r = settle_text(meta, "policy", proposal, c->read_only, text);
    if (r < 0)
        return err_sys(e, r, "%s/" META_DIR "/policy cannot be read or written", b->path);
    if (!policy_valid(text))
        return err_set(e, -EINVAL,
                       "%s/" META_DIR "/policy is damaged: it must say what the files there were made with, as in "
                       "\"isolation=per_agent,id_scheme=wsmfs\"",
                       b->path);
    if (strcmp(text, proposal) != 0)
        return err_set(e, -EINVAL,
                       "the base directory %s was made with %s, and this mount says %s: its files would be "
                       "given to the wrong sessions. Mount it with -o %s, or use another base directory",
                       b->path, text, proposal, text);
    return 0;
}

static int settle_meta(struct basedir *b, const struct config *c, struct err *e)
{
    cleanup_close int meta = walk_open(b->fd, META_DIR, !c->read_only);
    int r;

    if (meta < 0 && !(meta == -ENOENT && c->read_only))
        return err_sys(e, meta, "%s/" META_DIR " cannot be made or opened%s", b->path,
                       meta == -EROFS ? "; mount it with -o ro to read what is there" : "");
    r = settle_instance(b, c, meta, e);
    return r < 0 ? r : settle_policy(b, c, meta, e);
}

/* ── opening ─────────────────────────────────────────────────────────────────────────────── */

static int check_writable(const struct basedir *b, struct err *e)
{
    struct statvfs vfs;

    if (fstatvfs(b->fd, &vfs) < 0)
        return err_sys(e, -errno, "the base directory %s cannot be looked at", b->path);
    if (vfs.f_flag & ST_RDONLY)
        return err_set(e, -EROFS,
                       "the base directory %s lies on a file system that is mounted read-only: mount it "
                       "writable, or use -o ro to read what is there", b->path);
    return 0;
}

static int open_base(struct basedir *b, const struct config *c, struct err *e)
{
    int r = 0;

    b->path = strdup(c->basedir);
    if (!b->path)
        return err_set(e, -ENOMEM, "out of memory");
    if (!c->read_only || access(b->path, F_OK) < 0)
        r = basedir_make_path(b->path, 0700);
    if (r < 0)
        return err_sys(e, r, "the base directory %s cannot be made", b->path);
    b->fd = open(b->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (b->fd < 0 && errno == ENOTDIR)
        return err_set(e, -ENOTDIR, "the base directory %s is not a directory", b->path);
    if (b->fd < 0)
        return err_sys(e, -errno, "the base directory %s cannot be opened", b->path);
    r = basedir_check_private(b->fd, "the base directory", b->path, e);
    return r < 0 || c->read_only ? r : check_writable(b, e);
}

int basedir_open(struct basedir *b, const struct config *c, struct err *e)
{
    int r;

    *b = (struct basedir){ .fd = -1 };
    r = open_base(b, c, e);
    if (r == 0)
        r = settle_meta(b, c, e);
    if (r < 0)
        basedir_close(b);
    return r;
}

void basedir_close(struct basedir *b)
{
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
    free(b->path);
    b->path = NULL;
}

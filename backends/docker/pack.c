// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/docker/ignore.h"
#include "fs/base/cleanup.h"
#include "fs/base/walk.h"

#define IGNORE_MAX_BYTES (1u << 20)
#define BLOCK_BYTES      65536 /* not on the stack: threads that may hang have small ones */
#define ALWAYS_S         315619200 /* 1980-01-02: some archives know no earlier time */

struct pack {
    char *directory;
    int  root;             /* of it */
    FTS *walk;
    struct ignore ignore;
    struct archive *tar;
    EVP_MD_CTX *digest;
    char wanted[PACK_HASH_SIZE], hash[PACK_HASH_SIZE]; /* its beginning, "": any; "": not known yet */
    int    file;           /* the one that is being read, or -1 */
    size_t left_bytes;     /* of it */
    char  *out;            /* what the tar has given and nobody has read */
    size_t n, at, room;
    char   block[BLOCK_BYTES];
};

/* ── begin and end ───────────────────────────────────────────────────────────────────────── */

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static la_ssize_t on_tar(struct archive *a, void *arg, const void *data, size_t n)
{
    struct pack *p = arg;

    (void)a;
    if (p->n + n > p->room) {
        size_t room = (p->n + n) * 2;
        char *more = realloc(p->out, room);
        if (!more)
            return -1;
        p->out = more;
        p->room = room;
    }
    memcpy(p->out + p->n, data, n);
    p->n += n;
    return *p->hash || EVP_DigestUpdate(p->digest, data, n) ? (la_ssize_t)n : -1;
}

static int read_ignore(struct pack *p, struct err *e)
{
    cleanup_close int fd = openat(p->root, ".dockerignore", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    cleanup_free char *text = fd >= 0 ? calloc(1, IGNORE_MAX_BYTES + 1) : NULL;
    ssize_t n;

    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, -errno, "%s/.dockerignore cannot be read", p->directory);
    n = text ? read(fd, text, IGNORE_MAX_BYTES) : -1;
    if (n < 0)
        return err_sys(e, text ? -errno : -ENOMEM, "%s/.dockerignore cannot be read", p->directory);
    return ignore_parse(text, &p->ignore) < 0 ? err_set(e, -ENOMEM, "out of memory") : 0;
}

static int open_directory(struct pack *p, struct err *e)
{
    p->root = open(p->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->root < 0)
        return err_set(e, errno == ENOENT || errno == ENOTDIR ? -ENXIO : -errno, "the directory %s, which images are "
                       "built from, cannot be opened: %s", p->directory, strerror(errno));
    if (faccessat(p->root, "Dockerfile", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return err_set(e, -ENXIO, "there is no Dockerfile in %s", p->directory);
    return read_ignore(p, e);
}

static int open_tar(struct pack *p, struct err *e)
{
    char *const roots[] = { p->directory, NULL };

    p->walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    p->digest = EVP_MD_CTX_new();
    p->tar = archive_write_new();
    if (!p->walk || !p->digest || !p->tar || !EVP_DigestInit_ex(p->digest, EVP_sha256(), NULL))
        return err_set(e, -ENOMEM, "out of memory");
    /* This form of tar takes names as they are, bytes without a meaning. */
    if (archive_write_set_format_gnutar(p->tar) != ARCHIVE_OK || archive_write_add_filter_none(p->tar) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(p->tar, 0) != ARCHIVE_OK ||
        archive_write_open(p->tar, p, NULL, on_tar, NULL) != ARCHIVE_OK)
        return err_set(e, -EIO, "no tar can be made: %s", archive_error_string(p->tar));
    return 0;
}

int pack_open(const char *directory, const char *hash, struct pack **out, struct err *e)
{
    struct pack *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return err_set(e, -ENOMEM, "out of memory");
    p->root = p->file = -1;
    p->directory = strdup(directory);
    if (hash)
        strncpy(p->wanted, hash, sizeof(p->wanted) - 1);
    for (size_t n = p->directory ? strlen(p->directory) : 0; n > 1 && p->directory[n - 1] == '/';)
        p->directory[--n] = '\0'; /* what the walk says begins with it and one slash */
    r = p->directory ? open_directory(p, e) : err_set(e, -ENOMEM, "out of memory");
    if (r == 0)
        r = open_tar(p, e);
    if (r < 0)
        pack_close(p);
    else
        *out = p;
    return r;
}

void pack_close(struct pack *p)
{
    if (!p)
        return;
    archive_write_free(p->tar);
    EVP_MD_CTX_free(p->digest);
    if (p->walk)
        fts_close(p->walk);
    if (p->root >= 0)
        close(p->root);
    if (p->file >= 0)
        close(p->file);
    ignore_finish(&p->ignore);
    free(p->directory);
    free(p->out);
    free(p);
}

const char *pack_hash(const struct pack *p) { return p->hash; }

/* ── one thing after the other ───────────────────────────────────────────────────────────── */

static int changes(const struct pack *p, const char *path, struct err *e)
{
    return err_set(e, -EAGAIN, "%s/%s changes while it is read", p->directory, path);
}

static int unreadable(const struct pack *p, const char *path, int code, struct err *e)
{
    if (code == -ENOENT || code == -ENOTDIR || code == -ELOOP)
        return changes(p, path, e);
    return err_sys(e, code, "%s/%s cannot be read", p->directory, path);
}

static int add_header(struct pack *p, const char *path, const struct stat *st, const char *target, struct err *e)
{
    struct archive_entry *h = archive_entry_new();
    int r;

    if (!h)
        return err_set(e, -ENOMEM, "out of memory");
    archive_entry_set_pathname(h, path);
    archive_entry_set_mode(h, st->st_mode);
    archive_entry_set_size(h, S_ISREG(st->st_mode) ? st->st_size : 0);
    archive_entry_set_mtime(h, ALWAYS_S, 0);
    if (target)
        archive_entry_set_symlink(h, target);
    r = archive_write_header(p->tar, h) == ARCHIVE_OK ? 0 : err_set(e, -EIO, "%s/%s cannot be put into a tar: %s",
                                                                    p->directory, path, archive_error_string(p->tar));
    archive_entry_free(h);
    return r;
}

/* The directory in which `path` lies, without following a link, and what it is called there. */
static int open_above(struct pack *p, const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    cleanup_free char *above = strndup(path, slash ? (size_t)(slash - path) : 0);

    *name = slash ? slash + 1 : path;
    return above ? walk_open(p->root, *above ? above : ".", false) : -ENOMEM;
}

static int add_link(struct pack *p, const char *path, const struct stat *st, struct err *e)
{
    char target[PATH_MAX];
    const char *name;
    cleanup_close int above = open_above(p, path, &name);
    ssize_t n = above < 0 ? -1 : readlinkat(above, name, target, sizeof(target) - 1);

    if (n < 0)
        return unreadable(p, path, above < 0 ? above : -errno, e);
    target[n] = '\0';
    return add_header(p, path, st, target, e);
}

static int add_file(struct pack *p, const char *path, struct err *e)
{
    const char *name;
    struct stat st;
    cleanup_close int above = open_above(p, path, &name);
    cleanup_close int fd = above < 0 ? -1 : openat(above, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int r;

    if (fd < 0 || fstat(fd, &st) < 0)
        return unreadable(p, path, above < 0 ? above : -errno, e);
    if (!S_ISREG(st.st_mode))
        return changes(p, path, e);
    r = add_header(p, path, &st, NULL, e);
    if (r < 0 || st.st_size == 0)
        return r;
    p->file = steal_fd(&fd);
    p->left_bytes = (size_t)st.st_size;
    return 0;
}

static int add_block(struct pack *p, struct err *e)
{
    ssize_t n = read(p->file, p->block, p->left_bytes < BLOCK_BYTES ? p->left_bytes : BLOCK_BYTES);

    if (n == 0)
        return err_set(e, -EAGAIN, "a file in %s becomes shorter while it is read", p->directory);
    if (n < 0)
        return err_sys(e, -errno, "a file in %s cannot be read", p->directory);
    if (archive_write_data(p->tar, p->block, (size_t)n) != n)
        return err_set(e, -EIO, "no tar can be made of %s: %s", p->directory, archive_error_string(p->tar));
    p->left_bytes -= (size_t)n;
    if (!p->left_bytes) {
        close(p->file);
        p->file = -1;
    }
    return 0;
}

/* The hash is that of all but the end, which is only given when it is the right one. */
static int add_end(struct pack *p, struct err *e)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hash[PACK_HASH_SIZE];

    if (archive_write_finish_entry(p->tar) != ARCHIVE_OK || !EVP_DigestFinal_ex(p->digest, digest, NULL))
        return err_set(e, -EIO, "no tar can be made of %s", p->directory);
    for (int i = 0; i < (PACK_HASH_SIZE - 1) / 2; i++)
        snprintf(hash + 2 * i, 3, "%02x", digest[i]);
    if (strncmp(p->wanted, hash, strlen(p->wanted)) != 0)
        return err_set(e, -EAGAIN, "%s changes while an image is built from it", p->directory);
    memcpy(p->hash, hash, sizeof(hash));
    return archive_write_close(p->tar) == ARCHIVE_OK ? 0 : err_set(e, -EIO, "no tar can be made of %s", p->directory);
}

static bool is_left_out(const struct pack *p, const char *path)
{
    return strcmp(path, "Dockerfile") != 0 && strcmp(path, ".dockerignore") != 0 && ignore_matches(&p->ignore, path);
}

static int add_next(struct pack *p, struct err *e)
{
    FTSENT *f = (errno = 0, fts_read(p->walk));
    const char *path;

    if (!f)
        return errno ? err_sys(e, -errno, "%s cannot be read", p->directory) : add_end(p, e);
    if (f->fts_level == FTS_ROOTLEVEL)
        return f->fts_errno ? err_sys(e, -f->fts_errno, "%s cannot be read", p->directory) : 0;
    path = f->fts_path + strlen(p->directory) + 1;
    if (is_left_out(p, path)) {
        if (f->fts_info == FTS_D && !p->ignore.exceptions)
            fts_set(p->walk, f, FTS_SKIP);
        return 0;
    }
    switch (f->fts_info) {
    case FTS_D: return add_header(p, path, f->fts_statp, NULL, e);
    case FTS_F: return add_file(p, path, e);
    case FTS_SL:
    case FTS_SLNONE: return add_link(p, path, f->fts_statp, e);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS: return unreadable(p, path, -f->fts_errno, e);
    default: return 0;
    }
}

ssize_t pack_read(struct pack *p, char *buf, size_t size, struct err *e)
{
    size_t n;
    int r = 0;

    if (p->at == p->n)
        p->at = p->n = 0;
    while (r == 0 && p->n == 0 && !*p->hash)
        r = p->file >= 0 ? add_block(p, e) : add_next(p, e);
    if (r < 0)
        return r;
    n = p->n - p->at < size ? p->n - p->at : size;
    memcpy(buf, p->out + p->at, n);
    p->at += n;
    return (ssize_t)n;
}

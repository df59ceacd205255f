// SPDX-License-Identifier: Apache-2.0
/* Extended attributes. POSIX ACLs are neither shown nor taken: the kernel would not enforce them
 * here (fuse.md, section 15). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/base/cleanup.h"
#include "fs/hostdir/hostdir.h"

#define LIST_MAX_BYTES 65536

bool host_is_acl(const char *name)
{
    return !strncmp(name, "system.posix_acl_", strlen("system.posix_acl_"));
}

static struct hinode *hinode_of(struct call *c)
{
    if (c->node->kind == NODE_FILE)
        return &node_file(c->node)->h;
    if (c->node->kind == NODE_LINK)
        return &container_of(c->node, struct link_node, n)->hi->h;
    return &call_dir(c, container_of(c->node, struct dir_node, n))->h;
}

/* The xattr calls take no O_PATH descriptor, but a path through /proc; a link that ends there is
 * not followed further. */
struct xpath {
    struct hfd f;
    char       path[40];
};

static int xpath_open(struct call *c, struct xpath *x)
{
    int r = hinode_fd_or_handle(c->fs, hinode_of(c), &x->f);
    if (r == 0)
        snprintf(x->path, sizeof x->path, "/proc/self/fd/%d", x->f.fd);
    return r;
}

static void reply_value(struct call *c, ssize_t r, const char *value)
{
    if (r < 0)
        fuse_reply_err(c->req, (int)-r);
    else if (c->size == 0)
        fuse_reply_xattr(c->req, (size_t)r);
    else
        fuse_reply_buf(c->req, value, (size_t)r);
}

static ssize_t no_enosys(ssize_t r)
{
    if (r >= 0)
        return r;
    return errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

void host_run_getxattr(struct call *c)
{
    cleanup_free char *value = malloc(c->size ? c->size : 1);
    struct xpath x;
    ssize_t r = value ? xpath_open(c, &x) : -ENOMEM;
    if (r == 0) {
        r = no_enosys(x.f.opened ? fgetxattr(x.f.fd, c->name, value, c->size)
                                 : getxattr(x.path, c->name, value, c->size));
        hfd_put(c->fs, &x.f);
    }
    reply_value(c, r, value);
}

void host_getxattr(struct fs *fs, fuse_req_t req, struct node *n, const char *name, size_t size)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .size = size, .run = host_run_getxattr};
    if (host_is_acl(name))
        fuse_reply_err(req, EOPNOTSUPP);
    else
        call_start(&c);
}

/* Takes the ACLs out of a list of names; the new length. */
static ssize_t without_acls(char *list, ssize_t n)
{
    ssize_t used = 0;
    for (ssize_t at = 0; at < n;) {
        ssize_t len = (ssize_t)strlen(list + at) + 1;
        if (!host_is_acl(list + at)) {
            memmove(list + used, list + at, (size_t)len);
            used += len;
        }
        at += len;
    }
    return used;
}

void host_run_listxattr(struct call *c)
{
    cleanup_free char *list = malloc(LIST_MAX_BYTES);
    struct xpath x;
    ssize_t r = list ? xpath_open(c, &x) : -ENOMEM;
    if (r == 0) {
        r = no_enosys(listxattr(x.path, list, LIST_MAX_BYTES));
        hfd_put(c->fs, &x.f);
    }
    if (r > 0)
        r = without_acls(list, r);
    if (c->size && r > (ssize_t)c->size)
        r = -ERANGE;
    reply_value(c, r, list);
}

void host_listxattr(struct fs *fs, fuse_req_t req, struct node *n, size_t size)
{
    struct call c = {.fs = fs, .req = req, .node = n, .size = size, .run = host_run_listxattr};
    call_start(&c);
}

static void run_setxattr(struct call *c)
{
    struct xpath x;
    ssize_t r = xpath_open(c, &x);
    if (r == 0) {
        r = no_enosys(setxattr(x.path, c->name, c->data, c->size, (int)c->flags));
        hfd_put(c->fs, &x.f);
    }
    fuse_reply_err(c->req, (int)-r);
}

void host_setxattr(struct fs *fs, fuse_req_t req, struct node *n, const char *name, const char *value,
                   size_t size, int flags)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .data = value, .size = size,
                     .flags = (unsigned)flags, .run = run_setxattr};
    if (host_is_acl(name))
        fuse_reply_err(req, EOPNOTSUPP);
    else
        call_start(&c);
}

static void run_removexattr(struct call *c)
{
    struct xpath x;
    ssize_t r = xpath_open(c, &x);
    if (r == 0) {
        r = no_enosys(removexattr(x.path, c->name));
        hfd_put(c->fs, &x.f);
    }
    fuse_reply_err(c->req, (int)-r);
}

void host_removexattr(struct fs *fs, fuse_req_t req, struct node *n, const char *name)
{
    struct call c = {.fs = fs, .req = req, .node = n, .name = name, .run = run_removexattr};
    if (host_is_acl(name))
        fuse_reply_err(req, EOPNOTSUPP);
    else
        call_start(&c);
}

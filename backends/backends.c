// SPDX-License-Identifier: Apache-2.0
#include "backends/backends.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "backends/local/local.h"
#include "backends/shared/beside.h"
#include "fs/base/cleanup.h"

static const char *const names[] = { "local", "docker", NULL };

const char *const *backend_names(void)
{
    return names;
}

/* Takes over the members that we know; those it was built without are NULL. */
static int adopt(const struct backend *theirs, const char *path, struct backend *out, struct err *e)
{
    if (!theirs || theirs->abi != BACKEND_ABI)
        return err_set(e, -EINVAL, "%s was built for version %u of the backend interface, and this is version %u",
                       path, theirs ? theirs->abi : 0, BACKEND_ABI);
    if (theirs->size_bytes < offsetof(struct backend, init))
        return err_set(e, -EINVAL, "%s says that its struct backend has %u bytes, which cannot be", path,
                       theirs->size_bytes);
    memset(out, 0, sizeof(*out));
    memcpy(out, theirs, theirs->size_bytes < sizeof(*out) ? theirs->size_bytes : sizeof(*out));
    if (!out->name || !out->files_open)
        return err_set(e, -EINVAL, "%s has no name or no files_open", path);
    return 0;
}

static int load(const char *path, struct backend *out, struct err *e)
{
    const struct backend *(*entry)(void);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int r;

    if (!object)
        return err_set(e, -ENOENT, "the backend cannot be loaded: %s", dlerror());
    *(void **)&entry = dlsym(object, "wsmfs_backend");
    if (entry)
        r = adopt(entry(), path, out, e);
    else
        r = err_set(e, -EINVAL, "%s is not a backend: it has no function wsmfs_backend", path);
    if (r < 0)
        dlclose(object);
    return r;
}

/* The engine's client comes with some thirty libraries, which a mount that needs no engine does not load. */
static int load_docker(struct backend *out, struct err *e)
{
    static const char *const places[] = { "../backends/docker/docker.so", "../libexec/wsmfs/docker.so", NULL };
    cleanup_free char *path = beside_program(places, WSMFS_BACKENDS "/docker.so");

    return path ? load(path, out, e) : err_set(e, -ENOMEM, "out of memory");
}

int backend_find(const char *name, struct backend *out, struct err *e)
{
    if (strchr(name, '/'))
        return load(name, out, e);
    if (strcmp(name, "docker") == 0)
        return load_docker(out, e);
    if (strcmp(name, "local") == 0) {
        *out = local_backend;
        return 0;
    }
    return err_set(e, -EINVAL, "there is no backend \"%s\"; the built-in ones are local and docker, and the path of a shared "
                   "object (with a '/') loads another", name);
}

// SPDX-License-Identifier: Apache-2.0
/* Building: Engine API, "Build an image". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/credentials.h"
#include "backends/docker/image.h"
#include "backends/docker/pack.h"
#include "fs/base/cleanup.h"

#define NAME        "wsmfs-build:"
#define HASH_SHOWN  24 /* of its 64 digits, in the tag */
#define cleanup_answer __attribute__((cleanup(engine_answer_finish)))

_Static_assert(sizeof(NAME) + HASH_SHOWN <= IMAGE_BUILT_SIZE, "a name fits");

static void put_pack(struct pack **p) { pack_close(*p); }
#define cleanup_pack __attribute__((cleanup(put_pack)))

/* ── its name ────────────────────────────────────────────────────────────────────────────── */

static int hash_of(const char *directory, struct backend_progress *p, char out[PACK_HASH_SIZE], struct err *e)
{
    cleanup_pack struct pack *k = NULL;
    cleanup_free char *block = malloc(65536);
    int r = block ? pack_open(directory, NULL, &k, e) : err_set(e, -ENOMEM, "out of memory");
    ssize_t n = 1;

    if (r < 0)
        return r;
    while (n > 0) {
        if (p && p->cancelled(p))
            return err_set(e, -ECANCELED, "cancelled");
        n = pack_read(k, block, 65536, e);
    }
    if (n == 0)
        snprintf(out, PACK_HASH_SIZE, "%s", pack_hash(k));
    return (int)n;
}

int image_build_name(struct docker *d, struct backend_progress *p, char out[IMAGE_BUILT_SIZE], struct err *e)
{
    char hash[PACK_HASH_SIZE];
    int r = hash_of(d->keys.build, p, hash, e);

    if (r == 0)
        snprintf(out, IMAGE_BUILT_SIZE, NAME "%.*s", HASH_SHOWN, hash);
    return r;
}

/* ── building it ─────────────────────────────────────────────────────────────────────────── */

struct building {
    struct image_stream stream; /* first */
    struct pack *pack;
    int failed;                 /* what packing said */
    struct err *why;
};

static ssize_t upload(void *arg, char *buf, size_t size)
{
    struct building *b = arg;
    ssize_t n = pack_read(b->pack, buf, size, b->why);

    b->failed = n < 0 ? (int)n : 0;
    return n;
}

/* Its steps have the network of jobs where nothing else is said: what a step fetches becomes part of what
 * all workspaces run. */
static char *path_of(const struct docker_keys *k, const char *name)
{
    const char *net = k->build_network ? k->build_network : k->network ? k->network : "none";
    cleanup_free char *tag = engine_escape(name), *network = engine_escape(net);
    char *path;

    return tag && network && asprintf(&path, "/build?t=%s&rm=1&forcerm=1&networkmode=%s%s", tag, network,
                                      k->pull == DOCKER_PULL_ALWAYS ? "&pull=1" : "") >= 0 ? path : NULL;
}

static int failed(const struct docker *d, const struct image_stream *s, struct err *e)
{
    bool no_base = strstr(s->failure, "manifest unknown") || strstr(s->failure, "not found: ") ||
                   strstr(s->failure, "No such image");
    int code = image_is_denied(s->failure) ? -EACCES : no_base ? -ENXIO : -EIO;

    return err_set(e, code, "no image can be built of %s: %s%s%s%s%s", d->keys.build, s->step, *s->step ? ": " : "",
                   s->failure, *s->said ? "; it said: " : "", s->said);
}

static int send_build(struct docker *d, struct building *b, const char *path, struct err *e)
{
    cleanup_answer struct engine_answer a = { 0 };
    cleanup_free char *auth = NULL;
    struct engine_request rq = { .method = "POST", .path = path, .upload = upload, .line = image_stream_line,
                                 .cancelled = image_stream_cancelled, .arg = b };
    int r = credentials_of_all(image_stream_cancelled, b, &auth, e);

    if (r < 0)
        return r;
    rq.header = auth;
    r = engine_call(d->engine, &rq, &a, e);
    if (b->failed)
        return b->failed; /* and `e` says what packing did, or the engine to whom half a tar was sent */
    if (r < 0)
        return r;
    if (a.status == 400)
        return err_set(e, -EINVAL, "no image can be built of %s: %s", d->keys.build, a.text);
    if (a.status != 200)
        return engine_refused(&a, d->keys.build, e);
    return *b->stream.failure ? failed(d, &b->stream, e) : 0;
}

int image_build(struct docker *d, const char *name, struct backend_progress *p, struct err *e)
{
    cleanup_free struct building *b = calloc(1, sizeof(*b));
    cleanup_free char *path = path_of(&d->keys, name);
    cleanup_pack struct pack *pack = NULL;
    struct err why = { 0 };
    int r;

    if (!b || !path)
        return err_set(e, -ENOMEM, "out of memory");
    r = pack_open(d->keys.build, strchr(name, ':') + 1, &pack, e);
    if (r < 0)
        return r;
    b->stream.progress = p;
    b->pack = pack;
    b->why = &why;
    p->step(p, "build", d->keys.build, 0, 0);
    r = send_build(d, b, path, e);
    return b->failed ? err_set(e, b->failed, "%s", why.text) : r;
}

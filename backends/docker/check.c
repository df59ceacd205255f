// SPDX-License-Identifier: Apache-2.0
/* Whether jobs could run on this machine, for --check: the engine is asked, nothing is made. Engine API,
 * "Inspect an image". */
#include <errno.h>
#include <stdio.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"

/* How each image comes by, in words of their own. */
enum presence { THERE, ABSENT };

static int look_for(struct docker *d, const char *image, enum presence *out, struct err *e)
{
    __attribute__((cleanup(engine_answer_finish))) struct engine_answer a = { 0 };
    cleanup_free char *escaped = engine_escape(image), *path = NULL;
    struct engine_request rq = { .method = "GET", .timeout_ms = d->keys.timeout_ms };
    int r;

    if (!escaped || asprintf(&path, "/images/%s/json", escaped) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    rq.path = path;
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0)
        return r;
    if (a.status != 200 && !engine_misses(&a))
        return engine_refused(&a, image, e);
    *out = a.status == 200 ? THERE : ABSENT;
    return 0;
}

/* Says it in `found`. -ENOENT, with a sentence: nobody would bring the image. */
static int check_image(struct docker *d, char *found, size_t size, struct err *e)
{
    const char *name = NULL, *engine = engine_name(d->engine);
    char built[IMAGE_BUILT_SIZE];
    enum presence image = ABSENT;
    int r = image_name(d, NULL, built, &name, e);

    if (r == 0)
        r = look_for(d, name, &image, e);
    if (r < 0)
        snprintf(found, size, "no container could be made");
    else if (image == ABSENT && d->keys.pull == DOCKER_PULL_NEVER) {
        snprintf(found, size, "no container could be made: the image %s is not there", name);
        r = err_set(e, -ENOENT, "bring it to the engine with `docker pull` or `docker load`, or say pull = missing");
    } else {
        snprintf(found, size, "in containers: an engine answers at %s; the image %s %s", engine, name,
                 image == THERE   ? "is there"
                 : d->keys.build ? "will be built"
                                 : "is not there yet and will be pulled");
    }
    return r;
}

/* What else goes wrong says itself how to mend it. */
static int check_engine(struct docker *d, char *found, size_t size, struct err *e)
{
    struct err why = { 0 };
    int r = docker_learn_ids(d, &why);

    if (r == 0)
        return check_image(d, found, size, e);
    snprintf(found, size, "no container could be made");
    return err_set(e, r, "%s%s", why.text, r == -EHOSTUNREACH ? ". Start it, or name another by DOCKER_HOST or `host` of section "
                   "[backend docker]" : "");
}

int docker_check(const struct backend_mount *m, char *found, size_t size, struct err *e)
{
    struct docker d = { .mount = *m };
    int r = docker_settle(&d, e);

    *found = '\0';
    if (r == 0)
        r = check_engine(&d, found, size, e);
    engine_destroy(d.engine);
    docker_keys_finish(&d.keys);
    return r;
}

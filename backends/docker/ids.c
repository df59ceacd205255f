// SPDX-License-Identifier: Apache-2.0
/* Whose ids the processes of a container have on this host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"

enum { NOT_ASKED, ROOTS, OURS };

/* An engine of an ordinary user says so among its security options: root in its containers is that user. */
static bool is_rootless(struct json_object *info)
{
    struct json_object *options = json_object_object_get(info, "SecurityOptions");

    for (size_t i = 0; json_object_is_type(options, json_type_array) && i < json_object_array_length(options); i++) {
        const char *o = json_object_get_string(json_object_array_get_idx(options, i));
        if (o && strncmp(o, "name=rootless", strlen("name=rootless")) == 0)
            return true;
    }
    return false;
}

int docker_learn_ids(struct docker *d, struct err *e)
{
    const struct engine_request rq = { .method = "GET", .path = "/info", .timeout_ms = d->keys.timeout_ms };
    __attribute__((cleanup(engine_answer_finish))) struct engine_answer a = { 0 };
    int r;

    if (geteuid() == 0 || atomic_load(&d->ids) != NOT_ASKED)
        return 0;
    r = engine_call(d->engine, &rq, &a, e);
    if (r < 0)
        return r;
    if (a.status != 200)
        return engine_refused(&a, "what the engine is", e);
    if (!json_object_is_type(a.json, json_type_object))
        return err_set(e, -EPROTO, "the Docker engine does not say what it is");
    if (is_rootless(a.json)) {
        atomic_store(&d->ids, ROOTS);
        return 0;
    }
    if (d->keys.user)
        return err_set(e, -EINVAL, "user of section [sandbox] cannot be honoured: the engine is root's and this mount an ordinary "
                       "user's, who could not change other users' files. Jobs run as that user");
    atomic_store(&d->ids, OURS);
    return 0;
}

void docker_container_user(struct docker *d, char out[32])
{
    if (atomic_load(&d->ids) == OURS)
        snprintf(out, 32, "%u:%u", (unsigned)geteuid(), (unsigned)getegid());
    else
        snprintf(out, 32, "0:0");
}

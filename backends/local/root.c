// SPDX-License-Identifier: Apache-2.0
/* `.wsm/root` of a local workspace: what a confined job would see of the host, whether or not one
 * runs. The table is that of the sandbox. */
#include <stdio.h>
#include <string.h>

#include "backends/local/local.h"

void local_root_look(const struct shown *s, const char *inside, struct backend_root_place *out)
{
    static const enum backend_root_kind kinds[] = {
        [SHOWN_NOTHING] = BACKEND_ROOT_NOTHING,
        [SHOWN_ABOVE] = BACKEND_ROOT_ABOVE,
        [SHOWN_TREE] = BACKEND_ROOT_HOST,
        [SHOWN_LINK] = BACKEND_ROOT_LINK,
    };
    struct shown_place place;

    shown_look(s, inside, &place);
    out->kind = kinds[place.kind];
    snprintf(out->host, sizeof(out->host), "%s", place.kind == SHOWN_TREE ? place.host : "");
    snprintf(out->target, sizeof(out->target), "%s", place.kind == SHOWN_LINK ? place.target : "");
}

struct forward {
    void (*each)(const char *name, void *arg);
    void  *arg;
};

static void forward(const char *name, enum shown_kind kind, void *arg)
{
    struct forward *f = arg;

    (void)kind;
    f->each(name, f->arg);
}

void local_root_children(const struct shown *s, const char *inside, void (*each)(const char *name, void *arg),
                         void *arg)
{
    struct forward f = { each, arg };

    shown_children(s, inside, forward, &f);
}

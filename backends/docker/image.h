// SPDX-License-Identifier: Apache-2.0
/* What an engine says while it pulls and builds: Engine API, "Create an image" and "Build an image". */
#ifndef WSMFS_DOCKER_IMAGE_H
#define WSMFS_DOCKER_IMAGE_H

#include "backends/docker/docker.h"

#define LAYERS_MAX 256

struct image_layer {
    char id[20];
    uint64_t done_bytes, total_bytes;
    bool complete;
};

struct image_stream {
    struct backend_progress *progress;
    struct image_layer layers[LAYERS_MAX];
    size_t n;
    int64_t told_ms;            /* when the layers were last told */
    char step[120];             /* of a build: "Step 2/5 : RUN make" */
    char said[160];             /* the last line that the step has printed */
    char failure[ERR_TEXT_MAX]; /* what a line said; a request that answers 200 may still fail */
};

/* The callbacks of an engine_request whose `arg` begins with a struct image_stream. */
bool image_stream_line(void *arg, struct json_object *o);
bool image_stream_cancelled(void *arg);

/* Whether a registry's or an engine's message says that it wants (other) credentials. */
bool image_is_denied(const char *message);

/* Builds the image of that name, which image_name() gave. As image_fetch(). */
int image_build(struct docker *d, const char *name, struct backend_progress *p, struct err *e);
/* What the directory of `build` makes an image be called. As image_name(). */
int image_build_name(struct docker *d, struct backend_progress *p, char out[IMAGE_BUILT_SIZE], struct err *e);

#endif

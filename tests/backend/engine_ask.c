// SPDX-License-Identifier: Apache-2.0
/* engine_ask PATH: asks the Docker Engine that the environment names for PATH, as the docker backend would, and
 * prints the answer, or on stderr the errno and the sentence. */
#include <stdio.h>
#include <string.h>

#include "backends/docker/engine.h"

int main(int argc, char **argv)
{
    const struct engine_request rq = { .method = "GET", .path = argc > 1 ? argv[1] : "/version", .timeout_ms = 60000 };
    struct engine_answer a = { 0 };
    struct engine_address at;
    struct engine *en = NULL;
    struct err e = { 0 };
    int r = engine_find(NULL, &at, &e);

    if (r == 0)
        r = engine_create(&at, &en, &e);
    if (r == 0)
        r = engine_call(en, &rq, &a, &e);
    if (r == 0)
        printf("%s\n", json_object_to_json_string(a.json));
    else
        fprintf(stderr, "%s: %s\n", strerrorname_np(-e.code), e.text);
    engine_answer_finish(&a);
    engine_destroy(en);
    return r < 0;
}

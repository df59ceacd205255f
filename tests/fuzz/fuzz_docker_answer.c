// SPDX-License-Identifier: Apache-2.0
/* An engine that answers anything. The first byte says whether a stream is expected and how what follows, a header
 * and a body, is cut into pieces: all ways of cutting have to come to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backends/docker/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    unsigned n;     /* objects of the stream */
    size_t bytes;   /* of them, written out */
    unsigned most;  /* after which no more are wanted */
};

static void require(bool ok)
{
    if (!ok)
        abort();
}

static bool on_line(void *arg, struct json_object *o)
{
    struct seen *s = arg;

    require(json_object_is_type(o, json_type_object) && s->n < s->most);
    s->bytes += strlen(json_object_to_json_string(o));
    return ++s->n < s->most;
}

/* Hands over the lines of the header. Returns where the body begins. */
static size_t feed_header(struct answer *a, const char *text, size_t size)
{
    size_t at = 0;

    while (at < size && !a->complete) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t n = end ? (size_t)(end - text) - at + 1 : size - at;
        if (!end || !answer_header(a, text + at, n))
            return size;
        at += n;
    }
    return at;
}

static void feed(struct answer *a, const char *text, size_t size, size_t piece)
{
    size_t at = feed_header(a, text, size);

    while (at < size) {
        size_t n = size - at < piece ? size - at : piece;
        /* From memory of its own, so that nothing beyond it is read unnoticed. */
        char *copy = malloc(n);
        memcpy(copy, text + at, n);
        bool more = answer_body(a, copy, n);
        free(copy);
        require(more == (a->fault == ANSWER_FINE));
        if (!more)
            return;
        at += n;
    }
    require(answer_end(a) == (a->fault == ANSWER_FINE));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    bool stream = data[0] & 1;
    struct seen whole = { .most = 1 + (data[0] >> 6) * 100 }, cut = whole;
    struct answer a = { .line = stream ? on_line : NULL, .arg = &whole }, b = { .line = stream ? on_line : NULL, .arg = &cut };

    feed(&a, (const char *)data + 1, size - 1, size);
    feed(&b, (const char *)data + 1, size - 1, 1 + ((data[0] >> 1) & 15));
    require(a.fault == b.fault && a.status == b.status && whole.n == cut.n && whole.bytes == cut.bytes);
    require(strlen(a.api) < sizeof(a.api) && strcmp(a.api, b.api) == 0);
    if (a.fault == ANSWER_FINE && !stream && a.size) {
        require(a.size == b.size && memcmp(a.body, b.body, a.size + 1) == 0 && a.body[a.size] == '\0');
        struct json_object *o = answer_json(a.body, a.size);
        if (o)
            require(json_object_to_json_string(o) != NULL);
        json_object_put(o);
    }
    answer_finish(&a);
    answer_finish(&b);
    return 0;
}

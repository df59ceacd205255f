// SPDX-License-Identifier: Apache-2.0
/* A Docker Engine: where it is, and talking HTTP to it. Facts: the Engine's API reference, and the
 * official client for what it does to find one. */
#ifndef WSMFS_DOCKER_ENGINE_H
#define WSMFS_DOCKER_ENGINE_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backends/docker/answer.h"
#include "fs/base/err.h"

/* Where an engine listens. Strings are malloc'ed or NULL. */
struct engine_address {
    char *socket;      /* path of a unix socket; NULL: tcp */
    char *url;         /* what stands before "/v1.41/…": "http://docker", "https://host:2376" */
    char *ca, *cert, *key; /* files, of TLS; each may be NULL */
    bool  unchecked;   /* the server's certificate is not checked */
    char *from;        /* who named it, for messages: "DOCKER_HOST", "the context lab" */
};

/* As the official client looks: `host` (NULL: not said), DOCKER_HOST, DOCKER_CONTEXT or the current
 * context, the default socket. Reads files, connects to nothing. -EINVAL with a sentence. */
int engine_find(const char *host, struct engine_address *out, struct err *e);
void engine_address_finish(struct engine_address *a);

struct engine;

/* Takes the address over, also on failure. Connects to nothing. DOCKER_API_VERSION is honoured: -EINVAL, with a
 * sentence, when that is no version. */
int engine_create(struct engine_address *a, struct engine **out, struct err *e);
/* NULL is fine. */
void engine_destroy(struct engine *en);
/* "unix:///run/docker.sock (the default)", for messages. Borrowed. */
const char *engine_name(const struct engine *en);

/* What an engine said. */
struct engine_answer {
    long  status;             /* of HTTP, 200 or more */
    struct json_object *json; /* NULL: none, or it did not parse: to be checked, whatever the status */
    bool  said;               /* an error with a message, as engines give it */
    char  text[ERR_TEXT_MAX]; /* of an error: its message, else the beginning of what came; one line of text */
    char  path_stat[ANSWER_PATH_STAT_SIZE]; /* of HEAD …/archive: the header X-Docker-Container-Path-Stat; "": none */
};
void engine_answer_finish(struct engine_answer *a);

/* A request as it is made. */
struct engine_request {
    const char *method;
    const char *path;             /* behind the version, e.g. "/containers/json?all=1"; already escaped */
    struct json_object *body;     /* borrowed; NULL: none */
    /* A tar as the body, instead of `body`: fills buf and returns how many bytes, 0 at its end; negative ends
     * the request with -ECANCELED. NULL: none. */
    ssize_t (*upload)(void *arg, char *buf, size_t size_bytes);
    const char *header;           /* one more, e.g. "X-Registry-Auth: …"; NULL: none */
    size_t most_bytes;            /* of an answer; 0: ANSWER_MAX_BYTES */
    int64_t timeout_ms;           /* for all of it; 0: a stream, which may last as long as it says something */
    int64_t stall_ms;             /* the most that may pass without a byte; 0: any time, once the header came */
    bool (*cancelled)(void *arg); /* asked at least once a second; NULL: never */
    /* Streams of JSON, one object a line, are handed over as they come; false ends the request, as an
     * error of the caller's. NULL: the answer is collected. */
    bool (*line)(void *arg, struct json_object *o);
    void *arg;
    struct engine_stopper *stopper; /* lets another thread end it, without being asked in between, nor are the
                                    * limits of silence kept; NULL: none does */
};

/* Ends one request, or wait, at a time from another thread, for good. */
struct engine_stopper;
struct engine_stopper *engine_stopper_create(void); /* NULL: out of memory */
void engine_stopper_destroy(struct engine_stopper *s);
/* Any thread. What is under way is -ECANCELED, and so is all that comes later. */
void engine_stop(struct engine_stopper *s);
/* Sleeps; false: it was stopped. */
bool engine_stopper_wait(struct engine_stopper *s, int timeout_ms);

/* Makes the request, negotiating the version of the API first where that has not been done. Blocks, on
 * any thread. 0 when a whole answer came, whatever its status. With a sentence: -EHOSTUNREACH (nobody there, or
 * the connection broke off: the request may have been carried out), -EACCES (the socket; certificates),
 * -ETIMEDOUT (the limits of the request; 10 s for a connection and for an engine's first answer; 60 s for the
 * header of an answer without limits), -ECANCELED, -EPROTO (not HTTP, an answer without bound or cut short, a
 * stream with a line that is no JSON object), -ENOMEM.
 * *out is to be finished in any case. */
int engine_call(struct engine *en, const struct engine_request *rq, struct engine_answer *out, struct err *e);

/* The error of an answer that is none of those that the caller expects: "docker: WHAT: its message".
 * Returns the errno: -EPROTO for one that no engine gives. */
int engine_refused(const struct engine_answer *a, const char *what, struct err *e);
/* The engine itself says that there is no such thing: not just anybody's 404. */
bool engine_misses(const struct engine_answer *a);

/* The text, escaped to stand in a path or a query; malloc'ed, NULL: out of memory. */
char *engine_escape(const char *text);

#endif

// SPDX-License-Identifier: Apache-2.0
/* An HTTP answer of an engine as it is taken in, piece by piece, in whatever pieces it comes. Whoever answers may
 * be no engine at all: nothing here waits, opens anything or believes what it is told. Not for two threads at once. */
#ifndef WSMFS_DOCKER_ANSWER_H
#define WSMFS_DOCKER_ANSWER_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>

#define ANSWER_MAX_BYTES (4u << 20)   /* unless more is asked for; what describes a container has some KiB */
#define ANSWER_LINE_MAX_BYTES (1u << 20) /* of a stream; those of a pull have some hundred bytes */
#define ANSWER_HEADER_MAX_BYTES (256u << 10) /* with all interim answers */
#define ANSWER_API_SIZE 16
#define ANSWER_PATH_STAT_SIZE 1024

/* Why an answer was not taken to its end. */
enum answer_fault {
    ANSWER_FINE,
    ANSWER_TOO_LARGE, /* the header, the body, or a line of a stream */
    ANSWER_NO_MEMORY,
    ANSWER_STOPPED,   /* `line` said so */
    ANSWER_NO_JSON,   /* a line of a stream is not one object */
    ANSWER_CUT,       /* it ended in the middle */
};

/* {0} with `line`, `arg` and `most_bytes` set is a fresh one. */
struct answer {
    /* Receives the objects of a stream with status 200; false: no more. NULL: the body is collected. */
    bool (*line)(void *arg, struct json_object *o);
    void *arg;
    size_t most_bytes;            /* of the body, or of a line and a piece of a stream; 0: ANSWER_MAX_BYTES */

    enum answer_fault fault;
    long   status;                /* of the last header; 0: none came */
    char   api[ANSWER_API_SIZE];  /* what it says of the version of the API, "" when it does not */
    char   path_stat[ANSWER_PATH_STAT_SIZE]; /* and of a path in a container */
    bool   complete;              /* the header has ended */
    bool   framed;                /* the header says how the end of the body is recognized */
    size_t header_bytes;
    char  *body;                  /* what has come, with a NUL behind it, or NULL; of a stream what is no line yet */
    size_t size, room, looked;
};

/* One line of a header, with its end; interim answers (100 to 199) have headers of their own, which come before.
 * False: no more, see `fault`. */
bool answer_header(struct answer *a, const char *line, size_t n);
/* A piece of the body. False: no more, see `fault`. */
bool answer_body(struct answer *a, const char *data, size_t n);
/* After the last piece. False: it is not all there, see `fault`. */
bool answer_end(struct answer *a);
/* Frees what is kept. */
void answer_finish(struct answer *a);

/* The one value that these `n` bytes (with a NUL behind them) are, with white space around it; NULL: none, more
 * than one, or nested deeper than any engine does. The caller owns it. */
struct json_object *answer_json(const char *text, size_t n);

#endif

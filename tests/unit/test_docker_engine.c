// SPDX-License-Identifier: Apache-2.0
/* The client of a Docker Engine before servers that answer badly, late, or without end. Each server is a thread
 * that says what a table tells it. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/docker/docker.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define OK_HEAD  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
#define CHUNKED  OK_HEAD "Transfer-Encoding: chunked\r\n\r\n"
#define PING     "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"
#define PLENTY_MS 60000
#define ID       "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* ── the server ──────────────────────────────────────────────────────────────────────────── */

enum then { THEN_CLOSE, THEN_WAIT, THEN_RESET };

struct server {
    const char *ping;        /* to GET /_ping; NULL: a good one */
    const char *answer;      /* to all else */
    const char *later;       /* from its second request on; NULL: the same */
    const char *endless;     /* after it, again and again; NULL: nothing */
    enum then then;          /* when that was said; WAIT: until the client goes */
    bool trickle;            /* a byte at a time, with pauses */
    char path[100];
    char asked[200];         /* the last request's first line */
    unsigned n;              /* requests that were no ping */
    unsigned pings;
    int fd;
    pthread_t thread;
    atomic_bool stop;
};

static bool say(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        text += sent;
        n -= (size_t)sent;
    }
    return true;
}

static void say_slowly(int fd, const char *text)
{
    while (*text && say(fd, text++, 1))
        usleep(20000);
}

static bool hear(int fd, char *buf, size_t size)
{
    size_t have = 0;

    while (have < size - 1) {
        ssize_t n = read(fd, buf + have, 1);
        if (n <= 0)
            return false;
        have += (size_t)n;
        buf[have] = '\0';
        if (strstr(buf, "\r\n\r\n"))
            return true;
    }
    return false;
}

static void wait_for_end(int fd)
{
    char sink[4096];

    while (read(fd, sink, sizeof(sink)) > 0)
        ;
}

static void serve(struct server *s, int fd)
{
    char request[8192];
    bool ping;

    if (s->then == THEN_RESET && read(fd, request, 1) == 1) /* what is closed with something unread is reset */
        return;
    if (!hear(fd, request, sizeof(request)))
        return;
    ping = strncmp(request, "GET /_ping", 10) == 0;
    if (ping) {
        s->pings++;
        say(fd, s->ping ? s->ping : PING, strlen(s->ping ? s->ping : PING));
        return;
    }
    snprintf(s->asked, sizeof(s->asked), "%.*s", (int)strcspn(request, "\r"), request);
    const char *answer = s->n++ && s->later ? s->later : s->answer;
    if (s->trickle)
        say_slowly(fd, answer);
    else if (!say(fd, answer, strlen(answer)))
        return;
    while (s->endless && say(fd, s->endless, strlen(s->endless)))
        ;
    if (s->then == THEN_WAIT)
        wait_for_end(fd);
}

static void *run(void *arg)
{
    struct server *s = arg;

    for (int fd; (fd = accept(s->fd, NULL, NULL)) >= 0; close(fd))
        if (!atomic_load(&s->stop))
            serve(s, fd);
    return NULL;
}

static void listen_at(struct server *s, int queue)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };

    snprintf(s->path, sizeof(s->path), "/tmp/wsmfs-engine-%d.sock", getpid());
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", s->path);
    unlink(s->path);
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(s->fd, queue), 0);
}

static void begin(struct server *s)
{
    listen_at(s, 16);
    assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0);
}

static void end(struct server *s)
{
    atomic_store(&s->stop, true);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    unlink(s->path);
}

static struct engine *engine_at(const char *path)
{
    cleanup_free char *host = NULL;
    struct engine_address a;
    struct engine *en = NULL;

    assert_true(asprintf(&host, "unix://%s", path) > 0);
    assert_int_equal(engine_find(host, &a, NULL), 0);
    assert_int_equal(engine_create(&a, &en, NULL), 0);
    return en;
}

/* ── one request ─────────────────────────────────────────────────────────────────────────── */

static bool count(void *arg, struct json_object *o)
{
    ++*(int *)arg;
    return json_object_is_type(o, json_type_object);
}

struct expected {
    const char *name;
    struct server server;
    bool stream;
    int  lines;      /* of the stream, that arrive */
    int64_t limit_ms, stall_ms;
    int  r;
    const char *word; /* of the sentence */
};

static int ask(struct engine *en, const struct expected *x, int *lines, struct engine_answer *a, struct err *e)
{
    const struct engine_request rq = { .method = "GET", .path = "/x", .line = x->stream ? count : NULL, .arg = lines,
                                       .timeout_ms = x->stall_ms ? 0 : x->limit_ms ? x->limit_ms : PLENTY_MS,
                                       .stall_ms = x->stall_ms };

    return engine_call(en, &rq, a, e);
}

static void check(const struct expected *x)
{
    struct server s = x->server;
    struct engine_answer a = { 0 };
    struct err e = { 0 };
    int lines = 0, r;

    begin(&s);
    struct engine *en = engine_at(s.path);
    r = ask(en, x, &lines, &a, &e);
    if (r != x->r || lines != x->lines || (x->word && !strstr(e.text, x->word)))
        fail_msg("%s: %d, %d lines, \"%s\"", x->name, r, lines, e.text);
    engine_answer_finish(&a);
    engine_destroy(en);
    end(&s);
}

#define BAD(what, code, text, ...) { .name = what, .r = code, .word = text, .server = { __VA_ARGS__ } }
#define LATE(what, ...) \
    { .name = what, .limit_ms = 500, .r = -ETIMEDOUT, .word = "in time", .server = { __VA_ARGS__ } }
#define STREAM(what, n, code, text, ...) \
    { .name = what, .stream = true, .lines = n, .r = code, .word = text, .server = { __VA_ARGS__ } }

static void test_answers_that_are_cut(void **state)
{
    static const struct expected all[] = {
        BAD("nothing", -EHOSTUNREACH, "broke off", .answer = ""),
        BAD("a reset", -EHOSTUNREACH, "broke off", .answer = "", .then = THEN_RESET),
        BAD("in the first line", -EHOSTUNREACH, "broke off", .answer = "HTTP/1.1 20"),
        BAD("in the header", -EHOSTUNREACH, "broke off", .answer = "HTTP/1.1 200 OK\r\nContent-Ty"),
        BAD("before the header's end", -EHOSTUNREACH, "broke off", .answer = OK_HEAD),
        BAD("in the body", -EHOSTUNREACH, "broke off", .answer = OK_HEAD "Content-Length: 99\r\n\r\n{\"a\":1}"),
        BAD("in a chunk", -EHOSTUNREACH, "broke off", .answer = CHUNKED "20\r\n{\"a\":1}"),
        BAD("between chunks", -EHOSTUNREACH, "broke off", .answer = CHUNKED "7\r\n{\"a\":1}\r\n"),
        BAD("after an interim answer", -EHOSTUNREACH, "broke off", .answer = "HTTP/1.1 100 Continue\r\n\r\n"),
        STREAM("a stream between lines", 1, -EHOSTUNREACH, "broke off", .answer = CHUNKED "8\r\n{\"a\":1}\n\r\n"),
        STREAM("a stream in a line", 1, -EHOSTUNREACH, "broke off", .answer = CHUNKED "b\r\n{\"a\":1}\n{\"b\r\n"),
        STREAM("a stream's last line", 1, -EPROTO, "cut short", .answer = CHUNKED "b\r\n{\"a\":1}\n{\"b\r\n0\r\n\r\n"),
        STREAM("a stream of unknown length", 1, -EPROTO, "cut short", .answer = OK_HEAD "\r\n{\"a\":1}\n"),
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++)
        check(&all[i]);
}

static void test_answers_that_are_no_engines(void **state)
{
    static const struct expected all[] = {
        BAD("another protocol", -EPROTO, "does not answer like", .answer = "SSH-2.0-OpenSSH_9.2\r\n"),
        BAD("bytes", -EPROTO, "does not answer like", .answer = "\x15\x03\x01\x02\x02\x16\r\n\r\n"),
        BAD("a chunk of no size", -EPROTO, "does not answer like", .answer = CHUNKED "zz\r\n{\"a\":1}\r\n0\r\n\r\n"),
        BAD("another protocol now", -EPROTO, "101", .answer = "HTTP/1.1 101 Switching\r\nUpgrade: tcp\r\n\r\nhello"),
        BAD("another protocol, and the end", -EPROTO, "101", .answer = "HTTP/1.1 101 Switching\r\nUpgrade: tcp\r\n\r\n"),
        BAD("a ping without a version", -EPROTO, "does not answer like", .ping = OK_HEAD "Content-Length: 0\r\n\r\n"),
        BAD("a ping of a version of words", -EPROTO, "does not answer like", .ping = "HTTP/1.1 200 OK\r\nApi-Version: new\r\nContent-Length: 0\r\n\r\n"),
        BAD("a ping of version 2", -EPROTO, "does not answer like", .ping = "HTTP/1.1 200 OK\r\nApi-Version: 2.0\r\nContent-Length: 0\r\n\r\n"),
        BAD("a ping of a long version", -EPROTO, "does not answer like", .ping = "HTTP/1.1 200 OK\r\nApi-Version: 1.4111111111111111111111111\r\nContent-Length: 0\r\n\r\n"),
        BAD("no ping", -EPROTO, "404", .ping = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        STREAM("words in a stream", 1, -EPROTO, "no JSON object", .answer = CHUNKED "e\r\n{\"a\":1}\nhello\n\r\n0\r\n\r\n"),
        STREAM("a number in a stream", 0, -EPROTO, "no JSON object", .answer = CHUNKED "2\r\n7\n\r\n0\r\n\r\n"),
        STREAM("two objects in a line", 0, -EPROTO, "no JSON object", .answer = CHUNKED "5\r\n{}{}\n\r\n0\r\n\r\n"),
        STREAM("good lines, and empty ones", 3, 0, NULL, .answer = CHUNKED "c\r\n{}\r\n\r\n{}\n{}\r\n0\r\n\r\n"),
        BAD("interim answers before a good one", 0, NULL, .answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK_HEAD "Content-Length: 2\r\n\r\n{}"),
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++)
        check(&all[i]);
}

static void test_answers_without_end(void **state)
{
    static char piece[1 << 16];
    const struct expected all[] = {
        BAD("a header", -EPROTO, NULL, .answer = "HTTP/1.1 200 OK\r\n", .endless = "A: b\r\n"),
        BAD("a line of a header", -EPROTO, "header is too large", .answer = "HTTP/1.1 200 OK\r\nA: ", .endless = piece),
        BAD("interim answers", -EPROTO, NULL, .answer = "", .endless = "HTTP/1.1 100 Continue\r\n\r\n"),
        BAD("a body", -EPROTO, "without end", .answer = OK_HEAD "\r\n", .endless = piece),
        STREAM("a line", 0, -EPROTO, "without end", .answer = OK_HEAD "\r\n", .endless = piece),
    };

    (void)state;
    memset(piece, 'x', sizeof(piece) - 1);
    for (size_t i = 0; i < array_size(all); i++)
        check(&all[i]);
}

static void test_answers_that_do_not_come(void **state)
{
    static const struct expected all[] = {
        LATE("nothing at all", .answer = "", .then = THEN_WAIT),
        LATE("nothing behind the header", .answer = OK_HEAD "Content-Length: 2\r\n\r\n", .then = THEN_WAIT),
        LATE("a byte now and then", .answer = OK_HEAD "Content-Length: 99\r\n\r\n[1,1,1,1,1,1,1,1,1]", .trickle = true),
        { .name = "a stream that falls silent", .stream = true, .lines = 1, .stall_ms = 1500, .r = -ETIMEDOUT, .word = "silent",
          .server = { .answer = CHUNKED "8\r\n{\"a\":1}\n\r\n", .then = THEN_WAIT } },
        { .name = "a stream that does not begin", .stream = true, .stall_ms = 500, .r = -ETIMEDOUT, .word = "silent",
          .server = { .answer = "", .then = THEN_WAIT } },
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++)
        check(&all[i]);
}

static bool at_once(void *arg) { return arg != NULL; }

static void test_a_request_can_be_cancelled(void **state)
{
    struct server s = { .answer = CHUNKED, .then = THEN_WAIT };
    struct engine_request rq = { .method = "POST", .path = "/x", .timeout_ms = 600000, .cancelled = at_once, .arg = &rq };
    struct engine_answer a = { 0 };
    struct err e = { 0 };

    (void)state;
    begin(&s);
    struct engine *en = engine_at(s.path);
    assert_int_equal(engine_call(en, &rq, &a, &e), -ECANCELED);
    engine_answer_finish(&a);
    engine_destroy(en);
    end(&s);
}

static void test_a_stream_without_a_limit_is_waited_for(void **state)
{
    struct server s = { .answer = CHUNKED "8\r\n{\"a\":1}\n\r\n0\r\n\r\n", .trickle = true };
    struct engine_answer a = { 0 };
    int lines = 0;
    const struct engine_request rq = { .method = "GET", .path = "/events", .line = count, .arg = &lines };

    (void)state;
    begin(&s);
    struct engine *en = engine_at(s.path);
    assert_int_equal(engine_call(en, &rq, &a, NULL), 0);
    assert_int_equal(lines, 1);
    engine_answer_finish(&a);
    engine_destroy(en);
    end(&s);
}

/* ── errors as answers ───────────────────────────────────────────────────────────────────── */

static struct engine_answer answer_of(struct server *s)
{
    const struct engine_request rq = { .method = "GET", .path = "/x", .timeout_ms = PLENTY_MS };
    struct engine_answer a = { 0 };
    struct err e = { 0 };

    begin(s);
    struct engine *en = engine_at(s->path);
    if (engine_call(en, &rq, &a, &e) != 0)
        fail_msg("%s: %s", s->answer, e.text);
    engine_destroy(en);
    end(s);
    return a;
}

static void refused(const char *answer, bool misses, int code, const char *word)
{
    struct server s = { .answer = answer };
    struct engine_answer a = answer_of(&s);
    struct err e = { 0 };

    assert_int_equal(engine_misses(&a), misses);
    assert_int_equal(engine_refused(&a, "it", &e), code);
    if (!strstr(e.text, word))
        fail_msg("%s: %s", answer, e.text);
    engine_answer_finish(&a);
}

static void test_errors_of_the_engine_and_of_others(void **state)
{
    (void)state;
    refused("HTTP/1.1 404 N\r\nContent-Length: 40\r\n\r\n{\"message\":\"No such container: wsm-1-a\"}\n", true, -ENXIO, "wsm-1-a");
    refused("HTTP/1.1 404 N\r\nContent-Length: 28\r\n\r\n{\"message\":\"page not found\"}", false, -ENXIO, "page not found");
    refused("HTTP/1.1 404 N\r\n\r\n<html>not here</html>", false, -EPROTO, "404");
    refused("HTTP/1.1 404 N\r\nContent-Length: 13\r\n\r\n{\"message\":5}", false, -EPROTO, "404");
    refused("HTTP/1.1 500 N\r\n\r\nplain \x1b[31mtext\nand more", false, -EIO, "says: plain  [31mtext");
    refused("HTTP/1.1 500 N\r\nContent-Length: 0\r\n\r\n", false, -EIO, "no message");
    refused("HTTP/1.1 503 N\r\n\r\ngoing down", false, -EHOSTUNREACH, "going down");
    refused("HTTP/1.1 403 N\r\n\r\nno", false, -EACCES, "no");
    refused("HTTP/1.1 302 N\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", false, -EPROTO, "302");
    refused("HTTP/1.1 200 N\r\n\r\n<html>welcome</html>", false, -EPROTO, "200");
}

static void test_only_whole_json_is_json(void **state)
{
    static const char head[] = OK_HEAD "\r\n";
    static const char *const bad[] = { "<html>", "{\"a\":1", "{\"a\":1} x", "{} {}", "", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                                       "1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]" };

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        cleanup_free char *text = NULL;
        assert_true(asprintf(&text, "%s%s", head, bad[i]) > 0);
        struct server s = { .answer = text };
        struct engine_answer a = answer_of(&s);
        assert_null(a.json);
        engine_answer_finish(&a);
    }
    struct server s = { .answer = OK_HEAD "\r\n {\"a\":[1]} \r\n" };
    struct engine_answer a = answer_of(&s);
    assert_true(json_object_is_type(a.json, json_type_object));
    engine_answer_finish(&a);
}

/* ── the version of the API ──────────────────────────────────────────────────────────────── */

static void test_the_older_of_two_versions_is_spoken(void **state)
{
    static const struct {
        const char *engine, *spoken;
    } all[] = { { "1.24", "/v1.24/x" }, { "1.47", "/v1.47/x" }, { "1.52", "/v1.47/x" }, { "1.9", "/v1.9/x" } };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++) {
        char ping[100];
        snprintf(ping, sizeof(ping), "HTTP/1.1 200 OK\r\napi-version:%s\r\nContent-Length: 0\r\n\r\n", all[i].engine);
        struct server s = { .ping = ping, .answer = OK_HEAD "Content-Length: 2\r\n\r\n{}" };
        struct engine_answer a = answer_of(&s);
        engine_answer_finish(&a);
        if (!strstr(s.asked, all[i].spoken))
            fail_msg("%s: %s", all[i].engine, s.asked);
    }
}

static void test_a_version_that_was_said_is_spoken_and_not_negotiated(void **state)
{
    (void)state;
    setenv("DOCKER_API_VERSION", "1.40", 1);
    struct server s = { .answer = OK_HEAD "Content-Length: 2\r\n\r\n{}" };
    struct engine_answer a = answer_of(&s);
    engine_answer_finish(&a);
    assert_non_null(strstr(s.asked, "/v1.40/x"));
    assert_int_equal(s.pings, 0);

    setenv("DOCKER_API_VERSION", "newest", 1);
    struct engine_address at = { .url = strdup("http://docker"), .from = strdup("test") };
    struct engine *en;
    struct err e = { 0 };
    assert_int_equal(engine_create(&at, &en, &e), -EINVAL);
    assert_null(en);
    assert_non_null(strstr(e.text, "newest"));
    unsetenv("DOCKER_API_VERSION");
}

#define TOO_NEW "HTTP/1.1 400 Bad\r\n\r\n{\"message\":\"client version 1.41 is too new. Maximum supported API version is 1.40\"}"

static void test_an_engine_that_was_replaced_is_asked_again_once(void **state)
{
    (void)state;
    struct server replaced = { .answer = TOO_NEW, .later = OK_HEAD "Content-Length: 2\r\n\r\n{}" };
    struct engine_answer a = answer_of(&replaced);
    assert_int_equal(a.status, 200);
    assert_int_equal(replaced.pings, 2);
    engine_answer_finish(&a);

    struct server stubborn = { .answer = TOO_NEW };
    a = answer_of(&stubborn);
    assert_int_equal(a.status, 400);
    assert_int_equal(stubborn.n, 2);
    engine_answer_finish(&a);
}

/* ── a socket whose queue is full ────────────────────────────────────────────────────────── */

static int fill_queue(const char *path, int *fds, int most)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    int n = 0;

    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    for (; n < most; n++) {
        fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(fds[n], (struct sockaddr *)&sa, sizeof(sa)) < 0)
            break;
    }
    close(fds[n]);
    return n;
}

static void test_an_engine_that_takes_no_connection_times_out(void **state)
{
    const struct engine_request rq = { .method = "GET", .path = "/x", .timeout_ms = 500 };
    struct server s = { 0 };
    struct engine_answer a = { 0 };
    struct err e = { 0 };
    int fds[64], n, r;

    (void)state;
    listen_at(&s, 1);
    n = fill_queue(s.path, fds, 63);
    struct engine *en = engine_at(s.path);
    r = engine_call(en, &rq, &a, &e);
    if (r != -ETIMEDOUT)
        fail_msg("%d: %s", r, e.text);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    engine_answer_finish(&a);
    engine_destroy(en);
    close(s.fd);
    unlink(s.path);
}

static void *take_late(void *arg)
{
    usleep(300000);
    return run(arg);
}

static void test_an_engine_that_is_busy_for_a_moment_is_waited_for(void **state)
{
    const struct engine_request rq = { .method = "GET", .path = "/x", .timeout_ms = 60000 };
    struct server s = { .answer = OK_HEAD "Content-Length: 2\r\n\r\n{}" };
    struct engine_answer a = { 0 };
    struct err e = { 0 };
    int fds[64], n;

    (void)state;
    listen_at(&s, 1);
    n = fill_queue(s.path, fds, 63);
    for (int i = 0; i < n; i++)
        shutdown(fds[i], SHUT_WR);
    assert_int_equal(pthread_create(&s.thread, NULL, take_late, &s), 0);
    struct engine *en = engine_at(s.path);
    if (engine_call(en, &rq, &a, &e) != 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    engine_answer_finish(&a);
    engine_destroy(en);
    end(&s);
}

/* ── what is concluded ───────────────────────────────────────────────────────────────────── */

static const struct backend_workspace workspace = { .id = "a", .user = "u", .agent = "g", .session = "s", .host_dir = "u/g",
                                                    .sandbox = "wsm-1-a" };

#define WITH_BODY(body) OK_HEAD "\r\n" body

static int look(const char *answer, struct container *c, struct err *e)
{
    struct server s = { .answer = answer };
    struct docker d = { .mount = { .instance = "i" }, .keys = { .timeout_ms = PLENTY_MS } };
    int r;

    begin(&s);
    d.engine = engine_at(s.path);
    r = container_look(&d, &workspace, NULL, c, e);
    engine_destroy(d.engine);
    end(&s);
    return r;
}

static void test_an_answer_that_describes_no_container_says_nothing_of_one(void **state)
{
    static const char *const bad[] = {
        WITH_BODY("<html>"), WITH_BODY(""), WITH_BODY("[]"), WITH_BODY("{}"), WITH_BODY("null"), WITH_BODY("7"),
        WITH_BODY("{\"Id\":\"" ID "\"}"),
        WITH_BODY("{\"Id\":\"" ID "\",\"Config\":{}}"),
        WITH_BODY("{\"Id\":\"" ID "\",\"State\":{\"Status\":\"running\"}}"),
        WITH_BODY("{\"Id\":\"" ID "\",\"State\":\"running\",\"Config\":{}}"),
        WITH_BODY("{\"Id\":\"" ID "\",\"State\":{\"Status\":1},\"Config\":{}}"),
        WITH_BODY("{\"Id\":17,\"State\":{\"Status\":\"running\"},\"Config\":{}}"),
        WITH_BODY("{\"Id\":\"../../images\",\"State\":{\"Status\":\"running\"},\"Config\":{}}"),
        WITH_BODY("{\"Id\":\"" ID "0\",\"State\":{\"Status\":\"running\"},\"Config\":{}}"),
        WITH_BODY("{\"Id\":\"" ID "\",\"State\":{\"Status\":\"running\"},\"Config\":{\"Labels\":[1]}}"),
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\n\r\n<html>no such page</html>",
        "HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
    };
    struct container c;
    struct err e;

    (void)state;
    for (size_t i = 0; i < array_size(bad); i++) {
        err_clear(&e);
        if (look(bad[i], &c, &e) != -EPROTO || !*e.text)
            fail_msg("%s: %s", bad[i], e.text);
    }
}

static void test_a_container_is_recognized(void **state)
{
    struct container c;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(look(WITH_BODY("{\"Id\":\"" ID "\",\"State\":{\"Status\":\"running\"},\"Config\":{\"Labels\":"
                                    "{\"wsmfs.instance\":\"i\",\"wsmfs.id\":\"a\"}}}"), &c, &e), 0);
    assert_true(c.ours && c.state == CONTAINER_RUNNING);
    assert_string_equal(c.id, ID);
    assert_int_equal(look(WITH_BODY("{\"Id\":\"" ID "\",\"State\":{\"Status\":\"exited\"},\"Config\":{\"Labels\":null}}"), &c, &e), 0);
    assert_true(!c.ours && c.state == CONTAINER_EXITED);
    assert_int_equal(look("HTTP/1.1 404 N\r\n\r\n{\"message\":\"No such container: wsm-1-a\"}", &c, &e), 0);
    assert_true(c.state == CONTAINER_ABSENT);
}

/* Cuts an answer at every byte: nothing may be concluded from what is left. But for its last line's end, which
 * tells nothing. */
static void cut_everywhere(const char *answer, int (*use)(struct engine *en, struct err *e))
{
    size_t whole = strlen(answer);

    for (size_t n = 0; n <= whole; n++) {
        if (n == whole - 1 && answer[n] == '\n')
            continue;
        cleanup_free char *part = strndup(answer, n);
        struct server s = { .answer = part };
        struct err e = { 0 };
        begin(&s);
        struct engine *en = engine_at(s.path);
        int r = use(en, &e);
        engine_destroy(en);
        end(&s);
        if ((r == 0) != (n == whole) || (r != 0 && !*e.text))
            fail_msg("after %zu bytes: %d %s", n, r, e.text);
    }
}

static int use_look(struct engine *en, struct err *e)
{
    struct docker d = { .engine = en, .mount = { .instance = "i" }, .keys = { .timeout_ms = PLENTY_MS } };
    struct container c;

    return container_look(&d, &workspace, NULL, &c, e);
}

static int use_end(struct engine *en, struct err *e)
{
    struct docker d = { .engine = en, .keys = { .timeout_ms = PLENTY_MS } };

    return container_end(&d, ID, 0, e);
}

static int use_stream(struct engine *en, struct err *e)
{
    int lines = 0;
    const struct engine_request rq = { .method = "GET", .path = "/x", .line = count, .arg = &lines, .timeout_ms = PLENTY_MS };
    struct engine_answer a = { 0 };
    int r = engine_call(en, &rq, &a, e);

    engine_answer_finish(&a);
    return r;
}

static void test_nothing_is_concluded_from_a_part_of_an_answer(void **state)
{
    (void)state;
    cut_everywhere(OK_HEAD "Content-Length: 108\r\n\r\n{\"Id\":\"" ID "\",\"State\":{\"Status\":\"x\"},\"Config\":{}}", use_look);
    cut_everywhere("HTTP/1.1 404 N\r\nContent-Length: 31\r\n\r\n{\"message\":\"No such container\"}", use_look);
    cut_everywhere("HTTP/1.1 204 No Content\r\n\r\n", use_end);
    cut_everywhere(CHUNKED "7\r\n{\"a\":1}\r\n4\r\n\n{}\n\r\n0\r\n\r\n", use_stream);
}

/* Whatever is said to the end of a container: only these two forms mean that it is gone. */
static void test_an_end_without_a_clear_answer_is_none(void **state)
{
    static const struct {
        const char *answer;
        int r;
    } all[] = {
        { "HTTP/1.1 204 No Content\r\n\r\n", 0 },
        { "HTTP/1.1 404 N\r\n\r\n{\"message\":\"No such container: x\"}", 0 },
        { "HTTP/1.1 404 N\r\n\r\n<html>", -EPROTO },
        { WITH_BODY("{}"), -EPROTO },
        { "HTTP/1.1 500 N\r\n\r\n{\"message\":\"busy\"}", -EIO },
        { "HTTP/1.1 204 No Cont", -EHOSTUNREACH },
        { "HTTP/1.1 204 No Content\r\n", -EHOSTUNREACH },
        { "", -EHOSTUNREACH },
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++) {
        struct server s = { .answer = all[i].answer };
        struct docker d = { .keys = { .timeout_ms = PLENTY_MS } };
        struct err e = { 0 };
        begin(&s);
        d.engine = engine_at(s.path);
        int r = container_end(&d, ID, 0, &e);
        engine_destroy(d.engine);
        end(&s);
        if (r != all[i].r)
            fail_msg("%s: %d %s", all[i].answer, r, e.text);
    }
}

static void add(const struct backend_found *f, void *arg)
{
    (void)f;
    ++*(int *)arg;
}

static void test_a_list_that_is_none(void **state)
{
    static const struct {
        const char *answer;
        int r, n;
    } all[] = {
        { WITH_BODY("{}"), -EPROTO, 0 }, { WITH_BODY("<html>"), -EPROTO, 0 }, { WITH_BODY("[]"), 0, 0 },
        { WITH_BODY("[1,null,\"x\",{},[],{\"Labels\":1},{\"Labels\":{\"wsmfs.instance\":1}}]"), 0, 0 },
        { WITH_BODY("[{\"Labels\":{\"wsmfs.instance\":\"i\",\"wsmfs.id\":\"a\"}},{\"Labels\":{\"wsmfs.instance\":\"j\"}}]"), 0, 1 },
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++) {
        struct server s = { .answer = all[i].answer };
        struct docker d = { .mount = { .instance = "i" }, .keys = { .timeout_ms = PLENTY_MS } };
        struct err e = { 0 };
        int n = 0;
        begin(&s);
        d.engine = engine_at(s.path);
        int r = container_list(&d, add, &n, &e);
        engine_destroy(d.engine);
        end(&s);
        if (r != all[i].r || n != all[i].n)
            fail_msg("%s: %d %d %s", all[i].answer, r, n, e.text);
    }
}

#define OF_A(instance, id, more) "{\"Id\":\"" ID "\",\"Labels\":{\"wsmfs.instance\":\"" instance "\",\"wsmfs.id\":\"" id "\"}" more "}"
#define RUN_OF(id) ",\"Mounts\":[1,{\"Destination\":\"/workspace\"},{\"Destination\":\"/.wsm/run\",\"Source\":\"/b/.wsmfs/run/" id "\"}]"

/* Which is told by what is asked next: the answer is no engine's to a request to stop. */
static void test_only_what_is_surely_a_workspaces_is_ended_under_another_name(void **state)
{
    static const struct {
        const char *answer;
        bool ended;
    } all[] = {
        { WITH_BODY("[" OF_A("i", "a", RUN_OF("a")) "]"), true },
        { WITH_BODY("[" OF_A("i", "a", "") "]"), false },
        { WITH_BODY("[" OF_A("i", "a", ",\"Mounts\":5") "]"), false },
        { WITH_BODY("[" OF_A("i", "a", RUN_OF("b")) "]"), false },
        { WITH_BODY("[" OF_A("i", "b", RUN_OF("a")) "]"), false },
        { WITH_BODY("[" OF_A("j", "a", RUN_OF("a")) "]"), false },
        { WITH_BODY("[1,null,{},{\"Id\":\"../x\",\"Labels\":{\"wsmfs.instance\":\"i\",\"wsmfs.id\":\"a\"}" RUN_OF("a") "}]"), false },
    };

    (void)state;
    for (size_t i = 0; i < array_size(all); i++) {
        const struct backend_workspace w = { .id = "a" };
        struct server s = { .answer = all[i].answer };
        struct docker d = { .mount = { .instance = "i", .basedir = "/b" }, .keys = { .timeout_ms = PLENTY_MS } };
        struct err e = { 0 };
        begin(&s);
        d.engine = engine_at(s.path);
        int r = container_end_renamed(&d, &w, 0, &e);
        engine_destroy(d.engine);
        end(&s);
        if (r != (all[i].ended ? -EPROTO : 0))
            fail_msg("%s: %d %s", all[i].answer, r, e.text);
    }
}

static void test_only_a_whole_stream_without_an_error_is_a_pull(void **state)
{
#define PULL(lines) OK_HEAD "Connection: close\r\nContent-Length: 100\r\n\r\n" lines
#define LINES(n, lines) OK_HEAD "Content-Length: " #n "\r\n\r\n" lines
    static const struct {
        const char *answer;
        int r;
        const char *word;
    } all[] = {
        { LINES(16, "{\"status\":\"Done\"}"), -EPROTO, NULL }, /* one byte too few */
        { LINES(17, "{\"status\":\"Done\"}"), 0, NULL },
        { LINES(18, "{\"status\":\"Done\"}\n"), 0, NULL },
        { PULL("{\"status\":\"Done\"}\n"), -EHOSTUNREACH, "broke off" },
        { OK_HEAD "\r\n{\"status\":\"Done\"}\n", -EPROTO, "cut short" },
        { LINES(6, "<html>"), -EPROTO, NULL },
        { LINES(18, "{\"error\":\"no way\"}"), -ENXIO, "no way" },
        { LINES(36, "{\"errorDetail\":{\"message\":\"no way\"}}\n"), -ENXIO, "no way" },
        { LINES(20, "{\"errorDetail\":\"bad\"}"), -EPROTO, NULL },
        { LINES(21, "{\"errorDetail\":\"bad\"}"), -ENXIO, "does not say why" },
        { LINES(11, "{\"error\":5}"), -ENXIO, "does not say why" },
        { LINES(80, "{\"status\":\"Downloading\",\"id\":\"a\",\"progressDetail\":{\"current\":-1,\"total\":\"x\"}}   \n"), 0, NULL },
        { "HTTP/1.1 404 N\r\n\r\n<html>", -EPROTO, "404" },
        { "HTTP/1.1 404 N\r\n\r\n{\"message\":\"pull access denied for x\"}", -EACCES, "denied" },
        { "HTTP/1.1 500 N\r\n\r\n{\"message\":\"no registry\"}", -ENXIO, "no registry" },
        { "HTTP/1.1 204 N\r\n\r\n", -EPROTO, "204" },
    };

    (void)state;
    setenv("DOCKER_CONFIG", "/nowhere", 1);
    for (size_t i = 0; i < array_size(all); i++) {
        struct server s = { .answer = all[i].answer };
        char image[] = "a.invalid/b:1";
        struct docker d = { .keys = { .image = image } };
        struct err e = { 0 };
        begin(&s);
        d.engine = engine_at(s.path);
        assert_int_equal(flights_create(&d.flights, &e), 0);
        int r = image_fetch(&d, image, NULL, &e);
        flights_destroy(d.flights);
        engine_destroy(d.engine);
        end(&s);
        if (r != all[i].r || (all[i].word && !strstr(e.text, all[i].word)))
            fail_msg("%s: %d %s", all[i].answer, r, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_that_are_cut),
        cmocka_unit_test(test_answers_that_are_no_engines),
        cmocka_unit_test(test_answers_without_end),
        cmocka_unit_test(test_answers_that_do_not_come),
        cmocka_unit_test(test_a_request_can_be_cancelled),
        cmocka_unit_test(test_a_stream_without_a_limit_is_waited_for),
        cmocka_unit_test(test_errors_of_the_engine_and_of_others),
        cmocka_unit_test(test_only_whole_json_is_json),
        cmocka_unit_test(test_the_older_of_two_versions_is_spoken),
        cmocka_unit_test(test_a_version_that_was_said_is_spoken_and_not_negotiated),
        cmocka_unit_test(test_an_engine_that_was_replaced_is_asked_again_once),
        cmocka_unit_test(test_an_engine_that_takes_no_connection_times_out),
        cmocka_unit_test(test_an_engine_that_is_busy_for_a_moment_is_waited_for),
        cmocka_unit_test(test_an_answer_that_describes_no_container_says_nothing_of_one),
        cmocka_unit_test(test_a_container_is_recognized),
        cmocka_unit_test(test_nothing_is_concluded_from_a_part_of_an_answer),
        cmocka_unit_test(test_an_end_without_a_clear_answer_is_none),
        cmocka_unit_test(test_a_list_that_is_none),
        cmocka_unit_test(test_only_what_is_surely_a_workspaces_is_ended_under_another_name),
        cmocka_unit_test(test_only_a_whole_stream_without_an_error_is_a_pull),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/engine.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/docker/answer.h"
#include "fs/base/cleanup.h"
#include "fs/base/timers.h"

#define CONNECT_MS       10000
#define HEADER_MS        60000       /* for the header of an answer that may then take any time */
#define API_NEWEST_MINOR 47u         /* of version 1, that we were written against */
#define QUEUE_NAP_NS     20000000
#define TOO_LARGE        ((CURLcode)100) /* CURLE_TOO_LARGE, of newer versions */
#define STOPPER_POLL_MS  3600000

struct engine {
    struct engine_address at;
    char           *name;
    pthread_mutex_t lock;   /* guards api */
    char            api[ANSWER_API_SIZE]; /* "1.41"; "": not negotiated */
    bool            pinned; /* it was said, and is not negotiated */
};

static bool parse_api(const char *text, unsigned *minor)
{
    char after;

    return sscanf(text, "1.%3u%c", minor, &after) == 1;
}

/* As the official client: DOCKER_API_VERSION is spoken whatever the engine says. */
static int pin_version(struct engine *en, struct err *e)
{
    const char *said = getenv("DOCKER_API_VERSION");
    unsigned minor;

    if (!said || !*said)
        return 0;
    if (!parse_api(said, &minor))
        return err_set(e, -EINVAL, "DOCKER_API_VERSION is \"%s\", and no version such as 1.41", said);
    snprintf(en->api, sizeof(en->api), "1.%u", minor);
    en->pinned = true;
    return 0;
}

int engine_create(struct engine_address *a, struct engine **out, struct err *e)
{
    struct engine *en = calloc(1, sizeof(*en));

    if (!en || asprintf(&en->name, "%s%s (%s)", a->socket ? "unix://" : "", a->socket ? a->socket : a->url, a->from) < 0) {
        engine_address_finish(a);
        free(en);
        return err_set(e, -ENOMEM, "out of memory");
    }
    en->at = *a;
    *a = (struct engine_address){ 0 };
    pthread_mutex_init(&en->lock, NULL);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    int r = pin_version(en, e);
    if (r < 0)
        engine_destroy(steal_ptr(&en));
    *out = en;
    return r;
}

void engine_destroy(struct engine *en)
{
    if (!en)
        return;
    engine_address_finish(&en->at);
    pthread_mutex_destroy(&en->lock);
    free(en->name);
    free(en);
    curl_global_cleanup();
}

const char *engine_name(const struct engine *en) { return en->name; }

char *engine_escape(const char *text)
{
    char *escaped = curl_easy_escape(NULL, text, 0), *copy = escaped ? strdup(escaped) : NULL;

    curl_free(escaped);
    return copy;
}

void engine_answer_finish(struct engine_answer *a)
{
    json_object_put(a->json);
    a->json = NULL;
}

/* ── one exchange ────────────────────────────────────────────────────────────────────────── */

struct exchange {
    struct engine *engine;
    const struct engine_request *rq;
    struct answer answer;
    CURL   *curl;
    char    why[CURL_ERROR_SIZE];
    int64_t end_ms;    /* of the whole call; 0: never */
    int64_t stirred_ms; /* when a byte last went or came */
    curl_off_t moved_bytes;
    bool    cancelled, late, stalled;
};

static int64_t now_ms(void) { return clock_ns() / 1000000; }

static size_t on_body(char *data, size_t one, size_t n, void *arg)
{
    return answer_body(&((struct exchange *)arg)->answer, data, one * n) ? one * n : 0;
}

static size_t on_upload(char *buf, size_t one, size_t n, void *arg)
{
    struct exchange *x = arg;
    ssize_t got = x->rq->upload(x->rq->arg, buf, one * n);

    if (got >= 0)
        return (size_t)got;
    x->answer.fault = ANSWER_STOPPED;
    return CURL_READFUNC_ABORT;
}

static size_t on_header(char *data, size_t one, size_t n, void *arg)
{
    struct exchange *x = arg;

    x->stirred_ms = now_ms();
    return answer_header(&x->answer, data, one * n) ? one * n : 0;
}

/* How long there may be silence now; 0: for ever. */
static int64_t silence_ms(const struct exchange *x)
{
    return x->rq->stall_ms || x->answer.complete ? x->rq->stall_ms : HEADER_MS;
}

static int on_progress(void *arg, curl_off_t dt, curl_off_t dn, curl_off_t ut, curl_off_t un)
{
    struct exchange *x = arg;
    int64_t now = now_ms(), silence = silence_ms(x);

    (void)dt, (void)ut;
    if (dn + un != x->moved_bytes) {
        x->moved_bytes = dn + un;
        x->stirred_ms = now;
    }
    x->cancelled = x->rq->cancelled && x->rq->cancelled(x->rq->arg);
    x->late = x->end_ms && now >= x->end_ms;
    x->stalled = silence && now - x->stirred_ms >= silence;
    return x->cancelled || x->late || x->stalled;
}

static void set_address(struct exchange *x)
{
    const struct engine_address *at = &x->engine->at;
    CURL *c = x->curl;

    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    if (at->socket)
        curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, at->socket);
    if (at->ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, at->ca);
    if (at->cert)
        curl_easy_setopt(c, CURLOPT_SSLCERT, at->cert);
    if (at->key)
        curl_easy_setopt(c, CURLOPT_SSLKEY, at->key);
    if (at->unchecked) {
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static struct curl_slist *headers_of(const struct engine_request *rq)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");

    if (rq->upload) {
        headers = curl_slist_append(headers, "Content-Type: application/x-tar");
        headers = curl_slist_append(headers, "Transfer-Encoding: chunked");
    } else if (rq->body)
        headers = curl_slist_append(headers, "Content-Type: application/json");
    else if (strcmp(rq->method, "POST") == 0)
        headers = curl_slist_append(headers, "Content-Type:");
    return rq->header ? curl_slist_append(headers, rq->header) : headers;
}

static void set_request(struct exchange *x)
{
    const struct engine_request *rq = x->rq;
    CURL *c = x->curl;

    if (rq->upload) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_READFUNCTION, on_upload);
        curl_easy_setopt(c, CURLOPT_READDATA, x);
    } else if (rq->body)
        curl_easy_setopt(c, CURLOPT_COPYPOSTFIELDS, json_object_to_json_string(rq->body));
    else if (strcmp(rq->method, "POST") == 0)
        curl_easy_setopt(c, CURLOPT_COPYPOSTFIELDS, "");
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, rq->method);
    curl_easy_setopt(c, CURLOPT_NOBODY, strcmp(rq->method, "HEAD") == 0 ? 1L : 0L);
    if (x->end_ms)
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(x->end_ms > now_ms() ? x->end_ms - now_ms() : 1));
}

static void set_callbacks(struct exchange *x)
{
    CURL *c = x->curl;

    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, x->rq->stopper ? 1L : 0L);
    curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L); /* a connection for each request, also where a stopper would keep it */
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, x->why);
}

/* ── what becomes of it ──────────────────────────────────────────────────────────────────── */

static long system_error(const struct exchange *x)
{
    long code = 0;

    curl_easy_getinfo(x->curl, CURLINFO_OS_ERRNO, &code);
    return code;
}

/* "POST /containers/create", for messages. */
static const char *words_of(const struct exchange *x, char out[120])
{
    snprintf(out, 120, "%s %.*s", x->rq->method, x->rq->path ? (int)strcspn(x->rq->path, "?") : 0, x->rq->path ? x->rq->path : "");
    return out;
}

static int fault(const struct exchange *x, struct err *e)
{
    const char *name = x->engine->name;
    char words[120];

    switch (x->answer.fault) {
    case ANSWER_STOPPED:
        return err_set(e, -ECANCELED, "cancelled");
    case ANSWER_NO_MEMORY:
        return err_set(e, -ENOMEM, "out of memory");
    case ANSWER_TOO_LARGE:
        return err_set(e, -EPROTO, "the Docker engine at %s answers %s without end", name, words_of(x, words));
    case ANSWER_NO_JSON:
        return err_set(e, -EPROTO, "the Docker engine at %s answers %s with what is no JSON object", name,
                       words_of(x, words));
    default:
        if (!x->answer.complete)
            return err_set(e, -EHOSTUNREACH, "the connection to the Docker engine at %s broke off in a header (%s)", name,
                           words_of(x, words));
        return err_set(e, -EPROTO, "the answer of the Docker engine at %s to %s was cut short", name, words_of(x, words));
    }
}

/* What we have ended ourselves. */
static int broken_off(const struct exchange *x, struct err *e)
{
    const char *name = x->engine->name;
    char words[120];

    if (x->cancelled)
        return err_set(e, -ECANCELED, "cancelled");
    if (x->stalled)
        return err_set(e, -ETIMEDOUT, "the Docker engine at %s has been silent for %lld s (%s)", name,
                       (long long)silence_ms(x) / 1000, words_of(x, words));
    return err_set(e, -ETIMEDOUT, "the Docker engine at %s has not answered in time (%s)", name, words_of(x, words));
}

static int not_connected(const struct exchange *x, CURLcode code, struct err *e)
{
    const char *name = x->engine->name;
    long why = system_error(x);

    if (why == EACCES)
        return err_set(e, -EACCES, "the Docker engine's socket %s may not be used by this user; members of the group "
                       "docker may", name);
    return err_set(e, -EHOSTUNREACH, "there is no Docker engine at %s: %s", name,
                   why ? strerror((int)why) : curl_easy_strerror(code));
}

/* Certificates: none of them can be mended by trying again. */
static int not_trusted(const struct exchange *x, CURLcode code, struct err *e)
{
    return err_set(e, -EACCES, "no TLS connection to the Docker engine at %s: %s", x->engine->name,
                   *x->why ? x->why : curl_easy_strerror(code));
}

static bool is_about_certificates(const struct exchange *x, CURLcode code)
{
    static const CURLcode codes[] = { CURLE_SSL_CONNECT_ERROR, CURLE_SSL_CERTPROBLEM, CURLE_PEER_FAILED_VERIFICATION,
                                      CURLE_SSL_CACERT_BADFILE, CURLE_SSL_ISSUER_ERROR, CURLE_SSL_CIPHER,
                                      CURLE_SSL_INVALIDCERTSTATUS, CURLE_SSL_CLIENTCERT };

    for (size_t i = 0; i < array_size(codes); i++)
        if (code == codes[i])
            return true;
    /* A server that misses ours says so in an alert, which comes when we begin to read. */
    return !x->engine->at.socket && (code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR) && strstr(x->why, "alert");
}

static int no_engine(const struct exchange *x, struct err *e)
{
    return err_set(e, -EPROTO, "what listens at %s does not answer like a Docker engine (HTTP status %ld)",
                   x->engine->name, x->answer.status);
}

/* It began, and then the connection or what came over it was none of HTTP's. */
static int broke(const struct exchange *x, CURLcode code, struct err *e)
{
    const char *name = x->engine->name, *why = *x->why ? x->why : curl_easy_strerror(code);
    char words[120];
    bool lost = code == CURLE_GOT_NOTHING || code == CURLE_SEND_ERROR || code == CURLE_PARTIAL_FILE ||
                (code == CURLE_RECV_ERROR && (system_error(x) || strstr(x->why, "Recv failure")));
    bool large = code == CURLE_OUT_OF_MEMORY || code == TOO_LARGE;

    if (x->answer.status == 101)
        return no_engine(x, e);
    if (lost)
        return err_set(e, -EHOSTUNREACH, "the connection to the Docker engine at %s broke off: %s (%s)", name, why,
                       words_of(x, words));
    /* A line of the header that is longer than libcurl takes ends like this. */
    if (large && x->answer.complete)
        return err_set(e, -ENOMEM, "out of memory");
    return err_set(e, -EPROTO, "what listens at %s does not answer like a Docker engine: %s", name,
                   large ? "its header is too large" : why);
}

static int transfer_failed(const struct exchange *x, CURLcode code, struct err *e)
{
    if (x->answer.fault)
        return fault(x, e);
    if (code == CURLE_ABORTED_BY_CALLBACK || code == CURLE_OPERATION_TIMEDOUT)
        return broken_off(x, e);
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        return not_connected(x, code, e);
    return is_about_certificates(x, code) ? not_trusted(x, code, e) : broke(x, code, e);
}

static void put_text(struct engine_answer *out, const char *text)
{
    snprintf(out->text, sizeof(out->text), "%s", text);
    out->text[strcspn(out->text, "\r\n")] = '\0';
    for (char *c = out->text; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = ' ';
}

static int take_answer(struct exchange *x, struct engine_answer *out, struct err *e)
{
    struct answer *a = &x->answer;
    struct json_object *message;

    if (!answer_end(a))
        return fault(x, e);
    if (a->status < 200)
        return no_engine(x, e);
    out->status = a->status;
    out->json = a->size ? answer_json(a->body, a->size) : NULL;
    memcpy(out->path_stat, a->path_stat, sizeof(out->path_stat));
    if (a->status < 400)
        return 0;
    message = json_object_is_type(out->json, json_type_object) ? json_object_object_get(out->json, "message") : NULL;
    out->said = json_object_is_type(message, json_type_string);
    put_text(out, out->said ? json_object_get_string(message) : a->size ? a->body : "no message");
    return 0;
}

/* ── being stopped ───────────────────────────────────────────────────────────────────────── */

struct engine_stopper {
    CURLM      *multi;
    atomic_bool stopped;
};

struct engine_stopper *engine_stopper_create(void)
{
    struct engine_stopper *s = calloc(1, sizeof(*s));

    if (s)
        s->multi = curl_multi_init();
    if (s && s->multi)
        return s;
    free(s);
    return NULL;
}

void engine_stopper_destroy(struct engine_stopper *s)
{
    if (!s)
        return;
    curl_multi_cleanup(s->multi);
    free(s);
}

void engine_stop(struct engine_stopper *s)
{
    atomic_store(&s->stopped, true);
    curl_multi_wakeup(s->multi);
}

bool engine_stopper_wait(struct engine_stopper *s, int timeout_ms)
{
    if (!atomic_load(&s->stopped))
        curl_multi_poll(s->multi, NULL, 0, timeout_ms, NULL);
    return !atomic_load(&s->stopped);
}

/* As curl_easy_perform(), which would wake every second to ask whether it was cancelled. */
static CURLcode perform_until_stopped(struct exchange *x, struct engine_stopper *s)
{
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;
    CURLMsg *m;

    if (curl_multi_add_handle(s->multi, x->curl) != CURLM_OK)
        return CURLE_OUT_OF_MEMORY;
    while (running && !atomic_load(&s->stopped)) {
        if (curl_multi_perform(s->multi, &running) != CURLM_OK)
            break;
        if (running)
            curl_multi_poll(s->multi, NULL, 0, STOPPER_POLL_MS, NULL);
    }
    if (!running && (m = curl_multi_info_read(s->multi, &left)))
        code = m->data.result;
    x->cancelled = code == CURLE_ABORTED_BY_CALLBACK;
    curl_multi_remove_handle(s->multi, x->curl);
    return code;
}

/* A unix socket whose queue is full refuses at once, and with EAGAIN, of which libcurl makes one of these. */
static bool is_queue_full(const struct exchange *x, CURLcode code)
{
    long why = system_error(x);

    return x->engine->at.socket && ((code == CURLE_COULDNT_CONNECT && (why == 0 || why == EAGAIN)) ||
                                    (code == CURLE_SEND_ERROR && why == ENOTCONN));
}

static CURLcode perform(struct exchange *x)
{
    const struct timespec nap = { .tv_nsec = QUEUE_NAP_NS };
    int64_t end_ms = now_ms() + CONNECT_MS;
    CURLcode code;

    do {
        x->stirred_ms = now_ms();
        code = x->rq->stopper ? perform_until_stopped(x, x->rq->stopper) : curl_easy_perform(x->curl);
        if (!is_queue_full(x, code))
            return code;
        nanosleep(&nap, NULL);
    } while (now_ms() < end_ms && !on_progress(x, 0, 0, 0, 0));
    return CURLE_OPERATION_TIMEDOUT;
}

/* Once, with this URL, until `end_ms` (0: without end). `api` receives the version of the header, "" when there
 * is none. */
static int exchange(struct engine *en, const struct engine_request *rq, const char *url, int64_t end_ms,
                    char api[ANSWER_API_SIZE], struct engine_answer *out, struct err *e)
{
    struct exchange x = { .engine = en, .rq = rq, .answer = { .line = rq->line, .arg = rq->arg, .most_bytes = rq->most_bytes }, .end_ms = end_ms,
                          .curl = curl_easy_init() };
    struct curl_slist *headers;
    CURLcode code;
    int r;

    if (!x.curl)
        return err_set(e, -ENOMEM, "out of memory");
    set_address(&x);
    set_request(&x);
    set_callbacks(&x);
    headers = headers_of(rq);
    curl_easy_setopt(x.curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(x.curl, CURLOPT_URL, url);
    code = perform(&x);
    r = code == CURLE_OK ? take_answer(&x, out, e) : transfer_failed(&x, code, e);
    if (api)
        memcpy(api, x.answer.api, ANSWER_API_SIZE);
    curl_slist_free_all(headers);
    curl_easy_cleanup(x.curl);
    answer_finish(&x.answer);
    return r;
}

/* ── the version of the API ──────────────────────────────────────────────────────────────── */

/* The engine's newest, or ours when that is older. */
static int negotiate(struct engine *en, const struct engine_request *rq, int64_t end_ms, char api[ANSWER_API_SIZE],
                     struct err *e)
{
    const struct engine_request ping = { .method = "GET", .path = "/_ping", .cancelled = rq->cancelled, .arg = rq->arg,
                                         .stopper = rq->stopper };
    int64_t soon_ms = now_ms() + CONNECT_MS;
    struct engine_answer a = { 0 };
    cleanup_free char *url = NULL;
    unsigned minor = 0;
    int r;

    if (asprintf(&url, "%s/_ping", en->at.url) < 0) {
        url = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    r = exchange(en, &ping, url, end_ms && end_ms < soon_ms ? end_ms : soon_ms, api, &a, e);
    engine_answer_finish(&a);
    if (r < 0)
        return r;
    if (a.status >= 500 && a.said)
        return engine_refused(&a, en->name, e);
    if (a.status != 200 || !parse_api(api, &minor))
        return err_set(e, -EPROTO, "what listens at %s does not answer like a Docker engine (HTTP status %ld)", en->name,
                       a.status);
    snprintf(api, ANSWER_API_SIZE, "1.%u", minor < API_NEWEST_MINOR ? minor : API_NEWEST_MINOR);
    pthread_mutex_lock(&en->lock);
    memcpy(en->api, api, ANSWER_API_SIZE);
    pthread_mutex_unlock(&en->lock);
    return 0;
}

static int version(struct engine *en, const struct engine_request *rq, int64_t end_ms, char api[ANSWER_API_SIZE],
                   struct err *e)
{
    pthread_mutex_lock(&en->lock);
    memcpy(api, en->api, ANSWER_API_SIZE);
    pthread_mutex_unlock(&en->lock);
    return *api ? 0 : negotiate(en, rq, end_ms, api, e);
}

/* The engine has been replaced by another one since we asked. */
static bool is_wrong_version(const struct engine_answer *a)
{
    return a->status == 400 && strstr(a->text, "client version");
}

static int call_once(struct engine *en, const struct engine_request *rq, const char *api, int64_t end_ms,
                     struct engine_answer *out, struct err *e)
{
    cleanup_free char *url = NULL;

    *out = (struct engine_answer){ 0 };
    if (asprintf(&url, "%s/v%s%s", en->at.url, api, rq->path) < 0) {
        url = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    return exchange(en, rq, url, end_ms, NULL, out, e);
}

int engine_call(struct engine *en, const struct engine_request *rq, struct engine_answer *out, struct err *e)
{
    int64_t end_ms = rq->timeout_ms ? now_ms() + rq->timeout_ms : 0;
    char api[ANSWER_API_SIZE];
    int r = version(en, rq, end_ms, api, e);

    *out = (struct engine_answer){ 0 };
    if (r == 0)
        r = call_once(en, rq, api, end_ms, out, e);
    if (r < 0 || rq->upload || en->pinned || !is_wrong_version(out)) /* what was sent once is not there to be sent again */
        return r;
    engine_answer_finish(out);
    r = negotiate(en, rq, end_ms, api, e);
    return r < 0 ? r : call_once(en, rq, api, end_ms, out, e);
}

/* ── refusals ────────────────────────────────────────────────────────────────────────────── */

static int code_of(long status)
{
    switch (status) {
    case 400:
        return -EINVAL;
    case 401:
    case 403:
        return -EACCES;
    case 404:
        return -ENXIO;
    case 502:
    case 503:
    case 504:
        return -EHOSTUNREACH;
    default:
        return -EIO;
    }
}

int engine_refused(const struct engine_answer *a, const char *what, struct err *e)
{
    if (a->status < 400 || (a->status == 404 && !a->said))
        return err_set(e, -EPROTO, "%s: the Docker engine's answer makes no sense (HTTP status %ld)", what, a->status);
    return err_set(e, code_of(a->status), "%s: the Docker engine says: %s", what, *a->text ? a->text : "nothing");
}

bool engine_misses(const struct engine_answer *a)
{
    return a->status == 404 && a->said && strcmp(a->text, "page not found") != 0;
}

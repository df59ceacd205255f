// SPDX-License-Identifier: Apache-2.0
#include "backends/docker/engine.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/base/cleanup.h"

#define CONNECT_MS       10000
#define ANSWER_MAX_BYTES (64u << 20) /* a list of thousands of containers is a few MiB */
#define API_NEWEST_MINOR 47u         /* of version 1, that we were written against */
#define API_TEXT         16

struct engine {
    struct engine_address at;
    char           *name;
    pthread_mutex_t lock;   /* guards api */
    char            api[API_TEXT]; /* "1.41"; "": not negotiated */
};

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
    *out = en;
    return 0;
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
    const struct engine_request *rq;
    struct engine_answer *answer;
    CURL  *curl;
    char  *body;       /* what has come */
    size_t size, room;
    bool   too_large, stopped;
    char   api[API_TEXT]; /* of the header */
};

static bool is_stream(const struct exchange *x)
{
    long status = 0;

    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    return x->rq->line && status == 200;
}

static bool keep(struct exchange *x, const char *data, size_t n)
{
    if (x->size + n + 1 > ANSWER_MAX_BYTES) {
        x->too_large = true;
        return false;
    }
    if (x->size + n + 1 > x->room) {
        size_t room = (x->size + n + 1) * 2;
        char *more = realloc(x->body, room);
        if (!more)
            return false;
        x->body = more;
        x->room = room;
    }
    memcpy(x->body + x->size, data, n);
    x->size += n;
    x->body[x->size] = '\0';
    return true;
}

/* Hands over the whole lines that have come and keeps the rest. */
static void hand_over(struct exchange *x)
{
    char *line = x->body, *end;

    while (!x->stopped && (end = memchr(line, '\n', x->size - (size_t)(line - x->body)))) {
        *end = '\0';
        struct json_object *o = json_tokener_parse(line);
        if (o)
            x->stopped = !x->rq->line(x->rq->arg, o);
        json_object_put(o);
        line = end + 1;
    }
    x->size -= (size_t)(line - x->body);
    memmove(x->body, line, x->size);
}

static size_t on_body(char *data, size_t one, size_t n, void *arg)
{
    struct exchange *x = arg;

    if (!keep(x, data, one * n))
        return 0;
    if (is_stream(x))
        hand_over(x);
    return x->stopped ? 0 : one * n;
}

static size_t on_header(char *data, size_t one, size_t n, void *arg)
{
    static const char name[] = "api-version:";
    struct exchange *x = arg;
    size_t size = one * n;

    if (size > sizeof(name) && strncasecmp(data, name, sizeof(name) - 1) == 0)
        snprintf(x->api, sizeof(x->api), "%.*s", (int)(size - sizeof(name) + 1), data + sizeof(name) - 1);
    return size;
}

static int on_progress(void *arg, curl_off_t dn, curl_off_t dt, curl_off_t un, curl_off_t ut)
{
    struct exchange *x = arg;

    (void)dn, (void)dt, (void)un, (void)ut;
    return x->rq->cancelled && x->rq->cancelled(x->rq->arg);
}

static void set_address(struct exchange *x, const struct engine *en)
{
    CURL *c = x->curl;

    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    if (en->at.socket)
        curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, en->at.socket);
    if (en->at.ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, en->at.ca);
    if (en->at.cert)
        curl_easy_setopt(c, CURLOPT_SSLCERT, en->at.cert);
    if (en->at.key)
        curl_easy_setopt(c, CURLOPT_SSLKEY, en->at.key);
    if (en->at.unchecked) {
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static struct curl_slist *set_request(struct exchange *x)
{
    const struct engine_request *rq = x->rq;
    struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
    CURL *c = x->curl;

    if (rq->body) {
        headers = curl_slist_append(headers, "Content-Type: application/json");
        curl_easy_setopt(c, CURLOPT_COPYPOSTFIELDS, json_object_to_json_string(rq->body));
    } else if (strcmp(rq->method, "POST") == 0) {
        curl_easy_setopt(c, CURLOPT_COPYPOSTFIELDS, "");
        headers = curl_slist_append(headers, "Content-Type:");
    }
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, rq->method);
    if (rq->header)
        headers = curl_slist_append(headers, rq->header);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    if (rq->timeout_ms)
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)rq->timeout_ms);
    return headers;
}

/* What a transfer that failed means. */
static int transfer_failed(const struct engine *en, const struct exchange *x, CURLcode code, struct err *e)
{
    long os_error = 0;

    curl_easy_getinfo(x->curl, CURLINFO_OS_ERRNO, &os_error);
    if (x->stopped || code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, -ECANCELED, "cancelled");
    if (x->too_large)
        return err_set(e, -EPROTO, "the Docker engine at %s answers without end", en->name);
    if (code == CURLE_COULDNT_CONNECT && os_error == EACCES)
        return err_set(e, -EACCES, "the Docker engine's socket %s may not be used by this user; members of the group "
                       "docker may", en->name);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return err_set(e, -ETIMEDOUT, "the Docker engine at %s does not answer", en->name);
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        return err_set(e, -EHOSTUNREACH, "there is no Docker engine at %s: %s", en->name,
                       os_error ? strerror((int)os_error) : curl_easy_strerror(code));
    return err_set(e, code == CURLE_OUT_OF_MEMORY ? -ENOMEM : -EHOSTUNREACH, "the Docker engine at %s: %s", en->name,
                   curl_easy_strerror(code));
}

static void take_answer(struct exchange *x)
{
    struct engine_answer *a = x->answer;
    struct json_object *message;

    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &a->status);
    a->json = x->size ? json_tokener_parse(x->body) : NULL;
    if (a->status < 400)
        return;
    message = json_object_is_type(a->json, json_type_object) ? json_object_object_get(a->json, "message") : NULL;
    snprintf(a->text, sizeof(a->text), "%s", message ? json_object_get_string(message) : x->size ? x->body : "no message");
    a->text[strcspn(a->text, "\n")] = '\0';
}

/* Once, with this URL. `api` receives the version of the header, "" when there is none. */
static int exchange(struct engine *en, const struct engine_request *rq, const char *url, char *api,
                    struct engine_answer *out, struct err *e)
{
    struct exchange x = { .rq = rq, .answer = out, .curl = curl_easy_init() };
    struct curl_slist *headers;
    CURLcode code;
    int r = 0;

    if (!x.curl)
        return err_set(e, -ENOMEM, "out of memory");
    set_address(&x, en);
    headers = set_request(&x);
    curl_easy_setopt(x.curl, CURLOPT_URL, url);
    code = curl_easy_perform(x.curl);
    if (code == CURLE_OK)
        take_answer(&x);
    else
        r = transfer_failed(en, &x, code, e);
    if (api)
        snprintf(api, API_TEXT, "%s", x.api);
    curl_slist_free_all(headers);
    curl_easy_cleanup(x.curl);
    free(x.body);
    return r;
}

/* ── the version of the API ──────────────────────────────────────────────────────────────── */

/* The engine's newest, or ours when that is older. */
static int negotiate(struct engine *en, const struct engine_request *rq, char api[API_TEXT], struct err *e)
{
    const struct engine_request ping = { .method = "GET", .cancelled = rq->cancelled, .arg = rq->arg,
                                         .timeout_ms = CONNECT_MS };
    struct engine_answer a = { 0 };
    cleanup_free char *url = NULL;
    unsigned major = 0, minor = 0;
    int r;

    if (asprintf(&url, "%s/_ping", en->at.url) < 0) {
        url = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    r = exchange(en, &ping, url, api, &a, e);
    engine_answer_finish(&a);
    if (r < 0)
        return r;
    if (a.status != 200 || sscanf(api, " %u.%u", &major, &minor) != 2 || major != 1)
        return err_set(e, -EPROTO, "what listens at %s does not answer like a Docker engine (HTTP status %ld)", en->name,
                       a.status);
    snprintf(api, API_TEXT, "1.%u", minor < API_NEWEST_MINOR ? minor : API_NEWEST_MINOR);
    pthread_mutex_lock(&en->lock);
    memcpy(en->api, api, API_TEXT);
    pthread_mutex_unlock(&en->lock);
    return 0;
}

static int version(struct engine *en, const struct engine_request *rq, char api[API_TEXT], struct err *e)
{
    pthread_mutex_lock(&en->lock);
    memcpy(api, en->api, API_TEXT);
    pthread_mutex_unlock(&en->lock);
    return *api ? 0 : negotiate(en, rq, api, e);
}

/* The engine has been replaced by another one since we asked. */
static bool is_wrong_version(const struct engine_answer *a)
{
    return a->status == 400 && strstr(a->text, "client version");
}

static int call_once(struct engine *en, const struct engine_request *rq, const char *api, struct engine_answer *out,
                     struct err *e)
{
    cleanup_free char *url = NULL;

    *out = (struct engine_answer){ 0 };
    if (asprintf(&url, "%s/v%s%s", en->at.url, api, rq->path) < 0) {
        url = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    return exchange(en, rq, url, NULL, out, e);
}

int engine_call(struct engine *en, const struct engine_request *rq, struct engine_answer *out, struct err *e)
{
    char api[API_TEXT];
    int r = version(en, rq, api, e);

    *out = (struct engine_answer){ 0 };
    if (r == 0)
        r = call_once(en, rq, api, out, e);
    if (r < 0 || !is_wrong_version(out))
        return r;
    engine_answer_finish(out);
    r = negotiate(en, rq, api, e);
    return r < 0 ? r : call_once(en, rq, api, out, e);
}

/* ── refusals ────────────────────────────────────────────────────────────────────────────── */

int engine_refused(const struct engine_answer *a, const char *what, struct err *e)
{
    int code = a->status == 400 ? -EINVAL : a->status == 401 || a->status == 403 ? -EACCES
             : a->status == 404 ? -ENXIO : a->status == 503 ? -EHOSTUNREACH : -EIO;

    return err_set(e, code, "%s: the Docker engine says: %s", what, *a->text ? a->text : "nothing");
}

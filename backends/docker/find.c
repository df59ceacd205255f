// SPDX-License-Identifier: Apache-2.0
/* Finding the engine, in the order of the official client. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/docker/config.h"
#include "backends/docker/engine.h"
#include "fs/base/cleanup.h"

#define DEFAULT_SOCKET "/var/run/docker.sock"
#define PORT_PLAIN     "2375"
#define PORT_TLS       "2376"

void engine_address_finish(struct engine_address *a)
{
    free(a->socket);
    free(a->url);
    free(a->ca);
    free(a->cert);
    free(a->key);
    free(a->from);
    *a = (struct engine_address){ 0 };
}

/* ── forms of an address ─────────────────────────────────────────────────────────────────── */

static int set_unix(struct engine_address *a, const char *path, struct err *e)
{
    struct sockaddr_un sa;

    if (*path == '\0')
        path = DEFAULT_SOCKET;
    if (*path != '/')
        return err_set(e, -EINVAL, "the engine's socket is an absolute path, and %s is none (%s)", path, a->from);
    if (strlen(path) >= sizeof(sa.sun_path))
        return err_set(e, -EINVAL, "the path of the engine's socket is longer than the %zu bytes that a socket's may "
                       "have (%s)", sizeof(sa.sun_path) - 1, a->from);
    a->socket = strdup(path);
    a->url = strdup("http://docker");
    return a->socket && a->url ? 0 : err_set(e, -ENOMEM, "out of memory");
}

/* "host", "host:port", ":port", "[v6]:port". */
static int set_tcp(struct engine_address *a, const char *where, bool tls, struct err *e)
{
    size_t n = strcspn(where, "/");
    const char *bracket = memchr(where, ']', n), *colon = strchr(bracket ? bracket : where, ':');
    size_t host_len = colon && colon < where + n ? (size_t)(colon - where) : n;
    const char *port = host_len < n ? colon + 1 : tls ? PORT_TLS : PORT_PLAIN;
    int port_len = host_len < n ? (int)(where + n - port) : (int)strlen(port);

    if (n == 0 && *where == '/')
        return err_set(e, -EINVAL, "%s is no address of an engine; a socket's is unix://%s (%s)", where, where, a->from);
    if (where[n] && where[n + 1])
        return err_set(e, -EINVAL, "the engine's address %s has a path, which is not supported (%s)", where, a->from);
    if (asprintf(&a->url, "%s://%.*s:%.*s", tls ? "https" : "http", host_len ? (int)host_len : 9,
                 host_len ? where : "localhost", port_len, port) < 0) {
        a->url = NULL;
        return err_set(e, -ENOMEM, "out of memory");
    }
    return 0;
}

static int set_host(struct engine_address *a, const char *host, bool tls, struct err *e)
{
    if (strncmp(host, "unix://", 7) == 0)
        return set_unix(a, host + 7, e);
    if (strncmp(host, "tcp://", 6) == 0)
        return set_tcp(a, host + 6, tls, e);
    if (strncmp(host, "ssh://", 6) == 0)
        return err_set(e, -EINVAL, "an engine behind ssh cannot be used (%s): forward its socket with `ssh -L` and name "
                       "that", a->from);
    if (!strstr(host, "://"))
        return set_tcp(a, host, tls, e);
    return err_set(e, -EINVAL, "the engine's address %s is none of unix://PATH and tcp://HOST[:PORT] (%s)", host, a->from);
}

/* ── TLS ─────────────────────────────────────────────────────────────────────────────────── */

/* Sets *slot to the file of that name in the directory when it is there. */
static int set_file(char **slot, const char *dir, const char *name)
{
    cleanup_free char *path = NULL;

    if (asprintf(&path, "%s/%s", dir, name) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    if (access(path, F_OK) == 0)
        *slot = steal_ptr(&path);
    return 0;
}

static int set_certificates(struct engine_address *a, const char *dir, struct err *e)
{
    if (set_file(&a->ca, dir, "ca.pem") < 0 || set_file(&a->cert, dir, "cert.pem") < 0 ||
        set_file(&a->key, dir, "key.pem") < 0)
        return err_set(e, -ENOMEM, "out of memory");
    return 0;
}

static bool is_set(const char *variable)
{
    const char *v = getenv(variable);

    return v && *v;
}

static int set_from_environment(struct engine_address *a, const char *host, struct err *e)
{
    const char *dir = is_set("DOCKER_CERT_PATH") ? getenv("DOCKER_CERT_PATH") : NULL;
    cleanup_free char *config = NULL;
    bool verify = is_set("DOCKER_TLS_VERIFY"), tls = verify || is_set("DOCKER_TLS");
    int r = set_host(a, host, tls, e);

    if (r < 0 || !tls || a->socket)
        return r;
    a->unchecked = !verify;
    config = dir ? NULL : docker_config_dir();
    if (!dir)
        dir = config;
    r = dir ? set_certificates(a, dir, e) : err_set(e, -ENOMEM, "out of memory");
    if (r == 0 && verify && !a->ca) /* any authority of this machine's would do then, which nobody means */
        return err_set(e, -EINVAL, "DOCKER_TLS_VERIFY is set, and there is no ca.pem in %s", dir);
    return r;
}

/* ── all of it ───────────────────────────────────────────────────────────────────────────── */

static int set_from_context(struct engine_address *a, const char *name, struct err *e)
{
    struct docker_context c;
    int r = docker_context_read(name, &c, e);

    if (r == 0)
        r = set_host(a, c.host, c.tls_dir != NULL, e);
    if (r == 0 && c.tls_dir && !a->socket)
        r = set_certificates(a, c.tls_dir, e);
    a->unchecked = c.skip_verify;
    docker_context_finish(&c);
    return r;
}

static int note_source(struct engine_address *a, const char *what, const char *name, struct err *e)
{
    if (asprintf(&a->from, "%s%s%s", what, name ? " " : "", name ? name : "") >= 0)
        return 0;
    a->from = NULL;
    return err_set(e, -ENOMEM, "out of memory");
}

static int find_by_context(struct engine_address *a, struct err *e)
{
    cleanup_free char *name = is_set("DOCKER_CONTEXT") ? strdup(getenv("DOCKER_CONTEXT")) : docker_current_context();
    int r;

    if (!name || strcmp(name, "default") == 0) {
        r = note_source(a, "the default", NULL, e);
        return r < 0 ? r : set_unix(a, DEFAULT_SOCKET, e);
    }
    r = note_source(a, "the docker context", name, e);
    return r < 0 ? r : set_from_context(a, name, e);
}

int engine_find(const char *host, struct engine_address *out, struct err *e)
{
    int r;

    *out = (struct engine_address){ 0 };
    if (host || is_set("DOCKER_HOST")) {
        r = note_source(out, host ? "`host` of section [backend docker]" : "DOCKER_HOST", NULL, e);
        if (r == 0)
            r = set_from_environment(out, host ? host : getenv("DOCKER_HOST"), e);
    } else {
        r = find_by_context(out, e);
    }
    if (r < 0)
        engine_address_finish(out);
    return r;
}

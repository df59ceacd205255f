// SPDX-License-Identifier: Apache-2.0
/* Where a Docker Engine is looked for, and with which credentials. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/evp.h>

#include "backends/docker/config.h"
#include "backends/docker/credentials.h"
#include "backends/docker/engine.h"
#include "fs/base/cleanup.h"

static char dir[] = "/tmp/wsmfs-docker-XXXXXX";

static void put(const char *name, const char *text)
{
    cleanup_free char *path = NULL;

    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    cleanup_file FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    setenv("DOCKER_CONFIG", dir, 1);
    unsetenv("DOCKER_HOST");
    unsetenv("DOCKER_CONTEXT");
    unsetenv("DOCKER_TLS_VERIFY");
    unsetenv("DOCKER_TLS");
    unsetenv("DOCKER_CERT_PATH");
    return 0;
}

static int tear_down(void **state)
{
    cleanup_free char *command = NULL;

    (void)state;
    if (asprintf(&command, "rm -rf '%s'", dir) < 0)
        return -1;
    return system(command);
}

static void check(const char *host, const char *socket, const char *url)
{
    struct engine_address a;
    struct err e = { 0 };

    assert_int_equal(engine_find(host, &a, &e), 0);
    if (socket)
        assert_string_equal(a.socket, socket);
    else
        assert_null(a.socket);
    assert_string_equal(a.url, url);
    engine_address_finish(&a);
}

static void refuse(const char *host, const char *word)
{
    struct engine_address a;
    struct err e = { 0 };

    assert_int_equal(engine_find(host, &a, &e), -EINVAL);
    assert_non_null(strstr(e.text, word));
}

static void test_forms(void **state)
{
    (void)state;
    check("unix:///run/x.sock", "/run/x.sock", "http://docker");
    check("tcp://10.0.0.1", NULL, "http://10.0.0.1:2375");
    check("tcp://10.0.0.1:99", NULL, "http://10.0.0.1:99");
    check("tcp://[::1]:99", NULL, "http://[::1]:99");
    check("tcp://[::1]", NULL, "http://[::1]:2375");
    check("example:1234", NULL, "http://example:1234");
    check(":1234", NULL, "http://localhost:1234");
    refuse("ssh://root@example", "ssh");
    refuse("http://example", "http://example");
    refuse("unix://relative", "absolute");
    refuse("tcp://example/path", "path");
    refuse("unix:///0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
           "01234567", "longer");
}

static void test_the_default(void **state)
{
    (void)state;
    check(NULL, "/var/run/docker.sock", "http://docker");
    setenv("DOCKER_CONTEXT", "default", 1);
    check(NULL, "/var/run/docker.sock", "http://docker");
    unsetenv("DOCKER_CONTEXT");
}

static void test_a_context(void **state)
{
    /* the directory is the SHA-256 of "lab" */
    static const char meta[] = "contexts/meta/a51146d38077ff992eba84cf1d5e9b249073503eb74868699016153b031a38f7/meta.json";
    struct engine_address a;
    struct err e = { 0 };

    (void)state;
    setenv("DOCKER_CONTEXT", "lab", 1);
    assert_int_equal(engine_find(NULL, &a, &e), -EINVAL);
    assert_non_null(strstr(e.text, "lab"));
    put(meta, "{\"Name\":\"lab\",\"Endpoints\":{\"docker\":{\"Host\":\"tcp://10.1.2.3:2376\"}}}");
    check(NULL, NULL, "http://10.1.2.3:2376");
    setenv("DOCKER_HOST", "unix:///run/first.sock", 1); /* wins over any context */
    check(NULL, "/run/first.sock", "http://docker");
    unsetenv("DOCKER_HOST");
    unsetenv("DOCKER_CONTEXT");
}

static void test_certificates(void **state)
{
    struct engine_address a;
    struct err e = { 0 };

    (void)state;
    put("ca.pem", "");
    setenv("DOCKER_TLS_VERIFY", "1", 1);
    assert_int_equal(engine_find("tcp://example", &a, &e), 0);
    assert_string_equal(a.url, "https://example:2376");
    assert_non_null(strstr(a.ca, "/ca.pem"));
    assert_null(a.key);
    assert_false(a.unchecked);
    engine_address_finish(&a);
    setenv("DOCKER_CERT_PATH", "/nowhere", 1);
    refuse("tcp://example", "no ca.pem in /nowhere");
    unsetenv("DOCKER_CERT_PATH");
    unsetenv("DOCKER_TLS_VERIFY");
    setenv("DOCKER_TLS", "1", 1);
    assert_int_equal(engine_find("tcp://example", &a, &e), 0);
    assert_true(a.unchecked);
    engine_address_finish(&a);
    unsetenv("DOCKER_TLS");
}

/* The object of such a header is this one. */
static void check_header(char *header, const char *name, const char *json)
{
    unsigned char text[1024];
    struct json_object *o, *wanted = json_tokener_parse(json);
    size_t n = strlen(name);

    assert_non_null(header);
    assert_memory_equal(header, name, n);
    for (char *c = header + n; *c; c++) /* the engine reads the form for URLs */
        *c = *c == '-' ? '+' : *c == '_' ? '/' : *c;
    int size = EVP_DecodeBlock(text, (unsigned char *)header + n, (int)strlen(header + n));
    assert_true(size > 0 && size < (int)sizeof(text));
    text[size] = '\0';
    o = json_tokener_parse((char *)text);
    if (!json_object_equal(o, wanted))
        fail_msg("%s", text);
    json_object_put(o);
    json_object_put(wanted);
    free(header);
}

static void test_credentials(void **state)
{
    char *header = NULL;
    struct err e = { 0 };

    (void)state;
    put("config.json", "{\"auths\":{\"localhost:5000\":{\"auth\":\"dXNlcjpzZWNyZXQ=\"}}}");
    assert_int_equal(credentials_header("localhost:5000/a/b:1", NULL, NULL, &header, NULL, &e), 0);
    check_header(header, "X-Registry-Auth: ", "{\"username\":\"user\",\"password\":\"secret\",\"serveraddress\":\"localhost:5000\"}");
    assert_int_equal(credentials_header("busybox", NULL, NULL, &header, NULL, &e), 0);
    assert_null(header);
    put("config.json", "{\"auths\":{\"https://default.example/v1/\":{\"auth\":\"dXNlcjpzZWNyZXQ=\"}}}");
    assert_int_equal(credentials_header("busybox", NULL, NULL, &header, NULL, &e), 0);
    assert_non_null(header);
    free(header);
    header = NULL;
    put("config.json", "{\"auths\":{\"a:1\":{\"auth\":\"dXNlcjo=\",\"identitytoken\":\"t\\u00ff\\u00ff\"},"
        "\"b:2\":{\"auth\":\"dXNlcjpzZWNyZXQ=\"},\"c:3\":{}}}");
    assert_int_equal(credentials_header("a:1/x", NULL, NULL, &header, NULL, &e), 0);
    check_header(header, "X-Registry-Auth: ", "{\"identitytoken\":\"t\\u00ff\\u00ff\",\"serveraddress\":\"a:1\"}");
    assert_int_equal(credentials_of_all(NULL, NULL, &header, &e), 0);
    check_header(header, "X-Registry-Config: ", "{\"a:1\":{\"identitytoken\":\"t\\u00ff\\u00ff\",\"serveraddress\":\"a:1\"},"
        "\"b:2\":{\"username\":\"user\",\"password\":\"secret\",\"serveraddress\":\"b:2\"}}");
    header = NULL;
    put("config.json", "no JSON at all");
    assert_int_equal(credentials_header("localhost:5000/a/b:1", NULL, NULL, &header, NULL, &e), 0);
    assert_null(header);
    assert_int_equal(credentials_of_all(NULL, NULL, &header, &e), 0);
    assert_null(header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms), cmocka_unit_test(test_the_default), cmocka_unit_test(test_a_context),
        cmocka_unit_test(test_certificates), cmocka_unit_test(test_credentials),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

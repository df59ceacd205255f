// SPDX-License-Identifier: Apache-2.0
/* A Docker Engine behind TLS, played by `openssl s_server`, which wants a certificate of its clients. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/docker/engine.h"
#include "fs/base/cleanup.h"

/* Two authorities, each with a certificate for a client; the server's is of the first. In `ours` and `theirs` they
 * lie as the docker command wants them. */
static const char make_certificates[] =
    "set -e; ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2'; "
    "exec 2>/dev/null; for who in ours theirs; do mkdir -p $who; "
    "  openssl req -x509 $ec -subj /CN=$who -keyout $who/ca-key.pem -out $who/ca.pem; "
    "  openssl req -x509 $ec -subj /CN=client -CA $who/ca.pem -CAkey $who/ca-key.pem -keyout $who/key.pem "
    "    -out $who/cert.pem -addext extendedKeyUsage=clientAuth -addext basicConstraints=critical,CA:FALSE; "
    "done; "
    "openssl req -x509 $ec -subj /CN=engine -CA ours/ca.pem -CAkey ours/ca-key.pem -keyout server-key.pem -out server.pem "
    "  -addext subjectAltName=IP:127.0.0.1 -addext extendedKeyUsage=serverAuth -addext basicConstraints=critical,CA:FALSE; "
    "mkdir -p half bare mixed broken v1.41 home; cp ours/ca.pem half/; cp ours/cert.pem ours/key.pem bare/; "
    "cp theirs/ca.pem ours/cert.pem ours/key.pem mixed/; "
    "cp ours/ca.pem ours/cert.pem broken/; echo nothing > broken/key.pem; "
    "printf 'HTTP/1.1 200 OK\\r\\nApi-Version: 1.41\\r\\nContent-Length: 2\\r\\n\\r\\nOK' > _ping; "
    "printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 14\\r\\n\\r\\n{\"Name\":\"far\"}' > v1.41/info";

static char dir[] = "/tmp/wsmfs-tls-XXXXXX";
static char address[40]; /* "tcp://127.0.0.1:PORT" */
static const char *port;
static pid_t server;

static void be_server(int out)
{
    dup2(out, STDOUT_FILENO);
    dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
    dup2(STDIN_FILENO, STDERR_FILENO);
    execlp("openssl", "openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", "server.pem", "-key", "server-key.pem",
           "-CAfile", "ours/ca.pem", "-Verify", "1", "-verify_return_error", "-HTTP", NULL);
    _exit(127);
}

/* It says where it listens: "ACCEPT 127.0.0.1:PORT". */
static bool read_port(int fd)
{
    cleanup_file FILE *f = fdopen(fd, "r");
    char line[200];
    unsigned number;

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "ACCEPT 127.0.0.1:%5u", &number) == 1) {
            snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", number);
            port = strrchr(address, ':') + 1;
            return true;
        }
    return false;
}

static int set_up(void **state)
{
    int ends[2];

    (void)state;
    if (system("openssl version >/dev/null 2>&1") != 0)
        return 0; /* without it the tests are skipped */
    if (!mkdtemp(dir) || chdir(dir) < 0 || system(make_certificates) != 0 || pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    setenv("DOCKER_CONFIG", "home", 1);
    unsetenv("DOCKER_CONTEXT");
    server = fork();
    if (server == 0)
        be_server(ends[1]);
    close(ends[1]);
    /* What it says later goes nowhere; it may not end by that. */
    return server > 0 && read_port(ends[0]) ? 0 : -1;
}

static int tear_down(void **state)
{
    cleanup_free char *command = NULL;

    (void)state;
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    if (asprintf(&command, "rm -rf '%s'", dir) < 0)
        return -1;
    return chdir("/") < 0 ? -1 : system(command);
}

static void set_environment(const char *verify, const char *tls, const char *certificates)
{
    setenv("DOCKER_TLS_VERIFY", verify, 1);
    setenv("DOCKER_TLS", tls, 1);
    setenv("DOCKER_CERT_PATH", certificates, 1);
    unsetenv("DOCKER_HOST");
}

/* Asks the engine for its name. */
static int ask(const char *host, struct err *e)
{
    const struct engine_request rq = { .method = "GET", .path = "/info", .timeout_ms = 60000 };
    struct engine_answer a = { 0 };
    struct engine_address at;
    struct engine *en;
    int r;

    err_clear(e);
    if (!server)
        skip();
    r = engine_find(host, &at, e);
    if (r < 0 || engine_create(&at, &en, e) < 0)
        return r;
    r = engine_call(en, &rq, &a, e);
    if (r == 0) {
        assert_int_equal(a.status, 200);
        assert_string_equal(json_object_get_string(json_object_object_get(a.json, "Name")), "far");
    }
    engine_answer_finish(&a);
    engine_destroy(en);
    return r;
}

static void works(const char *host)
{
    struct err e;

    if (ask(host, &e) != 0)
        fail_msg("%s", e.text);
}

static void fails(const char *host, int code, const char *word)
{
    struct err e;
    int r = ask(host, &e);

    if (r != code || !strstr(e.text, "https://") || !strstr(e.text, word))
        fail_msg("%d: %s", r, e.text);
}

static void test_with_the_right_certificates_it_answers(void **state)
{
    (void)state;
    set_environment("1", "", "ours");
    works(address);
    setenv("DOCKER_HOST", address, 1);
    works(NULL);
}

static void test_by_itself_certificates_lie_in_the_configuration(void **state)
{
    (void)state;
    set_environment("1", "", "");
    setenv("DOCKER_CONFIG", "ours", 1);
    works(address);
    setenv("DOCKER_CONFIG", "home", 1);
}

static void test_an_engine_of_another_authority_is_refused(void **state)
{
    (void)state;
    set_environment("1", "", "mixed");
    fails(address, -EACCES, "certificate");
}

static void test_an_engine_of_another_name_is_refused(void **state)
{
    char other[40];

    (void)state;
    set_environment("1", "", "ours");
    snprintf(other, sizeof(other), "tcp://localhost:%s", server ? port : "1");
    fails(other, -EACCES, "name");
}

static void test_who_shows_no_certificate_is_told_so(void **state)
{
    (void)state;
    set_environment("1", "", "half");
    fails(address, -EACCES, "TLS");
}

static void test_who_shows_another_authoritys_certificate_is_told_so(void **state)
{
    (void)state;
    set_environment("", "1", "theirs");
    fails(address, -EACCES, "TLS");
}

static void test_a_key_that_is_none_is_named(void **state)
{
    (void)state;
    set_environment("1", "", "broken");
    fails(address, -EACCES, "key.pem");
}

static void test_without_verification_any_engine_will_do(void **state)
{
    (void)state;
    set_environment("", "1", "mixed");
    works(address);
}

static void test_without_tls_there_is_no_engine(void **state)
{
    struct err e;
    int r;

    (void)state;
    set_environment("", "", "");
    r = ask(address, &e);
    assert_true(r == -EPROTO || r == -EHOSTUNREACH);
    assert_true(*e.text);
}

/* "lab" as the docker command keeps it; the directories' name is the SHA-256 of that. */
static void make_context(const char *host, bool skip_verify, const char *certificates)
{
    static const char name[] = "a51146d38077ff992eba84cf1d5e9b249073503eb74868699016153b031a38f7";
    cleanup_free char *command = NULL;

    assert_true(asprintf(&command, "rm -rf home/contexts; mkdir -p home/contexts/meta/%s home/contexts/tls/%s; "
                         "cp -r %s home/contexts/tls/%s/docker; echo '{\"Name\":\"lab\",\"Endpoints\":{\"docker\":"
                         "{\"Host\":\"%s\",\"SkipTLSVerify\":%s}}}' > home/contexts/meta/%s/meta.json", name, name,
                         certificates, name, host, skip_verify ? "true" : "false", name) > 0);
    assert_int_equal(system(command), 0);
}

static void test_contexts(void **state)
{
    (void)state;
    if (!server)
        skip();
    set_environment("", "", "");
    setenv("DOCKER_CONTEXT", "lab", 1);
    make_context(address, false, "ours");
    works(NULL);
    make_context(address, false, "mixed");
    fails(NULL, -EACCES, "certificate");
    make_context(address, false, "bare"); /* no authority is named, and the machine's know nothing of it */
    fails(NULL, -EACCES, "certificate");
    make_context(address, true, "bare");
    works(NULL);
    make_context(address, true, "half");
    fails(NULL, -EACCES, "TLS");
    unsetenv("DOCKER_CONTEXT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_with_the_right_certificates_it_answers),
        cmocka_unit_test(test_by_itself_certificates_lie_in_the_configuration),
        cmocka_unit_test(test_an_engine_of_another_authority_is_refused),
        cmocka_unit_test(test_an_engine_of_another_name_is_refused),
        cmocka_unit_test(test_who_shows_no_certificate_is_told_so),
        cmocka_unit_test(test_who_shows_another_authoritys_certificate_is_told_so),
        cmocka_unit_test(test_a_key_that_is_none_is_named),
        cmocka_unit_test(test_without_verification_any_engine_will_do),
        cmocka_unit_test(test_without_tls_there_is_no_engine),
        cmocka_unit_test(test_contexts),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

// SPDX-License-Identifier: Apache-2.0
/* Writes answers from which the fuzz target of the Docker Engine's client starts: fuzz_docker_seeds DIRECTORY. */
#include <stdio.h>
#include <string.h>

#define OK "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n"

static const char *const answers[] = {
    "\x0e" OK "Content-Length: 2\r\n\r\nOK",
    "\x04" OK "\r\n{\"Id\":\"0123456789abcdef\",\"State\":{\"Status\":\"running\",\"OOMKilled\":false},\"Config\":{\"Labels\":null}}\n",
    "\x02" OK "\r\n[{\"Labels\":{\"a\":\"b\\u00e4\\n\"}},{\"Names\":[\"/x\"],\"n\":-1.5e3}]",
    "\xc7" OK "Transfer-Encoding: chunked\r\n\r\n{\"status\":\"Pulling from x\",\"id\":\"1\"}\r\n{\"status\":\"Downloading\","
    "\"progressDetail\":{\"current\":5,\"total\":10},\"id\":\"a\"}\r\n\r\n{\"errorDetail\":{\"message\":\"no\"},\"error\":\"no\"}\r\n",
    "\x05" OK "Content-Length: 9\r\n\r\n{\"a\":[[[]]]}\n{}\nno\n",
    "\x01HTTP/1.1 404 Not Found\r\n\r\n{\"message\":\"No such container: x\"}",
    "\x06HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 Error\r\nX-Docker-Container-Path-Stat: e30=\r\n\r\nplain text",
};

int main(int argc, char **argv)
{
    char path[4096];

    for (size_t i = 0; argc > 1 && i < sizeof(answers) / sizeof(answers[0]); i++) {
        snprintf(path, sizeof(path), "%s/seed-%03zu", argv[1], i);
        FILE *f = fopen(path, "w");
        if (!f || fwrite(answers[i], 1, strlen(answers[i]), f) != strlen(answers[i]) || fclose(f) != 0)
            return 1;
    }
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* wsm-guest: the one program that runs in every sandbox. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/guest/guest.h"

#ifndef WSMFS_VERSION
#define WSMFS_VERSION "?"
#endif
#define DEFAULT_NAME "@wsm-guest"
#define DEFAULT_GRACE_MS 10000

static int usage(void)
{
    fputs("usage: wsm-guest serve [--fd N | --listen NAME] [--peers outside] [--user USER [--own DIR]] [--grace MS]\n"
          "       wsm-guest connect [NAME]\n"
          "       wsm-guest version\n"
          "NAME is a path, or @ and the name of an abstract socket; " DEFAULT_NAME " when not given.\n", stderr);
    return 2;
}

static bool number(const char *s, long max, long *v)
{
    char *end;

    *v = strtol(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && *v <= max;
}

static int serve_main(int argc, char **argv)
{
    struct serve_options o = { .fd = -1, .listen = DEFAULT_NAME, .grace_ms = DEFAULT_GRACE_MS };
    long v = 0;

    for (int i = 0; i < argc; i += 2) {
        if (i + 1 == argc)
            return usage();
        if (!strcmp(argv[i], "--fd") && number(argv[i + 1], INT_MAX, &v))
            o.fd = (int)v;
        else if (!strcmp(argv[i], "--listen"))
            o.listen = argv[i + 1];
        else if (!strcmp(argv[i], "--peers") && !strcmp(argv[i + 1], "outside"))
            o.outside = true;
        else if (!strcmp(argv[i], "--user"))
            o.user = argv[i + 1];
        else if (!strcmp(argv[i], "--own"))
            o.own = argv[i + 1];
        else if (!strcmp(argv[i], "--grace") && number(argv[i + 1], 24 * 3600 * 1000, &v))
            o.grace_ms = (uint32_t)v;
        else
            return usage();
    }
    return serve(&o);
}

int main(int argc, char **argv)
{
    if (argc >= 2 && !strcmp(argv[1], "serve"))
        return serve_main(argc - 2, argv + 2);
    if (argc >= 2 && argc <= 3 && !strcmp(argv[1], "connect"))
        return connect_main(argc == 3 ? argv[2] : DEFAULT_NAME);
    if (argc != 2 || strcmp(argv[1], "version") != 0)
        return usage();
    printf("wsm-guest %s protocol %d\n", WSMFS_VERSION, PROTO_VERSION);
    return 0;
}

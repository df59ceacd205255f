// SPDX-License-Identifier: Apache-2.0
/* Swaps two names in a directory as fast as it can, until it is killed or the time is over:
 *
 *     swapper DIRECTORY NAME OTHER SECONDS
 *
 * Prints how often. NAME and OTHER both exist all the time, so a walk that checks a name and then
 * uses it meets either. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec t;
    unsigned long n = 0;
    if (argc != 5 || chdir(argv[1]) < 0)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &t);
    time_t end = t.tv_sec + atoi(argv[4]);
    do {
        for (int i = 0; i < 100; i++, n++)
            if (renameat2(AT_FDCWD, argv[2], AT_FDCWD, argv[3], RENAME_EXCHANGE) < 0)
                return 1;
        clock_gettime(CLOCK_MONOTONIC, &t);
    } while (t.tv_sec < end);
    printf("%lu\n", n);
    return 0;
}

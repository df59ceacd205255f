// SPDX-License-Identifier: Apache-2.0
/* Writes a file the way that linkers do: sized first, then filled in pieces out of order, some by
 * pwrite and some through a shared mapping, patched at the end, renamed into its place.
 *
 *     linker FILE SEED */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE  (3 * 1024 * 1024 + 123)
#define PIECE 1777

static uint32_t state;

static uint32_t next(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

int main(int argc, char **argv)
{
    char temporary[4096], piece[PIECE];
    if (argc != 3 || (size_t)snprintf(temporary, sizeof temporary, "%s.tmp", argv[1]) >= sizeof temporary)
        return 2;
    state = (uint32_t)atoi(argv[2]);
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC, 0755);
    if (fd < 0 || ftruncate(fd, SIZE) < 0)
        return 1;
    char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return 1;
    for (int i = 0; i < 4000; i++) {
        off_t at = next() % (SIZE - PIECE);
        memset(piece, (int)(next() & 0xff), PIECE);
        if (i % 3 == 0)
            memcpy(map + at, piece, PIECE);
        else if (pwrite(fd, piece, PIECE, at) != PIECE)
            return 1;
        if (i % 7 == 0) { /* relocations: read what is there and change it */
            at = next() % (SIZE - PIECE);
            if (pread(fd, piece, PIECE, at) != PIECE || memcmp(piece, map + at, PIECE))
                return 3;
            piece[PIECE / 2] ^= 0x55;
            if (pwrite(fd, piece, PIECE, at) != PIECE)
                return 1;
        }
    }
    if (munmap(map, SIZE) < 0 || ftruncate(fd, SIZE - 77) < 0 || close(fd) < 0)
        return 1;
    return rename(temporary, argv[1]) < 0;
}

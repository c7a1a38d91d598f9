/* Runs under an emulator of the kernel, which has page tables of its own: what pages have moved from is memory like any
 * other. Exit status 0 when all holds.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCKS = 8, ROUNDS = 300 };

static void fail(const char *what) {
    dprintf(STDERR_FILENO, "emulated: %s\n", what);
    _exit(1);
}

static void *moved_from(void) {
    char *block = malloc(MIB), *beside = malloc(MIB); /* it can't grow where it is */
    if (block == NULL || beside == NULL) fail("no memory");
    memset(block, 1, MIB);
    memset(beside, 1, MIB);
    if ((block = realloc(block, 6 * MIB)) == NULL || block[MIB - 1] != 1) fail("realloc");
    char *there = malloc(MIB);
    if (there == NULL) fail("no memory");
    memset(there, 2, MIB);
    return there;
}

static void known_to_the_kernel(void) {
    for (int i = 0; i < 4; i++) {
        char *there = moved_from();
        if (read(open("/dev/zero", O_RDONLY), there, 4096) != 4096) fail("a system call can't write to a block");
        if (write(open("/dev/null", O_WRONLY), there, 4096) != 4096) fail("a system call can't read a block");
        free(there);
    }
}

static unsigned next(void) {
    static unsigned random = 1;
    random = random * 1103515245 + 12345;
    return random >> 8;
}

static void zeros(void) {
    static char *blocks[BLOCKS];
    for (int i = 0; i < ROUNDS; i++) {
        char **block = &blocks[next() % BLOCKS];
        size_t bytes = MIB + next() % (7 * MIB);
        free(*block);
        if ((*block = calloc(1, bytes)) == NULL) fail("no memory");
        if (**block != 0 || memcmp(*block, *block + 1, bytes - 1) != 0) fail("calloc isn't zero");
        if (i % 3 == 0) memset(*block, 1, bytes);
        if (i % 4 != 0) continue;
        if ((*block = realloc(*block, bytes + 3 * MIB)) == NULL) fail("no memory");
        memset(*block + bytes, 2, 3 * MIB);
    }
}

int main(void) {
    known_to_the_kernel();
    zeros();
    return 0;
}

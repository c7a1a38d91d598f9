/* A library linked to a program: it allocates before main and frees after the program and hakmem have ended. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void late_keep(void *block);

static void *kept, *from_start;

void late_keep(void *block) { kept = block; }

__attribute__((constructor)) static void late_begin(void) {
    from_start = malloc(500);
    if (!from_start) _exit(9);
    memset(from_start, 1, 500);
}

__attribute__((destructor(101))) static void late_end(void) {
    for (size_t size = 1; size < 4 << 20; size *= 3) {
        char *block = calloc(1, size);
        if (!block || block[size - 1] != 0) _exit(9);
        block = realloc(block, size * 2);
        if (!block) _exit(9);
        free(block);
    }
    free(kept);
    free(from_start);
}

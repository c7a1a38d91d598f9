/* A program that makes COUNT blocks of SIZE bytes and writes the first 100 bytes of each, as one with many buffers for
 * connections does, and prints a checksum of them.
 *
 *     hardly_touched SIZE COUNT */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOUCHED_BYTES = 100 };

struct block {
    struct block *next;
    char text[TOUCHED_BYTES - sizeof(struct block *)];
};

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t size = strtoul(argv[1], NULL, 10), count = strtoul(argv[2], NULL, 10);
    struct block *last = NULL;
    for (size_t i = 0; i < count; i++) {
        struct block *block = malloc(size);
        if (block == NULL) return 1;
        memset(block, (int)i, TOUCHED_BYTES);
        block->next = last;
        last = block;
    }
    uint64_t sum = 0;
    for (; last != NULL; last = last->next) sum = sum * 31 + (uint8_t)last->text[0];
    printf("checksum %lu\n", (unsigned long)sum);
    return 0;
}

/* A program that has a malloc of its own, as libc asks for it: malloc, calloc, realloc, free and no more. Preloaded hakmem
 * must not touch its blocks, not by the functions that the program doesn't have either. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_BYTES = 16 << 20, HEADER_BYTES = 16 };

static _Alignas(16) unsigned char pool[POOL_BYTES];
static size_t used_bytes;

static size_t bytes_of(const void *block) {
    size_t bytes;
    memcpy(&bytes, (const char *)block - HEADER_BYTES, sizeof bytes);
    return bytes;
}

void *malloc(size_t bytes) {
    size_t whole = (bytes + 2 * HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
    if (bytes > POOL_BYTES || whole > POOL_BYTES - used_bytes) return NULL;
    unsigned char *block = pool + used_bytes + HEADER_BYTES;
    memcpy(block - HEADER_BYTES, &bytes, sizeof bytes);
    used_bytes += whole;
    return block;
}

void free_sized(void *block, size_t size) __attribute__((weak));
void free_aligned_sized(void *block, size_t alignment, size_t size) __attribute__((weak));

static uint32_t frees;

void free(void *block) {
    (void)block;
    frees++;
}

void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }

void *realloc(void *block, size_t bytes) {
    void *moved = malloc(bytes);
    if (moved != NULL && block != NULL) memcpy(moved, block, bytes_of(block) < bytes ? bytes_of(block) : bytes);
    return moved;
}

int main(void) {
    char *block = malloc(10), *line = NULL;
    if (block == NULL) return 1;
    strcpy(block, "contents");
    block = reallocarray(block, 100, 10); /* which is not the program's */
    bool is_well = block != NULL && strcmp(block, "contents") == 0 && (unsigned char *)block - pool < POOL_BYTES;
    size_t length = 0;
    FILE *file = fopen("/proc/self/status", "r");
    if (file != NULL && getline(&line, &length, file) < 0) is_well = false;
    free(line);
    if (!is_well) fputs("reallocarray: not a block of the program's realloc\n", stderr);
    uint32_t before = frees, sized = (free_sized != NULL) + (free_aligned_sized != NULL);
    if (free_sized != NULL) free_sized(block, 1000);
    if (free_aligned_sized != NULL) free_aligned_sized(block, 16, 1000);
    if (frees != before + sized) fputs("free_sized: not the program's free\n", stderr);
    return is_well && frees == before + sized ? 0 : 1;
}

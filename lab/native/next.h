/* next: the allocator behind a library that is preloaded before it, and blocks for whoever calls while that is being found.
 * What is here is the including library's own. */
#ifndef LAB_NEXT_H
#define LAB_NEXT_H

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* All NULL until find_next has been called; `malloc` is found last. */
static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    void *(*aligned_alloc)(size_t, size_t);
    void *(*memalign)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    size_t (*malloc_usable_size)(void *);
} next;

static inline void find_next(void) {
    *(void **)&next.calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next.free = dlsym(RTLD_NEXT, "free");
    *(void **)&next.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&next.memalign = dlsym(RTLD_NEXT, "memalign");
    *(void **)&next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&next.malloc_usable_size = dlsym(RTLD_NEXT, "malloc_usable_size");
    *(void **)&next.malloc = dlsym(RTLD_NEXT, "malloc");
}

/* ---- Early blocks: given out once, never taken back -------------------------------------------------------------- */

enum { EARLY_BYTES = 16384, EARLY_UNIT = 16 };

static _Alignas(EARLY_UNIT) char early[EARLY_BYTES];
static size_t early_used;

static inline bool is_early(const void *block) { return (uintptr_t)block - (uintptr_t)early < EARLY_BYTES; }

/* The unit before a block holds its size. */
static inline size_t early_size(const void *block) {
    return *(const size_t *)(const void *)((const char *)block - EARLY_UNIT);
}

static inline void *early_allocate(size_t bytes) {
    if (bytes > EARLY_BYTES - 2 * EARLY_UNIT - early_used) {
        return NULL;
    }
    char *unit = early + early_used;
    *(size_t *)(void *)unit = bytes;
    early_used += EARLY_UNIT + (bytes + EARLY_UNIT - 1) / EARLY_UNIT * EARLY_UNIT;
    return unit + EARLY_UNIT;
}

/* realloc, for an early block, or while the next allocator is being found. */
static inline void *early_reallocate(void *block, size_t bytes) {
    size_t old_bytes = block ? early_size(block) : 0;
    void *copy = malloc(bytes);
    return copy && block ? memcpy(copy, block, old_bytes < bytes ? old_bytes : bytes) : copy;
}

/* ---- Functions that are others under another name ---------------------------------------------------------------- */

/* Of the including library: whether the next allocator has been found by now. */
static bool is_ready(void);

EXPORT void *reallocarray(void *block, size_t count, size_t bytes_each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(block, bytes);
}

EXPORT void *valloc(size_t bytes) { return memalign((size_t)sysconf(_SC_PAGESIZE), bytes); }

EXPORT void *pvalloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return memalign(page, (bytes + page - 1) / page * page);
}

/* Of C23; the C library may not have them yet. */
EXPORT void free_sized(void *block, size_t bytes);
EXPORT void free_aligned_sized(void *block, size_t alignment, size_t bytes);

void free_sized(void *block, size_t bytes) {
    (void)bytes;
    free(block);
}

void free_aligned_sized(void *block, size_t alignment, size_t bytes) {
    (void)alignment;
    (void)bytes;
    free(block);
}

EXPORT size_t malloc_usable_size(void *block) {
    if (is_early(block)) {
        return early_size(block);
    }
    return block && is_ready() ? next.malloc_usable_size(block) : 0;
}

#endif

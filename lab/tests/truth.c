/* To be preloaded, on glibc: counts each allocation of the program, and at the end of a process writes TRUTH.PID, "allocations
 * reallocations bytes live_blocks live_bytes peak_blocks peak_bytes". Each block has its size in front. A block that
 * realloc resizes counts as another one. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

struct head {
    size_t size;
    void *start;
};

static struct {
    uint64_t allocations, reallocations, bytes;
    int64_t live_blocks, live_bytes, peak_blocks, peak_bytes;
} counted;

static struct head *head_of(void *block) { return (struct head *)block - 1; }

/* All blocks and bytes are of one moment where one thread runs, else of nearly one. */
static void *take(size_t alignment, size_t size) {
    if (alignment < sizeof(struct head)) alignment = sizeof(struct head);
    if (size > PTRDIFF_MAX - alignment) return errno = ENOMEM, NULL;
    char *start = __libc_memalign(alignment, size + alignment);
    if (start == NULL) return NULL;
    void *block = start + alignment;
    *head_of(block) = (struct head){size, start};
    __atomic_fetch_add(&counted.bytes, size, __ATOMIC_RELAXED);
    int64_t blocks = __atomic_add_fetch(&counted.live_blocks, 1, __ATOMIC_RELAXED);
    int64_t bytes = __atomic_add_fetch(&counted.live_bytes, (int64_t)size, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&counted.peak_bytes, __ATOMIC_RELAXED);
    while (bytes > peak &&
           !__atomic_compare_exchange_n(&counted.peak_bytes, &peak, bytes, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    if (bytes > peak) __atomic_store_n(&counted.peak_blocks, blocks, __ATOMIC_RELAXED);
    return block;
}

static void *allocate(size_t alignment, size_t size) {
    void *block = take(alignment, size);
    if (block != NULL) __atomic_fetch_add(&counted.allocations, 1, __ATOMIC_RELAXED);
    return block;
}

static void forget(size_t size) {
    __atomic_fetch_sub(&counted.live_blocks, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&counted.live_bytes, (int64_t)size, __ATOMIC_RELAXED);
}

void free(void *block) {
    if (block == NULL) return;
    forget(head_of(block)->size);
    int before = errno;
    __libc_free(head_of(block)->start);
    errno = before;
}

void *malloc(size_t size) { return allocate(1, size); }
void *memalign(size_t alignment, size_t size) { return allocate(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return allocate(alignment, size); }
void *valloc(size_t size) { return allocate((size_t)getpagesize(), size); }
size_t malloc_usable_size(void *block) { return block == NULL ? 0 : head_of(block)->size; }

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return errno = ENOMEM, NULL;
    void *block = allocate(1, bytes);
    return block == NULL ? NULL : memset(block, 0, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *found = allocate(alignment, size);
    if (found == NULL) return ENOMEM;
    *block = found;
    return 0;
}

void *realloc(void *block, size_t size) {
    if (block == NULL) return malloc(size);
    if (size == 0) return free(block), NULL;
    size_t before = head_of(block)->size;
    forget(before); /* first: the two are not live at once */
    void *other = take(1, size);
    if (other == NULL) return NULL;
    __atomic_fetch_add(&counted.reallocations, 1, __ATOMIC_RELAXED);
    memcpy(other, block, size < before ? size : before);
    __libc_free(head_of(block)->start);
    return other;
}

__attribute__((destructor)) static void write_truth(void) {
    char name[4096], text[256];
    const char *prefix = getenv("TRUTH");
    if (prefix == NULL) return;
    snprintf(name, sizeof name, "%s.%d", prefix, (int)getpid());
    int length = snprintf(text, sizeof text, "%lu %lu %lu %ld %ld %ld %ld\n", (unsigned long)counted.allocations,
                          (unsigned long)counted.reallocations, (unsigned long)counted.bytes, (long)counted.live_blocks,
                          (long)counted.live_bytes, (long)counted.peak_blocks, (long)counted.peak_bytes);
    FILE *file = fopen(name, "w");
    if (file == NULL) return;
    fwrite(text, 1, (size_t)length, file);
    fclose(file);
}

/* Writes where a program has no business to write, and blocks to aim at.
 *
 * A stray write that would fault kills the program whatever its allocator does, so these writes go through a pipe: the
 * kernel stops where memory ends instead. They also stop where hakmem's memory ends: what lies there is not the
 * allocator's to protect. */
#ifndef HAK_TEST_POKE_H
#define HAK_TEST_POKE_H

#include <malloc.h>

#include "churn.h"

enum { POKE_PAGE = 4096, TARGETS_MAX = 4000, TARGETS_BYTES = 16 << 20 };

static inline void poke(void *address, const void *bytes, size_t length) {
    static int ends[2] = {-1, -1};
    if (ends[0] < 0) expect(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
    char *to = address;
    const char *from = bytes;
    while (length > 0) {
        size_t part = POKE_PAGE - ((uintptr_t)to & (POKE_PAGE - 1));
        if (part > length) part = length;
        if (!case_owns(to)) return;
        expect(write(ends[1], from, part) == (ssize_t)part, "the pipe is full");
        if (read(ends[0], to, part) != (ssize_t)part) {
            char scrap[POKE_PAGE];
            while (read(ends[0], scrap, sizeof scrap) > 0) {
            }
            return;
        }
        to += part;
        from += part;
        length -= part;
    }
}

/* Small, medium and large. */
static const size_t target_sizes[] = {1,    16,   24,   40,   64,    100,   200,   512,    1000,   1024,
                                      2000, 4000, 4096, 8000, 16384, 30000, 40000, 100000, 300000, 2 << 20};
enum { TARGET_SIZES = sizeof target_sizes / sizeof *target_sizes };

struct targets {
    unsigned char *blocks[TARGETS_MAX];
    unsigned count;
};

static inline void targets_make(struct targets *targets, size_t size) {
    size_t count = TARGETS_BYTES / size;
    targets->count = count < TARGETS_MAX ? (unsigned)count : TARGETS_MAX;
    for (unsigned i = 0; i < targets->count; i++) {
        targets->blocks[i] = malloc(size);
        expect(targets->blocks[i], "no memory for %zu bytes", size);
    }
}

static inline void targets_free_shuffled(struct targets *targets) {
    uint64_t random = targets->count;
    for (unsigned i = targets->count; i > 0; i--) {
        unsigned other = (unsigned)(churn_random(&random) % i);
        void *block = targets->blocks[other];
        targets->blocks[other] = targets->blocks[i - 1];
        free(block);
    }
    targets->count = 0;
}

static inline int targets_order(const void *a, const void *b) {
    uintptr_t left = *(const uintptr_t *)a, right = *(const uintptr_t *)b;
    return (left > right) - (left < right);
}

/* All are hakmem's, aligned, and apart from each other. */
static inline void targets_check(const struct targets *targets) {
    static uintptr_t sorted[TARGETS_MAX];
    for (unsigned i = 0; i < targets->count; i++) {
        sorted[i] = (uintptr_t)targets->blocks[i];
        expect(case_is_block(targets->blocks[i]), "%p was handed out", (void *)targets->blocks[i]);
    }
    qsort(sorted, targets->count, sizeof *sorted, targets_order);
    for (unsigned i = 1; i < targets->count; i++) {
        size_t size = malloc_usable_size((void *)sorted[i - 1]);
        expect(sorted[i] - sorted[i - 1] >= size, "blocks overlap: %#lx with %zu bytes, %#lx", (long)sorted[i - 1],
               size, (long)sorted[i]);
    }
}

#endif

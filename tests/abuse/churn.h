/* A checked work-load: random blocks come, are filled, grow, and go; each carries a tag that its owner remembers, so a
 * block that was handed out twice, moved wrongly or written by another is found when it goes.
 *
 * churn_* is one owner's work. churners_* are threads that do it until told to stop.
 */
#ifndef HAK_TEST_CHURN_H
#define HAK_TEST_CHURN_H

#include "case.h"

enum { CHURN_SLOTS = 128, CHURNERS_MAX = 16, CHURNERS_SIZE_MAX = 64 << 10 };

struct churn_block {
    unsigned char *address;
    size_t size;
    unsigned char tag;
};

struct churn {
    uint64_t random;
    size_t size_max;
    struct churn_block blocks[CHURN_SLOTS];
};

static inline uint64_t churn_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Log-uniform in 1..size_max. */
static inline size_t churn_size(uint64_t *state, size_t size_max) {
    unsigned bits = 64 - (unsigned)__builtin_clzll(size_max);
    size_t size = churn_random(state) >> (64 - 1 - churn_random(state) % bits);
    return size == 0 || size > size_max ? 1 + size % size_max : size;
}

static inline void churn_start(struct churn *churn, uint64_t seed, size_t size_max) {
    memset(churn, 0, sizeof *churn);
    churn->random = seed * 0x9E3779B97F4A7C15u + 1;
    churn->size_max = size_max;
}

static inline bool churn_is_filled(const unsigned char *bytes, size_t size, unsigned char tag) {
    return size == 0 || (bytes[0] == tag && memcmp(bytes, bytes + 1, size - 1) == 0);
}

static inline void churn_check(const struct churn_block *block) {
    expect(churn_is_filled(block->address, block->size, block->tag), "the block %p of %zu bytes has changed",
           (void *)block->address, block->size);
}

/* Fills a slot that is empty, or empties or resizes the one that is not. */
static inline void churn_step(struct churn *churn) {
    uint64_t random = churn_random(&churn->random);
    struct churn_block *block = &churn->blocks[random % CHURN_SLOTS];
    size_t size = churn_size(&churn->random, churn->size_max);
    bool resize = (random >> 32) % 8 == 0;
    if (block->address) churn_check(block);
    if (block->address && !resize) {
        free(block->address);
        block->address = NULL;
        return;
    }
    unsigned char *address = resize ? realloc(block->address, size) : malloc(size);
    expect(address, "no memory for %zu bytes", size);
    expect(case_is_block(address), "%p is no block of hakmem's", (void *)address);
    if (block->address) {
        size_t kept = size < block->size ? size : block->size;
        expect(churn_is_filled(address, kept, block->tag), "realloc lost contents of %p", (void *)address);
    }
    *block = (struct churn_block){address, size, (unsigned char)(random >> 16)};
    memset(address, block->tag, size);
}

static inline void churn_steps(struct churn *churn, unsigned count) {
    for (unsigned i = 0; i < count; i++) churn_step(churn);
}

static inline void churn_end(struct churn *churn) {
    for (unsigned i = 0; i < CHURN_SLOTS; i++) {
        if (churn->blocks[i].address) churn_check(&churn->blocks[i]);
        free(churn->blocks[i].address);
        churn->blocks[i].address = NULL;
    }
}

/* A whole life of it: the state is on the stack. */
static inline void churn_once(uint64_t seed, unsigned steps, size_t size_max) {
    struct churn churn;
    churn_start(&churn, seed, size_max);
    churn_steps(&churn, steps);
    churn_end(&churn);
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

struct churners {
    pthread_t threads[CHURNERS_MAX];
    unsigned count;
    size_t size_max; /* 0: CHURNERS_SIZE_MAX */
    atomic_bool stop;
};

static inline void *churners_run(void *argument) {
    struct churners *churners = argument;
    struct churn churn;
    churn_start(&churn, (uintptr_t)&churn, churners->size_max ? churners->size_max : CHURNERS_SIZE_MAX);
    while (!atomic_load(&churners->stop)) churn_step(&churn);
    churn_end(&churn);
    return NULL;
}

static inline void churners_start(struct churners *churners, unsigned count) {
    churners->count = count;
    atomic_store(&churners->stop, false);
    for (unsigned i = 0; i < count; i++) {
        expect(pthread_create(&churners->threads[i], NULL, churners_run, churners) == 0, "no thread");
    }
}

static inline void churners_stop(struct churners *churners) {
    atomic_store(&churners->stop, true);
    for (unsigned i = 0; i < churners->count; i++) pthread_join(churners->threads[i], NULL);
}

#endif

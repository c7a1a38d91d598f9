/* Blocks that a thread frees while those who have allocated them go on with their caches, and are emptied now and then:
 * a free that finds the own cache empty looks into another's (pool/holder.h), and is to find no block there that has an owner.
 *
 *     handed [THREADS [ROUNDS]]
 *
 * Speaks to the standard names, or with STRESS_HAK to hak_*, as stress.c does. Exit status: 0 passed, 1 failed; a block
 * that is found ends the program. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "hakmem/hakmem.h"

#ifdef STRESS_HAK
#define HEAP(function) hak_##function
static void empty_caches(void) { hak_purge(); }
static int (*find_owns(void))(const void *) { return hak_owns; }
#else
#include <dlfcn.h>
#include <malloc.h>
#define HEAP(function) function
static void empty_caches(void) { malloc_trim(0); }
static int (*find_owns(void))(const void *) {
    int (*owns)(const void *);
    *(void **)&owns = dlsym(RTLD_DEFAULT, "hak_owns");
    return owns;
}
#endif

enum { SLOTS = 256, SIZES = 32, THREADS_MAX = 64, CALLS = 400, LIVES = 10 };

static _Atomic(size_t *) slots[SLOTS];
static atomic_ulong damaged;
static unsigned long rounds = 1000;

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* From 16 bytes to 24 KiB: a block tells who has made it, and for what slot. */
static size_t size_of(size_t slot) {
    size_t number = slot % SIZES;
    return ((size_t)16 + 8 * (number % 4)) << number / 4;
}

static void replace(size_t slot) {
    size_t *made = HEAP(malloc)(size_of(slot));
    if (made != NULL) made[0] = made[1] = slot;
    size_t *former = atomic_exchange(&slots[slot], made);
    if (former == NULL) return;
    if (former[0] != slot || former[1] != slot) atomic_fetch_add(&damaged, 1);
    former[0] = former[1] = SIZE_MAX;
    HEAP(free)(former);
}

/* As a hit does, of the sizes that are in the cache by now. */
static void allocate_and_free(size_t slot) {
    void *volatile pair[2];
    for (int i = 0; i < 2; i++) pair[i] = HEAP(malloc)(size_of(slot));
    for (int i = 0; i < 2; i++) HEAP(free)(pair[i]);
}

static void *live(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed * 0x9E3779B97F4A7C15u + 1;
    for (unsigned long round = 0; round < rounds / LIVES + 1; round++) {
        for (int i = 0; i < CALLS; i++) {
            size_t slot = next_random(&state) % SLOTS;
            if (next_random(&state) % 4 == 0) allocate_and_free(slot);
            else replace(slot);
        }
        if (next_random(&state) % 8 == 0) empty_caches();
    }
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    pthread_t ids[THREADS_MAX];
    if (argc > 2) rounds = strtoul(argv[2], NULL, 10);
    if (threads < 1 || threads > THREADS_MAX) return 1;
    void *block = HEAP(malloc)(1);
    if (find_owns() == NULL || find_owns()(block) != 1) {
        fprintf(stderr, "this process does not run on hakmem\n");
        return 1;
    }
    HEAP(free)(block);
    for (int one_life = 0; one_life < LIVES; one_life++) {
        for (int i = 0; i < threads; i++)
            if (pthread_create(&ids[i], NULL, live, (void *)(uintptr_t)(one_life * THREADS_MAX + i + 1)) != 0) return 1;
        for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    }
    if (damaged != 0) fprintf(stderr, "%lu blocks were damaged\n", (unsigned long)damaged);
    return damaged != 0;
}

/* Blocks that are allocated by one thread and freed by another: the heap must not grow while next to nothing lives.
 * Prints by how much the peak of RSS exceeds the start. The argument is the size of the blocks, or 0 for 16..2048. */
#include <sched.h>

#include "churn.h"

enum { LIVE_BYTES = 3 << 19, RING_MAX = 16 << 10, GROWTH_LIMIT_MIB = 160, SMALL_FREES = 3000000 };

struct ring {
    _Atomic(unsigned char *) slots[RING_MAX];
    unsigned slot_count;
    unsigned block_count;
    size_t size; /* 0: mixed */
};

static size_t ring_size(const struct ring *ring, unsigned i) {
    return ring->size ? ring->size : 16 + (i * 2654435761u >> 21) % 2033;
}

static void *ring_produce(void *argument) {
    struct ring *ring = argument;
    for (unsigned i = 0; i < ring->block_count; i++) {
        unsigned char *block = malloc(ring_size(ring, i));
        expect(block, "no memory");
        block[0] = block[ring_size(ring, i) - 1] = (unsigned char)i;
        while (atomic_load(&ring->slots[i % ring->slot_count])) sched_yield();
        atomic_store(&ring->slots[i % ring->slot_count], block);
    }
    return NULL;
}

static void *ring_consume(void *argument) {
    struct ring *ring = argument;
    for (unsigned i = 0; i < ring->block_count; i++) {
        unsigned char *block;
        while (!(block = atomic_load(&ring->slots[i % ring->slot_count]))) sched_yield();
        atomic_store(&ring->slots[i % ring->slot_count], NULL);
        expect(block[0] == (unsigned char)i && block[ring_size(ring, i) - 1] == (unsigned char)i, "a block changed");
        free(block);
    }
    return NULL;
}

static size_t peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss << 10;
}

/* Pairs of a producer and a consumer, which share the bytes that may live and the blocks to pass. */
static void pass_blocks(unsigned pair_count) {
    static struct ring rings[4];
    size_t size = case_arguments[0] ? strtoul(case_arguments[0], NULL, 10) : 0;
    size_t size_typical = size ? size : 1040;
    pthread_t threads[8];
    size_t before = peak_bytes();
    for (unsigned i = 0; i < pair_count; i++) {
        size_t slot_count = LIVE_BYTES / size_typical / pair_count;
        rings[i].slot_count = slot_count < RING_MAX ? (unsigned)slot_count : RING_MAX;
        rings[i].block_count = (size_typical > 32 << 10 ? SMALL_FREES / 10 : SMALL_FREES) / pair_count;
        rings[i].size = size;
        expect(pthread_create(&threads[2 * i], NULL, ring_produce, &rings[i]) == 0, "no thread");
        expect(pthread_create(&threads[2 * i + 1], NULL, ring_consume, &rings[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < 2 * pair_count; i++) pthread_join(threads[i], NULL);
    size_t growth_kib = case_growth_kib(before, peak_bytes());
    case_print(1, "%u blocks of %zu bytes passed by %u pairs: peak RSS + %zu KiB", pair_count * rings[0].block_count,
               size, pair_count, growth_kib);
    expect(growth_kib < (size_t)GROWTH_LIMIT_MIB << 10, "peak RSS + %zu KiB", growth_kib);
}

static void run_pair(void) { pass_blocks(1); }

static void run_pairs(void) { pass_blocks(4); }

static const struct hak_case cases[] = {
    {.name = "pair", .run = run_pair, .seconds = 120, .memory_mib = 512},
    {.name = "pairs", .run = run_pairs, .seconds = 120, .memory_mib = 512},
};

CASE_MAIN(cases)

/* Random allocations and frees over a working set of slots: the loop that several programs have in common.
 *
 * Each iteration picks a slot: a full one is freed, an empty one gets a block, which is written. Before a free the
 * block is not read: whether a free touches it is the allocator's own choice. The checksum is taken from the blocks
 * that are live at the end.
 */
#ifndef BENCH_SLOTS_H
#define BENCH_SLOTS_H

#include "bench.h"

#include <stdbool.h>

struct bench_slot {
    void *block; /* NULL: the slot is empty */
    size_t bytes;
};

struct bench_slots {
    struct bench_slot *slots;
    size_t count;
    struct bench_sizes sizes;
    struct bench_random random;
};

/* From the arguments WS SEED [MIN MAX], of which argv[0] is the first; `sizes` are those to be taken without MIN. */
static inline struct bench_slots bench_slots_create(int argc, char **argv, struct bench_sizes sizes) {
    struct bench_slots set = {.count = bench_number_between(argv[0], 1, UINT32_MAX)};
    set.random = bench_random_seeded(bench_number(argv[1], 0), 0);
    size_t min_bytes = argc > 2 ? bench_number(argv[2], 1) : sizes.min_bytes;
    size_t max_bytes = argc > 3 ? bench_number(argv[3], 1) : sizes.min_bytes + sizes.span - 1;
    set.sizes = bench_sizes(min_bytes, max_bytes);
    set.slots = bench_map(set.count, sizeof *set.slots);
    return set;
}

/* `every_page`, which the compiler must know, tells whether all pages of a block are written, or its ends only. */
static inline void bench_slots_churn(struct bench_slots *set, uint64_t iterations, bool every_page) {
    struct bench_slots own = *set;
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t draw = bench_random_next(&own.random);
        struct bench_slot *slot = &own.slots[bench_pick_index(draw, own.count)];
        if (slot->block) {
            free(slot->block);
            slot->block = NULL;
        } else {
            slot->bytes = bench_pick_size(draw, own.sizes);
            slot->block = bench_allocate(slot->bytes);
            if (every_page) {
                bench_touch_pages(slot->block, slot->bytes, (uint8_t)draw);
            } else {
                bench_touch(slot->block, slot->bytes, (uint8_t)draw);
            }
        }
    }
    set->random = own.random;
}

/* Frees all blocks, so that all slots are empty; returns the checksum over them. */
static inline uint64_t bench_slots_finish(struct bench_slots *set, bool every_page) {
    uint64_t checksum = 0;
    for (size_t i = 0; i < set->count; i++) {
        struct bench_slot *slot = &set->slots[i];
        if (slot->block) {
            checksum = every_page ? bench_fold_pages(checksum, slot->block, slot->bytes)
                                  : bench_fold_block(checksum, slot->block, slot->bytes);
            free(slot->block);
            slot->block = NULL;
        }
    }
    return checksum;
}

#endif

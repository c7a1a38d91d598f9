/* Random allocations and frees over a working set of slots.
 *
 *     bench_random_mixed ITER WS SEED [MIN MAX]
 *
 * Each iteration picks one of WS slots: a full one is freed, an empty one gets a block of MIN..MAX bytes (16..1040),
 * whose first and last byte are written. Before a free the block is not read: whether a free touches it is the
 * allocator's own choice. One operation is one malloc or one free. The checksum is taken from the blocks that are live
 * at the end.
 */
#include "bench.h"

struct slot {
    void *block;
    size_t bytes;
};

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 5, "bench_random_mixed ITER WS SEED [MIN MAX]");
    uint64_t iterations = bench_number(argv[1], 1);
    size_t slot_count = bench_number(argv[2], 1);
    struct bench_random random = bench_random_seeded(bench_number(argv[3], 0), 0);
    struct bench_sizes sizes =
        bench_sizes(argc > 4 ? bench_number(argv[4], 1) : 16, argc > 5 ? bench_number(argv[5], 1) : 1040);
    struct slot *slots = bench_map(slot_count, sizeof *slots);

    double start = bench_now();
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t draw = bench_random_next(&random);
        struct slot *slot = &slots[bench_pick_index(draw, slot_count)];
        if (slot->block) {
            free(slot->block);
            slot->block = NULL;
        } else {
            slot->bytes = bench_pick_size(draw, sizes);
            slot->block = bench_allocate(slot->bytes);
            bench_touch(slot->block, slot->bytes, (uint8_t)draw);
        }
    }
    double seconds = bench_now() - start;

    uint64_t checksum = 0;
    for (size_t i = 0; i < slot_count; i++) {
        if (slots[i].block) {
            checksum = bench_fold_block(checksum, slots[i].block, slots[i].bytes);
            free(slots[i].block);
        }
    }
    bench_close(iterations, seconds, checksum);
    return 0;
}

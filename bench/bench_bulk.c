/* Bulk phases: allocate many blocks, then free them all.
 *
 *     bench_bulk COUNT ROUNDS SEED MIN MAX [fifo|lifo]
 *
 * Each round allocates COUNT blocks of MIN..MAX bytes, writes their first and last byte, and frees them in the order of
 * allocation (fifo, the default) or in reverse (lifo). One operation is one malloc or one free. The checksum is taken
 * from one more round, after the clock has stopped.
 */
#include "bench.h"

#include <stdbool.h>

static void allocate_all(void **blocks, size_t count, struct bench_random random, struct bench_sizes sizes) {
    for (size_t i = 0; i < count; i++) {
        uint64_t draw = bench_random_next(&random);
        size_t bytes = bench_pick_size(draw, sizes);
        blocks[i] = bench_allocate(bytes);
        bench_touch(blocks[i], bytes, (uint8_t)draw);
    }
}

/* `random` as allocate_all got it: the sizes are drawn again. */
static uint64_t fold_all(void **blocks, size_t count, struct bench_random random, struct bench_sizes sizes) {
    uint64_t checksum = 0;
    for (size_t i = 0; i < count; i++) {
        checksum = bench_fold_block(checksum, blocks[i], bench_pick_size(bench_random_next(&random), sizes));
    }
    return checksum;
}

static void free_all(void **blocks, size_t count, bool reversed) {
    if (reversed) {
        for (size_t i = count; i-- > 0;) {
            free(blocks[i]);
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            free(blocks[i]);
        }
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 5, 6, "bench_bulk COUNT ROUNDS SEED MIN MAX [fifo|lifo]");
    size_t count = bench_number(argv[1], 1);
    uint64_t round_count = bench_number(argv[2], 1);
    uint64_t seed = bench_number(argv[3], 0);
    struct bench_sizes sizes = bench_sizes(bench_number(argv[4], 1), bench_number(argv[5], 1));
    bool reversed = argc > 6 && bench_choice(argv[6], (const char *const[]){"fifo", "lifo", NULL});
    void **blocks = bench_map(count, sizeof *blocks);

    double start = bench_now();
    for (uint64_t round = 0; round < round_count; round++) {
        allocate_all(blocks, count, bench_random_seeded(seed, round), sizes);
        free_all(blocks, count, reversed);
    }
    double seconds = bench_now() - start;

    struct bench_random random = bench_random_seeded(seed, round_count);
    allocate_all(blocks, count, random, sizes);
    uint64_t checksum = fold_all(blocks, count, random, sizes);
    free_all(blocks, count, reversed);
    bench_close(2 * count * round_count, seconds, checksum);
    return 0;
}

/* Ten sizes, 16 B .. 8 KiB, in four patterns each.
 *
 *     bench_comprehensive ITER SEED [SIZE PATTERN]
 *
 * The patterns of mallocs and frees, each with a fixed number of slots:
 *
 *     lifo      fill 64 slots, free them in reverse
 *     fifo      replace the oldest of 256 blocks
 *     random    replace a block of 1024 at random
 *     bulk      fill 8192 slots, free them in the order of allocation
 *
 * The first and the last byte of each block are written. A case does at least ITER operations, one malloc or one free
 * each; slots that are full before it starts are not measured. With SIZE and PATTERN, one case is run, and SIZE may
 * be any; without, all of them, and the throughput of the closing line is the geometric mean of theirs.
 */
#include "bench.h"

enum { LARGEST_SLOT_COUNT = 8192, SIZE_COUNT = 10 };

struct work {
    void **slots;
    size_t slot_count;
    size_t bytes;
    uint64_t iterations; /* in units of the pattern: see below */
    struct bench_random random;
};

static void fill(struct work *work, size_t index) {
    work->slots[index] = bench_allocate(work->bytes);
    bench_touch(work->slots[index], work->bytes, (uint8_t)index);
}

/* An iteration fills and empties all slots. */
static void run_lifo(struct work *work) {
    for (uint64_t i = 0; i < work->iterations; i++) {
        for (size_t j = 0; j < work->slot_count; j++) {
            fill(work, j);
        }
        for (size_t j = work->slot_count; j-- > 0;) {
            free(work->slots[j]);
        }
    }
}

static void run_bulk(struct work *work) {
    for (uint64_t i = 0; i < work->iterations; i++) {
        for (size_t j = 0; j < work->slot_count; j++) {
            fill(work, j);
        }
        for (size_t j = 0; j < work->slot_count; j++) {
            free(work->slots[j]);
        }
    }
}

/* An iteration replaces one block. */
static void run_fifo(struct work *work) {
    for (uint64_t i = 0; i < work->iterations; i++) {
        size_t oldest = i % work->slot_count;
        free(work->slots[oldest]);
        fill(work, oldest);
    }
}

static void run_random(struct work *work) {
    for (uint64_t i = 0; i < work->iterations; i++) {
        size_t index = bench_pick_index(bench_random_next(&work->random), work->slot_count);
        free(work->slots[index]);
        fill(work, index);
    }
}

static const char *const pattern_names[] = {"lifo", "fifo", "random", "bulk", NULL};

static const struct pattern {
    void (*run)(struct work *);
    size_t slot_count;
    size_t mallocs_each; /* in an iteration; as many frees */
} patterns[] = {
    {run_lifo, 64, 64}, {run_fifo, 256, 1}, {run_random, 1024, 1}, {run_bulk, LARGEST_SLOT_COUNT, LARGEST_SLOT_COUNT}};

enum { PATTERN_COUNT = sizeof patterns / sizeof *patterns };

struct result {
    uint64_t operations;
    double seconds;
    uint64_t checksum;
};

/* All slots are empty before and after. */
static struct result run_case(void **slots, const struct pattern *pattern, size_t bytes, uint64_t operations,
                              uint64_t seed) {
    struct work work = {.slots = slots, .slot_count = pattern->slot_count, .bytes = bytes};
    uint64_t operations_each = 2 * pattern->mallocs_each;
    work.iterations = operations / operations_each + (operations % operations_each != 0);
    work.random = bench_random_seeded(seed, bytes);
    int keeps_full = pattern->mallocs_each == 1;
    for (size_t i = 0; keeps_full && i < work.slot_count; i++) {
        fill(&work, i);
    }

    double start = bench_now();
    pattern->run(&work);
    double seconds = bench_now() - start;

    for (size_t i = 0; !keeps_full && i < work.slot_count; i++) {
        fill(&work, i);
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < work.slot_count; i++) {
        checksum = bench_fold_block(checksum, slots[i], bytes);
        free(slots[i]);
    }
    return (struct result){work.iterations * operations_each, seconds, checksum};
}

/* The value whose ratios to all others multiply to 1: found by halving, because logarithms would need libm. */
static double geometric_mean(const double *values, size_t count) {
    double low = values[0];
    double high = values[0];
    for (size_t i = 1; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    for (int step = 0; step < 60; step++) {
        double middle = (low + high) / 2;
        double product = 1;
        for (size_t i = 0; i < count; i++) {
            product *= values[i] / middle;
        }
        *(product > 1 ? &low : &high) = middle;
    }
    return (low + high) / 2;
}

int main(int argc, char **argv) {
    const char *usage = "bench_comprehensive ITER SEED [SIZE lifo|fifo|random|bulk]";
    bench_expect_arguments(argc, argc == 4 ? 4 : 2, 4, usage); /* SIZE does not come alone */
    uint64_t operations = bench_number(argv[1], 1);
    uint64_t seed = bench_number(argv[2], 0);
    void **slots = bench_map(LARGEST_SLOT_COUNT, sizeof *slots);
    if (argc > 3) {
        size_t bytes = bench_number_between(argv[3], 1, UINT32_MAX);
        struct result result =
            run_case(slots, &patterns[bench_choice(argv[4], pattern_names)], bytes, operations, seed);
        bench_close(result.operations, result.seconds, result.checksum);
        return 0;
    }

    double throughputs[SIZE_COUNT * PATTERN_COUNT];
    double seconds = 0;
    uint64_t checksum = 0;
    for (size_t i = 0; i < SIZE_COUNT * PATTERN_COUNT; i++) {
        size_t bytes = (size_t)16 << (i / PATTERN_COUNT);
        size_t pattern = i % PATTERN_COUNT;
        struct result result = run_case(slots, &patterns[pattern], bytes, operations, seed);
        throughputs[i] = (double)result.operations / result.seconds;
        seconds += result.seconds;
        checksum = bench_fold(checksum, result.checksum);
        bench_figure_at(pattern_names[pattern], bytes, throughputs[i], "ops/s");
    }
    double mean = geometric_mean(throughputs, SIZE_COUNT * PATTERN_COUNT);
    bench_close((uint64_t)(mean * seconds), seconds, checksum);
    return 0;
}

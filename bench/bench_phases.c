/* A program that changes: each phase uses memory for blocks of another size, and nothing of the phase before is left.
 *
 *     bench_phases PHASES BYTES SEED
 *
 * A phase allocates BYTES in blocks of sizes close to each other, replaces as many at random, and frees all. The sizes
 * double from phase to phase, from 16 B to 16 KiB and over again, and are some eighths more each time, so that all
 * size classes have their turn in 88 phases. The first and the last byte of a block are written. One operation is one
 * malloc or one free.
 *
 * Figures, of every phase: resident memory and mapped memory (private and writable) with all of its blocks there; of
 * all phases: by how much the most of the second half is above that of the first; and what is resident at the end.
 * Memory that one phase leaves serves the next if the growth is 1.
 */
#include "bench.h"

enum { DOUBLING_COUNT = 11, EIGHTH_COUNT = 8, SMALLEST_BYTES = 16 };

/* Up to an eighth more than the least. */
static struct bench_sizes sizes_of(uint64_t phase) {
    size_t doubled = (size_t)SMALLEST_BYTES << phase % DOUBLING_COUNT;
    size_t least = doubled + doubled / EIGHTH_COUNT * (phase / DOUBLING_COUNT % EIGHTH_COUNT);
    return bench_sizes(least, least + least / EIGHTH_COUNT);
}

/* A block's size follows from its slot, so that replacing it needs no table of sizes. */
static size_t size_of(struct bench_sizes sizes, size_t slot) { return bench_pick_size(bench_mix(slot), sizes); }

static void fill(void **slots, size_t slot, struct bench_sizes sizes) {
    size_t bytes = size_of(sizes, slot);
    slots[slot] = bench_allocate(bytes);
    bench_touch(slots[slot], bytes, (uint8_t)slot);
}

static uint64_t most(const uint64_t *values, size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++) {
        value = values[i] > value ? values[i] : value;
    }
    return value;
}

static double growth(const uint64_t *values, size_t count) {
    return (double)most(values + count / 2, count - count / 2) / (double)most(values, count / 2);
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 3, "bench_phases PHASES BYTES SEED");
    size_t phase_count = bench_number_between(argv[1], 2, UINT32_MAX);
    uint64_t bytes_each = bench_number_between(argv[2], 1 << 20, (uint64_t)SMALLEST_BYTES << 32);
    struct bench_random random = bench_random_seeded(bench_number(argv[3], 0), 0);
    uint64_t *resident_bytes = bench_map(phase_count, sizeof *resident_bytes);
    uint64_t *mapped_bytes = bench_map(phase_count, sizeof *mapped_bytes);
    void **slots = bench_map(bytes_each / SMALLEST_BYTES, sizeof *slots);

    uint64_t operations = 0;
    uint64_t checksum = 0;
    double seconds = 0;
    for (size_t phase = 0; phase < phase_count; phase++) {
        struct bench_sizes sizes = sizes_of(phase);
        size_t count = bytes_each / sizes.min_bytes;
        double start = bench_now();
        for (size_t i = 0; i < count; i++) {
            fill(slots, i, sizes);
        }
        for (size_t i = 0; i < count; i++) {
            size_t slot = bench_pick_index(bench_random_next(&random), count);
            free(slots[slot]);
            fill(slots, slot, sizes);
        }
        seconds += bench_now() - start;
        resident_bytes[phase] = bench_resident_bytes();
        mapped_bytes[phase] = bench_mapped_bytes();
        for (size_t i = 0; i < count; i++) {
            checksum = bench_fold_block(checksum, slots[i], size_of(sizes, i));
        }
        start = bench_now();
        for (size_t i = 0; i < count; i++) {
            free(slots[i]);
        }
        seconds += bench_now() - start;
        operations += 4 * count;
    }

    for (size_t i = 0; i < phase_count; i++) {
        bench_figure_at("rss", i + 1, (double)resident_bytes[i], "bytes");
        bench_figure_at("mapped", i + 1, (double)mapped_bytes[i], "bytes");
    }
    bench_figure("rss_growth", growth(resident_bytes, phase_count), "x");
    bench_figure("mapped_growth", growth(mapped_bytes, phase_count), "x");
    bench_figure("rss_end", (double)bench_resident_bytes(), "bytes");
    bench_close(operations, seconds, checksum);
    return 0;
}

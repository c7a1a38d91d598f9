/* A large heap of small blocks: built once, walked, and taken down.
 *
 *     bench_cold_heap BYTES MIN MAX SEED
 *
 * Allocates blocks of MIN..MAX bytes (MIN >= 16) until BYTES were asked for. Each is written at its beginning and its
 * end and is linked from the one before, as the nodes of a list are; then the list is walked, and freed on a second
 * walk. One operation is one malloc of the building, and the closing line's time is that of the building.
 *
 * Figures: what was asked for (live), page faults and resident memory of the building, the latter over what was asked
 * for, and the seconds of each part.
 */
#include "bench.h"

struct block {
    struct block *next;
    size_t bytes;
};

static uint8_t *last_byte(struct block *block) { return (uint8_t *)block + block->bytes - 1; }

/* Links the newest block to the one before it. */
static struct block *build(uint64_t bytes_wanted, struct bench_sizes sizes, struct bench_random random, uint64_t *count,
                           uint64_t *live_bytes) {
    struct block *first = NULL;
    struct block **link = &first;
    while (*live_bytes < bytes_wanted) {
        uint64_t draw = bench_random_next(&random);
        size_t bytes = bench_pick_size(draw, sizes);
        struct block *block = bench_allocate(bytes);
        *((volatile uint8_t *)block + bytes - 1) = (uint8_t)draw;
        *block = (struct block){.bytes = bytes};
        *link = block;
        link = &block->next;
        *live_bytes += bytes;
        ++*count;
    }
    return first;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 4, 4, "bench_cold_heap BYTES MIN MAX SEED");
    uint64_t bytes_wanted = bench_number(argv[1], 1);
    struct bench_sizes sizes =
        bench_sizes(bench_number(argv[2], sizeof(struct block)), bench_number(argv[3], sizeof(struct block)));
    struct bench_random random = bench_random_seeded(bench_number(argv[4], 0), 0);

    uint64_t count = 0;
    uint64_t live_bytes = 0;
    uint64_t resident_before = bench_resident_bytes();
    uint64_t faults = bench_fault_count();
    double start = bench_now();
    struct block *first = build(bytes_wanted, sizes, random, &count, &live_bytes);
    double build_seconds = bench_now() - start;
    faults = bench_fault_count() - faults;
    uint64_t resident_bytes = bench_resident_bytes() - resident_before;

    uint64_t checksum = 0;
    start = bench_now();
    for (struct block *block = first; block; block = block->next) {
        checksum = bench_fold(checksum, (uint64_t)block->bytes << 8 | *last_byte(block));
    }
    double walk_seconds = bench_now() - start;

    start = bench_now();
    for (struct block *block = first; block;) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
    double free_seconds = bench_now() - start;

    bench_figure("live", (double)live_bytes, "bytes");
    bench_figure("faults", (double)faults, "faults");
    bench_figure("rss", (double)resident_bytes, "bytes");
    bench_figure("over_live", (double)resident_bytes / (double)live_bytes, "x");
    bench_figure("build", build_seconds, "s");
    bench_figure("walk", walk_seconds, "s");
    bench_figure("free", free_seconds, "s");
    bench_close(count, build_seconds, checksum);
    return 0;
}

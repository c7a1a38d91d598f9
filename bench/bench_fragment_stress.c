/* Fragmentation: blocks of few rounds live on among many that die, and the next round asks for other sizes.
 *
 *     bench_fragment_stress BYTES ROUNDS SEED [IDLE_SECONDS]
 *
 * Each round allocates BYTES in blocks of one range of sizes; the ranges take turns: 16-256 B, 256 B-2 KiB, 2-16 KiB,
 * 16-64 KiB. All pages of a block are written. Then the round frees nine of ten of its blocks at random, and one of
 * eight of those that earlier rounds left. One operation is one malloc or one free.
 *
 * Figures, with the last round's blocks still there (full), after its frees (end), and after IDLE_SECONDS in which
 * nothing is called (idle):
 *
 *     live          bytes asked for, in blocks that are not freed
 *     page_limit    bytes of the OS pages that hold a live block, and what was resident at the start
 *     rss           resident memory
 *     over_limit    rss / page_limit
 */
#include "bench_pages.h"

#include <stdbool.h>

struct slot {
    void *block; /* NULL: the slot is empty */
    uint32_t bytes;
    uint32_t round; /* that allocated it */
};

struct heap {
    struct slot *slots;
    size_t slot_count;
    uint64_t live_bytes;
    uint64_t operations;
    struct bench_random random;
};

enum { RANGE_COUNT = 4, SMALLEST_MEAN_BYTES = (16 + 256) / 2 };

static const struct bench_sizes ranges[RANGE_COUNT] = {
    {16, 256 - 16 + 1},
    {256, (2 << 10) - 256 + 1},
    {2 << 10, (16 << 10) - (2 << 10) + 1},
    {16 << 10, (64 << 10) - (16 << 10) + 1},
};

/* Should the table be full, which its room for older blocks makes all but impossible, the round is a smaller one. */
static void allocate_round(struct heap *heap, uint64_t bytes_wanted, uint32_t round) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < heap->slot_count && bytes < bytes_wanted; i++) {
        struct slot *slot = &heap->slots[i];
        if (!slot->block) {
            uint64_t draw = bench_random_next(&heap->random);
            slot->bytes = (uint32_t)bench_pick_size(draw, ranges[round % RANGE_COUNT]);
            slot->block = bench_allocate(slot->bytes);
            slot->round = round;
            bench_touch_pages(slot->block, slot->bytes, (uint8_t)draw);
            bytes += slot->bytes;
            heap->operations++;
        }
    }
    heap->live_bytes += bytes;
}

static void free_round(struct heap *heap, uint32_t round) {
    for (size_t i = 0; i < heap->slot_count; i++) {
        struct slot *slot = &heap->slots[i];
        if (slot->block) {
            uint64_t draw = bench_random_next(&heap->random);
            bool dies = slot->round == round ? bench_pick_index(draw, 10) != 0 : bench_pick_index(draw, 8) == 0;
            if (dies) {
                free(slot->block);
                slot->block = NULL;
                heap->live_bytes -= slot->bytes;
                heap->operations++;
            }
        }
    }
}

static uint64_t live_page_bytes(const struct heap *heap) {
    size_t span_count = 0;
    for (size_t i = 0; i < heap->slot_count; i++) {
        span_count += heap->slots[i].block ? bench_pages_spanned(heap->slots[i].bytes) : 0;
    }
    struct bench_pages pages = bench_pages_create(span_count);
    for (size_t i = 0; i < heap->slot_count; i++) {
        if (heap->slots[i].block) {
            bench_pages_add(&pages, heap->slots[i].block, heap->slots[i].bytes);
        }
    }
    return bench_pages_finish(&pages);
}

struct state {
    uint64_t live_bytes;
    uint64_t limit_bytes;
    uint64_t resident_bytes;
};

static struct state look(const struct heap *heap, uint64_t start_bytes) {
    uint64_t resident_bytes = bench_resident_bytes();
    return (struct state){heap->live_bytes, live_page_bytes(heap) + start_bytes, resident_bytes};
}

static void report(const char *when, struct state state) {
    bench_figure_of("live", when, (double)state.live_bytes, "bytes");
    bench_figure_of("page_limit", when, (double)state.limit_bytes, "bytes");
    bench_figure_of("rss", when, (double)state.resident_bytes, "bytes");
    bench_figure_of("over_limit", when, (double)state.resident_bytes / (double)state.limit_bytes, "x");
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 4, "bench_fragment_stress BYTES ROUNDS SEED [IDLE_SECONDS]");
    uint64_t bytes_each = bench_number(argv[1], 1);
    uint32_t round_count = (uint32_t)bench_number_between(argv[2], 1, UINT32_MAX);
    struct heap heap = {.random = bench_random_seeded(bench_number(argv[3], 0), 0)};
    double idle_seconds = argc > 4 ? bench_seconds(argv[4]) : 0;
    /* A round of the smallest and half as many older ones: a tenth stays, of which an eighth dies in each round. */
    heap.slot_count = bytes_each / SMALLEST_MEAN_BYTES * 3 / 2 + 1000;
    heap.slots = bench_map(heap.slot_count, sizeof *heap.slots);
    uint64_t start_bytes = bench_resident_bytes();

    double seconds = 0;
    struct state full = {0};
    for (uint32_t round = 0; round < round_count; round++) {
        double start = bench_now();
        allocate_round(&heap, bytes_each, round);
        seconds += bench_now() - start;
        if (round + 1 == round_count) {
            full = look(&heap, start_bytes);
        }
        start = bench_now();
        free_round(&heap, round);
        seconds += bench_now() - start;
    }

    struct state end = look(&heap, start_bytes);
    struct state idle = end;
    if (idle_seconds > 0) {
        bench_sleep(idle_seconds);
        idle.resident_bytes = bench_resident_bytes();
    }
    report("full", full);
    report("end", end);
    if (idle_seconds > 0) {
        report("idle", idle);
    }
    uint64_t checksum = bench_fold(0, heap.live_bytes);
    for (size_t i = 0; i < heap.slot_count; i++) {
        if (heap.slots[i].block) {
            checksum = bench_fold_pages(checksum, heap.slots[i].block, heap.slots[i].bytes);
            free(heap.slots[i].block);
        }
    }
    bench_close(heap.operations, seconds, checksum);
    return 0;
}

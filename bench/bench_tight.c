/* How little memory can a program live in whose live memory stays the same, while the sizes of its blocks change? Meant to
 * be run where memory is limited to a little more than its live pages.
 *
 *     bench_tight BYTES PHASES SEED [count]
 *
 * A phase allocates BYTES in blocks of its kind, writes all of their pages, replaces as many at random, and frees all but one
 * in about 64 KiB, or in 16 blocks. Those live on to the end of the next phase, among whose blocks they are. The kinds, in
 * turn: 400-1200 B, 80-110 KiB, 2-6 KiB, 20-32 KiB. So nearly all memory of a phase is free in the next one, but hardly any
 * stretch of 64 KiB is. One operation is one malloc or one free.
 *
 * Figures, with count: live_peak, the most bytes of OS pages that held a live block, counted from the program's own
 * pointers when a phase has all of its blocks; the counting needs memory. Always: rss_peak, of these moments, and rss_end.
 */
#include "bench_pages.h"

#include <stdbool.h>

struct kind {
    struct bench_sizes sizes;
    size_t stride; /* one block in so many lives on */
};

struct phase {
    struct kind kind;
    uint64_t number;
    size_t count;
    void **blocks; /* of count; those that live on are at multiples of the stride */
};

static uint64_t operations;

static struct kind kind_of(uint64_t phase) {
    static const struct {
        size_t min_bytes, max_bytes, stride;
    } kinds[] = {{400, 1200, 80}, {80 << 10, 110 << 10, 16}, {2 << 10, 6 << 10, 16}, {20 << 10, 32 << 10, 16}};
    size_t i = phase % (sizeof kinds / sizeof *kinds);
    return (struct kind){bench_sizes(kinds[i].min_bytes, kinds[i].max_bytes), kinds[i].stride};
}

static size_t count_for(uint64_t bytes, uint64_t phase) {
    struct bench_sizes sizes = kind_of(phase).sizes;
    return (size_t)(bytes / (sizes.min_bytes + sizes.span / 2));
}

/* A block's size follows from its place, so that replacing it needs no table of sizes. */
static size_t size_of(const struct phase *phase, size_t i) {
    return bench_pick_size(bench_mix(i + phase->number), phase->kind.sizes);
}

static void fill(struct phase *phase, size_t i) {
    size_t bytes = size_of(phase, i);
    phase->blocks[i] = bench_allocate(bytes);
    bench_touch_pages(phase->blocks[i], bytes, (uint8_t)i);
    operations++;
}

static void empty(struct phase *phase, size_t i) {
    free(phase->blocks[i]);
    operations++;
}

static void churn(struct phase *phase, struct bench_random *random) {
    for (size_t n = 0; n < phase->count; n++) {
        size_t i = bench_pick_index(bench_random_next(random), phase->count);
        if (i % phase->kind.stride != 0) {
            empty(phase, i);
            fill(phase, i);
        }
    }
}

/* Frees those that live on, or all others. */
static void free_part(struct phase *phase, bool living_on) {
    for (size_t i = 0; i < phase->count; i++) {
        if ((i % phase->kind.stride == 0) == living_on) {
            empty(phase, i);
        }
    }
}

static uint64_t checksum_of(const struct phase *phase, uint64_t checksum) {
    for (size_t i = 0; i < phase->count; i++) {
        checksum = bench_fold_pages(checksum, phase->blocks[i], size_of(phase, i));
    }
    return checksum;
}

/* Of all blocks of a phase, and those that the last one left. */
static uint64_t live_page_bytes(const struct phase *phase, const struct phase *last) {
    size_t span_count = 0;
    for (size_t i = 0; i < phase->count; i++) {
        span_count += bench_pages_spanned(size_of(phase, i));
    }
    for (size_t i = 0; i < last->count; i += last->kind.stride) {
        span_count += bench_pages_spanned(size_of(last, i));
    }
    struct bench_pages pages = bench_pages_create(span_count);
    for (size_t i = 0; i < phase->count; i++) {
        bench_pages_add(&pages, phase->blocks[i], size_of(phase, i));
    }
    for (size_t i = 0; i < last->count; i += last->kind.stride) {
        bench_pages_add(&pages, last->blocks[i], size_of(last, i));
    }
    return bench_pages_finish(&pages);
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 4, "bench_tight BYTES PHASES SEED [count]");
    uint64_t bytes = bench_number_between(argv[1], 1 << 20, (uint64_t)1 << 40);
    uint64_t phase_count = bench_number_between(argv[2], 1, UINT32_MAX);
    struct bench_random random = bench_random_seeded(bench_number(argv[3], 0), 0);
    bool counts = argc > 4 && bench_choice(argv[4], (const char *const[]){"count", NULL}) == 0;
    struct phase phases[2] = {{.kind = kind_of(0)}, {.kind = kind_of(1)}};
    for (size_t i = 0; i < 2; i++) {
        size_t most = count_for(bytes, i) > count_for(bytes, i + 2) ? count_for(bytes, i) : count_for(bytes, i + 2);
        phases[i].blocks = bench_map(most, sizeof *phases[i].blocks);
    }

    uint64_t live_peak = 0;
    uint64_t rss_peak = 0;
    uint64_t checksum = 0;
    double seconds = 0;
    for (uint64_t number = 0; number < phase_count; number++) {
        struct phase *phase = &phases[number % 2];
        struct phase *last = &phases[(number + 1) % 2];
        *phase = (struct phase){kind_of(number), number, count_for(bytes, number), phase->blocks};
        double start = bench_now();
        for (size_t i = 0; i < phase->count; i++) {
            fill(phase, i);
        }
        churn(phase, &random);
        seconds += bench_now() - start;
        uint64_t rss = bench_resident_bytes();
        uint64_t live = counts ? live_page_bytes(phase, last) : 0;
        rss_peak = rss > rss_peak ? rss : rss_peak;
        live_peak = live > live_peak ? live : live_peak;
        checksum = checksum_of(phase, checksum);
        start = bench_now();
        free_part(last, true);
        free_part(phase, false);
        seconds += bench_now() - start;
    }
    free_part(&phases[(phase_count + 1) % 2], true);

    if (counts) {
        bench_figure("live_peak", (double)live_peak, "bytes");
    }
    bench_figure("rss_peak", (double)rss_peak, "bytes");
    bench_figure("rss_end", (double)bench_resident_bytes(), "bytes");
    bench_close(operations, seconds, checksum);
    return 0;
}

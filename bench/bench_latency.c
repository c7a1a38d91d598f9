/* How long single calls of malloc and free take: not the mean, but the tail.
 *
 *     bench_latency ITER WS SEED THREADS [MIN MAX]
 *
 * THREADS threads have WS slots in common. Each does ITER iterations: it empties a slot at random, and frees the block
 * it found, or puts a block of MIN..MAX bytes (16..1040, MIN >= 16) there. So with more than one thread, most blocks
 * are freed by another thread than the one that allocated them. Only the calls are timed, not the first write to a
 * block. One operation is one malloc or one free; the throughput includes reading the clock.
 *
 * Figures in ns, of malloc, of free, and of nothing (timer): p50 p90 p99 p99.9 p99.99 and max, to three digits. What
 * reading the clock takes, the median of timer, is subtracted from the others. The tail of timer is the machine's own:
 * what is no longer than that says nothing of the allocator.
 */
#include "bench.h"

#include "bench_histogram.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TIMER_SAMPLE_COUNT = 200000 };

/* At the start of a block; its last byte is the tag once more. */
struct block {
    uint32_t bytes;
    uint8_t tag;
};

/* Belongs to its thread; read by the main thread after joining it. */
struct lane {
    _Alignas(64) struct bench_random random;
    struct bench_histogram *malloc_ticks;
    struct bench_histogram *free_ticks;
    uint64_t damaged_count;
    pthread_t thread;
};

/* Constant while the lanes run. */
static struct bench_sizes sizes;
static size_t slot_count;
static uint64_t iterations;

static _Atomic(struct block *) *slots; /* a block belongs to who has taken its pointer out of the slot */

/* The clock with the finest steps; what stands before is done when it is read, and nothing after has begun. */
static inline uint64_t read_ticks(void) {
#if defined __x86_64__
    uint32_t low;
    uint32_t high;
    __asm__ volatile("lfence\n\trdtsc\n\tlfence" : "=a"(low), "=d"(high)::"memory");
    return (uint64_t)high << 32 | low;
#elif defined __aarch64__
    uint64_t ticks;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(ticks)::"memory");
    return ticks;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
#endif
}

static struct block *allocate(struct lane *lane, uint64_t draw) {
    size_t bytes = bench_pick_size(draw, sizes);
    uint64_t start = read_ticks();
    void *memory = malloc(bytes);
    uint64_t end = read_ticks();
    if (!memory) {
        bench_fail("out of memory");
    }
    bench_histogram_record(lane->malloc_ticks, end - start);
    struct block *block = memory;
    *block = (struct block){.bytes = (uint32_t)bytes, .tag = (uint8_t)draw};
    ((volatile uint8_t *)memory)[bytes - 1] = block->tag;
    return block;
}

static void release(struct lane *lane, struct block *block) {
    size_t bytes = block->bytes;
    lane->damaged_count += bytes < sizes.min_bytes || bytes >= sizes.min_bytes + sizes.span ||
                           ((volatile uint8_t *)block)[bytes - 1] != block->tag;
    uint64_t start = read_ticks();
    free(block);
    uint64_t end = read_ticks();
    bench_histogram_record(lane->free_ticks, end - start);
}

static void *run(void *argument) {
    struct lane *lane = argument;
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t draw = bench_random_next(&lane->random);
        _Atomic(struct block *) *slot = &slots[bench_pick_index(draw, slot_count)];
        struct block *block = atomic_exchange_explicit(slot, NULL, memory_order_acquire); /* pairs with the release */
        if (!block) {
            struct block *filled = allocate(lane, draw);
            block = atomic_exchange_explicit(slot, filled, memory_order_acq_rel); /* pairs with both acquires */
        }
        if (block) { /* it was there, or another thread was faster */
            release(lane, block);
        }
    }
    return NULL;
}

static void report(const char *name, const struct bench_histogram *ticks, uint64_t timer_ticks, double ns_per_tick) {
    static const struct {
        const char *name;
        uint64_t millionths;
    } points[] = {{"p50", 500000},   {"p90", 900000},    {"p99", 990000},
                  {"p99.9", 999000}, {"p99.99", 999900}, {"max", 1000000}};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        uint64_t value = bench_histogram_percentile(ticks, points[i].millionths);
        value = value > timer_ticks ? value - timer_ticks : 0;
        bench_figure_of(name, points[i].name, (double)value * ns_per_tick, "ns");
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, argc == 6 ? 6 : 4, 6, "bench_latency ITER WS SEED THREADS [MIN MAX]");
    iterations = bench_number(argv[1], 1);
    slot_count = bench_number_between(argv[2], 1, UINT32_MAX);
    uint64_t seed = bench_number(argv[3], 0);
    size_t lane_count = bench_number_between(argv[4], 1, 1024);
    sizes = bench_sizes(argc > 5 ? bench_number(argv[5], 16) : 16, argc > 6 ? bench_number(argv[6], 16) : 1040);
    struct lane *lanes = bench_map(lane_count, sizeof *lanes);
    slots = bench_map(slot_count, sizeof *slots);
    struct bench_histogram *histograms = bench_map(2 * lane_count + 1, sizeof *histograms);
    struct bench_histogram *timer = &histograms[2 * lane_count];

    double start = bench_now();
    uint64_t start_ticks = read_ticks();
    for (size_t i = 0; i < TIMER_SAMPLE_COUNT; i++) {
        uint64_t before = read_ticks();
        uint64_t after = read_ticks();
        bench_histogram_record(timer, after - before);
    }
    double calls_start = bench_now();
    for (size_t i = 0; i < lane_count; i++) {
        lanes[i] = (struct lane){.random = bench_random_seeded(seed, i),
                                 .malloc_ticks = &histograms[2 * i],
                                 .free_ticks = &histograms[2 * i + 1]};
        if (pthread_create(&lanes[i].thread, NULL, run, &lanes[i]) != 0) {
            bench_fail("no thread");
        }
    }
    for (size_t i = 0; i < lane_count; i++) {
        pthread_join(lanes[i].thread, NULL);
    }
    double end = bench_now();
    double ns_per_tick = (end - start) * 1e9 / (double)(read_ticks() - start_ticks);

    for (size_t i = 1; i < lane_count; i++) {
        bench_histogram_add(lanes[0].malloc_ticks, lanes[i].malloc_ticks);
        bench_histogram_add(lanes[0].free_ticks, lanes[i].free_ticks);
        lanes[0].damaged_count += lanes[i].damaged_count;
    }
    uint64_t operations = lanes[0].malloc_ticks->total + lanes[0].free_ticks->total;
    uint64_t timer_ticks = bench_histogram_percentile(timer, 500000);
    report("timer", timer, 0, ns_per_tick);
    report("malloc", lanes[0].malloc_ticks, timer_ticks, ns_per_tick);
    report("free", lanes[0].free_ticks, timer_ticks, ns_per_tick);
    for (size_t i = 0; i < slot_count; i++) {
        struct block *block = atomic_load_explicit(&slots[i], memory_order_relaxed);
        if (block) {
            release(&lanes[0], block);
        }
    }
    uint64_t checksum = bench_fold(bench_fold(iterations, lane_count), lanes[0].damaged_count);
    bench_close(operations, end - calls_start, checksum);
    return 0;
}

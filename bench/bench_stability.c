/* A long run in ten windows: does the allocator get slower, or the heap larger, with time?
 *
 *     bench_stability ITER WS SEED [MIN MAX]
 *
 * Does ten times what bench_random_mixed does with the same arguments, and tells the throughput and the resident memory
 * of every window of ITER iterations. The drift is how much faster the last five windows were than the first five; that
 * of resident memory, how much larger it was after the last window than after the first. One operation is one malloc
 * or one free.
 */
#include "bench_slots.h"

enum { WINDOW_COUNT = 10 };

static double sum(const double *values, size_t count) {
    double total = 0;
    for (size_t i = 0; i < count; i++) {
        total += values[i];
    }
    return total;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 5, "bench_stability ITER WS SEED [MIN MAX]");
    uint64_t iterations = bench_number_between(argv[1], 1, UINT64_MAX / WINDOW_COUNT);
    struct bench_slots set = bench_slots_create(argc - 2, argv + 2, bench_sizes(16, 1040));
    double seconds[WINDOW_COUNT];
    uint64_t resident_bytes[WINDOW_COUNT];

    for (size_t i = 0; i < WINDOW_COUNT; i++) {
        double start = bench_now();
        bench_slots_churn(&set, iterations, false);
        seconds[i] = bench_now() - start;
        resident_bytes[i] = bench_resident_bytes();
    }

    for (size_t i = 0; i < WINDOW_COUNT; i++) {
        bench_figure_at("throughput", i + 1, (double)iterations / seconds[i], "ops/s");
        bench_figure_at("rss", i + 1, (double)resident_bytes[i], "bytes");
    }
    double first_seconds = sum(seconds, WINDOW_COUNT / 2);
    double last_seconds = sum(seconds + WINDOW_COUNT / 2, WINDOW_COUNT / 2);
    bench_figure("drift", 100 * (first_seconds / last_seconds - 1), "%");
    double growth = (double)resident_bytes[WINDOW_COUNT - 1] / (double)resident_bytes[0];
    bench_figure("rss_drift", 100 * (growth - 1), "%");
    bench_close(WINDOW_COUNT * iterations, first_seconds + last_seconds, bench_slots_finish(&set, false));
    return 0;
}

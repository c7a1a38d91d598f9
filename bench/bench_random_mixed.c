/* Random allocations and frees over a working set of slots.
 *
 *     bench_random_mixed ITER WS SEED [MIN MAX]
 *
 * Each iteration picks one of WS slots: a full one is freed, an empty one gets a block of MIN..MAX bytes (16..1040),
 * whose first and last byte are written. One operation is one malloc or one free.
 */
#include "bench_slots.h"

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 5, "bench_random_mixed ITER WS SEED [MIN MAX]");
    uint64_t iterations = bench_number(argv[1], 1);
    struct bench_slots set = bench_slots_create(argc - 2, argv + 2, bench_sizes(16, 1040));

    double start = bench_now();
    bench_slots_churn(&set, iterations, false);
    double seconds = bench_now() - start;

    bench_close(iterations, seconds, bench_slots_finish(&set, false));
    return 0;
}

/* Random allocations and frees of medium and large objects that are used: a byte is written in each of their pages.
 *
 *     bench_mid_large ITER WS SEED [MIN MAX]
 *
 * Each iteration picks one of WS slots: a full one is freed, an empty one gets a block of MIN..MAX bytes (2 KiB..32
 * KiB). One byte in every 4 KiB of it is written, and its last one, so that all its pages are resident. One operation
 * is one malloc or one free.
 */
#include "bench_slots.h"

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 5, "bench_mid_large ITER WS SEED [MIN MAX]");
    uint64_t iterations = bench_number(argv[1], 1);
    struct bench_slots set = bench_slots_create(argc - 2, argv + 2, bench_sizes(2 << 10, 32 << 10));

    double start = bench_now();
    bench_slots_churn(&set, iterations, true);
    double seconds = bench_now() - start;

    bench_close(iterations, seconds, bench_slots_finish(&set, true));
    return 0;
}

/* Random allocations and frees of medium and large objects that are used: a byte is written in each of their pages.
 *
 *     bench_mid_large ITER WS SEED [MIN MAX [SECONDS]]
 *
 * Each iteration picks one of WS slots: a full one is freed, an empty one gets a block of MIN..MAX bytes (2 KiB..32
 * KiB). One byte in every 4 KiB of it is written, and its last one, so that all its pages are resident. One operation
 * is one malloc or one free. With SECONDS the whole is done again, from empty slots, until the iterations have taken so
 * long: allocators differ a hundredfold where every block is a system call.
 */
#include "bench_slots.h"

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 6, "bench_mid_large ITER WS SEED [MIN MAX [SECONDS]]");
    uint64_t iterations = bench_number(argv[1], 1);
    double at_least = argc > 6 ? bench_seconds(argv[6]) : 0;
    struct bench_slots set = bench_slots_create(argc - 2, argv + 2, bench_sizes(2 << 10, 32 << 10));
    struct bench_random from = set.random;

    uint64_t operations = 0, checksum = 0;
    double seconds = 0;
    do {
        set.random = from;
        double start = bench_now();
        bench_slots_churn(&set, iterations, true);
        seconds += bench_now() - start;
        operations += iterations;
        checksum = bench_slots_finish(&set, true);
    } while (seconds < at_least);

    bench_close(operations, seconds, checksum);
    return 0;
}

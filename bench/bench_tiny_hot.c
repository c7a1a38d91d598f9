/* The hottest path: one block, allocated and freed again, over and over.
 *
 *     bench_tiny_hot ITER SIZE
 *
 * The first and last byte of the block are written each time. One operation is one malloc or one free.
 */
#include "bench.h"

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 2, 2, "bench_tiny_hot ITER SIZE");
    uint64_t iterations = bench_number(argv[1], 1);
    size_t bytes = bench_number(argv[2], 1);

    double start = bench_now();
    for (uint64_t i = 0; i < iterations; i++) {
        void *block = bench_allocate(bytes);
        bench_touch(block, bytes, (uint8_t)i);
        free(block);
    }
    double seconds = bench_now() - start;

    void *block = bench_allocate(bytes);
    bench_touch(block, bytes, (uint8_t)iterations);
    uint64_t checksum = bench_fold_block(0, block, bytes);
    free(block);
    bench_close(2 * iterations, seconds, checksum);
    return 0;
}

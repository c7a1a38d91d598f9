/* Short-lived threads, each leaving blocks behind.
 *
 *     bench_thread_churn COUNT WIDTH BLOCKS SEED [MIN MAX]
 *
 * COUNT threads in WIDTH lanes, one alive per lane. A thread frees what its predecessor left, allocates BLOCKS blocks
 * of MIN..MAX bytes (16..1040), frees every other one and leaves the rest. One operation is one malloc or one free;
 * starting and ending the threads is part of the time.
 */
#include "bench.h"

#include <pthread.h>

/* Belongs to the thread of the lane that is alive; handed on by pthread_create and pthread_join. */
struct lane {
    _Alignas(64) void **blocks;
    struct bench_random random; /* draws the blocks; `left` is its state when those that are left were drawn */
    struct bench_random left;
    uint64_t thread_count;
    uint64_t operations;
    uint64_t checksum;
    pthread_t driver;
};

static struct bench_sizes sizes;
static size_t block_count;

static void free_left(struct lane *lane) {
    for (size_t i = 0; i < block_count; i++) {
        size_t bytes = bench_pick_size(bench_random_next(&lane->left), sizes);
        if (lane->blocks[i]) {
            lane->checksum = bench_fold_block(lane->checksum, lane->blocks[i], bytes);
            free(lane->blocks[i]);
            lane->blocks[i] = NULL;
            lane->operations++;
        }
    }
}

static void *live(void *argument) {
    struct lane *lane = argument;
    free_left(lane);
    lane->left = lane->random;
    for (size_t i = 0; i < block_count; i++) {
        uint64_t draw = bench_random_next(&lane->random);
        size_t bytes = bench_pick_size(draw, sizes);
        lane->blocks[i] = bench_allocate(bytes);
        bench_touch(lane->blocks[i], bytes, (uint8_t)draw);
    }
    for (size_t i = 0; i < block_count; i += 2) {
        free(lane->blocks[i]);
        lane->blocks[i] = NULL;
    }
    lane->operations += block_count + (block_count + 1) / 2;
    return NULL;
}

static void *drive(void *argument) {
    struct lane *lane = argument;
    for (uint64_t i = 0; i < lane->thread_count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live, lane) != 0) {
            bench_fail("no thread");
        }
        pthread_join(thread, NULL);
    }
    free_left(lane);
    return NULL;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 4, 6, "bench_thread_churn COUNT WIDTH BLOCKS SEED [MIN MAX]");
    uint64_t thread_count = bench_number(argv[1], 1);
    size_t lane_count = bench_number(argv[2], 1);
    block_count = bench_number(argv[3], 1);
    uint64_t seed = bench_number(argv[4], 0);
    sizes = bench_sizes(argc > 5 ? bench_number(argv[5], 1) : 16, argc > 6 ? bench_number(argv[6], 1) : 1040);
    struct lane *lanes = bench_map(lane_count, sizeof *lanes);

    double start = bench_now();
    for (size_t i = 0; i < lane_count; i++) {
        lanes[i].blocks = bench_map(block_count, sizeof *lanes[i].blocks);
        lanes[i].random = bench_random_seeded(seed, i);
        lanes[i].thread_count = thread_count / lane_count + (i < thread_count % lane_count);
        if (pthread_create(&lanes[i].driver, NULL, drive, &lanes[i]) != 0) {
            bench_fail("no thread");
        }
    }
    uint64_t operations = 0;
    uint64_t checksum = 0;
    for (size_t i = 0; i < lane_count; i++) {
        pthread_join(lanes[i].driver, NULL);
        operations += lanes[i].operations;
        checksum = bench_fold(checksum, lanes[i].checksum);
    }
    double seconds = bench_now() - start;

    bench_close(operations, seconds, checksum);
    return 0;
}

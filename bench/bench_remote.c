/* Producers and consumers: every block is freed by another thread than the one that allocated it.
 *
 *     bench_remote THREADS SECONDS SIZE
 *
 * THREADS threads (made even) form pairs with a queue of 1024 blocks each: one allocates blocks of SIZE bytes and
 * writes them, the other reads and frees them. One operation is one malloc or one free. The checksum folds the
 * arguments and the number of blocks that arrived damaged.
 */
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { QUEUE_COUNT = 1024 };

/* put_count - taken_count <= QUEUE_COUNT; block number n is in slot n % QUEUE_COUNT. */
struct pair {
    _Alignas(64) atomic_size_t put_count;   /* producer; releases the slot to the consumer */
    _Alignas(64) atomic_size_t taken_count; /* consumer; releases the slot to the producer */
    uint64_t damaged_count;                 /* consumer */
    _Alignas(64) void *blocks[QUEUE_COUNT];
    pthread_t producer;
    pthread_t consumer;
};

static size_t block_bytes;
static atomic_bool stopping;
static atomic_bool all_put;

static void *produce(void *argument) {
    struct pair *pair = argument;
    size_t taken = 0; /* as last seen */
    for (size_t number = 0; !atomic_load_explicit(&stopping, memory_order_relaxed);) {
        if (number - taken == QUEUE_COUNT) {
            taken = atomic_load_explicit(&pair->taken_count, memory_order_acquire); /* pairs with consume's release */
            if (number - taken == QUEUE_COUNT) {
                sched_yield();
            }
            continue;
        }
        void *block = bench_allocate(block_bytes);
        bench_touch(block, block_bytes, (uint8_t)number);
        pair->blocks[number % QUEUE_COUNT] = block;
        number++;
        atomic_store_explicit(&pair->put_count, number, memory_order_release); /* pairs with consume's acquire */
    }
    return NULL;
}

static void *consume(void *argument) {
    struct pair *pair = argument;
    size_t put = 0; /* as last seen */
    for (size_t number = 0;;) {
        if (number == put) {
            bool last_look = atomic_load_explicit(&all_put, memory_order_acquire); /* pairs with main's release */
            put = atomic_load_explicit(&pair->put_count, memory_order_acquire);    /* pairs with produce's release */
            if (number == put) {
                if (last_look) {
                    return NULL;
                }
                sched_yield();
            }
            continue;
        }
        void *block = pair->blocks[number % QUEUE_COUNT];
        pair->damaged_count += !bench_holds(block, block_bytes, (uint8_t)number);
        free(block);
        number++;
        atomic_store_explicit(&pair->taken_count, number, memory_order_release); /* pairs with produce's acquire */
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 3, "bench_remote THREADS SECONDS SIZE");
    size_t pair_count = (bench_number(argv[1], 1) + 1) / 2;
    double duration = bench_seconds(argv[2]);
    block_bytes = bench_number(argv[3], 1);
    struct pair *pairs = bench_map(pair_count, sizeof *pairs);

    double start = bench_now();
    for (size_t i = 0; i < pair_count; i++) {
        if (pthread_create(&pairs[i].consumer, NULL, consume, &pairs[i]) != 0 ||
            pthread_create(&pairs[i].producer, NULL, produce, &pairs[i]) != 0) {
            bench_fail("no thread");
        }
    }
    bench_sleep(duration);
    atomic_store_explicit(&stopping, true, memory_order_relaxed);
    for (size_t i = 0; i < pair_count; i++) {
        pthread_join(pairs[i].producer, NULL);
    }
    atomic_store_explicit(&all_put, true, memory_order_release); /* pairs with consume's acquire */
    uint64_t block_count = 0;
    uint64_t damaged_count = 0;
    for (size_t i = 0; i < pair_count; i++) {
        pthread_join(pairs[i].consumer, NULL);
        block_count += atomic_load_explicit(&pairs[i].taken_count, memory_order_relaxed);
        damaged_count += pairs[i].damaged_count;
    }
    double seconds = bench_now() - start;

    uint64_t checksum = bench_fold(bench_fold(pair_count, block_bytes), damaged_count);
    bench_close(2 * block_count, seconds, checksum);
    return 0;
}

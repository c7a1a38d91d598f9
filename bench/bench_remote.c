/* Producers and consumers: every block is freed by another thread than the one that allocated it.
 *
 *     bench_remote THREADS SECONDS SIZE [BATCH]
 *
 * THREADS threads (made even) form pairs with a queue of 1024 blocks each: one allocates blocks of SIZE bytes and writes
 * them, the other reads and frees them, BATCH at a time (128): a power of two, at most 1024. One operation is one malloc or
 * one free. The checksum folds the arguments and the number of blocks that arrived damaged.
 *
 * The two threads of a pair are bound to different CPUs, in turn over all that the process may use, so that blocks travel in every
 * run, or in none: the figure cpus says over how many. Who waits looks again for some microseconds before the CPU
 * is given up, if there is a second one. Handed over one at a time, blocks measure the queue: a counter travels with each
 * of them, and whoever is ahead waits for the other.
 */
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { QUEUE_COUNT = 1024, USUAL_BATCH = 128, LOOKS_BEFORE_YIELD = 256 };

/* put_count - taken_count <= QUEUE_COUNT; block number n is in slot n % QUEUE_COUNT. Both counts are whole batches. */
struct pair {
    _Alignas(64) atomic_size_t put_count;   /* producer; releases the slots to the consumer */
    _Alignas(64) atomic_size_t taken_count; /* consumer; releases the slots to the producer */
    uint64_t damaged_count;                 /* consumer */
    _Alignas(64) void *blocks[QUEUE_COUNT];
    size_t number;
    pthread_t producer;
    pthread_t consumer;
};

/* Constant while the pairs run. */
static size_t block_bytes;
static size_t batch_count;
static unsigned looks_before_yield;
static cpu_set_t usable;

static atomic_bool stopping;
static atomic_bool all_put;

static inline void pause_briefly(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Nothing has changed since the last look, the `looks`th in a row. */
static void wait_to_look_again(unsigned *looks) {
    if ((*looks)++ < looks_before_yield) {
        pause_briefly();
    } else {
        sched_yield();
    }
}

/* The calling thread to the `turn`th CPU, over and over again. */
static void bind_to_cpu(size_t turn) {
    size_t left = turn % (size_t)CPU_COUNT(&usable);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &usable) || left-- > 0) {
        cpu++;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        bench_fail("a thread can't be bound to a CPU");
    }
}

static void *produce(void *argument) {
    struct pair *pair = argument;
    bind_to_cpu(2 * pair->number);
    size_t taken = 0; /* as last seen */
    unsigned looks = 0;
    for (size_t number = 0; number == 0 || !atomic_load_explicit(&stopping, memory_order_relaxed);) {
        if (number - taken == QUEUE_COUNT) {
            taken = atomic_load_explicit(&pair->taken_count, memory_order_acquire); /* pairs with consume's release */
            if (number - taken == QUEUE_COUNT) {
                wait_to_look_again(&looks);
            }
            continue;
        }
        looks = 0;
        for (size_t end = number + batch_count; number < end; number++) {
            void *block = bench_allocate(block_bytes);
            bench_touch(block, block_bytes, (uint8_t)number);
            pair->blocks[number % QUEUE_COUNT] = block;
        }
        atomic_store_explicit(&pair->put_count, number, memory_order_release); /* pairs with consume's acquire */
    }
    return NULL;
}

static void *consume(void *argument) {
    struct pair *pair = argument;
    bind_to_cpu(2 * pair->number + 1);
    size_t put = 0; /* as last seen */
    unsigned looks = 0;
    for (size_t number = 0;;) {
        if (number == put) {
            bool last_look = atomic_load_explicit(&all_put, memory_order_acquire); /* pairs with main's release */
            put = atomic_load_explicit(&pair->put_count, memory_order_acquire);    /* pairs with produce's release */
            if (number == put) {
                if (last_look) {
                    return NULL;
                }
                wait_to_look_again(&looks);
            }
            continue;
        }
        looks = 0;
        for (size_t end = number + batch_count; number < end; number++) {
            void *block = pair->blocks[number % QUEUE_COUNT];
            pair->damaged_count += !bench_holds(block, block_bytes, (uint8_t)number);
            free(block);
        }
        atomic_store_explicit(&pair->taken_count, number, memory_order_release); /* pairs with produce's acquire */
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 4, "bench_remote THREADS SECONDS SIZE [BATCH]");
    size_t pair_count = (bench_number(argv[1], 1) + 1) / 2;
    double duration = bench_seconds(argv[2]);
    block_bytes = bench_number(argv[3], 1);
    batch_count = argc > 4 ? bench_number_between(argv[4], 1, QUEUE_COUNT) : USUAL_BATCH;
    if ((batch_count & (batch_count - 1)) != 0) {
        bench_refuse("'%s' is not a power of two", argv[4]);
    }
    struct pair *pairs = bench_map(pair_count, sizeof *pairs);
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
        bench_fail("more CPUs than a set has room for");
    }
    looks_before_yield = CPU_COUNT(&usable) > 1 ? LOOKS_BEFORE_YIELD : 0;

    double start = bench_now();
    for (size_t i = 0; i < pair_count; i++) {
        pairs[i].number = i;
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

    bench_figure("cpus", CPU_COUNT(&usable), "count");
    uint64_t checksum = bench_fold(bench_fold(pair_count, block_bytes), damaged_count);
    bench_close(2 * block_count, seconds, checksum);
    return 0;
}

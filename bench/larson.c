/* A server under load, after P. Larson and M. Krishnan: threads replace blocks, and hand them on when they end.
 *
 *     larson SECONDS MIN MAX CHUNKS ROUNDS SEED THREADS
 *
 * The main thread fills CHUNKS slots for each of THREADS lanes. A lane's thread replaces blocks in random slots,
 * CHUNKS * ROUNDS times; then it starts a thread that goes on with the same slots, and ends. So there are always blocks
 * that another thread allocated, which lives no more. One operation is one replacement: a free and a malloc. A block's
 * bytes depend on its slot only, and so the checksum not on how far the lanes got.
 */
#include "bench.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

struct slot {
    void *block;
    size_t bytes;
};

/* Belongs to the thread that runs it; handed on by pthread_create, and to the main thread by `finished`. */
struct lane {
    _Alignas(64) struct slot *slots;
    struct bench_random random;
    uint64_t operations;
};

/* Constant while the lanes run. */
static struct bench_sizes sizes;
static size_t chunk_count;
static uint64_t life_operations;
static pthread_attr_t detached;

static atomic_bool stopping;
static sem_t finished; /* posted once per lane, by its last thread */

static void fill(struct slot *slot, size_t index, uint64_t draw) {
    slot->bytes = bench_pick_size(draw, sizes);
    slot->block = bench_allocate(slot->bytes);
    bench_touch(slot->block, slot->bytes, (uint8_t)index);
}

static void *run(void *argument);

static void start_thread(struct lane *lane) {
    pthread_t thread;
    if (pthread_create(&thread, &detached, run, lane) != 0) {
        bench_fail("no thread");
    }
}

static void *run(void *argument) {
    struct lane *lane = argument;
    struct bench_random random = lane->random;
    uint64_t done = 0;
    bool stopped = false;
    for (; done < life_operations && !stopped; done++) {
        uint64_t draw = bench_random_next(&random);
        size_t index = bench_pick_index(draw, chunk_count);
        free(lane->slots[index].block);
        fill(&lane->slots[index], index, draw);
        stopped = atomic_load_explicit(&stopping, memory_order_relaxed);
    }
    lane->random = random;
    lane->operations += done;
    if (stopped) {
        sem_post(&finished);
    } else {
        start_thread(lane);
    }
    return NULL;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 7, 7, "larson SECONDS MIN MAX CHUNKS ROUNDS SEED THREADS");
    double duration = bench_seconds(argv[1]);
    sizes = bench_sizes(bench_number(argv[2], 1), bench_number(argv[3], 1));
    chunk_count = bench_number(argv[4], 1);
    life_operations = chunk_count * bench_number(argv[5], 1);
    uint64_t seed = bench_number(argv[6], 0);
    size_t lane_count = bench_number(argv[7], 1);
    struct lane *lanes = bench_map(lane_count, sizeof *lanes);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sem_init(&finished, 0, 0);
    for (size_t i = 0; i < lane_count; i++) {
        lanes[i].slots = bench_map(chunk_count, sizeof *lanes[i].slots);
        lanes[i].random = bench_random_seeded(seed, i);
        for (size_t j = 0; j < chunk_count; j++) {
            fill(&lanes[i].slots[j], j, bench_random_next(&lanes[i].random));
        }
    }

    double start = bench_now();
    for (size_t i = 0; i < lane_count; i++) {
        start_thread(&lanes[i]);
    }
    bench_sleep(duration);
    atomic_store_explicit(&stopping, true, memory_order_relaxed);
    for (size_t i = 0; i < lane_count; i++) {
        while (sem_wait(&finished) != 0) {
        }
    }
    double seconds = bench_now() - start;

    uint64_t operations = 0;
    uint64_t checksum = bench_fold(chunk_count, lane_count);
    for (size_t i = 0; i < lane_count; i++) {
        operations += lanes[i].operations;
        for (size_t j = 0; j < chunk_count; j++) {
            struct slot *slot = &lanes[i].slots[j];
            checksum = bench_fold(checksum, (uint64_t)bench_holds(slot->block, slot->bytes, (uint8_t)j));
            free(slot->block);
        }
    }
    bench_close(operations, seconds, checksum);
    return 0;
}

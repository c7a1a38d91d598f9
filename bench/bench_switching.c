/* A program that changes what it does: six behaviours, one after the other, visited again and again.
 *
 *     bench_switching SECONDS ROUNDS SEED [hot|bulk|handover|buffers|growing|idle]
 *
 * Each of ROUNDS rounds visits every behaviour, or the one that is named, for SECONDS each, in steps that are finished:
 *
 *     hot         one block of 64 bytes, allocated and freed again
 *     bulk        a million blocks of 16..128 bytes are allocated, then all are freed
 *     handover    batches of blocks of 64 bytes are allocated by one thread and freed by another
 *     buffers     eight buffers of 2 MiB, one of which is replaced; all pages are written
 *     growing     a heap grows to 192 MiB in blocks of 16..1040 bytes, then all are freed
 *     idle        of 32 threads one at a time allocates and frees 1 MiB of blocks of 16..4096 bytes, and waits for its next turn
 *
 * One operation is one malloc or one free. Figures, of every visit: cost, processor time of the whole process for an operation;
 * rss, the mean over time of resident memory; peak, the most that was found. They can be compared where the machine is not
 * alone. The checksum folds the arguments and the number of blocks that arrived damaged.
 */
#include "bench.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    HOT_BYTES = 64,
    HOT_STEP = 1 << 18,
    BULK_COUNT = 1000000,
    BATCH_COUNT = 4096,
    BATCHES = 2,
    HANDOVER_STEP = 64, /* batches */
    BUFFER_BYTES = 2 << 20,
    BUFFER_COUNT = 8,
    BUFFER_STEP = 32,
    GROWING_BYTES = 192 << 20,
    GROWING_LEAST_MEAN = 256, /* of its blocks */
    THREADS = 32,
    TURN_BYTES = 1 << 20,
    TURN_LEAST_MEAN = 512,
    TURN_COUNT = TURN_BYTES / TURN_LEAST_MEAN,
    SAMPLE_MS = 10,
};

static struct bench_random random_numbers; /* of the main thread */
static atomic_uint_fast64_t damaged_count;

static void check(const void *block, size_t bytes, uint8_t tag) {
    if (!bench_holds(block, bytes, tag)) {
        atomic_fetch_add_explicit(&damaged_count, 1, memory_order_relaxed);
    }
}

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) {
    }
}

/* ---- The behaviours: a step returns the number of its operations ------------------------------------------------------- */

static uint64_t hot(void) {
    for (size_t i = 0; i < HOT_STEP; i++) {
        void *block = bench_allocate(HOT_BYTES);
        bench_touch(block, HOT_BYTES, (uint8_t)i);
        check(block, HOT_BYTES, (uint8_t)i);
        free(block);
    }
    return 2 * HOT_STEP;
}

/* Blocks of random sizes, at most `most_count` of at most `most_bytes` together, in a table; sizes follow from `random`. */
static size_t fill(void **blocks, size_t most_count, size_t most_bytes, struct bench_sizes sizes,
                   struct bench_random *random) {
    size_t bytes_left = most_bytes;
    size_t count = 0;
    for (; count < most_count; count++) {
        uint64_t draw = bench_random_next(random);
        size_t bytes = bench_pick_size(draw, sizes);
        if (bytes > bytes_left) {
            break;
        }
        bytes_left -= bytes;
        blocks[count] = bench_allocate(bytes);
        bench_touch(blocks[count], bytes, (uint8_t)draw);
    }
    return count;
}

static void empty(void **blocks, size_t count, struct bench_sizes sizes, struct bench_random random) {
    for (size_t i = 0; i < count; i++) {
        uint64_t draw = bench_random_next(&random);
        check(blocks[i], bench_pick_size(draw, sizes), (uint8_t)draw);
        free(blocks[i]);
    }
}

static void **table; /* of the main thread: as many as the largest behaviour needs */

static uint64_t bulk(void) {
    struct bench_sizes sizes = bench_sizes(16, 128);
    struct bench_random before = random_numbers;
    size_t count = fill(table, BULK_COUNT, SIZE_MAX, sizes, &random_numbers);
    empty(table, count, sizes, before);
    return 2 * count;
}

static uint64_t growing(void) {
    struct bench_sizes sizes = bench_sizes(16, 1040);
    struct bench_random before = random_numbers;
    size_t count = fill(table, GROWING_BYTES / GROWING_LEAST_MEAN, GROWING_BYTES, sizes, &random_numbers);
    empty(table, count, sizes, before);
    return 2 * count;
}

static void *buffers[BUFFER_COUNT];

static void drop_buffers(void) {
    for (size_t i = 0; i < BUFFER_COUNT; i++) {
        free(buffers[i]);
        buffers[i] = NULL;
    }
}

static uint64_t replace_buffers(void) {
    for (size_t i = 0; i < BUFFER_STEP; i++) {
        size_t which = bench_pick_index(bench_random_next(&random_numbers), BUFFER_COUNT);
        free(buffers[which]);
        buffers[which] = bench_allocate(BUFFER_BYTES);
        bench_touch_pages(buffers[which], BUFFER_BYTES, (uint8_t)i);
        check(buffers[which], BUFFER_BYTES, (uint8_t)i);
    }
    return 2 * BUFFER_STEP;
}

/* A batch belongs to the main thread once `emptied` was posted for it, to the consumer once `filled` was. */
static void *batches[BATCHES][BATCH_COUNT];
static sem_t filled;
static sem_t emptied;
static bool is_last; /* published by `filled` */
static pthread_t consumer;

static void *consume(void *nothing) {
    for (size_t number = 0;; number++) {
        wait_for(&filled);
        if (is_last) {
            return nothing;
        }
        for (size_t i = 0; i < BATCH_COUNT; i++) {
            void *block = batches[number % BATCHES][i];
            check(block, HOT_BYTES, (uint8_t)i);
            free(block);
        }
        sem_post(&emptied);
    }
}

static void begin_handover(void) {
    sem_init(&filled, 0, 0);
    sem_init(&emptied, 0, BATCHES);
    is_last = false;
    if (pthread_create(&consumer, NULL, consume, NULL) != 0) {
        bench_fail("no thread");
    }
}

static uint64_t hand_over(void) {
    static size_t number;
    for (size_t step = 0; step < HANDOVER_STEP; step++, number++) {
        wait_for(&emptied);
        for (size_t i = 0; i < BATCH_COUNT; i++) {
            void *block = bench_allocate(HOT_BYTES);
            bench_touch(block, HOT_BYTES, (uint8_t)i);
            batches[number % BATCHES][i] = block;
        }
        sem_post(&filled);
    }
    return 2 * HANDOVER_STEP * BATCH_COUNT;
}

static void end_handover(void) {
    for (size_t i = 0; i < BATCHES; i++) {
        wait_for(&emptied);
    }
    is_last = true;
    sem_post(&filled);
    pthread_join(consumer, NULL);
}

/* Between `go` and `done` a worker has the turn; else it waits. */
struct worker {
    _Alignas(64) sem_t go;
    struct bench_random random;
    uint64_t operations; /* of its last turn */
    bool is_ending;
    pthread_t thread;
    void *blocks[TURN_COUNT];
};
static struct worker *workers;
static sem_t done;

static void *take_turns(void *argument) {
    struct worker *worker = argument;
    struct bench_sizes sizes = bench_sizes(16, 4096);
    for (;;) {
        wait_for(&worker->go);
        if (worker->is_ending) {
            return NULL;
        }
        struct bench_random before = worker->random;
        size_t count = fill(worker->blocks, TURN_COUNT, TURN_BYTES, sizes, &worker->random);
        empty(worker->blocks, count, sizes, before);
        worker->operations = 2 * count;
        sem_post(&done);
    }
}

static void begin_turns(void) {
    sem_init(&done, 0, 0);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i].random = bench_random_seeded(bench_random_next(&random_numbers), i);
        workers[i].is_ending = false;
        sem_init(&workers[i].go, 0, 0);
        if (pthread_create(&workers[i].thread, NULL, take_turns, &workers[i]) != 0) {
            bench_fail("no thread");
        }
    }
}

static uint64_t give_turns(void) {
    uint64_t operations = 0;
    for (size_t i = 0; i < THREADS; i++) {
        sem_post(&workers[i].go);
        wait_for(&done);
        operations += workers[i].operations;
    }
    return operations;
}

static void end_turns(void) {
    for (size_t i = 0; i < THREADS; i++) {
        workers[i].is_ending = true;
        sem_post(&workers[i].go);
        pthread_join(workers[i].thread, NULL);
    }
}

static void nothing(void) {}

static const struct behaviour {
    void (*begin)(void);
    uint64_t (*step)(void);
    void (*end)(void);
} behaviours[] = {
    {nothing, hot, nothing},
    {nothing, bulk, nothing},
    {begin_handover, hand_over, end_handover},
    {nothing, replace_buffers, drop_buffers},
    {nothing, growing, nothing},
    {begin_turns, give_turns, end_turns},
};
static const char *const names[] = {"hot", "bulk", "handover", "buffers", "growing", "idle", NULL};
enum { BEHAVIOURS = sizeof behaviours / sizeof *behaviours };

/* ---- What they cost ------------------------------------------------------------------------------------------------ */

static atomic_uint_fast64_t resident_sum; /* of the samples, in KiB */
static atomic_uint_fast64_t sample_count;
static atomic_uint_fast64_t resident_most; /* in KiB, since the visit began */
static atomic_bool is_over;

static void *sample(void *nothing_given) {
    while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
        uint64_t kib = bench_kernel_kib("/proc/self/status", "\nVmRSS:");
        atomic_fetch_add_explicit(&resident_sum, kib, memory_order_relaxed);
        atomic_fetch_add_explicit(&sample_count, 1, memory_order_relaxed);
        if (kib > atomic_load_explicit(&resident_most, memory_order_relaxed)) {
            atomic_store_explicit(&resident_most, kib, memory_order_relaxed);
        }
        bench_sleep(SAMPLE_MS * 1e-3);
    }
    return nothing_given;
}

static double processor_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

struct visit {
    double cost_ns;
    double resident_bytes;
    double peak_bytes;
    uint64_t operations;
};

static struct visit visit(const struct behaviour *behaviour, double duration) {
    struct visit result = {0};
    uint64_t kib_before = atomic_load_explicit(&resident_sum, memory_order_relaxed);
    uint64_t samples_before = atomic_load_explicit(&sample_count, memory_order_relaxed);
    double ns_before = processor_ns();
    atomic_store_explicit(&resident_most, 0, memory_order_relaxed);
    behaviour->begin();
    double start = bench_now();
    while (bench_now() - start < duration) {
        result.operations += behaviour->step();
    }
    behaviour->end();
    uint64_t samples = atomic_load_explicit(&sample_count, memory_order_relaxed) - samples_before;
    uint64_t kib = atomic_load_explicit(&resident_sum, memory_order_relaxed) - kib_before;
    result.cost_ns = (processor_ns() - ns_before) / (double)result.operations;
    result.resident_bytes = samples == 0 ? 0 : (double)kib / (double)samples * 1024 - (double)bench_table_bytes;
    uint64_t most_kib = atomic_load_explicit(&resident_most, memory_order_relaxed);
    result.peak_bytes = most_kib == 0 ? 0 : (double)most_kib * 1024 - (double)bench_table_bytes;
    return result;
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 3, 4, "bench_switching SECONDS ROUNDS SEED [hot|bulk|handover|buffers|growing|idle]");
    double duration = bench_seconds(argv[1]);
    size_t round_count = bench_number_between(argv[2], 1, 10000);
    uint64_t seed = bench_number(argv[3], 0);
    size_t first = argc > 4 ? bench_choice(argv[4], names) : 0;
    size_t last = argc > 4 ? first : BEHAVIOURS - 1;
    size_t count = last - first + 1;
    random_numbers = bench_random_seeded(seed, 0);
    table = bench_map(BULK_COUNT, sizeof *table);
    workers = bench_map(THREADS, sizeof *workers);
    struct visit *visits = bench_map(round_count * count, sizeof *visits);
    pthread_t sampler;
    if (pthread_create(&sampler, NULL, sample, NULL) != 0) {
        bench_fail("no thread");
    }

    double start = bench_now();
    for (size_t i = 0; i < round_count * count; i++) {
        visits[i] = visit(&behaviours[first + i % count], duration);
    }
    double seconds = bench_now() - start;
    atomic_store_explicit(&is_over, true, memory_order_relaxed);
    pthread_join(sampler, NULL);

    uint64_t operations = 0;
    for (size_t i = 0; i < round_count * count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%zu", names[first + i % count], i / count + 1);
        bench_figure_of("cost", name, visits[i].cost_ns, "ns");
        bench_figure_of("rss", name, visits[i].resident_bytes, "bytes");
        bench_figure_of("peak", name, visits[i].peak_bytes, "bytes");
        operations += visits[i].operations;
    }
    bench_close(operations, seconds,
                bench_fold(bench_fold(count, round_count), atomic_load_explicit(&damaged_count, memory_order_relaxed)));
    return 0;
}

/* Is memory given back? A burst of allocations, most of which are freed; and then nothing is called any more.
 *
 *     bench_idle_burst THREADS BYTES FREE_PERCENT IDLE_SECONDS [busy] [trim]
 *
 * THREADS threads allocate BYTES together, in blocks of 16 B .. 64 KiB (log-uniform), write all of their pages, free
 * FREE_PERCENT of them at random, and wait. With busy, they go on to replace their live blocks at random, by others of
 * random sizes. After IDLE_SECONDS, with trim, the main thread calls malloc_trim(0), if the allocator has one; threads
 * that are busy are stopped only after that. One operation is one malloc or one free: of the burst, or, with busy, of
 * the time after it.
 *
 * Figures, at the end of the burst (full), 0, 1, 2, 5, 10 s after the frees and at the end of IDLE_SECONDS, after the
 * trim (trimmed), and of busy threads that were stopped without one (stopped):
 *
 *     rss           resident memory; threads that were busy are stopped for it, and read_delay is the time it took
 *                   since malloc_trim returned
 *     available     what the whole system could still give (MemAvailable)
 *     over_limit    rss over the page limit: bytes of the OS pages that hold a live block, and rss_before
 *
 * also rss_before and available_before, with the threads there and nothing allocated; live, the bytes in blocks that
 * are not freed; page_limit; trims, 0 where there is no malloc_trim, and trim, the time it took.
 */
#include "bench_pages.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct slot {
    void *block;
    uint32_t bytes;
    uint8_t tag;
};

/* Belongs to its thread between meetings, and to the main thread while all others wait for one. */
struct worker {
    _Alignas(64) struct slot *slots; /* the first live_count of them hold a block */
    size_t live_count;
    size_t slot_count;
    size_t keep_count;
    uint64_t operations; /* after the burst */
    struct bench_random random;
    pthread_t thread;
};

struct point {
    char name[16];
    uint64_t resident_bytes;
    uint64_t available_bytes;
    uint64_t limit_bytes; /* 0: nothing was freed yet */
};

enum { MAX_POINT_COUNT = 10 };

/* Constant while there are threads. */
static struct worker *workers;
static size_t worker_count;
static bool busy;
static pthread_barrier_t barrier; /* of all workers and the main thread */

static atomic_bool stopping;
static struct point points[MAX_POINT_COUNT];
static size_t point_count;

static void meet(void) { pthread_barrier_wait(&barrier); }

static void fill(struct worker *worker, struct slot *slot) {
    uint64_t draw = bench_random_next(&worker->random);
    slot->bytes = (uint32_t)bench_pick_log_uniform(draw);
    slot->tag = (uint8_t)(draw >> 8);
    slot->block = bench_allocate(slot->bytes);
    bench_touch_pages(slot->block, slot->bytes, slot->tag);
}

static void burst(struct worker *worker) {
    for (size_t i = 0; i < worker->slot_count; i++) {
        fill(worker, &worker->slots[i]);
    }
    worker->live_count = worker->slot_count;
}

static void free_most(struct worker *worker) {
    for (; worker->live_count > worker->keep_count; worker->live_count--) {
        struct slot *last = &worker->slots[worker->live_count - 1];
        struct slot *slot = &worker->slots[bench_pick_index(bench_random_next(&worker->random), worker->live_count)];
        free(slot->block);
        *slot = *last;
    }
}

static void churn(struct worker *worker) {
    while (worker->live_count > 0 && !atomic_load_explicit(&stopping, memory_order_relaxed)) {
        struct slot *slot = &worker->slots[bench_pick_index(bench_random_next(&worker->random), worker->live_count)];
        free(slot->block);
        fill(worker, slot);
        worker->operations += 2;
    }
}

/* The main thread's steps stand in main, between the same meetings. */
static void *work(void *argument) {
    struct worker *worker = argument;
    meet(); /* all threads are there */
    meet();
    burst(worker);
    meet(); /* full */
    meet();
    free_most(worker);
    meet(); /* freed */
    meet();
    if (busy) {
        churn(worker);
    }
    meet(); /* stopped */
    meet();
    return NULL;
}

/* How many blocks it takes to reach the bytes: `random` will draw the same again. */
static size_t count_blocks(uint64_t bytes_wanted, struct bench_random random) {
    size_t count = 0;
    for (uint64_t bytes = 0; bytes < bytes_wanted; count++) {
        bytes += bench_pick_log_uniform(bench_random_next(&random));
    }
    return count;
}

static void start_workers(uint64_t bytes_wanted, uint64_t free_percent) {
    workers = bench_map(worker_count, sizeof *workers);
    pthread_barrier_init(&barrier, NULL, (unsigned)worker_count + 1);
    for (size_t i = 0; i < worker_count; i++) {
        struct worker *worker = &workers[i];
        worker->random = bench_random_seeded(1, i);
        worker->slot_count = count_blocks(bytes_wanted / worker_count, worker->random);
        worker->keep_count = worker->slot_count - worker->slot_count * free_percent / 100;
        worker->slots = bench_map(worker->slot_count, sizeof *worker->slots);
        if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
            bench_fail("no thread");
        }
    }
}

static uint64_t live_page_bytes(void) {
    size_t span_count = 0;
    for (size_t i = 0; i < worker_count; i++) {
        for (size_t j = 0; j < workers[i].live_count; j++) {
            span_count += bench_pages_spanned(workers[i].slots[j].bytes);
        }
    }
    struct bench_pages pages = bench_pages_create(span_count);
    for (size_t i = 0; i < worker_count; i++) {
        for (size_t j = 0; j < workers[i].live_count; j++) {
            bench_pages_add(&pages, workers[i].slots[j].block, workers[i].slots[j].bytes);
        }
    }
    return bench_pages_finish(&pages);
}

/* Reads first, so that nothing that it does itself is in the figures. */
static struct point *look(const char *name) {
    struct point *point = &points[point_count++];
    point->resident_bytes = bench_resident_bytes();
    point->available_bytes = bench_available_bytes();
    snprintf(point->name, sizeof point->name, "%s", name);
    return point;
}

static void idle(double seconds, uint64_t limit_bytes) {
    static const double moments[] = {1, 2, 5, 10};
    double start = bench_now();
    for (size_t i = 0; i <= sizeof moments / sizeof *moments; i++) {
        bool last = i == sizeof moments / sizeof *moments || moments[i] >= seconds;
        double moment = last ? seconds : moments[i];
        double left = start + moment - bench_now();
        if (left > 0) {
            bench_sleep(left);
        }
        char name[16];
        snprintf(name, sizeof name, "%gs", moment);
        look(name)->limit_bytes = limit_bytes;
        if (last) {
            return;
        }
    }
}

/* The allocator's own malloc_trim; not that of a C library whose malloc is another. */
static int (*find_trim(void))(size_t) {
    int (*trim)(size_t) = NULL;
    *(void **)&trim = dlsym(RTLD_DEFAULT, "malloc_trim");
    return trim && strcmp(bench_file_of("malloc_trim"), bench_allocator()) == 0 ? trim : NULL;
}

static void report(const struct point *point) {
    bench_figure_of("rss", point->name, (double)point->resident_bytes, "bytes");
    bench_figure_of("available", point->name, (double)point->available_bytes, "bytes");
    if (point->limit_bytes > 0) {
        bench_figure_of("over_limit", point->name, (double)point->resident_bytes / (double)point->limit_bytes, "x");
    }
}

int main(int argc, char **argv) {
    bench_expect_arguments(argc, 4, 6, "bench_idle_burst THREADS BYTES FREE_PERCENT IDLE_SECONDS [busy] [trim]");
    worker_count = bench_number_between(argv[1], 1, 1024);
    uint64_t bytes_wanted = bench_number(argv[2], 1);
    uint64_t free_percent = bench_number_between(argv[3], 0, 100);
    double idle_seconds = bench_seconds(argv[4]);
    bool trims = false;
    for (int i = 5; i < argc; i++) {
        *(bench_choice(argv[i], (const char *const[]){"busy", "trim", NULL}) == 0 ? &busy : &trims) = true;
    }
    int (*trim)(size_t) = trims ? find_trim() : NULL;
    start_workers(bytes_wanted, free_percent);
    meet();
    struct point before = *look("before");

    double start = bench_now();
    meet();
    meet();
    double seconds = bench_now() - start;
    look("full");
    start = bench_now();
    meet();
    meet();
    seconds += bench_now() - start;

    struct point *freed = look("0s");
    uint64_t limit_bytes = live_page_bytes() + before.resident_bytes;
    freed->limit_bytes = limit_bytes;
    double churn_start = bench_now();
    meet();
    if (busy) {
        bench_sleep(idle_seconds);
    } else {
        idle(idle_seconds, limit_bytes);
    }
    start = bench_now();
    if (trim) {
        trim(0);
    }
    double trimmed = bench_now();
    atomic_store_explicit(&stopping, true, memory_order_relaxed);
    meet();
    double churn_seconds = bench_now() - churn_start;
    double read_delay = 0;
    if (trim || busy) {
        struct point *last = look(trim ? "trimmed" : "stopped");
        read_delay = bench_now() - trimmed;
        limit_bytes = live_page_bytes() + before.resident_bytes;
        last->limit_bytes = limit_bytes;
    }
    meet();

    for (size_t i = 0; i < point_count; i++) {
        report(&points[i]);
    }
    if (trims) {
        bench_figure("trims", trim ? 1 : 0, "count");
        bench_figure("trim", trimmed - start, "s");
    }
    if (trim || busy) {
        bench_figure("read_delay", read_delay, "s");
    }
    uint64_t live_bytes = 0;
    uint64_t operations = 0;
    uint64_t churn_operations = 0;
    uint64_t checksum = 0;
    for (size_t i = 0; i < worker_count; i++) {
        const struct worker *worker = &workers[i];
        pthread_join(worker->thread, NULL);
        for (size_t j = 0; j < worker->live_count; j++) {
            const struct slot *slot = &worker->slots[j];
            live_bytes += slot->bytes;
            checksum = bench_fold(checksum, (uint64_t)bench_holds(slot->block, slot->bytes, slot->tag));
            free(slot->block);
        }
        operations += 2 * worker->slot_count - worker->keep_count;
        churn_operations += worker->operations;
    }
    bench_figure("live", (double)live_bytes, "bytes");
    bench_figure("page_limit", (double)limit_bytes, "bytes");
    bench_close(busy ? churn_operations : operations, busy ? churn_seconds : seconds, checksum);
    return 0;
}

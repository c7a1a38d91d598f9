/* front/meter.h: what is counted while malloc is metered, against programs whose truth is known: allocations, what is live,
 * and the peak, by class; and that counts and samples stay right when rations are drained, given back, or left by threads. */
#include "heap_fixture.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "front/meter.h"
#include "front/routes.h"
#include "front/thread.h"
#include "pool/drain.h"
#include "pool/ration.h"

#define NO_SAMPLES ((uint64_t)1 << 40) /* from one to the next */

static bool is_metered(void) { return hak_routes_bin_of(16) > HAK_SMALL_CLASS_COUNT; }

static void start(uint64_t interval_bytes, uint64_t seed) {
    hak_profile_seed(seed);
    assert_true(hak_meter_start(interval_bytes));
}

/* ---- What is written --------------------------------------------------------------------------------------------- */

struct counts {
    uint64_t allocations, live, peak; /* blocks */
    uint64_t weight, bytes, freed_weight, freed_bytes, peak_weight, peak_bytes, unsampled, peak_unsampled;
};
struct large_counts {
    uint64_t bytes, memory, live_bytes, peak_bytes;
};

static const char *written(void) {
    fake_os_forget();
    assert_int_equal(hak_profile_write(1), 0);
    return fake_os.output;
}

static uint64_t figure_of(const char *name) {
    const char *line = strstr(written(), name);
    assert_non_null(line);
    return strtoull(line + strlen(name), NULL, 10);
}

/* Of the blocks of one size; 0: large objects. */
static struct counts counts_of(unsigned block_bytes) {
    struct counts counts = {0};
    char begin[32];
    snprintf(begin, sizeof begin, "\nclass %u ", block_bytes);
    const char *line = strstr(written(), begin);
    if (line == NULL) return counts;
    char *at = fake_os.output + (line - fake_os.output) + strlen(begin);
    for (uint64_t *count = &counts.allocations; count <= &counts.peak_unsampled; count++)
        *count = strtoull(at, &at, 10);
    return counts;
}

static struct large_counts large_counts(void) {
    struct large_counts counts;
    const char *line = strstr(written(), "\nlarge ");
    assert_non_null(line);
    assert_int_equal(
        sscanf(line, "\nlarge %lu %lu %lu %lu", &counts.bytes, &counts.memory, &counts.live_bytes, &counts.peak_bytes),
        4);
    return counts;
}

/* ---- Small blocks ------------------------------------------------------------------------------------------------ */

enum { MOST = 20000 };
static void *blocks[MOST];

static void allocate(size_t size, int count) {
    for (int i = 0; i < count; i++) blocks[i] = hak_malloc(size);
}
static void free_all(int count) {
    for (int i = 0; i < count; i++) hak_free(blocks[i]);
}

/* To the block, whatever is between: pairs that come from bins, blocks that stay, frees in any order, and samples. */
static void each_block_is_counted(void **state) {
    (void)state;
    static const uint64_t intervals[] = {NO_SAMPLES, 4096, 1};
    static const unsigned sizes[] = {16, 112, 1024, 4096, 32768};
    for (size_t k = 0; k < sizeof intervals / sizeof intervals[0]; k++) {
        start(intervals[k], 1 + k);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            int count = sizes[i] > 4000 ? 300 : 3000;
            struct counts before = counts_of(sizes[i]);
            for (int round = 0; round < 3; round++) {
                for (int pair = 0; pair < 777; pair++) hak_free(hak_malloc(sizes[i]));
                allocate(sizes[i], count);
                struct counts now = counts_of(sizes[i]);
                assert_int_equal(now.allocations - before.allocations, (round + 1) * (777 + count));
                assert_int_equal(now.live, count);
                free_all(count);
            }
            assert_int_equal(counts_of(sizes[i]).live, 0);
            assert_int_equal(counts_of(sizes[i]).peak >= (uint64_t)count,
                             sizes[i] * (unsigned)count >= figure_of("noted_bytes "));
        }
    }
    static struct hak_snapshot snapshot;
    check_equations(&snapshot);
}

/* The samples of the peak are those that were live then, whatever shared their blocks' size before and after. */
static void sizes_at_the_peak(void **state) {
    (void)state;
    start(1024, 1);
    for (int round = 0; round < 3; round++) {
        bool is_highest = round == 1;
        allocate(is_highest ? 97 : 112, is_highest ? 4000 : 2000);
        free_all(is_highest ? 4000 : 2000);
    }
    struct counts now = counts_of(112);
    assert_true(now.peak_weight > 0);
    assert_true(fabs((double)now.peak_bytes * 1024 / (double)now.peak_weight - 97) < 0.5);
    assert_true((double)now.bytes * 1024 / (double)now.weight > 101);
}

/* Allocated before the profile: live, and not counted as allocations. What was live at its start is told. */
static void switched_on_late(void **state) {
    (void)state;
    allocate(112, 1000);
    void *large = hak_malloc(100 << 10);
    start(4096, 1);
    for (int i = 0; i < 50; i++) hak_free(hak_malloc(112));
    struct counts now = counts_of(112);
    assert_int_equal(now.allocations, 50);
    assert_int_equal(now.live, 1000);
    assert_int_equal(now.unsampled, 1000);
    assert_int_equal(counts_of(0).unsampled, 1);
    assert_int_equal(figure_of("unsampled_large_bytes "), 100 << 10);
    assert_int_equal(large_counts().live_bytes, 100 << 10);
    hak_free(large);
    assert_int_equal(large_counts().live_bytes, 0);
    free_all(1000);
    assert_int_equal(counts_of(112).live, 0);
}

/* Off, and on again: what happened meanwhile is live or gone, and no allocation. */
static void off_and_on(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    start(4096, 1);
    allocate(64, 500);
    hak_meter_stop();
    assert_false(is_metered());
    free_all(500);
    allocate(64, 700);
    void *large = hak_malloc(200000);
    fake_os.clock_ms += 3000;
    assert_true(large_counts().live_bytes >= 200000);
    assert_int_equal(counts_of(64).live, 700);
    assert_non_null(strstr(written(), "\nis_off\n"));
    assert_int_equal(figure_of("interval_bytes "), 4096);
    assert_int_equal(figure_of("off_ms "), 3000);
    void *other = hak_malloc(300000);
    start(4096, 2);
    assert_true(is_metered());
    fake_os.clock_ms += 3000;
    assert_null(strstr(written(), "\nis_off\n"));
    assert_int_equal(figure_of("off_ms "), 3000);
    struct counts now = counts_of(64);
    assert_int_equal(now.allocations, 500);
    assert_int_equal(now.live, 700);
    assert_int_equal(now.unsampled, 700);
    assert_true(figure_of("unsampled_large_bytes ") >= 500000);
    assert_true(large_counts().live_bytes >= 500000);
    hak_free(other);
    hak_free(large);
    assert_int_equal(large_counts().live_bytes, 0);
    free_all(700);
}

/* What is left of rations goes back at the next miss after the profile is off. */
static void rations_are_given_back(void **state) {
    (void)state;
    start(NO_SAMPLES, 1);
    void *block = hak_malloc(64);
    assert_true(hak_ration_count(hak_thread_heap, 4) > 0);
    hak_meter_stop();
    for (int i = 0; i < 200; i++) blocks[i] = hak_malloc(48); /* some of these miss */
    assert_int_equal(hak_ration_count(hak_thread_heap, 4), 0);
    assert_int_equal(hak_owned_peek(&hak_thread_heap->metered[4]), 1);
    hak_free(block);
    free_all(200);
}

/* A free of a sampled block finds the ration full, and empty: it misses, and the block goes to its slab. */
static void sampled_blocks_stay_apart(void **state) {
    (void)state;
    start(512, 1);
    for (int round = 0; round < 20000; round++) {
        void *block = hak_malloc(100);
        struct hak_place place = hak_region_find((uintptr_t)block);
        size_t cached = hak_ration_count(hak_thread_heap, hak_plain_class(place.size_class));
        hak_free(block);
        if (place.size_class <= HAK_SMALL_CLASS_COUNT) continue;
        assert_int_equal(hak_ration_count(hak_thread_heap, hak_plain_class(place.size_class)), cached);
    }
}

/* A pair again and again misses once for a ration, though its bin has two blocks in the beginning. */
static void pairs_hit(void **state) {
    (void)state;
    start(NO_SAMPLES, 1);
    allocate(64, 62);
    uint64_t before = hak_thread_heap->slow_paths;
    for (int i = 0; i < 6400; i++) hak_free(hak_malloc(64));
    assert_in_range(hak_thread_heap->slow_paths - before, 50, 6400 / 16);
    free_all(62);
}

static void *allocate_elsewhere(void *count) {
    void **last = NULL;
    for (int i = 0; i < *(int *)count; i++) {
        void **block = hak_malloc(256);
        *block = last;
        last = block;
    }
    return last;
}

static int free_list(void **last) {
    int count = 0;
    for (void **next; last != NULL; last = next, count++) {
        next = *last;
        hak_free(last);
    }
    return count;
}

/* A thread that ends leaves its ration; another one frees what it made. */
static void threads_that_end(void **state) {
    (void)state;
    enum { THREADS = 20 };
    start(65536, 1);
    int each = 1001;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        void *last;
        assert_int_equal(pthread_create(&thread, NULL, allocate_elsewhere, &each), 0);
        assert_int_equal(pthread_join(thread, &last), 0);
        struct counts now = counts_of(256);
        assert_int_equal(now.allocations, (i + 1) * each);
        assert_int_equal(now.live, each);
        assert_int_equal(free_list(last), each);
    }
    assert_int_equal(counts_of(256).live, 0);
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stage;
} turns = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void go_to(int stage) {
    pthread_mutex_lock(&turns.lock);
    turns.stage = stage;
    pthread_cond_broadcast(&turns.changed);
    pthread_mutex_unlock(&turns.lock);
}
static void wait_for(int stage) {
    pthread_mutex_lock(&turns.lock);
    while (turns.stage < stage) pthread_cond_wait(&turns.changed, &turns.lock);
    pthread_mutex_unlock(&turns.lock);
}

static void *allocate_twice(void *nothing) {
    for (int i = 0; i < 10; i++) blocks[i] = hak_malloc(200);
    go_to(1);
    wait_for(2);
    for (int round = 0; round < 3; round++) hak_purge(); /* what was left goes back, once */
    go_to(3);
    wait_for(4);
    for (int i = 10; i < 30; i++) blocks[i] = hak_malloc(200);
    go_to(5);
    wait_for(6);
    for (int round = 0; round < 3; round++) blocks[30 + round] = hak_malloc(200), hak_purge();
    return nothing;
}

static void purge_and_expect(uint64_t allocations) {
    for (int i = 0; i < 3; i++) {
        hak_purge();
        struct counts now = counts_of(208);
        assert_int_equal(now.allocations, allocations);
        assert_int_equal(now.live, allocations);
    }
}

/* The rest of a ration is taken from a thread that does nothing, which purges then itself. */
static void drained_by_another_thread(void **state) {
    (void)state;
    pthread_t thread;
    start(NO_SAMPLES, 1);
    assert_int_equal(pthread_create(&thread, NULL, allocate_twice, NULL), 0);
    wait_for(1);
    purge_and_expect(10);
    go_to(2);
    wait_for(3);
    purge_and_expect(10);
    go_to(4);
    wait_for(5);
    purge_and_expect(30);
    go_to(6);
    assert_int_equal(pthread_join(thread, NULL), 0);
    purge_and_expect(33);
    free_all(33);
    assert_int_equal(counts_of(208).live, 0);
    static struct hak_snapshot snapshot;
    check_equations(&snapshot);
}

/* Who can't have a heap is counted, too, and sampled by chance. */
static void *without_heap(void *nothing) {
    hak_thread_refuse_heap();
    for (int i = 0; i < 2000; i++) hak_free(hak_malloc(256));
    return nothing;
}

static void threads_without_a_heap(void **state) {
    (void)state;
    start(4096, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, without_heap, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    struct counts now = counts_of(256);
    assert_int_equal(now.allocations, 2000);
    assert_int_equal(now.live, 0);
    assert_true(fabs((double)now.weight / 1024 / 2000 - 1) < 0.4); /* some 120 samples */
    assert_int_equal(now.weight, now.freed_weight);
}

/* ---- Large objects ----------------------------------------------------------------------------------------------- */

static void large_objects(void **state) {
    (void)state;
    start(NO_SAMPLES, 1);
    static const size_t sizes[] = {40000, 300000, 3 << 20, 40 << 20};
    uint64_t bytes = 0, count = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *block = hak_malloc(sizes[i]);
        bytes += sizes[i], count++;
        uint64_t live = large_counts().live_bytes;
        assert_in_range(live, sizes[i], sizes[i] + sizes[i] / 50 + 65536);
        block = hak_realloc(block, 2 * sizes[i]);
        bytes += 2 * sizes[i], count++;
        assert_in_range(large_counts().live_bytes, 2 * sizes[i], 2 * sizes[i] + sizes[i] / 50 + 65536);
        assert_int_equal(counts_of(0).live, 1);
        hak_free(block);
        assert_int_equal(large_counts().live_bytes, 0);
    }
    assert_int_equal(large_counts().bytes, bytes);
    assert_int_equal(counts_of(0).allocations, count);
    assert_int_equal(counts_of(0).live, 0);
    assert_in_range(large_counts().peak_bytes, 80 << 20, (80 << 20) + 65536);
}

/* ---- The peak ---------------------------------------------------------------------------------------------------- */

/* Whatever the interval is: the peak is counted, and found though nobody writes a profile then. */
static void peak(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        start(round == 0 ? NO_SAMPLES : 512, 1);
        allocate(1024, MOST / 2);
        free_all(MOST / 2);
        for (int i = 0; i < 10000; i++) hak_free(hak_malloc(1024));
        double truth = MOST / 2 * 1024.0;
        assert_true(fabs((double)figure_of("most_bytes ") / truth - 1) < 0.02);
        assert_true(fabs((double)counts_of(1024).peak / (MOST / 2) - 1) < 0.04);
        hak_meter_stop();
    }
}

/* What a drainer is about to give back is not live, though it is in no bin: who looks then looks again. */
static void peak_while_a_heap_is_drained(void **state) {
    (void)state;
    pthread_t thread;
    struct hak_drain drain = {.first_taken = NULL};
    start(NO_SAMPLES, 1);
    hak_free(hak_malloc(200));
    hak_free(hak_malloc(100 << 10));
    assert_int_equal(pthread_create(&thread, NULL, allocate_twice, NULL), 0);
    wait_for(1);
    uint64_t before = hak_profile_look().peak_bytes;
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (heap != hak_thread_heap) assert_true(hak_heap_begin_drain(heap, &drain));
    for (struct hak_heap *heap = drain.first_taken; heap != NULL; heap = heap->next_taken) {
        struct hak_bin *ration = &heap->bins[hak_sampled_class(hak_class_of_block(208))];
        void **base = hak_atomic_load(&ration->base, relaxed);
        hak_atomic_store(&ration->base, hak_owned_peek(&ration->top), relaxed); /* as between its fences */
        assert_int_equal(hak_profile_look().peak_bytes, before);
        hak_atomic_store(&ration->base, base, relaxed);
    }
    assert_true(hak_heap_drain_taken(&drain));
    hak_heap_end_drains(&drain);
    go_to(2), wait_for(3), go_to(4), wait_for(5), go_to(6);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* A small heap that a program goes round in: its peak is not the highest of guesses. */
static void peak_of_a_small_heap(void **state) {
    (void)state;
    enum { SLOTS = 4096 };
    uint64_t random = 3, live = 0, most = 0;
    static uint64_t sizes[SLOTS];
    start(512 << 10, 1);
    for (int i = 0; i < 1000000; i++) {
        uint64_t pick = unit_random(&random);
        uint32_t slot = pick % SLOTS;
        hak_free(blocks[slot]);
        size_t size = 16 + (pick >> 32) % 1008;
        blocks[slot] = hak_malloc(size);
        live += hak_malloc_usable_size(blocks[slot]) - sizes[slot];
        sizes[slot] = hak_malloc_usable_size(blocks[slot]);
        if (live > most) most = live;
    }
    double told = (double)figure_of("most_bytes ");
    assert_true(told <= (double)most && told > (double)most * 0.98);
    free_all(SLOTS);
    memset(blocks, 0, sizeof blocks);
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Drained after each few blocks, when most of a ration is given back: samples come neither sooner nor later for it. */
static void samples_of_drained_rations(void **state) {
    (void)state;
    enum { PROGRAMS = 60, BLOCKS = 2000, INTERVAL = 4096, BYTES = 64 };
    double sum = 0, expected = (double)PROGRAMS * BLOCKS;
    for (int program = 0; program < PROGRAMS; program++) {
        start(INTERVAL, 100 + (uint64_t)program);
        uint64_t before = counts_of(BYTES).weight;
        for (int i = 0; i < BLOCKS; i++) {
            hak_free(hak_malloc(BYTES));
            if (i % 3 == 0) hak_purge();
        }
        sum += (double)(counts_of(BYTES).weight - before) / 1024;
        hak_meter_stop();
        hak_free(hak_malloc(BYTES));
        hak_purge();
    }
    assert_int_equal(counts_of(BYTES).allocations, PROGRAMS * BLOCKS);
    double p = -expm1(-(double)BYTES / INTERVAL), deviation = sqrt(expected * (1 - p) / p);
    if (fabs(sum - expected) > 4 * deviation) fail_msg("%.0f, truth %.0f, deviation %.0f", sum, expected, deviation);
}

/* Over many programs the mean is the truth, for sizes from a fraction of the interval to many times as much. */
static void samples_are_unbiased(void **state) {
    (void)state;
    enum { PROGRAMS = 100, INTERVAL = 16 << 10 };
    static const size_t sizes[] = {48, 1000, 30000, 100000};
    start(INTERVAL, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i];
        unsigned block_bytes =
            size > HAK_SMALL_MAX ? 0 : (unsigned)hak_size_classes[hak_routes_class_of(size)].block_bytes;
        int each = size > 10000 ? 50 : 2000;
        double sum = 0, expected = (double)PROGRAMS * each;
        for (int program = 0; program < PROGRAMS; program++) {
            start(INTERVAL, 1 + (uint64_t)program);
            uint64_t before = counts_of(block_bytes).weight;
            for (int n = 0; n < each; n++) hak_free(hak_malloc(size));
            sum += (double)(counts_of(block_bytes).weight - before) / 1024;
            hak_meter_stop();
        }
        double bytes = block_bytes == 0 ? (double)size : block_bytes;
        double p = -expm1(-bytes / INTERVAL), deviation = sqrt(expected * (1 - p) / p);
        if (fabs(sum - expected) > 3 * deviation + expected / 1000)
            fail_msg("%zu bytes: %.0f, truth %.0f, deviation %.0f", size, sum, expected, deviation);
    }
}

/* A tracer attaches and detaches: the profile goes with it, but for one that somebody has switched on. */
static void tracers(void **state) {
    (void)state;
    hak_free(hak_malloc(16));
    for (int round = 0; round < 6; round++) {
        bool has_tracer = round % 2 == 0, is_asked = round >= 2;
        if (round == 3) hak_atomic_store(&hak_probe_alloc_semaphore, 2, relaxed); /* one of two leaves */
        hak_atomic_store(&hak_probe_alloc_semaphore, has_tracer, relaxed);
        if (round == 2) assert_true(hak_meter_start(4096));
        for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
        for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
        assert_int_equal(hak_profile_is_on(), has_tracer || is_asked);
        assert_int_equal(is_metered(), has_tracer || is_asked);
        if (round == 5) hak_meter_stop();
    }
    assert_false(hak_profile_is_on());
    hak_atomic_store(&hak_probe_alloc_semaphore, 1, relaxed);
    for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
    assert_true(hak_profile_is_on());
    hak_meter_stop(); /* the tracer is still there */
    for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
    for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
    assert_true(hak_profile_is_on());
    hak_atomic_store(&hak_probe_alloc_semaphore, 0, relaxed);
    for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
    hak_free(hak_malloc(1 << 20)); /* a large one looks as well */
    assert_false(hak_profile_is_on());
}

UNIT_MAIN(cmocka_unit_test(sizes_at_the_peak), cmocka_unit_test(switched_on_late),
          cmocka_unit_test(each_block_is_counted), cmocka_unit_test(off_and_on),
          cmocka_unit_test(rations_are_given_back), cmocka_unit_test(sampled_blocks_stay_apart),
          cmocka_unit_test(pairs_hit), cmocka_unit_test(threads_that_end), cmocka_unit_test(drained_by_another_thread),
          cmocka_unit_test(threads_without_a_heap), cmocka_unit_test(large_objects), cmocka_unit_test(peak),
          cmocka_unit_test(peak_while_a_heap_is_drained), cmocka_unit_test(peak_of_a_small_heap),
          cmocka_unit_test(samples_of_drained_rations), cmocka_unit_test(samples_are_unbiased),
          cmocka_unit_test(tracers))

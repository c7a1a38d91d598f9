/* front/tight.h over a control group whose files the test writes: who looks and how often, from when to when memory is tight, what
 * goes back then, and that refusals of any file do no harm. */
#include "heap_fixture.h"

#include "front/background.h"
#include "front/front.h"
#include "front/process.h"
#include "front/thread.h"
#include "front/tight.h"
#include "region/page_policy.h"

#define LIMIT (256 * HAK_MIB)

static char max_text[32], current_text[32], pressure_text[64];

static const struct fake_file files[] = {
    {"/proc/self/cgroup", "0::/box\n"},
    {"/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
    {"/sys/fs/cgroup/box/memory.max", max_text},
    {"/sys/fs/cgroup/box/memory.current", current_text},
    {"/sys/fs/cgroup/box/memory.stat", "inactive_file 0\n"},
    {"/proc/pressure/memory", pressure_text},
    {NULL, NULL}};

static void set_use(uint64_t bytes) { sprintf(current_text, "%lu\n", (unsigned long)bytes); }
static void set_share(unsigned share) { set_use(LIMIT / 64 * share + LIMIT / 128); }
static void set_stall_us(uint64_t us) { sprintf(pressure_text, "some avg10=0.00 total=%lu\n", (unsigned long)us); }

static bool is_tight(void) { return hak_atomic_load(&hak_memory_is_tight, relaxed); }

/* A process that has grown by enough to have looked, at `share` 64ths of its limit. */
static void start(unsigned share) {
    sprintf(max_text, "%zu\n", LIMIT);
    set_share(share);
    set_stall_us(0);
    fake_os.files = files;
    fake_os.clock_ms = 1000;
    assert_true(hak_process_initialize());
    hak_count_growth(4 * HAK_MIB / fake_os.page_bytes);
    hak_tight_notice();
    assert_in_range(fake_os.file_calls, 1, 100);
}

static void look_at(unsigned share) {
    set_share(share);
    hak_tight_look();
}

static void *blocks[100000];

static void fill(int count, size_t bytes) {
    for (int i = 0; i < count; i++) assert_non_null(blocks[i] = hak_malloc(bytes));
}
static void empty(int count) {
    for (int i = 0; i < count; i++) hak_free(blocks[i]);
}

/* ---- Who looks ------------------------------------------------------------------------------------------------------- */

static void not_a_small_program(void **state) {
    (void)state;
    fake_os.files = files;
    fill(3000, 1000);
    for (int i = 0; i < 100; i++) { /* what is used again is no growth */
        empty(3000);
        fill(3000, 1000);
    }
    assert_int_equal(fake_os.file_calls, 0);
    fill(3000, 1000);
    assert_true(fake_os.file_calls > 0);
}

/* Nothing is found, which is asked again when the heap is half as large again. */
static void without_a_limit(void **state) {
    (void)state;
    fill(100000, 1000);
    assert_in_range(fake_os.file_calls, 1, 50);
    assert_false(is_tight());
    struct hak_statistics stats;
    hak_stats(&stats, sizeof stats);
    assert_int_equal(stats.memory_limit_bytes, 0);
    assert_int_equal(stats.tight_count, 0);
}

/* The next look comes after a quarter of what is left, and at least a 64th of the limit. */
static void steps(void **state) {
    (void)state;
    static const struct {
        unsigned share, units;
    } expected[] = {{4, 13}, {20, 9}, {40, 4}, {52, 1}, {55, 1}, {56, 1}, {64, 1}, {100, 1}};
    start(0);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        look_at(expected[i].share);
        uint64_t pages = LIMIT / 64 * expected[i].units / fake_os.page_bytes;
        assert_int_equal(hak_atomic_load(&hak_pages_to_look, relaxed), pages);
        hak_count_growth(pages - 1);
        size_t before = fake_os.file_calls;
        hak_tight_notice();
        assert_int_equal(fake_os.file_calls, before);
        hak_count_growth(1 - pages);
    }
    struct hak_statistics stats;
    hak_stats(&stats, sizeof stats);
    assert_int_equal(stats.memory_limit_bytes, LIMIT);
    assert_int_equal(stats.tight_count, 1);
}

/* All that may get memory counts: units, page runs, mappings, and what was given back inside of slabs. */
static void what_is_growth(void **state) {
    (void)state;
    start(0);
    uint64_t left = (uint64_t)1 << 40; /* nobody looks */
    hak_atomic_store(&hak_pages_to_look, left, relaxed);
#define EXPECT_GROWTH(least, most)                                                                                     \
    do {                                                                                                               \
        uint64_t now = hak_atomic_load(&hak_pages_to_look, relaxed);                                                   \
        assert_in_range((left - now) * fake_os.page_bytes, (least), (most));                                           \
        left = now;                                                                                                    \
    } while (0)
    void *run = hak_malloc(HAK_MIB), *mapping = hak_malloc(40 * HAK_MIB);
    EXPECT_GROWTH(41 * HAK_MIB, 41 * HAK_MIB);
    run = hak_realloc(run, 3 * HAK_MIB);
    EXPECT_GROWTH(2 * HAK_MIB, 2 * HAK_MIB);
    mapping = hak_realloc(mapping, 60 * HAK_MIB);
    EXPECT_GROWTH(20 * HAK_MIB, 20 * HAK_MIB);
    hak_free(mapping);
    assert_ptr_equal(hak_malloc(60 * HAK_MIB), mapping);
    hak_free(run);
    run = hak_malloc(3 * HAK_MIB);
    EXPECT_GROWTH(0, 0);
    fill(5000, 1000);
    EXPECT_GROWTH(5000 * 1000, 5000 * 1024 + 2 * HAK_MIB);
    for (int i = 1; i < 5000; i++)
        if (i % 60 != 0) hak_free(blocks[i]);
    hak_purge();
    EXPECT_GROWTH(0, HAK_MIB / 4);
    for (int i = 1; i < 5000; i++)
        if (i % 60 != 0) blocks[i] = hak_malloc(1000);
    EXPECT_GROWTH(4000 * 1000, 5000 * 1024 + 2 * HAK_MIB); /* the same memory again */
    for (int i = 1; i < 5000; i++)
        if (i % 60 != 0) hak_free(blocks[i]);
    hak_purge();
    left = hak_atomic_load(&hak_pages_to_look, relaxed);
    for (int i = 0; i < 5000; i += 60) hak_free(blocks[i]);
    hak_purge(); /* slabs of which next to nothing has memory are units like any other */
    EXPECT_GROWTH(3000 * 1000, 5000 * 1024 + 2 * HAK_MIB);
}

/* Somebody looks, and allocates in a signal handler, or forks, or meets another thread. */
static int nested_opens;
static void look_inside(const char *path) {
    (void)path;
    nested_opens++;
    hak_tight_look();
    fake_os.at_open = NULL;
    hak_tight_look();
}
static void fork_inside(const char *path) {
    (void)path;
    fake_os.at_open = NULL;
    hak_tight_after_fork(); /* what a child does that begins here */
}
static void one_at_a_time(void **state) {
    (void)state;
    start(0);
    fake_os.at_open = look_inside;
    size_t before = fake_os.file_calls;
    hak_tight_look();
    assert_int_equal(nested_opens, 1);
    size_t calls = fake_os.file_calls - before;
    hak_tight_look();
    assert_int_equal(fake_os.file_calls - before, 2 * calls);
    fake_os.at_open = fork_inside;
    hak_tight_look();
    hak_atomic_store(&hak_pages_to_look, 0, relaxed);
    before = fake_os.file_calls;
    hak_tight_look();
    hak_count_growth(8 * HAK_MIB / fake_os.page_bytes);
    hak_tight_notice();
    assert_true(fake_os.file_calls > before + calls); /* looked for the groups again */
    hak_tight_after_fork();
}

/* ---- From when to when ----------------------------------------------------------------------------------------------- */

static void hysteresis(void **state) {
    (void)state;
    static const struct {
        unsigned share;
        bool is_tight;
    } readings[] = {{10, false}, {52, false}, {55, false}, {56, true},  {55, true}, {53, true}, {52, true},
                    {51, false}, {54, false}, {55, false}, {63, true},  {70, true}, {52, true}, {51, false},
                    {0, false},  {64, true},  {0, false},  {55, false}, {56, true}, {51, false}};
    start(10);
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        look_at(readings[i].share);
        assert_int_equal(is_tight(), readings[i].is_tight);
    }
    struct hak_statistics stats;
    hak_stats(&stats, sizeof stats);
    assert_int_equal(stats.tight_count, 4);
}

/* What was asked for but has no memory yet is as good as used. */
static void coming(void **state) {
    (void)state;
    start(30);
    look_at(30);
    void *large = hak_malloc(60 * HAK_MIB);
    assert_false(is_tight());
    look_at(30);
    void *more = hak_malloc(110 * HAK_MIB);
    assert_true(is_tight());
    look_at(30); /* but it was not touched */
    assert_false(is_tight());
    hak_free(large);
    hak_free(more);
}

/* What was asked for and has no memory yet counts until so much more is used, or all was purged for it. */
static void pending(void **state) {
    (void)state;
    start(10);
    look_at(30);
    hak_count_growth(LIMIT / 64 * 20 / fake_os.page_bytes);
    look_at(30);
    look_at(55); /* now it has */
    look_at(30);
    assert_false(is_tight());
    hak_count_growth(LIMIT / 64 * 20 / fake_os.page_bytes);
    look_at(30);
    look_at(35);
    hak_count_growth(LIMIT / 64 * 5 / fake_os.page_bytes);
    look_at(35);
    assert_false(is_tight());
    hak_count_growth(LIMIT / 64 * 2 / fake_os.page_bytes);
    look_at(35);
    assert_true(is_tight());
    look_at(35);
    assert_false(is_tight());
}

/* A limit that is set, changed or taken away is seen some time later; and one that can't be read is none. */
static void changing_limits(void **state) {
    (void)state;
    strcpy(max_text, "max\n");
    set_share(60);
    fake_os.files = files;
    fake_os.clock_ms = 1000;
    fill(20000, 1000);
    assert_false(is_tight());
    sprintf(max_text, "%zu\n", LIMIT);
    hak_tight_look();
    assert_false(is_tight());
    fake_os.clock_ms += 20000;
    hak_tight_look();
    assert_true(is_tight());
    strcpy(current_text, "?\n");
    hak_tight_look();
    assert_false(is_tight());
    set_share(60);
    hak_tight_look();
    assert_true(is_tight());
    strcpy(max_text, "max\n");
    fake_os.clock_ms += 20000;
    hak_tight_look();
    assert_false(is_tight());
}

/* Waiting for memory: an eighth of the time is too much, until it is next to none. */
static void stalled(void **state) {
    (void)state;
    static const struct {
        uint64_t ms, stall_us;
        bool is_tight;
    } readings[] = {{1000, 100000, false}, {1000, 200000, true}, {100, 0, true},   {900, 50000, true},
                    {1000, 5000, false},   {1000, 50000, false}, {1000, 0, false}, {2000, 1000000, true},
                    {2000, 0, false},      {1000, 1000000, true}};
    start(10);
    uint64_t us = 0;
    assert_false(is_tight());
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        fake_os.clock_ms += readings[i].ms;
        set_stall_us(us += readings[i].stall_us);
        hak_tight_look();
        assert_int_equal(is_tight(), readings[i].is_tight);
    }
    set_stall_us(0); /* no longer told */
    fake_os.clock_ms += 1000;
    hak_tight_look();
    assert_false(is_tight());
}

/* ---- What goes back -------------------------------------------------------------------------------------------------- */

static struct hak_snapshot snapshot;

static void all_goes_back(void **state) {
    (void)state;
    start(10);
    hak_free(hak_malloc(1));
    struct hak_heap *other = hak_heap_acquire(), *own = hak_thread_heap;
    hak_thread_heap = other;
    fill(40000, 1000);
    for (int i = 0; i < 40000; i++)
        if (i % 100 != 0) hak_free(blocks[i]);
    hak_thread_heap = own;
    hak_free(hak_malloc(50 * HAK_MIB));
    hak_free(hak_malloc(5 * HAK_MIB));
    assert_true(hak_mapping_cache_bytes() > 0 && hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    look_at(10);
    look_at(55);
    assert_true(hak_mapping_cache_bytes() > 0 && hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    look_at(60);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    check_equations(&snapshot);
    assert_true(snapshot.total.cached_blocks <= HAK_SMALL_CLASS_COUNT);
    assert_true(hak_purge() <= HAK_SMALL_CLASS_COUNT * fake_os.page_bytes);
    /* Nothing is kept: units and mappings go back when they are freed. */
    void *run = hak_malloc(20 * HAK_MIB), *mapping = hak_malloc(50 * HAK_MIB);
    look_at(60);
    hak_free(run);
    hak_free(mapping);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    for (int i = 0; i < 40000; i += 100) hak_free(blocks[i]);
    look_at(10);
    run = hak_malloc(20 * HAK_MIB);
    hak_free(run);
    assert_true(hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    check_equations(&snapshot);
}

static size_t slots_of(uint32_t size_class) {
    return (size_t)(hak_thread_heap->slots[size_class].end - hak_thread_heap->slots[size_class].start);
}

/* Caches of threads begin anew and stay small, that of another thread from its next miss on. */
static void small_caches(void **state) {
    (void)state;
    uint32_t size_class = hak_size_class_of(64);
    start(10);
    fill(20000, 64);
    empty(20000);
    assert_true(slots_of(size_class) > 64);
    struct hak_heap *own = hak_thread_heap;
    hak_thread_heap = hak_heap_acquire();
    look_at(60);
    hak_thread_heap = own;
    assert_int_equal(hak_heap_cached(own, size_class), 0); /* it was for frees only */
    hak_free(hak_malloc(10000));                           /* a miss */
    hak_free(hak_malloc(64));
    assert_int_equal(slots_of(size_class), hak_knob(bin_first_slots));
    fill(20000, 64);
    empty(20000);
    assert_int_equal(slots_of(size_class), hak_knob(bin_first_slots));
    look_at(60);
    look_at(10);
    fill(20000, 64);
    empty(20000);
    assert_true(slots_of(size_class) > 64);
    check_equations(&snapshot);
}

/* While it stays tight, units go back at every look, all the rest after growth by a 16th of the limit, or if next to nothing is
 * left. */
static void as_often_as_needed(void **state) {
    (void)state;
    static const bool sweeps[] = {false, false, false, true};
    start(10);
    struct hak_heap *other = hak_heap_acquire(); /* which is drained each time */
    look_at(57);
    for (int i = 0; i < 16; i++) {
        set_share(i < 12 ? 56 : 60);
        hak_atomic_store(&other->drain_wanted, 0, relaxed);
        hak_count_growth(LIMIT / 64 / fake_os.page_bytes);
        hak_tight_notice();
        assert_int_equal(hak_atomic_load(&other->drain_wanted, relaxed), i < 12 ? sweeps[i % 4] : 1);
    }
}

/* ---- The background thread ------------------------------------------------------------------------------------------- */

static size_t periods;
static void (*in_period)(void);
static struct hak_heap *programs_heap;
static void wait_for_it(void) {
    hak_thread_heap = programs_heap; /* one thread is both */
    if (hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ASLEEP || ++periods > 20)
        hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
    else if (in_period != NULL) in_period();
}
static void run_background(void (*each)(void)) {
    assert_non_null(fake_os.thread);
    in_period = each;
    periods = 0;
    programs_heap = hak_thread_heap;
    fake_os.at_wait = wait_for_it;
    fake_os.thread();
}

static void miss(void) {
    fake_os.clock_ms += 1000;
    fill(2000, 1000);
    empty(2000);
    set_share(periods < 10 ? 30 : 60);
}
static void expect_tight_from_10(void) {
    if (periods == 10) assert_false(is_tight());
    if (periods == 12) assert_true(is_tight() && hak_atomic_load(&hak_dirty_units, relaxed) <= 4);
    miss();
}

/* What others use up is seen although the heap does not grow. */
static void looked_after(void **state) {
    (void)state;
    start(10);
    hak_heap_acquire();
    fill(40000, 1000);
    empty(40000);
    run_background(expect_tight_from_10);
    assert_true(periods > 12);
    assert_int_equal(fake_os.open_count, 0);
}

/* A program that has one thread has no descriptors but its own, at any time. */
static void not_beside_one_thread(void **state) {
    (void)state;
    start(10);
    for (int i = 0; i < 100000; i++) assert_non_null(hak_malloc(1000));
    hak_atomic_store(&hak_pages_to_look, (uint64_t)1 << 40, relaxed); /* it does not look itself */
    size_t before = fake_os.file_calls;
    run_background(miss);
    assert_int_equal(fake_os.file_calls, before);
}

/* ---- Refusals -------------------------------------------------------------------------------------------------------- */

static void refusals(void **state) {
    (void)state;
    static struct live_block live[300];
    start(10);
    uint64_t random = 7;
    for (size_t nth = 1; nth <= 60; nth++) {
        for (size_t i = 0; i < 300; i++) {
            if (live[i].bytes != NULL) {
                block_check(&live[i]);
                hak_free(live[i].bytes);
            }
            live[i] = (struct live_block){.size = 1 + (unit_random(&random) & 0x3ffff), .seed = (unsigned char)nth};
            live[i].bytes = hak_malloc(live[i].size);
            block_fill(&live[i]);
        }
        set_share(nth % 64);
        fake_os.clock_ms += 20000;
        fake_os.refused_file_call = fake_os.file_calls + nth % 20 + 1;
        if (nth % 3 == 0) fake_os_refuse(FAKE_ANY, nth % 7 + 1, SIZE_MAX);
        fake_os.fences_left = nth % 4 == 0 ? nth % 3 : SIZE_MAX;
        errno = 1234;
        hak_tight_look();
        assert_int_equal(errno, 1234);
        fake_os_refuse_nothing();
        assert_int_equal(fake_os.open_count, 0);
        check_equations(&snapshot);
    }
}

UNIT_MAIN(cmocka_unit_test(not_a_small_program), cmocka_unit_test(without_a_limit), cmocka_unit_test(steps),
          cmocka_unit_test(what_is_growth), cmocka_unit_test(one_at_a_time), cmocka_unit_test(hysteresis),
          cmocka_unit_test(coming), cmocka_unit_test(pending), cmocka_unit_test(changing_limits),
          cmocka_unit_test(stalled), cmocka_unit_test(all_goes_back), cmocka_unit_test(small_caches),
          cmocka_unit_test(as_often_as_needed), cmocka_unit_test(looked_after), cmocka_unit_test(not_beside_one_thread),
          cmocka_unit_test(refusals))

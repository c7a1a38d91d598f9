/* front/tight.h over a control group whose files the test writes: who looks and how often, from when to when memory is
 * tight, what goes back then, and that refusals of any file do no harm. */
#include "heap_fixture.h"

#include "allowance.h"

#include "base/memory.h"
#include "front/background.h"
#include "front/front.h"
#include "front/process.h"
#include "front/thread.h"
#include "front/tight.h"
#include "pool/bin.h"
#include "region/decay.h"

#define LIMIT (256 * HAK_MIB)

static char max_text[32], current_text[32];

static const struct fake_file files[] = {
    {"/proc/self/cgroup", "0::/box\n"},
    {"/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
    {"/sys/fs/cgroup/box/memory.max", max_text},
    {"/sys/fs/cgroup/box/memory.current", current_text},
    {"/sys/fs/cgroup/box/memory.stat", "inactive_file 0\n"},
    {NULL, NULL}};

static void set_use(uint64_t bytes) { sprintf(current_text, "%lu\n", (unsigned long)bytes); }
static void set_share(unsigned share) { set_use(LIMIT / 64 * share + LIMIT / 128); }

static bool is_tight(void) { return hak_atomic_load(&hak_memory_is_tight, relaxed); }

/* A process at `share` 64ths of its limit when it starts. */
static void start(unsigned share) {
    allow_free_memory();
    sprintf(max_text, "%zu\n", LIMIT);
    set_share(share);
    fake_os.files = files;
    fake_os.clock_ms = 1000;
    assert_true(hak_process_initialize());
    hak_tight_begin();
    assert_in_range(fake_os.file_calls, 1, 100);
}

/* As if it had been at `share` when it started, with all that it has now. */
static void look_at(unsigned share) {
    set_share(share);
    hak_tight_begin();
    hak_tight_look();
}

static void *blocks[100000];

static void fill(int count, size_t bytes) {
    for (int i = 0; i < count; i++) assert_non_null(blocks[i] = hak_malloc(bytes));
}
static void empty(int count) {
    for (int i = 0; i < count; i++) hak_free(blocks[i]);
}

/* ---- Who looks --------------------------------------------------------------------------------------------------- */

/* Files are read at the start, and never again. */
static void no_files_later(void **state) {
    (void)state;
    start(10);
    size_t calls = fake_os.file_calls;
    fill(100000, 1000);
    hak_free(hak_malloc(100 * HAK_MIB));
    empty(100000);
    hak_tight_look();
    hak_purge();
    assert_int_equal(fake_os.file_calls, calls);
    assert_int_equal(fake_os.open_count, 0);
}

/* Without a limit, nobody looks twice. */
static void without_a_limit(void **state) {
    (void)state;
    assert_true(hak_process_initialize());
    hak_tight_begin();
    fill(100000, 1000);
    assert_true(hak_tight_pages_left() > (int64_t)1 << 40);
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
        assert_int_equal(hak_tight_pages_left(), pages);
        hak_count_growth(pages - 1);
        hak_tight_notice();
        assert_int_equal(hak_tight_pages_left(), 1); /* nobody has looked */
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
    allow_free_memory_of_programs();
    hak_atomic_store(&hak_look_at_pages, (uint64_t)1 << 40, relaxed); /* nobody looks */
    uint64_t grown = hak_atomic_load(&hak_pages_grown, relaxed);
#define EXPECT_GROWTH(least, most)                                                                                     \
    do {                                                                                                               \
        uint64_t now = hak_atomic_load(&hak_pages_grown, relaxed);                                                     \
        assert_in_range((now - grown) * fake_os.page_bytes, (least), (most));                                          \
        grown = now;                                                                                                   \
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
    grown = hak_atomic_load(&hak_pages_grown, relaxed);
    for (int i = 0; i < 5000; i += 60) hak_free(blocks[i]);
    hak_purge(); /* slabs of which next to nothing has memory go back as a whole, and count when they are used */
    EXPECT_GROWTH(0, HAK_MIB / 4);
}

/* ---- From when to when ------------------------------------------------------------------------------------------- */

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

/* What hakmem has more than at the start counts, and no more when it has gone back. */
static void own_growth(void **state) {
    (void)state;
    start(30);
    void *mapping = hak_malloc(60 * HAK_MIB), *run = hak_malloc(20 * HAK_MIB);
    assert_false(is_tight());
    fill(30000, 1000);
    assert_true(is_tight());
    hak_free(mapping);
    hak_tight_look();
    assert_false(is_tight());
    mapping = hak_malloc(60 * HAK_MIB);
    assert_true(is_tight());
    empty(30000);
    hak_tight_look(); /* which gives them back */
    hak_tight_look();
    assert_false(is_tight());
    hak_free(mapping);
    hak_free(run);
}

/* Holes that were given back don't count, where it matters. */
static void holes(void **state) {
    (void)state;
    start(34);
    fill(100000, 1000);
    for (int i = 0; i < 100000; i++)
        if (i % 60 != 0) hak_free(blocks[i]);
    hak_tight_look();
    assert_true(is_tight()); /* nothing has gone back yet */
    hak_purge();
    hak_tight_look();
    assert_false(is_tight());
}

/* A program that is started in a group that is nearly full is tight, until it has less than at its start. */
static void full_at_the_start(void **state) {
    (void)state;
    start(50);
    fill(30000, 1000);
    assert_true(is_tight());
    empty(30000);
    hak_purge();
    hak_tight_look();
    assert_false(is_tight());
}

/* ---- What goes back ---------------------------------------------------------------------------------------------- */

/* Growth until all has gone back, in steps of 256 KiB: at each, a bounded part. Returns the steps. */
static size_t grow_until_all_is_back(void) {
    enum { STEP_BYTES = 256 << 10, MOST_BYTES = 4 << 20 };
    size_t steps = 0;
    do {
        size_t first = fake_os.call_count[FAKE_ANY];
        hak_count_growth(STEP_BYTES / fake_os.page_bytes);
        hak_tight_notice();
        hak_decay_notice();
        assert_in_range(fake_os_given_back_since(first), 0, MOST_BYTES);
        steps++;
    } while (hak_decay_owes() || hak_tight_pages_left() <= STEP_BYTES / (int64_t)fake_os.page_bytes);
    return steps;
}

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
    hak_atomic_store(&hak_knobs.run_limit_bytes, 8 * HAK_MIB, relaxed);
    hak_free(hak_malloc(20 * HAK_MIB)); /* a mapping, of less than an eighth of the limit */
    hak_free(hak_malloc(5 * HAK_MIB));
    assert_true(hak_mapping_cache_bytes() > 0 && hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    look_at(10);
    look_at(55);
    assert_true(hak_mapping_cache_bytes() > 0 && hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    fake_os_forget();
    look_at(59);
    hak_decay_notice();
    assert_in_range(fake_os_given_back_since(0), 1, 4 * HAK_MIB);
    for (int i = 0; i < 5; i++) { /* each time until it is not tight any more */
        grow_until_all_is_back();
        look_at(59);
    }
    grow_until_all_is_back();
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    check_equations(&snapshot);
    assert_true(snapshot.total.cached_blocks <= HAK_SMALL_CLASS_COUNT);
    assert_true(hak_purge() <= HAK_SMALL_CLASS_COUNT * fake_os.page_bytes);
    /* Nothing is kept: units and mappings go back when they are freed. */
    void *run = hak_malloc(5 * HAK_MIB), *mapping = hak_malloc(20 * HAK_MIB);
    look_at(59);
    hak_free(run);
    hak_free(mapping);
    for (int i = 0; i < 20; i++) hak_decay_notice();
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    for (int i = 0; i < 40000; i += 100) hak_free(blocks[i]);
    look_at(10);
    run = hak_malloc(5 * HAK_MIB);
    hak_free(run);
    assert_true(hak_atomic_load(&hak_dirty_units, relaxed) > 0);
    check_equations(&snapshot);
}

/* Beyond 15 sixteenths of the limit, so much goes back at once. */
static void urgent(void **state) {
    (void)state;
    start(10);
    hak_free(hak_malloc(50 * HAK_MIB));
    hak_free(hak_malloc(30 * HAK_MIB));
    look_at(10);
    fake_os_forget();
    look_at(60 + 4);
    assert_in_range(fake_os_given_back_since(0), LIMIT / 64 * 4, LIMIT / 64 * 7);
}

/* The same where all of it lies in holes, of which a turn finds less than it may give back. */
static void urgent_holes(void **state) {
    (void)state;
    start(10);
    hak_background_pay(true); /* what is freed stays */
    fill(100000, 1000);
    for (int i = 0; i < 100000; i++)
        if (i % 20 != 0) hak_free(blocks[i]);
    look_at(10);
    fake_os_forget();
    look_at(60 + 8);
    assert_in_range(fake_os_given_back_since(0), LIMIT / 64 * 8, LIMIT / 64 * 11);
}

/* Or in free units, while a round goes on that owes nothing, after one that brought nothing. */
static void urgent_in_a_round(void **state) {
    (void)state;
    start(10);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 0, relaxed);
    void *run = hak_malloc(20 * HAK_MIB), *released = hak_malloc(3 * HAK_MIB);
    fill(100000, 1000); /* holes for the round to go on with */
    for (int i = 0; i < 100000; i++)
        if (i % 20 != 0) hak_free(blocks[i]);
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    hak_free(released);
    for (int i = 0; i < 10; i++) hak_decay_notice();
    assert_false(hak_decay_owes());
    hak_decay_after_release(1);
    for (int i = 0; i < 10; i++) hak_decay_notice(); /* a whole round */
    hak_decay_after_release(1);
    assert_int_equal(hak_atomic_load(&hak_owed_units, relaxed), 0);
    fake_os_refuse_nothing();
    look_at(57);
    hak_atomic_store(&hak_owed_units, 0, relaxed);
    hak_decay_after_release(1);
    /* What brought nothing before memory was tight delays nothing. */
    assert_int_not_equal(hak_atomic_load(&hak_owed_units, relaxed), 0);
    while (hak_decay_owes()) hak_decay_notice();
    /* Or the free itself would give all of it back. */
    hak_background_pay(true);
    hak_atomic_store(&hak_memory_limit_bytes, 0, relaxed);
    hak_free(run);
    hak_atomic_store(&hak_memory_limit_bytes, LIMIT, relaxed);
    assert_true(hak_decay_owes());
    hak_atomic_store(&hak_owed_units, 0, relaxed);
    fake_os_forget();
    look_at(60 + 4);
    assert_in_range(fake_os_given_back_since(0), LIMIT / 64 * 4, LIMIT / 64 * 7);
    assert_true(hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES < 6 * HAK_MIB);
}

static void look_late_by(size_t bytes) {
    hak_count_growth(hak_tight_pages_left() + bytes / fake_os.page_bytes);
    hak_tight_notice();
}

/* What several threads took after a look was due goes back twice at that look. */
static void outrun(void **state) {
    (void)state;
    start(10);
    hak_free(hak_malloc(30 * HAK_MIB));
    hak_heap_acquire();
    fill(100000, 1000);
    for (int i = 0; i < 100000; i++)
        if (i % 20 != 0) hak_free(blocks[i]);
    look_at(57);
    while (hak_decay_owes()) hak_decay_notice();
    fake_os_forget();
    look_late_by(8 * HAK_MIB);
    assert_in_range(fake_os_given_back_since(0), 16 * HAK_MIB, 20 * HAK_MIB);
}

/* With one thread, a large block makes a look late, which is like any other; where memory isn't tight, nothing goes
 * back. */
static void late(void **state) {
    (void)state;
    start(10);
    hak_free(hak_malloc(30 * HAK_MIB));
    fill(50000, 1000);
    for (int i = 0; i < 50000; i++)
        if (i % 20 != 0) hak_free(blocks[i]);
    look_at(10);
    hak_free(hak_malloc(20 * HAK_MIB));
    fake_os_forget();
    look_late_by(64 * HAK_MIB);
    hak_decay_notice();
    assert_int_equal(fake_os_given_back_since(0), 0);
    assert_false(hak_decay_owes());
    look_at(57);
    while (hak_decay_owes()) hak_decay_notice();
    fake_os_forget();
    look_late_by(8 * HAK_MIB);
    assert_in_range(fake_os_given_back_since(0), 1, 4 * HAK_MIB);
}

static size_t in_look_calls, in_look_bytes;
static void grow_meanwhile(void) {
    fake_os.at_purge = NULL;
    hak_count_growth(hak_tight_pages_left() + 1);
    size_t first = fake_os.call_count[FAKE_ANY];
    hak_tight_notice();
    in_look_bytes = fake_os_given_back_since(first);
    in_look_calls++;
}

/* Who finds somebody looking takes a turn, too: the other one may be without a processor. */
static void turns_of_others(void **state) {
    (void)state;
    start(10);
    hak_background_pay(true); /* what is freed stays */
    fill(100000, 1000);
    for (int i = 0; i < 100000; i++)
        if (i % 20 != 0) hak_free(blocks[i]);
    look_at(57);
    while (hak_decay_owes()) hak_decay_notice();
    in_look_calls = in_look_bytes = 0;
    fake_os.at_purge = grow_meanwhile;
    hak_count_growth(hak_tight_pages_left());
    hak_tight_notice();
    assert_int_equal(in_look_calls, 1);
    assert_in_range(in_look_bytes, HAK_MIB / 2, 4 * HAK_MIB);
}

/* The turns are over before the program has grown by what was left when they began, an eighth of the limit. */
static void turns_are_in_time(void **state) {
    (void)state;
    start(10);
    fill(50000, 4000);
    for (int i = 0; i < 50000; i++)
        if (i % 64 != 0) hak_free(blocks[i]);
    look_at(56);
    assert_true(is_tight());
    assert_in_range(grow_until_all_is_back() * (256 << 10), 1, LIMIT / 8);
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
    assert_int_equal(slots_of(size_class), 8);
    fill(20000, 64);
    empty(20000);
    assert_int_equal(slots_of(size_class), 8);
    look_at(60);
    look_at(10);
    fill(20000, 64);
    empty(20000);
    assert_true(slots_of(size_class) > 64);
    check_equations(&snapshot);
}

/* While it stays tight, units go back at every look, all the rest after growth by a 16th of the limit, or if next to
 * nothing is left. */
static void as_often_as_needed(void **state) {
    (void)state;
    static const bool sweeps[] = {false, false, false, true};
    start(10);
    struct hak_heap *other = hak_heap_acquire(); /* which is drained each time */
    look_at(57);
    for (int i = 0; i < 16; i++) {
        set_share(i < 12 ? 56 : 60);
        hak_tight_begin();
        hak_atomic_store(&other->drain_wanted, 0, relaxed);
        hak_count_growth(LIMIT / 64 / fake_os.page_bytes);
        hak_tight_notice();
        assert_int_equal(hak_atomic_load(&other->drain_wanted, relaxed), i < 12 ? sweeps[i % 4] : 1);
    }
}

/* ---- The background thread --------------------------------------------------------------------------------------- */

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
}

/* The background thread reads no file either; it looks at what the process has. */
static void looked_after(void **state) {
    (void)state;
    start(10);
    hak_heap_acquire();
    fill(40000, 1000);
    void *mapping = hak_malloc(170 * HAK_MIB);
    assert_true(is_tight());
    empty(40000);
    hak_free(mapping);
    size_t before = fake_os.file_calls;
    run_background(miss);
    assert_false(is_tight());
    assert_int_equal(fake_os.file_calls, before);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

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
        hak_tight_begin();
        hak_tight_look();
        assert_int_equal(errno, 1234);
        fake_os_refuse_nothing();
        assert_int_equal(fake_os.open_count, 0);
        check_equations(&snapshot);
    }
}

UNIT_MAIN(cmocka_unit_test(no_files_later), cmocka_unit_test(without_a_limit), cmocka_unit_test(steps),
          cmocka_unit_test(what_is_growth), cmocka_unit_test(hysteresis), cmocka_unit_test(own_growth),
          cmocka_unit_test(holes), cmocka_unit_test(full_at_the_start), cmocka_unit_test(all_goes_back),
          cmocka_unit_test(urgent), cmocka_unit_test(urgent_holes), cmocka_unit_test(urgent_in_a_round),
          cmocka_unit_test(outrun), cmocka_unit_test(late), cmocka_unit_test(turns_of_others),
          cmocka_unit_test(turns_are_in_time), cmocka_unit_test(small_caches), cmocka_unit_test(as_often_as_needed),
          cmocka_unit_test(looked_after), cmocka_unit_test(refusals))

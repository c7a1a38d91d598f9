/* front/background.h: when the thread is wanted, what it gives back, and that it sleeps then. The fake kernel does not run it; the
 * test does, and acts as the program's threads where it waits. */
#include "heap_fixture.h"

#include "front/background.h"
#include "front/front.h"
#include "pool/heap.h"

enum { BLOCKS = 40000, BYTES = 1000 };

static void *blocks[BLOCKS];

static void fill(int count) {
    for (int i = 0; i < count; i++) {
        blocks[i] = hak_malloc(BYTES);
        assert_non_null(blocks[i]);
    }
}
static void empty(int count, int every) {
    for (int i = 0; i < count; i++)
        if (every == 0 || i % every != 0) {
            hak_free(blocks[i]);
            blocks[i] = NULL;
        }
}

static uint32_t thread_state(void) { return hak_atomic_load(&hak_background_state, relaxed); }

static void not_for_a_small_program(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire()); /* a second thread's */
    fill(5000);                          /* less than 8 MiB */
    empty(5000, 0);
    assert_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
}

static void with_two_threads(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
}

static void with_one_thread(void **state) {
    (void)state;
    fill(30000);
    assert_null(fake_os.thread);
    static void *more[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) assert_non_null(more[i] = hak_malloc(BYTES));
    assert_non_null(fake_os.thread);
}

static void with_small_ranges(void **state) {
    (void)state;
    fake_os.address_space_limit = (16 << 20) - 1; /* of one SuperSlab */
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(hak_region_range(3));
    assert_non_null(fake_os.thread);
}

static void refused(void **state) {
    (void)state;
    fake_os.refuses_threads = true;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    fake_os.refuses_threads = false;
    fill(100);
    assert_null(fake_os.thread); /* not asked again at once, */
    for (int i = 0; i < 200 && fake_os.thread == NULL; i++) {
        fill(BLOCKS);
        empty(BLOCKS, 0);
    }
    assert_non_null(fake_os.thread); /* but one day */
}

/* ---- What it does --------------------------------------------------------------------------------------------------- */

static size_t periods, periods_at_sleep, most_periods;
static void (*program)(void); /* in each period */
static struct hak_heap *programs_heap;

/* One thread is both: the program's has a heap. */
static void wait_for_it(void) {
    hak_thread_heap = programs_heap;
    if (thread_state() == HAK_BACKGROUND_AWAKE) assert_true(fake_os.waited_us >= 334000);
    if (thread_state() == HAK_BACKGROUND_ASLEEP) periods_at_sleep = periods;
    if (thread_state() == HAK_BACKGROUND_ASLEEP || ++periods > most_periods)
        hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
    else if (program != NULL) program();
}

static void run(size_t most, void (*what)(void)) {
    periods = periods_at_sleep = 0;
    most_periods = most;
    program = what;
    programs_heap = hak_thread_heap;
    fake_os.at_wait = wait_for_it;
    fake_os.thread();
    hak_thread_heap = programs_heap;
    fake_os.at_wait = NULL;
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
}

static struct hak_snapshot snapshot;

static void all_goes_back(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    void *mapping = hak_malloc(5 * HAK_MIB);
    assert_non_null(fake_os.thread);
    empty(BLOCKS, 100);
    hak_free(mapping);
    run(100, NULL);
    assert_in_range(periods_at_sleep, 2, 6);
    assert_int_equal(fake_os.waited_us, 0); /* no wake-up */
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    check_equations(&snapshot);
    assert_true(snapshot.total.cached_blocks <= HAK_SMALL_CLASS_COUNT);
    /* Nothing is left: a purge finds but its own heap's last blocks. */
    assert_true(hak_purge() <= HAK_SMALL_CLASS_COUNT * fake_os.page_bytes);
}

static void free_a_few(void) { /* misses, but next to no memory */
    fill(2000);
    empty(2000, 0);
}

static uint32_t most_resting;

static void count_resting(void) {
    free_a_few();
    if (hak_atomic_load(&hak_heaps_resting, relaxed) > most_resting)
        most_resting = hak_atomic_load(&hak_heaps_resting, relaxed);
    if (periods > 3) assert_false(hak_heaps_are_many());
}

/* Threads that sleep make no many. */
static void heaps_rest(void **state) {
    (void)state;
    fake_os.processors = 1;
    fill(1);
    for (int i = 0; i < 5; i++) hak_heap_acquire();
    fill(10000);
    assert_true(hak_heaps_are_many());
    run(6, count_resting);
    assert_int_equal(most_resting, 5);
    assert_int_equal(hak_atomic_load(&hak_heaps_resting, relaxed), 0); /* nobody counts them any more */
    assert_true(hak_heaps_are_many());
}

static void busy_makes_no_calls(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 0);
    assert_non_null(fake_os.thread);
    hak_purge();
    for (int i = 0; i < 100; i++) free_a_few();
    fake_os_forget();
    run(20, free_a_few);
    assert_int_equal(periods_at_sleep, 0);
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
}

static void kernel_refuses(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 100);
    for (int i = 0; i < BLOCKS; i += 100) memset(blocks[i], i % 251, BYTES);
    fake_os.fences_left = 0;
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    run(100, NULL);
    fake_os_refuse_nothing();
    assert_in_range(periods_at_sleep, 2, 6); /* it does not try for ever */
    assert_true(fake_os.waited_us > 0);      /* a miss may go unnoticed */
    fake_os.fences_left = SIZE_MAX;
    for (int i = 0; i < BLOCKS; i += 100)
        for (int at = 0; at < BYTES; at++) assert_int_equal(((unsigned char *)blocks[i])[at], i % 251);
    check_equations(&snapshot);
    assert_true(hak_purge() > 0);
}

static void woken(void **state) {
    (void)state;
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ASLEEP, relaxed);
    fill(1);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
    assert_int_equal(fake_os.wakes, 1);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ASLEEP, relaxed);
    hak_free(hak_malloc(3 * HAK_MIB)); /* large objects count */
    assert_int_equal(fake_os.wakes, 2);
}

UNIT_MAIN(cmocka_unit_test(not_for_a_small_program), cmocka_unit_test(with_two_threads),
          cmocka_unit_test(with_one_thread), cmocka_unit_test(with_small_ranges), cmocka_unit_test(refused),
          cmocka_unit_test(all_goes_back), cmocka_unit_test(heaps_rest), cmocka_unit_test(busy_makes_no_calls),
          cmocka_unit_test(kernel_refuses), cmocka_unit_test(woken))

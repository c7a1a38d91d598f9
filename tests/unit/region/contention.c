/* Threads that take units all at once: how often they meet at the same word, and how far from the bottom of the heap
 * they end up. In place of 64 processors: threads run one after the other, each with a clock that goes on by one at
 * each compare-and-swap, which fails where a thread before has changed the word at the same time. */
#include "unit.h"

#include <pthread.h>

#include "fake_os.h"

#include "base/atomic.h"

enum { THREADS = 64, SUPER_SLABS = 256, LONGEST = 4096 };

static bool changed[LONGEST][SUPER_SLABS]; /* [time][SuperSlab] */
static uint64_t cas_count;                 /* of all threads */
static uint32_t now;                       /* of the thread that runs: so many compare-and-swaps */

static bool clocked_cas(_Atomic(uint64_t) *word, uint64_t *expected, uint64_t desired);
#undef hak_atomic_cas
#define hak_atomic_cas(location, expected, desired, success, failure)                                                  \
    _Generic((location),                                                                                               \
        _Atomic(uint64_t) *: clocked_cas((_Atomic(uint64_t) *)(location), (uint64_t *)(expected), desired))
#include "region/units.c"

static bool clocked_cas(_Atomic(uint64_t) *word, uint64_t *expected, uint64_t desired) {
    struct hak_super_slab *record = (struct hak_super_slab *)(void *)word; /* its first field */
    size_t number = (size_t)(record - hak_region_range(0)->super_slabs);
    assert_true(now < LONGEST && number < SUPER_SLABS);
    cas_count++;
    if (changed[now++][number]) {
        *expected = atomic_load(word);
        return false;
    }
    changed[now - 1][number] = true;
    return atomic_compare_exchange_strong(word, expected, desired);
}

static pthread_barrier_t all_have_run;
static uint32_t longest, highest_super_slab;

static void *take_one(void *context) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&turn);
    now = 0;
    struct hak_slab *unit = hak_region_acquire(1, 1, HAK_UNITS_FREE, false);
    if (unit != NULL) {
        uint32_t super_slab = (uint32_t)(unit - hak_region_range(0)->slabs) / HAK_UNITS_PER_SUPER_SLAB;
        if (super_slab > highest_super_slab) highest_super_slab = super_slab;
        if (now > longest) longest = now;
        *(uint32_t *)context += 1;
    }
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&all_have_run); /* each has its own memory meanwhile, as threads have */
    return NULL;
}

/* Returns how many of so many threads have got a unit. */
static uint32_t take_at_once(uint32_t count) {
    pthread_t threads[THREADS];
    uint32_t taken = 0;
    assert_int_equal(pthread_barrier_init(&all_have_run, NULL, count), 0);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_one, &taken), 0);
    for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return taken;
}

/* SuperSlabs up to a number are free, all of them. */
static void start(uint32_t free_super_slabs) {
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    uint32_t first = 0;
    assert_int_equal(hak_region_grow(hak_region_range(0), &first, SUPER_SLABS), HAK_GROWTH_DONE);
    hak_in_hand_keep();
    add_span(hak_region_range(0), 0, free_super_slabs * HAK_UNITS_PER_SUPER_SLAB, FRESH);
}

/* Not each with each. */
static void few_meet_again(void **state) {
    (void)state;
    start(SUPER_SLABS);
    assert_int_equal(take_at_once(THREADS), THREADS);
    assert_in_range(longest, 1, 16);
    assert_in_range(cas_count, THREADS, THREADS * 8);
}

/* And near the bottom, for they pass over no more than they need to. */
static void they_stay_low(void **state) {
    (void)state;
    start(SUPER_SLABS);
    assert_int_equal(take_at_once(8), 8);
    assert_in_range(highest_super_slab, 1, 40);
}

/* Who is alone takes the lowest. */
static void alone(void **state) {
    (void)state;
    start(SUPER_SLABS);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal((memset(changed, 0, sizeof changed), now = 0, take_at_once(1)), 1);
    assert_int_equal(highest_super_slab, 99 / HAK_UNITS_PER_SUPER_SLAB);
    assert_int_equal(cas_count, 100);
}

/* Where there is nothing else they come back for what they met at. */
static void all_of_it(void **state) {
    (void)state;
    start(2);
    assert_int_equal(take_at_once(THREADS), THREADS);
    assert_null(hak_region_acquire(1, 1, HAK_UNITS_FREE, false));
}

UNIT_MAIN(cmocka_unit_test(few_meet_again), cmocka_unit_test(they_stay_low), cmocka_unit_test(alone),
          cmocka_unit_test(all_of_it))

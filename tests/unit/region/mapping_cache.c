/* region/mapping_cache.h: what is kept, what is found again, what is pushed out, and what happens to mappings that the kernel
 * does not take back. */
#include "unit.h"

#include "allowance.h"

#include "base/bits.h"
#include "base/knobs.h"
#include "fake_os.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/mapping_cache.h"

static uintptr_t map(size_t bytes) {
    void *start = hak_os_map(bytes, HAK_GRANULE_BYTES);
    assert_non_null(start);
    return (uintptr_t)start;
}

static void set_limit(size_t bytes) { hak_atomic_store(&hak_knobs.mapping_cache_bytes, bytes, relaxed); }

/* As if there were no runs. */
static void start(void) {
    allow_free_memory();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 0, relaxed);
}

static uintptr_t take(size_t bytes) {
    size_t have_bytes;
    return (uintptr_t)hak_mapping_cache_take(bytes, &have_bytes);
}

static void what_fits(void **state) {
    (void)state;
    start();
    assert_int_equal(take(4096), 0);
    uintptr_t start = map(4 * HAK_MIB);
    hak_mapping_cache_put(start, 4 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 4 * HAK_MIB);
    assert_int_equal(take(4 * HAK_MIB + 4096), 0);
    assert_int_equal(take(3 * HAK_MIB), 0); /* more than a quarter would be wasted */
    size_t bytes = hak_align_up(4 * HAK_MIB * 4 / 5, 4096);
    assert_int_equal(take(bytes), start);
    assert_int_equal(hak_directory_get(start), hak_entry_for_mapping(4 * HAK_MIB));
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(take(bytes), 0);
}

/* Nobody asks for such a one. */
static void as_small_as_a_run(void **state) {
    (void)state;
    start();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 4 * HAK_MIB, relaxed);
    hak_mapping_cache_put(map(4 * HAK_MIB), 4 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(fake_os.mapped_bytes, 0);
    hak_mapping_cache_put(map(5 * HAK_MIB), 5 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 5 * HAK_MIB);
}

static void the_smallest_that_fits(void **state) {
    (void)state;
    start();
    uintptr_t large = map(44 * 65536), small = map(41 * 65536), middle = map(42 * 65536);
    hak_mapping_cache_put(large, 44 * 65536);
    hak_mapping_cache_put(small, 41 * 65536);
    hak_mapping_cache_put(middle, 42 * 65536);
    assert_int_equal(take(42 * 65536), middle);
    assert_int_equal(take(40 * 65536), small);
    assert_int_equal(take(40 * 65536), large);
}

static void bounded(void **state) {
    (void)state;
    start();
    set_limit(8 * HAK_MIB);
    uintptr_t starts[6];
    for (int i = 0; i < 6; i++) {
        starts[i] = map(2 * HAK_MIB);
        hak_mapping_cache_put(starts[i], 2 * HAK_MIB);
        assert_true(hak_mapping_cache_bytes() <= 8 * HAK_MIB);
    }
    assert_int_equal(fake_os.mapped_bytes, 8 * HAK_MIB);
    uintptr_t too_large = map(9 * HAK_MIB); /* more than all others together may have */
    hak_mapping_cache_put(too_large, 9 * HAK_MIB);
    assert_int_equal(fake_os.mapped_bytes, 8 * HAK_MIB);
    set_limit(0);
    hak_mapping_cache_put(map(HAK_MIB), HAK_MIB);
    assert_int_equal(fake_os.mapped_bytes, 8 * HAK_MIB);
}

/* Up to 64 MiB whatever the heap; of a larger heap a quarter. */
static void bounded_by_a_share(void **state) {
    (void)state;
    start();
    uintptr_t first = map(64 * HAK_MIB), second = map(64 * HAK_MIB), third = map(65 * HAK_MIB);
    hak_mapping_cache_put(third, 65 * HAK_MIB);
    hak_mapping_cache_put(first, 64 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 64 * HAK_MIB);
    uintptr_t heap = map(HAK_MIB);
    hak_directory_set(heap, hak_entry_for_mapping(512 * HAK_MIB));
    hak_mapping_cache_put(second, 64 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 128 * HAK_MIB);
    hak_directory_set(heap, hak_entry_for_mapping(16 * HAK_GIB));
    uintptr_t fourth = map(256 * HAK_MIB), fifth = map(257 * HAK_MIB);
    hak_mapping_cache_put(fifth, 257 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 128 * HAK_MIB);
    hak_mapping_cache_put(fourth, 256 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 256 * HAK_MIB);
}

/* Ends a period. What goes then, all of it. */
static size_t age(void) {
    hak_mapping_cache_age();
    return hak_mapping_cache_pay(SIZE_MAX);
}

/* What has been kept through a whole period goes at its end. */
static void ageing(void **state) {
    (void)state;
    start();
    uintptr_t old = map(4 * HAK_MIB), used = map(8 * HAK_MIB);
    hak_mapping_cache_put(old, 4 * HAK_MIB);
    hak_mapping_cache_put(used, 8 * HAK_MIB);
    assert_int_equal(age(), 0);
    assert_int_equal(take(8 * HAK_MIB), used);
    hak_mapping_cache_put(used, 8 * HAK_MIB);
    assert_int_equal(age(), 4 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 8 * HAK_MIB);
    fake_os_refuse(FAKE_UNMAP, 1, 1);
    assert_int_equal(age(), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 8 * HAK_MIB); /* and looks new */
    assert_int_equal(age(), 0);
    assert_int_equal(age(), 8 * HAK_MIB);
    assert_int_equal(age(), 0);
}

/* A part of a large one goes at each turn, its end first; what is left may be used meanwhile, and is not owed then. */
static void by_turns(void **state) {
    (void)state;
    start();
    uintptr_t large = map(63 * HAK_MIB), small = map(1 * HAK_MIB);
    hak_mapping_cache_put(large, 63 * HAK_MIB);
    hak_mapping_cache_put(small, 1 * HAK_MIB);
    hak_mapping_cache_age();
    hak_mapping_cache_age();
    fake_os_forget();
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    for (size_t i = 1; i <= 20; i++) {
        assert_int_equal(hak_mapping_cache_pay(2 * HAK_MIB), 2 * HAK_MIB);
        assert_int_equal(hak_mapping_cache_bytes(), (64 - 2 * i) * HAK_MIB);
        assert_int_equal(fake_os.call_count[FAKE_UNMAP], i);
    }
    uintptr_t found;
    size_t bytes;
    assert_true(hak_mapping_cache_find(large, &found, &bytes));
    assert_int_equal(bytes, 23 * HAK_MIB);
    assert_int_equal(take(23 * HAK_MIB), large);
    hak_mapping_cache_put(large, 23 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_pay(2 * HAK_MIB), 1 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_pay(SIZE_MAX), 0);
    assert_int_equal(hak_mappings_owed, 0);
    assert_int_equal(hak_mapping_cache_bytes(), 23 * HAK_MIB);
}

/* The kernel takes a part of a mapping no more than all of it: it stays as it is, and is owed again after a period. */
static void refused_turns(void **state) {
    (void)state;
    start();
    uintptr_t kept = map(32 * HAK_MIB);
    hak_mapping_cache_put(kept, 32 * HAK_MIB);
    hak_mapping_cache_owe_all();
    fake_os_refuse(FAKE_UNMAP, 1, 1);
    assert_int_equal(hak_mapping_cache_pay(2 * HAK_MIB), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 32 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_pay(2 * HAK_MIB), 0);
    hak_mapping_cache_age();
    assert_int_equal(hak_mapping_cache_pay(2 * HAK_MIB), 2 * HAK_MIB);
    assert_int_equal(take(30 * HAK_MIB), kept);
}

/* To make room costs no more than to give back what comes in. */
static void room_is_made_in_parts(void **state) {
    (void)state;
    start();
    set_limit(64 * HAK_MIB);
    hak_mapping_cache_put(map(60 * HAK_MIB), 60 * HAK_MIB);
    for (size_t i = 0; i < 50; i++) {
        uintptr_t next = map(6 * HAK_MIB);
        size_t before = fake_os.mapped_bytes;
        hak_mapping_cache_put(next, 6 * HAK_MIB);
        assert_in_range(before - fake_os.mapped_bytes, 0, 6 * HAK_MIB);
        assert_in_range(hak_mapping_cache_bytes(), 58 * HAK_MIB, 64 * HAK_MIB);
    }
    assert_int_equal(fake_os.mapped_bytes, hak_mapping_cache_bytes());
}

static void more_than_it_has_places(void **state) {
    (void)state;
    start();
    for (int i = 0; i < 200; i++) hak_mapping_cache_put(map(8192), 8192);
    size_t kept = hak_mapping_cache_bytes();
    assert_int_equal(kept, 64 * 8192);
    assert_int_equal(fake_os.mapped_bytes, kept);
}

static void purging(void **state) {
    (void)state;
    start();
    for (int i = 0; i < 5; i++) hak_mapping_cache_put(map(HAK_MIB), HAK_MIB);
    assert_int_equal(hak_mapping_cache_purge(), 5 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(fake_os.mapped_bytes, 0);
    assert_int_equal(hak_mapping_cache_purge(), 0);
}

/* Beyond the bound, but purged, and for use by anyone. */
static void refused_unmaps(void **state) {
    (void)state;
    start();
    set_limit(2 * HAK_MIB);
    uintptr_t start = map(3 * HAK_MIB);
    *(char *)start = 1;
    fake_os_refuse(FAKE_UNMAP, 1, SIZE_MAX);
    hak_mapping_cache_put(start, 3 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 3 * HAK_MIB);
    assert_int_equal(*(char *)start, 0);
    assert_int_equal(hak_mapping_cache_purge(), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 3 * HAK_MIB);
    assert_int_equal(take(HAK_MIB), start); /* shrunk to what is wanted */
    assert_int_equal(hak_directory_get(start), hak_entry_for_mapping(HAK_MIB));
    assert_int_equal(fake_os.mapped_bytes, HAK_MIB + 262144); /* and the directory's leaf */
}

static uint32_t times_in_hand;
static void expect_in_hand(void) { times_in_hand += hak_in_hand_is_some(); }

/* While the kernel takes a mapping nobody finds it: a search that finds no memory is told so. */
static void in_hand_meanwhile(void **state) {
    (void)state;
    start();
    hak_mapping_cache_put(map(3 * HAK_MIB), 3 * HAK_MIB);
    fake_os_refuse(FAKE_UNMAP, 1, SIZE_MAX); /* it is purged instead */
    fake_os.at_purge = expect_in_hand;
    hak_mapping_cache_owe_all();
    hak_mapping_cache_pay(SIZE_MAX);
    assert_int_equal(times_in_hand, 1);
    hak_mapping_cache_purge();
    assert_int_equal(times_in_hand, 2);
    assert_false(hak_in_hand_is_some());
}

static void refused_unmaps_and_remaps(void **state) {
    (void)state;
    start();
    set_limit(2 * HAK_MIB);
    uintptr_t start = map(3 * HAK_MIB);
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    hak_mapping_cache_put(start, 3 * HAK_MIB);
    assert_int_equal(take(HAK_MIB), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 3 * HAK_MIB); /* still there */
    fake_os_refuse_nothing();
    assert_int_equal(hak_mapping_cache_purge(), 3 * HAK_MIB);
    assert_int_equal(fake_os.mapped_bytes, 0);
}

static void large_pages(void **state) {
    (void)state;
    start();
    fake_os.page_bytes = 65536;
    uintptr_t start = map(3 * HAK_MIB);
    hak_mapping_cache_put(start, 3 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 3 * HAK_MIB);
    assert_int_equal(take(3 * HAK_MIB), start);
    assert_int_equal(hak_directory_get(start), hak_entry_for_mapping(3 * HAK_MIB));
}

/* In a child after fork the sum is what there is: a thread that is not here may have been between the two. */
static void summed_anew(void **state) {
    (void)state;
    start();
    hak_mapping_cache_put(map(3 * HAK_MIB), 3 * HAK_MIB);
    hak_mapping_cache_put(map(4 * HAK_MIB), 4 * HAK_MIB);
    hak_mapping_cache_recover_after_fork();
    assert_int_equal(hak_mapping_cache_bytes(), 7 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_purge(), 7 * HAK_MIB);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
}

UNIT_MAIN(cmocka_unit_test(what_fits), cmocka_unit_test(as_small_as_a_run), cmocka_unit_test(the_smallest_that_fits),
          cmocka_unit_test(bounded), cmocka_unit_test(bounded_by_a_share), cmocka_unit_test(ageing),
          cmocka_unit_test(by_turns), cmocka_unit_test(refused_turns), cmocka_unit_test(room_is_made_in_parts),
          cmocka_unit_test(more_than_it_has_places), cmocka_unit_test(purging), cmocka_unit_test(refused_unmaps),
          cmocka_unit_test(in_hand_meanwhile), cmocka_unit_test(refused_unmaps_and_remaps),
          cmocka_unit_test(large_pages), cmocka_unit_test(summed_anew))

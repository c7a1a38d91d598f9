/* pool/sparing.h: after a fork blocks come from few pages. */
#include "heap_fixture.h"

#include "base/memory.h"
#include "front/front.h"
#include "front/thread.h"
#include "pool/bin.h"
#include "pool/held.h"
#include "pool/partial_set.h"
#include "pool/sparing.h"
#include "region/decay.h"

enum { BLOCKS = 90000, BYTES = 512, PER_SLAB = HAK_UNIT_BYTES / BYTES, FIRST_SLABS = 32 }; /* 46 MB */

static void *blocks[BLOCKS];

static void fill(int count) {
    hak_atomic_store(&hak_background_pays, 1, relaxed); /* what is freed stays */
    for (int i = 0; i < count; i++) assert_non_null(blocks[i] = hak_malloc(BYTES));
}

static bool begin(void) {
    assert_true(hak_heap_begin_slow_path(hak_thread_heap));
    hak_sparing_begin(hak_thread_heap);
    hak_heap_end_slow_path(hak_thread_heap);
    return hak_heap_is_sparing(hak_thread_heap);
}

static uint32_t class_in_use(void) { return hak_region_find((uintptr_t)blocks[BLOCKS - 1]).size_class; }

static uintptr_t unit_of(const void *block) { return (uintptr_t)block / HAK_UNIT_BYTES; }

/* Frees one block in `share` of those in slabs [from, to), counted upwards from where all are of one class, back to their
 * slabs. Returns one of them. */
static void *free_some(uintptr_t from, uintptr_t to, uintptr_t share) {
    void *last = NULL;
    uintptr_t lowest = UINTPTR_MAX;
    for (int i = 0; i < BLOCKS; i++)
        if (unit_of(blocks[i]) < lowest) lowest = unit_of(blocks[i]);
    for (int i = 0; i < BLOCKS; i++) {
        uintptr_t unit = unit_of(blocks[i]) - lowest - FIRST_SLABS, number = (uintptr_t)blocks[i] / BYTES;
        if (unit < from || unit >= to || number % share != 0) continue;
        hak_free(last = blocks[i]);
    }
    hak_heap_flush_bins(hak_thread_heap);
    hak_heap_give_up_slabs(hak_thread_heap);
    return last;
}

/* The first block that comes from another slab than the one that was filled last, which has the highest address. */
static void *past_the_last(void) {
    void *block;
    do assert_non_null(block = hak_malloc(BYTES));
    while (unit_of(block) == unit_of(blocks[BLOCKS - 1]));
    return block;
}

static void small_heaps_and_little_memory(void **state) {
    (void)state;
    fill(BLOCKS / 2); /* 23 MB */
    assert_false(begin());
    fill(BLOCKS);
    hak_atomic_store(&hak_memory_is_tight, true, relaxed);
    assert_false(begin());
    hak_atomic_store(&hak_memory_is_tight, false, relaxed);
    assert_true(begin());
}

static void freed_is_not_next(void **state) {
    struct hak_snapshot snapshot;
    (void)state;
    fill(BLOCKS);
    hak_free(blocks[0]);
    assert_ptr_equal(hak_malloc(BYTES), blocks[0]);
    assert_true(begin());
    void *before = hak_malloc(BYTES);
    for (int i = 0; i < 1000; i++) {
        hak_free(blocks[i]);
        void *next = hak_malloc(BYTES);
        assert_true(unit_of(next) == unit_of(before) ? next > before : next != blocks[i]); /* one after the other */
        before = next;
    }
    check_equations(&snapshot);
}

static void sparse_from_the_top(void **state) {
    (void)state;
    fill(BLOCKS);
    free_some(0, 100, 10); /* less than an eighth of each */
    free_some(100, 110, 4);
    uintptr_t top = unit_of(free_some(200, 201, 4));
    free_some(300, 310, 10);
    assert_true(begin());
    assert_int_equal(unit_of(past_the_last()), top);
    for (int i = 1; i < PER_SLAB / 4; i++) assert_int_equal(unit_of(hak_malloc(BYTES)), top);
    for (uintptr_t slab = 0; slab < 10; slab++) { /* those between were looked at, and are there still */
        uintptr_t next = unit_of(hak_malloc(BYTES));
        assert_int_equal(next, top - 91 - slab);
        for (int i = 1; i < PER_SLAB / 4; i++) assert_int_equal(unit_of(hak_malloc(BYTES)), next);
    }
}

/* A slab that is looked at stays the pool's; no call looks at many. */
static void few_looks(void **state) {
    (void)state;
    fill(BLOCKS);
    free_some(0, 1, 4);
    free_some(1, 1000, 40);
    assert_true(begin());
    uint32_t size_class = class_in_use(), *unit = &hak_thread_heap->sparing_units[size_class], calls = 0;
    assert_non_null(hak_sparing_choose(hak_thread_heap, size_class)); /* the last one */
    struct hak_slab *slab;
    for (uint32_t before = *unit; (slab = hak_sparing_choose(hak_thread_heap, size_class)) == NULL; before = *unit) {
        assert_in_range(before - *unit, 1, 32);
        calls++;
    }
    assert_in_range(calls, BLOCKS / PER_SLAB / 32 - 3, BLOCKS / PER_SLAB / 32);
    assert_int_equal(hak_slab_count_bits(slab->bits, PER_SLAB), PER_SLAB / 4);
    assert_non_null(hak_partial_set_take(size_class)); /* those that were looked at are there still */
}

static void grows(void **state) {
    (void)state;
    fill(BLOCKS);
    free_some(0, 1, 10);
    assert_true(begin());
    uint32_t acquired = hak_thread_heap->acquired_count;
    past_the_last();
    assert_int_equal(hak_thread_heap->acquired_count, acquired + 1);
}

/* A tenth of all is free, but less than an eighth of each slab. */
static void grows_no_more(void **state) {
    (void)state;
    fill(BLOCKS);
    uintptr_t highest = unit_of(free_some(0, BLOCKS / PER_SLAB - FIRST_SLABS, 10));
    assert_true(begin());
    uint32_t acquired = hak_thread_heap->acquired_count;
    assert_int_equal(unit_of(past_the_last()), highest - (BLOCKS / PER_SLAB - FIRST_SLABS) + 1);
    assert_int_equal(hak_thread_heap->acquired_count, acquired);
}

static void ends(void **state) {
    (void)state;
    fill(BLOCKS);
    assert_true(begin());
    int calls = 0;
    for (; hak_heap_is_sparing(hak_thread_heap); calls++) {
        assert_in_range(calls, 0, BLOCKS * 3);
        hak_free(blocks[calls % BLOCKS]);
        assert_non_null(blocks[calls % BLOCKS] = hak_malloc(BYTES));
    }
    assert_in_range(calls, BLOCKS * 2, BLOCKS * 2 + BLOCKS / 16); /* 16 a page */
    hak_free(blocks[0]);
    assert_non_null(hak_malloc(BYTES));
    hak_free(blocks[1]);
    assert_ptr_equal(hak_malloc(BYTES), blocks[1]);
}

/* What is free is used where there is no more. */
static void without_memory(void **state) {
    (void)state;
    fill(BLOCKS);
    void *freed = free_some(0, 1, 40);
    fake_os.address_space_room = 0;
    assert_true(begin());
    void *block;
    bool was_used = false;
    while ((block = hak_malloc(BYTES)) != NULL) was_used |= block == freed;
    assert_true(was_used);
    assert_false(hak_heap_is_sparing(hak_thread_heap));
    hak_free(freed);
    assert_ptr_equal(hak_malloc(BYTES), freed);
}

/* The next thread that has the heap has not forked. */
static void not_for_the_next_thread(void **state) {
    (void)state;
    fill(BLOCKS);
    assert_true(begin());
    struct hak_heap *heap = hak_thread_heap;
    hak_heap_leave(heap);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_false(hak_heap_is_sparing(heap));
}

UNIT_MAIN(cmocka_unit_test(small_heaps_and_little_memory), cmocka_unit_test(freed_is_not_next),
          cmocka_unit_test(sparse_from_the_top), cmocka_unit_test(few_looks), cmocka_unit_test(grows),
          cmocka_unit_test(grows_no_more), cmocka_unit_test(ends), cmocka_unit_test(without_memory),
          cmocka_unit_test(not_for_the_next_thread))

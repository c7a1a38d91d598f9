/* pool/heap.h: blank heaps, heaps left, kept and taken again, and what a forked child finds. */
#include "pool_fixture.h"
#include "base/memory.h"
#include "region/heap_count.h"

static void blank(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t i = 0; i < HAK_CLASS_LIMIT; i++) {
        const struct hak_bin *bin = &heap->bins[i];
        assert_ptr_equal(bin->top, bin->base);
        assert_ptr_equal(bin->top, bin->limit);
        assert_null(bin->top); /* H3 */
        if (i <= HAK_SMALL_CLASS_COUNT) assert_null(heap->partial[i].first);
    }
    assert_int_not_equal(heap->number, HAK_NO_HEAP);
    assert_true(hak_heap_is_known(heap));
    assert_false(hak_heap_is_known(NULL));
    assert_false(hak_heap_is_known(&heap));
}

static void taken_again(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *one = hak_heap_acquire(), *two = hak_heap_acquire();
    assert_ptr_not_equal(one, two);
    assert_int_not_equal(one->number, two->number);
    uint32_t number = one->number;
    assert_true(pool_grow_bin(one, 4));
    hak_heap_release(one);
    size_t mapped = fake_os.mapped_bytes;
    struct hak_heap *again = hak_heap_acquire();
    assert_ptr_equal(again, one);
    assert_int_equal(again->number, number);
    assert_ptr_equal(again->bins[4].base, again->bins[4].limit); /* blank */
    assert_int_equal(fake_os.mapped_bytes, mapped);
    assert_ptr_not_equal(hak_heap_acquire(), one);
}

static void by_number(void **state) {
    (void)state;
    enum { LAST = 256 };
    struct hak_heap *first, *last = NULL;
    pool_start_with_heaps(1, &first, 1);
    assert_ptr_equal(hak_heap_of_number(first->number), first);
    assert_null(hak_heap_of_number(HAK_NO_HEAP));
    assert_null(hak_heap_of_number(first->number + 1));
    for (int i = 1; i < LAST; i++) last = hak_heap_acquire();
    assert_ptr_equal(hak_heap_of_number(first->number), first);
    assert_ptr_equal(hak_heap_of_number(last->number), last);
    assert_null(hak_heap_of_number(HAK_NO_HEAP));
    last = hak_heap_acquire();
    assert_null(hak_heap_of_number(first->number));
    assert_ptr_equal(hak_heap_of_number(last->number), last);
}

/* Those of many threads lie side by side, and would be one where the system gives huge pages unasked. */
static void no_huge_pages(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    const struct fake_call *last = &fake_os.calls[fake_os.call_count[FAKE_ANY] - 1];
    assert_int_equal(last->kind, FAKE_NO_HUGE);
    assert_int_equal(last->start, (uintptr_t)heap);
    assert_int_equal(last->bytes, HAK_HEAP_BYTES);
}

/* The next thread finds the bins, and all else is the pool's meanwhile. */
static void bins_are_kept(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = pool_heap_with_block(&block);
    const struct hak_slab *slab = hak_region_find((uintptr_t)block).slab;
    hak_heap_leave(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_KEPT);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 0);
    assert_null(heap->partial[POOL_CLASS].first);
    assert_int_equal(hak_atomic_load(&slab->state, relaxed), HAK_SLAB_POOLED);
    assert_int_equal(hak_slab_count_bits(slab->bits, slab->block_count), slab->block_count - 1);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 1);
    assert_ptr_equal(heap->bins[POOL_CLASS].top[-1], block);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 1);
}

/* Of large blocks a few are much memory: they go back, and their bins begin small again. */
static void large_blocks_are_not_kept(void **state) {
    (void)state;
    enum { LARGE = HAK_SMALL_CLASS_COUNT };
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = pool_heap_with_block(&block);
    while (pool_slots_of(heap, LARGE) <= hak_heap_shrunk_slots(LARGE))
        assert_int_equal(pool_grow_bin(heap, LARGE), HAK_BIN_GREW);
    *heap->bins[LARGE].top = pool_take_one(heap, LARGE);
    hak_bin_set_top(&heap->bins[LARGE], heap->bins[LARGE].top + 1);
    hak_heap_leave(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_KEPT);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 1);
    assert_int_equal(hak_heap_cached(heap, LARGE), 0);
    assert_int_equal(pool_slots_of(heap, LARGE), hak_heap_shrunk_slots(LARGE));
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[LARGE], relaxed), 0);
}

static void kept_and_taken_apart(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = pool_heap_with_block(&block);
    hak_heap_take_apart(heap); /* not kept: nothing */
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_IN_USE);
    hak_heap_leave(heap);
    assert_true(hak_heap_try_drain(heap)); /* somebody else has it */
    hak_heap_take_apart(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_KEPT);
    assert_ptr_not_equal(hak_heap_acquire(), heap);
    hak_heap_end_drain(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_KEPT);
    hak_heap_take_kept_apart();
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_UNUSED);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 0);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_ptr_equal(heap->bins[POOL_CLASS].limit, NULL); /* blank */
}

/* Enough are kept, memory is tight, the heap is large, its owner was asked to drain it, or somebody does so just now. */
static void not_kept(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    enum { MANY = 20 };
    struct hak_heap *heaps[MANY];
    void *block;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < MANY; i++) heaps[i] = pool_heap_with_block(&block);
    for (uint32_t i = 0; i < MANY; i++) hak_heap_leave(heaps[i]);
    for (uint32_t i = 0; i < MANY; i++) {
        kept += pool_in_use_of(heaps[i]) == HAK_HEAP_KEPT;
        assert_true(pool_in_use_of(heaps[i]) == HAK_HEAP_KEPT || pool_in_use_of(heaps[i]) == HAK_HEAP_UNUSED);
    }
    assert_in_range(kept, 1, MANY / 2);
    hak_heap_take_kept_apart();
    for (uint32_t i = 0; i < 5; i++) heaps[i] = pool_heap_with_block(&block);
    for (uint32_t i = 0; i < 4; i++) hak_heap_leave(heaps[i]); /* where four of five threads end, two are kept */
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(pool_in_use_of(heaps[i]) == HAK_HEAP_KEPT, i < 2);
    hak_heap_leave(heaps[4]);
    hak_heap_take_kept_apart();

    struct hak_heap *heap = pool_heap_with_block(&block);
    hak_atomic_store(&hak_memory_is_tight, 1, relaxed);
    hak_heap_leave(heap);
    hak_atomic_store(&hak_memory_is_tight, 0, relaxed);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_UNUSED);

    heap = pool_heap_with_block(&block);
    uint64_t budget = hak_knob(bin_budget_bytes);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, heap->slots_bytes - 1, relaxed); /* a share of a large heap */
    hak_heap_leave(heap);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, budget, relaxed);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_UNUSED);

    heap = pool_heap_with_block(&block);
    hak_atomic_store(&heap->drain_wanted, 1, relaxed);
    hak_heap_leave(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_UNUSED);

    heap = pool_heap_with_block(&block);
    assert_true(hak_heap_try_drain(heap));
    hak_heap_leave(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_LEFT);
    hak_heap_end_drain(heap);
    assert_int_equal(pool_in_use_of(heap), HAK_HEAP_UNUSED);
}

/* Of threads that are not in a forked child: what they had is the next thread's, as it was, and nothing is left of what
 * drainers said. */
static void heaps_in_a_forked_child(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *kept_block, *other_block;
    struct hak_heap *own = hak_heap_acquire(), *kept = pool_heap_with_block(&kept_block),
                    *other = pool_heap_with_block(&other_block);
    hak_heap_leave(kept);
    assert_int_equal(pool_in_use_of(kept), HAK_HEAP_KEPT);
    struct hak_slab *slab = other->partial[POOL_CLASS].first;
    assert_non_null(slab);
    hak_heap_leave_others_after_fork(own);
    assert_int_equal(pool_in_use_of(own), HAK_HEAP_IN_USE);
    assert_int_equal(pool_in_use_of(kept), HAK_HEAP_ORPHANED);
    assert_int_equal(pool_in_use_of(other), HAK_HEAP_ORPHANED);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 1);
    assert_int_equal(POOL_COUNTER(other, flushed_blocks), 0);
    /* It is taken with its slabs and blocks. */
    assert_ptr_equal(other->partial[POOL_CLASS].first, slab);
    struct hak_heap *first = hak_heap_acquire(), *second = hak_heap_acquire();
    assert_true((first == kept && second == other) || (first == other && second == kept));
    assert_ptr_equal(other->partial[POOL_CLASS].first, slab);
    assert_int_equal(hak_heap_cached(other, POOL_CLASS), 1);
    assert_ptr_not_equal(hak_heap_acquire(), own);
}

/* The same, and the child needs memory: before it grows, they are taken apart. */
static void heaps_of_a_forked_child_are_taken_apart(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block, *kept_block;
    struct hak_heap *own = hak_heap_acquire(), *kept = pool_heap_with_block(&kept_block),
                    *other = pool_heap_with_block(&block);
    hak_heap_leave(kept);
    assert_int_equal(pool_in_use_of(kept), HAK_HEAP_KEPT);
    hak_heap_leave_others_after_fork(own);
    hak_heap_take_kept_apart();
    assert_int_equal(pool_in_use_of(other), HAK_HEAP_UNUSED);
    assert_null(other->partial[POOL_CLASS].first);
    assert_int_equal(POOL_COUNTER(other, flushed_blocks), 1);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    /* None is kept: the first one that is left will be. */
    struct hak_heap *next = pool_heap_with_block(&block);
    hak_heap_leave(next);
    assert_int_equal(pool_in_use_of(next), HAK_HEAP_KEPT);
}

static void no_memory(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    fake_os_refuse(FAKE_MAP, 1, 2);
    assert_null(hak_heap_acquire());
    assert_null(hak_heap_acquire());
    assert_non_null(hak_heap_acquire());
}

static void releasing(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        struct hak_bin *bin = &heap->bins[c];
        assert_true(pool_grow_bin(heap, c));
        while (bin->top != bin->limit) {
            *bin->top = pool_take_one(heap, c);
            hak_bin_set_top(bin, bin->top + 1);
        }
    }
    hak_heap_release(heap);
    pool_every_unit_is_back();
}

UNIT_MAIN(cmocka_unit_test(blank), cmocka_unit_test(taken_again), cmocka_unit_test(by_number),
          cmocka_unit_test(no_huge_pages), cmocka_unit_test(bins_are_kept), cmocka_unit_test(large_blocks_are_not_kept),
          cmocka_unit_test(kept_and_taken_apart), cmocka_unit_test(not_kept), cmocka_unit_test(heaps_in_a_forked_child),
          cmocka_unit_test(heaps_of_a_forked_child_are_taken_apart), cmocka_unit_test(no_memory),
          cmocka_unit_test(releasing))

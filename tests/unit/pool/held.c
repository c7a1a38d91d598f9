/* pool/held.h: slabs that a heap holds and gives up, slabs that were full, and units that it keeps. */
#include "pool_fixture.h"

static void holding(void **state) {
    (void)state;
    enum { SLABS = 20, CLASS = 59 };
    static void *blocks[SLABS * 64];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    hak_atomic_store(&hak_knobs.held_slabs, 5, relaxed);
    uint32_t per_slab = hak_size_classes[CLASS].block_count, count = SLABS * per_slab;
    pool_take(heap, CLASS, blocks, count);
    hak_heap_recheck_full(heap);
    for (uint32_t i = 0; i < SLABS; i++) pool_put_one(heap, CLASS, blocks[i * per_slab]); /* a block of each */
    assert_int_equal(heap->partial[CLASS].count, 5);                                      /* H4 */
    assert_int_equal(POOL_COUNTER(heap, slabs_pooled), SLABS - 5);
    uint32_t linked = 0;
    const struct hak_slab *previous = NULL;
    for (const struct hak_slab *slab = heap->partial[CLASS].first; slab != NULL; slab = slab->next) {
        assert_ptr_equal(slab->previous, previous);
        assert_int_equal(hak_atomic_load(&slab->state, relaxed), hak_slab_state(HAK_SLAB_HELD, heap->number));
        previous = slab;
        linked++;
    }
    assert_int_equal(linked, 5);
    hak_heap_flush(heap);
    assert_int_equal(heap->partial[CLASS].count, 0);
    for (uint32_t i = 0; i < SLABS; i++) { /* all of them are in the pool */
        const void *block = pool_take_one(NULL, CLASS);
        uint32_t found = 0;
        while (found < SLABS && blocks[found * per_slab] != block) found++;
        assert_in_range(found, 0, SLABS - 1);
        blocks[found * per_slab] = NULL;
    }
}

/* Five heaps on one processor: a heap holds slabs of the classes refilled last, and one unit. */
static void many_heaps(void **state) {
    (void)state;
    fake_os.processors = 1;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = NULL, *other = NULL;
    for (int i = 0; i < 4; i++) {
        other = heap;
        heap = hak_heap_acquire();
    }
    assert_false(hak_heaps_are_many());
    for (uint32_t c = 1; c <= HAK_RECENT_CLASSES + 1; c++) pool_take_one(heap, c);
    for (uint32_t c = 1; c <= HAK_RECENT_CLASSES + 1; c++) assert_int_equal(heap->partial[c].count, 1);

    hak_heap_acquire();
    assert_true(hak_heaps_are_many());
    static void *blocks[HAK_RECENT_CLASSES + 2];
    for (uint32_t c = 1; c <= HAK_RECENT_CLASSES; c++) blocks[c] = pool_take_one(heap, c);
    pool_take_one(heap, 2); /* which stays where it is in their order */
    for (uint32_t c = 1; c <= HAK_RECENT_CLASSES; c++) assert_int_equal(heap->partial[c].count, 1);
    pool_take_one(heap, HAK_RECENT_CLASSES + 1);
    for (uint32_t c = 1; c <= HAK_RECENT_CLASSES + 1; c++) assert_int_equal(heap->partial[c].count, c != 1); /* H9 */
    assert_int_equal(hak_atomic_load(&hak_region_find((uintptr_t)blocks[1]).slab->state, relaxed), HAK_SLAB_POOLED);
    assert_int_equal(POOL_COUNTER(heap, slabs_pooled), 1);
    assert_ptr_equal(pool_take_one(other, 1), (char *)blocks[1] + 16);

    struct hak_slab *units[2] = {hak_region_acquire(1, 1, HAK_UNITS_FREE, false),
                                 hak_region_acquire(1, 1, HAK_UNITS_FREE, false)};
    assert_true(hak_heap_wants_unit(heap));
    hak_heap_keep_unit(heap, units[0]);
    assert_false(hak_heap_wants_unit(heap));
    hak_heap_release(other);
    assert_false(hak_heaps_are_many());
    assert_true(hak_heap_wants_unit(heap));
    hak_heap_keep_unit(heap, units[1]);
}

/* A large heap takes units ahead, and keeps them; not where heaps are many. None is lost either way. */
static void units_ahead(void **state) {
    (void)state;
    enum { CLASS = 4 };
    fake_os.processors = 1;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = NULL;
    for (int i = 0; i < 4; i++) heap = hak_heap_acquire();
    void *first = pool_take_one(heap, CLASS + 1); /* the first units are of a SuperSlab that is made */
    heap->acquired_count = 1000;
    heap->has_acquired[CLASS] = true;
    void *block = pool_take_one(heap, CLASS);
    assert_int_equal(heap->empty_count, HAK_EMPTY_SLABS - 1);
    hak_heap_acquire();
    heap->has_acquired[CLASS + 2] = heap->has_acquired[CLASS + 3] = true;
    void *more[2] = {pool_take_one(heap, CLASS + 2), pool_take_one(heap, CLASS + 3)};
    assert_int_equal(heap->empty_count, HAK_EMPTY_SLABS - 3); /* what it has is used */
    struct hak_slab *unit;
    while ((unit = hak_heap_take_unit(heap)) != NULL) hak_region_release(unit, 1);
    heap->has_acquired[CLASS + 6] = heap->has_acquired[CLASS + 7] = true;
    void *last[2] = {pool_take_one(heap, CLASS + 6), pool_take_one(heap, CLASS + 7)};
    assert_int_equal(heap->empty_count, 0); /* none ahead */
    pool_put_one(heap, CLASS, block);
    for (uint32_t i = 0; i < 2; i++) {
        pool_put_one(heap, CLASS + 2 + i, more[i]);
        pool_put_one(heap, CLASS + 6 + i, last[i]);
    }
    pool_put_one(heap, CLASS + 1, first);
    hak_heap_release(heap);
    pool_every_unit_is_back();
}

/* The first block of a full slab that comes back brings it into the pool, even by the heap that had it. */
static void full_slabs_of_many_heaps(void **state) {
    (void)state;
    enum { CLASS = 30 };
    static void *blocks[4096 + 1];
    fake_os.processors = 1;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = NULL;
    for (int i = 0; i < 5; i++) heap = hak_heap_acquire();
    uint32_t count = hak_size_classes[CLASS].block_count;
    pool_take(heap, CLASS, blocks, count + 1);
    hak_heap_recheck_full(heap);
    pool_put_one(heap, CLASS, blocks[7]);
    assert_int_equal(hak_atomic_load(&hak_region_find((uintptr_t)blocks[0]).slab->state, relaxed), HAK_SLAB_POOLED);
    assert_int_equal(heap->partial[CLASS].count, 1); /* that of the last block */
    assert_int_equal(POOL_COUNTER(heap, remote_frees), 0);
    pool_put_one(heap, CLASS, blocks[count]);
    assert_int_equal(heap->partial[CLASS].count, 1);
}

UNIT_MAIN(cmocka_unit_test(holding), cmocka_unit_test(many_heaps), cmocka_unit_test(units_ahead),
          cmocka_unit_test(full_slabs_of_many_heaps))

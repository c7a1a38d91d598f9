/* pool/heap.h: blank heaps, bins that grow, slabs held and given up, heaps left and taken again. */
#include "pool_fixture.h"

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
    assert_true(hak_heap_grow_bin(one, 4));
    hak_heap_release(one);
    size_t mapped = fake_os.mapped_bytes;
    struct hak_heap *again = hak_heap_acquire();
    assert_ptr_equal(again, one);
    assert_int_equal(again->number, number);
    assert_ptr_equal(again->bins[4].base, again->bins[4].limit); /* blank */
    assert_int_equal(fake_os.mapped_bytes, mapped);
    assert_ptr_not_equal(hak_heap_acquire(), one);
}

static void no_memory(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    fake_os_refuse(FAKE_MAP, 1, 2);
    assert_null(hak_heap_acquire());
    assert_null(hak_heap_acquire());
    assert_non_null(hak_heap_acquire());
}

static void growing_bins(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t budget = hak_knob(bin_budget_bytes), spent = 0;
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        struct hak_bin *bin = &heap->bins[c];
        size_t bytes = hak_size_classes[c].block_bytes, slots = 0;
        while (hak_heap_grow_bin(heap, c)) {
            size_t now = (size_t)(bin->limit - bin->base);
            assert_true(now > slots && (slots == 0 || now <= 2 * slots));
            assert_true(now <= hak_knob(bin_most_slots));
            assert_null(bin->base[-1]);
            assert_int_equal(hak_heap_cached(heap, c), slots);
            for (size_t i = 0; i < slots; i++) assert_ptr_equal(bin->base[i], (void *)(i + 1)); /* they stay */
            for (size_t i = slots; i < now; i++) bin->base[i] = (void *)(i + 1);
            hak_bin_set_top(bin, bin->limit);
            slots = now;
        }
        assert_true(slots >= 2);
        spent += slots > 4 ? slots * bytes : 0;
        hak_bin_set_top(bin, bin->base);
    }
    assert_true(spent <= budget);
    assert_true(spent > budget / 2);
    assert_true(heap->slots_next <= heap->slots_end);
}

static size_t slots_of(const struct hak_heap *heap, uint32_t c) {
    return (size_t)(heap->slots[c].end - heap->slots[c].start);
}

/* What is changed while a bin is in use. */
static void limits_of_a_class(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(4096);
    struct hak_bin *bin = &heap->bins[c];
    while (hak_heap_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    size_t usual = slots_of(heap, c);
    assert_int_equal(usual, hak_heap_usual_slots(c));
    hak_atomic_store(&hak_class_slots[c], 64, relaxed);
    while (hak_heap_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 64);
    assert_int_equal(hak_heap_grow_bin(heap, c), HAK_BIN_FITS);
    void **slots_next = heap->slots_next;
    uint64_t slots_bytes = heap->slots_bytes;
    hak_bin_set_top(bin, bin->base + 20); /* blocks stay */
    hak_atomic_store(&hak_class_slots[c], 0, relaxed);
    assert_int_equal(hak_heap_grow_bin(heap, c), HAK_BIN_TOO_LARGE);
    hak_heap_shrink_bin(heap, c);
    assert_int_equal(slots_of(heap, c), 20);
    assert_ptr_equal(bin->limit, bin->base + 20);
    hak_bin_set_top(bin, bin->base);
    hak_heap_shrink_bin(heap, c);
    assert_int_equal(slots_of(heap, c), usual);
    assert_int_equal(heap->slots_bytes, slots_bytes - (64 - usual) * 4096);
    hak_atomic_store(&hak_class_slots[c], 64, relaxed); /* again: in the same memory */
    while (hak_heap_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 64);
    assert_ptr_equal(heap->slots_next, slots_next);
    assert_int_equal(heap->slots_bytes, slots_bytes);
}

static void budget_in_use(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 16 << 10, relaxed);
    while (hak_heap_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 16);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 20, relaxed); /* of a heap that is in use */
    while (hak_heap_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), hak_heap_usual_slots(c));
}

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

static void releasing(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        struct hak_bin *bin = &heap->bins[c];
        assert_true(hak_heap_grow_bin(heap, c));
        while (bin->top != bin->limit) {
            *bin->top = pool_take_one(heap, c);
            hak_bin_set_top(bin, bin->top + 1);
        }
    }
    hak_heap_release(heap);
    hak_region_purge_units(UINT64_MAX, true);
    for (uint32_t i = 0; i < hak_region_sums().super_slabs; i++) /* every unit has come back */
        assert_int_equal(hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed) >> 32, UINT32_MAX);
}

UNIT_MAIN(cmocka_unit_test(blank), cmocka_unit_test(taken_again), cmocka_unit_test(no_memory),
          cmocka_unit_test(growing_bins), cmocka_unit_test(limits_of_a_class), cmocka_unit_test(budget_in_use),
          cmocka_unit_test(holding), cmocka_unit_test(releasing))

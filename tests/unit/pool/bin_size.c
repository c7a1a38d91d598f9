/* pool/bin_size.h: bins that grow, what they may have of a heap, and limits that change while they are in use. */
#include "pool_fixture.h"
#include "region/units.h"

#include <string.h>

enum { MOST_BYTES = 256 << 10 };

static void growing_bins(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t budget = hak_knob(bin_budget_bytes), spent = 0;
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        struct hak_bin *bin = &heap->bins[c];
        size_t bytes = hak_size_classes[c].block_bytes, slots = 0;
        while (pool_grow_bin(heap, c)) {
            size_t now = (size_t)(bin->limit - bin->base);
            assert_true(now > slots && (slots == 0 || now <= 2 * slots));
            assert_true(now <= hak_heap_usual_slots(c));
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

/* 256 KiB, a slot for each 192 of bin_bytes, as many as the controller may say; and in a heap of any size bin_bytes. */
static void first_rule(void **state) {
    (void)state;
    static const uint64_t given[] = {768, 1536, 16 << 10, 48 << 10, 96 << 10, 256 << 10};
    for (uint32_t i = 0; i < sizeof given / sizeof *given; i++) {
        pool_start(SIZE_MAX);
        hak_atomic_store(&hak_knobs.bin_bytes, given[i], relaxed);
        hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 26, relaxed);
        for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
            struct hak_heap *heap = hak_heap_acquire();
            size_t bytes = hak_size_classes[c].block_bytes, most = given[i] / 192, quick = given[i] / bytes;
            if (most > MOST_BYTES / bytes) most = MOST_BYTES / bytes;
            if (most > HAK_CLASS_MOST_SLOTS) most = HAK_CLASS_MOST_SLOTS;
            if (most < HAK_LEAST_SLOTS) most = HAK_LEAST_SLOTS;
            if (quick < HAK_LEAST_SLOTS) quick = HAK_LEAST_SLOTS;
            if (quick > most) quick = most;
            assert_int_equal(hak_heap_usual_slots(c), most);
            assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_GREW);
            size_t first = pool_slots_of(heap, c);
            assert_true(first == 8 || first == most / 2 || first == quick);
            for (int j = 0; j < 20; j++) pool_grow_bin(heap, c);
            assert_int_equal(pool_slots_of(heap, c), quick);
            assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
            hak_heap_release(heap);
        }
    }
}

enum { LARGE_HEAP_SUPER_SLABS = 64 };

static void make_heap_large(void) {
    uint32_t number, count;
    while (hak_region_sums().super_slabs < LARGE_HEAP_SUPER_SLABS) {
        assert_non_null(hak_region_new_super_slabs(&number, &count));
        hak_in_hand_keep();
    }
}

static void a_small_heap_has_no_large_bin(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    assert_int_equal(pool_slots_of(heap, c) * 1024, hak_knob(bin_bytes));
}

static void a_large_bin_grows_by_a_miss_for_every_page(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    make_heap_large();
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    while (pool_slots_of(heap, c) * 1024 < hak_knob(bin_bytes)) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_GREW);
    while (pool_slots_of(heap, c) * 1024 < MOST_BYTES) {
        size_t slots = pool_slots_of(heap, c), most = MOST_BYTES / 1024, more = slots;
        if (more > most - slots) more = most - slots;
        for (size_t i = 1; i < more * 1024 / 4096; i++) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
        assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_GREW);
        assert_int_equal(pool_slots_of(heap, c), slots + more);
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
}

/* Bytes of all slots after so many misses of every class that no bin has any more to earn. */
static uint64_t slots_bytes_at_most(struct hak_heap *heap) {
    uint64_t bytes = 0;
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
        assert_in_range(pool_slots_of(heap, c), HAK_LEAST_SLOTS, hak_heap_usual_slots(c)); /* there is room for all */
        if (pool_slots_of(heap, c) > HAK_LEAST_SLOTS) bytes += pool_slots_of(heap, c) * hak_size_classes[c].block_bytes;
    }
    return bytes;
}

static void bins_have_a_share_of_a_large_heap(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    uint64_t least = hak_knob(bin_budget_bytes);
    struct hak_heap *alone = hak_heap_acquire();
    make_heap_large();
    uint64_t share = LARGE_HEAP_SUPER_SLABS * HAK_SUPER_SLAB_BYTES / hak_knob(bin_budget_share);
    assert_in_range(slots_bytes_at_most(alone), 2 * least, share);
    hak_heap_acquire();
    hak_heap_acquire();
    assert_in_range(slots_bytes_at_most(hak_heap_acquire()), least, share / 4);
}

/* Refills and flushes in turns, or one of four misses at least: the heap is left for it. */
static void bins_that_take_turns(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    make_heap_large();
    uint64_t share = LARGE_HEAP_SUPER_SLABS * HAK_SUPER_SLAB_BYTES / hak_knob(bin_budget_share);
    struct hak_heap *heap = hak_heap_acquire(), *runs = hak_heap_acquire();
    share /= 2;
    memset(heap->miss_run, -1, sizeof heap->miss_run); /* flushes; each of what follows is a refill */
    uint64_t bytes = slots_bytes_at_most(heap);
    assert_in_range(bytes, share + 1, 4 * share);
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(slots_bytes_at_most(heap), bytes);
    memset(runs->miss_run, 1, sizeof runs->miss_run);
    assert_in_range(slots_bytes_at_most(runs), 1, share);

    uint32_t c = HAK_SMALL_CLASS_COUNT; /* one miss of eight is a turn, for so long that counters overflow */
    size_t slots = pool_slots_of(runs, c);
    assert_true(2 * slots <= hak_heap_usual_slots(c));
    assert_true(runs->slots_bytes + slots * hak_size_classes[c].block_bytes > share);
    for (uint32_t i = 0; i < 200000; i++) {
        runs->miss_run[c] = i % 8 == 0 ? -1 : 1;
        pool_grow_bin(runs, c);
    }
    assert_int_equal(pool_slots_of(runs, c), slots);
}

/* What is changed while a bin is in use. */
static void limits_of_a_class(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    make_heap_large();
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(4096);
    struct hak_bin *bin = &heap->bins[c];
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    size_t usual = pool_slots_of(heap, c);
    assert_int_equal(usual, hak_heap_usual_slots(c));
    hak_atomic_store(&hak_class_slots[c], 128, relaxed);
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(pool_slots_of(heap, c), 128);
    assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
    void **slots_next = heap->slots_next;
    uint64_t slots_bytes = heap->slots_bytes;
    hak_bin_set_top(bin, bin->base + 100); /* blocks stay */
    hak_atomic_store(&hak_class_slots[c], 0, relaxed);
    assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_TOO_LARGE);
    hak_heap_close_bin(heap, c);
    hak_heap_shrink_bin(heap, c);
    hak_heap_open_bin(heap, c);
    assert_int_equal(pool_slots_of(heap, c), 100);
    assert_ptr_equal(bin->limit, bin->base + 100);
    hak_bin_set_top(bin, bin->base);
    hak_heap_close_bin(heap, c);
    hak_heap_shrink_bin(heap, c);
    hak_heap_open_bin(heap, c);
    assert_int_equal(pool_slots_of(heap, c), usual);
    assert_int_equal(heap->slots_bytes, slots_bytes - (128 - usual) * 4096);
    hak_atomic_store(&hak_class_slots[c], 128, relaxed); /* again: in the same memory */
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(pool_slots_of(heap, c), 128);
    assert_ptr_equal(heap->slots_next, slots_next);
    assert_int_equal(heap->slots_bytes, slots_bytes);
}

static void budget_in_use(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 16 << 10, relaxed);
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(pool_slots_of(heap, c), 16);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 20, relaxed); /* of a heap that is in use */
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    assert_int_equal(pool_slots_of(heap, c) * 1024, hak_knob(bin_bytes));
}

/* A budget that is lowered while bins are in use. */
static void budget_is_lowered(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t small = hak_size_class_of(64), c = hak_size_class_of(4096);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 20, relaxed);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, small);
    size_t had = pool_slots_of(heap, c);
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(pool_slots_of(heap, c), had);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 32 << 10, relaxed);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    struct hak_bin *bin = &heap->bins[c];
    hak_bin_set_top(bin, bin->base + had - 1); /* blocks stay */
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(pool_slots_of(heap, c), had - 1);
    hak_bin_set_top(bin, bin->base);
    for (int i = 0; i < 20; i++) hak_heap_shrink_to_budget(heap);
    assert_in_range(heap->slots_bytes, 1, 32 << 10);
    assert_true(pool_slots_of(heap, c) >= HAK_LEAST_SLOTS && pool_slots_of(heap, small) >= HAK_LEAST_SLOTS);
    assert_ptr_equal(bin->limit, heap->slots[c].end);
}

/* A share that is lowered: what was earned within it goes, down to what any bin may have; where a class is said to have more, not. */
static void share_is_lowered(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    make_heap_large();
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t earned = hak_size_class_of(4096), quick = hak_size_class_of(2048), own = hak_size_class_of(8192);
    hak_atomic_store(&hak_class_slots[own], 32, relaxed);
    for (int i = 0; i < 1000; i++) {
        pool_grow_bin(heap, earned);
        pool_grow_bin(heap, own);
    }
    while (pool_slots_of(heap, quick) * 2048 < hak_knob(bin_bytes)) pool_grow_bin(heap, quick);
    size_t had = pool_slots_of(heap, earned);
    assert_true(had * 4096 > hak_knob(bin_bytes));
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(pool_slots_of(heap, earned), had);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    for (int i = 0; i < 3; i++) hak_heap_acquire(); /* and more threads have a part in it */
    for (int i = 0; i < 20; i++) hak_heap_shrink_to_budget(heap);
    assert_true(heap->slots_bytes < hak_knob(bin_budget_bytes));
    assert_int_equal(pool_slots_of(heap, earned) * 4096, hak_knob(bin_bytes));
    assert_int_equal(pool_slots_of(heap, quick) * 2048, hak_knob(bin_bytes));
    assert_int_equal(pool_slots_of(heap, own), 32);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, earned);
    assert_int_equal(pool_slots_of(heap, earned) * 4096, hak_knob(bin_bytes));
}

/* However much the bins before have: what the last ones need at first is left. */
static void every_bin_gets_slots(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 26, relaxed);
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) hak_atomic_store(&hak_class_slots[c], 512, relaxed);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        for (int i = 0; i < 20; i++) pool_grow_bin(heap, c);
        assert_in_range(pool_slots_of(heap, c), 8, 512);
    }
    assert_true(pool_slots_of(heap, HAK_SMALL_CLASS_COUNT) < 512);
    assert_true(heap->slots_next <= heap->slots_end);
}

/* Slots that one thread has used up are not missing to the next. */
static void inherited_bins_begin_anew(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    for (int i = 0; i < 3; i++) hak_heap_acquire(); /* so that the share is small */
    void *block;
    struct hak_heap *heap = pool_heap_with_block(&block);
    struct hak_bin *bin = &heap->bins[POOL_CLASS];
    uint64_t budget = heap->slots_bytes;
    hak_atomic_store(&hak_knobs.bin_budget_bytes, budget, relaxed);
    assert_int_equal(pool_grow_bin(heap, POOL_CLASS), HAK_BIN_FITS);
    hak_heap_leave(heap);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 1);
    assert_int_equal(pool_grow_bin(heap, POOL_CLASS + 1), HAK_BIN_GREW);
    assert_int_equal(heap->bins[POOL_CLASS + 1].limit - heap->bins[POOL_CLASS + 1].base, HAK_LEAST_SLOTS);
    assert_ptr_equal(bin->limit, NULL);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 0);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    /* Once: what is in them from now on is this thread's. */
    assert_int_equal(pool_grow_bin(heap, POOL_CLASS), HAK_BIN_GREW);
    bin->base[0] = pool_take_one(heap, POOL_CLASS);
    hak_bin_set_top(bin, bin->base + 1);
    assert_int_equal(pool_grow_bin(heap, POOL_CLASS), HAK_BIN_FITS);
    assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 1);
}

UNIT_MAIN(cmocka_unit_test(growing_bins), cmocka_unit_test(first_rule), cmocka_unit_test(a_small_heap_has_no_large_bin),
          cmocka_unit_test(a_large_bin_grows_by_a_miss_for_every_page),
          cmocka_unit_test(bins_have_a_share_of_a_large_heap), cmocka_unit_test(bins_that_take_turns),
          cmocka_unit_test(limits_of_a_class), cmocka_unit_test(budget_in_use), cmocka_unit_test(budget_is_lowered),
          cmocka_unit_test(share_is_lowered), cmocka_unit_test(every_bin_gets_slots),
          cmocka_unit_test(inherited_bins_begin_anew))

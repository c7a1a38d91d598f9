/* pool/heap.h: blank heaps, bins that grow, slabs held and given up, heaps left and taken again. */
#include "pool_fixture.h"
#include "region/page_policy.h"
#include "region/units.h"
#include "touched_heaps.h"

#include <signal.h>
#include <string.h>

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

enum { KEPT_CLASS = 4 };

/* A heap with a block in a bin, and the slab of that. */
static struct hak_heap *heap_with_block(void **block) {
    struct hak_heap *heap = hak_heap_acquire();
    assert_true(pool_grow_bin(heap, KEPT_CLASS));
    *block = pool_take_one(heap, KEPT_CLASS);
    *heap->bins[KEPT_CLASS].top = *block;
    hak_bin_set_top(&heap->bins[KEPT_CLASS], heap->bins[KEPT_CLASS].top + 1);
    return heap;
}

static uint32_t in_use_of(const struct hak_heap *heap) { return hak_atomic_load(&heap->in_use, relaxed); }

/* The next thread finds the bins, and all else is the pool's meanwhile. */
static void bins_are_kept(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = heap_with_block(&block);
    const struct hak_slab *slab = hak_region_find((uintptr_t)block).slab;
    hak_heap_leave(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_KEPT);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 0);
    assert_null(heap->partial[KEPT_CLASS].first);
    assert_int_equal(hak_atomic_load(&slab->state, relaxed), HAK_SLAB_POOLED);
    assert_int_equal(hak_slab_count_bits(slab->bits, slab->block_count), slab->block_count - 1);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_int_equal(hak_heap_cached(heap, KEPT_CLASS), 1);
    assert_ptr_equal(heap->bins[KEPT_CLASS].top[-1], block);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 1);
}

static void kept_and_taken_apart(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = heap_with_block(&block);
    hak_heap_take_apart(heap); /* not kept: nothing */
    assert_int_equal(in_use_of(heap), HAK_HEAP_IN_USE);
    hak_heap_leave(heap);
    assert_true(hak_heap_try_drain(heap)); /* somebody else has it */
    hak_heap_take_apart(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_KEPT);
    assert_ptr_not_equal(hak_heap_acquire(), heap);
    hak_heap_end_drain(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_KEPT);
    hak_heap_take_kept_apart();
    assert_int_equal(in_use_of(heap), HAK_HEAP_UNUSED);
    assert_int_equal(hak_heap_cached(heap, KEPT_CLASS), 0);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_ptr_equal(heap->bins[KEPT_CLASS].limit, NULL); /* blank */
}

/* Enough are kept, memory is tight, the heap is large, its owner was asked to drain it, or somebody does so just now. */
static void not_kept(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    enum { MANY = 20 };
    struct hak_heap *heaps[MANY];
    void *block;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < MANY; i++) heaps[i] = heap_with_block(&block);
    for (uint32_t i = 0; i < MANY; i++) hak_heap_leave(heaps[i]);
    for (uint32_t i = 0; i < MANY; i++) {
        kept += in_use_of(heaps[i]) == HAK_HEAP_KEPT;
        assert_true(in_use_of(heaps[i]) == HAK_HEAP_KEPT || in_use_of(heaps[i]) == HAK_HEAP_UNUSED);
    }
    assert_in_range(kept, 1, MANY / 2);
    hak_heap_take_kept_apart();
    for (uint32_t i = 0; i < 5; i++) heaps[i] = heap_with_block(&block);
    for (uint32_t i = 0; i < 4; i++) hak_heap_leave(heaps[i]); /* where four of five threads end, two are kept */
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(in_use_of(heaps[i]) == HAK_HEAP_KEPT, i < 2);
    hak_heap_leave(heaps[4]);
    hak_heap_take_kept_apart();

    struct hak_heap *heap = heap_with_block(&block);
    hak_atomic_store(&hak_memory_is_tight, 1, relaxed);
    hak_heap_leave(heap);
    hak_atomic_store(&hak_memory_is_tight, 0, relaxed);
    assert_int_equal(in_use_of(heap), HAK_HEAP_UNUSED);

    heap = heap_with_block(&block);
    uint64_t budget = hak_knob(bin_budget_bytes);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, heap->slots_bytes - 1, relaxed); /* a share of a large heap */
    hak_heap_leave(heap);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, budget, relaxed);
    assert_int_equal(in_use_of(heap), HAK_HEAP_UNUSED);

    heap = heap_with_block(&block);
    hak_atomic_store(&heap->drain_wanted, 1, relaxed);
    hak_heap_leave(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_UNUSED);

    heap = heap_with_block(&block);
    assert_true(hak_heap_try_drain(heap));
    hak_heap_leave(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_LEFT);
    hak_heap_end_drain(heap);
    assert_int_equal(in_use_of(heap), HAK_HEAP_UNUSED);
}

/* Of threads that are not in a forked child: what they had is the next thread's, as it was, and nothing is left of what
 * drainers said. */
static void heaps_in_a_forked_child(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *kept_block, *other_block;
    struct hak_heap *own = hak_heap_acquire(), *kept = heap_with_block(&kept_block),
                    *other = heap_with_block(&other_block);
    hak_heap_leave(kept);
    assert_int_equal(in_use_of(kept), HAK_HEAP_KEPT);
    struct hak_slab *slab = other->partial[KEPT_CLASS].first;
    assert_non_null(slab);
    hak_heap_leave_others_after_fork(own);
    assert_int_equal(in_use_of(own), HAK_HEAP_IN_USE);
    assert_int_equal(in_use_of(kept), HAK_HEAP_ORPHANED);
    assert_int_equal(in_use_of(other), HAK_HEAP_ORPHANED);
    assert_int_equal(hak_atomic_load(&hak_heaps_in_use, relaxed), 1);
    assert_int_equal(POOL_COUNTER(other, flushed_blocks), 0);
    /* It is taken with its slabs and blocks. */
    assert_ptr_equal(other->partial[KEPT_CLASS].first, slab);
    struct hak_heap *first = hak_heap_acquire(), *second = hak_heap_acquire();
    assert_true((first == kept && second == other) || (first == other && second == kept));
    assert_ptr_equal(other->partial[KEPT_CLASS].first, slab);
    assert_int_equal(hak_heap_cached(other, KEPT_CLASS), 1);
    assert_ptr_not_equal(hak_heap_acquire(), own);
}

/* The same, and the child needs memory: before it grows, they are taken apart. */
static void heaps_of_a_forked_child_are_taken_apart(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *block, *kept_block;
    struct hak_heap *own = hak_heap_acquire(), *kept = heap_with_block(&kept_block), *other = heap_with_block(&block);
    hak_heap_leave(kept);
    assert_int_equal(in_use_of(kept), HAK_HEAP_KEPT);
    hak_heap_leave_others_after_fork(own);
    hak_heap_take_kept_apart();
    assert_int_equal(in_use_of(other), HAK_HEAP_UNUSED);
    assert_null(other->partial[KEPT_CLASS].first);
    assert_int_equal(POOL_COUNTER(other, flushed_blocks), 1);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    /* None is kept: the first one that is left will be. */
    struct hak_heap *next = heap_with_block(&block);
    hak_heap_leave(next);
    assert_int_equal(in_use_of(next), HAK_HEAP_KEPT);
}

/* Slots that one thread has used up are not missing to the next. */
static void inherited_bins_begin_anew(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    for (int i = 0; i < 3; i++) hak_heap_acquire(); /* so that the share is small */
    void *block;
    struct hak_heap *heap = heap_with_block(&block);
    struct hak_bin *bin = &heap->bins[KEPT_CLASS];
    uint64_t budget = heap->slots_bytes;
    hak_atomic_store(&hak_knobs.bin_budget_bytes, budget, relaxed);
    assert_int_equal(pool_grow_bin(heap, KEPT_CLASS), HAK_BIN_FITS);
    hak_heap_leave(heap);
    assert_ptr_equal(hak_heap_acquire(), heap);
    assert_int_equal(hak_heap_cached(heap, KEPT_CLASS), 1);
    assert_int_equal(pool_grow_bin(heap, KEPT_CLASS + 1), HAK_BIN_GREW);
    assert_int_equal(heap->bins[KEPT_CLASS + 1].limit - heap->bins[KEPT_CLASS + 1].base, HAK_LEAST_SLOTS);
    assert_ptr_equal(bin->limit, NULL);
    assert_int_equal(hak_heap_cached(heap, KEPT_CLASS), 0);
    assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    /* Once: what is in them from now on is this thread's. */
    assert_int_equal(pool_grow_bin(heap, KEPT_CLASS), HAK_BIN_GREW);
    bin->base[0] = pool_take_one(heap, KEPT_CLASS);
    hak_bin_set_top(bin, bin->base + 1);
    assert_int_equal(pool_grow_bin(heap, KEPT_CLASS), HAK_BIN_FITS);
    assert_int_equal(hak_heap_cached(heap, KEPT_CLASS), 1);
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
        while (pool_grow_bin(heap, c)) {
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

enum { LARGE_HEAP_SUPER_SLABS = 64 };

static void make_heap_large(void) {
    uint32_t number, count;
    while (hak_region_sums().super_slabs < LARGE_HEAP_SUPER_SLABS)
        assert_non_null(hak_region_new_super_slabs(&number, &count));
}

static void a_small_heap_has_no_large_bin(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    assert_int_equal(slots_of(heap, c) * 1024, hak_knob(bin_quick_bytes));
}

static void a_large_bin_grows_by_a_miss_for_every_page(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    make_heap_large();
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    while (slots_of(heap, c) * 1024 < hak_knob(bin_quick_bytes)) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_GREW);
    while (slots_of(heap, c) * 1024 < hak_knob(bin_most_bytes)) {
        size_t slots = slots_of(heap, c), most = hak_knob(bin_most_bytes) / 1024, more = slots;
        if (more > most - slots) more = most - slots;
        for (size_t i = 1; i < more * 1024 / 4096; i++) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
        assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_GREW);
        assert_int_equal(slots_of(heap, c), slots + more);
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
}

/* Bytes of all slots after so many misses of every class that no bin has any more to earn. */
static uint64_t slots_bytes_at_most(struct hak_heap *heap) {
    uint64_t bytes = 0;
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
        assert_in_range(slots_of(heap, c), HAK_LEAST_SLOTS, hak_knob(bin_most_slots)); /* there is room for all */
        if (slots_of(heap, c) > HAK_LEAST_SLOTS) bytes += slots_of(heap, c) * hak_size_classes[c].block_bytes;
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

    uint32_t c = hak_size_class_of(4096); /* one miss of eight is a turn, for so long that counters overflow */
    size_t slots = slots_of(runs, c);
    hak_atomic_store(&hak_knobs.bin_most_bytes, 1 << 20, relaxed);
    assert_true(runs->slots_bytes + slots * 4096 > share);
    for (uint32_t i = 0; i < 200000; i++) {
        runs->miss_run[c] = i % 8 == 0 ? -1 : 1;
        pool_grow_bin(runs, c);
    }
    assert_int_equal(slots_of(runs, c), slots);
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
    size_t usual = slots_of(heap, c);
    assert_int_equal(usual, hak_heap_usual_slots(c));
    hak_atomic_store(&hak_class_slots[c], 128, relaxed);
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 128);
    assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_FITS);
    void **slots_next = heap->slots_next;
    uint64_t slots_bytes = heap->slots_bytes;
    hak_bin_set_top(bin, bin->base + 100); /* blocks stay */
    hak_atomic_store(&hak_class_slots[c], 0, relaxed);
    assert_int_equal(pool_grow_bin(heap, c), HAK_BIN_TOO_LARGE);
    hak_heap_close_bin(heap, c);
    hak_heap_shrink_bin(heap, c);
    hak_heap_open_bin(heap, c);
    assert_int_equal(slots_of(heap, c), 100);
    assert_ptr_equal(bin->limit, bin->base + 100);
    hak_bin_set_top(bin, bin->base);
    hak_heap_close_bin(heap, c);
    hak_heap_shrink_bin(heap, c);
    hak_heap_open_bin(heap, c);
    assert_int_equal(slots_of(heap, c), usual);
    assert_int_equal(heap->slots_bytes, slots_bytes - (128 - usual) * 4096);
    hak_atomic_store(&hak_class_slots[c], 128, relaxed); /* again: in the same memory */
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 128);
    assert_ptr_equal(heap->slots_next, slots_next);
    assert_int_equal(heap->slots_bytes, slots_bytes);
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
    size_t had = slots_of(heap, c);
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(slots_of(heap, c), had);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 32 << 10, relaxed);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    struct hak_bin *bin = &heap->bins[c];
    hak_bin_set_top(bin, bin->base + had - 1); /* blocks stay */
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(slots_of(heap, c), had - 1);
    hak_bin_set_top(bin, bin->base);
    for (int i = 0; i < 20; i++) hak_heap_shrink_to_budget(heap);
    assert_in_range(heap->slots_bytes, 1, 32 << 10);
    assert_true(slots_of(heap, c) >= HAK_LEAST_SLOTS && slots_of(heap, small) >= HAK_LEAST_SLOTS);
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
    while (slots_of(heap, quick) * 2048 < hak_knob(bin_quick_bytes)) pool_grow_bin(heap, quick);
    size_t had = slots_of(heap, earned);
    assert_true(had * 4096 > hak_knob(bin_quick_bytes));
    hak_heap_shrink_to_budget(heap);
    assert_int_equal(slots_of(heap, earned), had);
    hak_atomic_store(&hak_knobs.bin_budget_share, 1024, relaxed);
    for (int i = 0; i < 3; i++) hak_heap_acquire(); /* and more threads have a part in it */
    for (int i = 0; i < 20; i++) hak_heap_shrink_to_budget(heap);
    assert_true(heap->slots_bytes < hak_knob(bin_budget_bytes));
    assert_int_equal(slots_of(heap, earned) * 4096, hak_knob(bin_quick_bytes));
    assert_int_equal(slots_of(heap, quick) * 2048, hak_knob(bin_quick_bytes));
    assert_int_equal(slots_of(heap, own), 32);
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, earned);
    assert_int_equal(slots_of(heap, earned) * 4096, hak_knob(bin_quick_bytes));
}

static void budget_in_use(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 16 << 10, relaxed);
    while (pool_grow_bin(heap, c) == HAK_BIN_GREW) {
    }
    assert_int_equal(slots_of(heap, c), 16);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 20, relaxed); /* of a heap that is in use */
    for (int i = 0; i < 1000; i++) pool_grow_bin(heap, c);
    assert_int_equal(slots_of(heap, c) * 1024, hak_knob(bin_quick_bytes));
}

/* A signal handler that hits, at each instruction of a change of a bin in turn: what it pops is in the bin no more afterwards, and
 * what it pushes is. By the trap flag, which only some processors have; not
 * under ThreadSanitizer, whose runtime would be stepped through, too. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
enum { STEP_CLASS = 4, PUSHED = 1000 };
static struct hak_bin *stepped;
static int steps, step_to_hit;
static const void *popped;
static bool has_pushed;

static void on_step(int signal) {
    (void)signal;
    if (steps++ != step_to_hit) return;
    void **top = hak_owned_peek(&stepped->top);
    if (hak_atomic_load(&stepped->base, relaxed) < top) {
        popped = top[-1];
        if (popped == NULL) popped = &popped; /* what no bin may hold */
        hak_bin_set_top(stepped, --top);
    } else if (top < hak_atomic_load(&stepped->limit, relaxed)) {
        has_pushed = top[-1] != &popped; /* as free compares */
        *top = (void *)PUSHED;
        hak_bin_set_top(stepped, top + 1);
    }
}

static void step_through(bool (*change)(struct hak_heap *, uint32_t), struct hak_heap *heap) {
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    change(heap, STEP_CLASS);
    __asm__ volatile("pushfq\n andq $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
}

static bool grow_bin(struct hak_heap *heap, uint32_t size_class) {
    return pool_grow_bin(heap, size_class) == HAK_BIN_GREW;
}

static bool open_bin(struct hak_heap *heap, uint32_t size_class) {
    pool_open_bin(heap, size_class);
    return true;
}

/* Before the change the bin has `filled` blocks, or no slots at all if `is_first`. With `drained`, one, above the lowest slot. */
static void hit_meanwhile(bool (*change)(struct hak_heap *, uint32_t), uint32_t filled, bool is_first, bool drained) {
    for (step_to_hit = 0, steps = INT32_MAX; step_to_hit < steps; step_to_hit++) {
        pool_start(SIZE_MAX);
        struct hak_heap *heap = hak_heap_acquire();
        struct hak_bin *bin = stepped = &heap->bins[STEP_CLASS];
        if (!is_first) assert_true(grow_bin(heap, STEP_CLASS));
        for (uint32_t i = 0; i < filled; i++) bin->base[i] = (void *)(uintptr_t)(i + 1);
        if (!is_first) hak_bin_set_top(bin, bin->base + filled);
        if (drained) {
            hak_atomic_store(&bin->base, hak_owned_peek(&bin->top) - 1, relaxed);
            hak_atomic_store(&bin->limit, NULL, relaxed);
        }
        steps = 0;
        popped = NULL;
        has_pushed = false;
        step_through(change, heap);
        assert_true(steps > 10);
        uint32_t before = drained ? 1 : filled, count = (uint32_t)hak_heap_cached(heap, STEP_CLASS);
        assert_int_equal(count, before - (popped != NULL) + has_pushed);
        void *const *blocks = hak_atomic_load(&bin->base, relaxed);
        for (uint32_t i = 0; i < count; i++) {
            assert_ptr_not_equal(blocks[i], popped);
            assert_non_null(blocks[i]);
        }
        assert_ptr_equal(hak_atomic_load(&bin->limit, relaxed), heap->slots[STEP_CLASS].end);
    }
}

static void hits_meanwhile(void **state) {
    (void)state;
    const struct sigaction on_trap = {.sa_handler = on_step}, as_before = {.sa_handler = SIG_DFL};
    assert_int_equal(sigaction(SIGTRAP, &on_trap, NULL), 0);
    hit_meanwhile(grow_bin, 0, true, false);
    hit_meanwhile(grow_bin, 0, false, false);
    hit_meanwhile(grow_bin, 7, false, false);
    hit_meanwhile(open_bin, 5, false, true);
    assert_int_equal(sigaction(SIGTRAP, &as_before, NULL), 0);
}
#else
static void hits_meanwhile(void **state) {
    (void)state;
    skip();
}
#endif

/* However much the bins before have: what the last ones need at first is left. */
static void every_bin_gets_slots(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_knobs.bin_budget_bytes, 1 << 26, relaxed);
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) hak_atomic_store(&hak_class_slots[c], 512, relaxed);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        for (int i = 0; i < 20; i++) pool_grow_bin(heap, c);
        assert_in_range(slots_of(heap, c), hak_knob(bin_first_slots), 512);
    }
    assert_true(slots_of(heap, HAK_SMALL_CLASS_COUNT) < 512);
    assert_true(heap->slots_next <= heap->slots_end);
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

static void every_unit_is_back(void) {
    hak_region_purge_units(UINT64_MAX, true);
    for (uint32_t i = 0; i < hak_region_sums().super_slabs; i++)
        assert_int_equal(hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed) >> 32, UINT32_MAX);
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
    every_unit_is_back();
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

static void few_heaps(void **state) {
    (void)state;
    fake_os.processors = 3;
    pool_start(SIZE_MAX);
    for (int i = 0; i < 6; i++) hak_heap_acquire();
    assert_false(hak_heaps_are_many());
    hak_heap_acquire();
    assert_true(hak_heaps_are_many());
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
    every_unit_is_back();
}

/* ---- Births and ends where there are very many heaps ------------------------------------------------------------- */

enum { VERY_MANY_HEAPS = 8000 };

static struct hak_heap *first_heaps[10]; /* the last ones of the list */
static struct hak_heap *born;

static void set_up_very_many(void) {
    pool_start(SIZE_MAX);
    for (uint32_t i = 0; i < VERY_MANY_HEAPS; i++) {
        struct hak_heap *heap = hak_heap_acquire();
        assert_non_null(heap);
        if (i < 10) first_heaps[i] = heap;
    }
}

static void acquire(void) { born = hak_heap_acquire(); }
static void release(void) { hak_heap_release(born); }
static void leave(void) { hak_heap_leave(born); }

/* Whichever is free: a thread's birth looks at the heap that it gets, and its end at the one that it leaves. */
static void births_and_ends_look_at_one_heap(void **state) {
    (void)state;
    set_up_very_many();
    for (uint32_t i = 0; i < 10; i++) hak_heap_release(first_heaps[i]);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(touched_by(acquire), 1);
        assert_int_equal(touched_by(i % 2 == 0 ? release : leave), 1);
    }
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(touched_by(acquire), 1);
    assert_int_equal(touched_by(acquire), 0); /* one made now */
    assert_int_equal(touched_by(acquire), 0);
}

/* What every miss reads is not written by each birth and end; and is not wrong by more than an eighth. */
static void births_seldom_write_what_misses_read(void **state) {
    (void)state;
    set_up_very_many();
    uint32_t about = hak_atomic_load(&hak_heaps_about, relaxed), in_use = VERY_MANY_HEAPS, changes = 0;
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < 10; i++) hak_heap_release(first_heaps[i]);
        for (uint32_t i = 0; i < 10; i++) first_heaps[i] = hak_heap_acquire();
        assert_int_equal(hak_atomic_load(&hak_heaps_about, relaxed), about);
    }
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        hak_heap_release(heap);
        in_use--;
        uint32_t now = hak_atomic_load(&hak_heaps_about, relaxed);
        changes += now != about;
        about = now;
        assert_in_range(now, in_use - in_use / 8, in_use + in_use / 8);
    }
    assert_in_range(changes, 10, 100);
    hak_heap_set_resting(0);
    assert_int_equal(hak_atomic_load(&hak_heaps_about, relaxed), 0);
}

/* Who wants what kept heaps have looks at these. */
static void kept_heaps_are_found_at_once(void **state) {
    (void)state;
    set_up_very_many();
    assert_int_equal(touched_by(hak_heap_take_kept_apart), 0);
    hak_heap_leave(first_heaps[0]);
    hak_heap_leave(first_heaps[1]);
    assert_int_equal(in_use_of(first_heaps[1]), HAK_HEAP_KEPT);
    assert_int_equal(touched_by(hak_heap_take_kept_apart), 2);
    assert_int_equal(in_use_of(first_heaps[0]), HAK_HEAP_UNUSED);
    assert_int_equal(in_use_of(first_heaps[1]), HAK_HEAP_UNUSED);
}

UNIT_MAIN(cmocka_unit_test(blank), cmocka_unit_test(taken_again), cmocka_unit_test(bins_are_kept),
          cmocka_unit_test(kept_and_taken_apart), cmocka_unit_test(not_kept), cmocka_unit_test(heaps_in_a_forked_child),
          cmocka_unit_test(heaps_of_a_forked_child_are_taken_apart), cmocka_unit_test(inherited_bins_begin_anew),
          cmocka_unit_test(no_huge_pages), cmocka_unit_test(no_memory), cmocka_unit_test(growing_bins),
          cmocka_unit_test(a_small_heap_has_no_large_bin), cmocka_unit_test(a_large_bin_grows_by_a_miss_for_every_page),
          cmocka_unit_test(bins_have_a_share_of_a_large_heap), cmocka_unit_test(bins_that_take_turns),
          cmocka_unit_test(limits_of_a_class), cmocka_unit_test(budget_in_use), cmocka_unit_test(budget_is_lowered),
          cmocka_unit_test(share_is_lowered), cmocka_unit_test(every_bin_gets_slots), cmocka_unit_test(hits_meanwhile),
          cmocka_unit_test(holding), cmocka_unit_test(many_heaps), cmocka_unit_test(units_ahead),
          cmocka_unit_test(full_slabs_of_many_heaps), cmocka_unit_test(few_heaps), cmocka_unit_test(releasing),
          cmocka_unit_test(births_and_ends_look_at_one_heap), cmocka_unit_test(kept_heaps_are_found_at_once),
          cmocka_unit_test(births_seldom_write_what_misses_read))

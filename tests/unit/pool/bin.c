/* pool/bin.h: bins that are flushed, and hits in the middle of a change. */
#include "pool_fixture.h"

#include <signal.h>

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

enum { BLOCKS = 5 };

/* A heap with BLOCKS blocks in the bin of POOL_CLASS. */
static struct hak_heap *heap_with_blocks(void) {
    pool_start(SIZE_MAX);
    void *block;
    struct hak_heap *heap = pool_heap_with_block(&block);
    struct hak_bin *bin = &heap->bins[POOL_CLASS];
    while (hak_heap_cached(heap, POOL_CLASS) < BLOCKS) {
        *bin->top = pool_take_one(heap, POOL_CLASS);
        hak_bin_set_top(bin, bin->top + 1);
    }
    return heap;
}

/* Open, for frees only (H8), closed (H10), or drained: as long as it has blocks it is the same; once they are all with
 * their slabs, no free hits it. */
static void flushed_bins(void **state) {
    (void)state;
    enum { OPEN, FOR_FREES, CLOSED, DRAINED, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        struct hak_heap *heap = heap_with_blocks();
        struct hak_bin *bin = &heap->bins[POOL_CLASS];
        hak_heap_close_bin(heap, POOL_CLASS);
        if (kind == FOR_FREES) hak_heap_keep_for_frees(heap, POOL_CLASS);
        else if (kind != CLOSED) hak_heap_open_bin(heap, POOL_CLASS);
        if (kind == DRAINED) {
            hak_atomic_store(&bin->base, bin->top - 1, relaxed);
            hak_atomic_store(&bin->limit, NULL, relaxed);
        }
        size_t count = hak_heap_cached(heap, POOL_CLASS);
        assert_int_equal(count, kind == DRAINED ? 1 : BLOCKS);
        void **limit = hak_atomic_load(&bin->limit, relaxed);
        const void *newest = bin->top[-1];
        if (kind != DRAINED) {
            assert_int_equal(hak_heap_flush_oldest(heap, POOL_CLASS, BLOCKS - 1), BLOCKS - 1);
            assert_ptr_equal(hak_atomic_load(&bin->limit, relaxed), limit);
            assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 1);
            assert_ptr_equal(heap->slots[POOL_CLASS].start[0], newest);
        }
        hak_heap_flush_bin(heap, POOL_CLASS);
        assert_int_equal(hak_heap_cached(heap, POOL_CLASS), 0);
        assert_int_equal(POOL_COUNTER(heap, flushed_blocks), count);
        assert_int_equal(hak_heap_is_for_frees(heap, POOL_CLASS), kind == FOR_FREES || kind == CLOSED);
        assert_null(hak_atomic_load(&bin->limit, relaxed));
        if (kind != DRAINED) assert_ptr_equal(hak_heap_lowest(heap, POOL_CLASS), heap->slots[POOL_CLASS].start);
        hak_heap_flush_bin(heap, POOL_CLASS); /* nothing is in it */
        assert_int_equal(POOL_COUNTER(heap, flushed_blocks), count);
    }
}

static void bins_are_given_up(void **state) {
    (void)state;
    struct hak_heap *heap = heap_with_blocks();
    hak_heap_give_up_bins(heap);
    assert_int_equal(POOL_COUNTER(heap, flushed_blocks), BLOCKS);
    assert_int_equal(heap->slots_bytes, 0);
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) { /* H3 */
        assert_null(heap->bins[c].top);
        assert_null(heap->bins[c].limit);
        assert_int_equal(pool_slots_of(heap, c), 0);
    }
    assert_int_equal(pool_grow_bin(heap, POOL_CLASS), HAK_BIN_GREW); /* and begins small again */
    assert_int_equal(pool_slots_of(heap, POOL_CLASS), 8);
}

/* As whoever reports a misuse finds a bin that its owner changes at that moment. */
static void looked_at_from_outside(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    struct hak_bin *bin = &heap->bins[4];
    char block[16];
    assert_true(pool_grow_bin(heap, 4) == HAK_BIN_GREW);
    bin->base[0] = block;
    assert_null(hak_heap_that_keeps(4, block));
    hak_bin_set_top(bin, bin->base + 1);
    assert_ptr_equal(hak_heap_that_keeps(4, block), heap);
    hak_bin_set_top(bin, (void **)UINTPTR_MAX);
    assert_null(hak_heap_that_keeps(4, block + 1));
    hak_atomic_store(&bin->base, NULL, relaxed);
    assert_null(hak_heap_that_keeps(4, block));
}

UNIT_MAIN(cmocka_unit_test(flushed_bins), cmocka_unit_test(bins_are_given_up), cmocka_unit_test(hits_meanwhile),
          cmocka_unit_test(looked_at_from_outside))

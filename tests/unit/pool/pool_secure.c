/* pool/pool.c in the secure build: the guard behind each slab. */
#include "pool_fixture.h"

#include <string.h>

#include "pool/purge.h"
#include "region/page_policy.h"

enum { PAGE = 4096 };

static bool is_accessible(uintptr_t at) { return unit_is_accessible((const void *)at); }

static struct hak_heap *start(bool has_guards) {
    fake_os.has_guards = has_guards;
    pool_start(SIZE_MAX);
    return hak_heap_acquire();
}

static uintptr_t end_of_slab(const void *block, uint32_t size_class) {
    size_t bytes = hak_size_classes[size_class].unit_count * HAK_UNIT_BYTES;
    return hak_align_down((uintptr_t)block, bytes) + bytes;
}

static const uint32_t sizes[] = {16, 560, 4096, 8192, 16384, 32768};
enum { SIZES = sizeof sizes / sizeof *sizes, COUNT = 12000 };
static void *blocks[COUNT];

/* Some slabs of blocks of `bytes`; returns how many blocks. */
static uint32_t take_some(struct hak_heap *heap, uint32_t bytes) {
    uint32_t c = hak_class_of_block(bytes), count = 5 * hak_size_classes[c].block_count / 2;
    assert_true(count <= COUNT);
    pool_take(heap, c, blocks, count);
    return count;
}

static void put(struct hak_heap *heap, uint32_t bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) memset(blocks[i], 0, bytes); /* as a free block is */
    hak_pool_put(heap, hak_class_of_block(bytes), blocks, count);
}

/* Who gets these next may use all of them. */
static void expect_no_guard_in_free_units(void) {
    const struct hak_range *range = hak_region_range(0);
    for (uint32_t unit = 0; unit < hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB; unit++) {
        uint64_t word = hak_atomic_load(&range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].free_units, relaxed);
        uint32_t there = hak_units_dirty(word) | hak_units_fresh(word);
        if ((there >> unit % HAK_UNITS_PER_SUPER_SLAB & 1) == 0) continue;
        assert_true(is_accessible(range->start + (unit + 1) * HAK_UNIT_BYTES - 1));
    }
}

/* All blocks of a few slabs of each kind can be written to their ends, and the page behind them can't. Once they are
 * given up, all of their units can. */
static void behind_each_slab(void **state) {
    (void)state;
    struct hak_heap *heap = start(true);
    for (size_t s = 0; s < SIZES; s++) {
        uint32_t c = hak_class_of_block(sizes[s]), count = take_some(heap, sizes[s]);
        for (uint32_t i = 0; i < count; i++) {
            uintptr_t end = end_of_slab(blocks[i], c);
            memset(blocks[i], 1, sizes[s]);
            assert_true((uintptr_t)blocks[i] + sizes[s] <= end - PAGE);
            if (i % 64 != 0) continue;
            assert_false(is_accessible(end - PAGE) || is_accessible(end - 1));
            assert_true(is_accessible(end - PAGE - 1));
        }
        expect_no_guard_in_free_units();
        put(heap, sizes[s], count);
        hak_heap_give_up_slabs(heap);
        expect_no_guard_in_free_units();
    }
    assert_int_equal(fake_os.call_count[FAKE_GUARD], fake_os.call_count[FAKE_UNGUARD]);
}

/* What is purged of a slab ends before its guard: the kernel's wrapper may look at what was purged. */
static void purged_up_to_it(void **state) {
    (void)state;
    struct hak_heap *heap = start(true);
    uint32_t c = hak_class_of_block(560), count = take_some(heap, 560);
    void *kept = blocks[0];
    blocks[0] = blocks[count - 1];
    put(heap, 560, count - 1);
    fake_os_forget();
    assert_true(hak_purge_all(heap) != 0);
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++) {
        const struct fake_call *call = &fake_os.calls[i];
        uintptr_t end = end_of_slab(kept, c);
        if (call->kind == FAKE_PURGE && call->start < end) assert_true(call->start + call->bytes <= end - PAGE);
    }
}

/* Holes of a slab are counted no longer when it is given up, whether or not its guard goes. */
static void holes_of_guards_that_stay(void **state) {
    (void)state;
    struct hak_heap *heap = start(true);
    uint32_t count = take_some(heap, 560);
    void *kept = blocks[0];
    blocks[0] = blocks[count - 1];
    put(heap, 560, count - 1);
    assert_true(hak_purge_all(heap) != 0 && hak_atomic_load(&hak_slab_holes, relaxed) != 0);
    fake_os_refuse(FAKE_UNGUARD, 1, SIZE_MAX);
    blocks[0] = kept;
    put(heap, 560, 1);
    hak_heap_give_up_slabs(heap);
    assert_int_equal(hak_atomic_load(&hak_slab_holes, relaxed), 0);
}

/* Units whose guard stays are nobody's, or go back to the kernel; those before them are used again. */
static void guards_that_stay(void **state) {
    (void)state;
    struct hak_heap *heap = start(true);
    for (size_t s = 0; s < SIZES; s++) {
        uint32_t count = take_some(heap, sizes[s]);
        put(heap, sizes[s], count);
        fake_os_refuse(FAKE_UNGUARD, 1, SIZE_MAX);
        hak_heap_give_up_slabs(heap);
        fake_os_refuse_nothing();
        expect_no_guard_in_free_units();
    }
    for (int i = 0; i < 3; i++) { /* and the heap works */
        uint32_t count = take_some(heap, 4096);
        for (uint32_t j = 0; j < count; j++) memset(blocks[j], 1, 4096);
        put(heap, 4096, count);
    }
}

static void refused(void **state) {
    (void)state;
    struct hak_heap *heap = start(true);
    fake_os_refuse(FAKE_GUARD, 1, SIZE_MAX);
    uint32_t count = take_some(heap, 4096);
    assert_true(is_accessible(end_of_slab(blocks[0], hak_class_of_block(4096)) - 1));
    put(heap, 4096, count);
    hak_heap_give_up_slabs(heap);
    expect_no_guard_in_free_units();
}

/* With guards in each slab no SuperSlab of slabs is asked to be a huge page; without them it is. */
static void no_huge_pages(bool has_guards) {
    struct hak_heap *heap = start(has_guards);
    fake_os.has_huge_pages = true;
    hak_atomic_store(&hak_knobs.huge_page_mode, HAK_HUGE_ON, relaxed);
    for (int i = 0; i < 20; i++) take_some(heap, 4096);
    assert_true((fake_os.call_count[FAKE_HUGE] == 0) == has_guards);
}
static void no_huge_pages_with_guards(void **state) {
    (void)state;
    no_huge_pages(true);
}
static void huge_pages_without(void **state) {
    (void)state;
    no_huge_pages(false);
}

/* Of large pages a guard would be a great part of a slab. */
static void large_pages(void **state) {
    (void)state;
    fake_os.page_bytes = 4 * PAGE;
    struct hak_heap *heap = start(true);
    take_some(heap, 4096);
    assert_int_equal(hak_size_classes[hak_class_of_block(4096)].block_count, HAK_UNIT_BYTES / 4096);
    assert_int_equal(fake_os.call_count[FAKE_GUARD], 0);
}

/* The kernel may leave the contents of units that went back lazily. Slabs of such units are zero all the same. */
static void lazily_purged(void **state) {
    (void)state;
    enum { UNITS = 8 };
    struct hak_heap *heap = start(true);
    hak_atomic_store(&hak_knobs.lazy_purge_mode, 1, relaxed);
    struct hak_slab *run = hak_region_acquire(UNITS, UNITS, HAK_UNITS_NEW_SUPER, false);
    memset((void *)hak_region_start_of(hak_region_range_of_record(run), run), 7, UNITS * HAK_UNIT_BYTES);
    hak_region_release(run, UNITS);
    assert_true(hak_purge_all(heap) != 0 && fake_os.call_count[FAKE_LAZY_PURGE] != 0);
    uint32_t c = hak_class_of_block(4096), count = hak_size_classes[c].block_count;
    pool_take(heap, c, blocks, count);
    for (uint32_t i = 0; i < count; i++)
        for (size_t j = 0; j < 4096; j++) assert_int_equal(((const char *)blocks[i])[j], 0);
}

UNIT_MAIN(cmocka_unit_test(behind_each_slab), cmocka_unit_test(purged_up_to_it),
          cmocka_unit_test(holes_of_guards_that_stay), cmocka_unit_test(guards_that_stay), cmocka_unit_test(refused),
          cmocka_unit_test(no_huge_pages_with_guards), cmocka_unit_test(huge_pages_without),
          cmocka_unit_test(large_pages), cmocka_unit_test(lazily_purged))

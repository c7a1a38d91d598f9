/* pool/purge.h: exactly the pages that hold no block go back, and blocks in use stay as they were. */
#include "pool_fixture.h"

#include "allowance.h"

#include <string.h>

#include "pool/purge.h"
#include "region/large.h"
#include "region/mapping_cache.h"

/* Which pages of `bytes` at `start` the calls of a purge cover: a byte for each; a page given back twice is an error. */
static void mark_purged(uintptr_t start, size_t bytes, unsigned char *pages) {
    memset(pages, 0, bytes / fake_os.page_bytes);
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++) {
        const struct fake_call *call = &fake_os.calls[i];
        if (call->kind != FAKE_PURGE || call->start - start >= bytes) continue;
        assert_true(call->start - start + call->bytes <= bytes);
        for (size_t at = 0; at < call->bytes; at += fake_os.page_bytes) {
            size_t page = (call->start - start + at) / fake_os.page_bytes;
            assert_int_equal(pages[page], 0);
            pages[page] = call->done ? 1 : 2;
        }
    }
}

/* One slab of every class, some of its blocks freed: a page goes back if and only if no block in it is in use; behind the last
 * block too. */
static void purge_holes_of_all_classes(size_t page_bytes) {
    static void *blocks[4096];
    static bool is_free[4096];
    static unsigned char purged[64];
    fake_os.page_bytes = page_bytes;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *purger = hak_heap_acquire();
    uint64_t random = page_bytes;
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_size_class *facts = &hak_size_classes[c];
        size_t bytes = facts->block_bytes, slab_bytes = facts->unit_count * HAK_UNIT_BYTES;
        uint32_t count = facts->block_count, put_count = 0;
        pool_take(heap, c, blocks, count);
        uintptr_t start = (uintptr_t)blocks[0];
        uint32_t hole = count / 4; /* a stretch, and single ones */
        for (uint32_t i = 0; i < count; i++) {
            memset(blocks[i], (int)(i % 255) + 1, bytes);
            is_free[i] = (i >= hole && i < hole + count / 2) || unit_random(&random) % 4 == 0;
        }
        is_free[count - 1] = false;
        hak_purge_all(purger); /* units that the heap took ahead */
        for (uint32_t i = 0; i < count; i++)
            if (is_free[i]) pool_put_one(heap, c, blocks[i]), put_count++;
        fake_os_forget();
        size_t returned = hak_purge_all(purger);
        mark_purged(start, slab_bytes, purged);
        size_t expected = 0;
        for (size_t page = 0; page < slab_bytes / page_bytes; page++) {
            size_t first = page * page_bytes / bytes, last = ((page + 1) * page_bytes - 1) / bytes;
            bool free_page = true;
            for (size_t i = first; i <= last && i < count; i++) free_page = free_page && is_free[i];
            assert_int_equal(purged[page], free_page);
            expected += free_page * page_bytes;
        }
        assert_int_equal(returned, expected);
        for (uint32_t i = 0; i < count; i++) {
            const unsigned char *block = blocks[i];
            if (is_free[i]) continue;
            assert_int_equal(block[0], i % 255 + 1);
            assert_memory_equal(block, block + 1, bytes - 1);
        }
        fake_os_forget();
        assert_int_equal(hak_purge_all(purger), 0); /* known holes are not purged again */
        assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
        pool_take(heap, c, blocks, put_count); /* all that was free is still there, once */
        for (uint32_t i = 0, at = 0; i < count; i++)
            if (is_free[i]) assert_true(hak_region_find((uintptr_t)blocks[at++]).kind == HAK_PLACE_SMALL);
        for (uint32_t i = 0; i < put_count; i++) assert_true((uintptr_t)blocks[i] - start < slab_bytes);
    }
}

static void holes_in_pages_of_4_kib(void **state) {
    (void)state;
    purge_holes_of_all_classes(4096);
}
static void holes_in_pages_of_16_kib(void **state) {
    (void)state;
    purge_holes_of_all_classes(16384);
}
static void holes_in_pages_of_64_kib(void **state) {
    (void)state;
    purge_holes_of_all_classes(65536);
}

static void refused(void **state) {
    (void)state;
    void *blocks[64];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    pool_take(heap, c, blocks, 64);
    for (int i = 0; i < 64; i++) memset(blocks[i], i + 1, 1024);
    hak_pool_put(heap, c, blocks + 8, 16); /* pages 2 to 5 */
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    assert_int_equal(hak_purge_all(NULL), 0);
    fake_os_refuse_nothing();
    for (int i = 0; i < 8; i++) assert_int_equal(*(char *)blocks[i], i + 1);
    fake_os_forget();
    assert_int_equal(hak_purge_all(NULL), 4 * 4096); /* refused is not purged */
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 1);
    assert_int_equal(fake_os.calls[0].start, (uintptr_t)blocks[8]);
    pool_take(heap, c, blocks + 8, 16);
}

/* After a block of a purged page was in use, the page can be a hole anew. */
static void holes_come_and_go(void **state) {
    (void)state;
    void *blocks[64];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(4096);
    pool_take(heap, c, blocks, 16);
    for (int round = 0; round < 5; round++) {
        hak_pool_put(heap, c, blocks + 4, 4);
        assert_int_equal(hak_purge_all(NULL), 4 * 4096);
        pool_take(heap, c, blocks + 4, 4);
        for (int i = 4; i < 8; i++) {
            assert_int_equal(*(char *)blocks[i], 0);
            *(char *)blocks[i] = 1;
        }
    }
}

static void all_kinds_of_free_memory(void **state) {
    (void)state;
    allow_free_memory();
    static void *blocks[256];
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_knobs.run_limit_bytes, HAK_MIB, relaxed);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    pool_take(heap, c, blocks, 256);
    hak_pool_put(heap, c, blocks, 256); /* three empty slabs are kept, one stays partial */
    char *run = hak_large_alloc(300000, 16, false), *mapping = hak_large_alloc(3 * HAK_MIB, 16, false);
    struct hak_place place = hak_region_find((uintptr_t)run);
    assert_true(hak_large_free(&place));
    place = hak_region_find((uintptr_t)mapping);
    assert_true(hak_large_free(&place));
    assert_int_equal(hak_mapping_cache_bytes(), 3 * HAK_MIB);
    size_t expected = 4 * HAK_UNIT_BYTES + 5 * HAK_UNIT_BYTES + 3 * HAK_MIB;
    assert_int_equal(hak_purge_all(heap), expected);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_int_equal(hak_purge_all(heap), 0);
}

/* Blocks in bins are in use, but for those of the purging heap itself. */
static void bins(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(4096);
    struct hak_bin *bin = &heap->bins[c];
    assert_true(pool_grow_bin(heap, c));
    void *block = pool_take_one(heap, c);
    *(char *)block = 1;
    bin->top[0] = block;
    hak_bin_set_top(bin, bin->top + 1);
    hak_purge_all(NULL);
    assert_int_equal(*(char *)block, 1);
    assert_int_equal(hak_heap_cached(heap, c), 1);
    hak_purge_all(heap);
    assert_int_equal(hak_heap_cached(heap, c), 0);
    assert_int_equal(*(char *)block, 0);
}

/* ---- Sweeps --------------------------------------------------------------------------------------------------------- */

enum { BIG = 32768, BIG_PER_SLAB = 8, BIG_PER_SUPER_SLAB = 64 };

static void *big_blocks[4 * BIG_PER_SUPER_SLAB];

static uint32_t big_class(void) { return hak_size_class_of(BIG); }

static struct hak_heap *take_big_blocks(uint32_t super_slabs) {
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    pool_take(heap, big_class(), big_blocks, super_slabs * BIG_PER_SUPER_SLAB);
    assert_int_equal(hak_region_sums().super_slabs, super_slabs);
    return heap;
}

/* All but one of each slab. */
static void put_most(struct hak_heap *heap, uint32_t super_slabs) {
    for (uint32_t i = 0; i < super_slabs * BIG_PER_SUPER_SLAB; i++)
        if (i % BIG_PER_SLAB != 0) pool_put_one(heap, big_class(), big_blocks[i]);
    fake_os_forget();
}

static const size_t holes_of_slab = (BIG_PER_SLAB - 1) * BIG;
static const size_t holes_of_super_slab = (BIG_PER_SLAB - 1) * BIG * (BIG_PER_SUPER_SLAB / BIG_PER_SLAB);

static size_t sweep(uint64_t least_bytes) { return hak_purge_sweep(least_bytes, UINT32_MAX); }

static void old_holes(void **state) {
    (void)state;
    assert_int_equal(sweep(0), 0);
    struct hak_heap *heap = take_big_blocks(2);
    put_most(heap, 2);
    assert_int_equal(sweep(0), 0); /* seen for the first time */
    pool_take_one(heap, big_class());
    size_t holes = 2 * holes_of_super_slab - holes_of_slab;
    assert_int_equal(sweep(holes + 1), 0);
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    assert_int_equal(sweep(holes), holes); /* but for the slab that was taken from */
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 15);
    assert_int_equal(sweep(0), 0);
    hak_heap_flush(heap); /* what the heap had claimed */
    assert_int_equal(sweep(0), holes_of_slab - BIG);
    assert_int_equal(sweep(0), 0);
}

static void one_super_slab_at_a_time(void **state) {
    (void)state;
    put_most(take_big_blocks(4), 4);
    for (int i = 0; i < 4; i++) assert_int_equal(hak_purge_sweep(0, 1), 0);
    assert_int_equal(hak_purge_sweep(0, 1), holes_of_super_slab);
    assert_int_equal(hak_purge_sweep(4 * holes_of_super_slab, 1), holes_of_super_slab);
    assert_int_equal(hak_purge_sweep(4 * holes_of_super_slab + 4, 1), 0);
    assert_int_equal(hak_purge_sweep(0, 2), holes_of_super_slab);
    assert_int_equal(hak_purge_sweep(0, 2), holes_of_super_slab); /* after the last comes the first */
    assert_int_equal(hak_purge_sweep(0, 2), 0);
}

/* A huge page is given up for an eighth of it, or when everything is asked for. */
static void huge_pages(void **state) {
    (void)state;
    fake_os.has_huge_pages = true;
    hak_atomic_store(&hak_knobs.huge_page_mode, 2, relaxed);
    struct hak_heap *heap = take_big_blocks(2);
    uint32_t put_count = HAK_SUPER_SLAB_BYTES / 8 / BIG;
    for (uint32_t i = 0; i < put_count - 1; i++) pool_put_one(heap, big_class(), big_blocks[i]);
    pool_put_one(heap, big_class(), big_blocks[BIG_PER_SUPER_SLAB]);
    fake_os_forget();
    for (int i = 0; i < 3; i++) assert_int_equal(sweep(0), 0);
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    pool_put_one(heap, big_class(), big_blocks[put_count]);
    assert_int_equal(sweep(0), put_count * BIG);
    assert_int_equal(fake_os.call_count[FAKE_BREAK], 1);
    assert_int_equal(hak_purge_all(NULL), BIG);
    assert_int_equal(fake_os.call_count[FAKE_BREAK], 2);
}

/* Another thread frees while a look at all holes goes on, where it has been already. */
static void free_behind(void) {
    static const size_t slabs = BIG_PER_SUPER_SLAB / BIG_PER_SLAB;
    size_t calls = fake_os.call_count[FAKE_PURGE], look = calls / slabs;
    if (calls % slabs != 0 || look == 0 || look > 3) return;
    for (uint32_t i = 0; i < BIG_PER_SUPER_SLAB; i++) /* from the last SuperSlab down */
        if (i % BIG_PER_SLAB != 0) pool_put_one(NULL, big_class(), big_blocks[(3 - look) * BIG_PER_SUPER_SLAB + i]);
}

static void while_others_go_on(void **state) {
    (void)state;
    struct hak_heap *heap = take_big_blocks(4);
    for (uint32_t i = 0; i < BIG_PER_SUPER_SLAB; i++)
        if (i % BIG_PER_SLAB != 0) pool_put_one(heap, big_class(), big_blocks[3 * BIG_PER_SUPER_SLAB + i]);
    fake_os_forget();
    fake_os.at_purge = free_behind;
    assert_int_equal(hak_purge_all(NULL), 4 * holes_of_super_slab);
    fake_os.at_purge = NULL;
    assert_int_equal(hak_purge_all(NULL), 0);
}

/* Of two who purge a slab at once, both may find the same hole: it counts once. */
static void purge_beside(void) {
    fake_os.at_purge = NULL;
    hak_purge_all(NULL);
}

static void found_by_two(void **state) {
    (void)state;
    struct hak_heap *heap = take_big_blocks(1);
    for (uint32_t i = 0; i < BIG_PER_SUPER_SLAB; i += 2) pool_put_one(heap, big_class(), big_blocks[i]);
    fake_os.at_purge = purge_beside;
    hak_purge_all(NULL);
    assert_int_equal(hak_atomic_load(&hak_slab_holes, relaxed) * 4096, BIG_PER_SUPER_SLAB / 2 * BIG);
}

static struct hak_heap *busy_heap;
static void *freed_meanwhile;
static uint32_t purge_count;
static void without_heap(void) {
    purge_count++;
    assert_false(hak_heap_begin_slow_path(busy_heap));
    if (freed_meanwhile != NULL) pool_put_one(NULL, hak_size_class_of(2048), freed_meanwhile);
    freed_meanwhile = NULL;
}

/* Threads whose heaps were drained go without them until all is done. */
static void without_their_heaps(void **state) {
    (void)state;
    static void *blocks[4];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = busy_heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(4096);
    pool_take(heap, c, blocks, 4);
    freed_meanwhile = pool_take_one(heap, hak_size_class_of(2048));
    struct hak_bin *bin = &heap->bins[c];
    assert_true(pool_grow_bin(heap, c));
    for (int i = 0; i < 4; i++, hak_bin_set_top(bin, bin->top + 1)) *bin->top = blocks[i];
    fake_os.at_purge = without_heap;
    hak_purge_all(NULL);
    fake_os.at_purge = NULL;
    assert_true(purge_count > 0);
    assert_true(hak_heap_begin_slow_path(heap));
}

static void behind_runs(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_range *range = hak_region_range(0);
    char *run = hak_large_alloc(40000, 16, false);
    run[39999] = 1;
    assert_int_equal(sweep(0), 0);
    assert_int_equal(sweep(HAK_UNIT_BYTES - 40960 + 1), 0);
    assert_int_equal(sweep(HAK_UNIT_BYTES - 40960), HAK_UNIT_BYTES - 40960);
    assert_int_equal(sweep(0), 0);
    assert_int_equal(hak_large_tail_bytes(range, 0), 0);
    assert_int_equal(run[39999], 1);
    struct hak_place place = hak_region_find((uintptr_t)run);
    assert_ptr_equal(hak_large_resize(&place, 36864), run); /* a new end */
    assert_int_equal(hak_large_tail_bytes(range, 0), HAK_UNIT_BYTES - 36864);
    assert_int_equal(sweep(0), 0);
    assert_int_equal(sweep(0), HAK_UNIT_BYTES - 36864);
}

static uint32_t count_tails(uint32_t super_slabs) {
    uint32_t count = 0;
    for (uint32_t unit = 0; unit < super_slabs * HAK_UNITS_PER_SUPER_SLAB; unit++)
        count += hak_large_tail_bytes(hak_region_range(0), unit) != 0;
    return count;
}

/* At a limit all tails are looked at when there may be many new ones or all are asked for, else some at each call. */
static void tails_by_turns(void **state) {
    enum { SUPER_SLABS = 100, RUNS = SUPER_SLABS * HAK_UNITS_PER_SUPER_SLAB, PART = 16, MUCH = 1 << 30 };
    (void)state;
    pool_start(SIZE_MAX);
    static char *runs[RUNS];
    for (uint32_t i = 0; i < RUNS; i++) assert_non_null(runs[i] = hak_large_alloc(40000, 16, false));
    assert_int_equal(count_tails(SUPER_SLABS), RUNS);
    HAK_COUNT((struct hak_heap *)NULL, large_allocs, RUNS);
    hak_purge_reclaim(NULL, false, false, MUCH);
    assert_int_equal(count_tails(SUPER_SLABS), 0);
    for (uint32_t i = 0; i < RUNS; i += HAK_UNITS_PER_SUPER_SLAB) {
        struct hak_place place = hak_region_find((uintptr_t)runs[i]);
        assert_ptr_equal(hak_large_resize(&place, 36864), runs[i]);
    }
    HAK_COUNT((struct hak_heap *)NULL, large_resizes, SUPER_SLABS);
    for (uint32_t left = SUPER_SLABS; left > 0; left = left > PART ? left - PART : 0) {
        assert_int_equal(count_tails(SUPER_SLABS), left);
        hak_purge_reclaim(NULL, false, false, MUCH);
    }
    assert_int_equal(count_tails(SUPER_SLABS), 0);
    for (uint32_t i = 0; i < RUNS; i += HAK_UNITS_PER_SUPER_SLAB) {
        struct hak_place place = hak_region_find((uintptr_t)runs[i]);
        assert_ptr_equal(hak_large_resize(&place, 40960), runs[i]);
    }
    assert_int_equal(count_tails(SUPER_SLABS), SUPER_SLABS);
    hak_purge_reclaim(NULL, false, true, MUCH); /* whoever asks for all of them */
    assert_int_equal(count_tails(SUPER_SLABS), 0);
    for (uint32_t i = 0; i < RUNS; i++) {
        struct hak_place place = hak_region_find((uintptr_t)runs[i]);
        assert_ptr_equal(hak_large_resize(&place, 45056), runs[i]);
    }
    HAK_COUNT((struct hak_heap *)NULL, large_resizes, RUNS);
    hak_purge_reclaim(NULL, false, false, MUCH);
    assert_int_equal(count_tails(SUPER_SLABS), 0);
}

UNIT_MAIN(cmocka_unit_test(holes_in_pages_of_4_kib), cmocka_unit_test(holes_in_pages_of_16_kib),
          cmocka_unit_test(holes_in_pages_of_64_kib), cmocka_unit_test(refused), cmocka_unit_test(holes_come_and_go),
          cmocka_unit_test(all_kinds_of_free_memory), cmocka_unit_test(bins), cmocka_unit_test(old_holes),
          cmocka_unit_test(one_super_slab_at_a_time), cmocka_unit_test(huge_pages),
          cmocka_unit_test(while_others_go_on), cmocka_unit_test(found_by_two), cmocka_unit_test(without_their_heaps),
          cmocka_unit_test(behind_runs), cmocka_unit_test(tails_by_turns))

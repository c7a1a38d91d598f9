/* pool/purge.h: exactly the pages that hold no block go back, and blocks in use stay as they were. */
#include "pool_fixture.h"

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

/* One slab of every class, some of its blocks freed: a page goes back if and only if no block in it is in use, and it
 * holds a part of a block at all. */
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
            bool free_page = first < count;
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
    assert_true(hak_heap_grow_bin(heap, c));
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

UNIT_MAIN(cmocka_unit_test(holes_in_pages_of_4_kib), cmocka_unit_test(holes_in_pages_of_16_kib),
          cmocka_unit_test(holes_in_pages_of_64_kib), cmocka_unit_test(refused), cmocka_unit_test(holes_come_and_go),
          cmocka_unit_test(all_kinds_of_free_memory), cmocka_unit_test(bins))

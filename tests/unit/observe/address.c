/* observe/address.h: what an address is, in every state a block and its surroundings can be in, and how that is said. */
#include "heap_fixture.h"

#include "allowance.h"

#include "front/front.h"
#include "front/miss.h"
#include "observe/address.h"

static const char *describe(const void *address) {
    static char buffer[256];
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    struct hak_address found = hak_address_find((uintptr_t)address);
    hak_address_describe(&found, (uintptr_t)address, &text);
    return buffer;
}

static struct hak_address find(const void *address) { return hak_address_find((uintptr_t)address); }

static void expect_text(const void *address, const char *format, ...) HAK_PRINTF(2, 3);
static void expect_text(const void *address, const char *format, ...) {
    char expected[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(expected, sizeof expected, format, arguments);
    va_end(arguments);
    assert_string_equal(describe(address), expected);
}

static void before_the_first_block(void **state) {
    (void)state;
    static const uintptr_t addresses[] = {0, 1, 4096, (uintptr_t)1 << 40, UINTPTR_MAX};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++)
        assert_int_equal(hak_address_find(addresses[i]).kind, HAK_ADDRESS_FOREIGN);
    expect_text(&addresses, "not hakmem's");
}

static void small_blocks(void **state) {
    (void)state;
    char *block = hak_malloc(50), *other = hak_malloc(50);
    expect_text(block, "the start of a live block of 64 bytes");
    expect_text(block + 63, "63 bytes into a live block of 64 bytes at %p", (void *)block);
    hak_free(block);
    assert_int_equal(find(block).kind, HAK_ADDRESS_CACHED);
    assert_int_equal(find(block).heap, 1);
    expect_text(block + 16, "16 bytes into a free block of 64 bytes at %p, in the cache of heap 1", (void *)block);
    assert_int_equal(find(other).kind, HAK_ADDRESS_LIVE);
    hak_purge(); /* flushes the bin */
    assert_int_equal(find(block).kind, HAK_ADDRESS_FREE);
    assert_int_equal(find(other).kind, HAK_ADDRESS_LIVE);
    assert_int_equal(find(block).start, (uintptr_t)block);
    assert_int_equal(find(block).bytes, 64);
    expect_text(block, "the start of a free block of 64 bytes");
}

/* Blocks that the holder of a slab has claimed ahead of use are free. */
static void claimed_blocks(void **state) {
    (void)state;
    char *first = hak_malloc(1100);
    const struct hak_size_class *facts = &hak_size_classes[hak_size_class_of(hak_malloc_usable_size(first))];
    uint32_t counts[HAK_ADDRESS_HEAP + 1] = {0};
    char *slab = (char *)hak_align_down((uintptr_t)first, HAK_UNIT_BYTES);
    for (uint32_t i = 0; i < facts->block_count; i++) counts[find(slab + i * facts->block_bytes).kind]++;
    assert_int_equal(counts[HAK_ADDRESS_LIVE], 1);
    assert_true(counts[HAK_ADDRESS_CACHED] > 0);
    assert_true(counts[HAK_ADDRESS_FREE] > 0);
    assert_int_equal(counts[HAK_ADDRESS_LIVE] + counts[HAK_ADDRESS_CACHED] + counts[HAK_ADDRESS_FREE],
                     facts->block_count);
    expect_text(slab + HAK_UNIT_BYTES - 1, "in no block: behind the last one of a slab of blocks of %d bytes",
                (int)facts->block_bytes);
}

static void purged_pages(void **state) {
    (void)state;
    static char *blocks[64];
    for (int i = 0; i < 64; i++) blocks[i] = hak_malloc(4096);
    for (int i = 1; i < 64; i++) hak_free(blocks[i]);
    assert_true(hak_purge() > 0);
    uint32_t purged = 0;
    for (int i = 1; i < 64; i++)
        if (find(blocks[i]).kind == HAK_ADDRESS_FREE) purged += find(blocks[i]).is_purged;
    assert_true(purged > 0);
    assert_false(find(blocks[0]).is_purged);
}

static void large_objects(void **state) {
    (void)state;
    allow_free_memory_of_programs();
    char *other = hak_malloc(100000), *run = hak_malloc(100000), *mapping = hak_malloc(40 * HAK_MIB);
    size_t bytes = hak_align_up(100000, 4096);
    expect_text(run, "the start of a live large block of %zu bytes", bytes);
    expect_text(run + 70000, "70000 bytes into a live large block of %zu bytes at %p", bytes, (void *)run);
    expect_text(run + bytes + 5, "5 bytes behind the end of a large block of %zu bytes at %p", bytes, (void *)run);
    assert_int_equal(find(mapping + 30 * HAK_MIB).kind, HAK_ADDRESS_LIVE);
    assert_true(find(mapping + 30 * HAK_MIB).is_large);
    hak_free(run);
    hak_free(mapping);
    expect_text(run + 70000, "free memory of the heap, in no block");
    expect_text(mapping + 1, "1 bytes into a free large block of %zu bytes at %p", 40 * HAK_MIB, (void *)mapping);
    assert_int_equal(find(mapping).kind, HAK_ADDRESS_KEPT);
    hak_purge();
    expect_text(run, "free memory of the heap, in no block, given back to the kernel or not used yet");
    assert_int_equal(find(mapping).kind, HAK_ADDRESS_FOREIGN);
    hak_free(other);
}

static void what_is_no_block(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    const struct hak_range *range = hak_region_range(0);
    uintptr_t end = range->start + (uintptr_t)hak_region_super_slabs(range) * HAK_SUPER_SLAB_BYTES;
    expect_text((char *)end, "not hakmem's");
    expect_text((void *)&range->page_map[5], "in hakmem's tables");
    expect_text(range->groups, "in hakmem's tables");
    expect_text(&range->slabs[3], "in hakmem's tables");
    expect_text(range, "in hakmem's tables");
    expect_text(hak_thread_heap, "in hakmem's record of heap 1");
    expect_text((char *)hak_thread_heap + HAK_HEAP_BYTES - 1, "in hakmem's record of heap 1");
    hak_free(hak_malloc(40 * HAK_MIB)); /* makes a leaf of the directory */
    assert_int_equal(find((char *)end + HAK_GIB).kind, HAK_ADDRESS_FOREIGN);
}

static void beyond_the_first_range(void **state) {
    (void)state;
    fake_os.window_room = HAK_PAGE_MAP_BYTES + 4 * HAK_MIB; /* of one SuperSlab */
    for (int i = 0; i < 100; i++) {
        char *block = hak_malloc(30000);
        assert_non_null(block);
        assert_int_equal(find(block + 5).kind, HAK_ADDRESS_LIVE);
        assert_int_equal(find(block + 5).start, (uintptr_t)block);
    }
    assert_non_null(hak_region_range(1));
    assert_int_equal(find(hak_region_range(1)).kind, HAK_ADDRESS_METADATA);
}

static void alone_in_its_slab(void **state) {
    (void)state;
    static const size_t sizes[] = {48, 4000, 30000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *block = hak_malloc(sizes[i]);
        size_t usable = hak_malloc_usable_size(block);
        hak_free(block);
        hak_purge();
        expect_text(
            block + 5,
            "free memory of the heap, in no block; 5 bytes into a former block of %zu bytes at %p, given back to "
            "the kernel or not used yet",
            usable, (void *)block);
        assert_int_equal(find(block + 5).kind, HAK_ADDRESS_EMPTY);
    }
}

/* Every address of the first SuperSlabs of a heap in disorder is something, and what it is agrees with the statistics. */
static void agrees_with_statistics(void **state) {
    (void)state;
    static char *blocks[3000];
    uint64_t random = 7;
    for (int round = 0; round < 20000; round++) {
        char **block = &blocks[unit_random(&random) % 3000];
        uint64_t pick = unit_random(&random);
        if (*block == NULL) *block = hak_malloc(pick % 100 ? pick >> 32 & 2047 : pick >> 32 & 0x3ffff);
        else {
            hak_free(*block);
            *block = NULL;
        }
    }
    for (int i = 0; i < 3000; i++)
        if (blocks[i] != NULL) assert_int_equal(find(blocks[i]).kind, HAK_ADDRESS_LIVE);
    struct hak_snapshot snapshot;
    hak_snapshot_take(&snapshot);
    const struct hak_range *range = hak_region_range(0);
    uintptr_t end = range->start + snapshot.total.super_slabs * HAK_SUPER_SLAB_BYTES;
    uint64_t live = 0, cached = 0;
    for (uintptr_t at = range->start; at < end; at += HAK_ALIGNMENT) {
        struct hak_address found = hak_address_find(at);
        assert_true(found.kind >= HAK_ADDRESS_LIVE && found.kind <= HAK_ADDRESS_EMPTY);
        live += found.kind == HAK_ADDRESS_LIVE && found.start == at;
        cached += found.kind == HAK_ADDRESS_CACHED && found.start == at;
    }
    assert_int_equal(live, snapshot.total.live_blocks);
    assert_int_equal(cached, snapshot.total.cached_blocks);
}

UNIT_MAIN(cmocka_unit_test(before_the_first_block), cmocka_unit_test(small_blocks), cmocka_unit_test(claimed_blocks),
          cmocka_unit_test(purged_pages), cmocka_unit_test(large_objects), cmocka_unit_test(what_is_no_block),
          cmocka_unit_test(beyond_the_first_range), cmocka_unit_test(alone_in_its_slab),
          cmocka_unit_test(agrees_with_statistics))

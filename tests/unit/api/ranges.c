/* A heap that outgrows its first range, and one that has used up every table: as a program sees them. */
#include "heap_fixture.h"

#include "allowance.h"

#include "front/front.h"

enum { BLOCKS = 20000, ONE_SUPER_SLAB_ROOM = HAK_PAGE_MAP_BYTES + (4 << 20) };

static struct live_block blocks[BLOCKS];

static bool allocate(uint32_t index, size_t size) {
    errno = 0;
    blocks[index] = (struct live_block){hak_malloc(size), size, (unsigned char)index};
    if (blocks[index].bytes == NULL) {
        UNIT_CHECK(errno == ENOMEM);
        return false;
    }
    block_fill(&blocks[index]);
    return true;
}

static bool is_beyond_first_range(const void *block) {
    const struct hak_range *range = hak_region_range(0);
    return (uintptr_t)block - range->start >= hak_region_super_slabs(range) * HAK_SUPER_SLAB_BYTES;
}

static void check_and_free_all(uint32_t count) {
    struct hak_snapshot snapshot;
    for (uint32_t i = 0; i < count; i++) block_check(&blocks[i]);
    for (uint32_t i = 0; i < count; i++) hak_free(blocks[i].bytes);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* Blocks of every kind, most of them beyond the first range: found, asked for their size, resized, freed. */
static void blocks_in_further_ranges(void **state) {
    (void)state;
    allow_free_memory();
    fake_os.window_room = ONE_SUPER_SLAB_ROOM;
    uint32_t count = 0, beyond = 0;
    uint64_t random = 1;
    for (; count < 4000; count++) {
        size_t size = count % 50 ? 1 + unit_random(&random) % 4000 : 30000 + unit_random(&random) % 200000;
        assert_true(allocate(count, size));
        beyond += is_beyond_first_range(blocks[count].bytes);
    }
    assert_true(beyond > 3000);
    assert_non_null(hak_region_range(3));
    for (uint32_t i = 0; i < count; i += 3) {
        size_t size = blocks[i].size * 2 + 1;
        unsigned char *bytes = hak_realloc(blocks[i].bytes, size);
        assert_non_null(bytes);
        block_check_part(bytes, blocks[i].size, blocks[i].size, blocks[i].seed);
        blocks[i].bytes = bytes;
        blocks[i].size = size;
        block_fill(&blocks[i]);
    }
    check_and_free_all(count);
    uint64_t super_slabs = hak_region_sums().super_slabs;
    assert_true(hak_purge() > 4 * HAK_MIB);
    for (count = 0; count < 4000; count++) assert_true(allocate(count, 1 + unit_random(&random) % 2000));
    assert_int_equal(hak_region_sums().super_slabs, super_slabs); /* nothing new was needed */
    check_and_free_all(count);
}

/* A block is freed by the hit path wherever it lies in the first range, and found among what is in use by few looks. */
static void hits_far_out(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it knows few addresses */
#endif
    enum { SPANS = 32 };
    void *first = hak_malloc(64);
    struct hak_slab *spans[SPANS];
    for (int i = 0; i < SPANS; i++) {
        spans[i] = hak_region_acquire_span(64 * HAK_GIB >> HAK_UNIT_SHIFT, 1, false);
        assert_non_null(spans[i]);
    }
    void *small[1000];
    for (int i = 0; i < 1000; i++) assert_non_null(small[i] = hak_malloc(30000));
    assert_true((uintptr_t)small[999] - (uintptr_t)first > SPANS * 64 * HAK_GIB);
    assert_null(hak_region_range(1));
    uint64_t slow_paths = hak_atomic_load(&hak_thread_heap->slow_paths, relaxed);
    for (int i = 0; i < 100; i++) {
        hak_free(small[999]);
        assert_ptr_equal(hak_malloc(30000), small[999]);
    }
    assert_true(hak_atomic_load(&hak_thread_heap->slow_paths, relaxed) <= slow_paths + 1);
    for (int i = 0; i < 1000; i++) hak_free(small[i]);
    for (int i = 0; i < SPANS; i++) hak_region_release_fresh(spans[i], 64 * HAK_GIB >> HAK_UNIT_SHIFT);
    hak_free(first);
}

struct pointer {
    void *address;
};

static void free_it(void *context) { hak_free(((const struct pointer *)context)->address); }

static void misuse_in_further_ranges(void **state) {
    (void)state;
    fake_os.window_room = ONE_SUPER_SLAB_ROOM;
    uint32_t count = 0;
    do assert_true(allocate(count++, 20000));
    while (!is_beyond_first_range(blocks[count - 1].bytes));
    struct pointer inside = {blocks[count - 1].bytes + 16}, newest = {blocks[count - 1].bytes};
    const struct fake_report *report = fake_os_catch(free_it, &inside);
    assert_non_null(report);
    assert_int_equal(report->kind, HAK_MISUSE_INTERIOR_POINTER);
    assert_int_equal(report->offset, 16);
    hak_free(newest.address);
    report = fake_os_catch(free_it, &newest);
    assert_non_null(report);
    assert_int_equal(report->kind, HAK_MISUSE_DOUBLE_FREE);
}

/* Allocates until there is nothing more, three times; each time all blocks live, can be freed, and their memory serves
 * another size. */
static void use_up(size_t size, size_t other_size) {
    for (int round = 0; round < 3; round++) {
        uint32_t count = 0;
        while (count < BLOCKS && allocate(count, round == 1 ? other_size : size)) count++;
        assert_in_range(count, 100, BLOCKS - 1);
        for (int i = 0; i < 3; i++) assert_false(allocate(count, size));
        assert_null(hak_malloc(2 * HAK_MIB));
        hak_free(hak_aligned_alloc(65536, size)); /* a unit may be left */
        unsigned char *grown = hak_realloc(blocks[0].bytes, 3 * HAK_MIB);
        assert_null(grown);
        check_and_free_all(count);
        hak_purge();
    }
}

/* Row 47 of what an allocator withstands. */
static void every_range_used_up(void **state) {
    (void)state;
    fake_os.window_room = ONE_SUPER_SLAB_ROOM;
    assert_true(allocate(0, 1));
    hak_free(blocks[0].bytes);
    /* The directory's leaves for where the kernel may put the other ranges; no more mappings after that. */
    uintptr_t start = hak_region_range(0)->start, leaf_span = (uintptr_t)64 * HAK_GIB;
    uintptr_t reach = hak_align_up(HAK_RANGE_LIMIT * (HAK_PAGE_MAP_BYTES + 16 * HAK_MIB), leaf_span);
    for (uintptr_t at = start - reach; at <= start + reach; at += leaf_span) hak_directory_set(at, HAK_ENTRY_NONE);
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    use_up(32768, 60000);
    assert_int_equal(hak_region_sums().super_slabs, HAK_RANGE_LIMIT);
}

static void every_super_slab_used_up(void **state) {
    (void)state;
    assert_true(allocate(0, 1));
    hak_free(blocks[0].bytes);
    hak_atomic_store(&hak_region_range(0)->super_slab_limit, 8, relaxed);
    fake_os.window_room = 0; /* for another range */
    while (hak_region_sums().super_slabs < 8) assert_non_null(hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false));
    for (uint32_t i = 1; i < 8; i++) hak_region_release(&hak_region_range(0)->slabs[i * 32], 32);
    fake_os.address_space_room = fake_os.mapped_bytes + HAK_MIB;
    use_up(20000, 100000);
    assert_int_equal(hak_region_sums().super_slabs, 8);
}

/* Where a smaller block can't be had the larger one will do; and what has succeeded leaves errno alone. */
static void shrinks_without_memory(void **state) {
    (void)state;
    assert_true(allocate(0, 4000));
    fake_os.address_space_room = fake_os.mapped_bytes + HAK_MIB;
    while (hak_malloc(30000) != NULL || hak_malloc(4000) != NULL) {
    }
    errno = 0;
    assert_ptr_equal(hak_realloc(blocks[0].bytes, 100), blocks[0].bytes);
    assert_int_equal(errno, 0);
    block_check(&blocks[0]);
}

/* Not even the first reservation: the next request tries again. */
static void no_address_space(void **state) {
    (void)state;
    fake_os.address_space_room = 16384; /* less than tables take */
    for (int i = 0; i < 3; i++) assert_false(allocate(0, 100));
    assert_null(hak_malloc(100000));
    assert_null(hak_calloc(10, 10));
    assert_null(hak_realloc(NULL, 10));
    void *block = &blocks;
    assert_int_equal(hak_posix_memalign(&block, 64, 100), ENOMEM);
    assert_ptr_equal(block, &blocks);
    hak_free(NULL);
    assert_false(hak_owns(&blocks));
    assert_int_equal(hak_purge(), 0);
    struct hak_statistics stats;
    assert_int_equal(hak_stats(&stats, sizeof stats), 0);
    assert_int_equal(fake_os.mapped_bytes, 0);
    fake_os.address_space_room = 16 * HAK_MIB; /* for tables, a SuperSlab, and a heap */
    assert_true(allocate(0, 100));
    check_and_free_all(1);
}

/* Page sizes: the same program on each. */
static void on_pages_of(size_t page_bytes) {
    fake_os.page_bytes = page_bytes;
    uint64_t random = page_bytes;
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 2000; i++)
            assert_true(allocate(i, 1 + unit_random(&random) % (i % 100 ? 5000 : 3 * HAK_MIB)));
        for (uint32_t i = 0; i < 2000; i++) {
            block_check(&blocks[i]);
            if (i % 2) hak_free(blocks[i].bytes);
        }
        hak_purge();
        for (uint32_t i = 1; i < 2000; i += 2) assert_true(allocate(i, 1 + unit_random(&random) % 5000));
        void *page = hak_valloc(10);
        assert_int_equal((uintptr_t)page % page_bytes, 0);
        hak_free(page);
        check_and_free_all(2000);
        hak_purge();
    }
}

static void pages_of_4_kib(void **state) {
    (void)state;
    on_pages_of(4096);
}
static void pages_of_16_kib(void **state) {
    (void)state;
    on_pages_of(16384);
}
static void pages_of_64_kib(void **state) {
    (void)state;
    on_pages_of(65536);
}

UNIT_MAIN(cmocka_unit_test(blocks_in_further_ranges), cmocka_unit_test(hits_far_out),
          cmocka_unit_test(misuse_in_further_ranges), cmocka_unit_test(every_range_used_up),
          cmocka_unit_test(every_super_slab_used_up), cmocka_unit_test(shrinks_without_memory),
          cmocka_unit_test(no_address_space), cmocka_unit_test(pages_of_4_kib), cmocka_unit_test(pages_of_16_kib),
          cmocka_unit_test(pages_of_64_kib))

/* region/guard.h: blocks between guards. */
#include "heap_fixture.h"

#include "region/guard.h"
#include "region/region.h"

static const uintptr_t stack[] = {0x1000, 0x2000, 0x3000};

static char *guarded(size_t bytes) { return hak_guard_alloc(bytes, stack, 2); }

static enum hak_guard_outcome give_back(void *block) {
    ptrdiff_t offset;
    return hak_guard_free(block, stack + 1, 2, &offset);
}

static uintptr_t page_of(const void *address) { return (uintptr_t)address & -fake_os.page_bytes; }

/* As many as there is room for, of pages of any size: at both ends, two pages apart at least, and nothing else of the
 * pool is accessible, but its records. */
static void fills(size_t page_bytes, size_t least) {
    enum { MOST = 2000 };
    static char *blocks[MOST];
    fake_os.page_bytes = page_bytes;
    assert_null(guarded(16));
    assert_true(hak_guard_begin());
    assert_false(hak_guard_begin());
    size_t count = 0, at_start = 0;
    assert_null(guarded(page_bytes + 1));
    while ((blocks[count] = guarded(100 + count % 50)) != NULL) count++;
    assert_true(count >= least);
    assert_int_equal(fake_os.call_count[FAKE_RESERVE], 1);
    assert_int_equal(fake_os.calls[0].bytes, HAK_GUARD_POOL_BYTES);
    assert_int_equal(fake_os.call_count[FAKE_COMMIT], 1 + count);
    uintptr_t pool = fake_os.calls[0].start;
    for (size_t i = 0; i < count; i++) {
        uintptr_t start = (uintptr_t)blocks[i], page = page_of(blocks[i]), bytes = 100 + i % 50;
        assert_true(page - pool < HAK_GUARD_POOL_BYTES);
        assert_int_equal(start % 16, 0);
        assert_true(start == page || page + page_bytes - (start + bytes) < 16);
        at_start += start == page;
        for (size_t other = 0; other < i; other++) {
            uintptr_t between =
                page > page_of(blocks[other]) ? page - page_of(blocks[other]) : page_of(blocks[other]) - page;
            assert_true(between >= 2 * page_bytes);
        }
        memset(blocks[i], 7, bytes);
    }
    assert_in_range(at_start, count / 3, 2 * count / 3);
    for (size_t i = 0; i < count; i++) assert_int_equal(give_back(blocks[i]), HAK_GUARD_WAS_FREED);
    assert_int_equal(fake_os.call_count[FAKE_FORBID], count);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], count);
    assert_int_equal(hak_guard_live_blocks, 0);
    assert_int_equal(hak_guard_live_bytes, 0);
}

static void small_pages(void **state) {
    (void)state;
    fills(4096, 400);
}
static void large_pages(void **state) {
    (void)state;
    fills(65536, 25);
}

static void asked(void **state) {
    (void)state;
    size_t bytes;
    uintptr_t start;
    hak_guard_begin();
    char *block = guarded(100);
    uintptr_t at = (uintptr_t)block;
    assert_true(hak_guard_covers(at) && !hak_guard_covers(at + HAK_GUARD_POOL_BYTES) && !hak_guard_covers(0));
    for (size_t i = 0; i < 100; i++) {
        assert_true(hak_guard_find(at + i, &start, &bytes));
        assert_true(start == at && bytes == 100);
    }
    assert_false(hak_guard_find(at - 1, &start, &bytes) || hak_guard_find(at + 100, &start, &bytes));
    struct hak_place place = hak_region_find(at + 5);
    assert_true(place.kind == HAK_PLACE_GUARDED && place.start == at && place.bytes == 100);
    assert_true(hak_region_covers(at) && !hak_place_is_large(&place));
    const struct hak_guard *near = hak_guard_near(at);
    assert_int_equal(near->state, HAK_GUARD_LIVE);
    assert_true(near->allocated.depth == 2 && near->allocated.addresses[1] == 0x2000);
    assert_int_equal(give_back(block), HAK_GUARD_WAS_FREED);
    assert_false(hak_guard_find(at, &start, &bytes));
    assert_int_equal(hak_region_find(at).kind, HAK_PLACE_FOREIGN);
    assert_true(near == hak_guard_near(at) && near->state == HAK_GUARD_FREED);
    assert_true(near->freed.depth == 2 && near->freed.addresses[1] == 0x3000);
    assert_int_equal(hak_guard_freed_bytes(at), 100);
    assert_int_equal(hak_guard_freed_bytes(at + 16), 0);
    assert_int_equal(give_back(block), HAK_GUARD_WAS_FREE);
    assert_null(hak_guard_near(at + HAK_GUARD_POOL_BYTES));
}

/* In a guard: the block that is nearer, of one at each side. */
static void nearest(void **state) {
    (void)state;
    hak_guard_begin();
    size_t page = fake_os.page_bytes;
    char *at_end = guarded(4096 - 16), *at_start = guarded(32);
    assert_true(page_of(at_end) + 2 * page == page_of(at_start) && (uintptr_t)at_start == page_of(at_start));
    uintptr_t guard = page_of(at_end) + page;
    assert_int_equal(hak_guard_near(guard)->start, (uintptr_t)at_end);
    assert_int_equal(hak_guard_near(guard + page / 2 - 1)->start, (uintptr_t)at_end);
    assert_int_equal(hak_guard_near(guard + page / 2 + 1)->start, (uintptr_t)at_start);
    assert_int_equal(hak_guard_near(guard - 2 * page)->start, (uintptr_t)at_end); /* nothing is below */
    assert_int_equal(hak_guard_near(guard + 2 * page)->start, (uintptr_t)at_start);
    assert_null(hak_guard_near(guard + 4 * page));
}

/* The page of a freed block waits, whatever is free beside it. */
static void turns(void **state) {
    (void)state;
    hak_guard_begin();
    char *first = guarded(100);
    give_back(first);
    size_t others = 0;
    while (true) {
        char *block = guarded(100);
        assert_non_null(block);
        bool is_again = page_of(block) == page_of(first);
        give_back(block);
        if (is_again) break;
        others++;
    }
    assert_in_range(others, 200, 480);
    char *kept[600];
    size_t count = 0;
    while ((kept[count] = guarded(100)) != NULL) count++; /* those whose turn it is, until there are none */
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) give_back(kept[i]);
    assert_null(guarded(100)); /* whichever is next was freed just now */
}

/* Each byte beside it that the free looks at. */
static void spoiled(void **state) {
    (void)state;
    ptrdiff_t offset;
    hak_guard_begin();
    for (int i = 0; i < 2; i++) {
        char *block = guarded(100);
        uintptr_t page = page_of(block), start = (uintptr_t)block;
        for (ptrdiff_t at = -HAK_GUARD_MARGIN - 1; at < 100 + HAK_GUARD_MARGIN + 1; at++) {
            if ((at >= 0 && at < 100) || start + (size_t)at - page >= fake_os.page_bytes) continue;
            bool is_looked_at = at >= -HAK_GUARD_MARGIN && at < 100 + HAK_GUARD_MARGIN;
            char was = block[at];
            block[at] = (char)~was;
            if (is_looked_at) {
                assert_int_equal(hak_guard_free(block, stack, 1, &offset), HAK_GUARD_SPOILED);
                assert_int_equal(offset, at);
            }
            block[at] = was;
        }
        assert_int_equal(hak_guard_live_blocks, 1);
        assert_int_equal(give_back(block), HAK_GUARD_WAS_FREED);
    }
}

static void refused(void **state) {
    (void)state;
    fake_os_refuse(FAKE_RESERVE, 1, 1);
    assert_false(hak_guard_begin());
    assert_false(hak_guard_begin()); /* it is not asked again */
    assert_int_equal(fake_os.call_count[FAKE_RESERVE], 1);
    assert_null(guarded(16));
    assert_false(hak_guard_covers(0));
}

static void refused_records(void **state) {
    (void)state;
    fake_os_refuse(FAKE_COMMIT, 1, 1);
    assert_false(hak_guard_begin());
    assert_int_equal(fake_os.mapped_bytes, 0);
}

static void refused_page(void **state) {
    (void)state;
    hak_guard_begin();
    fake_os_refuse(FAKE_COMMIT, 1, 1);
    assert_null(guarded(16));
    char *block = guarded(16);
    assert_non_null(block);
    fake_os_refuse(FAKE_FORBID, 1, 1); /* it can be accessed, but is free all the same */
    assert_int_equal(give_back(block), HAK_GUARD_WAS_FREED);
    assert_int_equal(give_back(block), HAK_GUARD_WAS_FREE);
}

UNIT_MAIN(cmocka_unit_test(small_pages), cmocka_unit_test(large_pages), cmocka_unit_test(asked),
          cmocka_unit_test(nearest), cmocka_unit_test(turns), cmocka_unit_test(spoiled), cmocka_unit_test(refused),
          cmocka_unit_test(refused_records), cmocka_unit_test(refused_page))

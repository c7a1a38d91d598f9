/* pool/quarantine.h: how long freed blocks wait, and what ends the wait. */
#include "pool_fixture.h"

#include "pool/drain.h"
#include "pool/quarantine.h"

static uint32_t places_of(uint32_t size_class) {
    uint32_t places = HAK_QUARANTINE_BYTES / hak_size_classes[size_class].block_bytes;
    return places < HAK_QUARANTINE_LEAST ? HAK_QUARANTINE_LEAST : places;
}

static struct hak_heap *start(void) {
    pool_start(SIZE_MAX);
    hak_quarantine_begin();
    return hak_heap_acquire();
}

/* As many wait as there are places: all that were freed and have not come out. None comes out twice. */
static void waits(void **state) {
    (void)state;
    enum { COUNT = 8192 };
    static const uint32_t sizes[] = {16, 64, 1000, 8000, 30000};
    static void *blocks[COUNT];
    struct hak_heap *heap = start();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint32_t c = hak_size_class_of(sizes[s]), places = places_of(c), count = places * 8, out = 0, waiting = 0;
        uint64_t sum_in = 0, sum_out = 0;
        pool_take(heap, c, blocks, count);
        for (uint32_t i = 0; i < count; i++) {
            void *other = hak_quarantine_exchange(heap, blocks[i], c);
            assert_true(hak_quarantine_has(heap, c, blocks[i]) && other != blocks[i]);
            assert_false(other != NULL && hak_quarantine_has(heap, c, other));
            out += other != NULL, sum_out += (uintptr_t)other;
        }
        for (uint32_t i = 0; i < count; i++) {
            bool waits_on = hak_quarantine_has(heap, c, blocks[i]);
            waiting += waits_on, sum_in += waits_on ? 0 : (uintptr_t)blocks[i];
        }
        assert_int_equal(waiting, count - out);
        assert_int_equal(waiting, hak_quarantine_count(heap, c));
        assert_int_equal(sum_in, sum_out);
        assert_int_equal(waiting, places);
    }
}

/* Chance picks the place, and each of them: what went in first comes out, and not in the order in which it went in. */
static void each_place(void **state) {
    (void)state;
    enum { PLACES = HAK_QUARANTINE_LEAST, FREES = 64 * PLACES };
    struct hak_heap *heap = start();
    uint32_t c = hak_size_class_of(30000), in_order = 0;
    void *blocks[PLACES], *next = NULL;
    assert_int_equal(places_of(c), PLACES);
    pool_take(heap, c, blocks, PLACES);
    for (int i = 0; i < PLACES; i++) assert_null(hak_quarantine_exchange(heap, blocks[i], c));
    next = pool_take_one(heap, c);
    for (int i = 0; i < FREES; i++) {
        next = hak_quarantine_exchange(heap, next, c);
        if (i < PLACES) in_order += next == blocks[i];
        for (int j = 0; j < PLACES; j++)
            if (blocks[j] == next) blocks[j] = NULL;
    }
    for (int i = 0; i < PLACES; i++) assert_null(blocks[i]);
    assert_true(in_order < PLACES);
}

/* Which of the blocks of a few slabs come out, as one number. */
static uint64_t which_come_out(struct hak_heap *heap, uint64_t seed) {
    enum { COUNT = 64 };
    void *blocks[COUNT];
    uint64_t sum = 0;
    uint32_t c = hak_size_class_of(30000);
    hak_quarantine_seed(seed);
    heap->waits = 0;
    pool_take(heap, c, blocks, COUNT);
    for (int i = 0; i < COUNT; i++) {
        void *other = hak_quarantine_exchange(heap, blocks[i], c);
        if (other == NULL) continue;
        sum = (sum + (uintptr_t)other) * UINT64_C(0x9E3779B97F4A7C15);
        hak_pool_put(heap, c, &other, 1);
    }
    hak_quarantine_empty(heap);
    return sum;
}

/* Another choice for each number. */
static void seeds(void **state) {
    (void)state;
    struct hak_heap *heap = start();
    void *kept = pool_take_one(heap, hak_size_class_of(30000)); /* so that the first slab stays */
    uint64_t first = which_come_out(heap, 1);
    assert_true(first != 0 && which_come_out(heap, 2) != first && which_come_out(heap, 1) == first);
    assert_non_null(kept);
}

static void put_some_in(struct hak_heap *heap, uint32_t size_class) {
    void *blocks[4];
    pool_take(heap, size_class, blocks, 4);
    for (int i = 0; i < 4; i++) {
        void *other = hak_quarantine_exchange(heap, blocks[i], size_class);
        if (other != NULL) hak_pool_put(heap, size_class, &other, 1);
    }
    assert_true(hak_quarantine_has_any(heap) && hak_quarantine_count(heap, size_class) > 0);
}

/* All go back when the heap is flushed, or when its thread has ended and it is taken apart. */
static void ends(void **state) {
    (void)state;
    struct hak_heap *heap = start();
    uint32_t c = hak_size_class_of(64);
    assert_false(hak_quarantine_has_any(heap));
    put_some_in(heap, c);
    put_some_in(heap, hak_size_class_of(300));
    hak_heap_flush(heap);
    assert_false(hak_quarantine_has_any(heap));
    put_some_in(heap, c);
    hak_heap_release(heap);
    assert_false(hak_quarantine_has_any(heap));
    pool_every_unit_is_back();
}

/* A heap that rests is drained; its blocks go on waiting until memory is asked back, even if it rests on. */
static void rests(void **state) {
    (void)state;
    struct hak_drain resting = {.first_taken = NULL}, all = {.first_taken = NULL};
    struct hak_heap *heap = start(), *own = hak_heap_acquire();
    put_some_in(heap, hak_size_class_of(64));
    assert_true(hak_heap_begin_drain(heap, &resting) && hak_heap_drain_taken(&resting));
    hak_heap_end_drains(&resting);
    assert_true(hak_quarantine_has_any(heap));
    assert_false(hak_heap_begin_drain(heap, &resting));
    assert_true(hak_heap_drain_others(own, &all));
    hak_heap_end_drains(&all);
    assert_false(hak_quarantine_has_any(heap));
}

/* Nothing waits where there is no memory for it. */
static void refused(void **state) {
    (void)state;
    struct hak_heap *heap = start();
    uint32_t c = hak_size_class_of(64);
    void *block = pool_take_one(heap, c);
    fake_os_refuse(FAKE_MAP, 1, 1);
    assert_ptr_equal(hak_quarantine_exchange(heap, block, c), block); /* it is the caller's still */
    assert_false(hak_quarantine_has(heap, c, block) || hak_quarantine_has_any(heap));
    hak_quarantine_empty(heap);
    assert_null(hak_quarantine_exchange(heap, block, c)); /* now there is */
    assert_true(hak_quarantine_has(heap, c, block));
}

UNIT_MAIN(cmocka_unit_test(waits), cmocka_unit_test(each_place), cmocka_unit_test(seeds), cmocka_unit_test(ends),
          cmocka_unit_test(rests), cmocka_unit_test(refused))

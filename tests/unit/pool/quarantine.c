/* pool/quarantine.h: how long freed blocks wait, and what is found meanwhile. */
#include "pool_fixture.h"

#include "pool/pool.h"
#include "pool/quarantine.h"

static void *take(struct hak_heap *heap, uint32_t size_class) {
    void *block;
    hak_heap_begin_slow_path(heap);
    assert_int_equal(hak_pool_take(heap, size_class, &block + 1, 1), 1);
    hak_heap_end_slow_path(heap);
    return block;
}

static const void *twice;

static void *put_in(void *block, uint32_t size_class, int turn) {
    return hak_quarantine_exchange(block, size_class, (uint64_t)turn, &twice);
}

static uint32_t places_of(uint32_t size_class) {
    uint32_t places = HAK_QUARANTINE_BYTES / hak_size_classes[size_class].block_bytes;
    return places < HAK_QUARANTINE_GROUP  ? HAK_QUARANTINE_GROUP
           : places > HAK_QUARANTINE_MOST ? HAK_QUARANTINE_MOST
                                          : places;
}

/* As many frees as there are places, on average, and about as many blocks wait: all that were freed and have not come
 * out. */
static void waits(void **state) {
    (void)state;
    enum { COUNT = 8192 };
    static const uint32_t sizes[] = {16, 64, 1024, 8192};
    static void *blocks[COUNT];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    hak_quarantine_begin();
    hak_quarantine_begin(); /* a start that is begun again */
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint32_t c = hak_size_class_of(sizes[s]), places = places_of(c), out = 0, waiting = 0;
        for (int i = 0; i < COUNT; i++) blocks[i] = take(heap, c);
        for (int i = 0; i < COUNT; i++) {
            void *other = put_in(blocks[i], c, i);
            assert_true(hak_quarantine_has(blocks[i], c));
            assert_true(other != blocks[i]);
            assert_null(twice);
            assert_null(put_in(blocks[i], c, i)); /* it is free already */
            assert_ptr_equal(twice, blocks[i]);
            out += other != NULL;
        }
        for (int i = 0; i < COUNT; i++) waiting += hak_quarantine_has(blocks[i], c);
        assert_int_equal(waiting, COUNT - out);
        assert_int_equal(waiting, hak_quarantine_count(c));
        assert_in_range(waiting, places / 2, places);
    }
}

/* Frees all blocks of a few slabs; which of them wait then, as one number. All go back in the end. */
static uint64_t which_wait(struct hak_heap *heap, uint64_t seed) {
    enum { COUNT = 64 };
    void *blocks[COUNT], *other;
    uint64_t sum = 0;
    uint32_t c = hak_size_class_of(32768);
    hak_quarantine_seed(seed);
    for (int i = 0; i < COUNT; i++) blocks[i] = take(heap, c);
    hak_heap_begin_slow_path(heap);
    for (int i = 0; i < COUNT; i++)
        if ((other = put_in(blocks[i], c, i)) != NULL) hak_pool_put(heap, c, &other, 1);
    for (int i = 0; i < COUNT; i++)
        if (hak_quarantine_has(blocks[i], c)) sum += (uintptr_t)blocks[i] * UINT64_C(0x9E3779B97F4A7C15) >> 8;
    assert_true(hak_quarantine_count(c) > 0);
    hak_quarantine_empty(heap);
    assert_int_equal(hak_quarantine_count(c), 0);
    hak_heap_end_slow_path(heap);
    for (int i = 0; i < COUNT; i++) assert_false(hak_quarantine_has(blocks[i], c));
    return sum;
}

/* A block whose group gets no other comes out by chance, and is told from one that was freed twice meanwhile. */
static void released(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    hak_quarantine_begin();
    uint32_t c = hak_size_class_of(64), tries = 0;
    void *block = take(heap, c), *other = NULL;
    assert_null(hak_quarantine_release(c, 1, &twice)); /* nothing is in */
    assert_null(put_in(block, c, 1));
    while (other == NULL && ++tries < 40 * places_of(c)) other = hak_quarantine_release(c, tries, &twice);
    assert_ptr_equal(other, block);
    assert_null(twice);
    assert_false(hak_quarantine_has(block, c));
}

/* Another choice for each number. */
static void seeds(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    hak_quarantine_begin();
    void *kept = take(heap, hak_size_class_of(32768)); /* so that the first slab stays */
    uint64_t first = which_wait(heap, 1);
    assert_true(first != 0 && which_wait(heap, 2) != first && which_wait(heap, 1) == first);
    assert_non_null(kept);
}

/* Nothing waits where there is no memory for it. */
static void refused(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    fake_os_refuse(FAKE_MAP, 1, 1);
    hak_quarantine_begin();
    uint32_t c = hak_size_class_of(64);
    void *block = take(heap, c);
    assert_ptr_equal(put_in(block, c, 1), block); /* it is the caller's still */
    assert_null(twice);
    assert_false(hak_quarantine_has(block, c));
    assert_null(hak_quarantine_release(c, 1, &twice));
    hak_quarantine_empty(heap);
}

UNIT_MAIN(cmocka_unit_test(waits), cmocka_unit_test(released), cmocka_unit_test(seeds), cmocka_unit_test(refused))

/* pool/sparse.h: which blocks are named, over heaps whose slabs are filled by hand. */
#include "pool_fixture.h"

#include "pool/sparse.h"
#include "region/region.h"

enum { C = 20, SLABS = 40 }; /* 384 bytes: 170 blocks a slab */

static void *blocks[SLABS][256];
static uint32_t block_count;

static void put(uint32_t slab, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) pool_put_one(NULL, C, blocks[slab][i]);
}

static bool is_named(uint32_t slab) { return hak_sparse_holds((uintptr_t)blocks[slab][0]); }

/* Full slabs, in order of their addresses, that no heap holds. */
static void fill_slabs(void) {
    pool_start(SIZE_MAX);
    block_count = hak_size_classes[C].block_count;
    for (uint32_t i = 0; i < SLABS; i++) {
        for (uint32_t block = 0; block < block_count; block++) blocks[i][block] = pool_take_one(NULL, C);
        assert_true(i == 0 || blocks[i][0] > blocks[i - 1][block_count - 1]);
    }
}

/* Until each slab was counted, and a new round begun. */
static void count_all(void) {
    for (uint32_t i = 0; i < 3 * SLABS; i++) is_named(0);
}

static void nothing_is_named(void **state) {
    (void)state;
    assert_false(hak_sparse_holds(0)); /* before there is a range */
    assert_false(hak_sparse_holds((uintptr_t)blocks));
    fill_slabs();
    assert_false(hak_sparse_holds(UINTPTR_MAX));
    for (uint32_t i = 0; i < SLABS; i++) assert_false(is_named(i));
}

/* V1, and not the slab that is filled next. */
static void named_while_another_lies_below(void **state) {
    (void)state;
    fill_slabs();
    put(10, 1, block_count);
    count_all();
    assert_false(is_named(10));
    put(20, 1, block_count);
    assert_true(is_named(20));
    assert_false(is_named(10));
    put(5, 1, block_count);
    assert_true(is_named(10));
    assert_false(is_named(5));
    assert_false(is_named(30));
}

/* A slab in the set that is full already has no room for others. */
static void room_below(void **state) {
    (void)state;
    fill_slabs();
    put(10, 1, 2);
    put(20, 1, block_count);
    count_all();
    assert_true(is_named(20));
    void *taken = pool_take_one(NULL, C);
    assert_ptr_equal(taken, blocks[10][1]);
    assert_false(is_named(20));
}

static void compared_with_the_mean(void **state) {
    (void)state;
    fill_slabs();
    uint32_t half = block_count / 2;
    put(0, half, block_count);
    for (uint32_t i = 10; i < 20; i++) put(i, half, block_count); /* half full each: all are as the mean */
    count_all();
    for (uint32_t i = 10; i < 20; i++) assert_true(is_named(i));
    for (uint32_t i = 10; i < 20; i++) put(i, 2, half); /* nearly empty: the mean falls, */
    put(30, half, block_count);                         /* and one that is half full is above it */
    count_all();
    for (uint32_t i = 10; i < 20; i++) assert_true(is_named(i));
    assert_false(is_named(30));
}

/* Slabs of which less than an eighth is free stay, whatever the mean. */
static void nearly_full_slabs_stay(void **state) {
    (void)state;
    fill_slabs();
    uint32_t eighth = (block_count + 7) / 8;
    put(0, 1, 2);
    put(1, block_count - eighth + 1, block_count);
    count_all();
    assert_false(is_named(1));
    put(1, block_count - eighth, block_count - eighth + 1);
    count_all();
    assert_true(is_named(1));
}

/* V2 */
static void held_slabs_stay(void **state) {
    (void)state;
    fill_slabs();
    struct hak_heap *heap = hak_heap_acquire();
    put(5, 1, block_count);
    void *taken = pool_take_one(heap, C);
    assert_ptr_equal(taken, blocks[5][1]); /* it holds this slab now, */
    put(6, 1, block_count);
    count_all();
    assert_false(is_named(6));            /* which is no place to go to, */
    put(2, block_count / 2, block_count); /* fuller than both */
    count_all();
    assert_true(is_named(6));
    assert_false(is_named(5)); /* nor to go from */
}

/* Moving what is named leaves the slabs that the rest needs, and comes to an end. */
static void moves_end(void **state) {
    (void)state;
    fill_slabs();
    uint32_t live = 0;
    for (uint32_t i = 0; i < SLABS; i++) {
        put(i, 10 + i, block_count);
        live += 10 + i;
    }
    uint32_t moved, passes = 0;
    do {
        moved = 0;
        for (uint32_t i = 0; i < SLABS; i++) {
            for (uint32_t block = 0; block < 10 + i; block++) {
                if (!hak_sparse_holds((uintptr_t)blocks[i][block])) continue;
                void *target = pool_take_one(NULL, C);
                assert_true(target < blocks[i][block]);
                pool_put_one(NULL, C, blocks[i][block]);
                blocks[i][block] = target;
                moved++;
            }
        }
        assert_true(passes++ < 20);
    } while (moved != 0);
    uint64_t slabs = hak_atomic_load(&hak_slab_bytes, relaxed) / (block_count * hak_size_classes[C].block_bytes);
    assert_in_range(slabs, 1, live / block_count + 4);
}

/* In a heap with other classes and large slabs between, each is compared with its own. */
static void classes_apart(void **state) {
    (void)state;
    fill_slabs();
    enum { WIDE = HAK_SMALL_CLASS_COUNT };
    void *wide[4 * 8];
    for (uint32_t i = 0; i < 4 * 8; i++) wide[i] = pool_take_one(NULL, WIDE);
    for (uint32_t i = 1; i < 7; i++) pool_put_one(NULL, WIDE, wide[i]);
    for (uint32_t i = 17; i < 23; i++) pool_put_one(NULL, WIDE, wide[i]);
    put(3, 1, block_count);
    for (uint32_t i = 0; i < 4 * SLABS; i++) hak_sparse_holds((uintptr_t)wide[0]);
    assert_false(hak_sparse_holds((uintptr_t)wide[0]));
    assert_false(hak_sparse_holds((uintptr_t)wide[8]));
    assert_true(hak_sparse_holds((uintptr_t)wide[16]));
    assert_true(hak_sparse_holds((uintptr_t)wide[16] + 20000));
    assert_false(is_named(3));
}

UNIT_MAIN(cmocka_unit_test(nothing_is_named), cmocka_unit_test(named_while_another_lies_below),
          cmocka_unit_test(room_below), cmocka_unit_test(compared_with_the_mean),
          cmocka_unit_test(nearly_full_slabs_stay), cmocka_unit_test(held_slabs_stay), cmocka_unit_test(moves_end),
          cmocka_unit_test(classes_apart))

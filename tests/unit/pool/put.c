/* pool/put.h: blocks of a batch in any order are free afterwards, and no others; misuse anywhere in it is found. */
#include "misuse.h"
#include "pool_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "pool/put.h"

enum { MOST_BLOCKS = 6000, MOST_BATCH = 512, FILL = 0xA5 };

enum order { UP, DOWN, PAIRS_SWAPPED, BY_TURNS, BY_MANY_TURNS, RANDOM, ORDERS };

static void swap(void **one, void **other) {
    void *block = *one;
    *one = *other;
    *other = block;
}

/* From blocks in the order of their addresses. */
static void arrange(void **blocks, uint32_t count, enum order order, uint64_t *random) {
    static void *by_turns[MOST_BLOCKS];
    uint32_t turns = order == BY_TURNS ? 2 : order == BY_MANY_TURNS ? 60 : 1, length = count / turns;
    if (order == DOWN)
        for (uint32_t i = 0; i < count / 2; i++) swap(&blocks[i], &blocks[count - 1 - i]);
    if (order == PAIRS_SWAPPED)
        for (uint32_t i = 0; i + 1 < count; i += 2) swap(&blocks[i], &blocks[i + 1]);
    if (order == RANDOM)
        for (uint32_t i = count; i > 1; i--) swap(&blocks[i - 1], &blocks[unit_random(random) % i]);
    for (uint32_t i = 0; turns > 1 && i < length * turns; i++) by_turns[i] = blocks[i % turns * length + i / turns];
    if (turns > 1) memcpy(blocks, by_turns, length * turns * sizeof *blocks);
}

static bool is_first_of_slab(const void *block, uint32_t size_class) {
    uintptr_t start;
    hak_put_slab_of(block, size_class, hak_size_classes[size_class].unit_count, &start);
    return (uintptr_t)block == start;
}

static int compare(const void *one, const void *other) {
    uintptr_t a = *(const uintptr_t *)one, b = *(const uintptr_t *)other;
    return (a > b) - (a < b);
}

/* Takes `count` blocks, in the order of their addresses, but for the first one of each slab, so that none is given up.
 * Returns how many there are then. */
static uint32_t take_sorted(struct hak_heap *heap, uint32_t size_class, void **blocks, uint32_t count) {
    uint32_t kept = 0;
    pool_take(heap, size_class, blocks, count);
    qsort(blocks, count, sizeof *blocks, compare);
    for (uint32_t i = 0; i < count; i++)
        if (!is_first_of_slab(blocks[i], size_class)) blocks[kept++] = blocks[i];
    return kept;
}

static bool is_filled(const unsigned char *block, size_t bytes) {
    return block[0] == FILL && memcmp(block, block + 1, bytes - 1) == 0;
}

static void put_and_look(struct hak_heap *heap, uint32_t size_class, void **blocks, uint32_t count, uint32_t batch) {
    size_t bytes = hak_size_classes[size_class].block_bytes;
    uint32_t put = 0;
    for (uint32_t i = 0; i < count; i++) memset(blocks[i], FILL, bytes);
    while (put < count) {
        uint32_t length = count - put < batch ? count - put : batch;
        hak_pool_put(heap, size_class, blocks + put, length);
        put += length;
        if (put == length || put == count) /* a look at all takes its time */
            for (uint32_t i = 0; i < count; i++) assert_int_equal(hak_pool_has_free(blocks[i], size_class), i < put);
    }
    for (uint32_t i = 0; i < count; i++) assert_true(is_filled(blocks[i], bytes)); /* nothing touches what is free */
}

/* Of one, two and four units, and of few, some and many words. */
static const size_t sizes[] = {16, 64, 112, 400, 1024, 5120, 12288, 32768};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static uint32_t blocks_for(uint32_t size_class) {
    uint32_t slabs = hak_size_classes[size_class].block_count * 70; /* more than there are places for */
    return slabs < MOST_BLOCKS ? slabs : MOST_BLOCKS;
}

static void any_order(void **state) {
    (void)state;
    static void *blocks[MOST_BLOCKS];
    static const uint32_t batches[] = {MOST_BATCH, 1, 7, 64};
    pool_start(SIZE_MAX);
    struct hak_heap *own = hak_heap_acquire(), *other = hak_heap_acquire();
    struct hak_heap *const putters[] = {own, other, NULL};
    uint64_t random = 5;
    for (uint32_t s = 0; s < SIZES; s++) {
        for (uint32_t round = 0; round < ORDERS * 3; round++) {
            uint32_t c = hak_size_class_of(sizes[s]), count = take_sorted(own, c, blocks, blocks_for(c));
            arrange(blocks, count, (enum order)(round % ORDERS), &random);
            put_and_look(putters[round / ORDERS], c, blocks, count, batches[unit_random(&random) % 4]);
        }
    }
}

static void put_each_twice_of(struct hak_heap *heap, uint32_t size_class, enum order order, uint64_t *random) {
    enum { CASES = 12 };
    static void *blocks[MOST_BLOCKS];
    for (int i = 0; i < CASES; i++) {
        uint32_t count = take_sorted(heap, size_class, blocks, blocks_for(size_class));
        arrange(blocks, count, order, random);
        if (count > MOST_BATCH) count = MOST_BATCH;
        uint32_t one = (uint32_t)(unit_random(random) % (count - 1)),
                 again = one + 1 + (uint32_t)(unit_random(random) % (count - 1 - one));
        blocks[again] = blocks[one];
        unit_expect_misuse(pool_catch_put(i % 3 == 2 ? NULL : heap, size_class, blocks, count), HAK_MISUSE_DOUBLE_FREE,
                           "free", blocks[one], 0, hak_size_classes[size_class].block_bytes);
    }
}

/* The second one may come after the first was put, to make place for another slab. */
static void twice_in_any_place(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t random = 9;
    for (uint32_t s = 0; s < SIZES; s++)
        for (uint32_t order = UP; order < ORDERS; order++)
            put_each_twice_of(heap, hak_size_class_of(sizes[s]), (enum order)order, &random);
}

static void off_the_grid_in_any_place(void **state) {
    (void)state;
    static void *blocks[MOST_BLOCKS];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t random = 10;
    for (uint32_t s = 1; s < SIZES; s++) {
        for (uint32_t order = UP; order < ORDERS; order++) {
            uint32_t c = hak_size_class_of(sizes[s]), count = take_sorted(heap, c, blocks, blocks_for(c));
            arrange(blocks, count, (enum order)order, &random);
            if (count > MOST_BATCH) count = MOST_BATCH;
            size_t offset = 16 + unit_random(&random) % (sizes[s] - 16);
            void **place = &blocks[unit_random(&random) % count];
            *place = (char *)*place + offset;
            unit_expect_misuse(pool_catch_put(heap, c, blocks, count), HAK_MISUSE_INTERIOR_POINTER, "free", *place,
                               offset, hak_size_classes[c].block_bytes);
        }
    }
}

/* Where a slab's blocks don't fill its units. */
static void behind_the_last_block(void **state) {
    (void)state;
    void *blocks[20];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_size_class *facts = &hak_size_classes[c];
        size_t slab_bytes = (size_t)facts->block_count * facts->block_bytes;
        if (slab_bytes == facts->unit_count * HAK_UNIT_BYTES) continue;
        for (uint32_t at = 0; at < 20; at += 9) {
            uintptr_t start;
            pool_take(heap, c, blocks, 20);
            hak_put_slab_of(blocks[at], c, facts->unit_count, &start);
            blocks[at] = (char *)start + slab_bytes;
            unit_expect_misuse(pool_catch_put(heap, c, blocks, 20), HAK_MISUSE_INTERIOR_POINTER, "free", blocks[at], 0,
                               facts->block_bytes);
        }
    }
}

/* Of the second ones the word was claimed for the next refills, or never handed out. */
static void twice_around_a_claim(void **state) {
    (void)state;
    static void *blocks[300];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = hak_size_class_of(1024);
    pool_take(heap, c, blocks, 64);
    hak_pool_put(heap, c, blocks, 10);
    assert_ptr_equal(pool_take_one(heap, c), blocks[0]);
    unit_expect_misuse(pool_catch_put(heap, c, blocks + 5, 2), HAK_MISUSE_DOUBLE_FREE, "free", blocks[5], 0, 1024);

    c = hak_size_class_of(64);
    pool_take(heap, c, blocks, 300);
    hak_pool_put(heap, c, blocks, 300);
    hak_heap_flush(heap);
    assert_ptr_equal(pool_take_one(heap, c), blocks[0]);
    unit_expect_misuse(pool_catch_put(heap, c, blocks + 200, 2), HAK_MISUSE_DOUBLE_FREE, "free", blocks[200], 0, 64);
}

/* The second one comes when the slab is gone: others of the batch have emptied it, and it was the pool's. */
static void twice_after_the_slab(void **state) {
    (void)state;
    static void *blocks[MOST_BLOCKS];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    uint32_t c = hak_size_class_of(400), count = hak_size_classes[c].block_count;
    assert_in_range(count, 65, 192);
    pool_take(heap, c, blocks, count);
    qsort(blocks, count, sizeof *blocks, compare);
    hak_pool_put(heap, c, blocks + 64, count - 64);
    hak_heap_give_up_slabs(heap);
    blocks[64] = blocks[count - 1];
    unit_expect_misuse(pool_catch_put(other, c, blocks, 65), HAK_MISUSE_DOUBLE_FREE, "free", blocks[64], 0,
                       hak_size_classes[c].block_bytes);
}

/* A batch that holds all blocks of some slabs: the heap keeps one of them, and the others are given up. */
static void whole_slabs(void **state) {
    (void)state;
    static void *blocks[MOST_BLOCKS];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t random = 12;
    for (uint32_t order = UP; order < ORDERS; order++) {
        uint32_t c = hak_size_class_of(1024), slab_blocks = hak_size_classes[c].block_count, count = 8 * slab_blocks;
        pool_take(heap, c, blocks, count);
        qsort(blocks, count, sizeof *blocks, compare);
        arrange(blocks, count, (enum order)order, &random);
        uint64_t retired = POOL_COUNTER(heap, slabs_retired);
        hak_pool_put(heap, c, blocks, count);
        assert_int_equal(POOL_COUNTER(heap, slabs_retired) - retired, 7);
        assert_int_equal(heap->partial[c].count, 1);
    }
}

UNIT_MAIN(cmocka_unit_test(any_order), cmocka_unit_test(twice_in_any_place),
          cmocka_unit_test(off_the_grid_in_any_place), cmocka_unit_test(behind_the_last_block),
          cmocka_unit_test(twice_around_a_claim), cmocka_unit_test(twice_after_the_slab), cmocka_unit_test(whole_slabs))

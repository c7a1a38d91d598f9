/* pool/pool.h: the five stages of acquisition, blocks coming and going, misuse found when they are put back. */
#include "misuse.h"
#include "pool_fixture.h"

#include <string.h>

#include "pool/purge.h"

enum { CLASS_64 = 4 };

static uint32_t class_1024(void) { return hak_size_class_of(1024); }

static struct hak_slab *slab_of(void *block) { return hak_region_find((uintptr_t)block).slab; }

/* ---- Stages -------------------------------------------------------------------------------------------------------- */

static void expect_stages(const struct hak_heap *heap, const uint64_t (*expected)[5]) {
    assert_int_equal(POOL_COUNTER(heap, slabs_own_empty), (*expected)[0]);
    assert_int_equal(POOL_COUNTER(heap, slabs_pool_partial), (*expected)[1]);
    assert_int_equal(POOL_COUNTER(heap, slabs_pool_empty), (*expected)[2]);
    assert_int_equal(POOL_COUNTER(heap, slabs_fresh), (*expected)[3]);
    assert_int_equal(POOL_COUNTER(heap, slabs_super), (*expected)[4]);
}

static void the_five_stages(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    static void *blocks[200];
    uint32_t c = class_1024(); /* 64 blocks a slab */

    pool_take(heap, c, blocks, 64);
    expect_stages(heap, &(const uint64_t[5]){0, 0, 0, 0, 1}); /* a new SuperSlab */
    pool_take(heap, c, blocks + 64, 64);
    expect_stages(heap, &(const uint64_t[5]){0, 0, 0, 1, 1}); /* its next slot */

    hak_pool_put(heap, c, blocks, 128); /* the first slab is kept as partial, the second given up */
    assert_int_equal(POOL_COUNTER(heap, slabs_retired), 1);
    assert_int_equal(heap->partial[c].count, 1);
    void *block_64 = pool_take_one(heap, CLASS_64);
    expect_stages(heap, &(const uint64_t[5]){0, 0, 0, 2, 1}); /* the first of a class may be little used: a fresh one */
    pool_take(heap, c, blocks, 65);
    expect_stages(heap, &(const uint64_t[5]){1, 0, 0, 2, 1}); /* the heap's own empty slab */
    hak_pool_put(heap, c, blocks, 65);

    hak_heap_flush(heap); /* the slab of 1024 goes to the region, dirty; that of 64 to the pool */
    assert_ptr_not_equal(pool_take_one(other, CLASS_64), block_64);
    expect_stages(other, &(const uint64_t[5]){0, 1, 0, 0, 0}); /* a partial slab */
    uint64_t system_calls = fake_os.call_count[FAKE_ANY];
    pool_take(other, c + 1, blocks, 32);
    expect_stages(other, &(const uint64_t[5]){0, 1, 0, 1, 0});
    hak_pool_put(NULL, c + 1, blocks, 32);
    hak_heap_give_up_slabs(other);
    pool_take(other, c, blocks, 2 * 64);
    expect_stages(other, &(const uint64_t[5]){0, 1, 2, 1, 0}); /* empty ones of the pool, of the class before */
    pool_take(other, c, blocks, 64);
    expect_stages(other, &(const uint64_t[5]){0, 1, 3, 1, 0}); /* and of any */
    assert_int_equal(fake_os.call_count[FAKE_ANY], system_calls);
    expect_stages(heap, &(const uint64_t[5]){1, 0, 0, 2, 1});
}

/* A small heap touches what it has touched before: a class gets units back that were a slab of it, from the region or
 * kept by the heap, even if others were used since. */
static void former_slabs_first(void **state) {
    (void)state;
    enum { CLASSES = 3 };
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    struct hak_slab *slabs[CLASSES];
    void *blocks[CLASSES];
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < CLASSES; i++) {
            uint32_t c = (i + round) % CLASSES;
            blocks[c] = pool_take_one(heap, CLASS_64 + c);
            if (round > 0) assert_ptr_equal(slab_of(blocks[c]), slabs[c]);
            slabs[c] = slab_of(blocks[c]);
        }
        if (round == 2) assert_int_equal(POOL_COUNTER(heap, slabs_own_empty), CLASSES);
        for (uint32_t c = 0; c < CLASSES; c++) pool_put_one(heap, CLASS_64 + c, blocks[c]);
        for (uint32_t c = 0; c < CLASSES; c++) hak_heap_give_up_empty_slabs(heap, CLASS_64 + c);
        if (round != 1) hak_heap_give_up_slabs(heap); /* else they are kept */
    }
}

/* A kept unit may have begun a slab of several units once: that is no slab of its class any more. */
static void former_slab_of_several_units(void **state) {
    (void)state;
    uint32_t c = HAK_SMALL_CLASS_COUNT;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    assert_int_equal(hak_size_classes[c].unit_count, 4);
    void *block = pool_take_one(heap, c);
    struct hak_slab *slab = slab_of(block);
    pool_put_one(heap, c, block);
    hak_heap_give_up_slabs(heap);
    assert_ptr_equal(hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false), slab);
    hak_heap_keep_unit(heap, slab);
    assert_ptr_not_equal(slab_of(pool_take_one(heap, c)), slab);
    assert_ptr_equal(hak_heap_take_unit(heap), slab);
}

/* Whoever acquires or gives up a slab: it is counted, of classes that stand for a group. */
static void slabs_are_counted(void **state) {
    (void)state;
    enum { WIDEST = HAK_SINGLE_CLASS_COUNT + HAK_GROUP_CLASSES };
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    static void *blocks[3 * 64];
    uint32_t per_slab = hak_size_classes[WIDEST].block_count;
    pool_take(heap, WIDEST, blocks, 3 * per_slab);
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[WIDEST], relaxed), 3);
    hak_pool_put(other, WIDEST, blocks + per_slab, 2 * per_slab);
    hak_heap_flush(heap);
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[WIDEST], relaxed), 1);
    hak_pool_put(NULL, WIDEST, blocks, per_slab);
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[WIDEST], relaxed), 0);
    pool_take_one(heap, class_1024());
    pool_take_one(heap, WIDEST - 1);
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[class_1024()], relaxed), 0);
    assert_int_equal(hak_atomic_load(&hak_pool_slabs[WIDEST - 1], relaxed), 0);
}

/* Without a heap: no own slabs, and counts in the shared record. */
static void stages_without_heap(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    void *one = pool_take_one(NULL, CLASS_64), *two = pool_take_one(NULL, CLASS_64);
    assert_ptr_equal((char *)one + 64, two);
    assert_int_equal(hak_atomic_load(&hak_shared_counters.slabs_super, relaxed), 1);
    assert_int_equal(hak_atomic_load(&hak_shared_counters.slabs_pool_partial, relaxed), 1);
    pool_put_one(NULL, CLASS_64, one);
    pool_put_one(NULL, CLASS_64, two);
    assert_int_equal(hak_atomic_load(&hak_shared_counters.slabs_retired, relaxed), 1);
    pool_take_one(NULL, CLASS_64 + 1);
    assert_int_equal(hak_atomic_load(&hak_shared_counters.slabs_pool_empty, relaxed), 1);
}

/* A slab whose last block went out is nobody's; the first block that comes back brings it back. */
static void full_slabs_come_back(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    void *blocks[65];
    uint32_t c = class_1024();
    pool_take(heap, c, blocks, 64);
    pool_take(heap, c, blocks + 64, 1); /* the first slab is full now */
    hak_heap_flush(heap);
    assert_int_equal(hak_atomic_load(&slab_of(blocks[0])->state, relaxed), hak_slab_state(HAK_SLAB_FULL, heap->number));
    pool_put_one(heap, c, blocks[17]);
    assert_ptr_equal(heap->partial[c].first, slab_of(blocks[0]));
    assert_ptr_equal(pool_take_one(heap, c), blocks[17]);
    pool_take_one(heap, c); /* full again */
    hak_heap_flush(heap);
    pool_put_one(other, c, blocks[33]); /* by another heap: into the pool */
    assert_int_equal(POOL_COUNTER(other, slabs_pooled), 1);
    assert_int_equal(POOL_COUNTER(other, remote_frees), 1);
    assert_int_equal(hak_atomic_load(&slab_of(blocks[0])->state, relaxed), HAK_SLAB_POOLED);
    assert_ptr_equal(pool_take_one(other, c), blocks[33]);
}

/* ---- Blocks -------------------------------------------------------------------------------------------------------- */

static void lowest_blocks_first(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    static void *blocks[4096];
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_size_class *facts = &hak_size_classes[c];
        pool_take(heap, c, blocks, facts->block_count);
        for (uint32_t i = 0; i < facts->block_count; i++) {
            assert_ptr_equal(blocks[i], (char *)blocks[0] + (size_t)i * facts->block_bytes);
            assert_int_equal(hak_region_find((uintptr_t)blocks[i]).start, (uintptr_t)blocks[i]);
        }
        memset(blocks[0], 1, facts->block_bytes);
        memset(blocks[facts->block_count - 1], 1, facts->block_bytes);
        hak_pool_put(heap, c, blocks, facts->block_count);
    }
}

static void swap(void **one, void **other) {
    void *block = *one;
    *one = *other;
    *other = block;
}

static bool is_free(void *block) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    if (place.kind != HAK_PLACE_SMALL) return true; /* and so was its whole slab */
    uint32_t index = (uint32_t)(((uintptr_t)block - place.slab->start) / place.bytes);
    return hak_atomic_load(&place.slab->bits[index / 64], relaxed) >> index % 64 & 1;
}

/* A batch is put back in whatever order its blocks come: theirs are the bits that are set, and no other. */
static void batches_in_any_order(void **state) {
    (void)state;
    enum { TAKEN = 256, LIVE = 8, COUNT = TAKEN - TAKEN / LIVE }; /* a block of every slab stays */
    static void *taken[TAKEN], *blocks[COUNT];
    uint64_t random = 3;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t round = 0; round < 5 * HAK_SMALL_CLASS_COUNT; round++) {
        uint32_t c = 1 + round / 5, order = round % 5, count = 0;
        pool_take(heap, c, taken, TAKEN);
        for (uint32_t i = 0; i < TAKEN; i++)
            if (i % LIVE != 5) blocks[count++] = taken[order == 1 ? TAKEN - 1 - i : i];
        for (uint32_t i = 0; order == 2 && i < COUNT; i += 2) swap(&blocks[i], &blocks[COUNT - 1 - i]);
        for (uint32_t i = 1; order == 3 && i < COUNT; i += 2) swap(&blocks[i], &blocks[i - 1]);
        for (uint32_t i = 0; order == 4 && i < COUNT; i++) swap(&blocks[i], &blocks[unit_random(&random) % COUNT]);
        for (uint32_t at = 0, size; at < COUNT; at += size) {
            size = 1 + unit_random(&random) % (round % 2 == 0 ? 64 : COUNT);
            if (size > COUNT - at) size = COUNT - at;
            hak_pool_put(heap, c, blocks + at, size);
            for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(is_free(blocks[i]), i < at + size);
        }
        for (uint32_t i = 0; i < TAKEN; i++)
            if (i % LIVE == 5) assert_false(is_free(taken[order == 1 ? TAKEN - 1 - i : i]));
    }
}

/* One block of each of so many words is more than a batch gathers. */
static void batches_of_many_words(void **state) {
    (void)state;
    enum { WORDS = 200 };
    static void *taken[64 * WORDS], *blocks[WORDS];
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint32_t c = HAK_SMALL_CLASS_COUNT, in_a_word = (uint32_t)hak_size_classes[c].block_count;
    assert_in_range(in_a_word, 2, 64);
    pool_take(heap, c, taken, in_a_word * WORDS);
    for (uint32_t i = 0; i < WORDS; i++) blocks[i] = taken[i * in_a_word + i % in_a_word];
    hak_pool_put(heap, c, blocks, WORDS);
    for (uint32_t i = 0; i < in_a_word * WORDS; i++)
        assert_int_equal(is_free(taken[i]), i % in_a_word == i / in_a_word % in_a_word);
}

/* Words of a slab that the heap has freed into serve before words that nobody has touched. */
static void touched_words_first(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    static void *blocks[20 * 64], *more[2 * 64 + 1];
    pool_take(heap, 1, blocks, 20 * 64);
    hak_pool_put(heap, 1, blocks + 7 * 64, 64);
    hak_pool_put(heap, 1, blocks + 3 * 64, 64);
    pool_take(heap, 1, more, 2 * 64 + 1);
    assert_memory_equal(more, blocks + 3 * 64, 64 * sizeof(void *));
    assert_memory_equal(more + 64, blocks + 7 * 64, 64 * sizeof(void *));
    assert_ptr_equal(more[2 * 64], (char *)blocks[20 * 64 - 1] + 16);
}

/* Any order, any size of batch: no block is handed out twice, and all slabs come back. */
static void at_random(void **state) {
    (void)state;
    enum { LIVE = 3000, ROUNDS = 3000 };
    static struct {
        void *block;
        uint32_t size_class;
    } live[LIVE];
    pool_start(SIZE_MAX);
    struct hak_heap *heaps[3] = {hak_heap_acquire(), hak_heap_acquire(), NULL};
    uint64_t random = 11;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t c = 1 + unit_random(&random) % HAK_SMALL_CLASS_COUNT, count = 1 + unit_random(&random) % 60, found = 0;
        struct hak_heap *heap = heaps[unit_random(&random) % 3];
        void *batch[60];
        if (unit_random(&random) % 2) {
            for (int i = 0; i < LIVE && found < count; i++) {
                if (live[i].block == NULL || live[i].size_class != c) continue;
                assert_int_equal(*(uint64_t *)live[i].block, (uint64_t)i);
                batch[found++] = live[i].block;
                live[i].block = NULL;
            }
            hak_pool_put(heap, c, batch, found);
            continue;
        }
        pool_take(heap, c, batch, count);
        for (int i = 0; i < LIVE && found < count; i++) {
            if (live[i].block != NULL) continue;
            live[i].block = batch[found++];
            live[i].size_class = c;
            *(uint64_t *)live[i].block = (uint64_t)i;
        }
        hak_pool_put(heap, c, batch + found, count - found);
    }
    for (int i = 0; i < LIVE; i++) {
        if (live[i].block == NULL) continue;
        assert_int_equal(*(uint64_t *)live[i].block, (uint64_t)i);
        pool_put_one(heaps[i % 3], live[i].size_class, live[i].block);
    }
    for (int i = 0; i < 2; i++) hak_heap_flush(heaps[i]);
    uint32_t super_slabs = (uint32_t)hak_region_sums().super_slabs;
    hak_region_purge_units(UINT64_MAX, true);
    for (uint32_t i = 0; i < super_slabs; i++)
        assert_int_equal(hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed) >> 32, UINT32_MAX);
}

/* ---- Misuse -------------------------------------------------------------------------------------------------------- */

static void expect_report(const struct fake_report *report, enum hak_misuse_kind kind, const void *block, size_t offset,
                          size_t size) {
    unit_expect_misuse(report, kind, "free", block, offset, size);
}

static void twice_in_a_batch(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    void *blocks[10];
    pool_take(heap, CLASS_64, blocks, 9);
    blocks[9] = blocks[2];
    expect_report(pool_catch_put(heap, CLASS_64, blocks, 10), HAK_MISUSE_DOUBLE_FREE, blocks[2], 0, 64);
}

static void twice_in_two_batches(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    static void *blocks[200];
    pool_take(heap, CLASS_64, blocks, 200); /* several words */
    hak_pool_put(heap, CLASS_64, blocks, 100);
    expect_report(pool_catch_put(heap, CLASS_64, blocks + 99, 1), HAK_MISUSE_DOUBLE_FREE, blocks[99], 0, 64);
}

static void twice_by_two_heaps(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    void *blocks[10];
    pool_take(heap, CLASS_64, blocks, 10);
    pool_put_one(other, CLASS_64, blocks[3]);
    expect_report(pool_catch_put(NULL, CLASS_64, blocks + 3, 1), HAK_MISUSE_DOUBLE_FREE, blocks[3], 0, 64);
}

/* The word of the block has been claimed for the next refills meanwhile, but the block is not handed out yet. */
static void twice_around_a_claim(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    static void *blocks[64];
    uint32_t c = class_1024();
    pool_take(heap, c, blocks, 64);
    hak_pool_put(heap, c, blocks, 10);
    assert_ptr_equal(pool_take_one(heap, c), blocks[0]);
    expect_report(pool_catch_put(heap, c, blocks + 5, 1), HAK_MISUSE_DOUBLE_FREE, blocks[5], 0, 1024);
}

/* The blocks of a slab come back, and one of them once more when the slab is in use again but has not handed it out. */
static void take_more(void *heap) {
    static void *blocks[64];
    pool_take(heap, CLASS_64, blocks, 64);
}

static void twice_into_the_tail(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire(), *other = hak_heap_acquire();
    static void *blocks[300];
    pool_take(heap, CLASS_64, blocks, 300);
    hak_pool_put(heap, CLASS_64, blocks, 300);
    hak_heap_flush(heap);
    assert_ptr_equal(pool_take_one(heap, CLASS_64), blocks[0]);
    expect_report(pool_catch_put(heap, CLASS_64, blocks + 200, 1), HAK_MISUSE_DOUBLE_FREE, blocks[200], 0, 64);
    assert_null(pool_catch_put(other, CLASS_64, blocks + 71, 1)); /* the holder comes to it */
    expect_report(fake_os_catch(take_more, heap), HAK_MISUSE_DOUBLE_FREE, blocks[71], 0, 64);
}

/* The slab is gone, and so is its class: the page map says so. */
static void twice_after_the_slab(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    void *blocks[3];
    uint32_t c = hak_size_class_of(32768);
    pool_take(heap, c, blocks, 3);
    hak_pool_put(heap, c, blocks, 3);
    hak_heap_flush(heap);
    expect_report(pool_catch_put(heap, c, blocks, 1), HAK_MISUSE_DOUBLE_FREE, blocks[0], 0, 32768);
}

/* No address within a block but its first is taken for a block, in any class. */
static void interior_pointers(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    static void *blocks[4096];
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_size_class *facts = &hak_size_classes[c];
        size_t bytes = facts->block_bytes;
        pool_take(heap, c, blocks, facts->block_count);
        const size_t offsets[] = {1, 8, bytes / 2, bytes - 16, bytes - 1};
        for (uint32_t i = 0; i < facts->block_count; i += i + 3 < facts->block_count ? 3 : 1) {
            for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
                void *inside = (char *)blocks[i] + offsets[o];
                if (offsets[o] == 0) continue;
                expect_report(pool_catch_put(heap, c, &inside, 1), HAK_MISUSE_INTERIOR_POINTER, inside, offsets[o],
                              bytes);
            }
        }
        void *behind = (char *)blocks[facts->block_count - 1] + bytes;
        if (facts->block_count * bytes < facts->unit_count * HAK_UNIT_BYTES)
            expect_report(pool_catch_put(heap, c, &behind, 1), HAK_MISUSE_INTERIOR_POINTER, behind, 0, bytes);
    }
}

static void foreign_pointers(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    pool_take_one(heap, CLASS_64);
    void *foreign = &state;
    expect_report(pool_catch_put(heap, CLASS_64, &foreign, 1), HAK_MISUSE_FOREIGN_POINTER, foreign, 0, 0);
}

/* ---- Memory is used again ------------------------------------------------------------------------------------------- */

static uint64_t count_free_units(void) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < hak_region_sums().super_slabs; i++)
        count += hak_bit_count(hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed));
    return count;
}

/* A phase: 4 MiB of blocks of one class, all put back, forwards or backwards. */
static void run_phase(struct hak_heap *heap, uint32_t size_class, bool backwards) {
    static void *blocks[(4 << 20) / 16];
    uint32_t count = (4u << 20) / hak_size_classes[size_class].block_bytes;
    pool_take(heap, size_class, blocks, count);
    if (!backwards) hak_pool_put(heap, size_class, blocks, count);
    else
        for (uint32_t i = count; i-- > 0;) pool_put_one(heap, size_class, blocks[i]);
}

/* What a phase leaves behind serves the next: never more than what one phase takes, a slab kept for each of the other
 * classes, and the gaps between. */
static void phases_of_eight_classes(void **state) {
    (void)state;
    static const uint16_t sizes[8] = {64, 1024, 16, 8192, 32768, 256, 2048, 12288};
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    uint64_t mapped = fake_os.mapped_bytes;
    for (uint32_t phase = 0; phase < 100; phase++) {
        run_phase(heap, hak_size_class_of(sizes[phase % 8]), phase % 3 == 0);
        assert_in_range(hak_region_sums().super_slabs, 2, 5);
        assert_int_equal(fake_os.mapped_bytes, mapped + hak_region_sums().committed_bytes);
    }
}

/* A slab of every class stays with the heap: 72 of them, 104 units, that stand in the way of runs of four. Still there is a
 * bound, far below what phases without reuse would take. */
static void phases_of_all_classes(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    for (uint32_t phase = 0; phase < 1000; phase++) {
        run_phase(heap, 1 + phase * 31 % HAK_SMALL_CLASS_COUNT, phase % 2 == 0);
        assert_in_range(hak_region_sums().super_slabs, 2, 14);
    }
    hak_heap_flush(heap);
    assert_int_equal(count_free_units(), hak_region_sums().super_slabs * 32);
}

/* Memory is used up: no blocks, no harm, and all is well once some come back. */
static void used_up(struct hak_heap *heap, uint32_t size_class) {
    enum { LIMIT = 1 << 15 };
    static void *blocks[LIMIT];
    uint32_t count = 0;
    void *slot[1];
    while (count < LIMIT && hak_pool_take(heap, size_class, slot + 1, 1) == 1) blocks[count++] = slot[0];
    assert_in_range(count, 1, LIMIT - 1);
    for (int i = 0; i < 3; i++) assert_int_equal(hak_pool_take(heap, size_class, slot + 1, 1), 0);
    for (uint32_t i = 0; i < count; i++) *(uint32_t *)blocks[i] = i;
    for (uint32_t i = 0; i < count; i++) assert_int_equal(*(uint32_t *)blocks[i], i);
    pool_put_one(heap, size_class, blocks[count / 2]);
    assert_ptr_equal(pool_take_one(heap, size_class), blocks[count / 2]);
    assert_int_equal(hak_pool_take(heap, size_class, slot + 1, 1), 0);
    for (uint32_t i = 0; i < count; i++) pool_put_one(heap, size_class, blocks[i]);
    hak_heap_flush(heap);
    pool_take(heap, class_1024(), blocks, 100); /* for any class */
    hak_pool_put(heap, class_1024(), blocks, 100);
}

/* Until the next slab makes the heap grow, and that is not small then. */
static void use_all_units(struct hak_heap *heap) {
    while (hak_region_sums().super_slabs < 8 || count_free_units() > 0 || heap->empty_count > 0)
        pool_take_one(heap, hak_size_class_of(1024));
}

/* A class keeps its last slab, empty as it is. Before the heap grows it serves another class, also where its class has
 * missed since the heap last grew. */
static void kept_slabs_before_growth(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    use_all_units(heap);
    void *block = pool_take_one(heap, CLASS_64);
    use_all_units(heap);
    pool_put_one(heap, CLASS_64, block);
    uint64_t before = hak_region_sums().super_slabs;
    heap->miss_run[CLASS_64] = 1;
    pool_take_one(heap, hak_size_class_of(256));
    assert_int_equal(hak_region_sums().super_slabs, before);
    assert_int_equal(heap->miss_run[CLASS_64], 0);
}

static void all_ranges_used_up(void **state) {
    (void)state;
    pool_start(HAK_PAGE_MAP_BYTES + 4 * HAK_MIB); /* ranges of one SuperSlab */
    struct hak_heap *heap = hak_heap_acquire();
    used_up(heap, hak_size_class_of(32768));
    assert_non_null(hak_region_range(HAK_RANGE_LIMIT - 1));
    assert_int_equal(hak_region_sums().super_slabs, HAK_RANGE_LIMIT);
    used_up(heap, hak_size_class_of(32768));
}

static void all_super_slabs_used_up(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    hak_atomic_store(&hak_region_range(0)->super_slab_limit, 8, relaxed);
    fake_os.window_room = 0; /* for another range */
    for (int i = 0; i < 8; i++) hak_region_release(hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false), 32);
    struct hak_heap *heap = hak_heap_acquire();
    fake_os.address_space_room = fake_os.mapped_bytes;
    used_up(heap, hak_size_class_of(32768));
    assert_int_equal(hak_region_sums().super_slabs, 8);
    used_up(heap, hak_size_class_of(8192));
    assert_int_equal(hak_region_sums().super_slabs, 8);
}

static void no_memory_to_map(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = hak_heap_acquire();
    pool_take_one(heap, CLASS_64);
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    used_up(heap, hak_size_class_of(32768));
    assert_int_equal(hak_region_sums().super_slabs, 1);
    fake_os_refuse_nothing();
    static void *blocks[1000];
    pool_take(heap, hak_size_class_of(32768), blocks, 1000);
}

UNIT_MAIN(cmocka_unit_test(the_five_stages), cmocka_unit_test(former_slabs_first),
          cmocka_unit_test(former_slab_of_several_units), cmocka_unit_test(slabs_are_counted),
          cmocka_unit_test(stages_without_heap), cmocka_unit_test(full_slabs_come_back),
          cmocka_unit_test(lowest_blocks_first), cmocka_unit_test(batches_in_any_order),
          cmocka_unit_test(batches_of_many_words), cmocka_unit_test(touched_words_first), cmocka_unit_test(at_random),
          cmocka_unit_test(twice_in_a_batch), cmocka_unit_test(twice_in_two_batches),
          cmocka_unit_test(twice_by_two_heaps), cmocka_unit_test(twice_around_a_claim),
          cmocka_unit_test(twice_into_the_tail), cmocka_unit_test(twice_after_the_slab),
          cmocka_unit_test(interior_pointers), cmocka_unit_test(foreign_pointers),
          cmocka_unit_test(phases_of_eight_classes), cmocka_unit_test(phases_of_all_classes),
          cmocka_unit_test(kept_slabs_before_growth), cmocka_unit_test(all_ranges_used_up),
          cmocka_unit_test(all_super_slabs_used_up), cmocka_unit_test(no_memory_to_map))

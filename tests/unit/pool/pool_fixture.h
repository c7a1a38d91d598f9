/* For tests of the pool: a region, heaps, and blocks taken and put without bins in between. Heaps belong to the test, not to
 * threads. */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include "unit.h"

#include "base/knobs.h"
#include "fake_os.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/held.h"
#include "pool/pool.h"
#include "region/heap_count.h"

static inline void pool_start(size_t window_room) {
    fake_os.window_room = window_room;
    hak_size_class_initialize(HAK_SECURE ? fake_os.page_bytes : 0);
    assert_true(hak_region_initialize());
    hak_heap_count_initialize();
}

/* The first ones of many heaps are in `first`: they are the last ones of the list. */
static inline void pool_start_with_heaps(uint32_t count, struct hak_heap **first, uint32_t first_count) {
    pool_start(SIZE_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct hak_heap *heap = hak_heap_acquire();
        assert_non_null(heap);
        if (i < first_count) first[i] = heap;
    }
}

static inline uint32_t pool_in_use_of(const struct hak_heap *heap) { return hak_atomic_load(&heap->in_use, relaxed); }

static inline size_t pool_slots_of(const struct hak_heap *heap, uint32_t size_class) {
    return (size_t)(heap->slots[size_class].end - heap->slots[size_class].start);
}

/* Takes exactly `count` blocks into blocks[0..], the first one to use first. */
static inline void pool_take(struct hak_heap *heap, uint32_t size_class, void **blocks, uint32_t count) {
    for (uint32_t got = 0; got < count;) {
        void *stack[64];
        uint32_t want = count - got < 64 ? count - got : 64;
        uint32_t more = hak_pool_take(heap, size_class, stack + 64, want);
        assert_in_range(more, 1, want);
        for (uint32_t i = 0; i < more; i++) blocks[got++] = stack[63 - i];
    }
}

static inline void *pool_take_one(struct hak_heap *heap, uint32_t size_class) {
    void *block;
    pool_take(heap, size_class, &block, 1);
    return block;
}

/* As between two slow paths: hak_heap_grow_bin and hak_heap_open_bin for a bin that may be open. */
static inline enum hak_bin_fit pool_grow_bin(struct hak_heap *heap, uint32_t size_class) {
    hak_heap_close_bin(heap, size_class);
    enum hak_bin_fit fit = hak_heap_grow_bin(heap, size_class);
    hak_heap_open_bin(heap, size_class);
    return fit;
}

static inline void pool_open_bin(struct hak_heap *heap, uint32_t size_class) {
    hak_heap_close_bin(heap, size_class);
    hak_heap_open_bin(heap, size_class);
}

static inline void pool_put_one(struct hak_heap *heap, uint32_t size_class, void *block) {
    hak_pool_put(heap, size_class, &block, 1);
}

enum { POOL_CLASS = 4 };

/* A heap with a block in the bin of POOL_CLASS, and the slab of that. */
static inline struct hak_heap *pool_heap_with_block(void **block) {
    struct hak_heap *heap = hak_heap_acquire();
    assert_true(pool_grow_bin(heap, POOL_CLASS));
    *block = pool_take_one(heap, POOL_CLASS);
    *heap->bins[POOL_CLASS].top = *block;
    hak_bin_set_top(&heap->bins[POOL_CLASS], heap->bins[POOL_CLASS].top + 1);
    return heap;
}

static inline void pool_every_unit_is_back(void) {
    hak_region_purge_units(UINT64_MAX, true);
    for (uint32_t i = 0; i < hak_region_sums().super_slabs; i++)
        assert_int_equal(hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed) >> 32, UINT32_MAX);
}

/* A put that may be misuse. */
struct pool_put {
    struct hak_heap *heap;
    uint32_t size_class;
    void **blocks;
    uint32_t count;
};

static inline void pool_put_body(void *context) {
    const struct pool_put *put = (const struct pool_put *)context;
    hak_pool_put(put->heap, put->size_class, put->blocks, put->count);
}

static inline const struct fake_report *pool_catch_put(struct hak_heap *heap, uint32_t size_class, void **blocks,
                                                       uint32_t count) {
    struct pool_put put = {heap, size_class, blocks, count};
    return fake_os_catch(pool_put_body, &put);
}

#define POOL_COUNTER(heap, name) hak_atomic_load(&(heap)->counters.name, relaxed)

#endif

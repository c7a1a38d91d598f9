#include "front/miss.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "front/process.h"
#include "front/thread.h"
#include "pool/pool.h"
#include "pool/purge.h"

HAK_OWNED(uint16_t) hak_bin_offsets[HAK_SMALL_MAX / HAK_ALIGNMENT + 1];

enum { MOST_BLOCKS_PER_MISS = 64 }; /* so that no single call takes long, however large a bin is */

static HAK_COLD void *out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

/* ---- Refill and flush --------------------------------------------------------------------------------------------- */

bool hak_front_refill(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    hak_heap_begin_slow_path(heap);
    hak_heap_grow_bin(heap, size_class);
    void **base = hak_owned_get(&bin->base);
    uint32_t slots = (uint32_t)(hak_owned_get(&bin->limit) - base), want = (slots + 1) / 2, got = 0;
    if (want > MOST_BLOCKS_PER_MISS) want = MOST_BLOCKS_PER_MISS;
    if (want > 0) got = hak_pool_take(heap, size_class, base + want, want);
    if (got > 0) {
        if (got < want) memmove(base, base + (want - got), got * sizeof(void *));
        hak_bin_set_top(bin, base + got);
        HAK_COUNT(heap, refills, 1);
        HAK_COUNT(heap, refilled_blocks, got);
    }
    hak_heap_end_slow_path(heap);
    return got > 0;
}

/* Makes room in a full bin: more slots, or the oldest half goes back. */
static void make_room(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    hak_heap_begin_slow_path(heap);
    if (!hak_heap_grow_bin(heap, size_class) && hak_bin_count(bin) != 0) {
        void **base = hak_owned_get(&bin->base);
        uint32_t count = (uint32_t)(hak_bin_count(bin) + 1) / 2;
        if (count > MOST_BLOCKS_PER_MISS) count = MOST_BLOCKS_PER_MISS;
        hak_pool_put(heap, size_class, base, count);
        size_t left = hak_bin_count(bin) - count;
        memmove(base, base + count, left * sizeof(void *));
        hak_bin_set_top(bin, base + left);
        HAK_COUNT(heap, flushes, 1);
        HAK_COUNT(heap, flushed_blocks, count);
    }
    hak_heap_end_slow_path(heap);
}

/* ---- Allocation --------------------------------------------------------------------------------------------------- */

void *hak_front_alloc_large(size_t size, size_t alignment, bool clear) {
    if (HAK_UNLIKELY(size > PTRDIFF_MAX) || !hak_process_initialize()) return out_of_memory();
    void *block = hak_large_alloc(size == 0 ? 1 : size, alignment, clear);
    if (HAK_UNLIKELY(block == NULL)) return out_of_memory();
    struct hak_heap *heap = hak_thread_attach();
    HAK_COUNT(heap, large_allocs, 1);
    return block;
}

void *hak_front_alloc_miss(size_t size) {
    if (size > HAK_SMALL_MAX) return hak_front_alloc_large(size, HAK_ALIGNMENT, false);
    struct hak_heap *heap = hak_thread_attach();
    if (HAK_UNLIKELY(heap == NULL) && !hak_process_initialize()) return out_of_memory();
    uint32_t size_class = hak_size_class_of(size);
    if (HAK_LIKELY(heap != NULL)) {
        struct hak_bin *bin = &heap->bins[size_class];
        if (HAK_LIKELY(hak_bin_count(bin) != 0 || hak_front_refill(heap, size_class))) {
            void **top = hak_owned_get(&bin->top) - 1;
            hak_bin_set_top(bin, top);
            return *top;
        }
    }
    void *block;
    if (hak_pool_take(NULL, size_class, &block + 1, 1) == 0) return out_of_memory();
    HAK_COUNT((struct hak_heap *)NULL, refilled_blocks, 1);
    return block;
}

/* ---- Free --------------------------------------------------------------------------------------------------------- */

struct hak_place hak_front_place_of(const void *block, const char *function) {
    uintptr_t address = (uintptr_t)block;
    struct hak_place place = hak_region_find(address);
    if (HAK_UNLIKELY(place.kind == HAK_PLACE_FOREIGN)) hak_misuse(HAK_MISUSE_FOREIGN_POINTER, function, block, 0, 0);
    if (HAK_UNLIKELY(place.start != address))
        hak_misuse(HAK_MISUSE_INTERIOR_POINTER, function, block, address - place.start, place.bytes);
    return place;
}

static void free_small(void *block, uint32_t size_class) {
    struct hak_heap *heap = hak_thread_attach();
    if (HAK_UNLIKELY(heap == NULL)) {
        HAK_COUNT(heap, flushed_blocks, 1);
        hak_pool_put(NULL, size_class, &block, 1);
        return;
    }
    struct hak_bin *bin = &heap->bins[size_class];
    if (HAK_UNLIKELY(hak_bin_count(bin) != 0 && hak_owned_get(&bin->top)[-1] == block))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    if (hak_owned_get(&bin->top) == hak_owned_get(&bin->limit)) make_room(heap, size_class);
    void **top = hak_owned_get(&bin->top);
    if (HAK_UNLIKELY(top == hak_owned_get(&bin->limit))) { /* no slots are to be had */
        hak_heap_begin_slow_path(heap);
        HAK_COUNT(heap, flushed_blocks, 1);
        hak_pool_put(heap, size_class, &block, 1);
        hak_heap_end_slow_path(heap);
        return;
    }
    *top = block;
    hak_bin_set_top(bin, top + 1);
}

void hak_front_free_miss(void *block) {
    if (block == NULL) return;
    struct hak_place place = hak_front_place_of(block, "free");
    if (place.kind == HAK_PLACE_SMALL) {
        free_small(block, place.size_class);
        return;
    }
    if (HAK_UNLIKELY(!hak_large_free(&place))) hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, place.bytes);
    struct hak_heap *heap = hak_thread_attach();
    HAK_COUNT(heap, large_frees, 1);
}

/* ---- Purging and prewarming ---------------------------------------------------------------------------------------- */

size_t hak_front_purge(void) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL) return hak_purge_all(NULL);
    hak_heap_begin_slow_path(heap);
    size_t purged_bytes = hak_purge_all(heap);
    hak_heap_end_slow_path(heap);
    return purged_bytes;
}

size_t hak_front_prewarm(size_t max_bytes) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL) return 0;
    size_t blocks = 0;
    uint32_t last = hak_size_class_of(max_bytes < HAK_SMALL_MAX ? max_bytes : HAK_SMALL_MAX);
    for (uint32_t i = 1; i <= last; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (hak_bin_count(bin) == 0) hak_front_refill(heap, i);
        blocks += hak_bin_count(bin);
    }
    return blocks;
}

#include "front/miss.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "front/background.h"
#include "front/process.h"
#include "front/thread.h"
#include "front/tight.h"
#include "pool/pool.h"
#include "pool/purge.h"
#include "region/large.h"

HAK_OWNED(uint16_t) hak_bin_offsets[HAK_SMALL_MAX / HAK_ALIGNMENT + 1];

/* Slabs of the widest class of a group that a heap may have before the group is opened: 256 KiB and up. */
enum { SLABS_TO_OPEN = 4 };

enum { MOST_BLOCKS_PER_MISS = 64 }; /* so that no single call takes long, however large a bin is */

static HAK_COLD void *out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

/* ---- Refill and flush --------------------------------------------------------------------------------------------- */

/* Begins a slow path of the calling thread's heap. NULL when there is none to be used: the thread can't have one, or somebody
 * has it at this moment. */
static struct hak_heap *enter(void) {
    struct hak_heap *heap = hak_thread_attach();
    return HAK_LIKELY(heap != NULL) && HAK_LIKELY(hak_heap_begin_slow_path(heap)) ? heap : NULL;
}

HAK_ATOMIC(uint64_t) hak_miss_sample_mask = UINT64_MAX;

/* The time of one miss in so many is taken: at the beginning and the end of what follows. */
static void begin_sample(struct hak_heap *heap) {
    if (HAK_UNLIKELY((hak_atomic_load(&heap->slow_paths, relaxed) & hak_atomic_load(&hak_miss_sample_mask, relaxed)) ==
                     0))
        heap->sample_start = hak_ticks();
}

static HAK_COLD void take_sample(struct hak_heap *heap) {
    uint64_t ticks = hak_ticks() - heap->sample_start;
    heap->sample_start = 0;
    if (ticks > HAK_MISS_MOST_TICKS) return; /* the thread was elsewhere */
    hak_counter_add(&heap->sampled_ticks, ticks);
    hak_counter_add(&heap->sample_count, 1);
}

static void end_sample(struct hak_heap *heap) {
    if (HAK_UNLIKELY(heap->sample_start != 0)) take_sample(heap);
}

static void leave(struct hak_heap *heap) {
    if (HAK_UNLIKELY(hak_atomic_load(&heap->drain_wanted, relaxed) != 0)) {
        hak_atomic_store(&heap->drain_wanted, 0, relaxed);
        hak_heap_flush(heap);
    }
    hak_heap_end_slow_path(heap);
    hak_background_notice();
}

/* How many blocks a miss moves: as many as half the slots; all of them after another miss of the kind, as in phases in which
 * a program only allocates or only frees. */
static uint32_t batch_size(struct hak_heap *heap, uint32_t size_class, enum hak_miss kind) {
    const struct hak_slots *slots = &heap->slots[size_class];
    uint32_t all = (uint32_t)(slots->end - slots->start),
             count = heap->last_miss[size_class] == kind ? all : (all + 1) / 2;
    heap->last_miss[size_class] = (uint8_t)kind;
    hak_counter_add(&heap->class_misses[size_class], 1);
    return count < MOST_BLOCKS_PER_MISS ? count : MOST_BLOCKS_PER_MISS;
}

/* A class takes a slab, of which a program with a few blocks of every size fills little: such sizes share the slabs of the widest
 * class of their group. When a heap has several, what blocks have too much costs more than slabs that are not full, and
 * each class of the group gets its own, for good. */
static void open_group(uint32_t widest) {
    for (uint32_t i = widest - HAK_GROUP_CLASSES + 1; i < widest; i++) {
        size_t last = hak_size_classes[i].block_bytes / HAK_ALIGNMENT;
        for (size_t at = hak_size_classes[i - 1].block_bytes / HAK_ALIGNMENT + 1; at <= last; at++)
            hak_front_serve(at, i);
    }
}

static bool is_closed_group(uint32_t size_class) {
    return size_class > HAK_SINGLE_CLASS_COUNT && hak_widest_of_group(size_class) == size_class &&
           hak_front_class_of(hak_size_classes[size_class - 1].block_bytes) == size_class;
}

/* Fills an open bin that is empty. */
static bool refill(struct hak_heap *heap, uint32_t size_class) {
    if (HAK_UNLIKELY(hak_heap_grow_bin(heap, size_class) == HAK_BIN_TOO_LARGE)) hak_heap_shrink_bin(heap, size_class);
    void **base = heap->slots[size_class].start;
    uint32_t want = batch_size(heap, size_class, HAK_MISS_REFILL);
    uint32_t got = want > 0 ? hak_pool_take(heap, size_class, base + want, want) : 0;
    if (got == 0) return false;
    if (HAK_UNLIKELY(heap->slab_counts[size_class] > SLABS_TO_OPEN) && is_closed_group(size_class))
        open_group(size_class);
    if (got < want) memmove(base, base + (want - got), got * sizeof(void *));
    hak_bin_set_top(&heap->bins[size_class], base + got);
    HAK_COUNT(heap, refills, 1);
    HAK_COUNT(heap, refilled_blocks, got);
    return true;
}

bool hak_front_refill(uint32_t size_class) {
    struct hak_heap *heap = enter();
    if (heap == NULL) return false;
    hak_heap_open_bin(heap, size_class);
    bool filled = hak_heap_cached(heap, size_class) != 0 || refill(heap, size_class);
    leave(heap);
    return filled;
}

/* Makes room in an open bin that is full: more slots, or the oldest blocks go back. */
static void make_room(struct hak_heap *heap, uint32_t size_class) {
    enum hak_bin_fit fit = hak_heap_grow_bin(heap, size_class);
    if (fit == HAK_BIN_GREW) return;
    void **base = heap->slots[size_class].start;
    size_t have = hak_heap_cached(heap, size_class), count = batch_size(heap, size_class, HAK_MISS_FLUSH);
    if (count == 0) return;
    hak_pool_put(heap, size_class, base, (uint32_t)count);
    memmove(base, base + count, (have - count) * sizeof(void *));
    hak_bin_set_top(&heap->bins[size_class], base + (have - count));
    if (HAK_UNLIKELY(fit == HAK_BIN_TOO_LARGE)) hak_heap_shrink_bin(heap, size_class);
    HAK_COUNT(heap, flushes, 1);
    HAK_COUNT(heap, flushed_blocks, count);
}

/* ---- Allocation --------------------------------------------------------------------------------------------------- */

/* In a unit that the heap keeps, if one will do. */
static void *alloc_in_kept_unit(size_t size, size_t alignment, bool clear) {
    if (size > HAK_UNIT_BYTES || alignment > HAK_UNIT_BYTES) return NULL;
    struct hak_heap *heap = enter();
    if (heap == NULL) return NULL;
    struct hak_slab *unit = hak_heap_take_unit(heap);
    void *block = unit == NULL ? NULL : hak_large_use_unit(unit, size, clear);
    leave(heap);
    return block;
}

void *hak_front_alloc_large(size_t size, size_t alignment, bool clear) {
    if (HAK_UNLIKELY(size > PTRDIFF_MAX) || !hak_process_initialize()) return out_of_memory();
    if (size == 0) size = 1;
    void *block = alloc_in_kept_unit(size, alignment, clear);
    if (block == NULL) block = hak_large_alloc(size, alignment, clear);
    if (HAK_UNLIKELY(block == NULL)) return out_of_memory();
    struct hak_heap *heap = hak_thread_attach();
    HAK_COUNT(heap, large_allocs, 1);
    if (HAK_LIKELY(heap != NULL)) hak_background_want();
    hak_tight_notice();
    return block;
}

static void *alloc_small(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    hak_heap_open_bin(heap, size_class);
    if (hak_heap_cached(heap, size_class) == 0 && !refill(heap, size_class)) return NULL;
    void **top = hak_owned_get(&bin->top) - 1;
    hak_bin_set_top(bin, top);
    return *top;
}

void *hak_front_alloc_miss(size_t size) {
    if (size > HAK_SMALL_MAX) return hak_front_alloc_large(size, HAK_ALIGNMENT, false);
    struct hak_heap *heap = enter();
    if (HAK_UNLIKELY(heap == NULL) && !hak_process_initialize()) return out_of_memory();
    uint32_t size_class = hak_front_class_of(size);
    void *block;
    if (HAK_LIKELY(heap != NULL)) {
        begin_sample(heap);
        block = alloc_small(heap, size_class);
        end_sample(heap);
        leave(heap);
        hak_background_want();
        hak_tight_notice();
        if (HAK_LIKELY(block != NULL)) return block;
    }
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

/* Into the bin. False when it can't have slots. */
static bool cache_block(struct hak_heap *heap, void *block, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    hak_heap_open_bin(heap, size_class);
    if (HAK_UNLIKELY(hak_heap_cached(heap, size_class) != 0 && hak_owned_get(&bin->top)[-1] == block))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    const struct hak_slots *slots = &heap->slots[size_class];
    if (slots->end == NULL || hak_owned_get(&bin->top) == slots->end) make_room(heap, size_class);
    void **top = hak_owned_get(&bin->top);
    if (HAK_UNLIKELY(slots->end == NULL || top == slots->end)) return false;
    *top = block;
    hak_bin_set_top(bin, top + 1);
    return true;
}

static void free_small(void *block, uint32_t size_class) {
    struct hak_heap *heap = enter();
    if (HAK_LIKELY(heap != NULL)) begin_sample(heap);
    if (HAK_UNLIKELY(heap == NULL || !cache_block(heap, block, size_class))) {
        HAK_COUNT(heap, flushed_blocks, 1);
        hak_pool_put(heap, size_class, &block, 1);
    }
    if (HAK_LIKELY(heap != NULL)) {
        end_sample(heap);
        leave(heap);
    }
}

static bool free_large(const struct hak_place *place) {
    bool is_unit = place->kind == HAK_PLACE_RUN && place->bytes <= HAK_UNIT_BYTES, is_kept = false;
    struct hak_heap *heap = is_unit ? enter() : NULL;
    if (heap != NULL) {
        if (heap->empty_count < HAK_EMPTY_SLABS) {
            struct hak_slab *unit = hak_large_free_unit(place);
            is_kept = unit != NULL && hak_heap_keep_unit(heap, unit);
        }
        leave(heap);
    }
    return is_kept || hak_large_free(place);
}

void hak_front_free_miss(void *block) {
    if (block == NULL) return;
    struct hak_place place = hak_front_place_of(block, "free");
    if (place.kind == HAK_PLACE_SMALL) {
        free_small(block, place.size_class);
        return;
    }
    if (HAK_UNLIKELY(!free_large(&place))) hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, place.bytes);
    struct hak_heap *heap = hak_thread_attach();
    HAK_COUNT(heap, large_frees, 1);
    hak_signal_fence();
    hak_background_notice();
}

/* ---- Purging and prewarming ---------------------------------------------------------------------------------------- */

size_t hak_front_purge(void) {
    struct hak_heap *heap = enter();
    size_t purged_bytes = hak_purge_all(heap);
    if (heap != NULL) leave(heap);
    return purged_bytes;
}

size_t hak_front_prewarm(size_t max_bytes) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL) return 0;
    size_t blocks = 0;
    uint32_t last = hak_front_class_of(max_bytes < HAK_SMALL_MAX ? max_bytes : HAK_SMALL_MAX);
    for (uint32_t i = 1; i <= last; i++) {
        if (hak_front_class_of(hak_size_classes[i].block_bytes) != i) continue;
        hak_front_refill(i);
        blocks += hak_heap_cached(heap, i);
    }
    return blocks;
}

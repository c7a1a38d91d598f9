#include "pool/drain.h"

#include "pool/pool.h"
#include "region/page_policy.h"

/* Where the blocks of the bins began before the drain. */
struct lowest {
    void **block[HAK_SMALL_CLASS_COUNT + 1];
};

/* From the fence that follows, no hit begins at or below the topmost block, and none puts a block on top. */
static void close_bins(struct hak_heap *heap, struct lowest *lowest) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **top = hak_owned_peek(&bin->top);
        lowest->block[i] = hak_atomic_load(&bin->base, relaxed);
        if (top > lowest->block[i]) hak_atomic_store(&bin->base, top - 1, relaxed);
        hak_atomic_store(&bin->limit, NULL, relaxed);
    }
}

/* Gives back what lies below both `base` and the topmost block, and lowers `base` to what is left. Without `all`, nothing:
 * the fence was refused. */
static void empty_bins(struct hak_heap *heap, const struct lowest *lowest, bool all) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **first = lowest->block[i], **top = hak_owned_peek(&bin->top),
             **kept = hak_atomic_load(&bin->base, relaxed);
        if (kept >= top) kept = top - 1; /* it was popped below `base` before the fence */
        if (!all || kept < first) kept = first;
        uint32_t count = (uint32_t)(kept - first);
        if (count > 0) {
            hak_pool_put(heap, i, first, count);
            HAK_COUNT(heap, flushed_blocks, count);
        }
        hak_atomic_store(&bin->base, kept, relaxed);
    }
}

/* The caller has the heap. False when its owner is in a slow path, or the kernel refuses. */
static bool drain(struct hak_heap *heap) {
    struct lowest lowest;
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) return true; /* its thread has just left it */
    /* H5. The acquire pairs with the end of a slow path that the fence met. */
    if (!hak_fence_threads() || hak_atomic_load(&heap->busy, acquire) != 0) return false;
    close_bins(heap, &lowest);
    bool closed = hak_fence_threads();
    empty_bins(heap, &lowest, closed);
    if (!closed) return false;
    hak_heap_give_up_slabs(heap);
    return true;
}

/* Gives the heap back, and asks its owner to do what was not done. While memory is tight he is asked anyway: the slots of his
 * bins are his to give up. */
static void end_drain(struct hak_heap *heap, bool done) {
    if (!done || hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_atomic_store(&heap->drain_wanted, 1, relaxed);
    hak_heap_end_drain(heap);
}

static bool begin_drain(struct hak_heap *heap) {
    return hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_IN_USE && hak_heap_try_drain(heap);
}

void hak_heap_drain(struct hak_heap *heap) {
    if (begin_drain(heap)) end_drain(heap, drain(heap));
}

bool hak_heap_drain_others(const struct hak_heap *own, const void *drainer) {
    bool all = true;
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == own) continue;
        if (hak_atomic_load(&heap->drainer, relaxed) != drainer) {
            if (!begin_drain(heap)) continue;
            hak_atomic_store(&heap->drainer, drainer, relaxed);
            heap->is_drained = false;
        }
        if (!heap->is_drained) heap->is_drained = drain(heap);
        all &= heap->is_drained;
    }
    return all;
}

void hak_heap_end_drains(const void *drainer) {
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (hak_atomic_load(&heap->drainer, relaxed) != drainer) continue;
        hak_atomic_store(&heap->drainer, NULL, relaxed);
        end_drain(heap, heap->is_drained);
    }
}

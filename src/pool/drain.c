#include "pool/drain.h"

#include "pool/pool.h"
#include "region/page_policy.h"

/* The bins before the drain: where their blocks began, and whether they were for frees only. */
struct before {
    void **lowest[HAK_SMALL_CLASS_COUNT + 1];
    bool is_for_frees[HAK_SMALL_CLASS_COUNT + 1];
};

/* From the fence that follows, no hit begins at or below the topmost block, and none puts a block on top. No hit is on its way to
 * the topmost block of a bin that is for frees only. */
static void close_bins(struct hak_heap *heap, struct before *before) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **top = hak_owned_peek(&bin->top), **lowest = before->lowest[i] = hak_heap_lowest(heap, i);
        if ((before->is_for_frees[i] = hak_heap_is_for_frees(heap, i))) hak_atomic_store(&bin->base, top, relaxed);
        else if (top > lowest) hak_atomic_store(&bin->base, top - 1, relaxed);
        hak_atomic_store(&bin->limit, NULL, relaxed);
    }
}

/* Gives back what lies below both `base` and the topmost block, and lowers `base` to what is left. Without `all`, nothing:
 * the fence was refused. */
static void empty_bins(struct hak_heap *heap, const struct before *before, bool all) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **first = before->lowest[i], **top = hak_owned_peek(&bin->top),
             **kept = hak_atomic_load(&bin->base, relaxed);
        /* It was popped below `base` before the fence. */
        if (kept >= top && !before->is_for_frees[i]) kept = top - 1;
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
    struct before before;
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) return true; /* its thread has just left it */
    /* H5. The acquire pairs with the end of a slow path that the fence met. */
    if (!hak_fence_threads() || hak_atomic_load(&heap->busy, acquire) != 0) return false;
    close_bins(heap, &before);
    bool closed = hak_fence_threads();
    empty_bins(heap, &before, closed);
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
    hak_heap_take_apart(heap);
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

#include "pool/drain.h"

#include "base/memory.h"
#include "pool/bin.h"
#include "pool/held.h"
#include "pool/pool.h"
#include "pool/quarantine.h"
#include "pool/ration.h"
#include "region/in_hand.h"

/* From the fence that follows, no hit begins at or below the topmost block, and none puts a block on top. No hit is on
 * its way to the topmost block of a bin that is for frees only. */
static void close_bins(struct hak_heap *heap) {
    struct hak_closed_bins *before = &heap->closed_bins;
    for (uint32_t i = 1; i <= HAK_SLAB_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        before->lowest[i] = NULL;
        if (heap->slots[i].start == NULL) continue;
        void **top = hak_owned_peek(&bin->top), **lowest = before->lowest[i] = hak_heap_lowest(heap, i);
        if ((before->is_for_frees[i] = hak_heap_is_for_frees(heap, i))) hak_atomic_store(&bin->base, top, relaxed);
        else if (top > lowest) hak_atomic_store(&bin->base, top - 1, relaxed);
        hak_atomic_store(&bin->limit, NULL, relaxed);
    }
    heap->is_closed = true;
}

/* Gives back what lies below both `base` and the topmost block, and lowers `base` to what is left. Without `all`,
 * nothing: the fence was refused. True when no bin has more than one block: hits that came before the fence may have
 * put others above `base`. */
static bool empty_bins(struct hak_heap *heap, bool all) {
    const struct hak_closed_bins *before = &heap->closed_bins;
    bool is_empty = true;
    for (uint32_t i = 1; i <= HAK_SLAB_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (before->lowest[i] == NULL) continue;
        void **first = before->lowest[i], **top = hak_owned_peek(&bin->top),
             **kept = hak_atomic_load(&bin->base, relaxed);
        /* It was popped below `base` before the fence. */
        if (kept >= top && !before->is_for_frees[i]) kept = top - 1;
        if (!all || kept < first) kept = first;
        uint32_t count = (uint32_t)(kept - first);
        if (count > 0) {
            hak_pool_put(heap, hak_plain_class(i), first, count);
            HAK_COUNT(heap, flushed_blocks, count);
            if (i > HAK_SMALL_CLASS_COUNT) hak_ration_count_out(heap, hak_plain_class(i), -(int64_t)count);
        }
        hak_atomic_store(&bin->base, kept, relaxed);
        is_empty &= top <= kept + 1;
    }
    heap->is_closed = false;
    return is_empty;
}

/* What else it keeps. A slow path of its owner that this drain did not meet comes after it, and counts itself then. */
static void finish_drain(struct hak_heap *heap, bool is_empty, bool ends_waits) {
    if (HAK_SECURE && ends_waits) hak_quarantine_empty(heap);
    hak_heap_give_up_slabs(heap);
    hak_atomic_store(&heap->drained_at, is_empty ? hak_atomic_load(&heap->slow_paths, relaxed) + 1 : 0, relaxed);
}

/* Gives the heap back, and asks its owner to do what was not done. While memory is tight he is asked anyway: the slots
 * of his bins are his to give up. */
static void end_drain(struct hak_heap *heap, bool done) {
    if (!done || hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_atomic_store(&heap->drain_wanted, 1, relaxed);
    hak_heap_end_drain(heap);
    hak_in_hand_end();
}

/* It was drained, and its thread has begun no slow path since (D1). While memory is tight there may be slots to give
 * up. */
static bool is_drained(const struct hak_heap *heap) {
    return hak_atomic_load(&heap->slow_paths, relaxed) + 1 == hak_atomic_load(&heap->drained_at, relaxed) &&
           !hak_atomic_load(&hak_memory_is_tight, relaxed);
}

static bool has_waits_to_end(const struct hak_heap *heap, const struct hak_drain *drain) {
    return HAK_SECURE && drain->ends_waits && hak_quarantine_has_any(heap);
}

bool hak_heap_begin_drain(struct hak_heap *heap, struct hak_drain *drain) {
    hak_heap_take_apart(heap);
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) return false;
    if (is_drained(heap) && !has_waits_to_end(heap, drain)) return false;
    if (hak_atomic_load(&heap->drained, relaxed) != 0) return false;
    hak_in_hand_begin(); /* what the heap keeps, until it is given back */
    if (!hak_heap_try_drain(heap)) {
        hak_in_hand_keep();
        return false;
    }
    heap->next_taken = drain->first_taken;
    drain->first_taken = heap;
    heap->is_closed = false;
    /* Its thread has just left it: who gives it back takes it apart. */
    heap->is_drained = hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE;
    return true;
}

/* `heap`, or the next one behind it in the list, that is not drained yet. */
static struct hak_heap *undrained(struct hak_heap *heap) {
    while (heap != NULL && heap->is_drained) heap = heap->next_taken;
    return heap;
}

bool hak_heap_drain_taken(struct hak_drain *drain) {
    struct hak_heap *heap, *first = undrained(drain->first_taken);
    bool any = false, all = true;
    if (first == NULL) return true;
    bool fenced = hak_fence_threads();
    for (heap = first; heap != NULL && fenced; heap = undrained(heap->next_taken)) {
        /* H5. The acquire pairs with the end of a slow path that the fence met. */
        if (hak_atomic_load(&heap->busy, acquire) != 0) continue;
        close_bins(heap);
        any = true;
    }
    bool closed = any && hak_fence_threads();
    for (heap = first; heap != NULL; heap = undrained(heap->next_taken)) {
        if (heap->is_closed) {
            bool is_empty = empty_bins(heap, closed);
            if (closed) finish_drain(heap, is_empty, drain->ends_waits);
            heap->is_drained = closed;
        }
        all &= heap->is_drained;
    }
    return all;
}

bool hak_heap_drain_others(const struct hak_heap *own, struct hak_drain *drain) {
    drain->ends_waits = true;
    hak_heap_take_kept_apart();
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (heap != own) hak_heap_begin_drain(heap, drain);
    return hak_heap_drain_taken(drain);
}

void hak_heap_end_drains(struct hak_drain *drain) {
    for (struct hak_heap *heap = drain->first_taken, *next; heap != NULL; heap = next) {
        next = heap->next_taken; /* while it is ours */
        end_drain(heap, heap->is_drained);
    }
    drain->first_taken = NULL;
}

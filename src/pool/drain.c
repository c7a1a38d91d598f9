#include "pool/drain.h"

#include "pool/pool.h"
#include "pool/purge.h"
#include "region/page_policy.h"

enum { TRIES = 3 };

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

/* While the slabs that the heap holds are in nobody else's reach. Afterwards a busy owner has them again, with all of their free
 * blocks, before anybody could purge these. */
static size_t purge_held_slabs(struct hak_heap *heap) {
    size_t bytes = 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        for (struct hak_slab *slab = heap->partial[i].first; slab != NULL; slab = slab->next) {
            hak_slab_unclaim(slab);
            bytes += hak_purge_slab(slab);
        }
    return bytes;
}

/* The caller has the heap. False when its owner is in a slow path, or the kernel refuses. With `purged_bytes`, holes of its slabs
 * go back to the kernel, and are added there. */
static bool drain(struct hak_heap *heap, size_t *purged_bytes) {
    struct lowest lowest;
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) return true; /* its thread has just left it */
    /* H5. The acquire pairs with the end of a slow path that the fence met. */
    if (!hak_fence_threads() || hak_atomic_load(&heap->busy, acquire) != 0) return false;
    close_bins(heap, &lowest);
    bool closed = hak_fence_threads();
    empty_bins(heap, &lowest, closed);
    if (!closed) return false;
    if (purged_bytes != NULL) *purged_bytes += purge_held_slabs(heap);
    hak_heap_give_up_slabs(heap);
    return true;
}

/* Once more while the owner is in a slow path, which is over soon if he runs; then he is asked. While memory is tight he is
 * asked anyway: the slots of his bins are his to give up. */
static void drain_or_ask(struct hak_heap *heap, uint32_t tries, size_t *purged_bytes) {
    for (bool done = false; !done && tries > 0; tries--) {
        if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE || !hak_heap_try_drain(heap)) return;
        done = drain(heap, purged_bytes);
        if ((!done && tries == 1) || hak_atomic_load(&hak_memory_is_tight, relaxed))
            hak_atomic_store(&heap->drain_wanted, 1, relaxed);
        hak_heap_end_drain(heap);
    }
}

void hak_heap_drain(struct hak_heap *heap) { drain_or_ask(heap, 1, NULL); }

size_t hak_heap_purge_others(const struct hak_heap *own) {
    size_t bytes = 0;
    /* Acquire pairs with make_heap. */
    for (struct hak_heap *heap = hak_atomic_load(&hak_heaps, acquire); heap != NULL; heap = heap->next)
        if (heap != own) drain_or_ask(heap, TRIES, &bytes);
    return bytes;
}

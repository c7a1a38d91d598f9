#include "pool/drain.h"

#include "os/os.h"
#include "pool/pool.h"
#include "pool/purge.h"
#include "region/page_policy.h"

enum { TRIES = 3 };

/* A slot of each bin, or NULL. */
struct slot_of_bin {
    void **at[HAK_SMALL_CLASS_COUNT + 1];
};

/* From the fence that follows, no hit begins at or below the topmost block, and none puts a block on top. */
static void close_bins(struct hak_heap *heap, struct slot_of_bin *lowest) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **top = hak_owned_peek(&bin->top);
        lowest->at[i] = hak_atomic_load(&bin->base, relaxed);
        if (top > lowest->at[i]) hak_atomic_store(&bin->base, top - 1, relaxed);
        hak_atomic_store(&bin->limit, NULL, relaxed);
    }
}

/* Gives back what lies below both `base` and the topmost block, and lowers `base` to what is left. Without `all`, nothing:
 * the fence was refused. */
static void empty_bins(struct hak_heap *heap, const struct slot_of_bin *lowest, bool all) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **first = lowest->at[i], **top = hak_owned_peek(&bin->top), **kept = hak_atomic_load(&bin->base, relaxed);
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

/* ---- The blocks that are left ------------------------------------------------------------------------------------- */

/* Writes to pages what is there, whoever else writes to them: nobody takes them away any more. */
static void keep_pages(const struct hak_block_pages *pages) {
    for (size_t at = 0; at < pages->bytes; at += hak_os_page_bytes()) {
        HAK_ATOMIC(uint64_t) *word = (HAK_ATOMIC(uint64_t) *)(pages->start + at);
        uint64_t value = hak_atomic_load(word, relaxed);
        while (!hak_atomic_cas(word, &value, value, relaxed, relaxed)) {
        }
    }
}

/* D2. The block in `slot` is out of reach of hits that begin. */
static void purge_left_block(const struct hak_bin *bin, void **slot) {
    if (hak_owned_peek(&bin->top) != slot + 1) return;
    struct hak_block_pages pages = hak_purge_claim_around(*slot);
    if (pages.bytes != 0 && hak_region_offer_pages(pages.start, pages.bytes)) {
        if (hak_fence_threads() && hak_owned_peek(&bin->top) == slot + 1)
            hak_region_reclaim_pages(pages.start, pages.bytes);
        else keep_pages(&pages);
    }
    hak_purge_return_around(&pages);
}

static void purge_left_blocks(struct hak_heap *heap) {
    struct slot_of_bin left = {{NULL}};
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_bin *bin = &heap->bins[i];
        if (heap->slots[i].start == NULL) continue;
        void **base = hak_atomic_load(&bin->base, relaxed);
        if (hak_owned_peek(&bin->top) != base + 1) continue;
        left.at[i] = base;
        hak_atomic_store(&bin->base, base + 1, relaxed);
    }
    bool closed = hak_fence_threads();
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        if (left.at[i] == NULL) continue;
        if (closed) purge_left_block(&heap->bins[i], left.at[i]);
        hak_atomic_store(&heap->bins[i].base, left.at[i], relaxed);
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
    struct slot_of_bin lowest; /* where the blocks of the bins began */
    uint64_t slow_paths = hak_atomic_load(&heap->slow_paths, relaxed);
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE) return true; /* its thread has just left it */
    /* H5. The acquire pairs with the end of a slow path that the fence met. */
    if (!hak_fence_threads() || hak_atomic_load(&heap->busy, acquire) != 0) return false;
    close_bins(heap, &lowest);
    bool closed = hak_fence_threads();
    empty_bins(heap, &lowest, closed);
    if (!closed) return false;
    if (purged_bytes != NULL) *purged_bytes += purge_held_slabs(heap);
    hak_heap_give_up_slabs(heap);
    /* A thread that goes on has come to a slow path by now, and will use what is left. */
    if (hak_atomic_load(&heap->slow_paths, relaxed) == slow_paths) purge_left_blocks(heap);
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

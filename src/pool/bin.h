/* Bins: what is in them, and whether hits find it. How large they are stands in pool/bin_size.h.
 *
 *   H1  slots[base..top) of a bin are free blocks of its class, by S2 allocated as far as their slabs know. While a
 *       drainer is at the bin, `top` may be below `base`: the bin is empty then.
 *   H2  slots[c].start[-1] is NULL, and start <= base: below `limit`, `top[-1]` may be read whether or not the bin is
 *       empty.
 *   H3  Bins of classes that are not small, and all bins before their first use, are NULL: every hit path misses. A bin
 *       that was drained, or of which all blocks were flushed, has limit == NULL until its owner opens it again: no
 *       free hits it unnoticed. So has the bin of a sampled class, always, which is a ration (pool/ration.h).
 *   H8  base == slots_end: the bin is for frees only. Its blocks begin at its first slot, and malloc misses until its
 *       owner opens the bin.
 *   H10 base == slots_end and limit == NULL: the bin is closed. Its owner, in a slow path, changes it; to a signal
 *       handler that interrupts him it is empty and full, so that the handler's malloc and free miss, and go without
 *       the heap (H5).
 *
 * All functions are for who has the heap (H5 in pool/heap.h), but those that say otherwise. Bins are the owner's: what
 * changes them is for him, or for who has a heap without one.
 */
#ifndef HAK_POOL_BIN_H
#define HAK_POOL_BIN_H

#include "pool/heap.h"

/* H8 */
HAK_INLINE bool hak_heap_is_for_frees(const struct hak_heap *heap, uint32_t size_class) {
    return hak_atomic_load(&heap->bins[size_class].base, relaxed) == heap->slots_end;
}

/* Where the blocks in a bin begin. */
HAK_INLINE void **hak_heap_lowest(const struct hak_heap *heap, uint32_t size_class) {
    void **base = hak_atomic_load(&heap->bins[size_class].base, relaxed);
    return HAK_UNLIKELY(base == heap->slots_end) ? hak_owned_peek(&heap->slots[size_class].start) : base;
}

/* Blocks in the bin of a class. For others a number between 0 and what fits. */
HAK_INLINE size_t hak_heap_cached(const struct hak_heap *heap, uint32_t size_class) {
    void **top = hak_owned_peek(&heap->bins[size_class].top), **lowest = hak_heap_lowest(heap, size_class);
    return top >= lowest ? (size_t)(top - lowest) : 0;
}

/* True if the block is in the bin of its class, or in the ration. The heap's owner may be using it: nothing outside of
 * the heap's own memory is read, whatever its pointers say. */
HAK_COLD bool hak_heap_has_cached(const struct hak_heap *heap, uint32_t size_class, const void *block);

/* True if it is among the newest in the bin. For the heap's owner, but not in a signal handler that has interrupted a
 * slow path. A drainer may be at the bin: he raises `base` before he gives a block to others, so that whoever has got a
 * block from him sees it above. */
bool hak_heap_has_newest(const struct hak_heap *heap, uint32_t size_class, const void *block);

/* The heap that has a small block in its bin or in quarantine, as seen from outside; NULL for none. */
HAK_COLD const struct hak_heap *hak_heap_that_keeps(uint32_t size_class, const void *block);

/* Takes a bin from the hit path (H10), whatever it was: its blocks go to the bottom. Every slow path that changes a
 * bin begins with it, and ends with one of the two that follow. */
void hak_heap_close_bin(struct hak_heap *heap, uint32_t size_class);

/* Malloc and free may hit a closed bin again; only malloc, if frees go to slabs (knob direct_free_mode). */
void hak_heap_open_bin(struct hak_heap *heap, uint32_t size_class);

/* Only frees may (H8), so that a drainer knows of no malloc on its way to the topmost block. */
void hak_heap_keep_for_frees(struct hak_heap *heap, uint32_t size_class);

/* Of a closed bin the oldest `count` blocks, which it has, go back to their slabs. */
void hak_heap_put_oldest(struct hak_heap *heap, uint32_t size_class, uint32_t count);

/* Blocks go back to their slabs. Leaves the bin as if it was drained (H3), or closed if it was: a block that is freed
 * again is not newest in it any more. */
void hak_heap_flush_bin(struct hak_heap *heap, uint32_t size_class); /* and of the ration */
/* The same with the oldest `most` of them; returns how many there were to flush. If some stay the bin is open, for
 * frees only, drained or closed, as before. */
uint32_t hak_heap_flush_oldest(struct hak_heap *heap, uint32_t size_class, uint32_t most);
void hak_heap_flush_bins(struct hak_heap *heap);

/* Makes all bins NULL, as before their first use (H3): they have no blocks, and begin small again. */
void hak_heap_blank_bins(struct hak_heap *heap);

/* Both: blocks go back, and the slots, too. */
void hak_heap_give_up_bins(struct hak_heap *heap);

#endif

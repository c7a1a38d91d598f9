/* Ration: blocks of a small class that malloc may hand out before somebody looks. While malloc is metered
 * (front/meter.h) its hits take blocks from the bin of the sampled class, which is the ration of the plain one. The
 * miss that finds a ration at its end fills the next one, and counts all of it. Frees go to the plain bin.
 *
 *   H11 slots[base..top) of a ration are free blocks of the plain class, which are in no other bin, as H1 says. Its
 *       limit is NULL: a free of a sampled block, whose class it has, misses. It has no slots before its first use, and
 *       none where they would keep less than two blocks.
 *
 * For who has the heap (H5 in pool/heap.h).
 */
#ifndef HAK_POOL_RATION_H
#define HAK_POOL_RATION_H

#include "pool/bin.h"

/* Blocks in it. For others than who has the heap a number between 0 and what fits. */
HAK_INLINE size_t hak_ration_count(const struct hak_heap *heap, uint32_t size_class) {
    return hak_heap_cached(heap, hak_sampled_class(size_class));
}

/* Fills it, which must be empty, with up to `most` blocks, and counts them: the newest ones of the plain bin, which is
 * closed, or when there are none, of the slabs. Returns how many; 0 also where there is no memory for its slots. */
uint32_t hak_ration_fill(struct hak_heap *heap, uint32_t size_class, uint32_t most);

/* What is left of it goes back to the slabs, and is not counted any more. */
void hak_ration_give_back(struct hak_heap *heap, uint32_t size_class);

/* So many blocks were put into it, or less than 0, taken out, but not by malloc: they are counted, and the next sample
 * comes so much sooner. */
HAK_INLINE void hak_ration_count_out(struct hak_heap *heap, uint32_t size_class, int64_t count) {
    int64_t bytes = count * (int64_t)hak_size_classes[size_class].block_bytes;
    hak_owned_set(&heap->metered[size_class], hak_owned_peek(&heap->metered[size_class]) + (uint64_t)count);
    heap->unsampled_bytes[size_class] -= bytes;
    heap->unlooked_bytes -= bytes;
}

#endif

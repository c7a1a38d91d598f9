/* Sparing: for a while after a fork, the thread that has forked writes to fewer of the pages that the child shares.
 *
 * The first write to a shared page copies it. Frees write to no block, so what copies pages are blocks that are handed
 * out: where a program frees at random, each in a page of its own. So until the thread has allocated sixteen times for
 * each page of the heap's slabs,
 *
 *   - what was just freed is not handed out next: its bins are for frees only (H8), and malloc takes a block at a time
 *     from a slab, until that is full;
 *   - the next slab is one of which at least an eighth is free, from the highest address down, each looked at once;
 *     then a new one, while less than a sixteenth of all slabs is free; then that with the lowest address.
 *
 * Heaps of less than 32 MiB, and those that have little memory left, go on as before.
 *
 * For who has the heap (H5 in pool/heap.h). */
#ifndef HAK_POOL_SPARING_H
#define HAK_POOL_SPARING_H

#include "pool/heap.h"

HAK_INLINE bool hak_heap_is_sparing(const struct hak_heap *heap) { return heap->sparing_calls != 0; }

/* The thread has forked. */
void hak_sparing_begin(struct hak_heap *heap);

/* A block of the class. NULL when there is no memory: then the heap isn't sparing any more. */
HAK_COLD void *hak_sparing_take(struct hak_heap *heap, uint32_t size_class);

/* Which slab is next: one of the pool, which the caller has in the state POOLED; or NULL for a new one. */
HAK_COLD struct hak_slab *hak_sparing_choose(struct hak_heap *heap, uint32_t size_class);

#endif

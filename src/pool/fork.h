/* Fork: what a child does for the pool and the region. Its threads but one are gone, and left what they were at as it
 * was.
 *
 * Heaps that nobody was in the middle of are whole, and are orphaned: the next thread gets them with their slabs.
 * Beyond that, only what other threads were in the middle of is looked at, and written where it is not as it should be:
 * the child's cost does not depend on how large the heap is. What that was:
 *
 *   - the SuperSlab and the run that an operation has noted in its hand (I4 in region/in_hand.h): of a heap that
 *     somebody had (H5 in pool/heap.h), or whose hand is in use;
 *   - the slabs in the lists of a heap that somebody had;
 *   - anything, where an operation without a hand was going on (I5): then all records are looked at.
 *
 * Where the child has other threads by then (region/generation.h), nothing of this is looked at: heaps that are whole
 * are orphaned, the others are given up with what they held.
 *
 * What is lost to the child:
 *   - of a heap that somebody had at the moment of the fork: the blocks in its bins (knobs bin_budget_bytes,
 *     bin_budget_share), a word of blocks of each slab that it held, and the units that it kept;
 *   - what each other thread was just allocating or freeing: a block, a slab, a large object, or the SuperSlabs that
 *     it was making;
 *   - what a purger had in hand: the dirty units of a SuperSlab, or the blocks in a hole. */
#ifndef HAK_POOL_FORK_H
#define HAK_POOL_FORK_H

#include "pool/heap.h"

/* In a child, while the process has one thread, which is in the middle of nothing: `own` is its heap, or NULL.
 * `in_hand_count` is how many others had memory in hand. */
void hak_fork_recover(struct hak_heap *own, uint32_t in_hand_count);

/* In a child that has other threads: leaves the heaps of those that are no more. `own` as above. */
void hak_fork_leave_dead(const struct hak_heap *own);

#endif

/* Purge: free memory goes back to the kernel, on request, or when it has lain free for a while. */
#ifndef HAK_POOL_PURGE_H
#define HAK_POOL_PURGE_H

#include "pool/heap.h"

/* Gives back free units, kept mappings, and the pages inside slabs and behind runs that hold no block in use, whoever
 * holds the slabs, while other threads go on. `own` (NULL for none), which the caller has, is flushed first, and all
 * other heaps are drained. Returns the bytes given back. */
size_t hak_purge_all(struct hak_heap *own);

/* Unmaps what is free in whole SuperSlabs (hak_region_unmap_super_slabs), not as a part of what the caller does. */
void hak_purge_unmap(void);

/* All caches become free blocks and units. `own` as above. */
void hak_purge_drain(struct hak_heap *own);

/* The same by turns. For one thread at a time: begins a round, in which all caches and empty slabs become free units;
 * these and kept mappings are owed (region/decay.h). */
void hak_purge_begin_round(struct hak_heap *own);

/* Begins a round of holes alone, which ends when it has given back `want_bytes`. For any thread. */
void hak_purge_begin_holes(uint64_t want_bytes);

/* For any thread: gives back the next holes, as many as take the kernel some tenths of a millisecond, and what is left
 * of four units or of a huge page; adds how much that was to *given_bytes. True when the round is over. */
bool hak_purge_turn(size_t *given_bytes);

/* What the last round has given back so far. */
size_t hak_purge_round_bytes(void);

/* To be called at the end of a call of the program's that frees, and is no hit: a turn, if there is a round. */
extern HAK_ATOMIC(uint64_t) hak_purge_place;
#define HAK_PURGE_NO_ROUND UINT64_MAX
HAK_MISS void hak_purge_take_turn(void);
HAK_INLINE bool hak_purge_is_round(void) { return hak_atomic_load(&hak_purge_place, relaxed) != HAK_PURGE_NO_ROUND; }
HAK_INLINE void hak_purge_notice(void) {
    if (HAK_UNLIKELY(hak_purge_is_round())) hak_purge_take_turn();
}

/* Makes what `own` keeps free to be had by all, at other sizes as well, and with `drains` what other threads' heaps do;
 * kept mappings go back to the kernel, and so do the addresses of free units and of what lies behind runs, which are
 * mapped again when they are used: as many as `want_bytes` may need, behind some runs or with `everywhere` behind all.
 * For who finds no memory. `own` as above. */
void hak_purge_reclaim(struct hak_heap *own, bool drains, bool everywhere, size_t want_bytes);

/* Goes up when a slab or a large object is given up, or a large one made or resized: what can be had of units is else
 * nearly the same. */
uint64_t hak_purge_count_changes(void);

/* Looks at the next `most_super_slabs` SuperSlabs, or at all if there are no more, and gives back their old holes:
 * whole pages without a block in use, in slabs from which nothing was taken between two such looks, and behind runs as
 * old. Not if they are less than `least_bytes`, in proportion where it looks at a part only; nor those of a SuperSlab
 * whose huge page is worth more. Returns the bytes. For one thread at a time. */
size_t hak_purge_sweep(uint64_t least_bytes, uint32_t most_super_slabs);

#endif

/* Shrinking: a program that frees more than it allocates gives back what it has emptied, where there is no background
 * thread to do it while the program sleeps.
 *
 * Free units go back as they are released (region/decay.h). What is left are pages without a block in use in slabs
 * that have some, and pages that blocks in bins keep. So when the program has given back a sixteenth of the bytes that
 * slabs had handed out, and more lies free than may stay (region/allowance.h), a round begins: by turns, in this call
 * and the next ones of its thread that are no hits, its bins are emptied, and then the holes of all slabs go back
 * (hak_purge_turn). Each size class keeps a slab, empty or not. The round ends when no more lies free in slabs than may
 * stay, or when all have been seen. A round that has found little makes the next one wait twice as long, at most until
 * a quarter is free. From its end on bins stay small, as a block in one keeps its page, until the thread has taken
 * 16 KiB from slabs, or has put back a quarter of what was handed out at that end, and a mebibyte at
 * least, without beginning another round, or what is handed out grows.
 *
 * What is handed out is a sum over all threads, which each thread adds to when it has something to add: where one
 * allocates and another one frees, neither grows nor shrinks.
 *
 * For who has the heap (H5 in pool/heap.h). */
#ifndef HAK_POOL_SHRINK_H
#define HAK_POOL_SHRINK_H

#include "pool/heap.h"

/* Slabs have handed out so many bytes to the heap, or got them back. NULL: to a thread without one. */
HAK_MISS void hak_shrink_add(struct hak_heap *heap, int64_t bytes);
/* The same bytes, towards the end of a time of small bins. */
HAK_MISS void hak_shrink_count_small(struct hak_heap *heap, int64_t bytes);
HAK_INLINE void hak_shrink_count(struct hak_heap *heap, int64_t bytes) {
    enum { UNTOLD_BYTES = 1 << 16, UNTOLD_AT_THE_END_BYTES = 1 << 12 };
    int64_t small = heap->small_bins_bytes, sum = heap->out_bytes + bytes;
    int64_t least = small != 0 ? UNTOLD_AT_THE_END_BYTES : UNTOLD_BYTES;
    heap->out_bytes = sum;
    if (HAK_UNLIKELY(small != 0)) hak_shrink_count_small(heap, bytes);
    if (HAK_UNLIKELY(sum >= least || sum <= -least)) hak_shrink_add(heap, 0);
}

/* Tells what the heap has not told yet: nobody has the heap from now on. */
void hak_shrink_tell(struct hak_heap *heap);

/* Rounds that have found little, the last ones. Relaxed: a guess. */
extern HAK_ATOMIC(uint32_t) hak_vain_rounds;

/* Begins a round, if it is worth one, or goes on with it, when heap->is_shrink_due says so. Outside of any change of a
 * bin. */
HAK_MISS void hak_shrink_go_on(struct hak_heap *heap);

#endif

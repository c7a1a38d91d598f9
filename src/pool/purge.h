/* Purge: all free memory goes back to the kernel, on request. */
#ifndef HAK_POOL_PURGE_H
#define HAK_POOL_PURGE_H

#include "pool/heap.h"

/* Gives back free units, kept mappings, and the pages inside slabs that hold no block in use, whoever holds the slabs, while
 * other threads go on. `own` (NULL for none), which the caller has, is flushed first, and all other heaps are drained. Returns
 * the bytes given back. */
size_t hak_purge_all(struct hak_heap *own);

/* Old holes: whole pages without a block in use, in slabs from which nothing was taken between two sweeps. The first function
 * makes a sweep and returns their bytes; the second gives them back. For one thread at a time. */
size_t hak_purge_age(void);
size_t hak_purge_old(void);

#endif

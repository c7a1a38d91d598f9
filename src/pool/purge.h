/* Purge: all free memory goes back to the kernel, on request. */
#ifndef HAK_POOL_PURGE_H
#define HAK_POOL_PURGE_H

#include "pool/heap.h"

/* Gives back free units and kept empty slabs, and the pages inside slabs that hold no block, whoever holds the slabs, while
 * other threads go on. Blocks in bins stay; `own` (NULL for none) is flushed first. Returns the bytes given back. */
size_t hak_purge_all(struct hak_heap *own);

#endif

/* Purge: all free memory goes back to the kernel, on request. */
#ifndef HAK_POOL_PURGE_H
#define HAK_POOL_PURGE_H

#include "pool/heap.h"

/* Gives back free units, kept mappings, and the pages inside slabs that hold no block in use, whoever holds the slabs, while
 * other threads go on. What other heaps keep for themselves stays: blocks in bins, claimed words, a few empty slabs; `own`
 * (NULL for none) is flushed first. Returns the bytes given back. */
size_t hak_purge_all(struct hak_heap *own);

#endif

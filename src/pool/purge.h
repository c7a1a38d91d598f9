/* Purge: free memory goes back to the kernel, on request, or when it has lain free for a while. */
#ifndef HAK_POOL_PURGE_H
#define HAK_POOL_PURGE_H

#include "pool/heap.h"

/* Gives back free units, kept mappings, and the pages inside slabs and behind runs that hold no block in use, whoever holds
 * the slabs, while other threads go on. `own` (NULL for none), which the caller has, is flushed first, and all other heaps are
 * drained. Returns the bytes given back. */
size_t hak_purge_all(struct hak_heap *own);

/* Pages that a block has a part in, and no other block in use. */
struct hak_block_pages {
    uintptr_t start;
    size_t bytes; /* 0: there are none */
    struct hak_slab *slab;
    uint32_t first, block, end; /* blocks first..end of the slab are claimed, but for the block itself */
};

/* Finds these of a small block that is allocated, and claims what else has a part in them; then gives that back. */
struct hak_block_pages hak_purge_claim_around(const void *block);
void hak_purge_return_around(const struct hak_block_pages *pages);

/* Gives back the holes of a slab that the caller has. Returns their bytes. */
size_t hak_purge_slab(struct hak_slab *slab);

/* Looks at the next `most_super_slabs` SuperSlabs, or at all if there are no more, and gives back their old holes: whole pages
 * without a block in use, in slabs from which nothing was taken between two such looks, and behind runs as old. Not if they
 * are less than `least_bytes`, in proportion where it looks at a part only; nor those of a SuperSlab whose huge page is worth
 * more. Returns the bytes. For one thread at a time. */
size_t hak_purge_sweep(uint64_t least_bytes, uint32_t most_super_slabs);

#endif

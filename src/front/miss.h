/* Misses: how bins are filled and emptied, and how large objects are made and freed. */
#ifndef HAK_FRONT_MISS_H
#define HAK_FRONT_MISS_H

#include "front/front.h"
#include "region/large.h"

/* Fills the calling thread's bin of a class if it is empty; false when it stays so. */
bool hak_front_refill(uint32_t size_class);

/* A block with a page run or mapping of its own: above HAK_SMALL_MAX bytes, or aligned as no class is. NULL with errno
 * = ENOMEM for more than PTRDIFF_MAX bytes too. `clear` as in hak_large_alloc, `caller` as in hak_front_alloc_miss. */
void *hak_front_alloc_large(size_t size, size_t alignment, bool clear, const void *caller);

/* A block of up to HAK_SMALL_MAX bytes that no bin has: of the pool's partial slab with the lowest address, if there is
 * one of its class. It is not sampled. And the way back to its slab, past the bins, for a block of any size, or
 * NULL. */
void *hak_front_alloc_uncached(size_t size, const void *caller);
void hak_front_free_uncached(void *block);

/* hak_large_resize; what changes its size is sampled anew. To be called where hak_front_alloc_large may be. */
void *hak_front_resize_large(const struct hak_place *place, size_t size, const void *caller);

/* A block stays where it is, because there is no memory to move it, or no need, and becomes as small as it can be. NULL
 * when it has no room for the size. */
void *hak_front_stay(const struct hak_place *place, size_t size, const void *caller);

/* hak_front_resize_large when there was no room elsewhere either: what is more than it has is looked for among what is
 * free. NULL with ENOMEM when there is none. */
void *hak_front_resize_at_last(const struct hak_place *place, size_t size, const void *caller);

/* Fills the calling thread's bins for blocks of up to `max_bytes`. Returns the number of blocks in these bins. */
size_t hak_front_prewarm(size_t max_bytes);

/* Of the secure build: blocks in quarantine are looked at, and go back to their slabs. */
void hak_front_end_waits(void);

/* hak_purge_all with the calling thread's heap. */
size_t hak_front_purge(void);

/* hak_purge_begin_round with the same. */
void hak_front_begin_round(void);

/* What `block` is; misuse of `function` when it is not the start of a block. */
struct hak_place hak_front_place_of(const void *block, const char *function);

/* The same for who is about to resize the block. Where hak_front_place_of knows nothing of free blocks, this one looks
 * where one may be at hand: misuse of `function` when it is there. */
struct hak_place hak_front_place_to_resize(const void *block, const char *function);

#endif

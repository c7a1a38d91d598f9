/* Pool: how blocks get from slabs into bins and back, and slabs from and to whoever needs them next.
 *
 * A slab for a class is acquired in stages, each counted, the next one tried when one has none; never map what lies
 * free:
 *   1. a partial slab of the class        from the pool's partial set; first, so that sparse slabs fill up
 *   2. the heap's own empty slab          retired by the heap, or taken ahead
 *   3. an empty slab of the pool          dirty units; in a small heap first those that were a slab of the class
 *   4. an unused slot of a SuperSlab      fresh units
 *   5. a new SuperSlab
 * When memory is used up, units are searched for once more, without a bound (counted as stage 4).
 *
 * `heap` is the calling thread's, or NULL for a thread without one. All functions are lock-free.
 */
#ifndef HAK_POOL_POOL_H
#define HAK_POOL_POOL_H

#include "pool/heap.h"

/* Slabs that there are of the widest class of a group, of all heaps; 0 for other classes. Relaxed; after a fork it may
 * be wrong by those that were in the making then. */
extern HAK_ATOMIC(int32_t) hak_pool_slabs[HAK_SMALL_CLASS_COUNT + 1];

/* Blocks of a class that slabs have handed out to threads without a heap, less what they got back. Relaxed. */
extern HAK_ATOMIC(int64_t) hak_pool_out_blocks[HAK_SMALL_CLASS_COUNT + 1];

/* Blocks of each class that are live, by these and by what heaps have in bins; at [0] 0. Below 0 where one changed
 * meanwhile. False while a drainer has a heap: what he is giving back counts as live then. */
bool hak_pool_count_live(int64_t live[HAK_SMALL_CLASS_COUNT + 1]);

/* Takes up to `want` free blocks of a class and writes them below `top`, the one to use first at top[-1]. Returns how
 * many; 0 when there is no memory. */
uint32_t hak_pool_take(struct hak_heap *heap, uint32_t size_class, void **top, uint32_t want);

/* Puts `count` blocks of a class back to their slabs. Blocks that are none, or were free already, are misuse of
 * free. */
void hak_pool_put(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count);

/* True when a slab has this block of the class as a free one: then nobody can free it. */
HAK_MISS bool hak_pool_has_free(const void *block, uint32_t size_class);

/* The state of the slab of a block of the class. */
uint32_t hak_pool_state_of(const void *block, uint32_t size_class);

/* True when the holder of the block's slab has claimed it (S7). Anybody but the holder sees that in motion. */
HAK_COLD bool hak_pool_has_claimed(const struct hak_place *place);

/* Gives up a slab whose bits the caller has all claimed, and which is in no list or set. */
void hak_pool_retire(struct hak_heap *heap, struct hak_slab *slab);

/* Puts a slab that the caller has, with nothing claimed, into the pool, or gives it up if none of its blocks is in
 * use. */
void hak_pool_share(struct hak_heap *heap, struct hak_slab *slab);

/* Gives up a slab of the pool if none of its blocks is in use (S8): for who has completed a word of its bits, which
 * are `bits`. The record may be another slab's by now: nothing is believed that is not claimed first. */
void hak_pool_retire_if_empty(struct hak_heap *heap, struct hak_slab *slab, HAK_ATOMIC(uint64_t) *bits,
                              uint32_t size_class);

#endif

/* Partial set: the pool's slabs that have free blocks, per class, for any heap to take.
 *
 * A set of bits over all units rather than a list: a slab can be taken out from the middle, the lowest address is found
 * first, and there is no pointer whose reuse could be mistaken. Per SuperSlab and class there is a word with a bit per
 * unit, the truth; and per class hints which SuperSlabs have some (region/hints.h). The words of all classes of a
 * SuperSlab lie side by side, so a small heap needs one page of them.
 *
 *   P1  A slab in the set is POOLED. Who clears its bit has the slab.
 */
#ifndef HAK_POOL_PARTIAL_SET_H
#define HAK_POOL_PARTIAL_SET_H

#include "region/region.h"

/* Adds a slab that the caller has, in the state POOLED, and has no more afterwards. */
void hak_partial_set_add(struct hak_slab *slab);

/* Takes the slab with the lowest address, or NULL. Its state is POOLED still. */
struct hak_slab *hak_partial_set_take(uint32_t size_class);

/* Takes this slab, if it is in the set as one of `size_class`. `slab` may have become something else: then it is
 * not. */
bool hak_partial_set_remove(struct hak_slab *slab, uint32_t size_class);

/* Whether one that has a free block is in the set at a lower address: a guess. */
bool hak_partial_set_has_below(const struct hak_slab *slab, uint32_t size_class);

#endif

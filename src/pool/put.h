/* Putting blocks back: a flush gathers the blocks of each slab first, and frees them by one atomic operation a word of
 * bits.
 *
 * A program that takes down what it has built frees neighbours, or blocks that lie near each other in an order of its
 * own. So a block that lies in the slab of the one before costs a multiplication, two comparisons and a bit, and some
 * neighbours in a row are compared many at a time. A block of another slab costs a look at the page map besides. */
#ifndef HAK_POOL_PUT_H
#define HAK_POOL_PUT_H

#include "base/check.h"
#include "pool/heap.h"
#include "region/region.h"

/* Frees `count` blocks of a class, which nobody else has; hak_pool_put counts them. A block that is free
 * already, that begins between blocks, or that is of no slab of the class is misuse of free. Freed blocks are not
 * touched. For who has `heap`; NULL: a thread without one. */
void hak_put_blocks(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count);

/* The record of the slab of a block that is said to be of the class, whose slabs have `unit_count` units; and where the
 * slab starts. Misuse of free when the page map disagrees. */
HAK_INLINE struct hak_slab *hak_put_slab_of(const void *block, uint32_t size_class, uint32_t unit_count,
                                            uintptr_t *start) {
    uintptr_t address = (uintptr_t)block;
    struct hak_range *range = hak_region_range(0);
    /* A further range may lie near the first one. */
    if (HAK_UNLIKELY((address - range->start) >> HAK_UNIT_SHIFT >= hak_atomic_load(&hak_window.units, relaxed))) {
        range = hak_region_range_of(address);
        if (range == NULL) hak_misuse(HAK_MISUSE_FOREIGN_POINTER, "free", block, 0, 0);
    }
    uintptr_t unit = (address - range->start) >> HAK_UNIT_SHIFT;
    /* A block freed twice may have left its slab for good, and the slab its class. */
    if (HAK_UNLIKELY(hak_page_map_class(range, unit) != size_class))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    unit &= ~((uintptr_t)unit_count - 1);
    *start = range->start + (unit << HAK_UNIT_SHIFT);
    return &range->slabs[unit];
}

#endif

/* Held: the slabs that a heap has for itself. Partial ones, in a list for each class; those that it has announced to be
 * full; and empty units, kept for the next slab.
 *
 *   H4  partial[c] links the slabs that are HELD by this heap and of class c, at most held_slabs (knob) of them.
 *   H6  full[0..full_count) are slabs that the heap has announced to be full and will look at once more, after a fence:
 *       one fence for all of them, because it waits for the program's writes.
 *   H9  Where heaps are many, a heap holds slabs of the classes in recent_classes, of those that were not refilled
 *       since there are so many, and full ones that were found not to be.
 *
 * All functions are for who has the heap (H5 in pool/heap.h).
 */
#ifndef HAK_POOL_HELD_H
#define HAK_POOL_HELD_H

#include "base/check.h"
#include "pool/heap.h"
#include "region/heap_count.h"

/* Links a slab that is HELD by the heap into its list. False when that is full (H4): then the slab is the pool's. */
bool hak_heap_hold(struct hak_heap *heap, struct hak_slab *slab);
void hak_heap_unlink(struct hak_heap *heap, struct hak_slab *slab);

/* A refill of the class may have left a slab with free blocks, and heaps are many. If it is none of recent_classes,
 * gives up the slabs of the one that has been there for longest, and takes its place (H9). */
void hak_heap_share_slabs(struct hak_heap *heap, uint32_t size_class);

/* Declares a slab full that the heap holds and that is in no list (H6). */
void hak_heap_declare_full(struct hak_heap *heap, struct hak_slab *slab);

/* The second look at slabs that were declared full: those that are not are held again. */
void hak_heap_recheck_full(struct hak_heap *heap);

/* Gives back the slabs of a class that are empty. */
void hak_heap_give_up_empty_slabs(struct hak_heap *heap, uint32_t size_class);

/* Gives back all it holds: partial slabs to the pool, empty ones and units to the region. */
void hak_heap_give_up_slabs(struct hak_heap *heap);

/* A unit kept for the next slab or page run of one; NULL when there is none. */
HAK_INLINE struct hak_slab *hak_heap_take_unit(struct hak_heap *heap) {
    return heap->empty_count > 0 ? heap->empty_slabs[--heap->empty_count] : NULL;
}

/* The same of those that were a slab of the class, whose slabs have one unit; what they were last is a guess. */
HAK_INLINE struct hak_slab *hak_heap_take_former(struct hak_heap *heap, uint32_t size_class) {
    HAK_ASSERT(hak_size_classes[size_class].unit_count == 1);
    for (uint32_t i = heap->empty_count; i-- > 0;) {
        struct hak_slab *unit = heap->empty_slabs[i];
        if (hak_atomic_load(&unit->size_class, relaxed) != size_class) continue;
        heap->empty_slabs[i] = heap->empty_slabs[--heap->empty_count];
        return unit;
    }
    return NULL;
}

/* False when it has enough of them. Where it is true there is room for one, even if heaps become many meanwhile. */
HAK_INLINE bool hak_heap_wants_unit(const struct hak_heap *heap) {
    return heap->empty_count < (hak_heaps_are_many() ? 1 : HAK_EMPTY_SLABS);
}

/* Keeps a unit that the caller has, and that is no slab or run; there must be room. */
HAK_INLINE void hak_heap_keep_unit(struct hak_heap *heap, struct hak_slab *unit) {
    HAK_ASSERT(heap->empty_count < HAK_EMPTY_SLABS);
    heap->empty_slabs[heap->empty_count++] = unit;
}

#endif

#include "pool/holder.h"

#include "pool/bin.h"
#include "pool/pool.h"
#include "region/generation.h"
#include "region/in_hand.h"

/* The owner writes to slots as plain memory, at any time. */
HAK_UNCHECKED static const void *block_in(void **slot) { return hak_owned_peek(slot); }

/* The slot of a block among the newest of a bin, as it seems to be; or NULL. Whatever the owner is doing, only what is
 * in the heap's memory is read: `top` is NULL, or below it there is the record, which is larger than so many slots. */
static void **find_newest(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    enum { NEWEST = 32 };
    _Static_assert(sizeof *heap >= NEWEST * sizeof(void *), "the record is larger");
    void **lowest = hak_heap_lowest(heap, size_class), **slot = hak_owned_peek(&heap->bins[size_class].top);
    for (uint32_t i = 0; i < NEWEST && slot > lowest; i++)
        if (block_in(--slot) == block) return slot;
    return NULL;
}

/* Bins of heaps that nobody has are whole, too, if they are kept. */
static bool has_whole_bins(const struct hak_heap *heap) {
    uint32_t in_use = hak_atomic_load(&heap->in_use, relaxed);
    bool is_copied = hak_atomic_load(&heap->is_copied, relaxed) != 0;
    return (in_use == HAK_HEAP_IN_USE || in_use == HAK_HEAP_KEPT) && !is_copied;
}

/* L2, for who has said that he takes the heap: he has it after the first fence. */
static bool is_there(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    void **slot = NULL;
    for (int fences = 0; fences < 2; fences++) {
        if (!hak_fence_threads()) return false;
        /* H5. The acquire pairs with the end of a slow path that the fence met. */
        if (hak_atomic_load(&heap->busy, acquire) != 0 || !has_whole_bins(heap)) return false;
        void **end = heap->slots[size_class].end;
        if (slot == NULL) slot = find_newest(heap, size_class, block);
        if (slot == NULL || slot >= end) return false;
    }
    return block_in(slot) == block;
}

/* In a child, before the handler has seen to the heaps of threads that are no more. */
static bool is_unsettled(void) { return hak_generation_now() != hak_atomic_load(&hak_generation, relaxed); }

static HAK_COLD bool is_there_for_sure(struct hak_heap *heap, uint32_t size_class, const void *block) {
    if (hak_atomic_load(&heap->busy, relaxed) != 0 || is_unsettled()) return false;
    hak_in_hand_begin(); /* what the heap keeps, until it is given back */
    if (!hak_heap_try_drain(heap)) {
        hak_in_hand_keep();
        return false;
    }
    bool is_found = is_there(heap, size_class, block);
    hak_heap_end_drain(heap);
    hak_in_hand_end();
    return is_found;
}

bool hak_holder_has(const struct hak_heap *own, uint32_t size_class, const void *block) {
    uint32_t state = hak_pool_state_of(block, size_class), number = state >> 2;
    if (HAK_LIKELY(number == own->number)) return false;
    struct hak_heap *heap = hak_heap_of_number(number);
    if (heap == NULL || HAK_LIKELY(find_newest(heap, size_class, block) == NULL)) return false; /* L1 */
    return is_there_for_sure(heap, size_class, block);
}

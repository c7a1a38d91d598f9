#include "pool/held.h"

#include "base/knobs.h"
#include "pool/pool.h"

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* A slab of the heap that is in no list, and of which the heap has claimed nothing. */
static void give_to_pool(struct hak_heap *heap, struct hak_slab *slab) {
    HAK_COUNT(heap, slabs_pooled, 1);
    hak_pool_share(heap, slab);
}

/* H4 */
static bool list_is_sound(const struct hak_heap *heap, uint32_t size_class) {
    uint32_t count = 0;
    const struct hak_slab *previous = NULL;
    for (const struct hak_slab *slab = heap->partial[size_class].first; slab != NULL;
         previous = slab, slab = slab->next) {
        if (slab->previous != previous || hak_atomic_load(&slab->size_class, relaxed) != size_class) return false;
        if (hak_atomic_load(&slab->state, relaxed) != hak_slab_state(HAK_SLAB_HELD, heap->number)) return false;
        count++;
    }
    return count == heap->partial[size_class].count;
}

bool hak_heap_hold(struct hak_heap *heap, struct hak_slab *slab) {
    struct hak_partial_list *list = &heap->partial[hak_atomic_load(&slab->size_class, relaxed)];
    if (list->count >= hak_knob(held_slabs)) {
        give_to_pool(heap, slab);
        return false;
    }
    hak_slab_scan_from(slab, 0); /* others may have freed anywhere */
    slab->previous = NULL;
    slab->next = list->first;
    if (list->first != NULL) list->first->previous = slab;
    hak_signal_fence(); /* a forked child can follow the list */
    list->first = slab;
    list->count++;
    HAK_WALK(list_is_sound(heap, hak_atomic_load(&slab->size_class, relaxed)));
    return true;
}

void hak_heap_unlink(struct hak_heap *heap, struct hak_slab *slab) {
    struct hak_partial_list *list = &heap->partial[hak_atomic_load(&slab->size_class, relaxed)];
    hak_hand_note(slab);
    if (slab->previous != NULL) slab->previous->next = slab->next;
    else list->first = slab->next;
    if (slab->next != NULL) slab->next->previous = slab->previous;
    list->count--;
    hak_signal_fence(); /* out of the list before others get it */
    HAK_WALK(list_is_sound(heap, hak_atomic_load(&slab->size_class, relaxed)));
}

/* ---- H6: full slabs ---------------------------------------------------------------------------------------------- */

void hak_heap_recheck_full(struct hak_heap *heap) {
    if (heap->full_count == 0) return;
    /* S5: between the announcements and the second looks; pairs with the set bits, then the look at the state, of a
     * freer. */
    hak_atomic_fence(seq_cst);
    while (heap->full_count > 0) {
        const struct hak_full_slab *full = &heap->full[--heap->full_count];
        if (hak_slab_take_back(full, heap->number, hak_slab_state(HAK_SLAB_HELD, heap->number)))
            hak_heap_hold(heap, full->slab);
    }
}

void hak_heap_declare_full(struct hak_heap *heap, struct hak_slab *slab) {
    heap->full[heap->full_count++] = hak_slab_announce_full(slab, heap->number);
    if (heap->full_count == HAK_FULL_SLABS) hak_heap_recheck_full(heap);
}

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

void hak_heap_give_up_empty_slabs(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slab *next;
    for (struct hak_slab *slab = heap->partial[size_class].first; slab != NULL; slab = next) {
        next = slab->next;
        if (!hak_slab_is_empty(slab) || !hak_slab_claim_all(slab)) continue;
        hak_heap_unlink(heap, slab);
        hak_pool_retire(heap, slab);
    }
}

/* To the region or the pool. */
static void give_up_slabs(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slab *slab;
    while ((slab = heap->partial[size_class].first) != NULL) {
        hak_heap_unlink(heap, slab);
        if (hak_slab_is_empty(slab) && hak_slab_claim_all(slab)) {
            hak_pool_retire(heap, slab);
            continue;
        }
        hak_slab_unclaim(slab);
        give_to_pool(heap, slab);
    }
}

void hak_heap_share_slabs(struct hak_heap *heap, uint32_t size_class) {
    for (uint32_t i = 0; i < HAK_RECENT_CLASSES; i++)
        if (heap->recent_classes[i] == size_class) return;
    uint8_t *recent = &heap->recent_classes[heap->recent_next++ % HAK_RECENT_CLASSES];
    if (*recent != 0) give_up_slabs(heap, *recent);
    *recent = (uint8_t)size_class;
}

void hak_heap_give_up_slabs(struct hak_heap *heap) {
    hak_heap_recheck_full(heap);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) give_up_slabs(heap, i);
    struct hak_slab *unit;
    while ((unit = hak_heap_take_unit(heap)) != NULL) hak_region_release(unit, 1);
}

#include "pool/bin.h"

#include <string.h>

#include "base/knobs.h"
#include "pool/pool.h"
#include "pool/quarantine.h"
#include "pool/ration.h"

void hak_heap_blank_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SLAB_CLASS_COUNT; i++) {
        if (heap->slots[i].start == NULL) continue; /* H3 */
        hak_bin_set_top(&heap->bins[i], NULL);
        hak_signal_fence(); /* no handler finds a block above no base */
        hak_atomic_store(&heap->bins[i].base, NULL, relaxed);
        hak_atomic_store(&heap->bins[i].limit, NULL, relaxed);
        heap->growth_misses[hak_plain_class(i)] = heap->growth_turns[hak_plain_class(i)] = 0;
        heap->slot_room[hak_plain_class(i)] = 0;
        heap->slots[i].end = NULL;
        hak_owned_set(&heap->slots[i].start, NULL);
    }
    heap->slots_next = (void **)(void *)(heap + 1);
    heap->slots_bytes = 0;
    heap->is_inherited = false;
}

static bool has_in_slots(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    void **top = hak_owned_peek(&heap->bins[size_class].top), **slot = hak_heap_lowest(heap, size_class);
    for (; slot < top && (uintptr_t)slot - (uintptr_t)heap < HAK_HEAP_BYTES; slot++)
        if (hak_owned_peek(slot) == block) return true;
    return false;
}

bool hak_heap_has_cached(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    return has_in_slots(heap, size_class, block) || has_in_slots(heap, hak_sampled_class(size_class), block);
}

bool hak_heap_has_newest(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    enum { PAIRS = 16, NEWEST = 2 * PAIRS };
    void **lowest = hak_heap_lowest(heap, size_class);
    hak_signal_fence(); /* a signal handler's free may put all blocks at the bottom meanwhile */
    void **top = hak_owned_get(&heap->bins[size_class].top);
    if (HAK_LIKELY(top - lowest >= NEWEST)) {
        /* By lower halves, of which another block of the class has the same at a distance of 4 GiB only. */
        typedef uint32_t quad __attribute__((vector_size(16)));
        const hak_address_pair *pairs = (const hak_address_pair *)(const void *)(top - NEWEST);
        hak_address_pair wanted = {(uintptr_t)block, (uintptr_t)block}, found = {0, 0};
#pragma GCC unroll 16
        for (uint32_t i = 0; i < PAIRS; i++) found |= (hak_address_pair)((quad)pairs[i] == (quad)wanted);
        if (HAK_LIKELY((uint32_t)(found[0] | found[1]) == 0)) return false;
        lowest = top - NEWEST;
    }
    while (top > lowest)
        if (*--top == block) return true;
    return false;
}

static bool keeps(const struct hak_heap *heap, uint32_t size_class, const void *block) {
    return hak_heap_has_cached(heap, size_class, block) || (HAK_SECURE && hak_quarantine_has(heap, size_class, block));
}

const struct hak_heap *hak_heap_that_keeps(uint32_t size_class, const void *block) {
    const struct hak_heap *heap = hak_heap_first();
    while (heap != NULL && !keeps(heap, hak_plain_class(size_class), block)) heap = heap->next;
    return heap;
}

void hak_heap_close_bin(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    void **start = hak_owned_get(&heap->slots[size_class].start), **lowest = hak_heap_lowest(heap, size_class);
    if (start == NULL) return; /* H3 */
    hak_atomic_store(&bin->limit, NULL, relaxed);
    hak_atomic_store(&bin->base, heap->slots_end, relaxed); /* no slot is above */
    hak_signal_fence();                                     /* from here on no handler hits it */
    if (HAK_LIKELY(lowest == start)) return;
    void **top = hak_owned_get(&bin->top);
    size_t count = top > lowest ? (size_t)(top - lowest) : 0;
    memmove(start, lowest, count * sizeof(void *));
    hak_bin_set_top(bin, start + count);
}

void hak_heap_open_bin(struct hak_heap *heap, uint32_t size_class) {
    const struct hak_slots *slots = &heap->slots[size_class];
    hak_signal_fence(); /* a handler that hits finds the bin closed, or whole */
    hak_atomic_store(&heap->bins[size_class].base, hak_owned_get(&slots->start), relaxed);
    hak_atomic_store(&heap->bins[size_class].limit, hak_frees_directly() ? NULL : slots->end, relaxed);
}

void hak_heap_keep_for_frees(struct hak_heap *heap, uint32_t size_class) {
    hak_signal_fence(); /* as above */
    hak_atomic_store(&heap->bins[size_class].base, heap->slots_end, relaxed);
    hak_atomic_store(&heap->bins[size_class].limit, heap->slots[size_class].end, relaxed);
}

void hak_heap_put_oldest(struct hak_heap *heap, uint32_t size_class, uint32_t count) {
    void **start = hak_owned_get(&heap->slots[size_class].start);
    size_t kept = hak_heap_cached(heap, size_class) - count;
    hak_pool_put(heap, size_class, start, count);
    if (kept != 0) memmove(start, start + count, kept * sizeof(void *));
    hak_bin_set_top(&heap->bins[size_class], start + kept);
    HAK_COUNT(heap, flushed_blocks, count);
}

uint32_t hak_heap_flush_oldest(struct hak_heap *heap, uint32_t size_class, uint32_t most) {
    struct hak_bin *bin = &heap->bins[size_class];
    if (hak_heap_cached(heap, size_class) == 0) return 0;
    void **base = hak_atomic_load(&bin->base, relaxed), **limit = hak_atomic_load(&bin->limit, relaxed);
    hak_heap_close_bin(heap, size_class);
    uint32_t have = (uint32_t)hak_heap_cached(heap, size_class), count = have < most ? have : most;
    hak_heap_put_oldest(heap, size_class, count);
    hak_signal_fence(); /* a handler that hits finds the bin closed, or whole */
    if (base != heap->slots_end) hak_atomic_store(&bin->base, hak_owned_get(&heap->slots[size_class].start), relaxed);
    if (count != have) hak_atomic_store(&bin->limit, limit, relaxed); /* else the next free has a look at the slab */
    return count;
}

void hak_heap_flush_bin(struct hak_heap *heap, uint32_t size_class) {
    hak_heap_flush_oldest(heap, size_class, UINT32_MAX);
    hak_ration_give_back(heap, size_class);
}

void hak_heap_flush_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) hak_heap_flush_bin(heap, i);
}

/* No free hits a bin any more, not even in a signal handler. */
static void shut_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) hak_atomic_store(&heap->bins[i].limit, NULL, relaxed);
    hak_signal_fence();
}

void hak_heap_give_up_bins(struct hak_heap *heap) {
    shut_bins(heap);
    hak_heap_flush_bins(heap);
    hak_heap_blank_bins(heap);
}

#include "pool/ration.h"

#include <string.h>

#include "pool/pool.h"

/* A miss is shared by so many mallocs, and as much memory waits for them while the newest blocks are hot. A guess. */
enum { RATION_BLOCKS = 64, RATION_BYTES = 8192 };

/* How many blocks of a class it has at most; 0: none. */
static uint32_t most_blocks(uint32_t size_class) {
    uint32_t blocks = RATION_BYTES / hak_size_classes[size_class].block_bytes;
    return blocks < 2 ? 0 : blocks < RATION_BLOCKS ? blocks : RATION_BLOCKS;
}

/* Where its slots begin: made at its first use, of what bins have not taken. NULL when that is too little. */
static void **slots_of(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slots *slots = &heap->slots[hak_sampled_class(size_class)];
    void **start = hak_owned_get(&slots->start);
    uint32_t most = most_blocks(size_class);
    if (HAK_LIKELY(start != NULL) || most == 0 || (size_t)(heap->slots_end - heap->slots_next) < most + 1) return start;
    start = heap->slots_next + 1;
    start[-1] = NULL; /* H2 */
    heap->slots_next = start + most;
    slots->end = start + most;
    hak_owned_set(&slots->start, start);
    return start;
}

/* How many blocks the slabs add to those that the bin has. All of the ration when it has none: the program only
 * allocates. Else none: free blocks of the bin lie between blocks that the program keeps, and it is to fill these up
 * with what it keeps next. But where the bin has few again and again, they come back as often as they are handed out,
 * and each miss would be for these. */
static size_t count_to_add(struct hak_heap *heap, uint32_t size_class, size_t have, size_t want) {
    enum { FEW_BLOCKS = 4, MOST_SMALL_RATIONS = 16 };
    bool is_small = have != 0 && have < FEW_BLOCKS && have < want;
    heap->small_rations[size_class] = is_small ? (uint8_t)(heap->small_rations[size_class] + 1) : 0;
    bool adds = have == 0 || heap->small_rations[size_class] > MOST_SMALL_RATIONS;
    return adds ? want - have : 0;
}

/* From the slabs into the first slots: a refill, as where malloc isn't metered. */
static size_t add_from_slabs(struct hak_heap *heap, uint32_t size_class, void **start, size_t want) {
    uint32_t got = hak_pool_take(heap, size_class, start + want, (uint32_t)want);
    if (got < want) memmove(start, start + (want - got), got * sizeof *start);
    HAK_COUNT(heap, refills, got != 0);
    HAK_COUNT(heap, refilled_blocks, got);
    return got;
}

/* Empty, and so that it counts as that: from now on it begins at its first slot, whatever a drainer has left. */
static void empty_ration(const struct hak_heap *heap, struct hak_bin *ration, void **start) {
    hak_bin_set_top(ration, start); /* nothing lies above the base, which is no lower */
    hak_signal_fence();
    hak_atomic_store(&ration->base, heap->slots_end, relaxed);
}

uint32_t hak_ration_fill(struct hak_heap *heap, uint32_t size_class, uint32_t most) {
    struct hak_bin *plain = &heap->bins[size_class], *ration = &heap->bins[hak_sampled_class(size_class)];
    void **start = slots_of(heap, size_class);
    if (start == NULL) return 0;
    size_t want = (size_t)(heap->slots[hak_sampled_class(size_class)].end - start),
           have = hak_heap_cached(heap, size_class);
    if (want > most) want = most;
    empty_ration(heap, ration, start);
    size_t others = count_to_add(heap, size_class, have, want);
    if (others != 0) others = add_from_slabs(heap, size_class, start, others);
    have = hak_heap_cached(heap, size_class); /* where memory was short, the bin was emptied */
    if (have > want - others) have = want - others;
    void **newest = hak_owned_get(&plain->top) - have;
    if (have != 0) memcpy(start + others, newest, have * sizeof *start);
    hak_bin_set_top(plain, newest);
    hak_signal_fence(); /* a handler that hits finds a block in one of the two at most, */
    hak_bin_set_top(ration, start + others + have);
    hak_signal_fence(); /* and the ration empty, or whole */
    hak_atomic_store(&ration->base, start, relaxed);
    hak_ration_count_out(heap, size_class, (int64_t)(others + have));
    return (uint32_t)(others + have);
}

void hak_ration_give_back(struct hak_heap *heap, uint32_t size_class) {
    uint32_t sampled = hak_sampled_class(size_class);
    if (HAK_LIKELY(hak_heap_cached(heap, sampled) == 0)) return;
    struct hak_bin *ration = &heap->bins[sampled];
    void **lowest = hak_heap_lowest(heap, sampled);
    hak_atomic_store(&ration->base, heap->slots_end, relaxed);
    hak_signal_fence(); /* from here on no handler hits it */
    uint32_t count = (uint32_t)(hak_owned_get(&ration->top) - lowest);
    empty_ration(heap, ration, hak_owned_get(&heap->slots[sampled].start));
    if (count == 0) return;
    hak_pool_put(heap, size_class, lowest, count);
    HAK_COUNT(heap, flushed_blocks, count);
    hak_ration_count_out(heap, size_class, -(int64_t)count);
}

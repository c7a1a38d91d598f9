#include "pool/bin_size.h"

#include <string.h>

#include "base/memory.h"
#include "pool/bin.h"
#include "region/heap_count.h"

enum {
    FIRST_SLOTS = 8,        /* or half of what it may have */
    BYTES_PER_SLOT = 192,   /* of bin_bytes (knob): smaller blocks count as that */
    MOST_BYTES = 256 << 10, /* of a large bin */
    BYTES_PER_MISS = 4096,
    TURNING_SHARES = 4
};

HAK_ATOMIC(uint16_t) hak_class_slots[HAK_CLASS_LIMIT];

void hak_heap_clear_class_slots(void) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) hak_atomic_store(&hak_class_slots[i], 0, relaxed);
}

void hak_heap_give_knob(enum hak_knob_number knob, uint64_t value) {
    hak_knob_give(knob, value);
    if (knob == HAK_KNOB_bin_bytes) hak_heap_clear_class_slots();
}

/* Every class can keep something. */
static size_t at_least_few(size_t slots) { return slots < HAK_LEAST_SLOTS ? HAK_LEAST_SLOTS : slots; }

/* What a bin gets at any miss. */
static size_t quick_slots(uint32_t size_class) {
    return at_least_few(hak_knob(bin_bytes) / hak_size_classes[size_class].block_bytes);
}

size_t hak_heap_usual_slots(uint32_t size_class) {
    size_t most = MOST_BYTES / hak_size_classes[size_class].block_bytes, slots = hak_knob(bin_bytes) / BYTES_PER_SLOT;
    if (slots > HAK_CLASS_MOST_SLOTS) slots = HAK_CLASS_MOST_SLOTS;
    return at_least_few(most < slots ? most : slots);
}

size_t hak_heap_most_slots(uint32_t size_class) {
    size_t own = hak_atomic_load(&hak_class_slots[size_class], relaxed);
    return own != 0 ? own : hak_heap_usual_slots(size_class);
}

/* Without a division: every miss asks. */
static enum hak_bin_fit fit_of(uint32_t size_class, size_t slots) {
    size_t own = hak_atomic_load(&hak_class_slots[size_class], relaxed),
           bytes = slots * hak_size_classes[size_class].block_bytes;
    if (HAK_UNLIKELY(own != 0)) return slots < own ? HAK_BIN_GREW : slots == own ? HAK_BIN_FITS : HAK_BIN_TOO_LARGE;
    if (slots < HAK_LEAST_SLOTS) return HAK_BIN_GREW;
    size_t room = hak_knob(bin_bytes), taken = slots * BYTES_PER_SLOT;
    if (bytes < MOST_BYTES && taken < room && slots < HAK_CLASS_MOST_SLOTS) return HAK_BIN_GREW;
    return (bytes > MOST_BYTES || taken > room) && slots > HAK_LEAST_SLOTS ? HAK_BIN_TOO_LARGE : HAK_BIN_FITS;
}

/* What the slots of all bins may keep in a large heap: the threads' part of it. */
static uint64_t share_bytes(void) {
    uint64_t super_slabs = hak_region_super_slabs(hak_region_range(0));
    uint64_t threads = hak_atomic_load(&hak_heaps_about, relaxed);
    return super_slabs * HAK_SUPER_SLAB_BYTES / hak_knob(bin_budget_share) / (threads + (threads == 0));
}

/* What the slots of a thread's bins may keep, for a bin that has missed. Some times the share where refills and flushes
 * take turns: the program allocates and frees at random, and has less to do with slabs the more it keeps. Where it
 * allocates for long, and then frees for long, misses are hardly fewer. */
static uint64_t allowed_bytes(const struct hak_heap *heap, uint32_t size_class) {
    bool takes_turns = heap->growth_turns[size_class] * 4u > heap->growth_misses[size_class];
    return takes_turns ? TURNING_SHARES * share_bytes() : share_bytes();
}

static bool is_turn(const struct hak_heap *heap, uint32_t size_class) {
    bool is_refill = hak_heap_cached(heap, size_class) == 0;
    return is_refill ? heap->miss_run[size_class] < 0 : heap->miss_run[size_class] > 0;
}

/* A large bin has missed. Of very many misses the early ones count less. */
static void count_growth_miss(struct hak_heap *heap, uint32_t size_class) {
    if (heap->growth_misses[size_class] == UINT16_MAX) {
        heap->growth_misses[size_class] /= 2;
        heap->growth_turns[size_class] /= 2;
    }
    heap->growth_misses[size_class]++;
    heap->growth_turns[size_class] += is_turn(heap, size_class);
}

/* How many of `want` slots, above the `have` that it has, a bin gets for this miss, where nothing is said about its
 * class: large ones by a miss for every 4 KiB more that it keeps then, within the thread's share of the heap. */
static size_t slots_earned(struct hak_heap *heap, uint32_t size_class, size_t have, size_t want) {
    size_t quick = quick_slots(size_class);
    if (want <= quick) return want;
    count_growth_miss(heap, size_class);
    size_t misses = heap->growth_misses[size_class],
           more_bytes = (want - have) * hak_size_classes[size_class].block_bytes;
    if (have != 0 && misses * BYTES_PER_MISS >= more_bytes &&
        heap->slots_bytes + more_bytes <= allowed_bytes(heap, size_class))
        return want;
    return quick;
}

/* Slots are short in a heap whose bins are another thread's: all begin small again. */
static HAK_MISS enum hak_bin_fit grow_anew(struct hak_heap *heap, uint32_t size_class) {
    hak_heap_give_up_bins(heap);
    return hak_heap_grow_bin(heap, size_class);
}

enum hak_bin_fit hak_heap_grow_bin(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    struct hak_slots *slots = &heap->slots[size_class];
    size_t have = (size_t)(slots->end - slots->start);
    enum hak_bin_fit fit = fit_of(size_class, have);
    if (HAK_LIKELY(fit != HAK_BIN_GREW)) return fit;
    if (HAK_UNLIKELY(heap->small_bins_bytes != 0) && have >= hak_heap_shrunk_slots(size_class)) return HAK_BIN_FITS;
    size_t block_bytes = hak_size_classes[size_class].block_bytes, most = hak_heap_most_slots(size_class);
    size_t want = have != 0 ? 2 * have : most / 2 < FIRST_SLOTS ? most / 2 : FIRST_SLOTS;
    if (want > most) want = most;
    if (hak_atomic_load(&hak_class_slots[size_class], relaxed) == 0) want = slots_earned(heap, size_class, have, want);
    if (want <= have || (have != 0 && hak_atomic_load(&hak_memory_is_tight, relaxed))) return HAK_BIN_FITS;
    uint64_t all_bytes = heap->slots_bytes + (want - have) * block_bytes;
    if (all_bytes > hak_knob(bin_budget_bytes) && all_bytes > allowed_bytes(heap, size_class)) {
        if (heap->is_inherited) return grow_anew(heap, size_class);
        if (have != 0) return HAK_BIN_FITS;
        want = HAK_LEAST_SLOTS;
    }
    if (want > heap->slot_room[size_class]) {
        /* What the first slots of all others may need stays. */
        size_t others = have == 0 ? 0 : HAK_CLASS_LIMIT * (FIRST_SLOTS + 1);
        if ((size_t)(heap->slots_end - heap->slots_next) < want + 1 + others)
            return heap->is_inherited ? grow_anew(heap, size_class) : HAK_BIN_FITS;
        void **base = heap->slots_next + 1; /* H2 */
        base[-1] = NULL;
        size_t filled = hak_heap_cached(heap, size_class);
        if (filled > 0) memcpy(base, hak_owned_get(&slots->start), filled * sizeof(void *));
        heap->slots_next = base + want;
        heap->slot_room[size_class] = (uint16_t)want;
        hak_owned_set(&slots->start, base);
        hak_atomic_store(&bin->base, heap->slots_end, relaxed); /* it had none: it is closed from now on, */
        hak_signal_fence();
        hak_bin_set_top(bin, base + filled); /* before it has a top */
    }
    slots->end = hak_owned_get(&slots->start) + want;
    heap->slots_bytes += (want - have) * block_bytes;
    heap->growth_misses[size_class] = heap->growth_turns[size_class] = 0;
    HAK_COUNT(heap, bin_growths, 1);
    return HAK_BIN_GREW;
}

/* As far as there are no blocks in them. */
static void take_slots(struct hak_heap *heap, uint32_t size_class, size_t want) {
    const struct hak_slots *slots = &heap->slots[size_class];
    size_t have = (size_t)(slots->end - slots->start), filled = hak_heap_cached(heap, size_class);
    if (want < filled) want = filled;
    if (want >= have) return;
    heap->slots[size_class].end = hak_owned_get(&slots->start) + want;
    heap->slots_bytes -= (have - want) * hak_size_classes[size_class].block_bytes;
}

void hak_heap_shrink_bin(struct hak_heap *heap, uint32_t size_class) {
    take_slots(heap, size_class, hak_heap_most_slots(size_class));
}

void hak_heap_shrink_to(struct hak_heap *heap, uint32_t size_class, size_t most_slots) {
    struct hak_bin *bin = &heap->bins[size_class];
    const struct hak_slots *slots = &heap->slots[size_class];
    if ((size_t)(slots->end - slots->start) <= most_slots) return;
    bool is_shut = hak_atomic_load(&bin->limit, relaxed) == NULL;
    hak_atomic_store(&bin->limit, NULL, relaxed);
    hak_signal_fence(); /* no free hits it in a handler; a malloc that does, leaves fewer blocks */
    take_slots(heap, size_class, most_slots);
    hak_signal_fence();
    if (!is_shut) hak_atomic_store(&bin->limit, slots->end, relaxed);
}

void hak_heap_shrink_to_budget(struct hak_heap *heap) {
    if (heap->slots_bytes <= TURNING_SHARES * share_bytes()) return;
    bool is_within = heap->slots_bytes <= hak_knob(bin_budget_bytes); /* but for bins that were earned */
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_slots *slots = &heap->slots[c];
        size_t have = (size_t)(slots->end - slots->start), least = HAK_LEAST_SLOTS;
        if (is_within) least = hak_atomic_load(&hak_class_slots[c], relaxed) == 0 ? quick_slots(c) : have;
        if (have > least) hak_heap_shrink_to(heap, c, have / 2 > least ? have / 2 : least);
    }
}

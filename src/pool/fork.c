#include "pool/fork.h"

#include "pool/pool.h"
#include "region/hints.h"
#include "region/in_hand.h"
#include "region/large.h"
#include "region/mapping_cache.h"

/* ---- Heaps that are nobody's any more ---------------------------------------------------------------------------- */

static bool is_lost(const struct hak_heap *heap) {
    uint32_t in_use = hak_atomic_load(&heap->in_use, relaxed);
    return in_use == HAK_HEAP_TORN || in_use == HAK_HEAP_GIVEN_UP;
}

enum { FILTER_WORDS = 64 };

/* A bit for the number of each of them, modulo their number: most heaps are told by it. */
struct filter {
    uint64_t words[FILTER_WORDS];
};

static uint64_t *filter_word(struct filter *filter, uint32_t number) {
    return &filter->words[number / 64 % FILTER_WORDS];
}

static struct filter filter_of_lost(void) {
    struct filter filter = {{0}};
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (is_lost(heap)) *filter_word(&filter, heap->number) |= (uint64_t)1 << heap->number % 64;
    return filter;
}

static bool is_of_lost(struct filter *filter, uint32_t number) {
    if ((*filter_word(filter, number) >> number % 64 & 1) == 0) return false;
    const struct hak_heap *heap = hak_heap_first();
    while (heap != NULL && heap->number != number) heap = heap->next;
    return heap == NULL || is_lost(heap);
}

/* ---- Slabs ------------------------------------------------------------------------------------------------------- */

/* Puts a slab that nobody has where it can be found, or declares it full. */
static void recover_slab(struct hak_slab *slab) {
    /* Of a heap that is lost: they may be in a bin as well, and are lost with it. */
    hak_owned_set(&slab->claimed, 0);
    hak_slab_unclaim(slab); /* the tail is in no bin */
    if (hak_slab_count_bits(slab->bits, slab->block_count) == 0) {
        hak_atomic_store(&slab->state, hak_slab_state(HAK_SLAB_FULL, HAK_NO_HEAP), relaxed);
    } else {
        hak_pool_share(NULL, slab);
    }
}

static bool has_free_blocks(const struct hak_slab *slab) {
    for (uint32_t i = 0; i * 64 < slab->block_count; i++)
        if (hak_atomic_load(&slab->bits[i], relaxed) != 0) return true;
    return false;
}

/* The slab is where its state says. */
static bool is_in_place(const struct hak_range *range, uint32_t unit, struct filter *lost) {
    const struct hak_slab *slab = &range->slabs[unit];
    uint32_t state = hak_atomic_load(&slab->state, relaxed), size_class = hak_atomic_load(&slab->size_class, relaxed);
    const struct hak_super_slab *super_slab = &range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB];
    switch (state & HAK_SLAB_KIND_MASK) {
    case HAK_SLAB_HELD: return !is_of_lost(lost, state >> 2);
    case HAK_SLAB_FULL: return !has_free_blocks(slab);
    case HAK_SLAB_POOLED:
        return (hak_atomic_load(&super_slab->partial[size_class], relaxed) >> unit % HAK_UNITS_PER_SUPER_SLAB & 1) !=
                   0 &&
               !hak_slab_bits_all_set(slab->bits, slab->block_count);
    default: return false;
    }
}

/* Perhaps only some of its units were marked, or still are. */
static void mark_all(struct hak_range *range, uint32_t unit, uint32_t size_class) {
    uint32_t count = hak_size_classes[size_class].unit_count, marked = 0;
    for (uint32_t i = 0; i < count; i++) marked += hak_page_map_class(range, unit + i) == size_class;
    if (marked < count) hak_region_mark(&range->slabs[unit], count, size_class);
}

/* ---- SuperSlabs and runs ----------------------------------------------------------------------------------------- */

/* Does nothing to a unit that is in no slab. Returns the one behind. */
static uint32_t recover_unit(struct hak_range *range, uint32_t unit, struct filter *lost) {
    uint32_t size_class = hak_page_map_class(range, unit);
    if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) return unit + 1;
    uint32_t unit_count = hak_size_classes[size_class].unit_count;
    unit = (uint32_t)hak_align_down(unit, unit_count);
    mark_all(range, unit, size_class);
    if (!is_in_place(range, unit, lost)) recover_slab(&range->slabs[unit]);
    return unit + unit_count;
}

static void recover_run(struct hak_range *range, uint32_t unit) {
    if (hak_page_map_class(range, unit) == HAK_CLASS_RUN_HEAD) hak_large_recover_run(&range->slabs[unit]);
}

static void recover_partial_hints(struct hak_range *range, uint32_t super_slab) {
    for (uint32_t c = 0; c < HAK_CLASS_LIMIT; c++)
        if (hak_atomic_load(&range->super_slabs[super_slab].partial[c], relaxed) != 0)
            hak_hint_recover_after_fork(range, HAK_PARTIAL_HINT + c, super_slab);
}

static void recover_slabs(struct hak_range *range, uint32_t super_slab, struct filter *lost) {
    uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB, end = unit + HAK_UNITS_PER_SUPER_SLAB;
    while (unit < end) unit = recover_unit(range, unit, lost);
}

/* ---- Where others were ------------------------------------------------------------------------------------------- */

/* The range and number of a unit by its record. False for none, and for one beyond the SuperSlabs that there are. */
static bool find_unit(const struct hak_slab *record, struct hak_range **range, uint32_t *unit) {
    for (uint32_t i = 0; record != NULL && i < HAK_RANGE_LIMIT && (*range = hak_region_range(i)) != NULL; i++) {
        uint64_t units = (uint64_t)hak_region_super_slabs(*range) * HAK_UNITS_PER_SUPER_SLAB;
        uint64_t at = ((uintptr_t)record - (uintptr_t)(*range)->slabs) / sizeof *record;
        *unit = (uint32_t)at;
        if (at < units) return true;
    }
    return false;
}

static void recover_record(const struct hak_slab *record, struct filter *lost) {
    struct hak_range *range;
    uint32_t unit;
    if (find_unit(record, &range, &unit)) recover_unit(range, unit, lost);
}

/* The slabs of a torn heap: those in its lists, which can be followed forwards at any time, and those that
 * it was to look at once more. */
static void recover_held(struct hak_heap *heap, struct filter *lost) {
    uint32_t held = hak_slab_state(HAK_SLAB_HELD, heap->number);
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++)
        for (struct hak_slab *slab = heap->partial[c].first; slab != NULL; slab = slab->next)
            if (hak_atomic_load(&slab->state, relaxed) == held) recover_slab(slab);
    for (uint32_t i = 0; i < HAK_FULL_SLABS; i++) recover_record(heap->full[i].slab, lost);
}

static bool is_in_use(const struct hak_hand *hand) {
    return hak_atomic_load(&hand->is_in_use, relaxed) != 0 || hak_atomic_load(&hand->in_hand, relaxed) != 0;
}

static void recover_hints_in(const struct hak_hand *hand) {
    struct hak_range *range;
    uint32_t unit;
    if (!find_unit(hak_atomic_load(&hand->unit, relaxed), &range, &unit)) return;
    hak_region_recover_around_after_fork(range, unit / HAK_UNITS_PER_SUPER_SLAB);
    recover_partial_hints(range, unit / HAK_UNITS_PER_SUPER_SLAB);
}

static void recover_slabs_in(struct hak_hand *hand, struct filter *lost) {
    struct hak_range *range;
    uint32_t unit;
    if (find_unit(hak_atomic_load(&hand->unit, relaxed), &range, &unit))
        recover_slabs(range, unit / HAK_UNITS_PER_SUPER_SLAB, lost);
    if (find_unit(hak_atomic_load(&hand->run, relaxed), &range, &unit)) recover_run(range, unit);
}

/* Somebody was in the middle of something in it. */
static bool was_in_use(const struct hak_heap *heap) {
    return hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_TORN || is_in_use(&heap->hand) ||
           is_in_use(&heap->large_hand);
}

static void recover_where_noted(const struct hak_heap *own) {
    struct filter lost = filter_of_lost();
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == own || !was_in_use(heap)) continue;
        recover_hints_in(&heap->hand);
        recover_hints_in(&heap->large_hand);
    }
    hak_region_recount_after_fork();
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == own || !was_in_use(heap)) continue;
        recover_slabs_in(&heap->hand, &lost);
        recover_slabs_in(&heap->large_hand, &lost);
        if (hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_TORN) recover_held(heap, &lost);
    }
}

static void recover_everywhere(void) {
    struct filter lost = filter_of_lost();
    struct hak_range *range;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++) {
        hak_region_recover_all_after_fork(range);
        for (uint32_t super_slab = 0; super_slab < hak_region_super_slabs(range); super_slab++)
            recover_partial_hints(range, super_slab);
    }
    hak_region_recount_after_fork();
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++)
        for (uint32_t super_slab = 0; super_slab < hak_region_super_slabs(range); super_slab++) {
            uint32_t first = super_slab * HAK_UNITS_PER_SUPER_SLAB;
            recover_slabs(range, super_slab, &lost);
            for (uint32_t unit = first; unit < first + HAK_UNITS_PER_SUPER_SLAB; unit++) recover_run(range, unit);
        }
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void empty_hand(struct hak_hand *hand) {
    hak_atomic_store(&hand->in_hand, 0, relaxed);
    hak_atomic_store(&hand->is_in_use, 0, relaxed);
}

/* A later child doesn't look at it again. */
static void forget(struct hak_heap *heap) {
    empty_hand(&heap->hand);
    empty_hand(&heap->large_hand);
    if (hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_TORN)
        hak_atomic_store(&heap->in_use, HAK_HEAP_GIVEN_UP, relaxed);
}

void hak_fork_recover(struct hak_heap *own, uint32_t in_hand_count) {
    bool was_any_in_use = false;
    hak_heap_leave_others_after_fork(own);
    hak_mapping_cache_recover_after_fork();
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == own || !was_in_use(heap)) continue;
        was_any_in_use = true;
        in_hand_count -=
            hak_atomic_load(&heap->hand.in_hand, relaxed) + hak_atomic_load(&heap->large_hand.in_hand, relaxed);
    }
    if (in_hand_count != 0) recover_everywhere(); /* I5 */
    else if (was_any_in_use) recover_where_noted(own);
    else return;
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (heap != own && was_in_use(heap)) forget(heap);
}

void hak_fork_leave_dead(const struct hak_heap *own) {
    hak_region_leave_dead_after_fork();
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (heap == own) continue;
        uint32_t in_hand =
            hak_atomic_load(&heap->hand.in_hand, relaxed) + hak_atomic_load(&heap->large_hand.in_hand, relaxed);
        bool is_idle = !is_in_use(&heap->hand) && !is_in_use(&heap->large_hand);
        if (!hak_heap_leave_dead_after_fork(heap, is_idle)) continue;
        hak_atomic_fetch_sub(&hak_in_hand, in_hand, relaxed);
        if (hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_GIVEN_UP) forget(heap);
    }
}

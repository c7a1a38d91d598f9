#include "pool/sparse.h"

#include "pool/partial_set.h"
#include "region/region.h"

enum {
    MEAN_PARTS = 16,      /* of a block, in which means are kept */
    LEAST_FREE_SHARE = 8, /* of a slab's blocks, one in so many is free at least; and it may have as much more than the
                             mean, for slabs that are all alike lie on both sides of it */
};

/* The slabs of a class: those of this round so far, with their live blocks, and the mean of the last round, 0 when it
 * had none. Relaxed: threads that ask at once may lose a slab. */
static struct class_fill { HAK_ATOMIC(uint32_t) slabs, blocks, mean; } fills[HAK_SMALL_CLASS_COUNT + 1];

/* The unit to look at next: the number of its range above. */
static HAK_ATOMIC(uint64_t) next_look HAK_WRITTEN_BY_MANY;

static uint32_t count_live(const struct hak_range *range, struct hak_slab *slab, uint32_t size_class) {
    uint32_t count = hak_size_classes[size_class].block_count;
    uint32_t free_count =
        hak_slab_count_bits(hak_region_bits_of(range, slab, size_class), count) + hak_slab_count_claimed(slab, count);
    return free_count < count ? count - free_count : 0;
}

/* ---- Means ------------------------------------------------------------------------------------------------------- */

static uint32_t mean_so_far(const struct class_fill *fill) {
    uint32_t slabs = hak_atomic_load(&fill->slabs, relaxed);
    return slabs == 0 ? 0 : (uint32_t)((uint64_t)hak_atomic_load(&fill->blocks, relaxed) * MEAN_PARTS / slabs);
}

/* 0 when no slab was counted yet. */
static uint32_t mean_of(uint32_t size_class) {
    uint32_t mean = hak_atomic_load(&fills[size_class].mean, relaxed);
    return mean != 0 ? mean : mean_so_far(&fills[size_class]);
}

static void end_of_round(void) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        hak_atomic_store(&fills[i].mean, mean_so_far(&fills[i]), relaxed);
        hak_atomic_store(&fills[i].slabs, 0, relaxed);
        hak_atomic_store(&fills[i].blocks, 0, relaxed);
    }
}

static void count_slab(const struct hak_range *range, uint32_t unit, uint32_t size_class) {
    uint32_t live = count_live(range, &range->slabs[unit], size_class);
    if (live == 0 || live == hak_size_classes[size_class].block_count) return;
    struct class_fill *fill = &fills[size_class];
    hak_atomic_store(&fill->slabs, hak_atomic_load(&fill->slabs, relaxed) + 1, relaxed);
    hak_atomic_store(&fill->blocks, hak_atomic_load(&fill->blocks, relaxed) + live, relaxed);
}

/* From `unit` on to the end of the next slab, or of as many units as a SuperSlab has; returns the unit after that. */
static uint32_t look_at_units(const struct hak_range *range, uint32_t unit, uint32_t end) {
    if (end - unit > HAK_UNITS_PER_SUPER_SLAB) end = unit + HAK_UNITS_PER_SUPER_SLAB;
    for (; unit < end; unit++) {
        uint32_t size_class = hak_page_map_class(range, unit);
        uint32_t units = hak_size_classes[size_class].unit_count;
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SMALL_CLASS_COUNT || unit % units != 0) continue;
        count_slab(range, unit, size_class);
        return unit + units;
    }
    return unit;
}

static void look_on(void) {
    uint64_t next = hak_atomic_load(&next_look, relaxed);
    uint32_t number = (uint32_t)(next >> 32), unit = (uint32_t)next;
    const struct hak_range *range = number < HAK_RANGE_LIMIT ? hak_region_range(number) : NULL;
    if (range == NULL) {
        end_of_round();
        hak_atomic_store(&next_look, 0, relaxed);
        return;
    }
    uint32_t end = hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
    if (unit < end) unit = look_at_units(range, unit, end);
    next = unit < end ? (uint64_t)number << 32 | unit : (uint64_t)(number + 1) << 32;
    hak_atomic_store(&next_look, next, relaxed);
}

/* ---- The answer -------------------------------------------------------------------------------------------------- */

static bool is_sparse(uint32_t live, uint32_t size_class) {
    uint32_t count = hak_size_classes[size_class].block_count, mean = mean_of(size_class);
    if ((count - live) * LEAST_FREE_SHARE < count) return false;
    return mean == 0 || live * MEAN_PARTS <= mean + mean / LEAST_FREE_SHARE;
}

bool hak_sparse_holds(uintptr_t address) {
    struct hak_place place = hak_region_find(address);
    if (place.kind != HAK_PLACE_SMALL || place.size_class > HAK_SMALL_CLASS_COUNT) return false;
    look_on();
    if ((hak_atomic_load(&place.slab->state, relaxed) & HAK_SLAB_KIND_MASK) == HAK_SLAB_HELD) return false; /* V2 */
    const struct hak_range *range = hak_region_range_of_record(place.slab);
    return is_sparse(count_live(range, place.slab, place.size_class), place.size_class) &&
           hak_partial_set_has_below(place.slab, place.size_class); /* V1 */
}

#include "pool/partial_set.h"

#include "region/hints.h"
#include "region/in_hand.h"

/* To be called by who finds that the SuperSlab has none. */
static void clear_hint(struct hak_range *range, uint32_t super_slab, uint32_t size_class) {
    hak_hand_note(&range->slabs[(size_t)super_slab * HAK_UNITS_PER_SUPER_SLAB]);
    hak_hint_clear(range, HAK_PARTIAL_HINT + size_class, super_slab);
    if (hak_atomic_load(&range->super_slabs[super_slab].partial[size_class], relaxed) != 0)
        hak_hint_set(range, HAK_PARTIAL_HINT + size_class, super_slab);
}

void hak_partial_set_add(struct hak_slab *slab) {
    struct hak_range *range = hak_region_range_of_record(slab);
    uint32_t unit = hak_region_unit_of(range, slab), size_class = hak_atomic_load(&slab->size_class, relaxed);
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB, bit = 1u << (unit % HAK_UNITS_PER_SUPER_SLAB);
    hak_hand_note(slab);
    /* Release pairs with take_bit: the record is the next holder's. */
    if (hak_atomic_fetch_or(&range->super_slabs[super_slab].partial[size_class], bit, release) == 0)
        hak_hint_set(range, HAK_PARTIAL_HINT + size_class, super_slab);
}

static bool take_bit(struct hak_range *range, uint32_t super_slab, uint32_t size_class, uint32_t bit) {
    HAK_ATOMIC(uint32_t) *row = &range->super_slabs[super_slab].partial[size_class];
    if ((hak_atomic_load(row, relaxed) & bit) == 0) return false;
    hak_hand_note(&range->slabs[(size_t)super_slab * HAK_UNITS_PER_SUPER_SLAB]);
    /* Acquire pairs with hak_partial_set_add. */
    uint32_t before = hak_atomic_fetch_and(row, ~bit, acquire);
    if (before == bit) clear_hint(range, super_slab, size_class);
    return (before & bit) != 0;
}

struct hak_slab *hak_partial_set_take(uint32_t size_class) {
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        uint32_t hint = HAK_PARTIAL_HINT + size_class, super_slab = hak_hint_next(range, hint, 0);
        for (; super_slab != HAK_NO_SUPER_SLAB; super_slab = hak_hint_next(range, hint, super_slab + 1)) {
            uint32_t row = hak_atomic_load(&range->super_slabs[super_slab].partial[size_class], relaxed);
            if (row == 0) clear_hint(range, super_slab, size_class);
            for (; row != 0; row &= row - 1) {
                uint32_t position = hak_lowest_bit(row);
                if (take_bit(range, super_slab, size_class, 1u << position))
                    return &range->slabs[super_slab * HAK_UNITS_PER_SUPER_SLAB + position];
            }
        }
    }
    return NULL;
}

bool hak_partial_set_remove(struct hak_slab *slab, uint32_t size_class) {
    struct hak_range *range = hak_region_range_of_record(slab);
    uint32_t unit = hak_region_unit_of(range, slab);
    return take_bit(range, unit / HAK_UNITS_PER_SUPER_SLAB, size_class, 1u << (unit % HAK_UNITS_PER_SUPER_SLAB));
}

/* Who fills a slab puts it back before he knows that it is full. */
static bool has_free_block(const struct hak_range *range, struct hak_slab *slab, uint32_t size_class) {
    const HAK_ATOMIC(uint64_t) *bits = hak_region_bits_of(range, slab, size_class);
    for (uint32_t i = 0; i * 64 < hak_size_classes[size_class].block_count; i++)
        if (hak_atomic_load(&bits[i], relaxed) != 0) return true;
    return false;
}

/* Among the units of a SuperSlab in `mask`. */
static bool has_any_of(const struct hak_range *range, uint32_t super_slab, uint32_t size_class, uint32_t mask) {
    uint32_t row = hak_atomic_load(&range->super_slabs[super_slab].partial[size_class], relaxed) & mask;
    for (; row != 0; row &= row - 1) {
        uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB + hak_lowest_bit(row);
        if (has_free_block(range, &range->slabs[unit], size_class)) return true;
    }
    return false;
}

bool hak_partial_set_has_below(const struct hak_slab *slab, uint32_t size_class) {
    const struct hak_range *own = hak_region_range_of_record(slab);
    uint32_t unit = hak_region_unit_of(own, slab), own_super_slab = unit / HAK_UNITS_PER_SUPER_SLAB;
    for (uint32_t i = 0; i <= own->number; i++) {
        const struct hak_range *range = hak_region_range(i);
        uint32_t end = range == own ? own_super_slab : HAK_NO_SUPER_SLAB, super_slab = 0;
        while ((super_slab = hak_hint_next(range, HAK_PARTIAL_HINT + size_class, super_slab)) < end)
            if (has_any_of(range, super_slab++, size_class, UINT32_MAX)) return true;
    }
    uint32_t below = (uint32_t)hak_low_bits(unit % HAK_UNITS_PER_SUPER_SLAB);
    return has_any_of(own, own_super_slab, size_class, below);
}

#include "pool/partial_set.h"

static void partial_hint_set(struct hak_range *range, uint32_t super_slab, uint32_t size_class) {
    /* Release, after the row's bit: who clears the hint after this sees that. */
    hak_atomic_fetch_or(&range->partial_index[super_slab / 64][size_class], (uint64_t)1 << (super_slab % 64), release);
}

static void partial_hint_clear(struct hak_range *range, uint32_t super_slab, uint32_t size_class) {
    /* Acquire pairs with partial_hint_set: one of the two comes first, and either the hint is set afterwards, or the look at
     * the row below sees the bit. */
    hak_atomic_fetch_and(&range->partial_index[super_slab / 64][size_class], ~((uint64_t)1 << (super_slab % 64)),
                         acquire);
    if (hak_atomic_load(&range->partial_rows[super_slab][size_class], relaxed) != 0)
        partial_hint_set(range, super_slab, size_class);
}

void hak_partial_set_add(struct hak_slab *slab) {
    struct hak_range *range = hak_region_range_of_record(slab);
    uint32_t unit = hak_region_unit_of(range, slab), size_class = hak_atomic_load(&slab->size_class, relaxed);
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB, bit = 1u << (unit % HAK_UNITS_PER_SUPER_SLAB);
    /* Release pairs with take_bit: the record is the next holder's. */
    if (hak_atomic_fetch_or(&range->partial_rows[super_slab][size_class], bit, release) == 0)
        partial_hint_set(range, super_slab, size_class);
}

static bool take_bit(struct hak_range *range, uint32_t super_slab, uint32_t size_class, uint32_t bit) {
    HAK_ATOMIC(uint32_t) *row = &range->partial_rows[super_slab][size_class];
    if ((hak_atomic_load(row, relaxed) & bit) == 0) return false;
    /* Acquire pairs with hak_partial_set_add. */
    uint32_t before = hak_atomic_fetch_and(row, ~bit, acquire);
    if (before == bit) partial_hint_clear(range, super_slab, size_class);
    return (before & bit) != 0;
}

struct hak_slab *hak_partial_set_take(uint32_t size_class) {
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        /* Acquire pairs with hak_region_grow: rows exist up to here. */
        uint32_t super_slabs = hak_atomic_load(&range->super_slab_count, acquire);
        for (uint32_t group = 0; group * 64 < super_slabs; group++) {
            uint64_t candidates = hak_atomic_load(&range->partial_index[group][size_class], relaxed);
            for (; candidates != 0; candidates &= candidates - 1) {
                uint32_t super_slab = group * 64 + hak_lowest_bit(candidates);
                uint32_t row = hak_atomic_load(&range->partial_rows[super_slab][size_class], relaxed);
                if (row == 0) partial_hint_clear(range, super_slab, size_class);
                for (; row != 0; row &= row - 1) {
                    uint32_t position = hak_lowest_bit(row);
                    if (take_bit(range, super_slab, size_class, 1u << position))
                        return &range->slabs[super_slab * HAK_UNITS_PER_SUPER_SLAB + position];
                }
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

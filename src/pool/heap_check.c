#include "pool/heap_check.h"

#include "pool/canary.h"
#include "region/directory.h"
#include "region/large.h"

static const char check_name[] = "hak_heap_check";

/* Blocks whose bits are set are the slab's, and those that its holder has claimed were looked at or never used. */
static void check_slab(const struct hak_range *range, uint32_t unit, uint32_t size_class) {
    struct hak_slab *slab = &range->slabs[unit];
    const struct hak_size_class *cut = &hak_size_classes[size_class];
    HAK_ATOMIC(uint64_t) *bits = hak_region_bits_of(range, slab, size_class);
    uintptr_t start = hak_region_start_of(range, slab);
    for (uint32_t i = 0; i < cut->block_count; i++) {
        uint64_t free_blocks = hak_atomic_load(&bits[i / 64], relaxed);
        free_blocks |= hak_slab_claimed_in(slab, cut->block_count, i / 64);
        const void *block = (const void *)(start + (uintptr_t)i * cut->block_bytes);
        size_t usable = hak_usable_bytes(size_class), asked;
        if ((free_blocks >> i % 64 & 1) != 0 || hak_canary_is_cleared(block, usable)) continue;
        if (!hak_canary_is_live(block, usable, &asked, check_name)) hak_canary_look(block, usable);
    }
}

static void check_large(uintptr_t start) {
    struct hak_place place = hak_region_find(start);
    if (hak_place_is_large(&place))
        hak_canary_look_behind((const void *)start, place.bytes, hak_large_slack_bytes(place.bytes), check_name);
}

static void check_mapping(uintptr_t start, size_t bytes, void *nothing) {
    (void)bytes, (void)nothing;
    check_large(start);
}

static void check_unit(const struct hak_range *range, uint32_t unit) {
    uint32_t size_class = hak_page_map_class(range, unit);
    bool is_slab = size_class != HAK_CLASS_NONE && size_class <= HAK_SLAB_CLASS_COUNT;
    if (size_class == HAK_CLASS_RUN_HEAD) check_large(hak_region_start_of(range, &range->slabs[unit]));
    else if (is_slab && unit % hak_size_classes[size_class].unit_count == 0) check_slab(range, unit, size_class);
}

void hak_heap_check_all(void) {
    const struct hak_range *range;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++) {
        uint32_t units = hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
        for (uint32_t unit = 0; unit < units; unit++) check_unit(range, unit);
    }
    hak_directory_for_each_mapping(check_mapping, NULL);
}

#include "region/density.h"

#include "os/os.h"

/* ---- Handed out -------------------------------------------------------------------------------------------------- */

struct share {
    size_t known_bytes, touched_bytes;
    bool is_sure; /* of a block that is larger than a page, the first page is touched */
};

static size_t touched_of_block(const struct share *share, size_t bytes) {
    size_t page = hak_os_page_bytes();
    return share->is_sure && bytes > page ? page : bytes;
}

/* All but what the holder has claimed and not yet handed out, and what was purged. A slab that changed hands may have
 * blocks that never were: few slabs do, before all blocks were. */
static size_t touched_in_slab(const struct share *share, const struct hak_slab *slab, uint32_t size_class) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    uint32_t blocks = facts->block_count - hak_slab_count_claimed(slab, facts->block_count);
    size_t bytes = blocks * touched_of_block(share, facts->block_bytes),
           purged_bytes = hak_bit_count(hak_atomic_load(&slab->purged_pages, relaxed)) * hak_os_page_bytes();
    return bytes > purged_bytes ? bytes - purged_bytes : 0;
}

/* Adds what begins at a unit; returns how many units that is. */
static uint32_t add_share(const struct hak_range *range, uint32_t unit, uint32_t free_units, struct share *share) {
    enum { LONGEST_KNOWN_RUN = 4 }; /* units: as long as slabs are */
    const struct hak_slab *slab = &range->slabs[unit];
    uint32_t size_class = hak_page_map_class(range, unit), units = 1;
    if (size_class == HAK_CLASS_NONE) {
        share->touched_bytes += (free_units & 1) != 0 ? HAK_UNIT_BYTES : 0; /* dirty */
    } else if (size_class <= HAK_SLAB_CLASS_COUNT) {
        units = hak_size_classes[size_class].unit_count;
        share->touched_bytes += touched_in_slab(share, slab, size_class);
    } else {
        size_t bytes = (size_t)hak_atomic_load(&slab->run_pages, relaxed) * hak_os_page_bytes();
        units = (uint32_t)((bytes + HAK_UNIT_BYTES - 1) / HAK_UNIT_BYTES);
        if (size_class != HAK_CLASS_RUN_HEAD || units == 0 || units > LONGEST_KNOWN_RUN) return 1;
        share->touched_bytes += hak_os_page_bytes();
    }
    share->known_bytes += units * HAK_UNIT_BYTES;
    return units;
}

bool hak_density_is_handed_out(const struct hak_range *range, uint32_t super_slab, bool is_sure) {
    struct share share = {0, 0, is_sure};
    uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB, end = unit + HAK_UNITS_PER_SUPER_SLAB;
    uint32_t dirty_units = hak_units_dirty(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed));
    while (unit < end) unit += add_share(range, unit, dirty_units >> unit % HAK_UNITS_PER_SUPER_SLAB, &share);
    size_t least_bytes = share.known_bytes / 16 * (is_sure ? 15 : 12);
    return share.known_bytes >= HAK_SUPER_SLAB_BYTES / 2 && share.touched_bytes >= least_bytes;
}

/* ---- Contents ---------------------------------------------------------------------------------------------------- */

/* To read a page that has no memory gives it none: it is the kernel's page of zeros then. */
static bool is_zero(const uint64_t *words, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if (words[i] != 0) return false;
    return true;
}

static bool is_page_zero(const struct hak_range *range, uint32_t super_slab, size_t offset) {
    uintptr_t start = range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
    return is_zero((const uint64_t *)(start + offset), hak_os_page_bytes());
}

bool hak_density_has_contents(const struct hak_range *range, uint32_t super_slab) {
    size_t page = hak_os_page_bytes(), zero_bytes = 0, most_zero_bytes = HAK_SUPER_SLAB_BYTES / 16;
    /* Where nobody has written, each page that is read is a page fault: two tell of most such SuperSlabs. */
    if (is_page_zero(range, super_slab, HAK_SUPER_SLAB_BYTES / 4) &&
        is_page_zero(range, super_slab, HAK_SUPER_SLAB_BYTES / 4 * 3))
        return false;
    for (size_t at = 0; at < HAK_SUPER_SLAB_BYTES && zero_bytes <= most_zero_bytes; at += page)
        if (is_page_zero(range, super_slab, at)) zero_bytes += page;
    return zero_bytes <= most_zero_bytes;
}

bool hak_density_is_sparse(uintptr_t start, size_t bytes) {
    enum { SAMPLES = 16, ODDS = 8 };
    size_t page = hak_os_page_bytes(), pages = bytes / page, filled_count = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        /* Not at equal distances: contents may be, too. */
        size_t at = ((2 * i + 1) * pages / (2 * (size_t)SAMPLES) + i % ODDS) % pages;
        filled_count += !is_zero((const uint64_t *)(start + at * page), page);
        if (filled_count > 1) return false;
    }
    return true;
}

/* ---- The heap ---------------------------------------------------------------------------------------------------- */

static uint64_t purged_in_slabs(const struct hak_range *range, uint32_t super_slab) {
    uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB, end = unit + HAK_UNITS_PER_SUPER_SLAB, units = 1;
    uint64_t pages = 0;
    for (; unit < end; unit += units) {
        uint32_t size_class = hak_page_map_class(range, unit);
        bool is_slab = size_class != HAK_CLASS_NONE && size_class <= HAK_SLAB_CLASS_COUNT;
        units = is_slab ? hak_size_classes[size_class].unit_count : 1;
        if (is_slab) pages += hak_bit_count(hak_atomic_load(&range->slabs[unit].purged_pages, relaxed));
    }
    return pages * hak_os_page_bytes();
}

static uint64_t bytes_of_range(const struct hak_range *range, bool is_exact) {
    uint32_t super_slabs = hak_region_super_slabs(range);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < super_slabs; i++) {
        uint32_t fresh_units = (uint32_t)(hak_atomic_load(&range->super_slabs[i].free_units, relaxed) >> 32);
        bytes += (HAK_UNITS_PER_SUPER_SLAB - hak_bit_count(fresh_units)) * HAK_UNIT_BYTES;
        if (is_exact) bytes -= purged_in_slabs(range, i);
    }
    return bytes;
}

uint64_t hak_density_bytes(bool is_exact) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        bytes += bytes_of_range(hak_region_range(i), is_exact);
    return bytes;
}

/* Ranges: reserving them, committing SuperSlabs and metadata, and finding what lies at an address. */
#include "os/os.h"
#include "region/directory.h"
#include "region/page_policy.h"
#include "region/region.h"
#include "region/units.h"

HAK_CACHE_ALIGNED HAK_ATOMIC(uint8_t) hak_page_map[HAK_FIRST_RANGE_UNITS];
HAK_ATOMIC(uintptr_t) hak_first_range_start;
HAK_ATOMIC(struct hak_range *) hak_ranges[HAK_RANGE_LIMIT];

enum { METADATA_STEP = 64 }; /* SuperSlabs whose metadata is committed at a time: 1.3 MiB of it for 128 MiB */

/* Tables of a range: what they need per SuperSlab, or for 64. */
enum table {
    PAGE_MAP,
    SUPER_SLABS,
    UNIT_HINTS,
    HUGE_BITS,
    PARTIAL_INDEX,
    RECORDS, /* from here on in steps */
    BIT_ROWS,
    PARTIAL_ROWS,
    TABLE_COUNT
};

static size_t table_bytes(enum table table, size_t super_slabs) {
    size_t units = super_slabs * HAK_UNITS_PER_SUPER_SLAB, groups = (super_slabs + 63) / 64;
    switch (table) {
    case PAGE_MAP: return units;
    case SUPER_SLABS: return super_slabs * sizeof(struct hak_super_slab);
    case UNIT_HINTS: return HAK_UNIT_HINTS * groups * sizeof(uint64_t);
    case HUGE_BITS: return groups * sizeof(uint64_t);
    case PARTIAL_INDEX: return groups * HAK_CLASS_LIMIT * sizeof(uint64_t);
    case RECORDS: return units * sizeof(struct hak_slab);
    case BIT_ROWS: return units * HAK_SLAB_MAX_WORDS * sizeof(uint64_t);
    case PARTIAL_ROWS: return super_slabs * HAK_CLASS_LIMIT * sizeof(uint32_t);
    case TABLE_COUNT: break;
    }
    return 0;
}

/* Commits the part of a stepped table that SuperSlabs `from`..`to` need. The page a step shares with its neighbour is
 * committed twice. */
static bool commit_step(void *table_start, enum table table, uint32_t from, uint32_t to) {
    size_t page = hak_os_page_bytes();
    uintptr_t start = hak_align_down((uintptr_t)table_start + table_bytes(table, from), page);
    uintptr_t end = hak_align_up((uintptr_t)table_start + table_bytes(table, to), page);
    return hak_os_commit((void *)start, end - start);
}

/* Makes metadata for at least so many SuperSlabs. */
static bool ensure_metadata(struct hak_range *range, uint32_t super_slabs) {
    /* Acquire pairs with the release below: what another thread committed can be handed on. */
    uint32_t have = hak_atomic_load(&range->metadata_super_slabs, acquire);
    if (super_slabs <= have) return true;
    uint32_t want = hak_align_up(super_slabs, METADATA_STEP);
    if (want > range->super_slab_limit) want = range->super_slab_limit;
    if (!commit_step(range->slabs, RECORDS, have, want) || !commit_step(range->bit_rows, BIT_ROWS, have, want) ||
        !commit_step(range->partial_rows, PARTIAL_ROWS, have, want))
        return false;
    /* Release pairs with the acquire above. Another thread may have gone further. */
    while (have < want && !hak_atomic_cas(&range->metadata_super_slabs, &have, want, release, relaxed)) {
    }
    return true;
}

/* Reserves and describes a range of `super_slabs`; NULL when there is no room for it, or for its first step of metadata. */
static struct hak_range *make_range(uint32_t super_slabs) {
    size_t page = hak_os_page_bytes(), offsets[TABLE_COUNT], at = hak_align_up(sizeof(struct hak_range), page);
    bool is_first = super_slabs * HAK_UNITS_PER_SUPER_SLAB <= HAK_FIRST_RANGE_UNITS &&
                    hak_atomic_load(&hak_first_range_start, relaxed) == 0;
    size_t fixed_bytes = 0;
    for (enum table table = 0; table < TABLE_COUNT; table++) {
        if (table == RECORDS) fixed_bytes = at;
        offsets[table] = at;
        if (table != PAGE_MAP || !is_first) at += hak_align_up(table_bytes(table, super_slabs), page);
    }
    size_t heap_bytes = (size_t)super_slabs * HAK_SUPER_SLAB_BYTES;
    void *heap = hak_os_reserve(heap_bytes, HAK_SUPER_SLAB_BYTES);
    if (heap == NULL) return NULL;
    char *metadata = hak_os_reserve(at, page);
    if (metadata == NULL || !hak_os_commit(metadata, fixed_bytes)) {
        if (metadata != NULL) hak_os_unmap(metadata, at);
        hak_os_unmap(heap, heap_bytes);
        return NULL;
    }
    hak_os_refuse_huge_pages(heap, heap_bytes);
    hak_os_refuse_huge_pages(metadata, at); /* few bit rows are used, and far between */
    if (is_first) { /* at the start only: a sandbox that the program enters later may not know the call */
        hak_os_name(heap, heap_bytes, "hakmem-heap");
        hak_os_name(metadata, at, "hakmem-metadata");
    }
    struct hak_range *range = (struct hak_range *)(void *)metadata;
    range->start = (uintptr_t)heap;
    range->super_slab_limit = super_slabs;
    range->metadata_bytes = fixed_bytes;
    range->page_map = is_first ? hak_page_map : (void *)(metadata + offsets[PAGE_MAP]);
    range->super_slabs = (void *)(metadata + offsets[SUPER_SLABS]);
    range->unit_hints = (void *)(metadata + offsets[UNIT_HINTS]);
    range->huge = (void *)(metadata + offsets[HUGE_BITS]);
    range->partial_index = (void *)(metadata + offsets[PARTIAL_INDEX]);
    range->slabs = (void *)(metadata + offsets[RECORDS]);
    range->bit_rows = (void *)(metadata + offsets[BIT_ROWS]);
    range->partial_rows = (void *)(metadata + offsets[PARTIAL_ROWS]);
    return range;
}

/* Where the tables of a range end, which begin with it. */
static uintptr_t metadata_end(const struct hak_range *range) {
    uintptr_t last = (uintptr_t)range->partial_rows + table_bytes(PARTIAL_ROWS, range->super_slab_limit);
    return hak_align_up(last, hak_os_page_bytes());
}

static void discard_range(struct hak_range *range) {
    hak_os_unmap((void *)range->start, (size_t)range->super_slab_limit * HAK_SUPER_SLAB_BYTES);
    hak_os_unmap(range, metadata_end(range) - (uintptr_t)range);
}

/* A range as large as allowed: the steps get smaller, and stay below a quarter of the limit on address space, which the
 * program needs for other things too. At the end, a single SuperSlab. NULL when it would be less than `least` SuperSlabs. */
static struct hak_range *make_largest_range(uint32_t least) {
    static const size_t steps[] = {64 * HAK_GIB, HAK_GIB, 64 * HAK_MIB, 16 * HAK_MIB, 4 * HAK_MIB};
    size_t limit = hak_os_address_space_limit();
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        uint32_t super_slabs = (uint32_t)(steps[i] / HAK_SUPER_SLAB_BYTES);
        if (steps[i] > limit / 4 || super_slabs < least) continue;
        struct hak_range *range = make_range(super_slabs);
        if (range != NULL) return range;
    }
    return least <= 1 ? make_range(1) : NULL;
}

/* Gives the range the number of the first free place: false when another thread took it, or none is left. */
static bool publish_range(struct hak_range *range, uint32_t number) {
    struct hak_range *none = NULL;
    if (number == HAK_RANGE_LIMIT) return false;
    range->number = number;
    /* Release pairs with hak_region_range: the range can be used. */
    return hak_atomic_cas(&hak_ranges[number], &none, range, release, relaxed);
}

bool hak_region_initialize(void) {
    /* There is one already in a child whose parent forked in the middle of this. */
    struct hak_range *range = hak_region_range(0);
    if (range == NULL) {
        range = make_largest_range(1);
        if (range == NULL) return false;
        publish_range(range, 0);
    }
    hak_atomic_store(&hak_first_range_start, range->start, relaxed);
    return true;
}

struct hak_range *hak_region_add_range(uint32_t number, uint32_t super_slabs) {
    struct hak_range *range = make_largest_range(super_slabs);
    if (range == NULL) return NULL;
    uintptr_t end = range->start + (uintptr_t)range->super_slab_limit * HAK_SUPER_SLAB_BYTES;
    bool usable = true;
    for (uintptr_t at = range->start; at < end && usable; at += HAK_GRANULE_BYTES)
        usable = hak_directory_set(at, hak_entry_for_range(number));
    if (usable && publish_range(range, number)) return range;
    /* Nobody has a pointer into the range; but its entries would hide a mapping that gets the addresses next (D2). */
    for (uintptr_t at = range->start; at < end; at += HAK_GRANULE_BYTES)
        hak_directory_replace(at, hak_entry_for_range(number), HAK_ENTRY_NONE);
    discard_range(range);
    return usable && number < HAK_RANGE_LIMIT ? hak_region_range(number) : NULL;
}

bool hak_region_grow(struct hak_range *range, uint32_t *count_now, uint32_t count) {
    uint32_t first = *count_now;
    if (count > range->super_slab_limit - first || !ensure_metadata(range, first + count)) return false;
    void *start = (void *)(range->start + (uintptr_t)first * HAK_SUPER_SLAB_BYTES);
    size_t bytes = (size_t)count * HAK_SUPER_SLAB_BYTES;
    if (!hak_os_commit(start, bytes) && !(hak_page_policy_merge_mappings() && hak_os_commit(start, bytes)))
        return false;
    /* Release pairs with the acquire loads of super_slab_count: records up to it can be read. */
    return hak_atomic_cas(&range->super_slab_count, count_now, first + count, release, relaxed);
}

/* Commits the next SuperSlab of a range: false when the range is used up, or memory is. */
static bool grow_by_one(struct hak_range *range, uint32_t *number) {
    uint32_t tried;
    *number = hak_atomic_load(&range->super_slab_count, relaxed);
    do {
        tried = *number;
        if (hak_region_grow(range, number, 1)) return true;
    } while (*number != tried);
    return false;
}

struct hak_range *hak_region_new_super_slab(uint32_t *number) {
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) range = hak_region_add_range(i, 1);
        if (range == NULL) return NULL;
        if (grow_by_one(range, number)) return range;
        if (*number < range->super_slab_limit) return NULL; /* refused: a range more would cost memory, and give none */
    }
    return NULL;
}

struct hak_range *hak_region_range_of(uintptr_t address) {
    struct hak_range *range = hak_region_range(0);
    if (range == NULL) return NULL;
    if (address - range->start < (size_t)range->super_slab_limit * HAK_SUPER_SLAB_BYTES) return range;
    uint64_t entry = hak_directory_get(address);
    if ((entry & HAK_ENTRY_KIND_MASK) != HAK_ENTRY_RANGE) return NULL;
    range = hak_region_range((uint32_t)(entry >> 2));
    /* An entry that a discarded range left behind names a range that is elsewhere. */
    if (range == NULL || address - range->start >= (size_t)range->super_slab_limit * HAK_SUPER_SLAB_BYTES) return NULL;
    return range;
}

struct hak_place hak_region_find(uintptr_t address) {
    struct hak_place place = {.kind = HAK_PLACE_FOREIGN};
    struct hak_range *range = hak_region_range_of(address);
    if (range == NULL) {
        if (hak_directory_find_mapping(address, &place.start, &place.bytes)) place.kind = HAK_PLACE_MAPPING;
        return place;
    }
    uint32_t unit = (uint32_t)((address - range->start) >> HAK_UNIT_SHIFT);
    uint32_t size_class = hak_atomic_load(&range->page_map[unit], relaxed);
    if (size_class == HAK_CLASS_NONE) return place;
    if (size_class <= HAK_SLAB_CLASS_COUNT) {
        const struct hak_size_class *facts = &hak_size_classes[size_class];
        place.slab = &range->slabs[unit & ~(facts->unit_count - 1)];
        uintptr_t slab_start = hak_region_start_of(range, place.slab);
        uint32_t index = hak_block_index((uint32_t)(address - slab_start), facts->reciprocal);
        if (index >= facts->block_count) return place; /* the rest behind the last block */
        place.kind = HAK_PLACE_SMALL;
        place.size_class = size_class;
        place.start = slab_start + (uintptr_t)index * facts->block_bytes;
        place.bytes = facts->block_bytes;
        return place;
    }
    while (size_class == HAK_CLASS_RUN_BODY && unit > 0)
        size_class = hak_atomic_load(&range->page_map[--unit], relaxed);
    if (size_class != HAK_CLASS_RUN_HEAD) return place;
    place.kind = HAK_PLACE_RUN;
    place.slab = &range->slabs[unit];
    place.start = hak_region_start_of(range, place.slab);
    place.bytes = hak_atomic_load(&place.slab->run_pages, relaxed) * hak_os_page_bytes();
    return place;
}

bool hak_region_covers(uintptr_t address) {
    uintptr_t start;
    size_t bytes;
    return hak_region_range_of(address) != NULL || hak_directory_find_mapping(address, &start, &bytes);
}

bool hak_region_is_metadata(uintptr_t address) {
    if (address - (uintptr_t)hak_page_map < sizeof hak_page_map || hak_directory_is_table(address)) return true;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        uintptr_t start = (uintptr_t)hak_region_range(i);
        if (start == 0) break;
        if (address - start < metadata_end((const struct hak_range *)start) - start) return true;
    }
    return false;
}

struct hak_region_sums hak_region_sums(void) {
    struct hak_region_sums sums = {0, 0, 0};
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        uint32_t steps = hak_atomic_load(&range->metadata_super_slabs, relaxed);
        sums.super_slabs += hak_atomic_load(&range->super_slab_count, relaxed);
        sums.metadata_bytes += range->metadata_bytes + table_bytes(RECORDS, steps) + table_bytes(BIT_ROWS, steps) +
                               table_bytes(PARTIAL_ROWS, steps);
    }
    sums.committed_bytes = sums.super_slabs * HAK_SUPER_SLAB_BYTES;
    return sums;
}

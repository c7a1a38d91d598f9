#include "observe/address.h"

#include "observe/profile.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/canary.h"
#include "region/guard.h"
#include "region/mapping_cache.h"
#include "region/run_quarantine.h"

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

static bool is_free_block(const struct hak_range *range, const struct hak_place *place, uint32_t index) {
    HAK_ATOMIC(uint64_t) *bits = hak_region_bits_of(range, place->slab, place->size_class);
    uint64_t word = hak_atomic_load(&bits[index / 64], relaxed);
    word |= hak_slab_claimed_in(place->slab, hak_size_classes[place->size_class].block_count, index / 64);
    return (word >> (index % 64) & 1) != 0;
}

static bool is_in_record(const struct hak_heap *heap, uintptr_t address) {
    return address - (uintptr_t)heap < HAK_HEAP_BYTES;
}

static const struct hak_heap *heap_at(uintptr_t address) {
    const struct hak_heap *heap = hak_heap_first();
    while (heap != NULL && !is_in_record(heap, address)) heap = heap->next;
    return heap;
}

/* `place` is a block of a slab. */
static struct hak_address find_small(const struct hak_range *range, const struct hak_place *place, uintptr_t address) {
    struct hak_address found = {.kind = HAK_ADDRESS_LIVE, .start = place->start, .bytes = place->bytes};
    uint32_t offset = (uint32_t)(address - hak_region_start_of(range, place->slab));
    uint32_t index = hak_block_index(offset, hak_size_classes[place->size_class].reciprocal);
    if (is_free_block(range, place, index)) {
        uint64_t purged = hak_atomic_load(&place->slab->purged_pages, relaxed);
        found.kind = HAK_ADDRESS_FREE;
        found.is_purged = (purged >> (offset / hak_os_page_bytes()) & 1) != 0;
        return found;
    }
    const struct hak_heap *heap = hak_heap_that_keeps(place->size_class, (const void *)place->start);
    if (heap == NULL) {
        if (HAK_SECURE) found.bytes = hak_canary_asked((const void *)place->start, place->bytes);
        return found;
    }
    found.kind = HAK_ADDRESS_CACHED;
    found.heap = heap->number;
    return found;
}

static struct hak_address describe_large(const struct hak_place *place, uintptr_t address) {
    bool is_behind = address - place->start >= place->bytes;
    return (struct hak_address){.kind = is_behind ? HAK_ADDRESS_BEHIND : HAK_ADDRESS_LIVE,
                                .is_large = true,
                                .start = place->start,
                                .bytes = place->bytes};
}

/* The block that a slab had at an address of a free unit, if the records tell of one still: they are never cleared, and
 * a slab of several units has its record in the first. */
static struct hak_address find_former_block(const struct hak_range *range, uint32_t unit, uintptr_t address) {
    struct hak_address found = {.kind = HAK_ADDRESS_EMPTY};
    for (uint32_t units = 1; units < HAK_UNITS_PER_SUPER_SLAB; units *= 2) {
        const struct hak_slab *slab = &range->slabs[unit & ~(units - 1)];
        uint32_t size_class = hak_atomic_load(&slab->size_class, relaxed);
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) continue;
        const struct hak_size_class *facts = &hak_size_classes[size_class];
        uint32_t offset = (uint32_t)(address - hak_region_start_of(range, slab));
        uint32_t index = hak_block_index(offset, facts->reciprocal);
        if (facts->unit_count != units || index >= facts->block_count) continue;
        found.start = address - offset + (uintptr_t)index * facts->block_bytes;
        found.bytes = facts->block_bytes;
        return found;
    }
    return found;
}

/* In a range, and in no block. */
static struct hak_address find_between(const struct hak_range *range, uintptr_t address) {
    struct hak_address waiting = {.kind = HAK_ADDRESS_KEPT, .is_large = true};
    if (HAK_SECURE && hak_run_quarantine_find(address, &waiting.start, &waiting.bytes)) return waiting;
    uint32_t unit = (uint32_t)((address - range->start) >> HAK_UNIT_SHIFT);
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB, bit = unit % HAK_UNITS_PER_SUPER_SLAB;
    uint32_t size_class = hak_page_map_class(range, unit);
    if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) {
        uint64_t free_units = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
        struct hak_address found = find_former_block(range, unit, address);
        found.is_purged = (free_units >> (32 + bit) & 1) != 0;
        return found;
    }
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    uintptr_t slab_start = hak_region_start_of(range, &range->slabs[unit & ~(facts->unit_count - 1)]);
    return (struct hak_address){.kind = HAK_ADDRESS_BEHIND,
                                .start = slab_start + (uintptr_t)(facts->block_count - 1) * facts->block_bytes,
                                .bytes = facts->block_bytes};
}

static struct hak_address find_outside(uintptr_t address) {
    struct hak_address found = {.kind = HAK_ADDRESS_FOREIGN};
    const struct hak_heap *heap = heap_at(address);
    if (heap != NULL) {
        found.kind = HAK_ADDRESS_HEAP;
        found.heap = heap->number;
    } else if (hak_mapping_cache_find(address, &found.start, &found.bytes)) {
        found.kind = HAK_ADDRESS_KEPT;
        found.is_large = true;
    } else if (hak_region_is_metadata(address) || hak_profile_is_metadata(address)) {
        found.kind = HAK_ADDRESS_METADATA;
    }
    return found;
}

static struct hak_address find_guarded(uintptr_t address) {
    struct hak_address found = {.kind = HAK_ADDRESS_GUARDED};
    const struct hak_guard *guard = hak_guard_near(address);
    if (guard == NULL) return found;
    found.start = hak_atomic_load(&guard->start, relaxed);
    found.bytes = hak_atomic_load(&guard->bytes, relaxed);
    found.is_freed = hak_atomic_load(&guard->state, relaxed) != HAK_GUARD_LIVE;
    return found;
}

struct hak_address hak_address_find(uintptr_t address) {
    if (hak_guard_covers(address)) return find_guarded(address);
    const struct hak_range *range = hak_region_range_of(address);
    struct hak_place place = hak_region_find(address);
    switch (place.kind) {
    case HAK_PLACE_SMALL: return find_small(range, &place, address);
    case HAK_PLACE_RUN:
    case HAK_PLACE_MAPPING: return describe_large(&place, address);
    case HAK_PLACE_GUARDED:
    case HAK_PLACE_FOREIGN: break;
    }
    return range == NULL ? find_outside(address) : find_between(range, address);
}

/* ---- Describing -------------------------------------------------------------------------------------------------- */

static void describe_block(const struct hak_address *found, uintptr_t address, const char *state,
                           struct hak_text *out) {
    const char *size = found->is_large ? "large " : "";
    if (address == found->start) hak_text_add(out, "the start of a %s%sblock of %zu bytes", state, size, found->bytes);
    else
        hak_text_add(out, "%zu bytes into a %s%sblock of %zu bytes at %p", (size_t)(address - found->start), state,
                     size, found->bytes, (void *)found->start);
}

static void describe_behind(const struct hak_address *found, uintptr_t address, struct hak_text *out) {
    size_t distance = address - found->start - found->bytes;
    if (found->is_large)
        hak_text_add(out, "%zu bytes behind the end of a large block of %zu bytes at %p", distance, found->bytes,
                     (void *)found->start);
    else hak_text_add(out, "in no block: behind the last one of a slab of blocks of %zu bytes", found->bytes);
}

static void describe_guarded(const struct hak_address *found, uintptr_t address, struct hak_text *out) {
    const char *state = found->is_freed ? "freed" : "live";
    size_t end = found->start + found->bytes;
    if (found->start == 0) hak_text_add(out, "among hakmem's guards, beside no block");
    else if (address == found->start)
        hak_text_add(out, "the start of a %s guarded block of %zu bytes", state, found->bytes);
    else if (address < found->start)
        hak_text_add(out, "%zu bytes before a %s guarded block of %zu bytes at %p", (size_t)(found->start - address),
                     state, found->bytes, (void *)found->start);
    else if (address < end)
        hak_text_add(out, "%zu bytes into a %s guarded block of %zu bytes at %p", (size_t)(address - found->start),
                     state, found->bytes, (void *)found->start);
    else
        hak_text_add(out, "%zu bytes behind the end of a %s guarded block of %zu bytes at %p", (size_t)(address - end),
                     state, found->bytes, (void *)found->start);
}

void hak_address_describe(const struct hak_address *found, uintptr_t address, struct hak_text *out) {
    switch (found->kind) {
    case HAK_ADDRESS_FOREIGN: hak_text_add(out, "not hakmem's"); break;
    case HAK_ADDRESS_LIVE: describe_block(found, address, "live ", out); break;
    case HAK_ADDRESS_FREE: describe_block(found, address, "free ", out); break;
    case HAK_ADDRESS_CACHED:
        describe_block(found, address, "free ", out);
        hak_text_add(out, ", in the cache of heap %u", found->heap);
        break;
    case HAK_ADDRESS_BEHIND: describe_behind(found, address, out); break;
    case HAK_ADDRESS_KEPT: describe_block(found, address, "free ", out); break;
    case HAK_ADDRESS_EMPTY:
        hak_text_add(out, "free memory of the heap, in no block%s", found->start == 0 ? "" : "; ");
        if (found->start != 0) describe_block(found, address, "former ", out);
        break;
    case HAK_ADDRESS_METADATA: hak_text_add(out, "in hakmem's tables"); break;
    case HAK_ADDRESS_GUARDED: describe_guarded(found, address, out); break;
    case HAK_ADDRESS_HEAP: hak_text_add(out, "in hakmem's record of heap %u", found->heap); break;
    }
    if (found->is_purged) hak_text_add(out, ", given back to the kernel or not used yet");
}

#include "region/large.h"

#include "base/knobs.h"
#include "os/os.h"
#include "region/directory.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"

/* State of a page run's record: for late readers, a slab somebody holds. */
static const uint32_t run_live = UINT32_MAX << 2 | HAK_SLAB_HELD;

#define LONGEST_RUN_BYTES ((size_t)HAK_FIRST_RANGE_UNITS << HAK_UNIT_SHIFT)

static uint32_t units_for(size_t bytes) { return (uint32_t)((bytes + HAK_UNIT_BYTES - 1) >> HAK_UNIT_SHIFT); }

static void *alloc_run(size_t bytes, size_t alignment, bool *zero) {
    uint32_t units = units_for(bytes), unit_alignment = alignment <= HAK_UNIT_BYTES ? 1 : units_for(alignment);
    static const enum hak_unit_source sources[] = {HAK_UNITS_FREE, HAK_UNITS_NEW_SUPER, HAK_UNITS_LAST_RESORT};
    struct hak_slab *run = NULL;
    if (units > HAK_UNITS_PER_SUPER_SLAB) run = hak_region_acquire_span(units, zero);
    else
        for (uint32_t i = 0; run == NULL && i < 3; i++)
            run = hak_region_acquire(units, unit_alignment, sources[i], zero);
    if (run == NULL) return NULL;
    hak_atomic_store(&run->run_units, units, relaxed);
    hak_atomic_store(&run->state, run_live, relaxed);
    hak_region_mark(run, units, HAK_CLASS_RUN_HEAD, HAK_CLASS_RUN_BODY);
    return (void *)hak_region_start_of(hak_region_range_of_record(run), run);
}

static void *alloc_mapping(size_t bytes, size_t alignment, bool *zero) {
    bytes = hak_align_up(bytes, hak_os_page_bytes());
    if (alignment <= HAK_GRANULE_BYTES) {
        alignment = HAK_GRANULE_BYTES;
        void *kept = hak_mapping_cache_take(bytes);
        if (kept != NULL) {
            *zero = false;
            return kept;
        }
    }
    void *start = hak_os_map(bytes, alignment);
    if (start == NULL) return NULL;
    if (!hak_directory_set((uintptr_t)start, hak_entry_for_mapping(bytes))) {
        hak_os_unmap(start, bytes);
        return NULL;
    }
    *zero = true;
    return start;
}

void *hak_large_alloc(size_t bytes, size_t alignment, bool *zero) {
    bool fits_run = alignment <= HAK_SUPER_SLAB_BYTES && bytes <= LONGEST_RUN_BYTES;
    if (fits_run && bytes <= hak_knob(run_limit_bytes)) return alloc_run(bytes, alignment, zero);
    void *block = alloc_mapping(bytes, alignment, zero);
    /* No address space or mapping left, but there may be units: at worst, all the program's memory is there, free. */
    return block == NULL && fits_run ? alloc_run(bytes, alignment, zero) : block;
}

static bool free_run(struct hak_slab *run) {
    /* Of two threads that free the run at once, one gets it. Relaxed: its units are handed on by add_units. */
    if (hak_atomic_exchange(&run->state, HAK_SLAB_NONE, relaxed) != run_live) return false;
    uint32_t units = hak_atomic_load(&run->run_units, relaxed);
    hak_atomic_store(&run->run_units, 0, relaxed);
    hak_region_mark(run, units, HAK_CLASS_NONE, HAK_CLASS_NONE);
    hak_region_release(run, units);
    hak_page_policy_after_release();
    return true;
}

static bool free_mapping(uintptr_t start, size_t bytes) {
    if (!hak_directory_replace(start, hak_entry_for_mapping(bytes), HAK_ENTRY_NONE)) return false;
    hak_mapping_cache_put(start, bytes);
    return true;
}

bool hak_large_free(const struct hak_place *place) {
    return place->kind == HAK_PLACE_RUN ? free_run(place->slab) : free_mapping(place->start, place->bytes);
}

static void *resize_run(const struct hak_place *place, size_t bytes) {
    struct hak_slab *run = place->slab;
    if (bytes > LONGEST_RUN_BYTES || bytes <= HAK_SMALL_MAX) return NULL;
    uint32_t have = hak_atomic_load(&run->run_units, relaxed), want = units_for(bytes);
    if (want > have) {
        if (!hak_region_extend(run, have, want - have)) return NULL;
        struct hak_slab *tail = run + have;
        hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
        hak_region_mark(tail, want - have, HAK_CLASS_RUN_BODY, HAK_CLASS_RUN_BODY);
    } else if (want < have) {
        struct hak_slab *tail = run + want;
        hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
        hak_region_mark(tail, have - want, HAK_CLASS_NONE, HAK_CLASS_NONE);
        hak_region_release(tail, have - want);
    }
    hak_atomic_store(&run->run_units, want, relaxed);
    return (void *)place->start;
}

/* Moves a mapping to a place with more room, by changing page tables. */
static void *move_mapping(const struct hak_place *place, size_t bytes) {
    void *target = hak_os_reserve(bytes, HAK_GRANULE_BYTES);
    if (target == NULL) return NULL;
    if (!hak_directory_set((uintptr_t)target, hak_entry_for_mapping(bytes))) {
        hak_os_unmap(target, bytes);
        return NULL;
    }
    /* The entry goes before the addresses do: another thread may get them at once. */
    hak_directory_set(place->start, HAK_ENTRY_NONE);
    if (hak_os_remap((void *)place->start, place->bytes, bytes, target)) return target;
    hak_directory_set(place->start, hak_entry_for_mapping(place->bytes));
    hak_directory_replace((uintptr_t)target, hak_entry_for_mapping(bytes), HAK_ENTRY_NONE);
    return NULL;
}

static void *resize_mapping(const struct hak_place *place, size_t bytes) {
    bytes = hak_align_up(bytes, hak_os_page_bytes());
    if (bytes == place->bytes) return (void *)place->start;
    if (bytes <= hak_knob(run_limit_bytes)) return NULL;
    if (hak_os_remap((void *)place->start, place->bytes, bytes, NULL)) {
        hak_directory_set(place->start, hak_entry_for_mapping(bytes)); /* can't fail: the entry exists */
        return (void *)place->start;
    }
    return bytes < place->bytes ? (void *)place->start : move_mapping(place, bytes);
}

void *hak_large_resize(const struct hak_place *place, size_t bytes) {
    return place->kind == HAK_PLACE_RUN ? resize_run(place, bytes) : resize_mapping(place, bytes);
}

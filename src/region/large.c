#include "region/large.h"

#include <string.h>

#include "base/counters.h"
#include "base/knobs.h"
#include "os/os.h"
#include "region/directory.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"

/* States of a page run's record: for late readers, a slab somebody holds. */
static const uint32_t run_live = UINT32_MAX << 2 | HAK_SLAB_HELD, run_busy = (UINT32_MAX - 1) << 2 | HAK_SLAB_HELD,
                      run_freed = (UINT32_MAX - 2) << 2 | HAK_SLAB_HELD;

/* ---- Allocation --------------------------------------------------------------------------------------------------- */

#define LONGEST_RUN_BYTES ((size_t)HAK_FIRST_RANGE_UNITS << HAK_UNIT_SHIFT)
#define LARGEST_RUN_ALIGNMENT HAK_GIB

/* Runs of at least so many bytes are moved by changing page tables, shorter ones by copying. */
#define LEAST_MOVED_BYTES (HAK_MIB / 2)

static uint32_t units_for(size_t bytes) { return (uint32_t)((bytes + HAK_UNIT_BYTES - 1) >> HAK_UNIT_SHIFT); }

static void set_bytes_of_run(struct hak_slab *run, size_t bytes) {
    size_t page = hak_os_page_bytes();
    hak_atomic_store(&run->run_pages, (uint32_t)((bytes + page - 1) / page), relaxed);
    hak_atomic_store(&run->purged_pages, 0, relaxed);
    hak_atomic_store(&run->sweeps, 0, relaxed);
}

static size_t bytes_of_run(const struct hak_slab *run) {
    return hak_atomic_load(&run->run_pages, relaxed) * hak_os_page_bytes();
}

/* Makes a run of units that the caller has. */
static void *begin_run(struct hak_slab *run, uint32_t units, size_t bytes) {
    set_bytes_of_run(run, bytes);
    /* Release pairs with begin_change: who gets at the run sees its bytes. */
    hak_atomic_store(&run->state, run_live, release);
    hak_region_mark(run, units, HAK_CLASS_RUN_HEAD, HAK_CLASS_RUN_BODY);
    return (void *)hak_region_start_of(hak_region_range_of_record(run), run);
}

static void *alloc_run(size_t bytes, size_t alignment, bool clear) {
    uint32_t units = units_for(bytes), unit_alignment = alignment <= HAK_UNIT_BYTES ? 1 : units_for(alignment);
    static const enum hak_unit_source sources[] = {HAK_UNITS_DIRTY, HAK_UNITS_FREE, HAK_UNITS_NEW_SUPER,
                                                   HAK_UNITS_LAST_RESORT};
    struct hak_slab *run = NULL;
    if (units > HAK_UNITS_PER_SUPER_SLAB || unit_alignment > HAK_UNITS_PER_SUPER_SLAB)
        run = hak_region_acquire_span(units, unit_alignment, clear);
    else
        for (size_t i = 0; run == NULL && i < sizeof sources / sizeof sources[0]; i++)
            run = hak_region_acquire(units, unit_alignment, sources[i], clear);
    return run == NULL ? NULL : begin_run(run, units, bytes);
}

void *hak_large_use_unit(struct hak_slab *unit, size_t bytes, bool clear) {
    void *block = begin_run(unit, 1, bytes);
    return clear ? memset(block, 0, bytes) : block;
}

static void *map_block(size_t bytes, size_t alignment) {
    void *start = hak_os_map(bytes, alignment);
    if (start == NULL) return NULL;
    if (hak_directory_set((uintptr_t)start, hak_entry_for_mapping(bytes))) {
        hak_count_growth(bytes / hak_os_page_bytes());
        hak_page_policy_begin_mapping(start, bytes);
        return start;
    }
    hak_os_unmap(start, bytes);
    return NULL;
}

static void *alloc_mapping(size_t bytes, size_t alignment, bool clear) {
    bytes = hak_align_up(bytes, hak_os_page_bytes());
    if (alignment > HAK_GRANULE_BYTES) return map_block(bytes, alignment);
    void *kept = hak_mapping_cache_take(bytes);
    if (kept == NULL) return map_block(bytes, HAK_GRANULE_BYTES);
    /* A mapping is too large to be written to before it is used. */
    if (clear && !hak_os_purge(kept, bytes)) memset(kept, 0, bytes);
    return kept;
}

void *hak_large_alloc(size_t bytes, size_t alignment, bool clear) {
    bool fits_run = alignment <= LARGEST_RUN_ALIGNMENT && bytes <= LONGEST_RUN_BYTES;
    bool prefers_run = fits_run && ((alignment <= HAK_SUPER_SLAB_BYTES && bytes <= hak_knob(run_limit_bytes)) ||
                                    !hak_page_policy_may_map());
    void *block = prefers_run ? alloc_run(bytes, alignment, clear) : NULL;
    if (block == NULL) block = alloc_mapping(bytes, alignment, clear);
    /* No address space or mapping left, but there may be units: at worst, all the program's memory is there, free. */
    return block == NULL && fits_run && !prefers_run ? alloc_run(bytes, alignment, clear) : block;
}

/* ---- Freeing ------------------------------------------------------------------------------------------------------ */

/* The caller has the run, and only its units afterwards. Returns how many. */
static uint32_t end_run(struct hak_slab *run) {
    size_t bytes = bytes_of_run(run), whole_bytes = hak_align_up(bytes, HAK_UNIT_BYTES);
    uint32_t units = units_for(bytes);
    if (hak_atomic_load(&run->purged_pages, relaxed) != 0)
        hak_count_growth((whole_bytes - bytes) / hak_os_page_bytes());
    hak_atomic_store(&run->state, HAK_SLAB_NONE, relaxed);
    hak_atomic_store(&run->run_pages, 0, relaxed);
    hak_region_mark(run, units, HAK_CLASS_NONE, HAK_CLASS_NONE);
    return units;
}

/* The caller has the run, and gives up its units; `moved` says that they have no memory any more. */
static void give_up_run(struct hak_slab *run, bool moved) {
    uint32_t units = end_run(run);
    if (moved) hak_region_release_fresh(run, units);
    else hak_region_release(run, units);
}

/* Gets at a run, unless somebody else is. */
static bool begin_change(struct hak_slab *run) {
    uint32_t state = run_live;
    /* Acquire pairs with alloc_run and end_change. */
    return hak_atomic_cas(&run->state, &state, run_busy, acquire, relaxed);
}

static void end_change(struct hak_slab *run) {
    uint32_t state = run_busy;
    /* Release pairs with begin_change and free_run: what was purged was so before. Acquire pairs with free_run: the program is
     * done with the run. */
    if (!hak_atomic_cas(&run->state, &state, run_live, release, acquire) && state == run_freed) give_up_run(run, false);
}

static bool free_run(struct hak_slab *run) {
    for (uint32_t state = run_live;;) {
        if (state == run_live) {
            /* Of two threads that free the run at once, one gets it. Acquire pairs with end_change. */
            if (hak_atomic_cas(&run->state, &state, HAK_SLAB_NONE, acquire, relaxed)) break;
        } else if (state == run_busy) {
            /* Release pairs with end_change. */
            if (hak_atomic_cas(&run->state, &state, run_freed, release, relaxed)) return true;
        } else {
            return false;
        }
    }
    give_up_run(run, false);
    hak_page_policy_after_release();
    return true;
}

struct hak_slab *hak_large_free_unit(const struct hak_place *place) {
    struct hak_slab *run = place->slab;
    uint32_t state = run_live;
    /* Acquire pairs with end_change. */
    if (!hak_atomic_cas(&run->state, &state, HAK_SLAB_NONE, acquire, relaxed)) return NULL;
    end_run(run);
    return run;
}

void hak_large_recover_run(struct hak_slab *run) {
    uint32_t state = hak_atomic_load(&run->state, relaxed);
    if (state == run_busy) hak_atomic_store(&run->state, run_live, relaxed);
    else if (state == run_freed) give_up_run(run, false);
}

static size_t tail_bytes_of(const struct hak_slab *run) {
    size_t bytes = bytes_of_run(run);
    return hak_align_up(bytes, HAK_UNIT_BYTES) - bytes;
}

size_t hak_large_tail_bytes(const struct hak_range *range, uint32_t unit) {
    const struct hak_slab *run = &range->slabs[unit];
    if (hak_atomic_load(&run->state, relaxed) != run_live || hak_atomic_load(&run->purged_pages, relaxed) != 0)
        return 0;
    return tail_bytes_of(run);
}

size_t hak_large_purge_tail(struct hak_range *range, uint32_t unit) {
    struct hak_slab *run = &range->slabs[unit];
    if (hak_large_tail_bytes(range, unit) == 0 || !begin_change(run)) return 0;
    size_t tail_bytes = tail_bytes_of(run);
    uintptr_t tail = hak_region_start_of(range, run) + bytes_of_run(run);
    bool purged = tail_bytes != 0 && hak_page_policy_purge(range, tail, tail_bytes, false);
    if (purged) hak_atomic_store(&run->purged_pages, 1, relaxed);
    end_change(run);
    return purged ? tail_bytes : 0;
}

static bool free_mapping(uintptr_t start, size_t bytes) {
    if (!hak_directory_replace(start, hak_entry_for_mapping(bytes), HAK_ENTRY_NONE)) return false;
    hak_mapping_cache_put(start, bytes);
    hak_page_policy_after_release();
    return true;
}

bool hak_large_free(const struct hak_place *place) {
    return place->kind == HAK_PLACE_RUN ? free_run(place->slab) : free_mapping(place->start, place->bytes);
}

/* ---- Resizing ----------------------------------------------------------------------------------------------------- */

/* A mapping has grown. */
static void count_larger(size_t have_bytes, size_t bytes) {
    if (bytes > have_bytes) hak_count_growth((bytes - have_bytes) / hak_os_page_bytes());
}

/* Moves a mapping to a place with more room, by changing page tables. `entry_bytes` is what the directory says of it, 0 for
 * nothing: then it has no entry if the move fails. */
static void *move_mapping(uintptr_t start, size_t entry_bytes, size_t have_bytes, size_t bytes) {
    void *target = hak_os_reserve(bytes, HAK_GRANULE_BYTES);
    if (target == NULL) return NULL;
    if (!hak_directory_set((uintptr_t)target, hak_entry_for_mapping(bytes))) {
        hak_os_unmap(target, bytes);
        return NULL;
    }
    /* The entry goes before the addresses do: another thread may get them at once. */
    if (entry_bytes != 0) hak_directory_set(start, HAK_ENTRY_NONE);
    if (hak_os_remap((void *)start, have_bytes, bytes, target)) {
        count_larger(have_bytes, bytes);
        return target;
    }
    if (entry_bytes != 0) hak_directory_set(start, hak_entry_for_mapping(entry_bytes));
    hak_directory_replace((uintptr_t)target, hak_entry_for_mapping(bytes), HAK_ENTRY_NONE);
    return NULL;
}

/* Gives a run whose neighbours are taken a mapping of its own, which then grows by changes of page tables alone. Its pages
 * first move to a mapping that is as large as the run: a mapping can be moved elsewhere and grow in one step, a
 * part of one can't. */
static void *move_run(const struct hak_place *place, size_t bytes) {
    if (place->bytes < LEAST_MOVED_BYTES || !hak_page_policy_may_map()) return NULL;
    /* With what lies behind its last page: the units are to be empty. */
    size_t have_bytes = hak_align_up(place->bytes, HAK_UNIT_BYTES);
    hak_page_policy_make_one_mapping(hak_region_range_of_record(place->slab), place->start, have_bytes);
    void *between = hak_os_reserve(have_bytes, HAK_GRANULE_BYTES);
    if (between == NULL || !hak_os_move_pages((void *)place->start, have_bytes, between)) return NULL;
    void *moved = move_mapping((uintptr_t)between, 0, have_bytes, hak_align_up(bytes, hak_os_page_bytes()));
    if (moved != NULL) return moved;
    memcpy((void *)place->start, between, place->bytes);
    hak_os_unmap(between, have_bytes);
    return NULL;
}

static bool extend_run(struct hak_slab *run, uint32_t have, uint32_t want) {
    if (!hak_region_extend(run, have, want - have)) return false;
    struct hak_slab *tail = run + have;
    hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
    hak_region_mark(tail, want - have, HAK_CLASS_RUN_BODY, HAK_CLASS_RUN_BODY);
    return true;
}

static void shorten_run(struct hak_slab *run, uint32_t have, uint32_t want) {
    struct hak_slab *tail = run + want;
    hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
    hak_region_mark(tail, have - want, HAK_CLASS_NONE, HAK_CLASS_NONE);
    hak_region_release(tail, have - want);
    hak_page_policy_after_release();
}

static void *resize_run(const struct hak_place *place, size_t bytes) {
    struct hak_slab *run = place->slab;
    if (bytes <= HAK_SMALL_MAX) return NULL;
    if (hak_align_up(bytes, hak_os_page_bytes()) == place->bytes) return (void *)place->start;
    if (!begin_change(run)) return bytes < place->bytes ? (void *)place->start : NULL;
    uint32_t have = units_for(place->bytes), want = bytes > LONGEST_RUN_BYTES ? 0 : units_for(bytes);
    if (want == 0 || (want > have && !extend_run(run, have, want))) {
        void *moved = move_run(place, bytes);
        if (moved != NULL) give_up_run(run, true);
        else end_change(run);
        return moved;
    }
    if (want < have) shorten_run(run, have, want);
    set_bytes_of_run(run, bytes);
    end_change(run);
    return (void *)place->start;
}

static void *resize_mapping(const struct hak_place *place, size_t bytes) {
    bytes = hak_align_up(bytes, hak_os_page_bytes());
    if (bytes == place->bytes) return (void *)place->start;
    if (bytes <= HAK_SMALL_MAX) return NULL;
    if (hak_os_remap((void *)place->start, place->bytes, bytes, NULL)) {
        count_larger(place->bytes, bytes);
        hak_directory_set(place->start, hak_entry_for_mapping(bytes)); /* can't fail: the entry exists */
        return (void *)place->start;
    }
    if (bytes < place->bytes) return (void *)place->start;
    return move_mapping(place->start, place->bytes, place->bytes, bytes);
}

void *hak_large_resize(const struct hak_place *place, size_t bytes) {
    return place->kind == HAK_PLACE_RUN ? resize_run(place, bytes) : resize_mapping(place, bytes);
}

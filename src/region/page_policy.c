#include "region/page_policy.h"

#include "base/knobs.h"
#include "os/os.h"
#include "region/directory.h"
#include "region/mapping_cache.h"
#include "region/region.h"

HAK_ATOMIC(bool) hak_memory_is_tight;
HAK_ATOMIC(uint64_t) hak_memory_tight_count, hak_memory_limit_bytes;

void hak_page_policy_configure(uint64_t huge_pages, uint64_t prefault, uint64_t lazy_purge) {
    hak_atomic_store(&hak_knobs.huge_page_mode, huge_pages, relaxed);
    hak_atomic_store(&hak_knobs.prefault_mode, prefault, relaxed);
    hak_atomic_store(&hak_knobs.lazy_purge_mode, lazy_purge, relaxed);
    hak_os_has_huge_pages();
}

/* ---- Mappings ------------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint64_t) border_count; /* between SuperSlabs with and without huge pages; a guess under contention */

/* A range and its tables are a few mappings, kept mappings at most as many as there are places. */
enum { OTHER_MAPPINGS = 256 };

/* No kernel is set to allow less than twice as many. The limit is in a file, which a program in a sandbox must not open. */
enum { FEW_MAPPINGS = 1024 };

static bool fits_budget(uint64_t more) {
    uint64_t have = hak_atomic_load(&hak_mapping_count, relaxed) + hak_atomic_load(&border_count, relaxed);
    uint64_t want = have + OTHER_MAPPINGS + more;
    return want <= FEW_MAPPINGS || want <= hak_os_mapping_limit() / 2;
}

bool hak_page_policy_may_map(void) { return fits_budget(1); }

static uintptr_t start_of_super_slab(const struct hak_range *range, uint32_t super_slab) {
    return range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
}

static bool is_huge(const struct hak_range *range, uint32_t super_slab) {
    return (hak_atomic_load(&range->huge[super_slab / 64], relaxed) >> super_slab % 64 & 1) != 0;
}

/* How many borders more there are when a SuperSlab becomes what it is not. */
static int border_change(const struct hak_range *range, uint32_t super_slab, bool huge) {
    bool before = super_slab > 0 && is_huge(range, super_slab - 1);
    bool after = super_slab + 1 < range->super_slab_limit && is_huge(range, super_slab + 1);
    return (before == huge ? -1 : 1) + (after == huge ? -1 : 1);
}

static void set_huge(struct hak_range *range, uint32_t super_slab, bool huge) {
    uint64_t bit = (uint64_t)1 << super_slab % 64;
    HAK_ATOMIC(uint64_t) *word = &range->huge[super_slab / 64];
    uint64_t change = (uint64_t)(int64_t)border_change(range, super_slab, huge);
    /* Relaxed: a hint. Whoever purges has the units from somebody who got them after this. */
    uint64_t old = huge ? hak_atomic_fetch_or(word, bit, relaxed) : hak_atomic_fetch_and(word, ~bit, relaxed);
    if (((old & bit) != 0) != huge) hak_atomic_fetch_add(&border_count, change, relaxed);
}

/* Tells the kernel about SuperSlabs `first`..`end`, whose bits are not all the same or are to change. */
static bool refuse_huge(struct hak_range *range, uint32_t first, uint32_t end) {
    if (!hak_os_refuse_huge_pages((void *)start_of_super_slab(range, first), (end - first) * HAK_SUPER_SLAB_BYTES))
        return false;
    for (uint32_t i = first; i < end; i++)
        if (is_huge(range, i)) set_huge(range, i, false);
    return true;
}

void hak_page_policy_make_one_mapping(struct hak_range *range, uintptr_t start, size_t bytes) {
    uint32_t first = (uint32_t)((start - range->start) / HAK_SUPER_SLAB_BYTES),
             end = (uint32_t)((start + bytes - 1 - range->start) / HAK_SUPER_SLAB_BYTES) + 1, huge_count = 0;
    for (uint32_t i = first; i < end; i++) huge_count += is_huge(range, i);
    if (huge_count != 0 && huge_count != end - first) refuse_huge(range, first, end);
}

bool hak_page_policy_merge_mappings(void) {
    bool any = false;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        struct hak_range *range = hak_region_range(i);
        bool has_huge = false;
        for (uint32_t group = 0; group * 64 < range->super_slab_limit && !has_huge; group++)
            has_huge = hak_atomic_load(&range->huge[group], relaxed) != 0;
        if (has_huge && refuse_huge(range, 0, range->super_slab_limit)) any = true;
    }
    return any;
}

/* ---- Growing -------------------------------------------------------------------------------------------------------- */

/* In each group of SuperSlabs one is a sample, which is looked at when those from the fourth after it on begin to be used. By
 * then the program has touched what it will touch. */
enum { SAMPLE = 4, SAMPLE_AHEAD = 8, MANY_SUPER_SLABS = 64 };

static uint32_t group_of_samples(uint32_t super_slab) { return super_slab < MANY_SUPER_SLABS ? 16 : MANY_SUPER_SLABS; }

static bool is_in_dense_heap(const struct hak_range *range, uint32_t super_slab) {
    if ((uint64_t)super_slab * HAK_SUPER_SLAB_BYTES < hak_knob(growth_floor_bytes) || super_slab < SAMPLE_AHEAD)
        return false;
    if (super_slab % group_of_samples(super_slab) == SAMPLE) return false;
    uint32_t before = super_slab - SAMPLE_AHEAD, sample = before - before % group_of_samples(before) + SAMPLE;
    size_t resident = hak_os_resident_bytes((void *)start_of_super_slab(range, sample), (size_t)HAK_SUPER_SLAB_BYTES);
    return resident >= HAK_SUPER_SLAB_BYTES / 4 * 3;
}

static bool ask_for_huge(struct hak_range *range, uint32_t super_slab) {
    if (is_huge(range, super_slab)) return true;
    int more = border_change(range, super_slab, true);
    if (more > 0 && !fits_budget((uint64_t)more)) return false;
    if (!hak_os_ask_for_huge_pages((void *)start_of_super_slab(range, super_slab), HAK_SUPER_SLAB_BYTES)) return false;
    set_huge(range, super_slab, true);
    return true;
}

/* Units populated from the start of a SuperSlab. */
static uint32_t populate(const struct hak_range *range, uint32_t super_slab, bool all) {
    uint64_t share = hak_knob(fault_ahead_share), heap_bytes = (uint64_t)super_slab * HAK_SUPER_SLAB_BYTES;
    uint64_t units = all ? HAK_UNITS_PER_SUPER_SLAB : share == 0 ? 0 : heap_bytes / share >> HAK_UNIT_SHIFT;
    if (units > HAK_UNITS_PER_SUPER_SLAB) units = HAK_UNITS_PER_SUPER_SLAB;
    if (units == 0 || !hak_os_populate((void *)start_of_super_slab(range, super_slab), units << HAK_UNIT_SHIFT))
        return 0;
    return (uint32_t)units;
}

uint32_t hak_page_policy_begin_use(struct hak_range *range, uint32_t super_slab) {
    uint64_t mode = hak_knob(huge_page_mode);
    bool prefault = hak_knob(prefault_mode) != 0, is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    bool is_dense = !is_tight && (prefault || mode == HAK_HUGE_ON || is_in_dense_heap(range, super_slab));
    if (!is_dense) {
        if (is_huge(range, super_slab)) refuse_huge(range, super_slab, super_slab + 1);
        return 0;
    }
    bool huge = mode != HAK_HUGE_OFF && hak_os_has_huge_pages() && ask_for_huge(range, super_slab);
    if (huge && !prefault) return HAK_UNITS_PER_SUPER_SLAB; /* with the first touch */
    uint32_t populated = populate(range, super_slab, prefault);
    return huge ? HAK_UNITS_PER_SUPER_SLAB : populated;
}

/* ---- Using again ---------------------------------------------------------------------------------------------------- */

/* A SuperSlab is looked at when it has been used again so often that a huge page would have been worth its cost, about; if it is not
 * dense then, after twice as many uses, some times. */
enum { FIRST_LOOK = 8, LAST_LOOK = 256 };

static bool is_time_to_look(uint32_t uses) {
    return uses >= FIRST_LOOK && uses <= LAST_LOOK && (uses & (uses - 1)) == 0;
}

bool hak_page_policy_use_again(struct hak_range *range, uint32_t super_slab) {
    if (is_huge(range, super_slab) || hak_knob(huge_page_mode) == HAK_HUGE_OFF || !hak_os_has_huge_pages() ||
        hak_atomic_load(&hak_memory_is_tight, relaxed))
        return false;
    if (!is_time_to_look(hak_atomic_fetch_add(&range->super_slabs[super_slab].uses, 1, relaxed) + 1)) return false;
    size_t resident = hak_os_resident_bytes((void *)start_of_super_slab(range, super_slab), HAK_SUPER_SLAB_BYTES);
    return resident >= HAK_SUPER_SLAB_BYTES / 16 * 15;
}

bool hak_page_policy_make_huge(struct hak_range *range, uint32_t super_slab) {
    return ask_for_huge(range, super_slab) &&
           hak_os_purge((void *)start_of_super_slab(range, super_slab), HAK_SUPER_SLAB_BYTES);
}

/* ---- Mappings of large objects -------------------------------------------------------------------------------------- */

void hak_page_policy_begin_mapping(void *start, size_t bytes) {
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) return;
    if (hak_knob(huge_page_mode) == HAK_HUGE_ON && hak_os_has_huge_pages()) hak_os_ask_for_huge_pages(start, bytes);
    if (hak_knob(prefault_mode) != 0) hak_os_populate(start, bytes);
}

/* ---- Giving back ---------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint64_t) period_start_ms;
static HAK_ATOMIC(uint64_t) fewest_dirty_units; /* in this period; a guess that two threads may make worse, not wrong */

static HAK_ATOMIC(uint64_t) next_sweep_ms; /* later than now when the kernel has refused to take memory */

static HAK_ATOMIC(bool) was_ever_lazy;

bool hak_page_policy_was_ever_lazy(void) { return hak_atomic_load(&was_ever_lazy, relaxed); }

bool hak_page_policy_may_break(const struct hak_range *range, uint32_t super_slab, size_t free_bytes) {
    return free_bytes >= HAK_SUPER_SLAB_BYTES / 8 || !is_huge(range, super_slab);
}

/* The stretch of huge SuperSlabs around one: refusing all of it adds no border. */
static bool refuse_stretch(struct hak_range *range, uint32_t super_slab) {
    uint32_t first = super_slab, end = super_slab + 1;
    if (border_change(range, super_slab, false) > 0 && !fits_budget(2)) {
        while (first > 0 && is_huge(range, first - 1)) first--;
        while (end < range->super_slab_limit && is_huge(range, end)) end++;
    }
    return refuse_huge(range, first, end);
}

bool hak_page_policy_purge(struct hak_range *range, uintptr_t start, size_t bytes, bool may_be_lazy) {
    uint32_t super_slab = (uint32_t)((start - range->start) / HAK_SUPER_SLAB_BYTES);
    if (is_huge(range, super_slab)) { /* P1 */
        refuse_stretch(range, super_slab);
        if (bytes < HAK_SUPER_SLAB_BYTES) hak_os_break_huge_page((void *)start);
    }
    hak_atomic_store(&range->super_slabs[super_slab].uses, 0, relaxed);
    bool lazy = may_be_lazy && hak_knob(lazy_purge_mode) != 0 && !hak_atomic_load(&hak_memory_is_tight, relaxed);
    if (!lazy) return hak_os_purge((void *)start, bytes);
    /* Relaxed: released with the units. */
    hak_atomic_store(&was_ever_lazy, true, relaxed);
    return hak_os_purge_lazily((void *)start, bytes);
}
HAK_ATOMIC(uint32_t) hak_page_policy_has_background;

void hak_page_policy_after_taking(uint64_t dirty_units_left) {
    if (dirty_units_left < hak_atomic_load(&fewest_dirty_units, relaxed))
        hak_atomic_store(&fewest_dirty_units, dirty_units_left, relaxed);
}

/* By so many units per SuperSlab the heap of a program that does the same all the time goes up and down: such a program
 * needs no system calls. A sixteenth of a heap at most. */
enum { FEW_IDLE_UNITS = HAK_UNITS_PER_SUPER_SLAB / 16 };

void hak_page_policy_after_release(void) {
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed),
             limit = is_tight ? 0 : hak_knob(dirty_limit_bytes) / HAK_UNIT_BYTES;
    uint64_t now_ms = hak_os_clock_ms(), start_ms = hak_atomic_load(&period_start_ms, relaxed);
    if (dirty_units > limit && now_ms >= hak_atomic_load(&next_sweep_ms, relaxed) &&
        hak_region_purge_units(dirty_units - limit / 2, is_tight) == 0)
        hak_atomic_store(&next_sweep_ms, now_ms + hak_knob(decay_ms), relaxed);
    if (hak_atomic_load(&hak_page_policy_has_background, relaxed) != 0) return;
    if (now_ms - start_ms < hak_knob(decay_ms)) return;
    /* One thread ends the period. */
    if (!hak_atomic_cas(&period_start_ms, &start_ms, now_ms, relaxed, relaxed)) return;
    uint64_t idle_units = hak_atomic_exchange(&fewest_dirty_units, dirty_units, relaxed);
    if (start_ms != 0 && idle_units >= FEW_IDLE_UNITS * hak_region_sums().super_slabs)
        hak_region_purge_units(idle_units, false);
    hak_mapping_cache_age();
}

size_t hak_page_policy_end_period(uint64_t least_bytes) {
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed);
    uint64_t idle_units = hak_atomic_exchange(&fewest_dirty_units, dirty_units, relaxed);
    size_t bytes = hak_mapping_cache_age();
    if (idle_units == 0 || idle_units * HAK_UNIT_BYTES < least_bytes) return bytes;
    return bytes + hak_region_purge_units(idle_units, false);
}

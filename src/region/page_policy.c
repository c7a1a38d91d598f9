#include "region/page_policy.h"

#include "base/counters.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "region/density.h"
#include "region/directory.h"
#include "region/governor.h"
#include "region/heap_count.h"
#include "region/region.h"

void hak_page_policy_configure(uint64_t huge_pages, uint64_t prefault, uint64_t lazy_purge) {
    hak_atomic_store(&hak_knobs.huge_page_mode, huge_pages, relaxed);
    hak_atomic_store(&hak_knobs.prefault_mode, prefault, relaxed);
    hak_atomic_store(&hak_knobs.lazy_purge_mode, lazy_purge, relaxed);
    hak_os_has_huge_pages();
}

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint64_t) border_count; /* between SuperSlabs with and without huge pages; a guess under contention */

/* Parts of SuperSlabs that are not mapped: no fewer than there are since the last count, for each change may add one.
 * Counted anew when the budget seems to be spent, and enough has changed to be worth it. */
static HAK_ATOMIC(uint64_t) gap_count, gap_changes;
static HAK_ATOMIC(uint64_t) cut_count;       /* of these, what lies behind runs (region/large.c); a guess */
static HAK_ATOMIC(uint64_t) apart_count;     /* mappings more that stay when gaps have been mapped again */
static HAK_ATOMIC(uint64_t) forbidden_count; /* mappings more because of what is inaccessible, of the secure build */
static bool is_forked_child;

/* A range and its tables are a few mappings, kept mappings at most as many as there are places. */
enum { OTHER_MAPPINGS = 256 };

/* Half of what a kernel allows that nobody has set otherwise. What it is set to stands in a file, which is not opened:
 * those who set it allow more, and where it is less P2 holds all the same. */
enum { MOST_MAPPINGS = 65530 / 2, MAPPINGS_FOR_UNITS = 2048, MOST_FORBIDDEN = 1024 };

/* Whoever maps a part again between two others makes one mapping of the three, most often. The kernel leaves them apart
 * in a forked child; and where the part was in the middle of a gap, and was touched before what is around it is
 * mapped. */
enum { APART_MAPPINGS = 2 };

static uint64_t count_mappings(void) {
    uint64_t gaps = hak_atomic_load(&gap_count, relaxed);
    if (is_forked_child) gaps *= APART_MAPPINGS; /* as many as they will be once they are mapped */
    return hak_atomic_load(&hak_mapping_count, relaxed) + hak_atomic_load(&border_count, relaxed) + gaps +
           hak_atomic_load(&apart_count, relaxed) + (HAK_SECURE ? hak_atomic_load(&forbidden_count, relaxed) : 0) +
           OTHER_MAPPINGS;
}

/* Of absent units in the first range, the only one that has some. */
static uint64_t count_gaps(const struct hak_range *range) {
    uint32_t super_slabs = hak_region_super_slabs(range), last = 0;
    uint64_t gaps = 0;
    for (uint32_t i = 0; i < super_slabs; i++) {
        uint32_t absent = hak_units_absent(hak_atomic_load(&range->super_slabs[i].free_units, relaxed));
        gaps += hak_bit_count(absent & ~(absent << 1 | last));
        last = absent >> 31;
    }
    return gaps;
}

static HAK_COLD void recount_gaps(void) {
    enum { LEAST_CHANGES = 1024 };
    uint64_t changes = hak_atomic_load(&gap_changes, relaxed);
    const struct hak_range *range = hak_region_range(0);
    if (range == NULL || changes < LEAST_CHANGES + hak_region_super_slabs(range) / 64 ||
        !hak_atomic_cas(&gap_changes, &changes, 0, relaxed, relaxed))
        return;
    hak_atomic_store(&gap_count, count_gaps(range) + hak_atomic_load(&cut_count, relaxed), relaxed);
}

static bool fits_budget(uint64_t more) {
    if (HAK_LIKELY(count_mappings() + more <= MOST_MAPPINGS)) return true;
    recount_gaps();
    if (count_mappings() + more <= MOST_MAPPINGS) return true;
    hak_atomic_fetch_add(&gap_changes, 1, relaxed); /* who is refused again and again has it counted again */
    return false;
}

static void count_gap_change(void) {
    hak_atomic_fetch_add(&gap_count, 1, relaxed);
    hak_atomic_fetch_add(&gap_changes, 1, relaxed);
}

/* Mappings more in a SuperSlab because of units that are apart: these, and what is behind those that are side by
 * side. */
static uint64_t mappings_of(uint32_t apart) { return hak_bit_count(apart) + hak_bit_count(apart & ~(apart << 1)); }

/* Says of the units in a part of a SuperSlab whether they are. */
static void set_apart(struct hak_range *range, uintptr_t start, size_t bytes, bool apart) {
    size_t first = (start - range->start) >> HAK_UNIT_SHIFT, end = (start + bytes - 1 - range->start) >> HAK_UNIT_SHIFT;
    uint32_t units = (uint32_t)(hak_low_bits((uint32_t)(end - first + 1)) << first % HAK_UNITS_PER_SUPER_SLAB);
    HAK_ATOMIC(uint32_t) *word = &range->super_slabs[first / HAK_UNITS_PER_SUPER_SLAB].apart;
    uint32_t old = apart ? hak_atomic_fetch_or(word, units, relaxed) : hak_atomic_fetch_and(word, ~units, relaxed);
    uint32_t now = apart ? old | units : old & ~units;
    if (old != now) hak_atomic_fetch_add(&apart_count, mappings_of(now) - mappings_of(old), relaxed);
}

void hak_page_policy_count_cut(int32_t change) { hak_atomic_fetch_add(&cut_count, (uint64_t)(int64_t)change, relaxed); }

void hak_page_policy_after_fork(void) { is_forked_child = true; }

bool hak_page_policy_may_map(void) { return fits_budget(1); }

/* Tails are many and small: some mappings stay for units. */
bool hak_page_policy_may_cut(void) { return fits_budget(MAPPINGS_FOR_UNITS); }

static uintptr_t start_of_super_slab(const struct hak_range *range, uint32_t super_slab) {
    return range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
}

static bool is_huge(const struct hak_range *range, uint32_t super_slab) {
    return (hak_atomic_load(&range->groups[super_slab / HAK_SUPER_SLABS_PER_GROUP].huge, relaxed) >> super_slab % 64 &
            1) != 0;
}

/* How many borders more there are when a SuperSlab becomes what it is not. */
static int border_change(const struct hak_range *range, uint32_t super_slab, bool huge) {
    bool before = super_slab > 0 && is_huge(range, super_slab - 1);
    bool after = super_slab + 1 < hak_region_super_slabs(range) && is_huge(range, super_slab + 1);
    return (before == huge ? -1 : 1) + (after == huge ? -1 : 1);
}

static void set_huge(struct hak_range *range, uint32_t super_slab, bool huge) {
    uint64_t bit = (uint64_t)1 << super_slab % 64;
    HAK_ATOMIC(uint64_t) *word = &range->groups[super_slab / HAK_SUPER_SLABS_PER_GROUP].huge;
    uint64_t change = (uint64_t)(int64_t)border_change(range, super_slab, huge);
    /* Relaxed: a hint. Whoever purges has the units from somebody who got them after this. */
    uint64_t old = huge ? hak_atomic_fetch_or(word, bit, relaxed) : hak_atomic_fetch_and(word, ~bit, relaxed);
    if (((old & bit) != 0) != huge) hak_atomic_fetch_add(&border_count, change, relaxed);
}

/* P1 */
bool hak_page_policy_is_huge(const struct hak_range *range, uint32_t super_slab) {
    return is_huge(range, super_slab) || hak_atomic_load(&range->super_slabs[super_slab].is_unbroken, relaxed) != 0;
}

/* Tells the kernel about SuperSlabs `first`..`end`, whose bits are not all the same or are to change. None is a
 * hole. */
static bool refuse_huge(struct hak_range *range, uint32_t first, uint32_t end) {
    if (!hak_os_refuse_huge_pages((void *)start_of_super_slab(range, first), (end - first) * HAK_SUPER_SLAB_BYTES))
        return false;
    for (uint32_t i = first; i < end; i++) {
        if (!is_huge(range, i)) continue;
        hak_atomic_store(&range->super_slabs[i].is_unbroken, 1, relaxed);
        set_huge(range, i, false);
    }
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
        uint32_t super_slabs = hak_region_super_slabs(range);
        for (uint32_t first = 0; first < super_slabs; first++) {
            uint32_t end = first;
            if (hak_atomic_load(&range->groups[first / HAK_SUPER_SLABS_PER_GROUP].huge, relaxed) == 0) {
                first |= HAK_SUPER_SLABS_PER_GROUP - 1;
                continue;
            }
            while (end < super_slabs && is_huge(range, end)) end++;
            if (end == first) continue;
            any |= refuse_huge(range, first, end);
            first = end;
        }
    }
    return any;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* In each group of SuperSlabs one is a sample, which is looked at when those from the fourth after it on begin to be
 * used. By then the program has been handed what it will get of it. */
enum { SAMPLE = 4, SAMPLE_AHEAD = 8, MANY_SUPER_SLABS = 64 };

static uint32_t group_of_samples(uint32_t super_slab) { return super_slab < MANY_SUPER_SLABS ? 16 : MANY_SUPER_SLABS; }

/* What was taken for blocks in use that nobody touches can't go back when memory becomes tight. So it may be no more
 * than this share of a limit. */
enum { LIMIT_SHARE = 8 };

static bool is_in_dense_heap(const struct hak_range *range, uint32_t super_slab) {
    uint64_t heap_bytes = (uint64_t)super_slab * HAK_SUPER_SLAB_BYTES,
             limit_bytes = hak_atomic_load(&hak_memory_limit_bytes, relaxed);
    if (heap_bytes < hak_knob(growth_floor_bytes) || super_slab < SAMPLE_AHEAD) return false;
    /* Blocks in bins are handed out for slabs (S2), and not touched: where threads are many, that is most of them. */
    if (hak_heaps_are_many()) return false;
    if (super_slab % group_of_samples(super_slab) == SAMPLE) return false;
    uint32_t before = super_slab - SAMPLE_AHEAD, sample = before - before % group_of_samples(before) + SAMPLE;
    return hak_density_is_handed_out(range, sample, limit_bytes != 0 && heap_bytes >= limit_bytes / LIMIT_SHARE);
}

static bool ask_for_huge(struct hak_range *range, uint32_t super_slab) {
    if (is_huge(range, super_slab)) return true;
    int more = border_change(range, super_slab, true);
    if (more > 0 && !fits_budget((uint64_t)more)) return false;
    if (!hak_os_ask_for_huge_pages((void *)start_of_super_slab(range, super_slab), HAK_SUPER_SLAB_BYTES)) return false;
    set_huge(range, super_slab, true);
    return true;
}

static void *first_page(const struct hak_range *range, uint32_t super_slab) {
    return (void *)start_of_super_slab(range, super_slab);
}

/* If huge pages have been worth it, unless somebody wants them whatever they take. */
static bool may_ask(void) { return hak_knob(huge_page_mode) == HAK_HUGE_ON || hak_governor_may_ask(); }

/* Of a SuperSlab without memory, whose first page is the caller's. */
static bool try_huge(struct hak_range *range, uint32_t super_slab) {
    if (!may_ask() || !ask_for_huge(range, super_slab)) return false;
    hak_governor_took(hak_os_touch(first_page(range, super_slab)));
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

/* Where each slab has a guard, a SuperSlab of slabs is no huge page: it would be made only to be broken. */
static uint64_t huge_mode_of_slabs(void) {
    return hak_slab_guard_bytes() != 0 && hak_os_may_guard() ? HAK_HUGE_OFF : hak_knob(huge_page_mode);
}

uint32_t hak_page_policy_begin_use(struct hak_range *range, uint32_t super_slab) {
    uint64_t mode = huge_mode_of_slabs();
    bool may_be_huge = mode != HAK_HUGE_OFF && hak_os_has_huge_pages(), prefault = hak_knob(prefault_mode) != 0;
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    bool is_dense = !is_tight && (prefault || mode == HAK_HUGE_ON || is_in_dense_heap(range, super_slab));
    if (!is_dense) {
        if (is_huge(range, super_slab)) refuse_huge(range, super_slab, super_slab + 1);
        /* What was purged lazily may be there still. */
        if (!hak_page_policy_was_ever_lazy()) hak_atomic_store(&range->super_slabs[super_slab].is_unbroken, 0, relaxed);
        return 0;
    }
    bool huge = may_be_huge && try_huge(range, super_slab);
    if (huge && !prefault) return HAK_UNITS_PER_SUPER_SLAB; /* with the first touch */
    uint32_t populated = populate(range, super_slab, prefault);
    return huge ? HAK_UNITS_PER_SUPER_SLAB : populated;
}

/* ---- Using again ------------------------------------------------------------------------------------------------- */

/* A SuperSlab is looked at when it has been used again so often that a huge page would have been worth its cost,
 * about; if it is not dense then, after twice as many uses, some times. */
enum { FIRST_LOOK = 8, LAST_LOOK = 256 };

static bool is_time_to_look(uint32_t uses) {
    return uses >= FIRST_LOOK && uses <= LAST_LOOK && (uses & (uses - 1)) == 0;
}

bool hak_page_policy_use_again(struct hak_range *range, uint32_t super_slab) {
    if (is_huge(range, super_slab) || huge_mode_of_slabs() == HAK_HUGE_OFF || !hak_os_has_huge_pages() ||
        hak_atomic_load(&hak_memory_is_tight, relaxed))
        return false;
    return is_time_to_look(hak_atomic_fetch_add(&range->super_slabs[super_slab].uses, 1, relaxed) + 1);
}

bool hak_page_policy_make_huge(struct hak_range *range, uint32_t super_slab) {
    if (!hak_density_has_contents(range, super_slab) || !may_ask() || !ask_for_huge(range, super_slab) ||
        !hak_os_purge(first_page(range, super_slab), HAK_SUPER_SLAB_BYTES))
        return false;
    hak_governor_took(hak_os_touch(first_page(range, super_slab)));
    return true;
}

/* ---- Mappings of large objects ----------------------------------------------------------------------------------- */

void hak_page_policy_begin_mapping(void *start, size_t bytes) {
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) return;
    if (hak_knob(huge_page_mode) == HAK_HUGE_ON && hak_os_has_huge_pages()) hak_os_ask_for_huge_pages(start, bytes);
    if (hak_knob(prefault_mode) != 0) hak_os_populate(start, bytes);
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(bool) was_ever_lazy;

bool hak_page_policy_was_ever_lazy(void) { return hak_atomic_load(&was_ever_lazy, relaxed); }

bool hak_page_policy_may_break(const struct hak_range *range, uint32_t super_slab, size_t free_bytes) {
    return free_bytes >= HAK_SUPER_SLAB_BYTES / 8 || !hak_page_policy_is_huge(range, super_slab);
}

/* The stretch of huge SuperSlabs around one: refusing all of it adds no border. */
static bool refuse_stretch(struct hak_range *range, uint32_t super_slab) {
    uint32_t first = super_slab, end = super_slab + 1;
    if (border_change(range, super_slab, false) > 0 && !fits_budget(2)) {
        while (first > 0 && is_huge(range, first - 1)) first--;
        while (end < hak_region_super_slabs(range) && is_huge(range, end)) end++;
    }
    return refuse_huge(range, first, end);
}

/* P1 */
static void give_up_huge_page(struct hak_range *range, uintptr_t start, size_t bytes, bool lazy) {
    uint32_t super_slab = (uint32_t)((start - range->start) / HAK_SUPER_SLAB_BYTES);
    if (hak_page_policy_is_huge(range, super_slab)) {
        bool is_part = bytes < HAK_SUPER_SLAB_BYTES;
        if (is_huge(range, super_slab)) refuse_stretch(range, super_slab);
        if (is_part) hak_os_break_huge_page((void *)start);
        if (is_part || !lazy) hak_atomic_store(&range->super_slabs[super_slab].is_unbroken, 0, relaxed);
    }
    hak_atomic_store(&range->super_slabs[super_slab].uses, 0, relaxed);
}

bool hak_page_policy_purge(struct hak_range *range, uintptr_t start, size_t bytes, bool may_be_lazy) {
    bool lazy = may_be_lazy && hak_knob(lazy_purge_mode) != 0 && !hak_atomic_load(&hak_memory_is_tight, relaxed);
    give_up_huge_page(range, start, bytes, lazy);
    if (!lazy) return hak_os_purge((void *)start, bytes);
    /* Relaxed: released with the units. */
    hak_atomic_store(&was_ever_lazy, true, relaxed);
    return hak_os_purge_lazily((void *)start, bytes);
}

bool hak_page_policy_guard(struct hak_range *range, uintptr_t start, size_t bytes) {
    if (!hak_os_may_guard()) return false;
    give_up_huge_page(range, start, bytes, false);
    return hak_os_guard((void *)start, bytes);
}

bool hak_page_policy_forbid(uintptr_t page) {
    if (hak_atomic_load(&forbidden_count, relaxed) >= MOST_FORBIDDEN || !fits_budget(1)) return false;
    if (!hak_os_forbid((void *)page, hak_os_page_bytes())) return false;
    hak_atomic_fetch_add(&forbidden_count, 1, relaxed);
    return true;
}

/* Of each SuperSlab that the memory is in. */
static void give_up_huge_pages(struct hak_range *range, uintptr_t start, size_t bytes) {
    for (uintptr_t end = start + bytes, part_end; start < end; start = part_end) {
        part_end = hak_align_down(start - range->start, HAK_SUPER_SLAB_BYTES) + HAK_SUPER_SLAB_BYTES + range->start;
        if (part_end > end) part_end = end;
        give_up_huge_page(range, start, part_end - start, false);
    }
}

/* Between two others. */
enum { FORBIDDEN_MAPPINGS = 2 };

/* Purged first: that may write. Locked memory would get pages again when it is opened. */
static enum hak_closed close_as_forbidden(uintptr_t start, size_t bytes) {
    if (!fits_budget(FORBIDDEN_MAPPINGS) || hak_os_is_locked((void *)start) || !hak_os_purge((void *)start, bytes))
        return HAK_NOT_CLOSED;
    if (!hak_os_forbid((void *)start, bytes)) /* a part may be */
        return hak_os_commit((void *)start, bytes) ? HAK_NOT_CLOSED : HAK_CLOSED_IN_PART;
    hak_atomic_fetch_add(&forbidden_count, FORBIDDEN_MAPPINGS, relaxed);
    return HAK_CLOSED_AS_FORBIDDEN;
}

enum hak_closed hak_page_policy_close(struct hak_range *range, uintptr_t start, size_t bytes) {
    give_up_huge_pages(range, start, bytes);
    if (hak_os_may_guard() && hak_os_guard((void *)start, bytes)) return HAK_CLOSED_BY_GUARDS;
    /* A part may have guards now. */
    if (hak_os_may_guard()) return hak_os_unguard((void *)start, bytes) ? HAK_NOT_CLOSED : HAK_CLOSED_IN_PART;
    return close_as_forbidden(start, bytes);
}

bool hak_page_policy_open(uintptr_t start, size_t bytes, enum hak_closed how) {
    if (how == HAK_CLOSED_BY_GUARDS) return hak_os_unguard((void *)start, bytes);
    if (how == HAK_CLOSED_IN_PART) return hak_os_unguard((void *)start, bytes) && hak_os_commit((void *)start, bytes);
    hak_atomic_fetch_sub(&forbidden_count, FORBIDDEN_MAPPINGS, relaxed);
    return hak_os_commit((void *)start, bytes);
}

void hak_page_policy_count_allowed(void) { hak_atomic_fetch_sub(&forbidden_count, 1, relaxed); }

bool hak_page_policy_unmap(struct hak_range *range, uintptr_t start, size_t bytes) {
    if (!fits_budget(1)) return false;
    give_up_huge_page(range, start, bytes, false);
    if (!hak_os_unmap((void *)start, bytes)) return false;
    if (bytes >= HAK_UNIT_BYTES) set_apart(range, start, bytes, false);
    count_gap_change();
    return true;
}

enum hak_os_mapped hak_page_policy_map_again(uintptr_t start, size_t bytes, bool in_the_middle) {
    enum hak_os_mapped result = hak_os_map_at((void *)start, bytes);
    if (result != HAK_OS_MAPPED) return result;
    hak_os_refuse_huge_pages((void *)start, bytes);
    if (in_the_middle || is_forked_child) set_apart(hak_region_range(0), start, bytes, true);
    if (in_the_middle) count_gap_change();
    else hak_atomic_fetch_add(&gap_changes, 1, relaxed); /* a gap less, perhaps */
    return result;
}

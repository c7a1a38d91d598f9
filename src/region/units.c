/* Units: taking them from SuperSlabs and giving them back, and their memory to the kernel. See R1 and R2 in region.h. */
#include "region/units.h"

#include <string.h>

#include "base/check.h"
#include "base/counters.h"
#include "os/os.h"
#include "region/page_policy.h"

HAK_ATOMIC(uint64_t) hak_dirty_units;

enum { SCAN_LIMIT = 64, DIRTY_SCAN_LIMIT = 4 }; /* SuperSlabs looked into that may be too fragmented, per call */

#define DIRTY_BITS UINT64_C(0x00000000ffffffff)
#define FRESH_BITS UINT64_C(0xffffffff00000000)

/* ---- Hints -------------------------------------------------------------------------------------------------------- */

/* What a hint says of a SuperSlab's word: dirty units, or a run of at least 2^hint free ones. */
static bool hint_holds(uint64_t word, uint32_t hint) {
    uint32_t free_units = (uint32_t)word | (uint32_t)(word >> 32);
    if (hint == HAK_DIRTY_HINT) return (word & DIRTY_BITS) != 0;
    for (uint32_t i = 0; i < hint; i++) free_units &= free_units >> (1u << i);
    return free_units != 0;
}

/* A hint may be set while it does not hold, but is set whenever it holds and nobody is about to set it: who makes it hold sets it;
 * who finds that it doesn't clears it, and sets it again if that was too early. */
static void hint_set(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    /* Release, after the units were added: who clears the hint after this sees them. */
    hak_atomic_fetch_or(&range->unit_hints[super_slab / 64][hint], (uint64_t)1 << (super_slab % 64), release);
}

static void hint_clear(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    /* Acquire pairs with hint_set: one of the two comes first, and either the hint is set afterwards, or the look at the units
     * below sees them. */
    hak_atomic_fetch_and(&range->unit_hints[super_slab / 64][hint], ~((uint64_t)1 << (super_slab % 64)), acquire);
    if (hint_holds(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed), hint))
        hint_set(range, hint, super_slab);
}

/* ---- One SuperSlab ------------------------------------------------------------------------------------------------ */

/* What is wanted of a SuperSlab, and where to look for one. */
struct request {
    uint32_t count, alignment;
    bool clear;
    uint64_t kinds;
    uint32_t hint;
    uint32_t limit; /* SuperSlabs that don't have it before the search ends */
};

static void add_units(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    /* Release pairs with take_units: the record and the memory are the next owner's. */
    uint64_t before = hak_atomic_fetch_or(&range->super_slabs[super_slab].free_units, units, release);
    HAK_ASSERT((before & units) == 0);
    for (uint32_t hint = 0; hint < HAK_UNIT_HINTS; hint++)
        if (hint_holds(before | units, hint) && !hint_holds(before, hint)) hint_set(range, hint, super_slab);
}

/* Units are used that had no memory. */
static void count_growth(uint32_t units) { hak_count_growth(units * (HAK_UNIT_BYTES / hak_os_page_bytes())); }

static void after_taking(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t after) {
    uint32_t dirty_taken = hak_bit_count((before ^ after) & DIRTY_BITS),
             fresh_taken = hak_bit_count((before ^ after) & FRESH_BITS);
    if (fresh_taken != 0) count_growth(fresh_taken);
    if (dirty_taken == 0) return;
    hak_page_policy_after_taking(hak_atomic_fetch_sub(&hak_dirty_units, dirty_taken, relaxed) - dirty_taken);
    /* Other hints are cleared by the search that finds them wrong. */
    if ((after & DIRTY_BITS) == 0) hint_clear(range, HAK_DIRTY_HINT, super_slab);
}

/* Makes units zero that the caller has just taken, those of them that are not known to be. */
static void clear_units(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    uint32_t dirty = (uint32_t)units;
    if (hak_page_policy_was_ever_lazy()) dirty |= (uint32_t)(units >> 32);
    uintptr_t start = range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
    while (dirty != 0) {
        uint32_t first = hak_lowest_bit(dirty), count = hak_lowest_bit(~((uint64_t)dirty >> first));
        memset((void *)(start + ((uintptr_t)first << HAK_UNIT_SHIFT)), 0, (size_t)count << HAK_UNIT_SHIFT);
        dirty &= ~(uint32_t)(hak_low_bits(count) << first);
    }
}

/* The first units of a SuperSlab have got memory: those of them that are fresh and free are dirty now. */
static void make_dirty(struct hak_range *range, uint32_t super_slab, uint32_t count) {
    uint64_t mask = hak_low_bits(count) << 32;
    /* Relaxed: a change of the word as it lies there hands on what others have released. */
    uint64_t units = (hak_atomic_fetch_and(&range->super_slabs[super_slab].free_units, ~mask, relaxed) & mask) >> 32;
    if (units == 0) return;
    count_growth(hak_bit_count(units));
    hak_atomic_fetch_add(&hak_dirty_units, hak_bit_count(units), relaxed);
    add_units(range, super_slab, units);
}

/* Slabs, and runs no longer than they are, have begun to use a SuperSlab none of whose units has memory. Longer runs may be
 * touched here and there only. */
static void begin_use(struct hak_range *range, uint32_t super_slab, uint32_t count) {
    enum { LONGEST_SLAB = 4 };
    if (count > LONGEST_SLAB) return;
    uint32_t resident = hak_page_policy_begin_use(range, super_slab);
    if (resident != 0) make_dirty(range, super_slab, resident);
}

/* Slabs or runs use a SuperSlab again all of whose units are dirty, of which the caller has taken all but `rest`. True when all
 * of its memory reads as zero now. */
static bool use_again(struct hak_range *range, uint32_t super_slab, uint64_t rest) {
    uint64_t others = hak_atomic_load(&hak_dirty_units, relaxed) - hak_bit_count(rest);
    /* Nobody shall make a SuperSlab because of what is held back here. */
    if (rest != 0 && others < HAK_UNITS_PER_SUPER_SLAB) return false;
    if (!hak_page_policy_use_again(range, super_slab)) return false;
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    /* Acquire pairs with add_units: nobody writes to this memory any more. */
    if (rest != 0 && !hak_atomic_cas(word, &rest, 0, acquire, relaxed)) return false;
    bool is_zero = hak_page_policy_make_huge(range, super_slab);
    if (rest != 0) add_units(range, super_slab, rest);
    return is_zero;
}

/* After the caller has taken units for a slab or a run. */
static void prepare_units(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t after, bool clear) {
    after_taking(range, super_slab, before, after);
    bool is_zero = before == DIRTY_BITS && use_again(range, super_slab, after);
    if (clear && !is_zero) clear_units(range, super_slab, before ^ after);
}

/* Takes `count` adjacent units of the kinds in `kinds`; returns the first one's position, or 32. */
static uint32_t take_units(struct hak_range *range, uint32_t super_slab, const struct request *request) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    uint64_t before = hak_atomic_load(word, relaxed), after;
    uint32_t position;
    do {
        uint64_t usable = before & request->kinds;
        position = hak_find_bit_run((uint32_t)usable | (uint32_t)(usable >> 32), request->count, request->alignment);
        if (position == 32) return 32;
        uint64_t units = hak_low_bits(request->count) << position;
        after = before & ~(units | units << 32);
        /* Acquire pairs with add_units: the last owner is done with them. */
    } while (!hak_atomic_cas(word, &before, after, acquire, relaxed));
    prepare_units(range, super_slab, before, after, request->clear);
    if (before == FRESH_BITS) begin_use(range, super_slab, request->count);
    return position;
}

static struct hak_slab *record_of(struct hak_range *range, uint32_t unit) {
    struct hak_slab *record = &range->slabs[unit];
    hak_atomic_store(&record->range, (uint8_t)range->number, relaxed);
    return record;
}

/* ---- Searching ---------------------------------------------------------------------------------------------------- */

/* From the bottom of a range. */
static struct hak_slab *take_from_range(struct hak_range *range, const struct request *request) {
    /* Relaxed: whoever takes units acquires what add_units released, their metadata included. */
    uint32_t super_slabs = hak_atomic_load(&range->super_slab_count, relaxed), misses = 0;
    for (uint32_t group = 0; group * 64 < super_slabs; group++) {
        uint64_t candidates = hak_atomic_load(&range->unit_hints[group][request->hint], relaxed);
        for (; candidates != 0; candidates &= candidates - 1) {
            uint32_t super_slab = group * 64 + hak_lowest_bit(candidates);
            uint32_t position = take_units(range, super_slab, request);
            if (position < 32) return record_of(range, super_slab * HAK_UNITS_PER_SUPER_SLAB + position);
            if (!hint_holds(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed), request->hint))
                hint_clear(range, request->hint, super_slab);
            else if (++misses == request->limit) return NULL;
        }
    }
    return NULL;
}

static struct hak_slab *search(const struct request *request) {
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        struct hak_slab *record = take_from_range(range, request);
        if (record != NULL) return record;
    }
    return NULL;
}

/* Free units of either kind: first where a run is that is surely long enough, so that no SuperSlab is made while there is such
 * a run anywhere; then where there may be one. */
static struct hak_slab *search_free(uint32_t count, uint32_t alignment, bool clear) {
    uint32_t enough = count + alignment - 1, sure = 0;
    while (sure + 1 < HAK_RUN_HINTS && 1u << sure < enough) sure++;
    struct request request = {count, alignment, clear, DIRTY_BITS | FRESH_BITS, sure, UINT32_MAX};
    struct hak_slab *record = search(&request);
    if (record != NULL || sure == 0) return record;
    request.hint = hak_highest_bit(count);
    request.limit = SCAN_LIMIT;
    return search(&request);
}

static struct hak_slab *take_from_new(uint32_t count) {
    uint32_t super_slab;
    struct hak_range *range = hak_region_new_super_slab(&super_slab);
    if (range == NULL) return NULL;
    count_growth(count);
    if (count < 32) add_units(range, super_slab, FRESH_BITS & ~(hak_low_bits(count) << 32));
    begin_use(range, super_slab, count);
    return record_of(range, super_slab * HAK_UNITS_PER_SUPER_SLAB);
}

struct hak_slab *hak_region_acquire(uint32_t count, uint32_t alignment, enum hak_unit_source source, bool clear) {
    struct request request = {count, alignment, clear, DIRTY_BITS, HAK_DIRTY_HINT, DIRTY_SCAN_LIMIT};
    switch (source) {
    case HAK_UNITS_FRESH:
        request = (struct request){count, alignment, clear, FRESH_BITS, 0, SCAN_LIMIT};
        return search(&request);
    case HAK_UNITS_DIRTY: return search(&request);
    case HAK_UNITS_FREE: return search_free(count, alignment, clear);
    case HAK_UNITS_NEW_SUPER: return take_from_new(count);
    case HAK_UNITS_LAST_RESORT: break;
    }
    request = (struct request){count, alignment, clear, DIRTY_BITS | FRESH_BITS, 0, UINT32_MAX};
    return search(&request);
}

/* ---- Spans: units that may cross the borders of SuperSlabs ---------------------------------------------------------- */

/* The part of units `unit`..`end` that lies in the SuperSlab of `unit`: its length, and its bits there. */
static uint32_t part_of_span(uint32_t unit, uint32_t end, uint64_t *bits) {
    uint32_t position = unit % HAK_UNITS_PER_SUPER_SLAB, count = HAK_UNITS_PER_SUPER_SLAB - position;
    if (count > end - unit) count = end - unit;
    *bits = hak_low_bits(count) << position;
    return count;
}

/* Takes exactly these units of a SuperSlab. */
static bool take_exactly(struct hak_range *range, uint32_t super_slab, uint64_t units, bool clear) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    uint64_t before = hak_atomic_load(word, relaxed), after;
    do {
        if (((before | before >> 32) & units) != units) return false;
        after = before & ~(units | units << 32);
        /* Acquire pairs with add_units. */
    } while (!hak_atomic_cas(word, &before, after, acquire, relaxed));
    prepare_units(range, super_slab, before, after, clear);
    return true;
}

/* Units that have no memory: of SuperSlabs that the caller has made, or moved elsewhere. */
static void add_fresh(struct hak_range *range, uint32_t unit, uint32_t end) {
    uint64_t bits;
    for (uint32_t count; unit < end; unit += count) {
        count = part_of_span(unit, end, &bits);
        add_units(range, unit / HAK_UNITS_PER_SUPER_SLAB, bits << 32);
    }
}

static void release_span(struct hak_range *range, uint32_t unit, uint32_t end) {
    uint64_t bits;
    for (uint32_t i = unit; i < end; i++)
        HAK_WALK(hak_atomic_load(&range->page_map[i], relaxed) == HAK_CLASS_NONE); /* R2 */
    hak_atomic_fetch_add(&hak_dirty_units, end - unit, relaxed);
    for (uint32_t count; unit < end; unit += count) {
        count = part_of_span(unit, end, &bits);
        add_units(range, unit / HAK_UNITS_PER_SUPER_SLAB, bits);
    }
}

/* All or none; when not, *failed_at is at or below a unit that was not free. */
static bool take_span(struct hak_range *range, uint32_t unit, uint32_t end, bool clear, uint32_t *failed_at) {
    uint64_t bits;
    uint32_t at = unit;
    for (uint32_t count; at < end; at += count) {
        count = part_of_span(at, end, &bits);
        if (take_exactly(range, at / HAK_UNITS_PER_SUPER_SLAB, bits, clear)) continue;
        *failed_at = at;
        if (at > unit) release_span(range, unit, at);
        return false;
    }
    return true;
}

static uint32_t units_of(const struct hak_range *range) {
    /* Relaxed: as in take_from_range. */
    return hak_atomic_load(&range->super_slab_count, relaxed) * HAK_UNITS_PER_SUPER_SLAB;
}

static uint32_t free_units_of(const struct hak_range *range, uint32_t super_slab) {
    uint64_t word = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
    return (uint32_t)word | (uint32_t)(word >> 32);
}

/* The first unit at or behind `unit` whose address is a multiple of `alignment` units. */
static uint32_t aligned_unit(const struct hak_range *range, uint32_t unit, uint32_t alignment) {
    size_t before = range->start >> HAK_UNIT_SHIFT;
    return (uint32_t)(hak_align_up(before + unit, alignment) - before);
}

/* From `unit` on, the lowest `count` adjacent units that are free, as far as one can see without taking them: more than a
 * SuperSlab has. UINT32_MAX when there are none. */
static uint32_t find_span(const struct hak_range *range, uint32_t unit, uint32_t count, uint32_t alignment) {
    uint32_t super_slabs = units_of(range) / HAK_UNITS_PER_SUPER_SLAB, start = aligned_unit(range, unit, alignment);
    for (uint32_t i = unit / HAK_UNITS_PER_SUPER_SLAB; i < super_slabs; i++) {
        uint32_t border = i * HAK_UNITS_PER_SUPER_SLAB, taken = ~free_units_of(range, i);
        if (border < start) taken &= ~(uint32_t)hak_low_bits(start - border < 32 ? start - border : 32);
        uint32_t end = border + (taken == 0 ? 32 : hak_lowest_bit(taken));
        if (end >= start && end - start >= count) return start;
        if (taken != 0) start = aligned_unit(range, border + hak_highest_bit(taken) + 1, alignment);
        bool is_group = i % 64 == 63 && start <= border + 32;
        while (is_group && i + 64 < super_slabs && /* nothing is free in the next 64 */
               hak_atomic_load(&range->unit_hints[(i + 1) / 64][0], relaxed) == 0) {
            i += 64;
            start = aligned_unit(range, (i + 1) * HAK_UNITS_PER_SUPER_SLAB, alignment);
        }
    }
    return UINT32_MAX;
}

static struct hak_slab *take_span_from_range(struct hak_range *range, uint32_t count, uint32_t alignment, bool clear) {
    uint32_t unit = find_span(range, 0, count, alignment), failed_at;
    while (unit != UINT32_MAX) {
        if (take_span(range, unit, unit + count, clear, &failed_at)) return record_of(range, unit);
        unit = find_span(range, failed_at + 1, count, alignment);
    }
    return NULL;
}

/* Takes units `unit`..`end`, making SuperSlabs for what lies above the upper end of the range. All or none. */
static bool take_and_grow(struct hak_range *range, uint32_t unit, uint32_t end, bool clear) {
    uint32_t units = units_of(range), limit = units < end ? units : end, failed_at;
    if (unit < limit && !take_span(range, unit, limit, clear, &failed_at)) return false;
    if (limit == end) return true;
    uint32_t count_now = units / HAK_UNITS_PER_SUPER_SLAB, more = (end - units - 1) / HAK_UNITS_PER_SUPER_SLAB + 1;
    if (hak_region_grow(range, &count_now, more)) {
        count_growth(end - (unit < limit ? limit : unit));
        add_fresh(range, units, unit);
        add_fresh(range, end, units + more * HAK_UNITS_PER_SUPER_SLAB);
        return true;
    }
    if (unit < limit) release_span(range, unit, limit);
    return false;
}

/* The unit where the free units at the upper end of a range begin. */
static uint32_t upper_end(const struct hak_range *range) {
    uint32_t super_slab = units_of(range) / HAK_UNITS_PER_SUPER_SLAB;
    while (super_slab > 0) {
        uint32_t taken = ~free_units_of(range, super_slab - 1);
        if (taken != 0) return (super_slab - 1) * HAK_UNITS_PER_SUPER_SLAB + hak_highest_bit(taken) + 1;
        super_slab--;
    }
    return 0;
}

/* When there is none, *has_room tells whether that is for lack of memory, not of addresses. */
static struct hak_slab *take_span_at_end(struct hak_range *range, uint32_t count, uint32_t alignment, bool clear,
                                         bool *has_room) {
    uint32_t limit = range->super_slab_limit * HAK_UNITS_PER_SUPER_SLAB, units;
    do {
        units = units_of(range);
        uint32_t unit = aligned_unit(range, upper_end(range), alignment);
        *has_room = unit <= limit && count <= limit - unit;
        if (!*has_room) return NULL;
        if (take_and_grow(range, unit, unit + count, clear)) return record_of(range, unit);
    } while (units_of(range) != units); /* another thread was faster */
    return NULL;
}

struct hak_slab *hak_region_acquire_span(uint32_t count, uint32_t alignment, bool clear) {
    struct hak_slab *record = NULL;
    bool has_room = false;
    uint32_t ranges = 0;
    for (; ranges < HAK_RANGE_LIMIT && hak_region_range(ranges) != NULL && record == NULL; ranges++)
        record = take_span_from_range(hak_region_range(ranges), count, alignment, clear);
    for (uint32_t i = 0; i < ranges && record == NULL && !has_room; i++)
        record = take_span_at_end(hak_region_range(i), count, alignment, clear, &has_room);
    if (record != NULL || has_room || ranges == HAK_RANGE_LIMIT) return record;
    uint32_t super_slabs = (uint32_t)(((uint64_t)count + alignment - 2) / HAK_UNITS_PER_SUPER_SLAB) + 1;
    struct hak_range *range = hak_region_add_range(ranges, super_slabs);
    return range == NULL ? NULL : take_span_at_end(range, count, alignment, clear, &has_room);
}

void hak_region_release(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first);
    release_span(range, unit, unit + count);
}

void hak_region_release_fresh(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first);
    add_fresh(range, unit, unit + count);
}

bool hak_region_extend(struct hak_slab *first, uint32_t have, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first) + have, limit = range->super_slab_limit * HAK_UNITS_PER_SUPER_SLAB;
    return count <= limit - unit && take_and_grow(range, unit, unit + count, false);
}

void hak_region_mark(struct hak_slab *first, uint32_t count, uint32_t first_class, uint32_t rest_class) {
    struct hak_range *range = hak_region_range_of_record(first);
    HAK_ATOMIC(uint8_t) *map = &range->page_map[hak_region_unit_of(range, first)];
    hak_atomic_store(&map[0], (uint8_t)first_class, relaxed);
    for (uint32_t i = 1; i < count; i++) hak_atomic_store(&map[i], (uint8_t)rest_class, relaxed);
}

/* Takes all dirty units of a SuperSlab, and gives them back as fresh, a system call for each run of neighbours. */
static size_t purge_super_slab(struct hak_range *range, uint32_t super_slab, bool all) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    uint32_t dirty = (uint32_t)hak_atomic_load(word, relaxed);
    if (!all && !hak_page_policy_may_break(range, super_slab, hak_bit_count(dirty) * HAK_UNIT_BYTES)) return 0;
    /* Acquire pairs with add_units: nobody writes to this memory any more. */
    uint64_t before = hak_atomic_fetch_and(word, FRESH_BITS, acquire), left = before & DIRTY_BITS;
    if (left == 0) return 0;
    after_taking(range, super_slab, before, before & FRESH_BITS);
    uintptr_t start = range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
    size_t purged_bytes = 0;
    while (left != 0) {
        uint32_t first = hak_lowest_bit(left), count = hak_lowest_bit(~(left >> first));
        uint64_t run = hak_low_bits(count) << first;
        size_t bytes = (size_t)count << HAK_UNIT_SHIFT;
        if (hak_page_policy_purge(range, start + ((uintptr_t)first << HAK_UNIT_SHIFT), bytes, true)) {
            purged_bytes += bytes;
            add_units(range, super_slab, run << 32);
        } else {
            hak_atomic_fetch_add(&hak_dirty_units, count, relaxed);
            add_units(range, super_slab, run);
        }
        left &= ~run;
    }
    return purged_bytes;
}

static size_t purge_range(struct hak_range *range, uint64_t want_bytes, bool all) {
    size_t bytes = 0;
    /* Relaxed: as in take_from_range. */
    uint32_t super_slabs = hak_atomic_load(&range->super_slab_count, relaxed);
    for (uint32_t group = (super_slabs + 63) / 64; group-- > 0 && bytes < want_bytes;) {
        uint64_t candidates = hak_atomic_load(&range->unit_hints[group][HAK_DIRTY_HINT], relaxed);
        while (candidates != 0 && bytes < want_bytes) {
            uint32_t highest = hak_highest_bit(candidates);
            bytes += purge_super_slab(range, group * 64 + highest, all);
            candidates &= ~((uint64_t)1 << highest);
        }
    }
    return bytes;
}

size_t hak_region_purge_units(uint64_t want, bool all) {
    size_t bytes = 0, want_bytes = want > SIZE_MAX >> HAK_UNIT_SHIFT ? SIZE_MAX : want << HAK_UNIT_SHIFT;
    for (uint32_t i = HAK_RANGE_LIMIT; i-- > 0 && bytes < want_bytes;) {
        struct hak_range *range = hak_region_range(i);
        if (range != NULL) bytes += purge_range(range, want_bytes - bytes, all);
    }
    return bytes;
}

bool hak_region_purge_pages(uintptr_t start, size_t bytes) {
    return hak_page_policy_purge(hak_region_range_of(start), start, bytes, false);
}

void hak_region_recover_after_fork(void) {
    uint64_t dirty_units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) {
        struct hak_range *range = hak_region_range(i);
        if (range == NULL) break;
        uint32_t super_slabs = hak_atomic_load(&range->super_slab_count, relaxed);
        for (uint32_t super_slab = 0; super_slab < super_slabs; super_slab++) {
            uint64_t units = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
            dirty_units += hak_bit_count(units & DIRTY_BITS);
            for (uint32_t hint = 0; hint < HAK_UNIT_HINTS; hint++)
                if (hint_holds(units, hint)) hint_set(range, hint, super_slab);
        }
    }
    hak_atomic_store(&hak_dirty_units, dirty_units, relaxed);
}

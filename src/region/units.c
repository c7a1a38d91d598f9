/* Units: taking them from SuperSlabs and giving them back, and their memory to the kernel. See R1 and R2 in
 * region.h. */
#include "region/units.h"

#include <string.h>

#include "base/check.h"
#include "base/counters.h"
#include "base/knobs.h"
#include "os/os.h"
#include "region/hints.h"
#include "region/in_hand.h"
#include "region/owed.h"
#include "region/density.h"
#include "region/page_policy.h"

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_dirty_units;

enum { SCAN_LIMIT = 64, DIRTY_SCAN_LIMIT = 4 }; /* SuperSlabs looked into that may be too fragmented, per call */
enum { FORMER_SCAN_LIMIT = 16 };                /* the same, for units that were a slab of a class */
enum { LOOKS_PER_TURN = 256 };                  /* at SuperSlabs, of a purge by turns */
enum { STALE_LIMIT = 256 };                     /* span hints found wrong, and cleared, per search */

#define DIRTY_BITS UINT64_C(0x00000000ffffffff)
#define FRESH_BITS UINT64_C(0xffffffff00000000)

/* ---- Hints ------------------------------------------------------------------------------------------------------- */

/* Of free units where runs of 2^hint begin: where runs of twice the length do. */
static uint32_t twice_as_long(uint32_t runs, uint32_t hint) { return runs & runs >> (1u << hint); }

/* How many hints of runs hold. */
static uint32_t run_hints_of(uint32_t free_units) {
    uint32_t hints = 0;
    for (uint32_t runs = free_units; runs != 0; hints++)
        runs = hints < HAK_RUN_HINTS - 1 ? twice_as_long(runs, hints) : 0;
    return hints;
}

/* What a hint says of a SuperSlab's word: dirty units, or a run of at least 2^hint free ones. */
static bool word_holds(uint64_t word, uint32_t hint) {
    return hint == HAK_DIRTY_HINT ? hak_units_dirty(word) != 0 : run_hints_of(hak_units_free(word)) > hint;
}

/* A span hint of a SuperSlab says that its upper border lies in a run of at least so many free units. All borders in a
 * run have the hints of its length: so who takes units sets none, and a search from below meets the run at its
 * beginning. Who takes the unit at a border clears that one's, and need not look again: the border is in no run until
 * he gives that unit back. Who gives units back sees how long the run is that they are in now. Of two who give back at
 * once parts of one run, the second one sees what the first did. */
static const uint32_t span_units[HAK_SPAN_HINTS] = {33, 48, 64, 96, 128, 192, 256, 384, 512};
enum { LONGEST_SPAN = 512 }; /* further nobody looks: borders farther off are in a run so long without his units */

static uint32_t free_units_of(const struct hak_range *range, uint32_t super_slab) {
    /* Seq_cst pairs with add_units: of two who give back neighbours, one sees both. */
    uint64_t word = hak_atomic_load(&range->super_slabs[super_slab].free_units, seq_cst);
    return hak_units_free(word);
}

/* How many of the lowest, or highest, units are free, up to the first that is not. */
static uint32_t lowest_free(uint32_t free_units) { return hak_lowest_bit(~(uint64_t)free_units); }
static uint32_t highest_free(uint32_t free_units) {
    return free_units == UINT32_MAX ? 32 : 31 - hak_highest_bit((uint32_t)~free_units);
}

/* Free units below a SuperSlab, and above it, up to the first that is not free. */
static uint32_t free_below(const struct hak_range *range, uint32_t super_slab) {
    uint32_t units = 0;
    for (uint32_t free_units; units < LONGEST_SPAN && super_slab-- > 0; units += 32)
        if ((free_units = free_units_of(range, super_slab)) != UINT32_MAX) return units + highest_free(free_units);
    return units;
}
static uint32_t free_above(const struct hak_range *range, uint32_t super_slab) {
    uint32_t units = 0, super_slabs = hak_region_super_slabs(range);
    for (uint32_t free_units; units < LONGEST_SPAN && ++super_slab < super_slabs; units += 32)
        if ((free_units = free_units_of(range, super_slab)) != UINT32_MAX) return units + lowest_free(free_units);
    return units;
}

/* Free units next to units `unit`..`end` of it, below and above. */
static uint32_t free_before(const struct hak_range *range, uint32_t unit) {
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB, below = unit % HAK_UNITS_PER_SUPER_SLAB, units = 0;
    if (below != 0) units = highest_free(free_units_of(range, super_slab) << (HAK_UNITS_PER_SUPER_SLAB - below));
    return units < below ? units : units + free_below(range, super_slab);
}
static uint32_t free_behind(const struct hak_range *range, uint32_t end) {
    uint32_t super_slab = end / HAK_UNITS_PER_SUPER_SLAB, before = end % HAK_UNITS_PER_SUPER_SLAB, units = 0;
    if (before == 0) return free_above(range, super_slab - 1);
    units = lowest_free(free_units_of(range, super_slab) >> before);
    return units < HAK_UNITS_PER_SUPER_SLAB - before ? units : units + free_above(range, super_slab);
}

/* How many span hints the borders in a run of so many free units have. */
static uint32_t span_hints_of(uint32_t units) {
    uint32_t hints = 0;
    while (hints < HAK_SPAN_HINTS && units >= span_units[hints]) hints++;
    return hints;
}

/* Sets the hints of the borders in a run of free units, `first`..`end`. */
static void set_span_hints(struct hak_range *range, uint32_t first, uint32_t end) {
    uint32_t border = first / HAK_UNITS_PER_SUPER_SLAB, border_end = (end - 1) / HAK_UNITS_PER_SUPER_SLAB;
    if (border == border_end) return;
    hak_hint_set_all_down(range, HAK_SPAN_HINT, HAK_SPAN_HINT + span_hints_of(end - first), border, border_end);
}

#define ENDS UINT32_C(0x80000001) /* the lowest unit of a SuperSlab, and the highest */

/* Of a SuperSlab that has `free_units`, some of which, `added`, were not free before. */
static void add_to_spans(struct hak_range *range, uint32_t super_slab, uint32_t free_units, uint32_t added) {
    if ((free_units & ENDS) == 0) return; /* it reaches neither border */
    uint32_t low = lowest_free(free_units), high = highest_free(free_units), first = super_slab * 32, end = first + 32;
    bool is_low = (added & hak_low_bits(low)) != 0, is_high = (added & ~hak_low_bits(32 - high)) != 0;
    uint32_t below = is_low ? free_below(range, super_slab) : 0, above = is_high ? free_above(range, super_slab) : 0;
    if (low == 32) {
        set_span_hints(range, first - below, end + above);
        return;
    }
    if (below != 0) set_span_hints(range, first - below, first + low);
    if (above != 0) set_span_hints(range, end - high, end + above);
}

/* Of the run that its upper border lies in. */
static uint32_t span_hints_at(const struct hak_range *range, uint32_t super_slab) {
    uint32_t below = free_below(range, super_slab + 1), above = below == 0 ? 0 : free_above(range, super_slab);
    return above == 0 ? 0 : span_hints_of(below + above);
}

/* Kinds of hints that are nested (I3 of hints.h). */
struct nested {
    uint32_t first, end;
};
static struct nested kinds_with(uint32_t hint) {
    if (hint >= HAK_SPAN_HINT) return (struct nested){HAK_SPAN_HINT, HAK_SPAN_HINT + HAK_SPAN_HINTS};
    if (hint == HAK_DIRTY_HINT) return (struct nested){HAK_DIRTY_HINT, HAK_DIRTY_HINT + 1};
    return (struct nested){0, HAK_RUN_HINTS};
}

/* The end of those of them that hold. */
static uint32_t hints_held(const struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    if (hint >= HAK_SPAN_HINT) return HAK_SPAN_HINT + span_hints_at(range, super_slab);
    /* Seq_cst pairs with put_back and hak_hint_set_down: who saw the hint set, and so did not set it, is seen. */
    uint64_t word = hak_atomic_load(&range->super_slabs[super_slab].free_units, seq_cst);
    if (hint == HAK_DIRTY_HINT) return hak_units_dirty(word) != 0 ? HAK_DIRTY_HINT + 1 : HAK_DIRTY_HINT;
    return run_hints_of(hak_units_free(word));
}

static bool hint_holds(const struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    return hints_held(range, hint, super_slab) > hint;
}

/* I4 of in_hand.h: for one of its units. */
static void note(struct hak_range *range, uint32_t super_slab) {
    hak_hand_note(&range->slabs[(size_t)super_slab * HAK_UNITS_PER_SUPER_SLAB]);
}

/* To be called by who finds that it doesn't hold. */
static void hint_clear(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    struct nested kinds = kinds_with(hint);
    note(range, super_slab);
    hak_hint_clear_up(range, hint, kinds.end, super_slab);
    hak_hint_set_down(range, kinds.first, hints_held(range, hint, super_slab), super_slab);
}

/* The caller has taken units at the ends of a SuperSlab. */
static void leave_spans(struct hak_range *range, uint32_t super_slab, uint32_t taken) {
    enum { FIRST = HAK_SPAN_HINT, END = HAK_SPAN_HINT + HAK_SPAN_HINTS };
    if ((taken & 1) != 0 && super_slab != 0) hak_hint_clear_up(range, FIRST, END, super_slab - 1);
    if (taken >> 31 != 0) hak_hint_clear_up(range, FIRST, END, super_slab);
}

/* ---- One SuperSlab ----------------------------------------------------------------------------------------------- */

/* Kinds of free units. */
enum { DIRTY_UNITS = 1, FRESH_UNITS = 2, ABSENT_UNITS = 4, MAPPED_UNITS = DIRTY_UNITS | FRESH_UNITS, ANY_UNITS = 7 };

static uint32_t units_of_kinds(uint64_t word, uint32_t kinds) {
    uint32_t units = 0;
    if ((kinds & DIRTY_UNITS) != 0) units |= hak_units_dirty(word);
    if ((kinds & FRESH_UNITS) != 0) units |= hak_units_fresh(word);
    if ((kinds & ABSENT_UNITS) != 0) units |= hak_units_absent(word);
    return units;
}

/* What is wanted of a SuperSlab, and where to look for one. */
struct request {
    uint32_t count, alignment;
    bool clear;
    uint32_t kinds;
    uint32_t hint;
    uint32_t limit;  /* SuperSlabs that don't have it before the search ends */
    uint32_t former; /* the class that the units were a slab of last, or HAK_CLASS_NONE: of any */
};

/* Returns the word as it was. The hints are to be told. */
static uint64_t put_back(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    note(range, super_slab);
    /* Release pairs with take_units: the record and the memory are the next owner's. Seq_cst pairs with
     * free_units_of and hint_holds. */
    uint64_t before = hak_atomic_fetch_or(&range->super_slabs[super_slab].free_units, units, seq_cst);
    HAK_ASSERT((before & units) == 0);
    return before;
}

/* Sets the hints of a SuperSlab's word to which `units` were added. */
static void set_unit_hints(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t units) {
    hak_hint_set_down(range, 0, run_hints_of(hak_units_free(before | units)), super_slab);
    if (hak_units_dirty(before) == 0 && hak_units_dirty(units) != 0)
        hak_hint_set_down(range, HAK_DIRTY_HINT, HAK_DIRTY_HINT + 1, super_slab);
}

static void add_units(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    uint64_t before = put_back(range, super_slab, units), after = before | units;
    set_unit_hints(range, super_slab, before, units);
    add_to_spans(range, super_slab, hak_units_free(after), hak_units_free(units));
}

/* Units are used that had no memory. */
static void count_growth(uint32_t units) { hak_count_growth(units * (HAK_UNIT_BYTES / hak_os_page_bytes())); }

/* Of the units of a SuperSlab that are used now, those that went back before. Dirty ones, too: whoever begins to use a
 * SuperSlab has others of its units get memory with his (make_dirty). */
static void count_reused(struct hak_super_slab *record, uint32_t units) {
    uint32_t reused = hak_atomic_load(&record->given, relaxed) & units;
    if (HAK_LIKELY(reused == 0)) return;
    hak_atomic_fetch_and(&record->given, ~reused, relaxed);
    hak_count_reuse(hak_bit_count(reused) * (HAK_UNIT_BYTES / hak_os_page_bytes()));
}

static void count_taken(uint32_t dirty_units, uint32_t fresh_units) {
    if (fresh_units != 0) count_growth(fresh_units);
    if (dirty_units != 0)
        hak_owed_after_taking(hak_atomic_fetch_sub(&hak_dirty_units, dirty_units, relaxed) - dirty_units, dirty_units);
}

/* The caller has taken the last dirty units of a SuperSlab. Other hints are cleared by the search that finds them
 * wrong. */
static void clear_dirty_hint(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t after) {
    if (hak_units_dirty(before) != 0 && hak_units_dirty(after) == 0) hint_clear(range, HAK_DIRTY_HINT, super_slab);
}

/* `is_used`: to be used, and not given back at once. */
static void after_taking(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t after, bool is_used) {
    uint32_t taken = hak_units_free(before ^ after);
    if (HAK_UNLIKELY((taken & ENDS) != 0)) leave_spans(range, super_slab, taken);
    uint32_t dirty = hak_units_dirty(before ^ after), others = taken & ~dirty;
    count_taken(dirty == 0 ? 0 : hak_bit_count(dirty), others == 0 || !is_used ? 0 : hak_bit_count(others));
    if (is_used) count_reused(&range->super_slabs[super_slab], taken);
    clear_dirty_hint(range, super_slab, before, after);
}

/* What was made zero of late, by where it begins: a guess. A program that asks for the same zeros again at once gains
 * from memory, and these have 32 MiB at most. */
enum { RECENT_ZEROS = 16 };
static HAK_ATOMIC(uintptr_t) recent_zeros[RECENT_ZEROS];

static bool was_zero_of_late(uintptr_t start) {
    HAK_ATOMIC(uintptr_t) *place = &recent_zeros[start / HAK_MIB % RECENT_ZEROS];
    if (hak_atomic_load(place, relaxed) == start) return true;
    hak_atomic_store(place, start, relaxed);
    return false;
}

/* The caller has units `first` and up, of one SuperSlab. Who asks for much zero memory may touch little of it: where
 * that was so before, it goes back to the kernel, and gets memory again where it is touched. Not what is a huge page,
 * nor where the program wants to keep what it has used once (mallopt). */
static void make_zero(struct hak_range *range, uint32_t super_slab, uint32_t first, uint32_t count) {
    enum { MOST_WRITTEN_UNITS = 15 };
    uintptr_t start =
        range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES + ((uintptr_t)first << HAK_UNIT_SHIFT);
    size_t bytes = (size_t)count << HAK_UNIT_SHIFT;
    bool keeps_all = hak_knob_is_highest(dirty_limit_bytes);
    if (count > MOST_WRITTEN_UNITS && !keeps_all && !hak_page_policy_is_huge(range, super_slab) &&
        !was_zero_of_late(start) && hak_density_is_sparse(start, bytes) &&
        hak_page_policy_purge(range, start, bytes, false))
        return;
    memset((void *)start, 0, bytes);
}

/* Makes units zero that the caller has just taken, those of them that are not known to be. */
static void clear_units(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    uint32_t dirty = hak_units_dirty(units);
    if (hak_page_policy_was_ever_lazy()) dirty |= hak_units_fresh(units);
    while (dirty != 0) {
        uint32_t first = hak_lowest_bit(dirty), count = hak_lowest_bit(~((uint64_t)dirty >> first));
        make_zero(range, super_slab, first, count);
        dirty &= ~(uint32_t)(hak_low_bits(count) << first);
    }
}

/* The first units of a SuperSlab have got memory: those of them that are fresh and free are dirty now. */
static void make_dirty(struct hak_range *range, uint32_t super_slab, uint32_t count) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    uint64_t before = hak_atomic_load(word, relaxed), units;
    hak_in_hand_begin();
    do {
        units = hak_units_fresh(before) & hak_low_bits(count);
        /* Relaxed: a change of the word as it lies there hands on what others have released. */
    } while (units != 0 && !hak_atomic_cas(word, &before, before & ~(units << 32), relaxed, relaxed));
    if (units == 0) {
        hak_in_hand_keep();
        return;
    }
    count_growth(hak_bit_count(units));
    hak_atomic_fetch_add(&hak_dirty_units, hak_bit_count(units), relaxed);
    add_units(range, super_slab, units);
    hak_in_hand_end();
}

/* Slabs, and runs no longer than they are, have begun to use a SuperSlab none of whose units has memory. Longer runs
 * may be touched here and there only. */
static void begin_use(struct hak_range *range, uint32_t super_slab, uint32_t count) {
    enum { LONGEST_SLAB = 4 };
    if (count > LONGEST_SLAB) return;
    uint32_t resident = hak_page_policy_begin_use(range, super_slab);
    if (resident != 0) make_dirty(range, super_slab, resident);
}

/* Slabs or runs use a SuperSlab again all of whose units are dirty, of which the caller has taken all but `rest`; of
 * what it has taken so many are `uncounted`. True when all of its memory reads as zero now. */
static bool use_again(struct hak_range *range, uint32_t super_slab, uint64_t rest, uint32_t uncounted) {
    uint64_t others = hak_atomic_load(&hak_dirty_units, relaxed) - hak_bit_count(rest) - uncounted;
    /* Nobody shall make a SuperSlab because of what is held back here. */
    if (rest != 0 && others < HAK_UNITS_PER_SUPER_SLAB) return false;
    if (!hak_page_policy_use_again(range, super_slab)) return false;
    if (rest == 0) return hak_page_policy_make_huge(range, super_slab);
    hak_in_hand_begin();
    note(range, super_slab);
    /* Acquire pairs with add_units: nobody writes to this memory any more. */
    if (!hak_atomic_cas(&range->super_slabs[super_slab].free_units, &rest, 0, acquire, relaxed)) {
        hak_in_hand_keep();
        return false;
    }
    bool is_zero = hak_page_policy_make_huge(range, super_slab);
    add_units(range, super_slab, rest);
    hak_in_hand_end();
    return is_zero;
}

/* After the caller has taken units for a slab or a run, of a SuperSlab whose word was `before` then. */
static void prepare_units(struct hak_range *range, uint32_t super_slab, uint64_t before, uint64_t units, bool clear,
                          uint32_t uncounted) {
    uint64_t after = before & ~(units | units << 32);
    bool is_zero = before == DIRTY_BITS && use_again(range, super_slab, after, uncounted);
    if (clear && !is_zero) clear_units(range, super_slab, before ^ after);
}

/* What came of it when somebody tried to take or map units. */
enum attempt { TAKEN, MAPPED, RACED, REFUSED };

static enum hak_os_mapped map_run(const struct hak_range *range, uint32_t super_slab, uint32_t first, uint32_t count,
                                  bool in_the_middle) {
    uintptr_t start = range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
    return hak_page_policy_map_again(start + ((uintptr_t)first << HAK_UNIT_SHIFT), (size_t)count << HAK_UNIT_SHIFT,
                                     in_the_middle);
}

/* Maps absent units that the caller has, one by one: somebody else has a mapping in the place of one at least. Those
 * are nobody's from now on (R4); the others are given back. */
static void map_around(struct hak_range *range, uint32_t super_slab, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; i++) {
        enum hak_os_mapped result = map_run(range, super_slab, i, 1, false);
        uint64_t bit = (uint64_t)1 << i;
        if (result != HAK_OS_OCCUPIED)
            add_units(range, super_slab, result == HAK_OS_MAPPED ? bit << 32 : bit | bit << 32);
    }
}

/* How many absent units lie below one, up to the first that is not. */
static uint32_t absent_below(uint32_t absent, uint32_t unit) {
    return unit == 0 ? 0 : highest_free(absent << (HAK_UNITS_PER_SUPER_SLAB - unit));
}

/* Maps absent units of a word that is `before`, and gives them back as fresh ones. When the kernel doesn't, they are as
 * they were. Who has missed them meanwhile doesn't look again then: two that the kernel refuses would keep each other
 * looking. RACED: the word has changed. */
static enum attempt map_units(struct hak_range *range, uint32_t super_slab, uint64_t before, uint32_t units) {
    uint32_t first = hak_lowest_bit(units), count = hak_lowest_bit(~((uint64_t)units >> first)),
             absent = hak_units_absent(before), below = absent_below(absent, first);
    bool in_the_middle = below != 0 && first + count < HAK_UNITS_PER_SUPER_SLAB && (absent >> (first + count) & 1) != 0;
    if (in_the_middle && !hak_page_policy_may_map()) {
        first -= below;
        count += below;
        in_the_middle = false;
    }
    uint64_t run = hak_low_bits(count) << first, both = run | run << 32;
    hak_in_hand_begin();
    /* Relaxed: nobody has written to what is not mapped. */
    if (!hak_atomic_cas(&range->super_slabs[super_slab].free_units, &before, before & ~both, relaxed, relaxed)) {
        hak_in_hand_keep();
        return RACED;
    }
    enum hak_os_mapped result = map_run(range, super_slab, first, count, in_the_middle);
    if (result == HAK_OS_OCCUPIED) map_around(range, super_slab, first, count);
    else add_units(range, super_slab, result == HAK_OS_MAPPED ? run << 32 : both);
    if (result == HAK_OS_REFUSED) {
        hak_in_hand_keep();
        return REFUSED;
    }
    hak_in_hand_end();
    return MAPPED;
}

/* Takes units, both bits of each, if the word is *before. Where some are absent, it first tries to map these. Unless
 * they are TAKEN, *before is what the word is now. */
static enum attempt try_to_take(struct hak_range *range, uint32_t super_slab, uint64_t *before, uint64_t units) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    uint32_t absent = hak_units_absent(*before & units);
    if (HAK_UNLIKELY(absent != 0)) {
        enum attempt result = map_units(range, super_slab, *before, absent);
        *before = hak_atomic_load(word, relaxed);
        return result;
    }
    /* Acquire pairs with add_units: the last owner is done with them. */
    return hak_atomic_cas(word, before, *before & ~units, acquire, relaxed) ? TAKEN : RACED;
}

enum { HAS_NONE = 32, IS_CONTENDED, IS_REFUSED };

/* Those of a SuperSlab's units whose last slab was one of the class. Runs leave no trace in a record. */
static uint32_t units_of_former(const struct hak_range *range, uint32_t super_slab, uint32_t units, uint32_t former) {
    const struct hak_slab *records = &range->slabs[(size_t)super_slab * HAK_UNITS_PER_SUPER_SLAB];
    uint32_t slab_units = hak_size_classes[former].unit_count, found = 0;
    for (uint32_t left = units; left != 0; left &= left - 1) {
        uint32_t unit = hak_lowest_bit(left), first = unit & ~(slab_units - 1);
        if (hak_atomic_load(&records[first].size_class, relaxed) == former) found |= (uint32_t)1 << unit;
    }
    return found;
}

/* What a request finds in a SuperSlab whose word is `word`: the first unit's position, or 32. */
static uint32_t find_run(const struct hak_range *range, uint32_t super_slab, uint64_t word,
                         const struct request *request) {
    uint32_t units = units_of_kinds(word, request->kinds);
    if (request->former != HAK_CLASS_NONE) units = units_of_former(range, super_slab, units, request->former);
    return hak_find_bit_run(units, request->count, request->alignment);
}

/* Takes `count` adjacent units of the kinds in `kinds`; returns the first one's position, HAS_NONE, when the kernel
 * doesn't map them IS_REFUSED, or when another thread was faster, unless the caller is `stubborn`, IS_CONTENDED. */
static uint32_t take_units(struct hak_range *range, uint32_t super_slab, const struct request *request, bool stubborn) {
    uint64_t before = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
    for (;;) {
        uint32_t position = find_run(range, super_slab, before, request);
        if (position == 32) return HAS_NONE;
        uint64_t units = hak_low_bits(request->count) << position, after = before & ~(units | units << 32);
        note(range, super_slab);
        switch (try_to_take(range, super_slab, &before, units | units << 32)) {
        case TAKEN:
            after_taking(range, super_slab, before, after, true);
            prepare_units(range, super_slab, before, units, request->clear, 0);
            if (before == FRESH_BITS) begin_use(range, super_slab, request->count);
            return position;
        case MAPPED: continue;
        case RACED: break;
        case REFUSED: return IS_REFUSED;
        }
        if (!stubborn) return IS_CONTENDED;
    }
}

static struct hak_slab *record_of(struct hak_range *range, uint32_t unit) {
    struct hak_slab *record = &range->slabs[unit];
    hak_atomic_store(&record->range, (uint8_t)range->number, relaxed);
    return record;
}

/* ---- Units across SuperSlabs ------------------------------------------------------------------------------------- */

/* The part of units `unit`..`end` that lies in the SuperSlab of `unit`: its length, and its bits there. */
static uint32_t part_of_span(uint32_t unit, uint32_t end, uint64_t *bits) {
    uint32_t position = unit % HAK_UNITS_PER_SUPER_SLAB, count = HAK_UNITS_PER_SUPER_SLAB - position;
    if (count > end - unit) count = end - unit;
    *bits = hak_low_bits(count) << position;
    return count;
}

enum { DIRTY = 0, FRESH = 32 }; /* where the bits of a kind begin in the word */

/* In SuperSlabs of one group: a fork finds what is half done there. */
static void add_part_of_span(struct hak_range *range, uint32_t unit, uint32_t end, uint32_t kind) {
    uint32_t whole = (unit + HAK_UNITS_PER_SUPER_SLAB - 1) / HAK_UNITS_PER_SUPER_SLAB,
             whole_end = end / HAK_UNITS_PER_SUPER_SLAB;
    uint64_t bits;
    for (uint32_t at = unit, count; at < end; at += count) {
        count = part_of_span(at, end, &bits);
        uint64_t before = put_back(range, at / HAK_UNITS_PER_SUPER_SLAB, bits << kind);
        if (count < HAK_UNITS_PER_SUPER_SLAB)
            set_unit_hints(range, at / HAK_UNITS_PER_SUPER_SLAB, before, bits << kind);
    }
    hak_hint_set_all_down(range, 0, HAK_RUN_HINTS, whole, whole_end);
    if (kind == DIRTY) hak_hint_set_all_down(range, HAK_DIRTY_HINT, HAK_DIRTY_HINT + 1, whole, whole_end);
    set_span_hints(range, unit - free_before(range, unit), end + free_behind(range, end));
}

/* The end of units `unit`..`end`, or of the group of the first one. */
static uint32_t end_in_group(uint32_t unit, uint32_t end) {
    enum { UNITS_PER_GROUP = HAK_UNITS_PER_SUPER_SLAB * HAK_SUPER_SLABS_PER_GROUP };
    uint32_t left = UNITS_PER_GROUP - unit % UNITS_PER_GROUP;
    return end - unit < left ? end : unit + left;
}

static void add_long_span(struct hak_range *range, uint32_t unit, uint32_t end, uint32_t kind) {
    for (uint32_t part_end; unit < end; unit = part_end) {
        part_end = end_in_group(unit, end);
        add_part_of_span(range, unit, part_end, kind);
    }
}

/* Gives back units `unit`..`end`, all of one kind. */
static void add_span(struct hak_range *range, uint32_t unit, uint32_t end, uint32_t kind) {
    uint32_t position = unit % HAK_UNITS_PER_SUPER_SLAB, count = end - unit;
    if (position + count > HAK_UNITS_PER_SUPER_SLAB) add_long_span(range, unit, end, kind);
    else if (count != 0) add_units(range, unit / HAK_UNITS_PER_SUPER_SLAB, hak_low_bits(count) << position << kind);
}

/* ---- Searching --------------------------------------------------------------------------------------------------- */

/* How many SuperSlabs a thread passes over that has met others at its first choice: another number than they, and the
 * more the more often it has met some. */
static uint32_t detour(uint32_t meetings) {
    enum { FIRST_BITS = 1, MOST_BITS = 6, FIBONACCI = 0x9E3779B9u };
    uint32_t bits = FIRST_BITS + meetings < MOST_BITS ? FIRST_BITS + meetings : MOST_BITS;
    /* An address that is the thread's own. */
    uint32_t own = (uint32_t)((uintptr_t)&hak_in_hand_own >> 6);
    return ((own + meetings) * FIBONACCI) >> (32 - bits);
}

/* From the bottom of a range; a thread that meets others there goes on above, and comes back if there is nothing. */
static struct hak_slab *take_from_range(struct hak_range *range, const struct request *request) {
    uint32_t misses = 0, meetings = 0, met_first = 0, next = 0;
    bool stubborn = false;
    for (;;) {
        uint32_t super_slab = hak_hint_next(range, request->hint, next);
        if (super_slab == HAK_NO_SUPER_SLAB || misses == request->limit) {
            if (meetings == 0 || stubborn) return NULL;
            stubborn = true;
            misses = next = 0;
            continue;
        }
        next = super_slab + 1;
        uint32_t position = take_units(range, super_slab, request, stubborn);
        if (position < HAS_NONE) return record_of(range, super_slab * HAK_UNITS_PER_SUPER_SLAB + position);
        if (position == IS_REFUSED) return NULL;
        if (position == IS_CONTENDED) {
            if (meetings == 0) met_first = super_slab;
            next = met_first + 1 + detour(meetings++);
        } else if (!word_holds(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed), request->hint)) {
            hint_clear(range, request->hint, super_slab);
        } else {
            misses++;
        }
    }
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

/* Free units of any kind: first where a run is that is surely long enough, so that no SuperSlab is made while there
 * is such a run anywhere; then where there may be one. */
static struct hak_slab *search_free(uint32_t count, uint32_t alignment, bool clear) {
    uint32_t enough = count + alignment - 1, sure = 0;
    while (sure + 1 < HAK_RUN_HINTS && 1u << sure < enough) sure++;
    struct request request = {count, alignment, clear, ANY_UNITS, sure, UINT32_MAX, HAK_CLASS_NONE};
    struct hak_slab *record = search(&request);
    if (record != NULL || sure == 0) return record;
    request.hint = hak_highest_bit(count);
    request.limit = SCAN_LIMIT;
    return search(&request);
}

/* After SuperSlabs were made: tells whether some of their units are for others. */
static void leave_hand(bool has_given) {
    if (has_given) hak_in_hand_end();
    else hak_in_hand_keep();
}

static struct hak_slab *take_from_new(uint32_t count) {
    uint32_t super_slab, made;
    struct hak_range *range = hak_region_new_super_slabs(&super_slab, &made);
    if (range == NULL) return NULL;
    count_growth(count);
    uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB;
    add_span(range, unit + count, unit + made * HAK_UNITS_PER_SUPER_SLAB, FRESH);
    leave_hand(unit + count < unit + made * HAK_UNITS_PER_SUPER_SLAB);
    begin_use(range, super_slab, count);
    return record_of(range, unit);
}

struct hak_slab *hak_region_acquire(uint32_t count, uint32_t alignment, enum hak_unit_source source, bool clear) {
    struct request request = {count, alignment, clear, DIRTY_UNITS, HAK_DIRTY_HINT, DIRTY_SCAN_LIMIT, HAK_CLASS_NONE};
    switch (source) {
    case HAK_UNITS_FRESH:
        request = (struct request){count, alignment, clear, FRESH_UNITS, 0, SCAN_LIMIT, HAK_CLASS_NONE};
        return search(&request);
    case HAK_UNITS_DIRTY: return search(&request);
    case HAK_UNITS_FREE: return search_free(count, alignment, clear);
    case HAK_UNITS_NEW_SUPER: return take_from_new(count);
    case HAK_UNITS_LAST_RESORT: break;
    }
    request = (struct request){count, alignment, clear, MAPPED_UNITS, 0, UINT32_MAX, HAK_CLASS_NONE};
    return search(&request);
}

struct hak_slab *hak_region_acquire_former(uint32_t size_class, bool clear) {
    uint32_t count = hak_size_classes[size_class].unit_count;
    struct request request = {count, count, clear, DIRTY_UNITS, HAK_DIRTY_HINT, FORMER_SCAN_LIMIT, size_class};
    return search(&request);
}

/* ---- Spans: units that may cross the borders of SuperSlabs ------------------------------------------------------- */

/* What has been taken, and not counted. */
struct taken {
    uint32_t dirty, fresh;
};

/* Takes exactly these units of a SuperSlab, whose word was *word then; RACED: one is not free. */
static enum attempt take_exactly(struct hak_range *range, uint32_t super_slab, uint64_t units, struct taken *taken,
                                 uint64_t *word) {
    uint64_t before = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
    note(range, super_slab);
    enum attempt result;
    do {
        if ((hak_units_free(before) & units) != units) return RACED;
        result = try_to_take(range, super_slab, &before, units | units << 32);
    } while (result == RACED || result == MAPPED);
    if (result != TAKEN) return result;
    uint64_t after = before & ~(units | units << 32);
    uint32_t count = units == DIRTY_BITS ? HAK_UNITS_PER_SUPER_SLAB : hak_bit_count(units),
             dirty = before == DIRTY_BITS ? count : hak_bit_count(hak_units_dirty(before & (units | units << 32)));
    taken->dirty += dirty;
    taken->fresh += count - dirty;
    count_reused(&range->super_slabs[super_slab], (uint32_t)units);
    if (units != DIRTY_BITS) clear_dirty_hint(range, super_slab, before, after);
    *word = before;
    return TAKEN;
}

/* Clears the hints of units `unit`..`end`, which the caller has taken: of all borders that they touch, and of
 * SuperSlabs that are among them as a whole, that some unit is dirty. */
static void leave_span(struct hak_range *range, uint32_t unit, uint32_t end) {
    for (uint32_t part_end; unit < end; unit = part_end) {
        part_end = end_in_group(unit, end);
        uint32_t whole = (unit + HAK_UNITS_PER_SUPER_SLAB - 1) / HAK_UNITS_PER_SUPER_SLAB,
                 whole_end = part_end / HAK_UNITS_PER_SUPER_SLAB;
        note(range, unit / HAK_UNITS_PER_SUPER_SLAB);
        hak_hint_clear_all_up(range, HAK_DIRTY_HINT, HAK_DIRTY_HINT + 1, whole, whole_end);
        hak_hint_clear_all_up(range, HAK_SPAN_HINT, HAK_SPAN_HINT + HAK_SPAN_HINTS, whole == 0 ? 0 : whole - 1,
                              whole_end);
    }
}

static void release_span(struct hak_range *range, uint32_t unit, uint32_t end) {
    for (uint32_t i = unit; i < end; i++) HAK_WALK(hak_page_map_class(range, i) == HAK_CLASS_NONE); /* R2 */
    hak_atomic_fetch_add(&hak_dirty_units, end - unit, relaxed);
    add_span(range, unit, end, DIRTY);
}

/* All of units `unit`..`end`, as far as one can see without taking them. */
static bool seem_free(const struct hak_range *range, uint32_t unit, uint32_t end) {
    uint64_t bits;
    for (uint32_t count; unit < end; unit += count) {
        count = part_of_span(unit, end, &bits);
        if ((free_units_of(range, unit / HAK_UNITS_PER_SUPER_SLAB) & bits) != bits) return false;
    }
    return true;
}

/* Maps what is absent of units `unit`..`end`: what the kernel refuses is known before any of them is taken. */
static enum attempt map_span(struct hak_range *range, uint32_t unit, uint32_t end) {
    uint64_t bits;
    for (uint32_t count; unit < end; unit += count) {
        uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB, absent;
        count = part_of_span(unit, end, &bits);
        for (;;) {
            uint64_t word = hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed);
            if (HAK_LIKELY((absent = hak_units_absent(word & (bits | bits << 32))) == 0)) break;
            note(range, super_slab);
            if (map_units(range, super_slab, word, absent) == REFUSED) return REFUSED;
        }
    }
    return MAPPED;
}

/* All or none. What is to be zero or huge is made so when nobody waits for it any more, but in very long spans. */
static enum attempt take_span(struct hak_range *range, uint32_t unit, uint32_t end, bool clear) {
    enum { USUAL_PARTS = 18 }; /* 32 MiB */
    struct taken taken = {0, 0};
    uint64_t bits, words[USUAL_PARTS];
    uint32_t at = unit, first = unit / HAK_UNITS_PER_SUPER_SLAB;
    bool is_long = (end - 1) / HAK_UNITS_PER_SUPER_SLAB - first >= USUAL_PARTS;
    if (!seem_free(range, unit, end)) return RACED;
    enum attempt result = map_span(range, unit, end);
    if (result == REFUSED) return REFUSED;
    hak_in_hand_begin();
    for (uint32_t count; at < end; at += count) {
        uint32_t super_slab = at / HAK_UNITS_PER_SUPER_SLAB;
        count = part_of_span(at, end, &bits);
        uint64_t *word = &words[is_long ? 0 : super_slab - first];
        result = take_exactly(range, super_slab, bits, &taken, word);
        if (result != TAKEN) break;
        if (HAK_UNLIKELY(is_long)) prepare_units(range, super_slab, *word, bits, clear, taken.dirty);
    }
    leave_span(range, unit, at);
    count_taken(taken.dirty, taken.fresh);
    if (at != end && at != unit) {
        release_span(range, unit, at);
        hak_in_hand_end();
        return result;
    }
    hak_in_hand_keep();
    for (uint32_t count; !is_long && result == TAKEN && unit < end; unit += count) {
        uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB;
        count = part_of_span(unit, end, &bits);
        prepare_units(range, super_slab, words[super_slab - first], bits, clear, 0);
    }
    return result;
}

static uint32_t units_of(const struct hak_range *range) {
    return hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
}

/* How many it may have. */
static uint32_t limit_units_of(const struct hak_range *range) {
    return hak_atomic_load(&range->super_slab_limit, relaxed) * HAK_UNITS_PER_SUPER_SLAB;
}

/* The first unit at or behind `unit` whose address is a multiple of `alignment` units. */
static uint32_t aligned_unit(const struct hak_range *range, uint32_t unit, uint32_t alignment) {
    size_t before = range->start >> HAK_UNIT_SHIFT;
    return (uint32_t)(hak_align_up(before + unit, alignment) - before);
}

/* What is wanted of a range, and where to look for it. */
struct span_request {
    uint32_t count, alignment;
    bool clear;
    uint32_t kinds;
    uint32_t hint;
    uint32_t limit;       /* runs that are too short before the search ends, */
    uint32_t stale_limit; /* and hints that are wrong */
};

/* Where the lowest `count` adjacent units begin, in a run of free units that begins in a SuperSlab, or at its first
 * unit, as far as one can see without taking them: more than a SuperSlab has. UINT32_MAX when there are none; *next is
 * the first border that may be in another run then. */
static uint32_t find_in_run(const struct hak_range *range, uint32_t super_slab, const struct span_request *request,
                            uint32_t *next) {
    uint32_t count = request->count, alignment = request->alignment, i = super_slab,
             start = aligned_unit(range, super_slab * HAK_UNITS_PER_SUPER_SLAB, alignment);
    for (uint32_t super_slabs = hak_region_super_slabs(range); i < super_slabs; i++) {
        uint64_t word = hak_atomic_load(&range->super_slabs[i].free_units, relaxed);
        uint32_t border = i * HAK_UNITS_PER_SUPER_SLAB, taken = ~units_of_kinds(word, request->kinds), before_start = 0;
        if (border < start) before_start = (uint32_t)hak_low_bits(start - border < 32 ? start - border : 32);
        uint32_t in_the_way = taken & ~before_start;
        uint32_t end = border + (in_the_way == 0 ? 32 : hak_lowest_bit(in_the_way));
        if (end >= start && end - start >= count) return start;
        if (taken == 0) continue;
        if (i > super_slab || taken >> 31 != 0) break; /* the run has ended */
        start = aligned_unit(range, border + hak_highest_bit(taken) + 1, alignment);
    }
    *next = i > super_slab ? i : super_slab + 1;
    return UINT32_MAX;
}

/* From the bottom of a range. */
static struct hak_slab *take_span_from_range(struct hak_range *range, const struct span_request *request) {
    uint32_t misses = 0, stale = 0, next = 0, super_slab;
    while ((super_slab = hak_hint_next(range, request->hint, next)) != HAK_NO_SUPER_SLAB) {
        uint32_t unit = find_in_run(range, super_slab, request, &next);
        if (unit != UINT32_MAX) {
            enum attempt result = take_span(range, unit, unit + request->count, request->clear);
            if (result == TAKEN) return record_of(range, unit);
            if (result != RACED) return NULL;
            next = super_slab; /* another thread was faster: what is left of the run? */
        } else if (!hint_holds(range, request->hint, super_slab)) {
            hint_clear(range, request->hint, super_slab);
            if (++stale == request->stale_limit) break;
        } else if (++misses == request->limit) {
            break;
        }
    }
    return NULL;
}

static struct hak_slab *search_ranges_for_span(const struct span_request *request) {
    struct hak_slab *record = NULL;
    for (uint32_t i = 0; record == NULL && i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        record = take_span_from_range(hak_region_range(i), request);
    return record;
}

/* The lowest free units, unless many runs lie below that are just too short: then the lowest in a run that is surely
 * long enough. With `all`, wherever there are some. */
static struct hak_slab *search_span(uint32_t count, uint32_t alignment, bool clear, bool all) {
    struct span_request request = {count,
                                   alignment,
                                   clear,
                                   all ? MAPPED_UNITS : ANY_UNITS,
                                   hak_highest_bit(count),
                                   all ? UINT32_MAX : SCAN_LIMIT,
                                   all ? UINT32_MAX : STALE_LIMIT};
    for (uint32_t i = 0; i < HAK_SPAN_HINTS && span_units[i] <= count; i++) request.hint = HAK_SPAN_HINT + i;
    struct hak_slab *record = search_ranges_for_span(&request);
    uint32_t sure = 0, enough = count + alignment - 1;
    while (sure < HAK_SPAN_HINTS && span_units[sure] < enough) sure++;
    if (record != NULL || all || sure == HAK_SPAN_HINTS) return record;
    request.hint = HAK_SPAN_HINT + sure;
    return search_ranges_for_span(&request);
}

/* Takes units `unit`..`end`, making SuperSlabs for what lies above the upper end of the range: these first, so that
 * nothing is taken that the kernel has no more for. All or none; what was made is free then. */
static enum attempt take_and_grow(struct hak_range *range, uint32_t unit, uint32_t end, bool clear) {
    uint32_t units = units_of(range);
    if (end <= units) return take_span(range, unit, end, clear);
    if (!seem_free(range, unit, units)) return RACED;
    uint32_t count_now = units / HAK_UNITS_PER_SUPER_SLAB, more = (end - units - 1) / HAK_UNITS_PER_SUPER_SLAB + 1;
    if (hak_region_grow(range, &count_now, more) != HAK_GROWTH_DONE) return REFUSED;
    uint32_t units_now = units + more * HAK_UNITS_PER_SUPER_SLAB;
    if (unit > units) add_span(range, units, unit, FRESH);
    add_span(range, end, units_now, FRESH);
    bool is_taken = unit >= units || take_span(range, unit, units, clear) == TAKEN;
    if (!is_taken) add_span(range, units, end, FRESH);
    leave_hand(!is_taken || unit > units || end < units_now);
    if (!is_taken) return RACED;
    count_growth(end - (unit < units ? units : unit));
    return TAKEN;
}

/* The unit where the free units at the upper end of a range begin, or so many of them as are `enough`. */
static uint32_t upper_end(const struct hak_range *range, uint32_t enough) {
    uint32_t super_slabs = hak_region_super_slabs(range), super_slab = super_slabs;
    while (super_slab > 0 && (super_slabs - super_slab) * HAK_UNITS_PER_SUPER_SLAB < enough) {
        uint32_t taken = ~free_units_of(range, super_slab - 1);
        if (taken != 0) return (super_slab - 1) * HAK_UNITS_PER_SUPER_SLAB + hak_highest_bit(taken) + 1;
        super_slab--;
    }
    return super_slab * HAK_UNITS_PER_SUPER_SLAB;
}

/* When there is none, *has_room tells whether that is for lack of memory, not of addresses. */
static struct hak_slab *take_span_at_end(struct hak_range *range, uint32_t count, uint32_t alignment, bool clear,
                                         bool *has_room) {
    uint32_t limit = limit_units_of(range), units;
    enum attempt result;
    do {
        units = units_of(range);
        uint32_t unit = aligned_unit(range, upper_end(range, count), alignment);
        *has_room = unit <= limit && count <= limit - unit;
        if (!*has_room) return NULL;
        result = take_and_grow(range, unit, unit + count, clear);
        if (result == TAKEN) return record_of(range, unit);
    } while (result == RACED || units_of(range) != units); /* another thread was faster */
    return NULL;
}

/* With SuperSlabs made for it, of a further range if need be. */
static struct hak_slab *take_new_span(uint32_t count, uint32_t alignment, bool clear) {
    struct hak_slab *record = NULL;
    bool has_room = false;
    uint32_t ranges = 0;
    for (; ranges < HAK_RANGE_LIMIT && hak_region_range(ranges) != NULL && record == NULL && !has_room; ranges++)
        record = take_span_at_end(hak_region_range(ranges), count, alignment, clear, &has_room);
    if (record != NULL || has_room || ranges == HAK_RANGE_LIMIT) return record;
    uint32_t super_slabs = (uint32_t)(((uint64_t)count + alignment - 2) / HAK_UNITS_PER_SUPER_SLAB) + 1;
    struct hak_range *range = hak_region_add_range(ranges, super_slabs);
    return range == NULL ? NULL : take_span_at_end(range, count, alignment, clear, &has_room);
}

struct hak_slab *hak_region_acquire_span(uint32_t count, uint32_t alignment, bool clear) {
    struct hak_slab *record = search_span(count, alignment, clear, false);
    if (record == NULL) record = take_new_span(count, alignment, clear);
    return record != NULL ? record : search_span(count, alignment, clear, true);
}

void hak_region_release(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first);
    release_span(range, unit, unit + count);
}

void hak_region_note_given(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first);
    hak_atomic_fetch_or(&range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].given,
                        (uint32_t)(hak_low_bits(count) << unit % HAK_UNITS_PER_SUPER_SLAB), relaxed);
}

void hak_region_release_fresh(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first);
    add_span(range, unit, unit + count, FRESH);
}

void hak_region_release_absent(struct hak_slab *unit) {
    struct hak_range *range = hak_region_range_of_record(unit);
    uint32_t number = hak_region_unit_of(range, unit);
    uint64_t bit = (uint64_t)1 << number % HAK_UNITS_PER_SUPER_SLAB;
    add_units(range, number / HAK_UNITS_PER_SUPER_SLAB, bit | bit << 32);
}

/* In further ranges no unit is absent (hak_region_unmap_units). */
void hak_region_give_up_guarded(struct hak_slab *unit) {
    struct hak_range *range = hak_region_range_of_record(unit);
    if (range->number == 0 && hak_page_policy_unmap(range, hak_region_start_of(range, unit), HAK_UNIT_BYTES))
        hak_region_release_absent(unit);
}

bool hak_region_extend(struct hak_slab *first, uint32_t have, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    uint32_t unit = hak_region_unit_of(range, first) + have, limit = limit_units_of(range);
    return count <= limit - unit && take_and_grow(range, unit, unit + count, false) == TAKEN;
}

void hak_region_mark(struct hak_slab *first, uint32_t count, uint32_t size_class) {
    struct hak_range *range = hak_region_range_of_record(first);
    hak_hand_note(first);
    HAK_ATOMIC(uint16_t) *map = &range->page_map[hak_region_unit_of(range, first)];
    for (uint32_t i = 0; i < count; i++) hak_atomic_store(&map[i], (uint16_t)(size_class * HAK_BIN_STRIDE), relaxed);
}

/* The highest `count` of them. */
static uint32_t highest_of(uint32_t units, uint32_t count) {
    for (uint32_t have = hak_bit_count(units); have > count; have--) units &= units - 1;
    return units;
}

/* Takes the units of these kinds that a SuperSlab has, the highest `most` of them. */
static uint64_t take_kinds(struct hak_range *range, uint32_t super_slab, uint32_t kinds, uint32_t most) {
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[super_slab].free_units;
    note(range, super_slab);
    uint64_t before = hak_atomic_load(word, relaxed), after;
    do {
        uint64_t units = highest_of(units_of_kinds(before, kinds), most);
        if (units == 0) return 0;
        after = before & ~(units | units << 32);
        /* Acquire pairs with put_back: nobody writes to this memory any more. */
    } while (!hak_atomic_cas(word, &before, after, acquire, relaxed));
    after_taking(range, super_slab, before, after, false);
    return before ^ after;
}

/* Gives units back as they were, which take_kinds has taken. */
static void add_as_before(struct hak_range *range, uint32_t super_slab, uint64_t units) {
    hak_atomic_fetch_add(&hak_dirty_units, hak_bit_count(hak_units_dirty(units)), relaxed);
    add_units(range, super_slab, units);
}

/* Takes the units of these kinds, and gives them back as fresh, or with `unmaps` as absent: a system call for each run
 * of neighbours. */
static size_t give_back(struct hak_range *range, uint32_t super_slab, uint32_t kinds, uint32_t most, bool unmaps) {
    hak_in_hand_begin();
    uint64_t taken = take_kinds(range, super_slab, kinds, most), left = hak_units_free(taken);
    if (left == 0) {
        hak_in_hand_keep();
        return 0;
    }
    uintptr_t start = range->start + (uintptr_t)super_slab * HAK_SUPER_SLAB_BYTES;
    size_t given_bytes = 0;
    while (left != 0) {
        uint32_t first = hak_lowest_bit(left), count = hak_lowest_bit(~(left >> first));
        uint64_t run = hak_low_bits(count) << first, both = run | run << 32;
        uintptr_t at = start + ((uintptr_t)first << HAK_UNIT_SHIFT);
        size_t bytes = (size_t)count << HAK_UNIT_SHIFT;
        if (unmaps ? hak_page_policy_unmap(range, at, bytes) : hak_page_policy_purge(range, at, bytes, true)) {
            given_bytes += bytes;
            hak_atomic_fetch_or(&range->super_slabs[super_slab].given, (uint32_t)run, relaxed);
            add_units(range, super_slab, unmaps ? both : run << 32);
        } else {
            add_as_before(range, super_slab, taken & both);
        }
        left &= ~run;
    }
    hak_in_hand_end();
    return given_bytes;
}

/* A huge page goes back as a whole: its parts cost more. */
static size_t purge_super_slab(struct hak_range *range, uint32_t super_slab, uint32_t most, bool all) {
    uint32_t dirty = hak_units_dirty(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed));
    if (!all && !hak_page_policy_may_break(range, super_slab, hak_bit_count(dirty) * HAK_UNIT_BYTES)) return 0;
    if (hak_page_policy_is_huge(range, super_slab)) most = HAK_UNITS_PER_SUPER_SLAB;
    return give_back(range, super_slab, DIRTY_UNITS, most, false);
}

size_t hak_region_unmap_units(size_t want_bytes) {
    struct hak_range *range = hak_region_range(0);
    uint32_t super_slab = range == NULL ? HAK_NO_SUPER_SLAB : hak_hint_next(range, 0, 0);
    size_t bytes = 0;
    for (; super_slab != HAK_NO_SUPER_SLAB && bytes < want_bytes && hak_page_policy_may_map();
         super_slab = hak_hint_next(range, 0, super_slab + 1))
        bytes += give_back(range, super_slab, MAPPED_UNITS, HAK_UNITS_PER_SUPER_SLAB, true);
    return bytes;
}

size_t hak_region_unmap_super_slabs(void) {
    struct hak_range *range = hak_region_range(0);
    uint32_t count = range == NULL ? 0 : hak_region_super_slabs(range);
    size_t bytes = 0;
    bool has_one = false;
    for (uint32_t i = 0; i < count && hak_page_policy_may_map(); i++) {
        uint64_t word = hak_atomic_load(&range->super_slabs[i].free_units, relaxed);
        bool is_free = hak_units_free(word) == UINT32_MAX, has_pages = units_of_kinds(word, MAPPED_UNITS) != 0;
        if (!is_free || !has_pages) continue;
        if (has_one) bytes += give_back(range, i, MAPPED_UNITS, HAK_UNITS_PER_SUPER_SLAB, true);
        has_one = true;
    }
    return bytes;
}

/* Below SuperSlab *super_slab, which is 0 at the end. Ends earlier with `want_bytes`, or after so many looks. */
static size_t purge_range(struct hak_range *range, uint32_t *super_slab, uint64_t want_bytes, uint32_t looks,
                          bool all) {
    size_t bytes = 0;
    for (; bytes < want_bytes && looks > 0; looks--) {
        uint32_t at = hak_hint_previous(range, HAK_DIRTY_HINT, *super_slab);
        uint64_t left_bytes = want_bytes - bytes;
        bool is_part = left_bytes < HAK_SUPER_SLAB_BYTES;
        uint32_t most = HAK_UNITS_PER_SUPER_SLAB;
        if (is_part) most = (uint32_t)((left_bytes + HAK_UNIT_BYTES - 1) >> HAK_UNIT_SHIFT);
        if (at != HAK_NO_SUPER_SLAB) bytes += purge_super_slab(range, at, most, all);
        *super_slab = at == HAK_NO_SUPER_SLAB ? 0 : is_part && bytes >= want_bytes ? at + 1 : at;
        if (*super_slab == 0) break;
    }
    return bytes;
}

/* A place of a purge: the number of the range above, below it that of the SuperSlab below which it goes on. */
static size_t purge_from(uint64_t *place, uint64_t want_bytes, uint32_t looks, bool all) {
    size_t bytes = 0;
    uint32_t number = (uint32_t)(*place >> 32), super_slab = (uint32_t)*place;
    if (number >= HAK_RANGE_LIMIT) number = HAK_RANGE_LIMIT - 1;
    for (;; super_slab = UINT32_MAX) {
        struct hak_range *range = hak_region_range(number);
        if (range != NULL) bytes += purge_range(range, &super_slab, want_bytes - bytes, looks, all);
        if ((range != NULL && super_slab != 0) || number == 0) break;
        number--;
    }
    *place = (uint64_t)number << 32 | super_slab;
    return bytes;
}

size_t hak_region_purge_units(uint64_t want, bool all) {
    uint64_t place = HAK_PURGE_FROM_TOP;
    size_t want_bytes = want > SIZE_MAX >> HAK_UNIT_SHIFT ? SIZE_MAX : want << HAK_UNIT_SHIFT;
    return purge_from(&place, want_bytes, UINT32_MAX, all);
}

size_t hak_region_purge_turn(uint64_t *place, uint64_t want, bool all) {
    return purge_from(place, want << HAK_UNIT_SHIFT, LOOKS_PER_TURN, all);
}

bool hak_region_purge_pages(uintptr_t start, size_t bytes) {
    return hak_page_policy_purge(hak_region_range_of(start), start, bytes, false);
}

/* What other threads have given back, and were about to set hints of; or have cleared, and not looked again. */
static void recover_hints(struct hak_range *range, uint32_t super_slab) {
    static const uint32_t kinds[] = {0, HAK_DIRTY_HINT, HAK_SPAN_HINT};
    hak_hints_recover_after_fork(range, super_slab);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct nested nested = kinds_with(kinds[i]);
        uint32_t held = hints_held(range, kinds[i], super_slab);
        for (uint32_t hint = nested.end; hint-- > nested.first;) {
            if (hak_hint_is_set(range, hint, super_slab)) held = nested.end; /* I3: those before it too */
            if (hint < held) hak_hint_recover_after_fork(range, hint, super_slab);
        }
    }
}

/* Who was at a SuperSlab may have changed others of its group, and was at the hints of borders as far off, at most, as
 * span hints reach. */
void hak_region_recover_around_after_fork(struct hak_range *range, uint32_t super_slab) {
    enum { REACH = LONGEST_SPAN / HAK_UNITS_PER_SUPER_SLAB + 2 };
    uint32_t super_slabs = hak_region_super_slabs(range), group = super_slab - super_slab % HAK_SUPER_SLABS_PER_GROUP,
             end = group + HAK_SUPER_SLABS_PER_GROUP + REACH;
    for (uint32_t i = group < REACH ? 0 : group - REACH; i < end && i < super_slabs; i++) recover_hints(range, i);
}

void hak_region_recover_all_after_fork(struct hak_range *range) {
    for (uint32_t i = 0; i < hak_region_super_slabs(range); i++) recover_hints(range, i);
}

static uint64_t count_dirty_units(const struct hak_range *range) {
    uint64_t count = 0;
    uint32_t super_slab = hak_hint_next(range, HAK_DIRTY_HINT, 0);
    for (; super_slab != HAK_NO_SUPER_SLAB; super_slab = hak_hint_next(range, HAK_DIRTY_HINT, super_slab + 1))
        count += hak_bit_count(hak_units_dirty(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed)));
    return count;
}

void hak_region_recount_after_fork(void) {
    uint64_t dirty_units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        hak_region_recover_tables_after_fork(hak_region_range(i));
        dirty_units += count_dirty_units(hak_region_range(i));
    }
    hak_atomic_store(&hak_dirty_units, dirty_units, relaxed);
}

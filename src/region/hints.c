#include "region/hints.h"

/* Bits per SuperSlab; per word of these; per word of those. */
enum { GROUPS_LEVEL, SUMMARIES_LEVEL, TOPS_LEVEL, LEVELS };
_Static_assert(HAK_SUPER_SLABS_PER_GROUP == 64, "a word per group");

/* The word of a level that has bit number `at`. */
static HAK_ATOMIC(uint64_t) *word_with(const struct hak_range *range, uint32_t hint, uint32_t level, uint32_t at) {
    switch (level) {
    case GROUPS_LEVEL: return &range->groups[at / 64].hints[hint];
    case SUMMARIES_LEVEL: return &range->summaries[at / 64].hints[hint];
    default: return &range->tops[at / 64].hints[hint];
    }
}

static uint64_t bit_of(uint32_t number) { return (uint64_t)1 << number % 64; }

/* The first word of summaries has none above it that counts: small ranges do without the memory. */
static bool has_above(uint32_t level, uint32_t at) {
    return level == GROUPS_LEVEL || (level == SUMMARIES_LEVEL && at / 64 != 0);
}

/* `bits` of the word that has bit number `at`. */
static void set_from(struct hak_range *range, uint32_t hint, uint32_t level, uint32_t at, uint64_t bits) {
    for (;; level++, at /= 64, bits = bit_of(at)) {
        /* Release, after what is to be found was made, or after the bit below: who clears the bit after this sees it.
         * Seq_cst pairs with clear_up: who sets a nested hint behind who clears is behind him at those before it,
         * too. */
        uint64_t before = hak_atomic_fetch_or(word_with(range, hint, level, at), bits, seq_cst);
        if (before != 0 || !has_above(level, at)) return;
    }
}

void hak_hint_set(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    set_from(range, hint, GROUPS_LEVEL, super_slab, bit_of(super_slab));
}

/* The bits of SuperSlabs `first`..`end` in the word of the first one; returns how many these are. */
static uint32_t part_in_word(uint32_t first, uint32_t end, uint64_t *bits) {
    uint32_t count = end - first < 64 - first % 64 ? end - first : 64 - first % 64;
    *bits = hak_low_bits(count) << first % 64;
    return count;
}

/* `bits` of the word that has the bit of SuperSlab `at`. */
static void set_down(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t at, uint64_t bits) {
    for (uint32_t i = hint_end; i-- > hint;) {
        /* Seq_cst pairs with clear_from: who clears one after this sees by his next look what the caller has made. */
        uint64_t missing = bits & ~hak_atomic_load(word_with(range, i, GROUPS_LEVEL, at), seq_cst);
        if (HAK_LIKELY(missing == 0)) return; /* I3 */
        set_from(range, i, GROUPS_LEVEL, at, missing);
    }
}

void hak_hint_set_down(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t super_slab) {
    set_down(range, hint, hint_end, super_slab, bit_of(super_slab));
}

void hak_hint_set_all_down(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end) {
    uint64_t bits;
    for (uint32_t count; first < end; first += count) {
        count = part_in_word(first, end, &bits);
        set_down(range, hint, hint_end, first, bits);
    }
}

static void clear_from(struct hak_range *range, uint32_t hint, uint32_t level, uint32_t at, uint64_t bits) {
    /* Acquire pairs with set_from: one of the two comes first, and either the bit is set afterwards, or the next look
     * sees what was made. Seq_cst pairs with hak_hint_set_down. */
    uint64_t left = hak_atomic_fetch_and(word_with(range, hint, level, at), ~bits, seq_cst) & ~bits;
    if (left == 0 && has_above(level, at)) clear_from(range, hint, level + 1, at / 64, bit_of(at / 64));
    /* Relaxed: who set the first bit below releases it in set_from, and these are changes of the word as it lies
     * there. */
    if (level != GROUPS_LEVEL && hak_atomic_load(word_with(range, hint, level - 1, at * 64), relaxed) != 0)
        set_from(range, hint, level, at, bits);
}

void hak_hint_clear(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    clear_from(range, hint, GROUPS_LEVEL, super_slab, bit_of(super_slab));
}

static void clear_up(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t at, uint64_t bits) {
    for (uint32_t i = hint; i < hint_end; i++) {
        /* Seq_cst pairs with set_from. */
        uint64_t wrong = bits & hak_atomic_load(word_with(range, i, GROUPS_LEVEL, at), seq_cst);
        if (HAK_LIKELY(wrong == 0)) return; /* I3 */
        clear_from(range, i, GROUPS_LEVEL, at, wrong);
    }
}

void hak_hint_clear_up(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t super_slab) {
    clear_up(range, hint, hint_end, super_slab, bit_of(super_slab));
}

void hak_hint_clear_all_up(struct hak_range *range, uint32_t hint, uint32_t hint_end, uint32_t first, uint32_t end) {
    uint64_t bits;
    for (uint32_t count; first < end; first += count) {
        count = part_in_word(first, end, &bits);
        clear_up(range, hint, hint_end, first, bits);
    }
}

bool hak_hint_is_set(const struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    return (hak_atomic_load(word_with(range, hint, GROUPS_LEVEL, super_slab), relaxed) & bit_of(super_slab)) != 0;
}

/* How many bits a level has. */
static uint32_t count_of(uint32_t super_slabs, uint32_t level) {
    for (; level > 0; level--) super_slabs = (super_slabs + 63) / 64;
    return super_slabs;
}

/* Above a group. Up while there is nothing in the rest of a word, down where there is something. */
static __attribute__((noinline)) uint32_t next_group(const struct hak_range *range, uint32_t hint, uint32_t group) {
    uint32_t super_slabs = hak_region_super_slabs(range), level = SUMMARIES_LEVEL, at = group + 1;
    while (at < count_of(super_slabs, level)) {
        uint64_t word = hak_atomic_load(word_with(range, hint, level, at), relaxed) & ~hak_low_bits(at % 64);
        if (word == 0) {
            if (level == TOPS_LEVEL) at = at - at % 64 + 64;
            else at = at / 64 + 1, level++;
            continue;
        }
        at = at - at % 64 + hak_lowest_bit(word);
        if (level == GROUPS_LEVEL) return at < super_slabs ? at : HAK_NO_SUPER_SLAB;
        at *= 64, level--;
    }
    return HAK_NO_SUPER_SLAB;
}

uint32_t hak_hint_next(const struct hak_range *range, uint32_t hint, uint32_t from) {
    uint32_t super_slabs = hak_region_super_slabs(range);
    if (from >= super_slabs) return HAK_NO_SUPER_SLAB;
    uint64_t word = hak_atomic_load(word_with(range, hint, GROUPS_LEVEL, from), relaxed) >> from % 64;
    if (word == 0) return from / 64 < (super_slabs - 1) / 64 ? next_group(range, hint, from / 64) : HAK_NO_SUPER_SLAB;
    uint32_t found = from + hak_lowest_bit(word);
    return found < super_slabs ? found : HAK_NO_SUPER_SLAB;
}

uint32_t hak_hint_previous(const struct hak_range *range, uint32_t hint, uint32_t below) {
    uint32_t super_slabs = hak_region_super_slabs(range), level = GROUPS_LEVEL;
    if (below > super_slabs) below = super_slabs;
    while (below > 0) {
        uint32_t first = (below - 1) / 64 * 64;
        uint64_t word = hak_atomic_load(word_with(range, hint, level, first), relaxed);
        if (level == TOPS_LEVEL && first == 0) word |= 1;
        word &= hak_low_bits(below - first);
        if (word == 0) {
            if (level == TOPS_LEVEL) below = first;
            else below = first / 64, level++;
            continue;
        }
        uint32_t at = first + hak_highest_bit(word);
        if (level == GROUPS_LEVEL) return at;
        /* The upper end of what lies below the bit. */
        uint32_t end = (at + 1) * 64, count = count_of(super_slabs, level - 1);
        below = end < count ? end : count;
        level--;
    }
    return HAK_NO_SUPER_SLAB;
}

void hak_hints_recover_after_fork(struct hak_range *range, uint32_t super_slab) {
    for (uint32_t level = GROUPS_LEVEL, at = super_slab; level < TOPS_LEVEL && has_above(level, at); level++, at /= 64)
        for (uint32_t hint = 0; hint < HAK_HINTS; hint++) {
            HAK_ATOMIC(uint64_t) *above = word_with(range, hint, level + 1, at / 64);
            if (hak_atomic_load(word_with(range, hint, level, at), relaxed) != 0 &&
                (hak_atomic_load(above, relaxed) & bit_of(at / 64)) == 0)
                hak_atomic_fetch_or(above, bit_of(at / 64), relaxed);
        }
}

void hak_hint_recover_after_fork(struct hak_range *range, uint32_t hint, uint32_t super_slab) {
    if (!hak_hint_is_set(range, hint, super_slab)) hak_hint_set(range, hint, super_slab);
}

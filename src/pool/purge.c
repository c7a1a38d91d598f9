#include "pool/purge.h"

#include "base/memory.h"
#include "os/os.h"
#include "pool/drain.h"
#include "pool/pool.h"
#include "region/allowance.h"
#include "region/decay.h"
#include "region/heap_count.h"
#include "region/in_hand.h"
#include "region/large.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"
#include "region/run_quarantine.h"

enum { OLD_SWEEPS = 2 };

/* Looks at the holes of threads that go on: another one after one that gave back much. */
enum { MOST_LOOKS = 4, FOUND_MUCH_BYTES = 1 << 20 };

/* A slab as a purger sees it who does not have it: facts of its class, which is checked again once he has a block of
 * it. */
struct view {
    struct hak_range *range;
    struct hak_slab *slab;
    const struct hak_size_class *facts;
    HAK_ATOMIC(uint64_t) *bits;
    uint32_t unit, size_class;
};

static struct view view_of(struct hak_range *range, uint32_t unit, uint32_t size_class) {
    struct hak_slab *slab = &range->slabs[unit];
    return (struct view){.range = range,
                         .slab = slab,
                         .facts = &hak_size_classes[size_class],
                         .bits = hak_region_bits_of(range, slab, size_class),
                         .unit = unit,
                         .size_class = size_class};
}

/* ---- Claiming what is free --------------------------------------------------------------------------------------- */

/* The bits of blocks `first`..`end` in word `index`. */
static uint64_t mask_in_word(uint32_t first, uint32_t end, uint32_t index) {
    uint32_t word_start = index * 64, word_end = word_start + 64;
    uint32_t from = first > word_start ? first : word_start, to = end < word_end ? end : word_end;
    return hak_low_bits(to - word_start) & ~hak_low_bits(from - word_start);
}

/* Sets bits of blocks that the purger had claimed, with all the duties of a free (S5, S8). */
static void return_bits(const struct view *view, uint32_t word, uint64_t mask) {
    struct hak_slab *slab = view->slab;
    /* Perhaps not that of the view; but it is the blocks', while the purger has them. */
    uint32_t size_class = hak_atomic_load(&slab->size_class, relaxed), state;
    hak_hand_note(slab);
    /* As hak_slab_set_bits does; but where the record says its bits are, is for who has a block of it. */
    uint64_t bits = hak_atomic_fetch_or(&view->bits[word], mask, seq_cst) | mask;
    if (hak_slab_take_over_full(slab, HAK_NO_HEAP, &state)) hak_pool_share(NULL, slab);
    else if (state == HAK_SLAB_POOLED && bits == hak_slab_word_mask(hak_size_classes[size_class].block_count, word))
        hak_pool_retire_if_empty(NULL, slab, view->bits, size_class);
}

static void return_blocks(const struct view *view, uint32_t first, uint32_t end) {
    for (uint32_t i = first / 64; i * 64 < end; i++) return_bits(view, i, mask_in_word(first, end, i));
}

/* Claims blocks `first`..`end`, all or none, in a slab that is still of the class. */
static bool claim_blocks(const struct view *view, uint32_t first, uint32_t end) {
    for (uint32_t i = first / 64; i * 64 < end; i++) {
        uint64_t mask = mask_in_word(first, end, i);
        /* Acquire pairs with hak_slab_set_bits: the last users of the blocks are done with their pages. */
        uint64_t claimed = hak_atomic_fetch_and(&view->bits[i], ~mask, acquire) & mask;
        bool same = hak_page_map_class(view->range, view->unit) == view->size_class;
        if (claimed == mask && same) continue;
        if (claimed != 0) return_bits(view, i, claimed);
        if (i > first / 64) return_blocks(view, first, i * 64);
        return false;
    }
    return true;
}

/* A free block at this moment, or block_count when there is none. */
static uint32_t free_block(const struct view *view) {
    uint32_t count = view->facts->block_count;
    for (uint32_t i = 0; i * 64 < count; i++) {
        uint64_t word = hak_atomic_load(&view->bits[i], relaxed) & hak_slab_word_mask(count, i);
        if (word != 0) return i * 64 + hak_lowest_bit(word);
    }
    return count;
}

/* ---- Holes ------------------------------------------------------------------------------------------------------- */

/* The blocks that have a part in pages `first`..`end`: *block_first and up, below the result. None behind the last
 * block. */
static uint32_t blocks_in_pages(const struct view *view, uint32_t first, uint32_t end, uint32_t *block_first) {
    size_t page = hak_os_page_bytes();
    uint32_t count = view->facts->block_count,
             block_end = hak_block_index((uint32_t)(end * page - 1), view->facts->reciprocal) + 1;
    *block_first = hak_block_index((uint32_t)(first * page), view->facts->reciprocal);
    return block_end < count ? block_end : count;
}

/* Purges pages `first`..`end` of the slab, if no block in them is in use. Who has a block has the slab's pages behind
 * the last one, too, as far as there is nobody else to use them: for these, any block will do. */
static size_t purge_pages(const struct view *view, uint32_t first, uint32_t end) {
    size_t page = hak_os_page_bytes(), bytes = (end - first) * page;
    uint32_t block_first, block_end = blocks_in_pages(view, first, end, &block_first);
    if (block_first >= block_end) {
        block_first = free_block(view);
        block_end = block_first + 1;
        if (block_first == view->facts->block_count) return 0;
    }
    if (!claim_blocks(view, block_first, block_end)) return 0;
    bool purged = hak_region_purge_pages(hak_region_start_of(view->range, view->slab) + first * page, bytes);
    if (purged) {
        uint64_t mask = hak_low_bits(end - first) << first;
        uint64_t before = hak_atomic_fetch_or(&view->slab->purged_pages, mask, relaxed);
        hak_counter_add_shared(&hak_slab_holes, hak_bit_count(mask & ~before)); /* another may have purged them, too */
    }
    return_blocks(view, block_first, block_end);
    return purged ? bytes : 0;
}

/* What to do with a run of pages without a block in use: purge_pages, or less. */
typedef size_t hole_visitor(const struct view *view, uint32_t first, uint32_t end);

static size_t count_pages(const struct view *view, uint32_t first, uint32_t end) {
    (void)view;
    return (end - first) * hak_os_page_bytes();
}

/* The pages of the slab that a block in use has a part of, a bit for each. Each page costs one look: behind a block in
 * use the next one that may tell something new is that in which the next page begins. */
static uint64_t used_pages(const struct view *view) {
    uint32_t page_shift = hak_lowest_bit(hak_os_page_bytes()), count = view->facts->block_count, index = 0;
    uint64_t block_bytes = view->facts->block_bytes, used = 0;
    while (index < count) {
        uint64_t in_use = ~hak_atomic_load(&view->bits[index / 64], relaxed) >> index % 64;
        if (in_use == 0) {
            index = (index / 64 + 1) * 64;
            continue;
        }
        index += hak_lowest_bit(in_use);
        if (index >= count) break;
        uint64_t first = index * block_bytes >> page_shift, last = ((index + 1) * block_bytes - 1) >> page_shift;
        used |= hak_low_bits((uint32_t)last + 1) & ~hak_low_bits((uint32_t)first);
        uint32_t next = hak_block_index((uint32_t)(last + 1) << page_shift, view->facts->reciprocal);
        index = next > index ? next : index + 1;
    }
    return used;
}

static size_t for_each_hole(const struct view *view, hole_visitor *visit) {
    size_t slab_bytes = view->facts->unit_count * HAK_UNIT_BYTES - hak_slab_guard_bytes(), bytes = 0;
    if (free_block(view) == view->facts->block_count) return 0;
    uint32_t pages = (uint32_t)(slab_bytes >> hak_lowest_bit(hak_os_page_bytes()));
    uint64_t known = hak_atomic_load(&view->slab->purged_pages, relaxed),
             holes = hak_low_bits(pages) & ~(used_pages(view) | known);
    while (holes != 0) {
        uint32_t first = hak_lowest_bit(holes), end = first + hak_trailing_ones(holes >> first);
        bytes += visit(view, first, end);
        holes &= ~hak_low_bits(end);
    }
    return bytes;
}

/* ---- SuperSlabs -------------------------------------------------------------------------------------------------- */

/* What to do with the slabs of a SuperSlab, and with the runs that begin in it, by their first unit. Returns bytes. */
struct visitor {
    size_t (*slab)(const struct view *view);
    size_t (*run)(struct hak_range *range, uint32_t unit);
};

/* In units `unit`..`end`, of one SuperSlab, which no slab begins before and reaches into. */
static size_t visit_units(struct hak_range *range, uint32_t unit, uint32_t end, const struct visitor *visitor) {
    size_t bytes = 0;
    while (unit < end) {
        uint32_t size_class = hak_page_map_class(range, unit);
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) {
            if (size_class == HAK_CLASS_RUN_HEAD) bytes += visitor->run(range, unit);
            unit++;
            continue;
        }
        uint32_t units = hak_size_classes[size_class].unit_count;
        unit &= ~(units - 1); /* the first ones may have been looked at before they were marked */
        struct view view = view_of(range, unit, size_class);
        bytes += visitor->slab(&view);
        unit += units;
    }
    return bytes;
}

static size_t visit_super_slab(struct hak_range *range, uint32_t super_slab, const struct visitor *visitor) {
    uint32_t unit = super_slab * HAK_UNITS_PER_SUPER_SLAB;
    return visit_units(range, unit, unit + HAK_UNITS_PER_SUPER_SLAB, visitor);
}

/* ---- Old holes --------------------------------------------------------------------------------------------------- */

static bool is_old(const struct hak_slab *record) { return hak_atomic_load(&record->sweeps, relaxed) >= OLD_SWEEPS; }

/* One look more without a claim; true from the second one on. */
static bool grow_old(struct hak_slab *record) {
    uint8_t sweeps = hak_atomic_load(&record->sweeps, relaxed);
    if (sweeps < OLD_SWEEPS) hak_atomic_store(&record->sweeps, (uint8_t)(sweeps + 1), relaxed);
    return sweeps + 1 >= OLD_SWEEPS;
}

static size_t age_slab(const struct view *view) { return grow_old(view->slab) ? for_each_hole(view, count_pages) : 0; }
static size_t age_run(struct hak_range *range, uint32_t unit) {
    return grow_old(&range->slabs[unit]) ? hak_large_tail_bytes(range, unit) : 0;
}

static size_t count_old(const struct view *view) { return is_old(view->slab) ? for_each_hole(view, count_pages) : 0; }
static size_t count_old_tail(struct hak_range *range, uint32_t unit) {
    return is_old(&range->slabs[unit]) ? hak_large_tail_bytes(range, unit) : 0;
}

static size_t purge_old(const struct view *view) { return is_old(view->slab) ? for_each_hole(view, purge_pages) : 0; }
static size_t purge_old_tail(struct hak_range *range, uint32_t unit) {
    return is_old(&range->slabs[unit]) ? hak_large_purge_tail(range, unit) : 0;
}

/* `hole_bytes`, unless they and the free units of the SuperSlab are not worth its huge page. */
static size_t worth_purging(const struct hak_range *range, uint32_t super_slab, size_t hole_bytes) {
    uint32_t dirty_units = hak_units_dirty(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed));
    size_t free_bytes = hole_bytes + hak_bit_count(dirty_units) * HAK_UNIT_BYTES;
    return hak_page_policy_may_break(range, super_slab, free_bytes) ? hole_bytes : 0;
}

static size_t age_super_slab(struct hak_range *range, uint32_t super_slab) {
    static const struct visitor age = {age_slab, age_run};
    return worth_purging(range, super_slab, visit_super_slab(range, super_slab, &age));
}

static size_t purge_old_holes(struct hak_range *range, uint32_t super_slab) {
    static const struct visitor count = {count_old, count_old_tail}, purge = {purge_old, purge_old_tail};
    size_t bytes = worth_purging(range, super_slab, visit_super_slab(range, super_slab, &count));
    return bytes == 0 ? 0 : visit_super_slab(range, super_slab, &purge);
}

/* ---- All SuperSlabs, or the next ones ---------------------------------------------------------------------------- */

/* The next SuperSlab to look at. */
struct cursor {
    uint32_t range, super_slab;
};

/* Moves on to a SuperSlab that exists, the first one after the last; there is one. */
static struct hak_range *range_at(struct cursor *cursor) {
    for (;;) {
        struct hak_range *range = cursor->range == HAK_RANGE_LIMIT ? NULL : hak_region_range(cursor->range);
        if (range != NULL && cursor->super_slab < hak_region_super_slabs(range)) return range;
        cursor->range = range == NULL ? 0 : cursor->range + 1;
        cursor->super_slab = 0;
    }
}

/* Calls `visit` for `count` SuperSlabs from the cursor on. */
static size_t visit_super_slabs(struct cursor *cursor, uint64_t count,
                                size_t (*visit)(struct hak_range *range, uint32_t super_slab)) {
    size_t bytes = 0;
    for (; count > 0; count--, cursor->super_slab++) {
        struct hak_range *range = range_at(cursor);
        bytes += visit(range, cursor->super_slab);
    }
    return bytes;
}

static struct cursor next_to_sweep;

size_t hak_purge_sweep(uint64_t least_bytes, uint32_t most_super_slabs) {
    uint64_t all = hak_region_count_super_slabs(), count = all < most_super_slabs ? all : most_super_slabs;
    struct cursor from = next_to_sweep;
    if (count == 0 || visit_super_slabs(&next_to_sweep, count, age_super_slab) < least_bytes * count / all) return 0;
    hak_in_hand_begin();
    size_t bytes = visit_super_slabs(&from, count, purge_old_holes);
    hak_in_hand_end();
    return bytes;
}

static size_t purge_any(const struct view *view) { return for_each_hole(view, purge_pages); }

static const struct visitor purge_visitor = {purge_any, hak_large_purge_tail};

static size_t purge_holes(struct hak_range *range, uint32_t super_slab) {
    return visit_super_slab(range, super_slab, &purge_visitor);
}

static size_t purge_all_holes(void) {
    struct cursor from = {0, 0};
    return visit_super_slabs(&from, hak_region_count_super_slabs(), purge_holes);
}

/* ---- By turns ---------------------------------------------------------------------------------------------------- */

/* The next units whose holes are looked at: the number of their range above, that of the first one below it. */
HAK_ATOMIC(uint64_t) hak_purge_place = HAK_PURGE_NO_ROUND;
/* Guesses where several threads take turns. */
static HAK_ATOMIC(uint64_t) round_given_bytes, round_want_bytes, round_out_bytes;

enum { UNITS_PER_STEP = 4 }; /* as many as the largest slab has */
_Static_assert(HAK_UNITS_PER_SUPER_SLAB % UNITS_PER_STEP == 0, "a step lies in one SuperSlab");

static bool is_all_free(const struct hak_range *range, uint32_t super_slab) {
    return hak_units_free(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed)) == UINT32_MAX;
}

/* A SuperSlab that is free as a whole is one step, and so is one that may have a huge page: whether that is to be given
 * up depends on all that is free in it. */
static uint32_t step_units(const struct hak_range *range, uint32_t unit) {
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB;
    if (unit % HAK_UNITS_PER_SUPER_SLAB != 0) return UNITS_PER_STEP;
    bool is_one = is_all_free(range, super_slab) || hak_page_policy_is_huge(range, super_slab);
    return is_one ? HAK_UNITS_PER_SUPER_SLAB : UNITS_PER_STEP;
}

/* Takes the next step: units *unit and up, as many as are returned; 0 when the round is over. *is_last: by this call,
 * because all has been seen. */
static uint32_t take_step(struct hak_range **range, uint32_t *unit, bool *is_last) {
    uint64_t at = hak_atomic_load(&hak_purge_place, relaxed), after;
    uint32_t units;
    *is_last = false;
    do {
        if (at == HAK_PURGE_NO_ROUND) return 0;
        uint32_t number = (uint32_t)(at >> 32);
        *unit = (uint32_t)at;
        *range = hak_region_range(number);
        while (*range != NULL && *unit >= hak_region_super_slabs(*range) * HAK_UNITS_PER_SUPER_SLAB) {
            *range = ++number == HAK_RANGE_LIMIT ? NULL : hak_region_range(number);
            *unit = 0;
        }
        units = *range == NULL ? 0 : step_units(*range, *unit);
        after = units == 0 ? HAK_PURGE_NO_ROUND : (uint64_t)number << 32 | (*unit + units);
    } while (!hak_atomic_cas(&hak_purge_place, &at, after, relaxed, relaxed));
    *is_last = units == 0;
    return units;
}

void hak_purge_begin_holes(uint64_t want_bytes) {
    hak_atomic_store(&round_want_bytes, want_bytes, relaxed);
    hak_atomic_store(&round_given_bytes, 0, relaxed);
    hak_atomic_store(&round_out_bytes, hak_atomic_load(&hak_out_bytes, relaxed), relaxed);
    hak_atomic_store(&hak_purge_place, 0, relaxed);
}

size_t hak_purge_round_bytes(void) { return hak_atomic_load(&round_given_bytes, relaxed); }

void hak_purge_drain(struct hak_heap *own) {
    struct hak_drain drain = {.first_taken = NULL};
    struct hak_hand *outer = hak_hand_take_up(own == NULL ? NULL : hak_own_hand); /* I5 of in_hand.h */
    hak_in_hand_begin();
    if (own != NULL) hak_heap_flush(own);
    hak_heap_drain_others(own, &drain);
    hak_heap_end_drains(&drain);
    hak_in_hand_end();
    hak_hand_take_up(outer);
}

/* Other threads may take turns from the first line on: what drains is kept from nobody by it. */
void hak_purge_begin_round(struct hak_heap *own) {
    hak_purge_begin_holes(UINT64_MAX);
    hak_decay_owe_all();
    hak_purge_drain(own);
    hak_decay_owe_all();
    hak_purge_begin_holes(UINT64_MAX);
}

static size_t count_holes(const struct view *view) { return for_each_hole(view, count_pages); }
static size_t count_tail(struct hak_range *range, uint32_t unit) { return hak_large_tail_bytes(range, unit); }

/* A sixteenth of a huge page is free: enough to give it up for, where nobody will come by later. */
static bool may_break(struct hak_range *range, uint32_t super_slab) {
    static const struct visitor count = {count_holes, count_tail};
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) return true;
    uint32_t dirty_units = hak_units_dirty(hak_atomic_load(&range->super_slabs[super_slab].free_units, relaxed));
    return visit_super_slab(range, super_slab, &count) + hak_bit_count(dirty_units) * HAK_UNIT_BYTES >=
           HAK_SUPER_SLAB_BYTES / 16;
}

/* What a turn may still do, in quarters of a microsecond, about: a look at a step, a hole's system call, a huge page's
 * end. */
enum { TURN_COST = 512, COST_OF_STEP = 2, COST_OF_PAGE = 4, COST_OF_HUGE_PAGE = TURN_COST };

static size_t purge_step(struct hak_range *range, uint32_t unit, uint32_t units, uint32_t *cost) {
    uint32_t super_slab = unit / HAK_UNITS_PER_SUPER_SLAB;
    bool is_whole = units == HAK_UNITS_PER_SUPER_SLAB, was_huge = hak_page_policy_is_huge(range, super_slab);
    if (is_whole && is_all_free(range, super_slab)) return 0;
    *cost += units / UNITS_PER_STEP * COST_OF_STEP;
    if (is_whole && !may_break(range, super_slab)) return 0;
    size_t bytes = visit_units(range, unit, unit + units, &purge_visitor);
    *cost += (uint32_t)(bytes / hak_os_page_bytes()) * COST_OF_PAGE;
    if (was_huge && bytes != 0) *cost += COST_OF_HUGE_PAGE;
    return bytes;
}

bool hak_purge_turn(size_t *given_bytes) {
    enum { MOST_STEPS = 256 }; /* some ten us where there is nothing */
    struct hak_range *range;
    size_t bytes = 0;
    uint32_t unit, units, cost = 0;
    bool is_last = false;
    if (hak_atomic_load(&hak_purge_place, relaxed) == HAK_PURGE_NO_ROUND) return true;
    struct hak_hand *outer = hak_in_hand_begin_without(); /* in a handler, too */
    for (uint32_t i = 0; i < MOST_STEPS && cost < TURN_COST && (units = take_step(&range, &unit, &is_last)) != 0; i++)
        bytes += purge_step(range, unit, units, &cost);
    hak_in_hand_end_without(outer);
    if (is_last) hak_allowance_pinned(hak_atomic_load(&round_out_bytes, relaxed));
    uint64_t so_far = hak_atomic_fetch_add(&round_given_bytes, bytes, relaxed) + bytes;
    uint64_t place = hak_atomic_load(&hak_purge_place, relaxed); /* another round may begin meanwhile: it goes on */
    if (so_far >= hak_atomic_load(&round_want_bytes, relaxed))
        hak_atomic_cas(&hak_purge_place, &place, HAK_PURGE_NO_ROUND, relaxed, relaxed);
    *given_bytes += bytes;
    return hak_atomic_load(&hak_purge_place, relaxed) == HAK_PURGE_NO_ROUND;
}

void hak_purge_take_turn(void) {
    size_t bytes = 0;
    hak_purge_turn(&bytes);
    hak_decay_gave(bytes);
}

/* ---- At once ----------------------------------------------------------------------------------------------------- */

/* While other threads go on, what they have touched by the end of a look is the less, the shorter it was, and each has
 * less to give back than the one before. */
size_t hak_purge_all(struct hak_heap *own) {
    struct hak_drain drain = {.first_taken = NULL};
    size_t bytes = 0, found;
    bool alone = hak_atomic_load(&hak_heaps_in_use, relaxed) <= (own != NULL), is_done;
    struct hak_hand *outer = hak_hand_take_up(own == NULL ? NULL : hak_own_hand); /* I5 of in_hand.h */
    hak_in_hand_begin();
    if (own != NULL) hak_heap_flush(own);
    /* Most of it before threads have to go without their heaps. */
    if (!alone) bytes += purge_all_holes();
    for (uint32_t looks = 0; looks < MOST_LOOKS; looks++) {
        is_done = hak_heap_drain_others(own, &drain);
        bytes += found = purge_all_holes() + hak_region_purge_units(UINT64_MAX, true);
        if (alone || (is_done && found < FOUND_MUCH_BYTES)) break;
    }
    hak_heap_end_drains(&drain);
    bytes += hak_mapping_cache_purge();
    if (HAK_SECURE) hak_run_quarantine_end();
    hak_in_hand_end();
    hak_hand_take_up(outer);
    return bytes;
}

void hak_purge_unmap(void) {
    struct hak_hand *outer = hak_hand_take_up(NULL); /* I5 of in_hand.h */
    hak_region_unmap_super_slabs();
    hak_hand_take_up(outer);
}

static size_t visit_no_slab(const struct view *view) { return (void)view, 0; }

static size_t cut_tails(struct hak_range *range, uint32_t super_slab) {
    static const struct visitor cut = {visit_no_slab, hak_large_cut_tail};
    return visit_super_slab(range, super_slab, &cut);
}

static uint64_t count_changes_of(const struct hak_counters *counters) {
    return hak_atomic_load(&counters->slabs_retired, relaxed) + hak_atomic_load(&counters->large_frees, relaxed) +
           hak_atomic_load(&counters->large_allocs, relaxed) + hak_atomic_load(&counters->large_resizes, relaxed);
}

uint64_t hak_purge_count_changes(void) {
    uint64_t count = count_changes_of(&hak_shared_counters);
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        count += count_changes_of(&heap->counters);
    return count;
}

/* How far tails have been cut, a guess; how many changes there were when all had been looked at; and a sum, never 0,
 * that differs when something may have changed since there was nothing to unmap. */
static HAK_ATOMIC(uint64_t) next_to_cut, changes_at_round, sum_in_vain;

/* All around the heap, when that is asked for, or an eighth of its units may have got tails since the last round;
 * else a part. *is_all: there was no tail at all, or no more may be cut. */
static size_t cut_next_tails(size_t want_bytes, bool everywhere, uint64_t changes, bool *is_all) {
    enum { PART_SUPER_SLABS = 16, CHANGES_PER_SUPER_SLAB = HAK_UNITS_PER_SUPER_SLAB / 8 };
    uint64_t at = hak_atomic_load(&next_to_cut, relaxed), all = hak_region_count_super_slabs(), left = all;
    struct cursor next = {(uint32_t)(at >> 32), (uint32_t)at};
    size_t bytes = 0;
    bool is_round = everywhere || changes - hak_atomic_load(&changes_at_round, relaxed) >= all * CHANGES_PER_SUPER_SLAB;
    if (!is_round && left > PART_SUPER_SLABS) left = PART_SUPER_SLABS;
    bool may_cut;
    for (; (may_cut = hak_page_policy_may_cut()) && left > 0 && bytes < want_bytes; left--)
        bytes += visit_super_slabs(&next, 1, cut_tails);
    *is_all = bytes == 0 && (is_round || !may_cut);
    if (is_round && left == 0) hak_atomic_store(&changes_at_round, changes, relaxed);
    hak_atomic_store(&next_to_cut, (uint64_t)next.range << 32 | next.super_slab, relaxed);
    return bytes;
}

/* Addresses that nobody uses are the kernel's again: those of free units, and of what lies behind runs. So many that a
 * SuperSlab and its tables can be mapped as well, and not all: who lives at a limit would soon map them again. */
static void unmap_what_is_free(size_t want_bytes, bool everywhere) {
    enum { MORE_BYTES = 4 << 20 };
    uint64_t changes = hak_purge_count_changes(), sum = (changes + hak_region_count_super_slabs()) << 32;
    sum |= (uint32_t)(hak_atomic_load(&hak_dirty_units, relaxed) + 1);
    if (sum == hak_atomic_load(&sum_in_vain, relaxed)) return;
    want_bytes += MORE_BYTES;
    size_t bytes = hak_region_unmap_units(want_bytes);
    bool is_all = false;
    if (bytes < want_bytes) bytes += cut_next_tails(want_bytes - bytes, everywhere, changes, &is_all);
    hak_atomic_store(&sum_in_vain, bytes == 0 && is_all ? sum : 0, relaxed);
}

void hak_purge_reclaim(struct hak_heap *own, bool drains, bool everywhere, size_t want_bytes) {
    struct hak_drain drain = {.first_taken = NULL};
    struct hak_hand *outer = hak_hand_take_up(own == NULL ? NULL : hak_own_hand); /* I5 of in_hand.h */
    hak_in_hand_begin();
    if (own != NULL) hak_heap_flush(own);
    hak_heap_take_kept_apart();
    if (drains && hak_atomic_load(&hak_heaps_in_use, relaxed) > (own != NULL)) {
        hak_heap_drain_others(own, &drain);
        hak_heap_end_drains(&drain);
    }
    hak_mapping_cache_purge();
    if (HAK_SECURE) hak_run_quarantine_end();
    unmap_what_is_free(want_bytes, everywhere);
    hak_in_hand_end();
    hak_hand_take_up(outer);
}

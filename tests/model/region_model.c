/* Units, SuperSlabs, ranges; the directory and mappings; runs freed twice at once.
 *
 * Whoever has units writes into their memory and their record; both are plain data.
 */
#include "library.h"

#include "region/in_hand.h"
#include "region/hints.h"
#include "region/run_quarantine.h"

static struct hak_slab *had[MODEL_THREADS]; /* units that threads have at their end */
static uint32_t had_count[MODEL_THREADS];

static void reset_had(void) {
    for (uint32_t i = 0; i < MODEL_THREADS; i++) had[i] = NULL, had_count[i] = 0;
}

static void check_zero(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    for (uint32_t i = 0; i < count; i++)
        model_assert(*(uint64_t *)(hak_region_start_of(range, first) + i * HAK_UNIT_BYTES) == 0, "zero is zero");
}

static void touch_units(struct hak_slab *first, uint32_t count) {
    struct hak_range *range = hak_region_range_of_record(first);
    for (uint32_t i = 0; i < count; i++) {
        *(uint64_t *)(hak_region_start_of(range, first) + i * HAK_UNIT_BYTES) = 1 + model_thread();
        first[i].next = first;
    }
}

static struct hak_slab *acquire(uint32_t count, enum hak_unit_source source) {
    struct hak_slab *first = hak_region_acquire(count, 1, source, true);
    if (first != NULL) check_zero(first, count);
    if (first != NULL) touch_units(first, count);
    return first;
}

static void keep(struct hak_slab *first, uint32_t count) {
    had[model_thread()] = first;
    had_count[model_thread()] = first == NULL ? 0 : count;
}

/* Every unit is free, or had by one thread; there are `total`. */
static void check_units(uint32_t total) {
    uint64_t seen[8] = {0};
    uint32_t count = 0, super_slabs = 0;
    library_check();
    for (uint32_t i = 0; hak_ranges[i] != NULL; i++)
        for (uint32_t s = 0; s < hak_ranges[i]->super_slab_count; s++, super_slabs++) {
            uint64_t word = hak_ranges[i]->super_slabs[s].free_units;
            seen[super_slabs] = (uint32_t)word | (uint32_t)(word >> 32);
            for (uint32_t t = 0; t < MODEL_THREADS; t++) {
                uint64_t unit = had[t] == NULL ? UINT32_MAX : (uint64_t)(had[t] - hak_ranges[i]->slabs);
                if (unit / HAK_UNITS_PER_SUPER_SLAB != s) continue;
                uint64_t bits = hak_low_bits(had_count[t]) << unit % HAK_UNITS_PER_SUPER_SLAB;
                model_assert((seen[super_slabs] & bits) == 0, "a unit is had once");
                seen[super_slabs] |= bits;
            }
            count += hak_bit_count(seen[super_slabs]);
        }
    model_assert(count == total, "no unit is lost");
}

/* ---- units ------------------------------------------------------------------------------------------------------ */

static struct hak_slab *given[2];

/* Two units, both dirty and had. */
static void setup_given(void) {
    library_start(1, 1, 2, 0);
    reset_had();
    for (uint32_t i = 0; i < 2; i++) given[i] = hak_region_acquire(1, 1, HAK_UNITS_FREE, false);
}

static void give_first(void) {
    touch_units(given[0], 1);
    hak_region_release(given[0], 1);
}
static void give_second(void) {
    touch_units(given[1], 1);
    hak_region_release(given[1], 1);
}
static void give_both(void) {
    give_first();
    give_second();
}
static void take_dirty(void) { keep(acquire(1, HAK_UNITS_DIRTY), 1); }
static void take_free(void) { keep(acquire(1, HAK_UNITS_FREE), 1); }
static void take_two(void) { keep(acquire(2, HAK_UNITS_FREE), 2); }
static void purge_units(void) { hak_region_purge_units(UINT64_MAX, true); }
static void purge_and_take(void) {
    purge_units();
    take_free();
}
static void check_two(void) { check_units(2); }
static void check_three(void) { check_units(3); }

MODEL_HARNESS(units, setup_given, check_two, give_both, take_dirty, take_free);
MODEL_HARNESS(units_apart, setup_given, check_two, give_first, give_second, take_dirty);
MODEL_HARNESS(units_run, setup_given, check_two, give_first, give_second, take_two);
MODEL_HARNESS_DEEP(units_purge, setup_given, check_two, give_both, purge_units, take_free);
MODEL_HARNESS(units_purge_take, setup_given, check_two, give_both, purge_and_take);

/* A unit is given back next to dirty ones, and purged alone: those stay dirty. */
static void setup_beside_dirty(void) {
    library_start(1, 1, 3, 0);
    reset_had();
    struct hak_slab *all = hak_region_acquire(3, 1, HAK_UNITS_FREE, false);
    hak_atomic_store(&all[2].range, 0, relaxed);
    given[0] = &all[2];
    hak_region_release(all, 2);
}
static void purge_one(void) { hak_region_purge_units(1, true); }

MODEL_HARNESS(units_purge_one, setup_beside_dirty, check_three, give_first, purge_one);

/* Free units are unmapped, and mapped again by who takes them; of two who do, one after the other. */
static void setup_absent(void) {
    setup_given();
    give_both();
    hak_region_unmap_units(SIZE_MAX);
}
static void unmap_units(void) { hak_region_unmap_units(SIZE_MAX); }

MODEL_HARNESS(units_unmapped, setup_given, check_two, give_both, unmap_units, take_free);
MODEL_HARNESS(units_absent, setup_absent, check_two, take_two, take_free);
MODEL_HARNESS(units_absent_again, setup_absent, check_two, take_two, unmap_units);

/* A SuperSlab without memory begins to be used, and is made a huge page: its other units are dirty from then on. */
static void setup_begin(void) {
    library_start(1, 1, 32, 0);
    reset_had();
    hak_knobs.huge_page_mode = HAK_HUGE_ON;
}
static void check_begin(void) { check_units(32); }

MODEL_HARNESS_DEEP(units_begin, setup_begin, check_begin, take_free, take_two, purge_units);

/* A SuperSlab all of whose units lie free with memory is used again, and made a huge page, while others take of it. */
static void setup_again(void) {
    library_start(2, 2, 32, 0);
    reset_had();
    struct hak_slab *all = hak_region_acquire_span(64, 1, false);
    for (uint32_t i = 0; i < 64; i++) hak_atomic_store(&all[i].range, 0, relaxed);
    touch_units(all, 64);
    hak_region_release(all, 64);
    fake_os.page_bytes = HAK_UNIT_BYTES;    /* of which the first word says that it has contents */
    hak_ranges[0]->super_slabs[0].uses = 7; /* the next look is at the next use */
}
static void check_again(void) { check_units(64); }
static void take_and_give(void) {
    struct hak_slab *unit = acquire(1, HAK_UNITS_FREE);
    if (unit != NULL) hak_region_release(unit, 1);
}

MODEL_HARNESS(units_again, setup_again, check_again, take_free, take_and_give);

/* Spans cross from one SuperSlab into the next: the last unit of the first, and the second, are given back. */
static void setup_span(void) {
    library_start(2, 2, 32, 0);
    reset_had();
    struct hak_slab *all = hak_region_acquire_span(64, 1, false);
    given[0] = all;
    given[1] = all + 32;
}

static void give_lower(void) {
    touch_units(given[0], 32);
    hak_region_release(given[0], 32);
}
static void give_upper(void) {
    *(uint64_t *)hak_region_start_of(hak_ranges[0], given[1]) = 0;
    hak_atomic_store(&given[1]->range, 0, relaxed);
    hak_region_release(given[1], 2);
}
static void take_span(void) {
    struct hak_slab *first = hak_region_acquire_span(33, 1, true);
    if (first != NULL) check_zero(first, 33);
    if (first != NULL) touch_units(first, 33);
    for (uint32_t i = 0; i < 2; i++) had[2 * i + model_thread()] = NULL;
    if (first == NULL) return;
    had[model_thread()] = first;
    had_count[model_thread()] = 32;
    had[4 + model_thread()] = first + 32;
    had_count[4 + model_thread()] = 1;
}
static void check_span(void) { check_units(34); }

MODEL_HARNESS(units_span, setup_span, check_span, give_lower, take_span, give_upper);

/* Neither of two who give back neighbours saw the other's part before; a hint of theirs is set still, and cleared. */
static void setup_span_hinted(void) {
    setup_span();
    hak_region_release(given[0], 32);
    hak_hint_set(hak_ranges[0], HAK_SPAN_HINT, 0);
}

MODEL_HARNESS(units_span_both, setup_span, check_span, give_lower, give_upper);
MODEL_HARNESS(units_span_hinted, setup_span_hinted, check_span, take_span, give_upper);

/* A run grows into the unit behind it. */
static void extend(void) {
    bool grown = hak_region_extend(given[0], 1, 1);
    if (grown) touch_units(given[1], 1);
    keep(given[0], grown ? 2 : 1);
}

MODEL_HARNESS(units_extend, setup_given, check_two, extend, give_second, take_dirty);

/* It leaves a unit, and so the hint of them: all that it sees of who gave them back is the word that it took its own
 * from. */
static void setup_given_more(void) {
    library_start(1, 1, 3, 0);
    reset_had();
    given[0] = hak_region_acquire(1, 1, HAK_UNITS_FREE, false);
    given[1] = hak_region_acquire(2, 1, HAK_UNITS_FREE, false);
}
static void give_more(void) {
    touch_units(given[1], 2);
    hak_region_release(given[1], 2);
}

MODEL_HARNESS(units_extend_apart, setup_given_more, check_three, extend, give_more);

/* ---- growth ------------------------------------------------------------------------------------------------------ */

/* No SuperSlab yet; a range has one or two. */
static void setup_growth(uint32_t super_slabs) {
    library_start(super_slabs, 0, 0, 0);
    reset_had();
    fake_os.maps_at_left = fake_os.reserves_left = -1;
    if (super_slabs == 1) fake_os.window_room = HAK_PAGE_MAP_BYTES + 4 * HAK_MIB; /* for each further range */
}
static void setup_growth_one(void) { setup_growth(1); }
static void setup_growth_two(void) { setup_growth(2); }

static void grow(void) {
    struct hak_slab *first = acquire(1, HAK_UNITS_FREE);
    if (first == NULL) first = acquire(1, HAK_UNITS_NEW_SUPER);
    model_assert(first != NULL, "there is memory");
    model_assert(hak_region_covers(hak_region_start_of(hak_region_range_of_record(first), first)), "units are ours");
    keep(first, 1);
}

static void check_growth(void) {
    uint32_t super_slabs = 0;
    for (uint32_t i = 0; hak_ranges[i] != NULL; i++) super_slabs += hak_ranges[i]->super_slab_count;
    check_units(32 * super_slabs);
}

MODEL_HARNESS_DEEP(growth_range, setup_growth_two, check_growth, grow, grow, take_free);
MODEL_HARNESS_DEEP(growth_ranges, setup_growth_one, check_growth, grow, grow, take_free);

/* Readers of tables that grow: the set of partial slabs, and the purger. */
static void grow_slab(void) {
    void *block = library_take(NULL, PAIR);
    model_assert(block != NULL, "there is memory");
}
static void look_for_partial(void) { library_take(NULL, PAIR); }
static void purge_all(void) { hak_purge_all(NULL); }
static void take_snapshot(void) {
    static struct hak_snapshot snapshot;
    hak_snapshot_take(&snapshot);
    model_assert(snapshot.total.super_slabs <= 1 && snapshot.total.heaps <= 1,
                 "a snapshot shows no more than there is");
}
static void grow_heap(void) {
    struct hak_heap *heap = hak_heap_acquire();
    library_take(heap, PAIR);
}
static void check_all(void) { library_check(); }

MODEL_HARNESS(growth_partial, setup_growth_two, check_all, grow_slab, look_for_partial);
MODEL_HARNESS(growth_purge, setup_growth_two, check_all, grow_slab, purge_all);

MODEL_HARNESS(growth_snapshot, setup_growth_two, check_all, grow_heap, take_snapshot);

/* A span begins in the last unit of a range and goes on in a new SuperSlab. Another thread may take that unit first: then
 * the span begins behind it. */
static void setup_span_at_end(void) {
    library_start(3, 1, 32, 0);
    reset_had();
    hak_region_acquire(31, 1, HAK_UNITS_FREE, false);
    fake_os.maps_at_left = fake_os.reserves_left = -1;
}
static void take_long_span(void) { model_assert(hak_region_acquire_span(33, 1, false) != NULL, "there is memory"); }

MODEL_HARNESS(growth_span, setup_span_at_end, check_all, take_long_span, take_free);

/* The first SuperSlab is used up; the next one needs a step of the tables, which one thread makes and others await or read. */
static void setup_step(void) {
    library_start(2, 1, 0, 0);
    reset_had();
    fake_os.maps_at_left = fake_os.reserves_left = -1;
}
static void setup_steps(void) {
    setup_step();
    hak_ranges[0]->super_slab_limit = 3;
}
static void look_at_all(void) {
    static struct hak_snapshot snapshot;
    hak_snapshot_take(&snapshot);
}
static void grow_on(void) {
    struct hak_slab *first = acquire(32, HAK_UNITS_NEW_SUPER);
    model_assert(first != NULL && hak_region_range_of_record(first) == hak_ranges[0], "the range grows on");
    hak_region_mark(first, 1, PAIR); /* as what others look at */
    hak_region_mark(first, 1, HAK_CLASS_NONE);
    keep(first, 32);
}
static void check_steps(void) {
    model_assert(hak_ranges[0]->table_maker == 0, "nobody makes tables any more");
    model_assert(hak_ranges[0]->table_super_slabs >= hak_ranges[0]->super_slab_count, "R4");
}

MODEL_HARNESS(step_partial, setup_step, check_all, grow_slab, look_for_partial);
MODEL_HARNESS(step_purge, setup_step, check_all, grow_slab, purge_all);
MODEL_HARNESS(step_snapshot, setup_step, check_all, grow_slab, look_at_all);
MODEL_HARNESS(step_two, setup_steps, check_steps, grow_on, grow_on);

/* One SuperSlab more, of a range whose next step of the tables is missing. */
static enum hak_growth grow_by_one(void) {
    uint32_t count = hak_region_super_slabs(hak_ranges[0]);
    enum hak_growth growth;
    do growth = hak_region_grow(hak_ranges[0], &count, 1);
    while (growth == HAK_GROWTH_RACED);
    if (growth == HAK_GROWTH_DONE) hak_in_hand_keep();
    return growth;
}

/* The kernel has room for a part of the step only: each thread is refused, none of them waits for another that waits,
 * and the range does not end. */
static void setup_refused_step(void) {
    setup_steps();
    fake_os.maps_at_left = 1;
}
static void grow_in_vain(void) { model_assert(grow_by_one() == HAK_GROWTH_NO_MEMORY, "there is no memory"); }
static void check_refused_step(void) {
    check_steps();
    model_assert(hak_ranges[0]->super_slab_limit == 3, "the range can grow on");
    model_assert(fake_os.maps_at_left == 1, "nothing of the step is left over");
}

MODEL_HARNESS(step_refused, setup_refused_step, check_refused_step, grow_in_vain, grow_in_vain);
MODEL_HARNESS(step_refused_many, setup_refused_step, check_refused_step, grow_in_vain, grow_in_vain, grow_in_vain);

/* R6: there are tables, and no SuperSlab is to be had. What threads claim in turns is no hole when they are refused. */
static uint32_t had_before;
static void setup_refused_growth(void) {
    setup_steps();
    for (int i = 0; i < 2; i++) model_assert(grow_by_one() == HAK_GROWTH_DONE, "there is memory for the tables");
    had_before = hak_ranges[0]->super_slab_count -= 2; /* the last ones are not there after all */
    hak_os_unmap((void *)(hak_ranges[0]->start + had_before * HAK_SUPER_SLAB_BYTES), 2 * HAK_SUPER_SLAB_BYTES);
    hak_ranges[0]->super_slab_limit = 4;
    fake_os.maps_at_left = 0;
    hak_ranges[0]->was_refused = 1;
}
static void check_refused_growth(void) {
    model_assert(hak_ranges[0]->super_slab_count == had_before, "no SuperSlab is a hole");
    model_assert(hak_ranges[0]->grower == 0, "nobody grows any more");
}

MODEL_HARNESS(growth_refused, setup_refused_growth, check_refused_growth, grow_in_vain, grow_in_vain);

/* Who makes room grows, whoever is refused meanwhile. */
enum { OTHER_MAPPINGS = 8 };

static void *other_mapping(uint32_t number) {
    enum { IN_LAST_WINDOW = 8 };
    return (char *)hak_os_pick_addresses(1, 1, IN_LAST_WINDOW) + number * fake_os.page_bytes;
}
static void setup_room(void) {
    setup_refused_step();
    fake_os.maps_at_left += OTHER_MAPPINGS;
    for (uint32_t i = 0; i < OTHER_MAPPINGS; i++) hak_os_map_at(other_mapping(i), fake_os.page_bytes);
}
static void make_room_and_grow(void) {
    for (uint32_t i = 0; i < OTHER_MAPPINGS; i++) hak_os_unmap(other_mapping(i), fake_os.page_bytes);
    model_assert(grow_by_one() == HAK_GROWTH_DONE, "there is memory");
}
static void try_to_grow(void) {
    enum hak_growth growth = grow_by_one();
    model_assert(growth == HAK_GROWTH_DONE || growth == HAK_GROWTH_NO_MEMORY, "the range does not end");
}

MODEL_HARNESS(step_room, setup_room, check_steps, make_room_and_grow, try_to_grow);

/* Somebody who is not hakmem has the addresses of the step: nobody awaits it, or tries again and again. */
static void setup_foreign_step(void) {
    setup_steps();
    uintptr_t rows = (uintptr_t)hak_ranges[0]->bit_rows[HAK_UNITS_PER_SUPER_SLAB];
    hak_os_map_at((void *)hak_align_up(rows, fake_os.page_bytes), fake_os.page_bytes);
}
static void meet_the_end(void) { model_assert(grow_by_one() == HAK_GROWTH_NO_ROOM, "the range ends"); }
static void check_foreign_step(void) {
    check_steps();
    model_assert(hak_ranges[0]->super_slab_limit == 1, "all know that the range ends");
}

MODEL_HARNESS(step_foreign, setup_foreign_step, check_foreign_step, meet_the_end, meet_the_end, meet_the_end);

/* ---- hints -------------------------------------------------------------------------------------------------------- */

enum { SOME_HINT = HAK_PARTIAL_HINT + MANY };

static HAK_ATOMIC(uint32_t) found_there; /* in the SuperSlab that thread 1 sets the hint of */

static void setup_hints(void) {
    library_start(2, 2, 0, 0);
    found_there = 0;
    hak_hint_set(hak_ranges[0], SOME_HINT, 0);
}
static void clear_hint_of_first(void) {
    hak_hint_clear(hak_ranges[0], SOME_HINT, 0);
    if (hak_atomic_load(&found_there, relaxed) != 0) hak_hint_set(hak_ranges[0], SOME_HINT, 0); /* I1 */
}
static void clear_hint_before(void) { hak_hint_clear(hak_ranges[0], SOME_HINT, 0); }
static void set_hint_of_first(void) {
    hak_atomic_store(&found_there, 1, relaxed);
    hak_hint_set(hak_ranges[0], SOME_HINT, 0);
}
static void set_hint_of_second(void) { hak_hint_set(hak_ranges[0], SOME_HINT, 1); }
static void check_found(uint32_t super_slab) {
    model_assert(hak_hint_next(hak_ranges[0], SOME_HINT, super_slab) == super_slab, "a hint is found");
    model_assert((hak_ranges[0]->summaries[0].hints[SOME_HINT] & 1) != 0, "so is its group");
}
static void check_first_found(void) { check_found(0); }
static void check_second_found(void) { check_found(1); }

MODEL_HARNESS(hint_again, setup_hints, check_first_found, clear_hint_of_first, set_hint_of_first);
MODEL_HARNESS(hint_of_neighbour, setup_hints, check_second_found, clear_hint_before, set_hint_of_second);

/* ---- mappings ----------------------------------------------------------------------------------------------------- */

enum { MAPPING_BYTES = 4 << 20 };

static struct hak_place mapping;
static uint32_t freed_count[MODEL_THREADS];

static struct hak_place place_of_mapping(void) {
    void *start = hak_large_alloc(MAPPING_BYTES, HAK_ALIGNMENT, false);
    model_assert(start != NULL, "there is memory");
    *(uint64_t *)start = model_thread();
    return hak_region_find((uintptr_t)start);
}

/* Where hakmem's thread gives memory back, the program's threads keep it. */
static void keep_freed(void) { hak_background_pay(true); }

static void setup_mapping(void) {
    library_start(1, 1, 2, 0);
    keep_freed();
    for (uint32_t i = 0; i < MODEL_THREADS; i++) freed_count[i] = 0;
    mapping = place_of_mapping();
}

static unsigned mapped_before;
static void setup_no_mapping(void) {
    library_start(1, 1, 2, 0);
    keep_freed();
    mapped_before = fake_os.map_count - fake_os.unmap_count;
}

static void free_mapping_once(void) {
    *(uint64_t *)mapping.start = 1;
    freed_count[model_thread()] += hak_large_free(&mapping);
}
static void free_mapping_twice(void) { freed_count[model_thread()] += hak_large_free(&mapping); }
static void check_freed_once(void) {
    model_assert(freed_count[0] + freed_count[1] == 1, "one of two frees wins");
    model_assert(hak_mapping_cache_bytes() == MAPPING_BYTES, "a freed mapping is kept once");
}

MODEL_HARNESS(mapping_twice, setup_mapping, check_freed_once, free_mapping_twice, free_mapping_twice);

/* Two mappings are made at once: both need the leaf. */
static void alloc_mapping_free(void) {
    struct hak_place place = place_of_mapping();
    model_assert(place.kind == HAK_PLACE_MAPPING && place.bytes == MAPPING_BYTES, "a mapping is found");
    model_assert(hak_large_free(&place), "a mapping is freed");
}
static void check_mappings(void) {
    model_assert(hak_mapping_cache_bytes() <= 2 * (size_t)MAPPING_BYTES, "two mappings are kept at most");
    size_t kept_bytes = hak_mapping_cache_bytes();
    model_assert(hak_mapping_cache_purge() == kept_bytes, "all kept bytes are in places");
}
static void check_one_leaf(void) {
    check_mappings();
    model_assert(fake_os.map_count - fake_os.unmap_count == mapped_before + 1, "one leaf is mapped, and nothing else");
}

MODEL_HARNESS(mapping_leaf, setup_no_mapping, check_one_leaf, alloc_mapping_free, alloc_mapping_free);

/* A freed mapping serves the next, is pushed out, or purged. */
static void take_kept(void) {
    size_t have_bytes;
    char *start = hak_mapping_cache_take(MAPPING_BYTES, &have_bytes);
    if (start != NULL) *(uint64_t *)(void *)start = model_thread();
}
static void purge_kept(void) { hak_mapping_cache_purge(); }
static void setup_small_cache(void) {
    setup_mapping();
    hak_knobs.mapping_cache_bytes = 2 * (size_t)MAPPING_BYTES;
}

/* Whoever has a heap frees with its hand, and without the fence of memory in hand. */
static void setup_mapping_and_heap(void) {
    library_start(1, 1, 2, 1);
    keep_freed();
    mapping = place_of_mapping();
}
static void free_mapping_with_heap(void) {
    library_be(library_heaps[0]);
    *(uint64_t *)mapping.start = 1;
    model_assert(hak_large_free(&mapping), "a mapping is freed");
}

MODEL_HARNESS(mapping_cache_heap, setup_mapping_and_heap, check_mappings, free_mapping_with_heap, take_kept);
MODEL_HARNESS(mapping_cache, setup_mapping, check_mappings, free_mapping_once, take_kept, purge_kept);
MODEL_HARNESS(mapping_push_out, setup_small_cache, check_mappings, free_mapping_once, alloc_mapping_free);

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static struct hak_place run;

static void setup_run_of(uint32_t units) {
    library_start(1, 1, units, 0);
    reset_had();
    for (uint32_t i = 0; i < MODEL_THREADS; i++) freed_count[i] = 0;
    run = hak_region_find((uintptr_t)hak_large_alloc(2 * HAK_UNIT_BYTES, HAK_ALIGNMENT, false));
    model_assert(run.kind == HAK_PLACE_RUN && run.bytes == 2 * HAK_UNIT_BYTES, "a run is found");
}
static void setup_run(void) { setup_run_of(2); }

static void free_run_twice(void) { freed_count[model_thread()] += hak_large_free(&run); }
static void check_run(void) {
    model_assert(freed_count[0] + freed_count[1] == 1, "one of two frees wins");
    check_units(2);
}

/* The page behind the last one of a run is purged, while the run is freed and its unit used, or grows over it. */
enum { PAGE = 4096 };

static void setup_tail(void) {
    setup_run();
    hak_large_free(&run);
    run = hak_region_find((uintptr_t)hak_large_alloc(2 * HAK_UNIT_BYTES - PAGE, HAK_ALIGNMENT, false));
    model_assert(run.bytes == 2 * HAK_UNIT_BYTES - PAGE, "a run ends with a page");
}
static void purge_tail(void) { hak_large_purge_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], run.slab)); }
static void use_last_page(struct hak_slab *first) {
    *(uint64_t *)(hak_region_start_of(hak_ranges[0], first) + 2 * HAK_UNIT_BYTES - PAGE) = 1;
}
static void free_and_use(void) {
    freed_count[0] += hak_large_free(&run);
    struct hak_slab *first = hak_region_acquire(2, 1, HAK_UNITS_FREE, false);
    if (first != NULL) use_last_page(first);
    keep(first, 2);
}
static void alloc_and_use(void) {
    void *start = hak_large_alloc(2 * HAK_UNIT_BYTES, HAK_ALIGNMENT, false);
    if (start == NULL) return;
    struct hak_place place = hak_region_find((uintptr_t)start);
    if (place.kind == HAK_PLACE_RUN) use_last_page(place.slab);
    if (place.kind == HAK_PLACE_RUN) keep(place.slab, 2);
}
static void grow_and_use(void) {
    if (hak_large_resize(&run, 2 * HAK_UNIT_BYTES) != NULL) use_last_page(run.slab);
    freed_count[0] += hak_large_free(&run);
}
static void check_tail(void) {
    model_assert(freed_count[0] == 1, "a run is freed");
    check_units(2);
}

MODEL_HARNESS(run_tail, setup_tail, check_tail, free_and_use, purge_tail);
MODEL_HARNESS_DEEP(run_tail_other, setup_tail, check_tail, free_and_use, purge_tail, alloc_and_use);
MODEL_HARNESS_DEEP(run_tail_grows, setup_tail, check_tail, grow_and_use, purge_tail, alloc_and_use);

/* The same when the page is unmapped. */
static void cut_tail(void) { hak_large_cut_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], run.slab)); }

MODEL_HARNESS(run_cut, setup_tail, check_tail, free_and_use, cut_tail);
MODEL_HARNESS_DEEP(run_cut_grows, setup_tail, check_tail, grow_and_use, cut_tail, alloc_and_use);

/* Who has purged the page gives the run up for the one who freed it, with his hand, and uses its units himself. */
static void setup_tail_and_heap(void) {
    setup_tail();
    library_heaps[0] = hak_heap_acquire();
}
static void use_and_free_with_heap(void) {
    library_be(library_heaps[0]);
    *(uint64_t *)run.start = 1;
    freed_count[0] += hak_large_free(&run);
}
static void purge_tail_and_take(void) {
    purge_tail();
    take_two();
}

MODEL_HARNESS(run_tail_heap, setup_tail_and_heap, check_tail, use_and_free_with_heap, purge_tail_and_take);

/* A run of one unit is freed, and its unit stays with who did it, for another run. */
static void setup_unit_run(void) {
    setup_run();
    hak_large_free(&run);
    run = hak_region_find((uintptr_t)hak_large_alloc(HAK_UNIT_BYTES - PAGE, HAK_ALIGNMENT, false));
}
static struct hak_slab *free_unit(const struct hak_place *place) {
    struct hak_slab *unit = hak_large_free_unit(place);
    freed_count[model_thread()] += unit != NULL || hak_large_free(place);
    return unit;
}
static void free_unit_and_use(void) {
    struct hak_slab *unit = free_unit(&run);
    if (unit == NULL) return;
    char *start = hak_large_use_unit(unit, HAK_UNIT_BYTES, false);
    *(uint64_t *)(void *)(start + HAK_UNIT_BYTES - PAGE) = 1;
    struct hak_place place = hak_region_find((uintptr_t)start);
    freed_count[0]--;
    keep(free_unit(&place), 1);
}
static void free_unit_once(void) { keep(free_unit(&run), 1); }
MODEL_HARNESS(run_unit, setup_unit_run, check_tail, free_unit_and_use, purge_tail);
MODEL_HARNESS(run_unit_twice, setup_unit_run, check_run, free_unit_once, free_run_twice);

MODEL_HARNESS(run_twice, setup_run, check_run, free_run_twice, free_run_twice, take_two);

/* A run that was freed waits, as in the secure build, and comes out before its units are used. */
static void use_and_wait(void) {
    *(uint64_t *)run.start = 1;
    hak_atomic_store(&run.slab->state, HAK_SLAB_NONE, relaxed);
    model_assert(hak_run_quarantine_put(run.slab), "there is a place");
}
static void end_waits_and_use(void) {
    hak_run_quarantine_end();
    take_two();
}
static void check_waits(void) {
    hak_run_quarantine_end();
    check_units(2);
}
MODEL_HARNESS(run_waits, setup_run, check_waits, use_and_wait, end_waits_and_use);

/* Or another one takes its place. */
static struct hak_place pushing;
static void setup_two_runs(void) {
    setup_run_of(3);
    pushing = hak_region_find((uintptr_t)hak_large_alloc(HAK_UNIT_BYTES, HAK_ALIGNMENT, false));
    model_assert(pushing.kind == HAK_PLACE_RUN, "there is another run");
}
static void push_and_use(void) {
    hak_atomic_store(&pushing.slab->state, HAK_SLAB_NONE, relaxed);
    model_assert(hak_run_quarantine_put(pushing.slab), "there is a place");
    take_two();
}
static void check_pushed(void) {
    hak_run_quarantine_end();
    check_units(3);
}
MODEL_HARNESS(run_pushed, setup_two_runs, check_pushed, use_and_wait, push_and_use);

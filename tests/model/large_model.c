/* Large objects: fork while another thread is at one, at each moment of each operation (L1 to L5 of region/large.h);
 * and moves that the kernel refuses while others map what it has unmapped.
 *
 * Thread 0 forks and goes on as the child; thread 1 does one operation. Beside the object that it is done to there is
 * another one, which nobody touches: the child finds it whole, whatever it takes, gives back and purges.
 */
#include "library.h"

#include "region/in_hand.h"

enum { PAGE = 4096, UNITS = 16, MAPPING = 4 << 20, GROWN = 6 << 20 };

/* ---- A world with a run and a mapping that nobody is at, and what is operated on --------------------------------- */

static struct hak_place run, other_run, mapping, other_mapping;

static struct hak_place make(size_t bytes) {
    void *start = hak_large_alloc(bytes, HAK_ALIGNMENT, false);
    model_assert(start != NULL, "there is memory");
    for (size_t at = 0; at < bytes; at += HAK_UNIT_BYTES) library_touch_new((char *)start + at);
    return hak_region_find((uintptr_t)start);
}
static void touch(const struct hak_place *place, size_t bytes) {
    for (size_t at = 0; at < bytes; at += HAK_UNIT_BYTES) library_touch((char *)place->start + at);
}

static void setup_units(uint32_t units) {
    library_start(1, 1, units, 2);
    run = other_run = mapping = other_mapping = (struct hak_place){.kind = HAK_PLACE_FOREIGN};
    fake_os.reserves_left = -1;
}
/* A run of two units, and two free ones behind it; a page is left in its last one. */
static void setup_run(void) {
    setup_units(5);
    other_run = make(HAK_UNIT_BYTES - PAGE);
    run = make(2 * HAK_UNIT_BYTES - PAGE);
}
/* A run that is long enough to move. */
static void setup_long_run(void) {
    setup_units(9);
    run = make(8 * HAK_UNIT_BYTES);
    other_run = make(HAK_UNIT_BYTES - PAGE);
}
static void setup_mappings(void) {
    setup_units(1);
    mapping = make(MAPPING);
    other_mapping = make(MAPPING);
}
static void setup_no_moves(void) {
    setup_mappings();
    fake_os.refuses_moves = true;
}
/* The kernel has addresses behind the mapping. */
static void setup_room_behind(void) {
    setup_units(1);
    other_mapping = make(MAPPING);
    mapping = make(MAPPING);
    fake_os.grows_in_place = true;
}
/* One of the size of the mapping is kept. */
static void setup_kept(void) {
    setup_mappings();
    struct hak_place kept = make(MAPPING);
    hak_large_free(&kept);
}

/* ---- The child --------------------------------------------------------------------------------------------------- */

/* Units of runs that are live, none of which is free or another's; L2. */
static uint32_t count_run_units(const struct hak_range *range, uint32_t *free_units) {
    uint32_t count = 0;
    uint64_t word = range->super_slabs[0].free_units, is_free = word | word >> 32;
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        *free_units += is_free >> unit & 1;
        if (hak_page_map_class(range, unit) != HAK_CLASS_RUN_HEAD || range->slabs[unit].state == HAK_SLAB_NONE)
            continue;
        uint32_t units = (range->slabs[unit].run_pages * PAGE + HAK_UNIT_BYTES - 1) / HAK_UNIT_BYTES;
        model_assert(units != 0, "a live run has units");
        for (uint32_t i = 0; i < units; i++) {
            model_assert((is_free >> (unit + i) & 1) == 0, "a unit of a live run is not free");
            model_assert(i == 0 || hak_page_map_class(range, unit + i) == HAK_CLASS_RUN_BODY,
                         "a live run has its units");
        }
        count += units;
    }
    return count;
}

static void fork_now(void) {
    model_fork();
    hak_thread_heap = library_heaps[0];
    library_in_child();
}

/* Takes all free units, writes to them, and gives them back. */
static void use_all_units(void) {
    struct hak_place had[UNITS];
    uint32_t count = 0;
    fake_os.maps_left = 0;
    for (void *start; (start = hak_large_alloc(HAK_UNIT_BYTES - PAGE, HAK_ALIGNMENT, false)) != NULL; count++) {
        library_touch_new(start);
        had[count] = hak_region_find((uintptr_t)start);
        model_assert(had[count].start == (uintptr_t)start, "what is handed out is found");
    }
    hak_front_purge();
    while (count-- > 0) {
        touch(&had[count], HAK_UNIT_BYTES - PAGE);
        model_assert(hak_large_free(&had[count]), "what was handed out can be freed");
    }
}

/* `units` are in circulation, of which at most `most_lost` are lost; L5. */
static void fork_and_use_units(uint32_t units, uint32_t most_lost) {
    const struct hak_range *range = hak_ranges[0];
    uint32_t free_units = 0;
    fork_now();
    library_check();
    uint32_t run_units = count_run_units(range, &free_units);
    model_assert(run_units + free_units <= units, "no unit is there twice");
    model_assert(run_units + free_units + most_lost >= units, "what another thread had in hand is lost, no more");
    hak_front_purge();
    use_all_units();
    touch(&other_run, HAK_UNIT_BYTES - PAGE);
    model_assert(hak_large_free(&other_run), "a run that nobody was at can be freed");
    library_check();
}
static void fork_in_small_steps(void) { fork_and_use_units(5, 1); }
static void fork_in_frees(void) { fork_and_use_units(5, 2); }
static void fork_in_long_steps(void) { fork_and_use_units(9, 8); }

/* A run that shrinks or grows is live all the time, with the contents that both sizes have. */
static void fork_in_resize(void) {
    fork_in_small_steps();
    struct hak_place place = hak_region_find(run.start);
    model_assert(place.kind == HAK_PLACE_RUN && place.start == run.start, "a run that is resized is there");
    touch(&run, run.bytes < place.bytes ? run.bytes : place.bytes);
    model_assert(hak_large_free(&place), "and can be freed");
    library_check();
}

static void shrink_run(void) { hak_large_resize(&run, HAK_UNIT_BYTES - PAGE); }
static void grow_run(void) { hak_large_resize(&run, 3 * HAK_UNIT_BYTES - PAGE); }
static void free_run(void) { hak_large_free(&run); }
static void make_run(void) { make(2 * HAK_UNIT_BYTES); }
static void free_and_use_unit(void) {
    struct hak_place place = make(HAK_UNIT_BYTES - PAGE);
    hak_in_hand_begin();
    struct hak_slab *unit = hak_large_free_unit(&place);
    void *start = hak_large_use_unit(unit, HAK_UNIT_BYTES, false);
    hak_in_hand_end();
    place = hak_region_find((uintptr_t)start);
    hak_large_free(&place);
}
static void purge_tail(void) {
    hak_in_hand_begin();
    hak_large_purge_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], run.slab));
    hak_in_hand_end();
}
static void move_run(void) { hak_large_resize(&run, 3 << 20); }

MODEL_HARNESS(fork_shrink_run, setup_run, NULL, fork_in_resize, shrink_run);
MODEL_HARNESS(fork_grow_run, setup_run, NULL, fork_in_resize, grow_run);
MODEL_HARNESS(fork_purge_tail, setup_run, NULL, fork_in_resize, purge_tail);
MODEL_HARNESS(fork_free_run, setup_run, NULL, fork_in_frees, free_run);
MODEL_HARNESS(fork_make_run, setup_run, NULL, fork_in_frees, make_run);
MODEL_HARNESS(fork_unit_run, setup_run, NULL, fork_in_small_steps, free_and_use_unit);
MODEL_HARNESS(fork_move_run, setup_long_run, NULL, fork_in_long_steps, move_run);

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

/* What has an entry is there, all of it; what nobody is at, with its contents; and the counts don't wrap. */
static void fork_and_free_mappings(void) {
    fork_now();
    struct hak_place place = hak_region_find(mapping.start);
    touch(&other_mapping, MAPPING);
    if (place.kind == HAK_PLACE_MAPPING) {
        model_assert(place.start == mapping.start, "a mapping is found by its start");
        touch(&place, place.bytes < MAPPING ? place.bytes : MAPPING);
        for (size_t at = 0; at < place.bytes; at += HAK_UNIT_BYTES) library_touch_new((char *)place.start + at);
        model_assert(hak_large_free(&place), "what has an entry can be freed");
    }
    model_assert(hak_large_free(&other_mapping), "a mapping that nobody was at can be freed");
    model_assert(hak_mapping_count <= 2 && hak_mapping_bytes <= 2 * (uint64_t)GROWN,
                 "the counts have what another thread had in hand, no more");
    size_t kept_bytes = hak_mapping_cache_bytes();
    model_assert(hak_mapping_cache_purge() == kept_bytes, "all kept bytes are in places");
}

static void shrink_mapping(void) { hak_large_resize(&mapping, 2 << 20); }
static void move_mapping(void) { hak_large_resize(&mapping, GROWN); }
static void grow_mapping(void) {
    void *start = hak_large_resize(&mapping, GROWN);
    model_assert(start == (void *)mapping.start, "it grows where it is");
}
static void free_mapping(void) { hak_large_free(&mapping); }
static void take_kept(void) {
    struct hak_place place = make(MAPPING);
    hak_large_free(&place);
    hak_mapping_cache_age();
    hak_mapping_cache_purge();
}

MODEL_HARNESS(fork_shrink_mapping, setup_mappings, NULL, fork_and_free_mappings, shrink_mapping);
MODEL_HARNESS(fork_grow_mapping, setup_room_behind, NULL, fork_and_free_mappings, grow_mapping);
MODEL_HARNESS(fork_move_mapping, setup_mappings, NULL, fork_and_free_mappings, move_mapping);
MODEL_HARNESS(fork_refused_move, setup_no_moves, NULL, fork_and_free_mappings, move_mapping);
MODEL_HARNESS(fork_free_mapping, setup_mappings, NULL, fork_and_free_mappings, free_mapping);
MODEL_HARNESS(fork_kept_mapping, setup_kept, NULL, fork_and_free_mappings, take_kept);

/* ---- A move that is refused, and another thread that gets the addresses ------------------------------------------ */

static struct hak_place intruder;

static void map_there(void) { intruder = make(GROWN); }
static void check_both(void) {
    struct hak_place place = hak_region_find(mapping.start);
    model_assert(place.kind == HAK_PLACE_MAPPING && place.bytes == MAPPING, "a refused move changes nothing");
    touch(&place, MAPPING);
    place = hak_region_find(intruder.start);
    model_assert(place.kind == HAK_PLACE_MAPPING && place.bytes == intruder.bytes, "who got the addresses has them");
    touch(&place, place.bytes);
    model_assert(hak_large_free(&place), "and can free them");
    model_assert(hak_mapping_count == 2, "mappings are counted");
}

MODEL_HARNESS(refused_move, setup_no_moves, check_both, move_mapping, map_there);

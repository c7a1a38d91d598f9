/* The heap profile: its tables (P3 and P4 of observe/profile.h; sites and samples are plain data), routes that two
 * threads change, and malloc that is metered while its heap is drained.
 */
#include "front/routes.h"
#include "library.h"
#include "pool/drain.h"
#include "pool/ration.h"

static const uintptr_t one_stack[] = {0x1000, 0x2000}, other_stack[] = {0x3000};
static char blocks[3][64];

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static void setup(void) {
    library_reset();
    hak_profile_seed(1);
    hak_profile_begin(1);
}

static void setup_off(void) {
    library_reset();
    hak_profile_seed(1);
}

static void record_one(void) { hak_profile_record(blocks[0], 10, 1, 1024, 0, one_stack, 2); }
static void record_same(void) { hak_profile_record(blocks[1], 10, 1, 1024, 0, one_stack, 2); }
static void record_and_forget(void) {
    hak_profile_record(blocks[2], 10, 1, 1024, 0, other_stack, 1);
    hak_profile_forget(blocks[2]);
}
static void forget_one(void) { hak_profile_forget(blocks[0]); }
static void write_all(void) { hak_profile_write(1); }
static void begin(void) { hak_profile_begin(1); }
static void end(void) { hak_profile_end(); }

static void check(void) { model_assert(hak_profile_is_on(), "the profile is on"); }

static void setup_recorded(void) {
    setup();
    record_one();
}

static void setup_higher(void) {
    setup();
    hak_profile_change_large(1, 1 << 20);
}
static void look(void) { hak_profile_look(); }
static void check_noted(void) { model_assert(hak_profile_look().peak_bytes == 1 << 20, "what was found is the peak"); }

MODEL_HARNESS_DEEP(profile_same_site, setup, check, record_one, record_same);
MODEL_HARNESS_DEEP(profile_two_sites, setup, check, record_one, record_and_forget);
MODEL_HARNESS_DEEP(profile_written, setup, check, record_one, write_all);
/* The block goes from one thread to another, whose sample gets the entry of the first one, if it comes late enough. */
MODEL_HARNESS(profile_reused_entry, setup_recorded, check, forget_one, record_one);
MODEL_HARNESS(profile_noted, setup_higher, check_noted, record_one, look);
MODEL_HARNESS(profile_began, setup_off, check, begin, record_and_forget);
MODEL_HARNESS_BOUNDED(profile_began_twice, 1, 1, setup_off, check, begin, begin);
MODEL_HARNESS(profile_ended, setup, NULL, end, record_and_forget);

/* Two addresses that have the same place in the table: one was sampled before, the other is now, while a crash asks
 * for both. */
#define EARLIER_BLOCK ((void *)(uintptr_t)0x1000)
#define LATER_BLOCK ((void *)((uintptr_t)0x1000 + ((uintptr_t)1 << 55)))

static void setup_origin(void) {
    setup();
    hak_profile_record(EARLIER_BLOCK, 10, 1, 1024, 0, one_stack, 2);
    hak_profile_forget(EARLIER_BLOCK);
}
static void record_later(void) { hak_profile_record(LATER_BLOCK, 20, 2, 1024, 0, other_stack, 1); }
static void find(const void *block, uint64_t size, const uintptr_t *stack, uint64_t depth) {
    struct hak_profile_origin origin;
    if (!hak_profile_find(block, &origin)) return;
    model_assert(origin.size == size && origin.depth == depth && origin.addresses[0] == stack[0],
                 "what is found of a block is its own");
}
static void find_both(void) {
    find(EARLIER_BLOCK, 10, one_stack, 2);
    find(LATER_BLOCK, 20, other_stack, 1);
}
static void check_later(void) {
    struct hak_profile_origin origin;
    model_assert(!hak_profile_find(EARLIER_BLOCK, &origin) && hak_profile_find(LATER_BLOCK, &origin),
                 "the later one has the place");
}
MODEL_HARNESS(profile_origin, setup_origin, check_later, record_later, find_both);

/* ---- Stacks ------------------------------------------------------------------------------------------------------ */

/* Two addresses that have the same place among the rules: what is remembered of one is never taken for the other's. */
static uintptr_t one_code, other_code;
static uint32_t place_of_rule(uintptr_t code) { return (uint32_t)((code * UINT64_C(0x9E3779B97F4A7C15)) >> 52); }
static void setup_rules(void) {
    library_reset();
    for (one_code = 0x1000, other_code = one_code + 1; place_of_rule(other_code) != place_of_rule(one_code);)
        other_code++;
}
static void ask_for_rules(void) {
    for (int i = 0; i < 2; i++) {
        model_assert(library_rule_of(one_code) == one_code, "a rule is the address's own");
        model_assert(library_rule_of(other_code) == other_code, "a rule is the address's own");
    }
}
MODEL_HARNESS(stack_rules, setup_rules, NULL, ask_for_rules, ask_for_rules);

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

enum { FIRST = 80, LAST = 81 }; /* of the sizes that the group of 1280 bytes serves */

static void setup_routes(void) {
    library_reset();
    library_fill_routes(FIRST, LAST);
}
static void meter(void) { library_change_routes(0, true, FIRST, LAST); }
static void stop_metering(void) { library_change_routes(0, false, FIRST, LAST); }
static void open_group(void) { library_change_routes(hak_size_class_of(FIRST * HAK_ALIGNMENT), true, FIRST, LAST); }

static void check_routes(bool is_metered) {
    for (size_t i = FIRST; i <= LAST; i++) {
        uint32_t size_class = hak_size_class_of(i * HAK_ALIGNMENT);
        model_assert(hak_routes_bin_of(i * HAK_ALIGNMENT) == (is_metered ? hak_sampled_class(size_class) : size_class),
                     "routes are what the last change made them");
    }
}
static void check_metered(void) { check_routes(true); }
static void check_not_metered(void) { check_routes(false); }
static void setup_metered_routes(void) {
    setup_routes();
    meter();
}

MODEL_HARNESS(routes_change, setup_routes, check_metered, meter, open_group);
MODEL_HARNESS(routes_change_back, setup_metered_routes, check_not_metered, stop_metering, open_group);

/* ---- Metered malloc ---------------------------------------------------------------------------------------------- */

/* A heap with a few blocks in a ration. */
static void setup_heap(void) {
    library_start(1, 1, 3, 1);
    struct hak_heap *heap = library_heaps[0];
    hak_thread_heap = heap;
    hak_front_refill(MANY);
    hak_heap_begin_slow_path(heap);
    hak_heap_close_bin(heap, MANY);
    hak_ration_fill(heap, MANY, 3);
    hak_heap_open_bin(heap, MANY);
    hak_heap_end_slow_path(heap);
}
static void *taken[2];
static void take_two(void) {
    hak_thread_heap = library_heaps[0];
    for (int i = 0; i < 2; i++) taken[i] = library_take_of_ration(MANY);
}
static void drain(void) { library_drain(library_heaps[0]); }
static void check_taken(void) {
    uint32_t live = (taken[0] != NULL) + (taken[1] != NULL);
    model_assert(taken[0] == NULL || taken[0] != taken[1], "a block is taken once");
    model_assert(library_check() == live, "every other block is free, or in a bin");
}

MODEL_HARNESS(metered_drain, setup_heap, check_taken, take_two, drain);

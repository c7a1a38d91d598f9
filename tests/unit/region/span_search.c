/* The search for a span reads as much of a large fragmented heap as of a small one, and who takes one or gives it back
 * changes hints a word at a time. Counts what region/units.c and region/hints.c do to shared memory. */
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

#include "fake_os.h"

#include "base/atomic.h"

static uint64_t loads, hint_changes;
#undef hak_atomic_load
#define hak_atomic_load(location, order) (loads++, atomic_load_explicit((location), memory_order_##order))
#pragma push_macro("hak_atomic_fetch_or")
#pragma push_macro("hak_atomic_fetch_and")
#undef hak_atomic_fetch_or
#undef hak_atomic_fetch_and
#define hak_atomic_fetch_or(location, bits, order)                                                                     \
    (hint_changes++, atomic_fetch_or_explicit((location), (bits), memory_order_##order))
#define hak_atomic_fetch_and(location, bits, order)                                                                    \
    (hint_changes++, atomic_fetch_and_explicit((location), (bits), memory_order_##order))
#include "region/hints.c"
#pragma pop_macro("hak_atomic_fetch_or")
#pragma pop_macro("hak_atomic_fetch_and")
#include "region/units.c"

enum { FEW = 256, MANY = 16384, LEVELS_MORE = 8 };

/* A heap of so many SuperSlabs, all taken, in a process that has address space for few more. */
static struct hak_range *start(uint32_t super_slabs) {
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    struct hak_range *range = hak_region_range(0);
    uint32_t first = 0;
    fake_os.address_space_room = fake_os.mapped_bytes + HAK_GIB; /* for tables, not for the heap */
    if (hak_region_grow(range, &first, super_slabs) == HAK_GROWTH_DONE) hak_in_hand_keep();
    assert_true(hak_atomic_load(&range->table_super_slabs, relaxed) >= super_slabs);
    hak_atomic_store(&range->super_slab_count, super_slabs, relaxed);
    return range;
}

/* Units `first`..`end` of each SuperSlab from number `from` on are free. */
static void give_back_in_each(struct hak_range *range, uint32_t from, uint32_t first, uint32_t end) {
    for (uint32_t i = from; i < hak_region_super_slabs(range); i++)
        add_span(range, i * HAK_UNITS_PER_SUPER_SLAB + first, i * HAK_UNITS_PER_SUPER_SLAB + end, FRESH);
}

static uint64_t loads_to_find(struct hak_range *range, uint32_t count, uint32_t alignment, uint32_t expected) {
    loads = 0;
    struct hak_slab *record = hak_region_acquire_span(count, alignment, false);
    uint64_t result = loads;
    assert_ptr_equal(record, expected == UINT32_MAX ? NULL : range->slabs + expected);
    return result;
}

/* Every SuperSlab has free units, at both ends too; at the top of the heap is the run that is wanted. */
static uint64_t fragmented(uint32_t super_slabs) {
    struct hak_range *range = start(super_slabs);
    uint32_t top = super_slabs * HAK_UNITS_PER_SUPER_SLAB - 48;
    give_back_in_each(range, 0, 0, 15);
    give_back_in_each(range, 0, 17, 32);
    add_span(range, top, top + 1, FRESH);
    add_span(range, top + 31, top + 33, FRESH);
    return loads_to_find(range, 48, 1, top);
}

/* At every second border is a run that is a bit too short. */
static uint64_t just_too_short(uint32_t super_slabs) {
    struct hak_range *range = start(super_slabs);
    uint32_t top = (super_slabs - 2) * HAK_UNITS_PER_SUPER_SLAB;
    for (uint32_t i = 1; i + 2 < super_slabs; i += 2) add_span(range, i * 32 - 20, i * 32 + 20, FRESH);
    add_span(range, top, top + 60, FRESH);
    return loads_to_find(range, 46, 1, top);
}

/* Nothing is long enough, and there is no memory. */
static uint64_t nothing(uint32_t super_slabs) {
    struct hak_range *range = start(super_slabs);
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    give_back_in_each(range, 0, 0, 15);
    give_back_in_each(range, 0, 17, 32);
    return loads_to_find(range, 48, 1, UINT32_MAX);
}

/* Whole SuperSlabs, one by one. */
static uint64_t whole(uint32_t super_slabs) {
    struct hak_range *range = start(super_slabs);
    uint32_t top = super_slabs * HAK_UNITS_PER_SUPER_SLAB - 128;
    for (uint32_t i = 0; i * 32 + 64 < top; i += 2) add_span(range, i * 32, i * 32 + 32, FRESH);
    add_span(range, top, top + 128, FRESH);
    return loads_to_find(range, 100, 1, top);
}

/* In a process of its own: there is one heap in each. */
static uint64_t loads_in_child(uint64_t (*find)(uint32_t super_slabs), uint32_t super_slabs) {
    int ends[2];
    uint64_t result = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        result = find(super_slabs);
        _exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
    }
    assert_int_equal(read(ends[0], &result, sizeof result), sizeof result);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return result;
}

static void expect_no_more(uint64_t (*find)(uint32_t super_slabs)) {
    uint64_t few = loads_in_child(find, FEW), many = loads_in_child(find, MANY);
    assert_in_range(many, 1, few + LEVELS_MORE);
}

static void in_a_fragmented_heap(void **state) {
    (void)state;
    expect_no_more(fragmented);
}
static void where_runs_are_just_too_short(void **state) {
    (void)state;
    expect_no_more(just_too_short);
}
static void where_nothing_is_long_enough(void **state) {
    (void)state;
    expect_no_more(nothing);
}
static void among_whole_super_slabs(void **state) {
    (void)state;
    expect_no_more(whole);
}

/* Of a run of many SuperSlabs: the words of each are changed, and looked at a few times; of hints, a few words per
 * group. */
static void taking_and_giving_back(void **state) {
    (void)state;
    enum {
        SUPER_SLABS = 512,
        GROUPS = SUPER_SLABS / 64,
        LOADS_EACH = 8 + HAK_UNITS_PER_SUPER_SLAB /* of HAK_WALK */,
        CHANGES_PER_GROUP = 64
    };
    struct hak_range *range = start(SUPER_SLABS + 3);
    uint32_t unit = 17, count = (SUPER_SLABS + 1) * HAK_UNITS_PER_SUPER_SLAB;
    release_span(range, unit, unit + count);
    for (int round = 0; round < 3; round++) {
        loads = hint_changes = 0;
        struct hak_slab *record = hak_region_acquire_span(count, 1, false);
        assert_ptr_equal(record, range->slabs + unit);
        hak_region_release(record, count);
        assert_in_range(loads, 0, LOADS_EACH * SUPER_SLABS);
        assert_in_range(hint_changes, 0, CHANGES_PER_GROUP * GROUPS);
    }
}

/* A thread that is not in the child had given back all words of a group, and told no hint yet. */
static void forked_while_giving_back(void **state) {
    (void)state;
    enum { GROUP = 64, SUPER_SLABS = 3 * GROUP };
    struct hak_range *range = start(SUPER_SLABS);
    for (uint32_t i = GROUP; i < 2 * GROUP; i++)
        hak_atomic_store(&range->super_slabs[i].free_units, FRESH_BITS, relaxed);
    assert_int_equal(hak_hint_next(range, 0, 0), HAK_NO_SUPER_SLAB);
    hak_region_recover_around_after_fork(range, 2 * GROUP - 1);
    for (uint32_t i = GROUP; i < 2 * GROUP; i++) {
        assert_int_equal(hak_hint_next(range, HAK_RUN_HINTS - 1, i), i);
        if (i + 1 < 2 * GROUP) assert_int_equal(hak_hint_next(range, HAK_SPAN_HINT + HAK_SPAN_HINTS - 1, i), i);
    }
    assert_int_equal(hak_hint_next(range, HAK_RUN_HINTS - 1, 2 * GROUP), HAK_NO_SUPER_SLAB);
}

UNIT_MAIN(cmocka_unit_test(in_a_fragmented_heap), cmocka_unit_test(where_runs_are_just_too_short),
          cmocka_unit_test(where_nothing_is_long_enough), cmocka_unit_test(among_whole_super_slabs),
          cmocka_unit_test(taking_and_giving_back), cmocka_unit_test(forked_while_giving_back))

/* region/large.h in the secure build: what is known of an object, and the guards behind it. A guard that is forgotten
 * makes a program crash that does nothing wrong: so all that can be used is tried out, over and over, while objects are
 * made, resized, moved, kept, purged, cut, forked and freed, and the kernel refuses. */
#include "large_fixture.h"

#include "allowance.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/mapping_cache.h"
#include "region/run_quarantine.h"

enum { PAGE = 4096, GUARDS, FORBIDDEN, NONE };

/* Runs up to 2 MiB, mappings above. */
static void start(int how) {
    allow_free_memory();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 2 * HAK_MIB, relaxed);
    fake_os.has_guards = how == GUARDS;
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    if (how == NONE) fake_os_refuse(FAKE_FORBID, 1, SIZE_MAX);
}

/* All that the object has, and its slack. */
static void expect_usable(const char *block) {
    struct hak_place place = place_of(block);
    size_t bytes = place.bytes + hak_large_slack_bytes(place.bytes);
    assert_int_equal(bytes % PAGE, 0);
    for (size_t at = 0; at < bytes; at += PAGE) assert_true(unit_is_accessible(block + at));
}

static void expect_closed(const char *start, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE) assert_false(unit_is_accessible(start + at));
}

static char *end_of(const char *block) {
    size_t usable = place_of(block).bytes;
    return (char *)(uintptr_t)block + usable + hak_large_slack_bytes(usable);
}

/* ---- What is known of an object ---------------------------------------------------------------------------------- */

static void exact_sizes(void **state) {
    (void)state;
    start(GUARDS);
    const size_t sizes[] = {HAK_SMALL_MAX + 1,  65536 - 8,       65536 - 7,       65536,      1000000,
                            2 * HAK_MIB - PAGE, 2 * HAK_MIB + 1, 8 * HAK_MIB - 8, 8 * HAK_MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *block = alloc(sizes[i]);
        size_t slack = hak_large_slack_bytes(sizes[i]);
        assert_int_equal(place_of(block).bytes, sizes[i]);
        assert_true(slack >= HAK_CANARY_BYTES && slack < PAGE + HAK_CANARY_BYTES);
        assert_int_equal((sizes[i] + slack) % PAGE, 0);
        expect_usable(block);
        assert_ptr_equal(resize(block, sizes[i] + 1), block);
        assert_int_equal(place_of(block).bytes, sizes[i] + 1);
        assert_true(free_block(block));
    }
}

/* It stays, wherever the object goes. */
static void origins(void **state) {
    (void)state;
    start(GUARDS);
    static const size_t sizes[] = {100000, 3 * HAK_MIB};
    for (int i = 0; i < 2; i++) {
        char *block = alloc(sizes[i]), *behind = alloc(sizes[i]);
        struct hak_place place = place_of(block);
        assert_int_equal(hak_large_origin(&place), HAK_FROM_MALLOC);
        hak_large_set_origin(&place, 0xFE);
        assert_int_equal(hak_large_origin(&place), 0xFE);
        assert_int_equal(place_of(block).bytes, sizes[i]);
        static const size_t later[] = {99999, 90000, 700000, 8000000, 9000000, 4000000, 3999990};
        for (size_t j = 0; j < sizeof later / sizeof *later; j++) {
            char *resized = resize(block, later[j]);
            if (resized != NULL) block = resized;
            place = place_of(block);
            assert_int_equal(hak_large_origin(&place), 0xFE);
            if (resized != NULL) assert_int_equal(place.bytes, later[j]);
            expect_usable(block);
        }
        assert_true(free_block(block));
        assert_true(free_block(behind));
        assert_int_equal(hak_region_find((uintptr_t)block).kind, HAK_PLACE_FOREIGN);
    }
}

static void origin_of_a_run_that_moves(void **state) {
    (void)state;
    start(GUARDS);
    char *run = alloc(HAK_MIB), *behind = alloc(HAK_UNIT_BYTES);
    struct hak_place place = place_of(run);
    assert_ptr_equal(behind, run + HAK_MIB + HAK_UNIT_BYTES);
    hak_large_set_origin(&place, HAK_FROM_NEW_ARRAY);
    char *moved = resize(run, 4 * HAK_MIB - 100);
    assert_non_null(moved);
    assert_ptr_not_equal(moved, run);
    place = place_of(moved);
    assert_int_equal(place.kind, HAK_PLACE_MAPPING);
    assert_int_equal(place.bytes, 4 * HAK_MIB - 100);
    assert_int_equal(hak_large_origin(&place), HAK_FROM_NEW_ARRAY);
    expect_usable(moved);
    assert_false(unit_is_accessible(end_of(moved)));
    expect_closed(run, HAK_MIB + HAK_UNIT_BYTES);
    hak_run_quarantine_end();
    for (size_t at = 0; at < HAK_MIB + HAK_UNIT_BYTES; at += PAGE) assert_true(unit_is_accessible(run + at));
}

/* ---- Guards ------------------------------------------------------------------------------------------------------ */

static void behind_runs(void **state) {
    (void)state;
    start(GUARDS);
    char *run = alloc(HAK_UNIT_BYTES + 5000), *full = alloc(HAK_UNIT_BYTES - 8);
    for (char *at = end_of(run); at < run + 2 * HAK_UNIT_BYTES; at += PAGE) assert_false(unit_is_accessible(at));
    assert_ptr_equal(end_of(full), full + HAK_UNIT_BYTES); /* no page is left */
    assert_int_equal(hak_large_purge_tail(hak_region_range(0), 0), 0);
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES - 3 * PAGE), run);
    expect_usable(run);
    assert_false(unit_is_accessible(end_of(run)));
    assert_int_equal(hak_large_cut_tail(hak_region_range(0), 0), 2 * PAGE);
    assert_ptr_equal(resize(run, 100000), run);
    expect_usable(run);
    assert_false(unit_is_accessible(end_of(run)));
    assert_true(free_block(run));
    expect_closed(run, 2 * HAK_UNIT_BYTES);
    hak_run_quarantine_end();
    for (char *at = run; at < run + 2 * HAK_UNIT_BYTES; at += PAGE) assert_true(unit_is_accessible(at));
}

static void behind_mappings_as(int how) {
    start(how);
    char *mapping = alloc(5 * HAK_MIB);
    assert_int_equal(unit_is_accessible(end_of(mapping)), how == NONE);
    fake_os.grows_in_place = true;
    assert_ptr_equal(resize(mapping, 4 * HAK_MIB), mapping);
    expect_usable(mapping);
    assert_int_equal(unit_is_accessible(end_of(mapping)), how == NONE);
    fake_os.grows_in_place = false;
    memset(mapping, 7, 4 * HAK_MIB);
    char *moved = resize(mapping, 9 * HAK_MIB);
    assert_non_null(moved);
    assert_int_equal(moved[4 * HAK_MIB - 1], 7);
    expect_usable(moved);
    assert_int_equal(unit_is_accessible(end_of(moved)), how == NONE);
    fake_os_refuse(FAKE_UNMAP, 1, SIZE_MAX);
    assert_true(free_block(moved));
    fake_os_refuse_nothing();
    if (how == NONE) fake_os_refuse(FAKE_FORBID, 1, SIZE_MAX);
    char *again = alloc(8 * HAK_MIB); /* of what the kernel didn't take, and is longer */
    assert_ptr_equal(again, moved);
    assert_int_equal(place_of(again).bytes, 8 * HAK_MIB);
    expect_usable(again);
    assert_int_equal(unit_is_accessible(end_of(again)), how == NONE);
    assert_true(free_block(again));
    assert_int_equal(hak_mapping_cache_bytes(), 0); /* it has gone back */
}
static void behind_mappings(void **state) {
    (void)state;
    behind_mappings_as(GUARDS);
}
static void behind_mappings_forbidden(void **state) {
    (void)state;
    behind_mappings_as(FORBIDDEN);
}
static void behind_mappings_refused(void **state) {
    (void)state;
    behind_mappings_as(NONE);
}

/* Where each costs a mapping, so many and no more; and those that were freed make room. */
static void bounded(void **state) {
    (void)state;
    enum { MOST = 1024, COUNT = MOST + 10 };
    static char *blocks[COUNT];
    start(FORBIDDEN);
    hak_atomic_store(&hak_knobs.mapping_cache_bytes, 0, relaxed);
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = alloc(3 * HAK_MIB);
        assert_int_equal(unit_is_accessible(end_of(blocks[i])), i >= MOST);
    }
    assert_true(free_block(blocks[5]));
    assert_false(unit_is_accessible(end_of(alloc(3 * HAK_MIB))));
    assert_true(unit_is_accessible(end_of(alloc(3 * HAK_MIB))));
}

/* A guard that the kernel doesn't take away: its page is nobody's, and nobody gets it. */
static void not_taken_away(void **state) {
    (void)state;
    start(GUARDS);
    char *run = alloc(HAK_UNIT_BYTES + 5000), *mapping = alloc(5 * HAK_MIB), *other = alloc(6 * HAK_MIB);
    fake_os_refuse(FAKE_UNGUARD, 1, SIZE_MAX);
    assert_null(resize(run, HAK_UNIT_BYTES)); /* it would stay as large as it is */
    assert_int_equal(place_of(run).bytes, HAK_UNIT_BYTES + 5000);
    assert_null(resize(run, 3 * HAK_UNIT_BYTES));
    assert_true(free_block(run));
    assert_true(free_block(mapping));
    assert_non_null(resize(other, 8 * HAK_MIB));
    hak_run_quarantine_end();
    fake_os_refuse_nothing();
    for (int i = 0; i < 20; i++) expect_usable(alloc(HAK_UNIT_BYTES));
    expect_usable(alloc(5 * HAK_MIB));
}

/* The same of a run that doesn't wait, because the program keeps what is free. */
static void not_taken_away_from_what_is_kept(void **state) {
    (void)state;
    start(GUARDS);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, hak_knob_table[HAK_KNOB_dirty_limit_bytes].highest, relaxed);
    char *runs[3];
    for (int i = 0; i < 3; i++) runs[i] = alloc(HAK_UNIT_BYTES + 5000);
    fake_os_refuse(FAKE_UNGUARD, 1, SIZE_MAX);
    for (int i = 0; i < 3; i++) assert_true(free_block(runs[i]));
    fake_os_refuse_nothing();
    for (int i = 0; i < 40; i++) expect_usable(alloc(2 * HAK_UNIT_BYTES - 100));
}

/* ---- Any sequence ------------------------------------------------------------------------------------------------ */

enum { OBJECTS = 24 };
static char *objects[OBJECTS];
static uint64_t seed;

static size_t pick(size_t below) { return unit_random(&seed) % below; }

static size_t pick_size(void) {
    static const size_t most[] = {3 * HAK_UNIT_BYTES, 2 * HAK_MIB, 9 * HAK_MIB};
    size_t bytes = HAK_SMALL_MAX + 1 + pick(most[pick(3)]);
    return pick(3) == 0 ? hak_align_up(bytes, PAGE) : bytes;
}

/* The first word of each page. */
static void mark(char *block) {
    size_t bytes = place_of(block).bytes;
    for (size_t at = 0; at + 8 <= bytes; at += PAGE) *(uint64_t *)(void *)(block + at) = bytes + at;
    memset(block + bytes, 1, hak_large_slack_bytes(bytes));
}
static void expect_marked(const char *block, size_t had, size_t bytes) {
    for (size_t at = 0; at + 8 <= had && at + 8 <= bytes; at += PAGE)
        assert_int_equal(*(const uint64_t *)(const void *)(block + at), had + at);
}

static void refuse_something(void) {
    static const enum fake_call_kind kinds[] = {FAKE_GUARD, FAKE_UNGUARD, FAKE_FORBID, FAKE_COMMIT, FAKE_UNMAP,
                                                FAKE_REMAP, FAKE_MOVE,    FAKE_PURGE,  FAKE_MAP,    FAKE_MAP_AT};
    if (pick(3) == 0) fake_os_refuse(kinds[pick(sizeof kinds / sizeof *kinds)], 1 + pick(2), 1 + pick(3));
    else fake_os_refuse_nothing();
    fake_os.grows_in_place = pick(2) == 0;
}

static void change(void) {
    size_t at = pick(OBJECTS);
    char *block = objects[at];
    if (block == NULL) {
        objects[at] = hak_large_alloc(pick_size(), pick(4) == 0 ? HAK_UNIT_BYTES : HAK_ALIGNMENT, pick(4) == 0);
        if (objects[at] != NULL) mark(objects[at]);
        return;
    }
    size_t had = place_of(block).bytes, bytes = pick_size();
    expect_marked(block, had, had);
    if (pick(2) == 0) {
        objects[at] = NULL;
        assert_true(free_block(block));
        return;
    }
    char *resized = resize(block, bytes);
    if (resized != NULL) objects[at] = block = resized;
    assert_int_equal(place_of(block).bytes, resized != NULL ? bytes : had);
    expect_marked(block, had, place_of(block).bytes);
    mark(block);
}

static void give_back(void) {
    struct hak_range *range = hak_region_range(0);
    uint32_t units = hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
    uint32_t unit = (uint32_t)pick(units + 1);
    bool is_head = unit < units && hak_page_map_class(range, unit) == HAK_CLASS_RUN_HEAD;
    switch (pick(12)) {
    case 0: hak_mapping_cache_purge(); break;
    case 1: hak_region_purge_units(1 + pick(64), true); break;
    case 2: hak_region_unmap_units(pick(4) * HAK_SUPER_SLAB_BYTES); break;
    case 3:
        if (is_head) hak_large_purge_tail(range, unit);
        break;
    case 4:
        if (is_head) hak_large_cut_tail(range, unit);
        break;
    case 5: hak_run_quarantine_end(); break;
    default: break;
    }
}

/* What is free for all can be used, all of it: a unit may become a slab, and what is kept another object. */
static void expect_free_usable(void) {
    const struct hak_range *range = hak_region_range(0);
    for (uint32_t unit = 0; unit < hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB; unit++) {
        uint64_t word = hak_atomic_load(&range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].free_units, relaxed);
        bool is_usable = ((hak_units_dirty(word) | hak_units_fresh(word)) >> unit % HAK_UNITS_PER_SUPER_SLAB & 1) != 0;
        const char *start = (const char *)range->start + ((size_t)unit << HAK_UNIT_SHIFT);
        for (size_t at = 0; is_usable && at < HAK_UNIT_BYTES; at += PAGE) assert_true(unit_is_accessible(start + at));
    }
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t word = ((const uint64_t *)hak_kept_mappings)[i];
        const char *start = (const char *)hak_kept_start(word);
        for (size_t page = 0; page < hak_kept_pages(word); page++) assert_true(unit_is_accessible(start + page * PAGE));
    }
}

static void expect_all_usable(void) {
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i] != NULL) expect_usable(objects[i]);
    expect_free_usable();
}

static void change_much(int turns) {
    for (int i = 0; i < turns; i++) {
        refuse_something();
        change();
        give_back();
        if (i % 40 == 0) expect_all_usable();
    }
    fake_os_refuse_nothing();
    expect_all_usable();
}

static void fork_and_change(int turns) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        change_much(turns);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void any_sequence(int how) {
    start(how == GUARDS ? GUARDS : FORBIDDEN);
    for (uint64_t turn = 1; turn <= 8; turn++) {
        seed = turn;
        change_much(400);
        fork_and_change(100);
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i] != NULL) assert_true(free_block(objects[i]));
    memset(objects, 0, sizeof objects);
    expect_all_usable();
}
static void any_sequence_with_guards(void **state) {
    (void)state;
    any_sequence(GUARDS);
}
static void any_sequence_without_guards(void **state) {
    (void)state;
    any_sequence(FORBIDDEN);
}

UNIT_MAIN(cmocka_unit_test(exact_sizes), cmocka_unit_test(origins), cmocka_unit_test(origin_of_a_run_that_moves),
          cmocka_unit_test(behind_runs), cmocka_unit_test(behind_mappings), cmocka_unit_test(behind_mappings_forbidden),
          cmocka_unit_test(behind_mappings_refused), cmocka_unit_test(bounded), cmocka_unit_test(not_taken_away),
          cmocka_unit_test(not_taken_away_from_what_is_kept), cmocka_unit_test(any_sequence_with_guards),
          cmocka_unit_test(any_sequence_without_guards))

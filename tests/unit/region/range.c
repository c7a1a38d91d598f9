/* region/range.c: reserving, growing, and finding what lies at an address. */
#include "unit.h"

#include <sys/mman.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/region.h"
#include "region/units.h"

enum { TABLES = 4, ONE_SUPER_SLAB_ROOM = HAK_PAGE_MAP_BYTES + (4 << 20) };

static bool start_with_room(size_t room) {
    fake_os.window_room = room;
    hak_size_class_initialize(0);
    return hak_region_initialize();
}

static struct hak_slab *acquire(uint32_t units, enum hak_unit_source source) {
    return hak_region_acquire(units, 1, source, false);
}

static uint32_t limit_of(const struct hak_range *range) { return hak_atomic_load(&range->super_slab_limit, relaxed); }

/* ---- How many addresses it has ----------------------------------------------------------------------------------- */

static void expect_first_range(size_t room, size_t bytes) {
    assert_true(start_with_room(room));
    struct hak_range *range = hak_region_range(0);
    assert_int_equal(limit_of(range) * HAK_SUPER_SLAB_BYTES, bytes);
    assert_int_equal(range->start % HAK_SUPER_SLAB_BYTES, 0);
    assert_int_equal(range->number, 0);
    assert_int_equal(hak_atomic_load(&hak_window.start, relaxed), range->start);
    assert_int_equal((uintptr_t)range->page_map, range->start - HAK_PAGE_MAP_BYTES);
    for (size_t unit = 0; unit < HAK_NEAR_UNITS; unit += 4096)
        assert_int_equal(hak_page_map_class(range, unit), HAK_CLASS_NONE);
    assert_int_equal(hak_page_map_class(range, HAK_NEAR_UNITS - 1), HAK_CLASS_NONE);
    assert_null(hak_region_range(1));
    assert_int_equal(hak_region_sums().super_slabs, 0);
    assert_true(fake_os.mapped_bytes < HAK_NEAR_UNITS + 2 * HAK_MIB); /* whatever its size */
    assert_int_equal(hak_region_sums().metadata_bytes, fake_os.mapped_bytes);
}

static void as_large_as_can_be(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it knows few addresses */
#endif
    expect_first_range(SIZE_MAX, (size_t)HAK_RANGE_MOST_SUPER_SLABS * HAK_SUPER_SLAB_BYTES);
}
static void below_16_tib(void **state) {
    (void)state;
    expect_first_range((size_t)HAK_RANGE_MOST_SUPER_SLABS * HAK_SUPER_SLAB_BYTES, 64 * HAK_GIB);
}
static void below_64_gib(void **state) {
    (void)state;
    expect_first_range(64 * HAK_GIB, 8 * HAK_GIB);
}
static void one_super_slab(void **state) {
    (void)state;
    expect_first_range(ONE_SUPER_SLAB_ROOM, 2 * HAK_MIB);
}

/* What was made is for nobody else. */
static struct hak_range *new_super_slabs(uint32_t *first, uint32_t *count) {
    struct hak_range *range = hak_region_new_super_slabs(first, count);
    if (range != NULL) hak_in_hand_keep();
    return range;
}

/* Neither the heap nor its tables become huge pages where the system gives them unasked. */
static void no_huge_pages(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    uint32_t number, count;
    assert_non_null(new_super_slabs(&number, &count));
    size_t refused = 0, mapped = 0;
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++) {
        const struct fake_call *call = &fake_os.calls[i];
        if (call->kind == FAKE_MAP_AT && call->bytes >= 2 * fake_os.page_bytes) mapped += call->bytes;
        if (call->kind == FAKE_NO_HUGE && call->bytes >= 2 * fake_os.page_bytes) refused += call->bytes;
    }
    assert_int_equal(refused, mapped);
}

/* Something lies where the range, or one of its tables, was to be: it is elsewhere then. */
static void occupied_addresses(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it knows few addresses */
#endif
    assert_true(start_with_room(SIZE_MAX));
    const struct hak_range *range = hak_region_range(0);
    const void *parts[] = {range,        (const void *)range->page_map, range->groups, range->super_slabs,
                           range->slabs, (const void *)range->bit_rows};
    enum { PARTS = sizeof parts / sizeof parts[0] };
    ptrdiff_t offsets[PARTS];
    for (size_t i = 0; i < PARTS; i++) offsets[i] = (const char *)parts[i] - (const char *)range;
    hak_atomic_store(&hak_ranges[0], NULL, relaxed); /* forgotten */
    uintptr_t window = hak_os_pick_addresses(17 * 1024 * HAK_GIB, HAK_SUPER_SLAB_BYTES, 0);
    for (size_t i = 0; i < PARTS; i++) {
        size_t before = fake_os.mapped_bytes;
        void *other = (void *)(window + (uintptr_t)offsets[i]);
        assert_int_equal(hak_os_map_at(other, fake_os.page_bytes), HAK_OS_MAPPED);
        *(char *)other = 1;
        fake_os.window_start = window;
        assert_true(hak_region_initialize());
        const struct hak_range *made = hak_region_range(0);
        assert_true((uintptr_t)made != window);
        assert_true(limit_of(made) >= HAK_SUPER_SLABS_PER_GROUP);
        assert_int_equal(*(char *)other, 1);
        hak_os_unmap(other, fake_os.page_bytes);
        assert_int_equal(fake_os.mapped_bytes - before, hak_region_sums().metadata_bytes); /* nothing is left there */
        hak_atomic_store(&hak_ranges[0], NULL, relaxed);
    }
}

static void refused_tables(void **state) {
    (void)state;
    for (size_t call = 1; call <= 1 + TABLES; call++) {
        fake_os_refuse(FAKE_MAP_AT, call, SIZE_MAX);
        assert_false(start_with_room(SIZE_MAX));
        assert_int_equal(fake_os.mapped_bytes, 0);
        assert_null(hak_region_range(0));
        assert_null(hak_region_range_of(0));
        assert_int_equal(hak_region_find(4096).kind, HAK_PLACE_FOREIGN);
    }
    fake_os_refuse_nothing();
    assert_true(hak_region_initialize());
    assert_non_null(acquire(1, HAK_UNITS_NEW_SUPER));
}

/* ---- Growth ------------------------------------------------------------------------------------------------------ */

/* One after the other, at first one at a time, later by a part of what there is; and the tables in steps. */
static void super_slabs_from_the_bottom(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    uint32_t next = 0, tables = HAK_SUPER_SLABS_PER_GROUP, steps = 0;
    while (next < 3 * HAK_SUPER_SLABS_PER_GROUP) {
        uint32_t number = UINT32_MAX, count = 0;
        fake_os_forget();
        assert_ptr_equal(new_super_slabs(&number, &count), range);
        assert_int_equal(number, next);
        assert_int_equal(count, 1 + next / 128);
        next += count;
        bool is_step = next > tables;
        if (is_step) tables += HAK_SUPER_SLABS_PER_GROUP;
        steps += is_step;
        const struct fake_call *last = &fake_os.calls[fake_os.call_count[FAKE_ANY] - 2];
        assert_int_equal(last->kind, FAKE_MAP_AT);
        assert_int_equal(last->start, range->start + number * HAK_SUPER_SLAB_BYTES);
        assert_int_equal(last->bytes, count * HAK_SUPER_SLAB_BYTES);
        assert_true(fake_os.call_count[FAKE_MAP_AT] <= (is_step ? 1 + TABLES : 1));
        assert_int_equal(hak_atomic_load(&range->table_super_slabs, relaxed), tables);
        assert_int_equal(hak_atomic_load(&hak_window.units, relaxed), tables * HAK_UNITS_PER_SUPER_SLAB);
        range->page_map[next * HAK_UNITS_PER_SUPER_SLAB - 1] = 0; /* it can be written to */
    }
    assert_int_equal(steps, next / HAK_SUPER_SLABS_PER_GROUP - (next % HAK_SUPER_SLABS_PER_GROUP == 0));
    struct hak_region_sums sums = hak_region_sums();
    assert_int_equal(sums.super_slabs, next);
    assert_int_equal(sums.committed_bytes, sums.super_slabs * HAK_SUPER_SLAB_BYTES);
    assert_int_equal(fake_os.mapped_bytes, sums.committed_bytes + sums.metadata_bytes);
    assert_int_equal(hak_atomic_load(&range->table_maker, relaxed), 0);
}

/* A refusal loses nothing: the next attempt makes the same SuperSlab. It costs nothing either: a further range is made
 * when there is no address left, not when there is no memory. */
static void refused_growth(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    uint32_t number, count;
    while (hak_region_sums().super_slabs < HAK_SUPER_SLABS_PER_GROUP - 1)
        assert_non_null(new_super_slabs(&number, &count));
    uint64_t super_slabs = hak_region_sums().super_slabs;
    size_t before = fake_os.mapped_bytes;
    for (size_t call = 1; call < TABLES; call++) { /* one of them has room for this step, and the page map */
        fake_os_refuse(FAKE_MAP_AT, call, SIZE_MAX);
        assert_null(hak_region_acquire_span(2 * HAK_SUPER_SLABS_PER_GROUP * HAK_UNITS_PER_SUPER_SLAB, 1, false));
        assert_int_equal(hak_region_sums().super_slabs, super_slabs);
        assert_int_equal(fake_os.mapped_bytes, before);
    }
    for (size_t call = 1; call <= 20; call++) {
        fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
        if (call % 2 == 0) assert_null(new_super_slabs(&number, &count));
        else assert_null(hak_region_acquire_span(40, 1, false));
    }
    assert_null(hak_region_range(1));
    assert_int_equal(fake_os.mapped_bytes, before);
    fake_os_refuse_nothing();
    assert_non_null(new_super_slabs(&number, &count));
    assert_int_equal(number, super_slabs);
}

/* The kernel takes nothing back of a step that it has refused to map as a whole. The next attempt finds what is there:
 * the range doesn't end. */
static void refused_step_stays(void **state) {
    (void)state;
    size_t refused = 0;
    for (size_t call = 1; refused == call - 1; call++) {
        size_t before = fake_os.mapped_bytes;
        assert_true(start_with_room(SIZE_MAX));
        uint32_t number, count, limit = limit_of(hak_region_range(0));
        while (hak_region_sums().super_slabs < HAK_SUPER_SLABS_PER_GROUP)
            assert_non_null(new_super_slabs(&number, &count));
        fake_os_refuse(FAKE_ANY, call, SIZE_MAX);
        refused += new_super_slabs(&number, &count) == NULL;
        fake_os_refuse_nothing();
        assert_ptr_equal(new_super_slabs(&number, &count), hak_region_range(0));
        assert_int_equal(limit_of(hak_region_range(0)), limit);
        if (refused == call) assert_int_equal(number, HAK_SUPER_SLABS_PER_GROUP);
        struct hak_region_sums sums = hak_region_sums();
        assert_int_equal(fake_os.mapped_bytes - before, sums.committed_bytes + sums.metadata_bytes);
        hak_atomic_store(&hak_ranges[0], NULL, relaxed); /* forgotten */
    }
    assert_true(refused >= TABLES);
}

/* What was made is in the caller's hand (I1 of region/in_hand.h); what was not is in nobody's. */
static void made_in_hand(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    uint32_t number, count;
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    assert_null(hak_region_new_super_slabs(&number, &count));
    assert_int_equal(hak_in_hand_count(), 0);
    fake_os_refuse_nothing();
    assert_non_null(hak_region_new_super_slabs(&number, &count));
    assert_int_equal(hak_in_hand_count(), 1);
    hak_in_hand_end();
    assert_int_equal(hak_in_hand_count(), 0);
}

/* Where there is room for one SuperSlab but not for a usual step, there is one more. */
static void the_last_room(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    uint32_t number, count;
    while (hak_region_sums().super_slabs < 200) assert_non_null(new_super_slabs(&number, &count));
    assert_true(count > 1);
    fake_os.address_space_room = fake_os.mapped_bytes + 2 * HAK_SUPER_SLAB_BYTES - 1;
    assert_non_null(new_super_slabs(&number, &count));
    assert_int_equal(count, 1);
    assert_null(new_super_slabs(&number, &count));
}

/* Where others have something, there is a hole: what lies there is theirs, and the heap goes on behind it. */
static void holes(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    hak_atomic_store(&hak_knobs.growth_floor_bytes, SIZE_MAX, relaxed); /* nobody asks how dense the heap is */
    struct hak_range *range = hak_region_range(0);
    struct hak_slab *first = acquire(32, HAK_UNITS_NEW_SUPER);
    char *other = (char *)range->start + 2 * HAK_SUPER_SLAB_BYTES + HAK_MIB,
         *large = (char *)range->start + 10 * HAK_SUPER_SLAB_BYTES;
    assert_int_equal(hak_os_map_at(other, fake_os.page_bytes), HAK_OS_MAPPED);
    assert_int_equal(hak_os_map_at(large, 100 * HAK_SUPER_SLAB_BYTES), HAK_OS_MAPPED);
    other[0] = large[0] = large[100 * HAK_SUPER_SLAB_BYTES - 1] = 1;
    hak_directory_set((uintptr_t)large, hak_entry_for_mapping(100 * HAK_SUPER_SLAB_BYTES)); /* one of ours */
    uint64_t units = 32;
    fake_os_forget();
    while (acquire(1, HAK_UNITS_FREE) != NULL || acquire(1, HAK_UNITS_NEW_SUPER) != NULL)
        if (++units == 32 * 100) break;
    assert_int_equal(units, 32 * 100);
    assert_true(fake_os.call_count[FAKE_MAP_AT] < 150);
    assert_int_equal(other[0] + large[0] + large[100 * HAK_SUPER_SLAB_BYTES - 1], 3);
    assert_null(hak_region_range(1));
    assert_false(hak_region_covers((uintptr_t)other));
    assert_int_equal(hak_region_find((uintptr_t)other).kind, HAK_PLACE_FOREIGN);
    assert_int_equal(hak_region_find((uintptr_t)large + 5).kind, HAK_PLACE_MAPPING); /* found all the same */
    assert_true(hak_region_covers(hak_region_start_of(range, first)));
    assert_int_equal(hak_region_sums().committed_bytes, 100 * HAK_SUPER_SLAB_BYTES);
    assert_non_null(hak_region_acquire_span(70 * 32, 1, false));
}

/* What lies in the way is large: the heap goes on in a further range, without tables for what others have. */
static void large_obstacle(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    acquire(32, HAK_UNITS_NEW_SUPER);
    char *obstacle = (char *)range->start + 2 * HAK_SUPER_SLAB_BYTES;
    size_t bytes = (size_t)limit_of(range) * HAK_SUPER_SLAB_BYTES - 2 * HAK_SUPER_SLAB_BYTES;
    if (bytes > 256 * HAK_GIB) bytes = 256 * HAK_GIB;
    assert_ptr_equal(
        mmap(obstacle, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0),
        obstacle);
    for (uint32_t i = 0; i < 200; i++) assert_non_null(acquire(32, HAK_UNITS_NEW_SUPER));
    assert_non_null(hak_region_range(1));
    assert_true(hak_region_super_slabs(range) < 8 * 1024);
    assert_true(hak_region_super_slabs(hak_region_range(1)) > 150);
}

/* Something lies where the next step of the tables belongs: the heap goes on in a further range. */
static void occupied_tables(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    size_t step_units = HAK_SUPER_SLABS_PER_GROUP * HAK_UNITS_PER_SUPER_SLAB;
    assert_int_equal(hak_os_map_at(&range->slabs[step_units], fake_os.page_bytes), HAK_OS_MAPPED);
    for (size_t units = 0; units < step_units; units += 32)
        assert_non_null(hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false));
    struct hak_slab *beyond = acquire(32, HAK_UNITS_NEW_SUPER);
    assert_non_null(beyond);
    assert_ptr_equal(hak_region_range_of_record(beyond), hak_region_range(1));
    assert_int_equal(limit_of(range), HAK_SUPER_SLABS_PER_GROUP);
    assert_non_null(acquire(32, HAK_UNITS_NEW_SUPER)); /* and asks no more */
    *(char *)hak_region_start_of(hak_region_range(1), beyond) = 1;
}

/* Somebody makes the next step, and is not done in time: the heap goes on in a further range meanwhile. */
static void a_step_that_takes_long(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    uint32_t limit = limit_of(range), number, count;
    while (hak_region_super_slabs(range) < HAK_SUPER_SLABS_PER_GROUP)
        assert_ptr_equal(new_super_slabs(&number, &count), range);
    hak_atomic_store(&range->table_maker, 1, relaxed);
    struct hak_range *further = new_super_slabs(&number, &count);
    assert_non_null(further);
    assert_ptr_equal(further, hak_region_range(1));
    hak_atomic_store(&range->table_maker, 0, relaxed);
    assert_int_equal(limit_of(range), limit);
    assert_ptr_equal(new_super_slabs(&number, &count), range);
}

/* In a child of a thread that forked while another was making the next step. */
static void a_step_nobody_finishes(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    assert_non_null(acquire(1, HAK_UNITS_NEW_SUPER));
    uint32_t limit = limit_of(range);
    hak_region_recount_after_fork();
    assert_int_equal(limit_of(range), limit); /* nobody was */
    hak_atomic_store(&range->table_maker, 1, relaxed);
    hak_region_recount_after_fork();
    assert_int_equal(limit_of(range), HAK_SUPER_SLABS_PER_GROUP);
    assert_int_equal(hak_atomic_load(&range->table_maker, relaxed), 0);
}

static void more_ranges(void **state) {
    (void)state;
    assert_true(start_with_room(ONE_SUPER_SLAB_ROOM)); /* ranges of one SuperSlab */
    for (uint32_t i = 0; i < 5; i++) {
        struct hak_slab *slab = acquire(32, HAK_UNITS_NEW_SUPER);
        assert_non_null(slab);
        struct hak_range *range = hak_region_range_of_record(slab);
        assert_ptr_equal(range, hak_region_range(i));
        assert_int_equal(range->number, i);
        uintptr_t start = hak_region_start_of(range, slab);
        assert_int_equal(start, range->start);
        assert_ptr_equal(hak_region_range_of(start), range);
        assert_ptr_equal(hak_region_range_of(start + HAK_SUPER_SLAB_BYTES - 1), range);
        assert_true(hak_region_covers(start));
        assert_int_equal(hak_region_find(start).kind, HAK_PLACE_FOREIGN); /* nobody marked it */
        *(char *)start = 1;
    }
    assert_int_equal(hak_region_sums().super_slabs, 5);
    assert_null(hak_region_range(5));
}

/* A SuperSlab of a further range is made only where its addresses can lead to it. */
static void no_leaf_for_a_further_range(void **state) {
    (void)state;
    assert_true(start_with_room(ONE_SUPER_SLAB_ROOM));
    assert_non_null(acquire(32, HAK_UNITS_NEW_SUPER));
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    for (int i = 0; i < 3; i++) assert_null(acquire(32, HAK_UNITS_NEW_SUPER));
    assert_int_equal(hak_region_sums().super_slabs, 1);
    fake_os_refuse_nothing();
    assert_non_null(acquire(32, HAK_UNITS_NEW_SUPER));
}

/* Row 47 of what an allocator withstands: no place for one range more. */
static void no_range_is_left(void **state) {
    (void)state;
    assert_true(start_with_room(ONE_SUPER_SLAB_ROOM));
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT; i++) assert_non_null(acquire(32, HAK_UNITS_NEW_SUPER));
    size_t before = fake_os.mapped_bytes;
    assert_null(acquire(32, HAK_UNITS_NEW_SUPER));
    assert_null(acquire(1, HAK_UNITS_NEW_SUPER));
    assert_null(hak_region_acquire_span(40, 1, false));
    assert_int_equal(fake_os.mapped_bytes, before);
    struct hak_slab *last = &hak_region_range(HAK_RANGE_LIMIT - 1)->slabs[0];
    hak_region_release(last, 32);
    assert_ptr_equal(acquire(32, HAK_UNITS_FREE), last);
}

/* ---- What lies where --------------------------------------------------------------------------------------------- */

static void expect_place(uintptr_t address, enum hak_place_kind kind, uintptr_t start, size_t bytes) {
    struct hak_place place = hak_region_find(address);
    assert_int_equal(place.kind, kind);
    if (kind == HAK_PLACE_FOREIGN) return;
    assert_int_equal(place.start, start);
    assert_int_equal(place.bytes, bytes);
}

static void check_places(void) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_size_class *facts = &hak_size_classes[i];
        struct hak_slab *slab = hak_region_acquire(facts->unit_count, facts->unit_count, HAK_UNITS_FREE, false);
        if (slab == NULL) slab = hak_region_acquire(facts->unit_count, facts->unit_count, HAK_UNITS_NEW_SUPER, false);
        assert_non_null(slab);
        hak_region_mark(slab, facts->unit_count, i);
        uintptr_t start = hak_region_start_of(hak_region_range_of_record(slab), slab);
        size_t bytes = facts->block_bytes, last = facts->block_count - 1;
        expect_place(start, HAK_PLACE_SMALL, start, bytes);
        expect_place(start + bytes - 1, HAK_PLACE_SMALL, start, bytes);
        expect_place(start + bytes, HAK_PLACE_SMALL, start + bytes, bytes);
        expect_place(start + last * bytes, HAK_PLACE_SMALL, start + last * bytes, bytes);
        expect_place(start + last * bytes + bytes - 1, HAK_PLACE_SMALL, start + last * bytes, bytes);
        uintptr_t behind = start + (last + 1) * bytes, end = start + facts->unit_count * HAK_UNIT_BYTES;
        if (behind < end) expect_place(behind, HAK_PLACE_FOREIGN, 0, 0);
        if (behind < end) expect_place(end - 1, HAK_PLACE_FOREIGN, 0, 0);
        assert_ptr_equal(hak_region_find(start + last * bytes).slab, slab);
        assert_int_equal(hak_region_find(start).size_class, i);
    }
}

static void places_in_slabs(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    check_places();
}

static void places_in_further_ranges(void **state) {
    (void)state;
    assert_true(start_with_room(ONE_SUPER_SLAB_ROOM));
    check_places();
    assert_non_null(hak_region_range(3));
}

static void places_in_runs(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    struct hak_slab *run = acquire(5, HAK_UNITS_NEW_SUPER), *next = acquire(1, HAK_UNITS_FREE);
    assert_ptr_equal(next, run + 5);
    hak_region_mark(run, 5, HAK_CLASS_RUN_BODY);
    hak_region_mark(run, 1, HAK_CLASS_RUN_HEAD);
    hak_region_mark(next, 1, HAK_CLASS_RUN_HEAD);
    hak_atomic_store(&run->run_pages, 5 * HAK_UNIT_BYTES / 4096, relaxed);
    hak_atomic_store(&next->run_pages, HAK_UNIT_BYTES / 4096, relaxed);
    uintptr_t start = hak_region_start_of(hak_region_range(0), run);
    for (uint32_t i = 0; i < 5; i++)
        expect_place(start + i * HAK_UNIT_BYTES + 99, HAK_PLACE_RUN, start, 5 * HAK_UNIT_BYTES);
    expect_place(start + 5 * HAK_UNIT_BYTES, HAK_PLACE_RUN, start + 5 * HAK_UNIT_BYTES, HAK_UNIT_BYTES);
    expect_place(start + 6 * HAK_UNIT_BYTES, HAK_PLACE_FOREIGN, 0, 0);
}

static void foreign_places(void **state) {
    (void)state;
    assert_true(start_with_room(SIZE_MAX));
    assert_non_null(acquire(1, HAK_UNITS_NEW_SUPER));
    uintptr_t start = hak_region_range(0)->start, end = start + HAK_SUPER_SLAB_BYTES;
    const uintptr_t addresses[] = {
        0, 0x40, (uintptr_t)&state, start - 1, end, (uintptr_t)1 << 47, (uintptr_t)1 << 63, UINTPTR_MAX};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        assert_false(hak_region_covers(addresses[i]));
        expect_place(addresses[i], HAK_PLACE_FOREIGN, 0, 0);
    }
    expect_place(start, HAK_PLACE_FOREIGN, 0, 0); /* a unit that belongs to somebody, but is marked as nothing */
    expect_place(end - 1, HAK_PLACE_FOREIGN, 0, 0);
    assert_true(hak_region_covers(start));
    assert_true(hak_region_covers(end - 1));
}

UNIT_MAIN(cmocka_unit_test(as_large_as_can_be), cmocka_unit_test(below_16_tib), cmocka_unit_test(below_64_gib),
          cmocka_unit_test(one_super_slab), cmocka_unit_test(no_huge_pages), cmocka_unit_test(occupied_addresses),
          cmocka_unit_test(refused_tables), cmocka_unit_test(super_slabs_from_the_bottom),
          cmocka_unit_test(refused_growth), cmocka_unit_test(refused_step_stays), cmocka_unit_test(made_in_hand),
          cmocka_unit_test(the_last_room), cmocka_unit_test(holes), cmocka_unit_test(occupied_tables),
          cmocka_unit_test(large_obstacle), cmocka_unit_test(a_step_that_takes_long),
          cmocka_unit_test(a_step_nobody_finishes), cmocka_unit_test(more_ranges),
          cmocka_unit_test(no_leaf_for_a_further_range), cmocka_unit_test(no_range_is_left),
          cmocka_unit_test(places_in_slabs), cmocka_unit_test(places_in_further_ranges),
          cmocka_unit_test(places_in_runs), cmocka_unit_test(foreign_places))

/* region/range.c: reserving, growing, and finding what lies at an address. */
#include "unit.h"

#include "fake_os.h"
#include "region/directory.h"
#include "region/region.h"
#include "region/units.h"

enum { SUPER_SLABS_PER_METADATA_STEP = 64 };

static bool start_with_limit(size_t limit) {
    fake_os.address_space_limit = limit;
    hak_size_class_initialize();
    return hak_region_initialize();
}

static struct hak_slab *acquire(uint32_t units, enum hak_unit_source source) {
    return hak_region_acquire(units, 1, source, false);
}

/* ---- How much is reserved ------------------------------------------------------------------------------------------ */

static void expect_first_range(size_t limit, size_t bytes) {
    assert_true(start_with_limit(limit));
    struct hak_range *range = hak_region_range(0);
    assert_int_equal(range->super_slab_limit * HAK_SUPER_SLAB_BYTES, bytes);
    assert_int_equal(range->start % HAK_SUPER_SLAB_BYTES, 0);
    assert_int_equal(range->number, 0);
    assert_int_equal(hak_atomic_load(&hak_first_range_start, relaxed), range->start);
    assert_ptr_equal(range->page_map, hak_page_map);
    assert_null(hak_region_range(1));
    assert_int_equal(hak_region_sums().super_slabs, 0);
}

static void no_limit(void **state) {
    (void)state;
    expect_first_range(SIZE_MAX, 64 * HAK_GIB);
}

/* Neither the heap nor its tables become huge pages where the system gives them unasked. */
static void no_huge_pages(void **state) {
    (void)state;
    assert_true(start_with_limit(SIZE_MAX));
    size_t refused = 0, reserved = 0;
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++) {
        const struct fake_call *call = &fake_os.calls[i];
        if (call->kind == FAKE_RESERVE) reserved += call->bytes;
        if (call->kind == FAKE_NO_HUGE) refused += call->bytes;
    }
    assert_int_equal(refused, reserved);
}
static void quarter_of_limit(void **state) {
    (void)state;
    expect_first_range(256 * HAK_GIB, 64 * HAK_GIB);
}
static void below_64_gib(void **state) {
    (void)state;
    expect_first_range(256 * HAK_GIB - 1, HAK_GIB);
}
static void below_1_gib(void **state) {
    (void)state;
    expect_first_range(4 * HAK_GIB - 1, 64 * HAK_MIB);
}
static void below_64_mib(void **state) {
    (void)state;
    expect_first_range(256 * HAK_MIB - 1, 16 * HAK_MIB);
}
static void below_16_mib(void **state) {
    (void)state;
    expect_first_range(64 * HAK_MIB - 1, 4 * HAK_MIB);
}
static void one_super_slab(void **state) {
    (void)state;
    expect_first_range(16 * HAK_MIB - 1, 2 * HAK_MIB);
}

static void refused_steps(void **state) {
    (void)state;
    fake_os_refuse(FAKE_RESERVE, 1, 2); /* 64 GiB, 1 GiB */
    expect_first_range(SIZE_MAX, 64 * HAK_MIB);
}

static void refused_metadata(void **state) {
    (void)state;
    fake_os_refuse(FAKE_RESERVE, 2, 2); /* the tables of 64 GiB */
    expect_first_range(SIZE_MAX, HAK_GIB);
    struct hak_range *range = hak_region_range(0);
    assert_true(fake_os.mapped_bytes < HAK_GIB + HAK_GIB / 64);
    assert_int_equal(range->super_slab_limit, 512);
}

static void refused_commit(void **state) {
    (void)state;
    fake_os_refuse(FAKE_COMMIT, 1, 1);
    expect_first_range(SIZE_MAX, HAK_GIB);
    assert_true(fake_os.mapped_bytes < HAK_GIB + HAK_GIB / 64);
}

static void nothing_to_be_had(void **state) {
    (void)state;
    fake_os_refuse(FAKE_RESERVE, 1, SIZE_MAX);
    assert_false(start_with_limit(SIZE_MAX));
    assert_int_equal(fake_os.mapped_bytes, 0);
    assert_null(hak_region_range(0));
    assert_null(hak_region_range_of(0));
    assert_int_equal(hak_region_find(4096).kind, HAK_PLACE_FOREIGN);
    fake_os_refuse_nothing();
    assert_true(hak_region_initialize());
    assert_non_null(acquire(1, HAK_UNITS_NEW_SUPER));
}

/* ---- Growth -------------------------------------------------------------------------------------------------------- */

static void super_slabs_from_the_bottom(void **state) {
    (void)state;
    assert_true(start_with_limit(SIZE_MAX));
    struct hak_range *range = hak_region_range(0);
    uint32_t steps = 0;
    for (uint32_t i = 0; i < 2 * SUPER_SLABS_PER_METADATA_STEP + 1; i++) {
        uint32_t number = UINT32_MAX;
        fake_os_forget();
        assert_ptr_equal(hak_region_new_super_slab(&number), range);
        assert_int_equal(number, i);
        assert_int_equal(fake_os.calls[fake_os.call_count[FAKE_ANY] - 1].start,
                         range->start + i * HAK_SUPER_SLAB_BYTES);
        bool step = i % SUPER_SLABS_PER_METADATA_STEP == 0;
        assert_int_equal(fake_os.call_count[FAKE_COMMIT], step ? 4 : 1);
        steps += step;
    }
    struct hak_region_sums sums = hak_region_sums();
    assert_int_equal(sums.super_slabs, 2 * SUPER_SLABS_PER_METADATA_STEP + 1);
    assert_int_equal(sums.committed_bytes, sums.super_slabs * HAK_SUPER_SLAB_BYTES);
    assert_int_equal(hak_atomic_load(&range->metadata_super_slabs, relaxed), steps * SUPER_SLABS_PER_METADATA_STEP);
}

/* A refused commit loses nothing: the next attempt makes the same SuperSlab. It costs nothing either: a further range is made
 * when there is no address left, not when there is no memory. */
static void refused_growth(void **state) {
    (void)state;
    assert_true(start_with_limit(SIZE_MAX));
    uint32_t number;
    for (size_t call = 1; call <= 4; call++) { /* records, bit rows, partial rows, the SuperSlab */
        fake_os_refuse(FAKE_COMMIT, call, SIZE_MAX);
        assert_null(hak_region_new_super_slab(&number));
        assert_int_equal(hak_region_sums().super_slabs, 0);
    }
    size_t before = fake_os.mapped_bytes;
    for (size_t call = 1; call <= 20; call++) { /* the next one succeeds, if it is asked for */
        fake_os_refuse(FAKE_COMMIT, 1, 1);
        if (call % 2 == 0) assert_null(hak_region_new_super_slab(&number));
        else assert_null(hak_region_acquire_span(40, 1, false));
    }
    assert_null(hak_region_range(1));
    assert_int_equal(fake_os.mapped_bytes, before);
    fake_os_refuse_nothing();
    assert_non_null(hak_region_new_super_slab(&number));
    assert_int_equal(number, 0);
}

static void more_ranges(void **state) {
    (void)state;
    assert_true(start_with_limit(16 * HAK_MIB - 1)); /* ranges of one SuperSlab */
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

/* The addresses of a range that could not be made are nobody's: a mapping that comes to lie there is found whole. Here the
 * first leaf of the directory for it can be had, but not the second. */
static void discarded_ranges_leave_no_entries(void **state) {
    (void)state;
    assert_true(start_with_limit(SIZE_MAX));
    struct hak_range *first = hak_region_range(0);
    hak_atomic_store(&first->super_slab_count, first->super_slab_limit, relaxed); /* used up */
    fake_os_forget();
    fake_os_refuse(FAKE_MAP, 2, SIZE_MAX);
    size_t before = fake_os.mapped_bytes;
    struct hak_slab *slab = acquire(32, HAK_UNITS_NEW_SUPER);
    assert_int_equal(fake_os.calls[0].bytes, 64 * HAK_GIB);
    assert_int_equal(fake_os.calls[0].start % (64 * HAK_GIB) != 0, slab == NULL); /* or one leaf was enough */
    if (slab != NULL) return;
    assert_null(hak_region_range(1));
    assert_true(fake_os.mapped_bytes < before + HAK_MIB); /* a leaf */
    for (uintptr_t at = 0; at < 64 * HAK_GIB; at += HAK_GRANULE_BYTES)
        assert_int_equal(hak_directory_get(fake_os.calls[0].start + at), HAK_ENTRY_NONE);
}

/* Row 47 of what an allocator withstands: no place for one range more. */
static void no_range_is_left(void **state) {
    (void)state;
    assert_true(start_with_limit(16 * HAK_MIB - 1));
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

/* ---- What lies where ------------------------------------------------------------------------------------------------ */

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
        hak_region_mark(slab, facts->unit_count, i, i);
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
    assert_true(start_with_limit(SIZE_MAX));
    check_places();
}

static void places_in_further_ranges(void **state) {
    (void)state;
    assert_true(start_with_limit(16 * HAK_MIB - 1));
    check_places();
    assert_non_null(hak_region_range(3));
}

static void places_in_runs(void **state) {
    (void)state;
    assert_true(start_with_limit(SIZE_MAX));
    struct hak_slab *run = acquire(5, HAK_UNITS_NEW_SUPER), *next = acquire(1, HAK_UNITS_FREE);
    assert_ptr_equal(next, run + 5);
    hak_region_mark(run, 5, HAK_CLASS_RUN_HEAD, HAK_CLASS_RUN_BODY);
    hak_region_mark(next, 1, HAK_CLASS_RUN_HEAD, HAK_CLASS_RUN_BODY);
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
    assert_true(start_with_limit(HAK_GIB));
    assert_non_null(acquire(1, HAK_UNITS_NEW_SUPER));
    uintptr_t start = hak_region_range(0)->start,
              end = start + hak_region_range(0)->super_slab_limit * HAK_SUPER_SLAB_BYTES;
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

UNIT_MAIN(cmocka_unit_test(no_limit), cmocka_unit_test(no_huge_pages), cmocka_unit_test(quarter_of_limit),
          cmocka_unit_test(below_64_gib), cmocka_unit_test(below_1_gib), cmocka_unit_test(below_64_mib),
          cmocka_unit_test(below_16_mib), cmocka_unit_test(one_super_slab), cmocka_unit_test(refused_steps),
          cmocka_unit_test(refused_metadata), cmocka_unit_test(refused_commit), cmocka_unit_test(nothing_to_be_had),
          cmocka_unit_test(super_slabs_from_the_bottom), cmocka_unit_test(refused_growth),
          cmocka_unit_test(more_ranges), cmocka_unit_test(discarded_ranges_leave_no_entries),
          cmocka_unit_test(no_range_is_left), cmocka_unit_test(places_in_slabs),
          cmocka_unit_test(places_in_further_ranges), cmocka_unit_test(places_in_runs),
          cmocka_unit_test(foreign_places))

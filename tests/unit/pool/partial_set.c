/* pool/partial_set.h: sets of slabs per class; the lowest address comes first. */
#include "unit.h"

#include "fake_os.h"
#include "pool/partial_set.h"

static void start_with_room(size_t room) {
    fake_os.window_room = room;
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
}

/* A slab of one unit, ready for the set. */
static struct hak_slab *make_slab(uint32_t size_class) {
    struct hak_slab *slab = hak_region_acquire(1, 1, HAK_UNITS_FREE, false);
    if (slab == NULL) slab = hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    assert_non_null(slab);
    struct hak_range *range = hak_region_range_of_record(slab);
    hak_slab_initialize(slab, hak_region_start_of(range, slab), size_class,
                        range->bit_rows[hak_region_unit_of(range, slab)], HAK_SLAB_POOLED);
    return slab;
}

static void lowest_first(void **state) {
    (void)state;
    enum { COUNT = 200 * 32 }; /* more SuperSlabs than a word of the index has */
    static struct hak_slab *slabs[COUNT];
    start_with_room(SIZE_MAX);
    for (int i = 0; i < COUNT; i++) slabs[i] = make_slab(4);
    assert_null(hak_partial_set_take(4));
    for (int i = 0; i < COUNT; i++) hak_partial_set_add(slabs[(i * 1009) % COUNT]);
    assert_null(hak_partial_set_take(5));
    for (int i = 0; i < COUNT; i++) assert_ptr_equal(hak_partial_set_take(4), slabs[i]);
    assert_null(hak_partial_set_take(4));
    hak_partial_set_add(slabs[COUNT - 1]);
    hak_partial_set_add(slabs[31]);
    assert_ptr_equal(hak_partial_set_take(4), slabs[31]);
    assert_ptr_equal(hak_partial_set_take(4), slabs[COUNT - 1]);
}

static void removing(void **state) {
    (void)state;
    start_with_room(SIZE_MAX);
    struct hak_slab *one = make_slab(1), *two = make_slab(1), *other = make_slab(2);
    hak_partial_set_add(one);
    hak_partial_set_add(two);
    hak_partial_set_add(other);
    assert_false(hak_partial_set_remove(one, 2));
    assert_true(hak_partial_set_remove(one, 1));
    assert_false(hak_partial_set_remove(one, 1));
    assert_ptr_equal(hak_partial_set_take(1), two);
    assert_ptr_equal(hak_partial_set_take(2), other);
    assert_null(hak_partial_set_take(1));
    assert_false(hak_partial_set_remove(two, 1));
}

static void over_ranges(void **state) {
    (void)state;
    enum { COUNT = 32 * 4 };
    struct hak_slab *slabs[COUNT];
    start_with_room(HAK_PAGE_MAP_BYTES + 16 * HAK_MIB - 1); /* ranges of one SuperSlab */
    for (int i = 0; i < COUNT; i++) slabs[i] = make_slab(72 - i % 2);
    for (int i = COUNT; i-- > 0;) hak_partial_set_add(slabs[i]);
    for (int i = 0; i < COUNT; i += 2) assert_ptr_equal(hak_partial_set_take(72), slabs[i]);
    for (int i = 1; i < COUNT; i += 2) assert_ptr_equal(hak_partial_set_take(71), slabs[i]);
    assert_null(hak_partial_set_take(71));
}

UNIT_MAIN(cmocka_unit_test(lowest_first), cmocka_unit_test(removing), cmocka_unit_test(over_ranges))

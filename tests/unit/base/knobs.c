/* base/knobs.h: knobs by number, and that none can leave its bounds. */
#include "unit.h"

#include <string.h>

#include "base/knobs.h"

static void defaults_are_within_bounds(void **state) {
    (void)state;
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) {
        const struct hak_knob_row *row = &hak_knob_table[i];
        assert_int_equal(hak_knob_get((enum hak_knob_number)i), row->initial);
        assert_in_range(row->initial, row->lowest, row->highest);
    }
}

static void found_by_name(void **state) {
    (void)state;
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        assert_int_equal(hak_knob_find(hak_knob_table[i].name, strlen(hak_knob_table[i].name)), i);
    assert_int_equal(hak_knob_find("decay_ms=4", 8), HAK_KNOB_decay_ms);
    assert_int_equal(hak_knob_find("decay_ms", 7), HAK_KNOB_COUNT);
    assert_int_equal(hak_knob_find("decay_msx", 9), HAK_KNOB_COUNT);
    assert_int_equal(hak_knob_find("", 0), HAK_KNOB_COUNT);
}

static void bounds_hold(void **state) {
    (void)state;
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) {
        enum hak_knob_number knob = (enum hak_knob_number)i;
        const struct hak_knob_row *row = &hak_knob_table[i];
        assert_true(hak_knob_set(knob, row->lowest));
        assert_int_equal(hak_knob_get(knob), row->lowest);
        assert_true(hak_knob_set(knob, row->highest));
        assert_int_equal(hak_knob_get(knob), row->highest);
        assert_false(hak_knob_set(knob, row->highest + 1));
        assert_false(row->lowest > 0 && hak_knob_set(knob, row->lowest - 1));
        assert_int_equal(hak_knob_get(knob), row->highest);
    }
    assert_int_equal(hak_knob(decay_ms), hak_knob_table[HAK_KNOB_decay_ms].highest);
}

static void given(void **state) {
    (void)state;
    hak_knob_set(HAK_KNOB_decay_ms, 20);
    assert_false(hak_knob_give(HAK_KNOB_decay_ms, 0)); /* out of bounds */
    assert_int_equal(hak_knob(decay_ms), 20);
    assert_true(hak_knob_give(HAK_KNOB_held_slabs, hak_knob_table[HAK_KNOB_held_slabs].initial));
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) assert_int_equal(hak_knob_is_given(i), i == HAK_KNOB_held_slabs);
    assert_true(hak_knob_turn(HAK_KNOB_decay_ms, 20, 40));
    assert_false(hak_knob_turn(HAK_KNOB_decay_ms, 20, 80)); /* it isn't that any more */
    assert_false(hak_knob_turn(HAK_KNOB_decay_ms, 40, 0));
    assert_int_equal(hak_knob(decay_ms), 40);
    assert_false(hak_knob_turn(HAK_KNOB_held_slabs, hak_knob(held_slabs), 64)); /* given */
    assert_int_equal(hak_knob(held_slabs), hak_knob_table[HAK_KNOB_held_slabs].initial);
}

UNIT_MAIN(cmocka_unit_test(defaults_are_within_bounds), cmocka_unit_test(found_by_name), cmocka_unit_test(bounds_hold),
          cmocka_unit_test(given))

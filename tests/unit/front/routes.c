/* front/routes.h: which bin serves which size, as groups are opened and malloc is metered. */
#include "heap_fixture.h"

#include "front/routes.h"

static void check_all(bool is_metered, uint32_t open_widest) {
    for (size_t size = 0; size <= HAK_SMALL_MAX; size++) {
        uint32_t size_class = hak_size_class_of(size), widest = hak_widest_of_group(size_class);
        uint32_t serves = widest == open_widest ? size_class : widest;
        assert_int_equal(hak_routes_class_of(size), serves);
        assert_int_equal(hak_routes_bin_of(size), is_metered ? hak_sampled_class(serves) : serves);
    }
}

static void groups_and_metering(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    enum { WIDEST = 40, OF_GROUP = 38 };
    check_all(false, 0);
    hak_routes_meter(true);
    check_all(true, 0);
    assert_true(hak_routes_is_closed_group(WIDEST));
    hak_routes_open_group(OF_GROUP);
    check_all(true, WIDEST);
    assert_false(hak_routes_is_closed_group(WIDEST));
    hak_routes_meter(true);
    check_all(true, WIDEST);
    hak_routes_meter(false);
    check_all(false, WIDEST);
}

static void no_groups(void **state) {
    (void)state;
    assert_false(hak_routes_is_closed_group(1));
    assert_false(hak_routes_is_closed_group(HAK_SINGLE_CLASS_COUNT)); /* in no group */
    assert_false(hak_routes_is_closed_group(HAK_SINGLE_CLASS_COUNT + 1));
    assert_true(hak_routes_is_closed_group(HAK_SINGLE_CLASS_COUNT + HAK_GROUP_CLASSES));
    assert_true(hak_routes_is_closed_group(HAK_SMALL_CLASS_COUNT));
}

UNIT_MAIN(cmocka_unit_test(groups_and_metering), cmocka_unit_test(no_groups))

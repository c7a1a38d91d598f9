/* region/governor.h: huge pages are asked for while they take no longer than small pages would. */
#include "unit.h"

#include "base/bits.h"
#include "fake_os.h"
#include "region/governor.h"
#include "region/region.h"

enum { SMALL_NS = 500, FEW = 8, SHARE = 20 };

static uint64_t pages(void) { return HAK_SUPER_SLAB_BYTES / fake_os.page_bytes; }

/* What twice the small pages take, and so is no loss yet. */
static uint64_t most_ns(void) { return 2 * pages() * SMALL_NS; }

/* SuperSlabs that get no huge page until the next one may. */
static uint64_t count_skipped(void) {
    uint64_t count = 0;
    while (!hak_governor_may_ask()) count++;
    return count;
}

static void asks_while_it_pays(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(hak_governor_may_ask());
        hak_governor_took(i % 2 == 0 ? 0 : most_ns());
    }
}

/* One loss may be another program's turn on the processor. */
static void one_loss(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10; i++) {
        hak_governor_took(1000 * most_ns());
        assert_int_equal(count_skipped(), FEW);
        hak_governor_took(most_ns());
        assert_int_equal(count_skipped(), 0);
    }
}

/* Losses are a twentieth of what small pages take meanwhile, and the less, the more there are in a row. */
static void losses_in_a_row(void **state) {
    (void)state;
    uint64_t loss_ns = 7 * pages() * SMALL_NS;
    hak_governor_took(loss_ns);
    assert_int_equal(count_skipped(), FEW);
    for (uint32_t i = 0; i < 10; i++) {
        hak_governor_took(loss_ns);
        assert_int_equal(count_skipped(), FEW + (7 * SHARE << i));
    }
    hak_governor_took(most_ns());
    hak_governor_took(loss_ns);
    assert_int_equal(count_skipped(), FEW); /* the first one again */
}

/* A kernel that looks for a second each time is asked twice in the growth to a tebibyte. */
static void seconds(void **state) {
    (void)state;
    uint64_t asked = 0;
    for (uint64_t i = 0; i < 1024 * HAK_GIB / HAK_SUPER_SLAB_BYTES; i++) {
        if (!hak_governor_may_ask()) continue;
        hak_governor_took(1000 * UINT64_C(1000000));
        asked++;
    }
    assert_in_range(asked, 2, 5);
}

/* Where small pages take long, too, huge ones may: but no single touch says so. */
static void slow_small_pages(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 100; i++) hak_governor_took_small(2000);
    hak_governor_took(2 * pages() * 1900);
    assert_int_equal(count_skipped(), 0);
    hak_governor_took(2 * pages() * 2100);
    assert_int_equal(count_skipped(), FEW);
    hak_governor_took_small(UINT64_MAX);
    hak_governor_took(2 * pages() * 2500);
    assert_int_equal(count_skipped(), FEW + 2 * 2500 / 2250 * SHARE);
    for (uint32_t i = 0; i < 100; i++) hak_governor_took_small(0);
    hak_governor_took(0);
    hak_governor_took(2 * pages() * 300);
    assert_int_equal(count_skipped(), FEW);
}

UNIT_MAIN(cmocka_unit_test(asks_while_it_pays), cmocka_unit_test(one_loss), cmocka_unit_test(losses_in_a_row),
          cmocka_unit_test(seconds), cmocka_unit_test(slow_small_pages))

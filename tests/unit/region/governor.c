/* region/governor.h: huge pages are asked for while they take no longer than small pages would. */
#include "unit.h"

#include "base/bits.h"
#include "region/governor.h"
#include "region/region.h"

enum { FEW = 8, SHARE = 20, MAY_TAKE_MS = 1, MOST_DEBT_MS = 10, CALM = 4 };

/* SuperSlabs that get no huge page until the next one may. */
static uint64_t count_skipped(void) {
    uint64_t count = 0;
    while (!hak_governor_may_ask()) count++;
    return count;
}

/* A touch of a fifth of a millisecond, by a clock with ticks of `tick_ms`: mostly none passes. */
static void touch_briefly(uint32_t i, uint32_t tick_ms) { hak_governor_took(i % (5 * tick_ms) == 0 ? tick_ms : 0); }

static void asks_while_it_pays(void **state) {
    (void)state;
    for (uint32_t tick_ms = 1; tick_ms <= MOST_DEBT_MS; tick_ms++)
        for (uint32_t i = 0; i < 1000; i++) {
            assert_true(hak_governor_may_ask());
            touch_briefly(i, tick_ms);
        }
}

/* Ticks that come by chance one after the other. */
static void ticks_in_a_row(void **state) {
    (void)state;
    hak_governor_took(4);
    hak_governor_took(4);
    hak_governor_took(0);
    assert_int_equal(count_skipped(), 0);
    for (int i = 0; i < 5; i++) hak_governor_took(0); /* paid off */
    hak_governor_took(MOST_DEBT_MS + MAY_TAKE_MS);
    assert_int_equal(count_skipped(), 0);
    hak_governor_took(2);
    assert_int_equal(count_skipped(), FEW);
}

/* Two milliseconds each, by ticks of four. */
static void slow_on_the_average(void **state) {
    (void)state;
    uint32_t count = 0;
    for (; count < 100 && count_skipped() == 0; count++) hak_governor_took(count % 2 * 4);
    assert_in_range(count, MOST_DEBT_MS, 2 * MOST_DEBT_MS);
}

/* One loss may be another program's turn on the processor. */
static void one_loss(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10; i++) {
        hak_governor_took(15);
        assert_int_equal(count_skipped(), FEW);
        for (uint32_t j = 0; j < 4 * CALM; j++) touch_briefly(j, 4);
        assert_int_equal(count_skipped(), 0);
    }
}

/* Losses are a twentieth of what small pages take meanwhile, and the less, the more there are in a row. */
static void losses_in_a_row(void **state) {
    enum { TOOK_MS = 21, SKIPPED = (TOOK_MS - MAY_TAKE_MS) * 2 * SHARE };
    (void)state;
    hak_governor_took(TOOK_MS);
    assert_int_equal(count_skipped(), FEW);
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t j = 1; j < CALM; j++) hak_governor_took(0);
        hak_governor_took(TOOK_MS);
        assert_int_equal(count_skipped(), FEW + (SKIPPED << i));
    }
}

/* A second now and then among touches that take no time is a row, too. */
static void seldom_seconds(void **state) {
    (void)state;
    uint64_t asked = 0, lost = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        if (!hak_governor_may_ask()) continue;
        bool is_slow = asked++ % 20 == 0;
        lost += is_slow;
        hak_governor_took(is_slow ? 1000 : 0);
    }
    assert_in_range(lost, 2, 10);
}

/* A kernel that looks for a second each time is asked twice in the growth to a tebibyte. */
static void seconds(void **state) {
    (void)state;
    uint64_t asked = 0;
    for (uint64_t i = 0; i < 1024 * HAK_GIB / HAK_SUPER_SLAB_BYTES; i++) {
        if (!hak_governor_may_ask()) continue;
        hak_governor_took(1000);
        asked++;
    }
    assert_in_range(asked, 2, 5);
}

UNIT_MAIN(cmocka_unit_test(asks_while_it_pays), cmocka_unit_test(ticks_in_a_row), cmocka_unit_test(slow_on_the_average),
          cmocka_unit_test(one_loss), cmocka_unit_test(losses_in_a_row), cmocka_unit_test(seconds),
          cmocka_unit_test(seldom_seconds))

/* region/allowance.h: what comes into use within some periods after as much went back is allowed to stay free. */
#include "unit.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "fake_os.h"
#include "region/allowance.h"

enum { REMEMBERED_PERIODS = 8 };

static void use(uint64_t bytes) {
    hak_count_reuse(bytes / fake_os.page_bytes);
    hak_allowance_look(0);
}

static void rent_or_buy(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    use(100 * HAK_MIB); /* of what went back long ago */
    assert_int_equal(hak_allowance_bytes(), 0);
    hak_allowance_gave(10 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 0);
    use(4 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 4 * HAK_MIB);
    use(20 * HAK_MIB); /* more than what went back of late */
    assert_int_equal(hak_allowance_bytes(), 10 * HAK_MIB);
    use(20 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 10 * HAK_MIB);
}

/* Who has looked meanwhile, has seen more. */
static void looked_at_once(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_allowance_gave(10 * HAK_MIB);
    use(4 * HAK_MIB);
    hak_count_reuse((uint64_t)-2); /* as if what was read was older */
    hak_allowance_look(0);
    assert_int_equal(hak_allowance_bytes(), 4 * HAK_MIB);
}

/* Another one of the group may need it. */
static void under_a_limit(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_allowance_gave(100 * HAK_MIB);
    use(100 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 100 * HAK_MIB);
    hak_atomic_store(&hak_memory_limit_bytes, 256 * HAK_MIB, relaxed);
    assert_int_equal(hak_allowance_bytes(), 32 * HAK_MIB);
}

/* A program whose cycle is longer than a period pays once, too. */
static void slow_cycle(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_allowance_gave(10 * HAK_MIB);
    fake_os.clock_ms += (REMEMBERED_PERIODS - 1) * hak_knob(decay_ms);
    use(10 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 10 * HAK_MIB);
}

static void too_late(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_allowance_gave(10 * HAK_MIB);
    fake_os.clock_ms += REMEMBERED_PERIODS * hak_knob(decay_ms);
    use(4 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 0);
    use(4 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 0);
}

/* However often the same memory goes back and is used: no more may stay than could have lain free at once. */
static void no_more_than_at_once(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    for (int i = 0; i < 10; i++) {
        hak_allowance_gave(10 * HAK_MIB);
        use(10 * HAK_MIB);
    }
    assert_int_equal(hak_allowance_bytes(), 10 * HAK_MIB);
    hak_allowance_look(15 * HAK_MIB);
    hak_allowance_gave(10 * HAK_MIB); /* beside what stays free */
    hak_count_reuse(10 * HAK_MIB / fake_os.page_bytes);
    hak_allowance_look(5 * HAK_MIB);
    assert_int_equal(hak_allowance_bytes(), 15 * HAK_MIB);
}

/* By a thirty-second in each period, not below what was free and used. */
static void shrinks(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_allowance_gave(64 * HAK_MIB);
    use(64 * HAK_MIB);
    hak_allowance_look(60 * HAK_MIB);
    hak_allowance_end_period(0);
    assert_int_equal(hak_allowance_bytes(), 62 * HAK_MIB);
    hak_allowance_look(60 * HAK_MIB);
    hak_allowance_end_period(30 * HAK_MIB); /* half of it lay idle */
    assert_int_equal(hak_allowance_bytes(), 62 * HAK_MIB / 32 * 31);
    for (int i = 0; i < 400; i++) hak_allowance_end_period(0);
    assert_in_range(hak_allowance_bytes(), 0, HAK_MIB);
}

/* What a round has left has to stay, less as live blocks go, and for some periods. */
static void pinned(void **state) {
    (void)state;
    fake_os.clock_ms = 1000;
    hak_atomic_store(&hak_slab_bytes, 100 * HAK_MIB, relaxed);
    hak_atomic_store(&hak_out_bytes, 20 * HAK_MIB, relaxed);
    assert_int_equal(hak_allowance_loose_in_slabs(), 80 * HAK_MIB);
    hak_allowance_pinned(20 * HAK_MIB);
    assert_int_equal(hak_allowance_loose_in_slabs(), 0);
    hak_atomic_store(&hak_out_bytes, 30 * HAK_MIB, relaxed);
    assert_int_equal(hak_allowance_loose_in_slabs(), 0);
    hak_atomic_store(&hak_slab_bytes, 120 * HAK_MIB, relaxed); /* slabs more */
    assert_int_equal(hak_allowance_loose_in_slabs(), 10 * HAK_MIB);
    hak_atomic_store(&hak_out_bytes, 10 * HAK_MIB, relaxed); /* a quarter is pinned still */
    assert_int_equal(hak_allowance_loose_in_slabs(), 90 * HAK_MIB);
    assert_int_equal(hak_allowance_free_in_slabs(), 110 * HAK_MIB);
    hak_allowance_grew(60 * HAK_MIB); /* meanwhile: half of what was pinned */
    assert_int_equal(hak_allowance_loose_in_slabs(), 100 * HAK_MIB);
    hak_allowance_grew(50 * HAK_MIB);
    assert_int_equal(hak_allowance_loose_in_slabs(), 100 * HAK_MIB);
    hak_atomic_store(&hak_out_bytes, 20 * HAK_MIB, relaxed);
    hak_allowance_pinned(20 * HAK_MIB);
    assert_int_equal(hak_allowance_loose_in_slabs(), 0);
    hak_atomic_store(&hak_slab_bytes, 140 * HAK_MIB, relaxed);
    hak_atomic_store(&hak_out_bytes, (uint64_t)-HAK_MIB, relaxed); /* a guess */
    assert_int_equal(hak_allowance_loose_in_slabs(), 141 * HAK_MIB);
    hak_atomic_store(&hak_out_bytes, 20 * HAK_MIB, relaxed);
    fake_os.clock_ms += REMEMBERED_PERIODS * hak_knob(decay_ms) - 1;
    assert_int_equal(hak_allowance_loose_in_slabs(), 20 * HAK_MIB);
    fake_os.clock_ms++;
    assert_int_equal(hak_allowance_loose_in_slabs(), 120 * HAK_MIB);
}

UNIT_MAIN(cmocka_unit_test(rent_or_buy), cmocka_unit_test(pinned), cmocka_unit_test(under_a_limit),
          cmocka_unit_test(looked_at_once), cmocka_unit_test(slow_cycle), cmocka_unit_test(too_late),
          cmocka_unit_test(no_more_than_at_once), cmocka_unit_test(shrinks))

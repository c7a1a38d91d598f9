/* region/page_policy.h: what lay free through a whole period goes back, and what exceeds a bound at once. */
#include "unit.h"

#include "base/knobs.h"
#include "fake_os.h"
#include "region/page_policy.h"
#include "region/region.h"

static struct hak_slab *start(void) {
    fake_os.clock_ms = 5000;
    hak_size_class_initialize();
    assert_true(hak_region_initialize());
    struct hak_slab *slab = hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false);
    assert_ptr_equal(hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false), slab + 32);
    fake_os_forget();
    return slab;
}

static void release(struct hak_slab *slab, uint32_t count) {
    hak_region_release(slab, count);
    hak_page_policy_after_release();
}

static uint64_t dirty(void) { return hak_atomic_load(&hak_dirty_units, relaxed); }

static void bound(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 10 * HAK_UNIT_BYTES, relaxed);
    for (uint32_t i = 0; i < 10; i++) release(slab + i, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
    release(slab + 10, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 1);
    assert_true(dirty() <= 5);
}

static void decay(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    uint64_t period_ms = hak_knob(decay_ms);
    release(slab, 1); /* begins the first period */
    for (uint32_t i = 1; i < 32; i++) {
        fake_os.clock_ms++;
        release(slab + i, 1);
    }
    assert_int_equal(dirty(), 32);
    fake_os.clock_ms += period_ms;
    release(slab + 32, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE] > 0, dirty() < 33);
    fake_os.clock_ms += 2 * period_ms; /* by now all of it has lain idle through a period */
    release(slab + 33, 1);
    fake_os.clock_ms += 2 * period_ms;
    release(slab + 34, 1);
    assert_true(dirty() <= 3);
}

/* What is taken and released again within a period stays. */
static void use(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    uint64_t period_ms = hak_knob(decay_ms);
    release(slab, 32);
    for (int i = 0; i < 50; i++) {
        fake_os.clock_ms += period_ms / 2;
        assert_ptr_equal(hak_region_acquire(32, 1, HAK_UNITS_DIRTY, false), slab);
        release(slab, 32);
    }
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
    assert_int_equal(dirty(), 32);
}

static void standing_clock(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    fake_os.clock_ms = 0;
    for (uint32_t i = 0; i < 64; i++) release(slab + i, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
}

UNIT_MAIN(cmocka_unit_test(bound), cmocka_unit_test(decay), cmocka_unit_test(use), cmocka_unit_test(standing_clock))

/* region/decay.h: what lay free through a whole period goes back, and what exceeds a bound at once, by turns. */
#include "unit.h"

#include "allowance.h"

#include "base/memory.h"
#include "base/knobs.h"
#include "fake_os.h"
#include "front/background.h"
#include "region/decay.h"
#include "region/region.h"

static struct hak_slab *start(void) {
    allow_free_memory();
    fake_os.clock_ms = 5000;
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    struct hak_slab *slab = hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false);
    assert_ptr_equal(hak_region_acquire(32, 1, HAK_UNITS_NEW_SUPER, false), slab + 32);
    fake_os_forget();
    return slab;
}

static void release(struct hak_slab *slab, uint32_t count) {
    hak_region_release(slab, count);
    hak_decay_after_release(count);
    hak_decay_notice(); /* the end of the call */
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

/* The same with an eighth of a memory limit, whatever the knob says. */
static void bound_by_a_limit(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    hak_atomic_store(&hak_memory_limit_bytes, 8 * 10 * HAK_UNIT_BYTES, relaxed);
    for (uint32_t i = 0; i < 10; i++) release(slab + i, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
    release(slab + 10, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 1);
    assert_true(dirty() <= 5);
}

/* Beside the background thread, too: by the time that it comes by, the program may need the memory for itself. */
static void bound_by_a_limit_at_once(void **state) {
    enum { UNITS = 480, LIMIT_UNITS = 8 * 40 };
    (void)state;
    start();
    hak_background_pay(true);
    struct hak_slab *slab = hak_region_acquire_span(4 * UNITS, 1, false);
    hak_atomic_store(&hak_memory_limit_bytes, LIMIT_UNITS * HAK_UNIT_BYTES, relaxed);
    for (uint32_t i = 0; i < 4; i++) {
        release(slab + (size_t)i * UNITS, UNITS);
        assert_in_range(dirty(), 0, LIMIT_UNITS / 8);
    }
}

/* What one call gives back is bounded, however much is owed; and other calls pay the rest. */
static void expect_turns(uint64_t dirty_left) {
    enum { MOST_BYTES = 4 << 20 };
    for (int i = 0; i < 2000 && hak_decay_owes(); i++) {
        size_t first = fake_os.call_count[FAKE_ANY], bytes = 0;
        hak_decay_notice();
        for (size_t at = first; at < fake_os.call_count[FAKE_ANY]; at++) bytes += fake_os.calls[at].bytes;
        assert_in_range(bytes, 0, MOST_BYTES);
    }
    assert_false(hak_decay_owes());
    assert_in_range(dirty(), 0, dirty_left);
}

static size_t purged_bytes(void) {
    size_t bytes = 0;
    for (size_t i = 0; i < fake_os.call_count[FAKE_ANY]; i++)
        if (fake_os.calls[i].kind == FAKE_PURGE) bytes += fake_os.calls[i].bytes;
    return bytes;
}

enum { MANY_UNITS = 256 * 32 }; /* 512 MiB */

static void bound_by_turns(void **state) {
    (void)state;
    start();
    hak_background_pay(true); /* without a thread it would be as much as is released */
    struct hak_slab *slab = hak_region_acquire_span(MANY_UNITS, 1, false);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 128 * HAK_MIB, relaxed);
    fake_os_forget();
    release(slab, MANY_UNITS);
    assert_in_range(purged_bytes(), 1, 4 * HAK_MIB);
    expect_turns(64 * HAK_MIB / HAK_UNIT_BYTES);
}

/* Nobody else will. */
static void as_much_as_is_released(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_acquire_span(MANY_UNITS, 1, false);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 0, relaxed);
    for (uint32_t units = 1; units <= 1024; units *= 4) {
        fake_os_forget();
        release(slab + units, units);
        assert_in_range(purged_bytes(), units * HAK_UNIT_BYTES, units * HAK_UNIT_BYTES + HAK_TURN_BYTES);
        assert_int_equal(dirty(), 0);
    }
}

static void period_by_turns(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_acquire_span(MANY_UNITS, 1, false);
    release(slab, MANY_UNITS - 3);
    fake_os_forget();
    for (uint32_t i = 3; i > 0; i--) {
        fake_os.clock_ms += 2 * hak_knob(decay_ms);
        release(slab + MANY_UNITS - i, 1);
        assert_in_range(purged_bytes(), 0, 4 * HAK_MIB * (4 - i));
    }
    expect_turns(3);
}

/* What is taken again is owed no more. */
static void less_by_use(void **state) {
    (void)state;
    start();
    hak_background_pay(true);
    struct hak_slab *slab = hak_region_acquire_span(MANY_UNITS, 1, false);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 128 * HAK_MIB, relaxed);
    release(slab, MANY_UNITS);
    assert_true(hak_decay_owes());
    assert_ptr_equal(hak_region_acquire_span(7 * MANY_UNITS / 8, 1, false), slab);
    assert_false(hak_decay_owes());
}

/* A round that gets nothing is not begun again for a while. */
static void refused_round(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_acquire_span(MANY_UNITS, 1, false);
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, 128 * HAK_MIB, relaxed);
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    release(slab, MANY_UNITS - 2);
    for (int i = 0; i < 1000 && hak_decay_owes(); i++) hak_decay_notice();
    assert_false(hak_decay_owes());
    size_t calls = fake_os.call_count[FAKE_PURGE];
    release(slab + MANY_UNITS - 2, 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], calls);
    fake_os_refuse_nothing();
    fake_os.clock_ms += hak_knob(decay_ms);
    release(slab + MANY_UNITS - 1, 1);
    expect_turns(64 * HAK_MIB / HAK_UNIT_BYTES);
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

/* What a program's heap goes up and down by is not worth a system call. */
static void few_units_stay(void **state) {
    (void)state;
    struct hak_slab *slab = start();
    uint64_t super_slabs = hak_region_sums().super_slabs, period_ms = hak_knob(decay_ms), few = super_slabs * 2 - 1;
    assert_int_equal(HAK_UNITS_PER_SUPER_SLAB / 16, 2);
    release(slab, (uint32_t)few - 1);
    for (int i = 0; i < 5; i++) {
        fake_os.clock_ms += 2 * period_ms;
        assert_ptr_equal(hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false), slab);
        release(slab, 1);
    }
    assert_int_equal(dirty(), few - 1);
    assert_int_equal(fake_os.call_count[FAKE_PURGE], 0);
    release(slab + few - 1, 2); /* one more than few: goes when it has lain idle */
    for (int i = 0; i < 2; i++) {
        fake_os.clock_ms += 2 * period_ms;
        release(slab + few + 1 + i, 1);
    }
    assert_true(fake_os.call_count[FAKE_PURGE] > 0);
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

UNIT_MAIN(cmocka_unit_test(bound), cmocka_unit_test(bound_by_turns), cmocka_unit_test(as_much_as_is_released),
          cmocka_unit_test(period_by_turns), cmocka_unit_test(bound_by_a_limit),
          cmocka_unit_test(bound_by_a_limit_at_once), cmocka_unit_test(less_by_use), cmocka_unit_test(refused_round),
          cmocka_unit_test(decay), cmocka_unit_test(few_units_stay), cmocka_unit_test(use),
          cmocka_unit_test(standing_clock))

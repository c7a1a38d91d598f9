/* control/expected_gain.h: estimates against numbers computed by hand, of programs whose counters say what a knob can change; and that
 * no counters give anything but a number. */
#include "unit.h"

#include <math.h>

#include "base/bits.h"
#include "control/expected_gain.h"

/* Time counts as time, and memory as much. With a heap of 48 MiB and the 16 MiB that every heap is taken to have more, a
 * MiB is a 64th. */
static const struct hak_costs weights = {1, 1, 1};

static struct hak_activity program(void) { return (struct hak_activity){.cpu_ns = 1e9, .used_bytes = 48.0 * HAK_MIB}; }

static double gain(const struct hak_activity *activity, enum hak_knob_number knob, uint64_t from, uint64_t to) {
    return hak_expected_gain(activity, &weights, knob, from, to);
}

static void expect(double found, double wanted) { assert_true(fabs(found - wanted) < 1e-9); }

/* A program whose pages don't go back, which has no large objects and no misses: nothing changes. */
static void nothing_to_change(void **state) {
    (void)state;
    struct hak_activity activity = program();
    for (uint32_t knob = 0; knob < HAK_KNOB_COUNT; knob++) {
        expect(gain(&activity, (enum hak_knob_number)knob, 1 << 20, 1 << 18), 0);
        expect(gain(&activity, (enum hak_knob_number)knob, 1 << 20, 1 << 22), 0);
    }
    activity = (struct hak_activity){1e9, 1e8, 1e8, 1e6, 1e9, 1e9, {1}, 1e8, 1e8, 1e8, 1e8};
    for (uint32_t knob = 0; knob < HAK_KNOB_COUNT; knob++) expect(gain(&activity, (enum hak_knob_number)knob, 5, 5), 0);
    expect(gain(&activity, HAK_KNOB_metrics_ms, 5, 10), 0);
}

/* Of a second, 200000 pages that go back and come again take 0.1. Four times as late, a quarter of them do; and three times what goes
 * back more is kept, 48 MiB at most: three quarters of all. */
static void decay(void **state) {
    (void)state;
    struct hak_activity activity = program();
    activity.given_back_bytes = activity.reused_bytes = 200000.0 * 4096;
    expect(gain(&activity, HAK_KNOB_decay_ms, 1000, 4000), 0.075 - 0.75);
    struct hak_costs time = {1, 1, 0};
    expect(hak_expected_gain(&activity, &time, HAK_KNOB_decay_ms, 1000, 4000), 0.075);
    expect(hak_expected_gain(&activity, &time, HAK_KNOB_decay_ms, 1000, 250), -0.3);
    activity.reused_bytes = 0; /* what goes back isn't needed again */
    expect(hak_expected_gain(&activity, &time, HAK_KNOB_decay_ms, 1000, 4000), 0);
    activity.given_back_bytes = 0;
    activity.kept_bytes = activity.dirty_bytes = 16.0 * HAK_MIB; /* a fifth of what there is then */
    expect(gain(&activity, HAK_KNOB_decay_ms, 1000, 250), 0.75 * 0.2);
}

/* A tenth of the time is misses, half of them of one class, whose bins have a MiB: twice as many slots save a quarter of the misses'
 * time, and take a MiB. */
static void bins(void **state) {
    (void)state;
    struct hak_activity activity = program();
    activity.miss_ns = 1e8;
    activity.misses = 1000;
    activity.bin_bytes = 2.0 * HAK_MIB;
    expect(hak_expected_gain_of_class(&activity, &weights, 500, HAK_MIB, 64, 128), 0.025 - 1.0 / 64);
    expect(hak_expected_gain_of_class(&activity, &weights, 500, HAK_MIB, 64, 32), -0.05 + 0.5 / 64);
    expect(hak_expected_gain_of_class(&activity, &weights, 0, HAK_MIB, 64, 32), 0.5 / 64); /* no misses */
    expect(hak_expected_gain_of_class(&activity, &weights, 500, HAK_MIB, 512, 512), 0);    /* at the bound */
    expect(gain(&activity, HAK_KNOB_bin_budget_share, 8, 1), 0.0875 - 7.0 * 2 / 64);
    expect(gain(&activity, HAK_KNOB_bin_budget_share, 1, 8), -0.7 + 0.875 * 2 / 64);
}

/* Half of the objects have 1 to 2 MiB, the others 4 to 8; a tenth of the time is the kernel's. As mappings they are kept when they are
 * free, in a heap of 48 MiB all that is in use at most, in one of 192 MiB 64, in a larger one a quarter. */
static void run_limits(void **state) {
    (void)state;
    struct hak_activity activity = program();
    activity.kernel_ns = 1e8;
    activity.large[1] = activity.large[3] = 100;
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, 8 * HAK_MIB), 0);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 4 * HAK_MIB, 32 * HAK_MIB), 0.025);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, HAK_MIB / 2, 32 * HAK_MIB), 0.05);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, 4 * HAK_MIB), 0.025 - 0.75);
    activity.used_bytes = 192.0 * HAK_MIB;
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, HAK_MIB / 2), 0.05 - 64.0 / 208);
    activity.used_bytes = 496.0 * HAK_MIB;
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, HAK_MIB / 2), 0.05 - 124.0 / 512);
    hak_knob_set(HAK_KNOB_mapping_cache_bytes, 16 << 20);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, HAK_MIB / 2), 0.05 - 16.0 / 512);
    hak_knob_set(HAK_KNOB_mapping_cache_bytes, 0);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, HAK_MIB / 2), 0.05);
    hak_knob_set(HAK_KNOB_mapping_cache_bytes, 256 << 20);
    activity.large[1] = activity.large[3] = 1; /* 1.5 and 6 MiB */
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, 4 * HAK_MIB), 0.025 - 6.0 / 512);
    expect(gain(&activity, HAK_KNOB_run_limit_bytes, 32 * HAK_MIB, HAK_MIB / 2), 0.05 - 7.5 / 512);
    assert_false(hak_run_limits_differ(&activity, HAK_MIB / 2, HAK_MIB));
    assert_false(hak_run_limits_differ(&activity, 4 * HAK_MIB, 2 * HAK_MIB));
    assert_false(hak_run_limits_differ(&activity, 3 * HAK_MIB, 3 * HAK_MIB));
    assert_true(hak_run_limits_differ(&activity, HAK_MIB, HAK_MIB + 65536)); /* perhaps */
    assert_true(hak_run_limits_differ(&activity, 2 * HAK_MIB, 6 * HAK_MIB));
    activity.large[1] = 0;
    assert_false(hak_run_limits_differ(&activity, HAK_MIB, HAK_MIB + 65536));
}

static void any_counters(void **state) { /* R1 */
    (void)state;
    static const double odd[] = {0, 1, -1, 1e300, 1e-300, NAN, INFINITY, -INFINITY};
    uint64_t random = 5;
    for (int i = 0; i < 200000; i++) {
        struct hak_activity activity = {0};
        double *fields[] = {&activity.cpu_ns,      &activity.miss_ns,          &activity.kernel_ns,
                            &activity.misses,      &activity.given_back_bytes, &activity.reused_bytes,
                            &activity.large[2],    &activity.kept_bytes,       &activity.used_bytes,
                            &activity.dirty_bytes, &activity.bin_bytes};
        for (size_t field = 0; field < sizeof fields / sizeof fields[0]; field++) {
            uint64_t draw = unit_random(&random);
            *fields[field] = draw % 8 == 0 ? odd[draw >> 8 & 7] : (double)(draw >> (draw & 63));
        }
        uint64_t draw = unit_random(&random);
        uint32_t knob = (uint32_t)(draw % HAK_KNOB_COUNT);
        double found = gain(&activity, (enum hak_knob_number)knob, draw >> 20 & 0xffff, draw >> 40);
        assert_true(found >= -HAK_COST_MOST && found <= HAK_COST_MOST);
        found = hak_expected_gain_of_class(&activity, &weights, (double)(draw >> 50), odd[draw >> 8 & 7],
                                           (double)(draw >> 3 & 511), (double)(draw >> 12 & 511));
        assert_true(found >= -HAK_COST_MOST && found <= HAK_COST_MOST);
    }
}

UNIT_MAIN(cmocka_unit_test(nothing_to_change), cmocka_unit_test(decay), cmocka_unit_test(bins),
          cmocka_unit_test(run_limits), cmocka_unit_test(any_counters))

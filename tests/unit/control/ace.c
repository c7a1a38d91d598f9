/* control/ace.h over fake time and a program made of counters: what is turned, and when; what is not; and what statistics show. */
#include "floating.h"
#include "heap_fixture.h"

#include "base/counters.h"
#include "base/memory.h"
#include "control/ace.h"
#include "control/report.h"
#include "front/miss.h"
#include "pool/bin_size.h"
#include "pool/heap.h"
#include "region/directory.h"
#include "region/large.h"

enum { FAST_MS = 500, SLOW_MS = 30000 };

static struct hak_heap *heap;
static bool pages_come_back; /* what takes the kernel's time is pages that had gone back */
static uint64_t random_state, start_ms, start_ticks, period_ms = FAST_MS;
static char buffer[HAK_REPORT_BYTES];

static void configure(bool enabled, bool pinned, enum hak_goal goal) {
    hak_ace_configure(&(struct hak_ace_settings){
        .is_enabled = enabled, .is_pinned = pinned, .goal = goal, .fast_ms = FAST_MS, .slow_ms = SLOW_MS});
}

static void begin_with(enum hak_goal goal) {
    assert_true(hak_front_prewarm(16) > 0); /* a process, and a heap */
    heap = hak_atomic_load(&hak_heaps, relaxed);
    random_state = 99;
    start_ms = fake_os.clock_ms = 1000;
    start_ticks = hak_ticks();
    pages_come_back = true;
    configure(true, false, goal);
}

static void begin(void) { begin_with(HAK_GOAL_BALANCED); }

/* A period of a program that uses one processor: so much of it in the kernel, and so many large objects of 2 to 4 MiB. */
static void period(double kernel_share, uint32_t large) {
    double noise = 1 + ((double)(unit_random(&random_state) % 2001) / 1000 - 1) * 0.05;
    uint64_t kernel_ns = (uint64_t)(kernel_share * noise * (double)period_ms * 1e6), pages = kernel_ns / 500;
    fake_os.clock_ms += period_ms;
    fake_os.usage.cpu_ns += period_ms * UINT64_C(1000000);
    fake_os.usage.kernel_ns += kernel_ns;
    if (pages_come_back) {
        hak_count_reuse(pages);
        hak_counter_add_shared(&hak_os_counters.purged_bytes, pages * 4096);
    }
    hak_counter_add(&heap->counters.large_allocs, large);
    hak_counter_add_shared(&hak_large_counts[2], large);
    hak_counter_add(&heap->slow_paths, 1000);
    hak_ace_step(true);
}

/* Misses of a class that take such a share of the next period, by the time stamps. */
static void add_misses(uint32_t size_class, uint64_t misses, double share) {
    enum { SAMPLES = 1 << 24 }; /* a tick of the processor is long in the fake time */
    double ns_per_tick = (double)(fake_os.clock_ms + FAST_MS - start_ms) * 1e6 / (double)(hak_ticks() - start_ticks);
    hak_counter_add(&heap->class_misses[size_class], (uint32_t)misses);
    hak_counter_add(&heap->slow_paths, misses);
    hak_counter_add(&heap->sample_count, SAMPLES);
    hak_counter_add(&heap->sampled_ticks,
                    (uint64_t)(share * FAST_MS * 1e6 / (double)(misses + 1000) / ns_per_tick * SAMPLES));
}

static const char *json(void) {
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    hak_report_write_json(&text);
    assert_false(text.truncated);
    return buffer;
}

static bool is_in_state(const char *name) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "{\"state\": \"%s\"", name);
    return strstr(json(), wanted) != NULL;
}

static void expect_bounds(void) {
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        assert_true(hak_knob_get(i) >= hak_knob_table[i].lowest && hak_knob_get(i) <= hak_knob_table[i].highest);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        size_t slots = hak_heap_most_slots(i);
        assert_true(slots >= HAK_LEAST_SLOTS && slots <= HAK_CLASS_MOST_SLOTS);
    }
}

static void expect_start(void) {
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) assert_true(hak_knob_get(i) == hak_knob_table[i].initial);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        assert_int_equal(hak_atomic_load(&hak_class_slots[i], relaxed), 0);
}

static bool is_at_start(void) {
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        if (hak_knob_get(i) != hak_knob_table[i].initial) return false;
    return true;
}

static void nothing_when_off(void **state) {
    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        begin();
        configure(pinned, pinned, HAK_GOAL_BALANCED);
        for (int i = 0; i < 500; i++) {
            period(0.5, 100);
            expect_start();
        }
        assert_true(is_in_state(pinned ? "pinned" : "off"));
        assert_int_equal(hak_ace_wait_ms(1000), 1000);
    }
}

static void nothing_to_gain(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 500; i++) {
        period(0.01, 0);
        expect_start();
    }
    assert_true(is_in_state("frozen"));
    assert_int_equal(hak_ace_wait_ms(1000), 1000); /* no wake-up of its own */
}

/* So much of a processor is used in a period, half of it in the kernel. */
static void low_period(double share) {
    uint64_t cpu_ns = (uint64_t)(share * FAST_MS * 1e6);
    fake_os.clock_ms += FAST_MS;
    fake_os.usage.cpu_ns += cpu_ns;
    fake_os.usage.kernel_ns += cpu_ns / 2;
    hak_count_reuse(2000);
    hak_counter_add_shared(&hak_os_counters.purged_bytes, 2000 * 4096);
    hak_ace_step(true);
}

static void asleep_with_the_program(void **state) {
    (void)state;
    begin();
    period(0.5, 100);
    for (int i = 0; i < 300; i++) {
        low_period(0.06);
        expect_start();
    }
    assert_non_null(strstr(json(), "\"course\": []"));
    assert_int_equal(hak_ace_wait_ms(1000), 1000);
    low_period(0.07);
    assert_null(strstr(json(), "\"course\": []"));
}

/* Nobody would decide on what is in force when a program's load falls. */
static void nothing_stays_on_trial_in_an_idle_program(void **state) {
    (void)state;
    begin();
    uint32_t times = 0;
    for (int i = 0; i < 300; i++) {
        period(0.5, 100);
        if (strstr(json(), "\"tried\": []") != NULL) continue;
        times++;
        for (int k = 0; k < 3; k++) {
            low_period(0.03);
            assert_non_null(strstr(json(), "\"tried\": []"));
            expect_start();
        }
    }
    assert_true(times > 3);
}

/* What is tried shows at misses that are timed: bins become smaller there. So more of them are. */
static void timed_more_often_while_trying(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 10; i++) period(0.01, 0);
    assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), 63);
    for (int i = 0; i < 200 && hak_ace_wait_ms(1000) != FAST_MS; i++) period(0.3, 0);
    assert_int_equal(hak_ace_wait_ms(1000), FAST_MS); /* it learns */
    assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), 3);
    for (int i = 0; i < 1000 && !is_in_state("frozen"); i++) period(0.01, 0);
    assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), 63);
}

/* Fewer page faults the longer memory is kept, up to 4 s. */
static double faulty(void) {
    uint64_t decay_ms = hak_knob(decay_ms);
    return decay_ms < 1000 ? 0.3 : decay_ms < 4000 ? 0.2 : 0.1;
}

static void learns(void **state) {
    (void)state;
    begin();
    assert_int_equal(hak_ace_wait_ms(1000), 1000);
    int periods = 0;
    for (; !is_in_state("frozen") && periods < 3000; periods++) {
        period(faulty(), 0);
        if (periods == 10) assert_int_equal(hak_ace_wait_ms(1000), FAST_MS);
        expect_bounds();
    }
    assert_true(periods < 2000);
    assert_true(hak_knob(decay_ms) >= 4000);
    assert_true(hak_knob(run_limit_bytes) == 32 << 20); /* no large objects */
    assert_non_null(strstr(json(), "\"why\": \"keep\", \"knob\": \"decay_ms\", \"block_bytes\": 0, \"from\": "));
    for (int i = 0; i < 60; i++) period(faulty(), 0);
    assert_true(hak_knob(decay_ms) >= 4000);
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    hak_report_write_text(&text);
    assert_non_null(strstr(buffer, "control: frozen, goal balanced, profile balanced, phase 0 of 1, "));
    assert_non_null(strstr(buffer, "  knob decay_ms "));
}

/* It looks good while arms are tried, and is bad when it counts. */
static void liar_is_rolled_back(void **state) {
    (void)state;
    begin();
    uint64_t canary_ms = 0, longest_ms = 0;
    for (int i = 0; i < 3000; i++) {
        bool canary = is_in_state("canary"), moved = hak_knob(decay_ms) != 1000;
        if (canary && canary_ms == 0) canary_ms = fake_os.clock_ms;
        if (!canary) canary_ms = 0;
        else if (fake_os.clock_ms - canary_ms > longest_ms) longest_ms = fake_os.clock_ms - canary_ms;
        period(!moved ? 0.2 : canary ? 0.3 : 0.1, 0);
    }
    assert_in_range(longest_ms, 1, 2 * SLOW_MS);
    assert_int_equal(hak_knob(decay_ms), 1000);
    assert_non_null(strstr(json(), "\"why\": \"roll back\", \"knob\": \"decay_ms\""));
    assert_null(strstr(json(), "\"why\": \"keep\""));
}

/* What a candidate that somebody has asked for comes to; costs of the kernel with it and without it. */
static const char *outcome_of_asked(uint64_t value, double with, double without, uint64_t *canary_ms) {
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, value));
    uint64_t kept_value = hak_knob(decay_ms), begun_ms = 0;
    for (int i = 0; i < 1000; i++) {
        period(hak_knob(decay_ms) == value ? with : without, 0);
        if (begun_ms == 0 && is_in_state("canary")) begun_ms = fake_os.clock_ms;
        if (begun_ms == 0 || is_in_state("canary")) continue;
        *canary_ms = fake_os.clock_ms - begun_ms;
        return hak_knob(decay_ms) == kept_value ? "rolled back" : "kept";
    }
    return "never ended";
}

static void tries_what_is_asked(void **state) {
    (void)state;
    uint64_t values[HAK_ACE_ARMS], canary_ms = 0;
    begin();
    for (int i = 0; !is_in_state("frozen") && i < 100; i++) period(0.01, 0);
    assert_int_equal(hak_ace_arms(HAK_KNOB_decay_ms, values), 4);
    assert_true(values[0] == 250 && values[3] == 16000);
    assert_string_equal(outcome_of_asked(250, 0.4, 0.01, &canary_ms), "rolled back");
    assert_in_range(canary_ms, 1, SLOW_MS); /* two pairs */
    assert_non_null(strstr(json(), "\"why\": \"roll back\", \"knob\": \"decay_ms\", \"block_bytes\": 0, \"from\": "));
    assert_string_equal(outcome_of_asked(250, 0.01, 0.01, &canary_ms), "rolled back");
    assert_in_range(canary_ms, 1, 2 * SLOW_MS);
    assert_string_equal(outcome_of_asked(4000, 0.01, 0.4, &canary_ms), "kept");
}

/* Periods in which so many blocks left bins, some of them to slabs of other threads. */
static void flush_periods(uint64_t blocks, uint64_t remote) {
    for (int i = 0; i < 20; i++) {
        hak_counter_add(&heap->counters.flushed_blocks, blocks);
        hak_counter_add(&heap->counters.remote_frees, remote);
        period(0.01, 0);
    }
}

/* How many blocks leave bins, and whether they are of slabs that their thread holds, is up to hakmem. */
static void flushes_are_no_phase(void **state) {
    (void)state;
    begin();
    flush_periods(400000, 200000);
    flush_periods(6000, 3600);
    flush_periods(400000, 0);
    flush_periods(400000, 400000);
    flush_periods(0, 0);
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 1"));
}

/* With a candidate that makes everything slow, the program does less in a period: that is no other phase, and no way out. */
static void a_candidate_is_no_phase(void **state) {
    (void)state;
    begin();
    for (int i = 0; !is_in_state("frozen") && i < 100; i++) period(0.01, 100000);
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, 250));
    uint32_t bad_periods = 0;
    for (int i = 0; i < 2 * SLOW_MS / FAST_MS; i++) {
        bool is_bad = hak_knob(decay_ms) == 250;
        bad_periods += is_bad;
        period(is_bad ? 0.4 : 0.01, is_bad ? 100 : 100000);
    }
    assert_true(bad_periods > 0 && bad_periods <= 2 * 4); /* two pairs */
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 1, \"kept\": 0, \"rolled_back\": 1"));
}

static void does_not_try(void **state) {
    (void)state;
    uint64_t values[HAK_ACE_ARMS];
    begin();
    assert_int_equal(hak_ace_arms(HAK_KNOB_bin_bytes, values), 0);
    assert_int_equal(hak_ace_arms(HAK_KNOB_run_limit_bytes, values), HAK_ACE_ARMS);
    assert_false(hak_ace_try(HAK_KNOB_decay_ms, 251));
    assert_false(hak_ace_try(HAK_KNOB_bin_bytes, 1536));
    for (int i = 0; !is_in_state("frozen") && i < 100; i++) period(0.01, 0);
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, 1000)); /* in force already */
    for (int i = 0; i < 10; i++) period(0.01, 0);
    assert_true(is_in_state("frozen"));
    hak_knob_give(HAK_KNOB_decay_ms, 1234); /* A2 */
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, 4000));
    for (int i = 0; i < 10; i++) {
        period(0.01, 0);
        assert_int_equal(hak_knob(decay_ms), 1234);
    }
    assert_true(hak_ace_try(HAK_KNOB_bin_budget_share, 64));
    hak_ace_after_fork();
    for (int i = 0; i < 100; i++) {
        period(0.01, 0);
        assert_int_equal(hak_knob(bin_budget_share), 8);
    }
    for (int pinned = 0; pinned < 2; pinned++) {
        configure(pinned, pinned, HAK_GOAL_BALANCED);
        assert_false(hak_ace_try(HAK_KNOB_bin_budget_share, 64));
    }
}

static void somebody_elses_knob(void **state) { /* A2 */
    (void)state;
    begin();
    hak_knob_give(HAK_KNOB_decay_ms, 4000);      /* one of its arms, */
    hak_knob_give(HAK_KNOB_bin_budget_share, 8); /* and where one stood */
    for (int i = 0; i < 1000; i++) {
        if (i == 300) hak_knob_give(HAK_KNOB_run_limit_bytes, 5 << 20);
        period(0.5, 100);
        assert_int_equal(hak_knob(decay_ms), 4000);
        assert_int_equal(hak_knob(bin_budget_share), 8);
        assert_true(i < 300 || hak_knob(run_limit_bytes) == 5 << 20);
    }
    hak_knob_give(HAK_KNOB_bin_budget_share, 7);
    hak_ace_rest();
    assert_int_equal(hak_knob(bin_budget_share), 7);
    assert_false(hak_knob_give(HAK_KNOB_bin_budget_share, 0)); /* out of bounds */
}

/* A knob that is given in its own trial ends it: there is nothing left to decide. */
static void given_while_on_trial(void **state) { /* A2 */
    (void)state;
    begin();
    for (int i = 0; !is_in_state("frozen") && i < 100; i++) period(0.01, 0);
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, 4000));
    for (int i = 0; hak_knob(decay_ms) != 4000 && i < 100; i++) period(0.01, 0);
    assert_true(is_in_state("canary"));
    hak_knob_give(HAK_KNOB_decay_ms, 4000);
    for (int i = 0; i < 200; i++) {
        period(0.01, 0);
        assert_false(is_in_state("canary"));
        assert_int_equal(hak_knob(decay_ms), 4000);
        assert_int_equal(hak_ace_wait_ms(1000), 1000);
    }
    assert_non_null(strstr(json(), "\"prospects\": []")); /* nothing has come of it, */
    assert_non_null(strstr(json(), "\"why\": \"end\", \"knob\": \"decay_ms\", \"block_bytes\": 0, \"from\": 4000, "
                                   "\"to\": 4000")); /* which is told */
}

/* A knob that was given the value that it had stays there, where it would be turned otherwise. */
static void given_where_it_stood(void **state) { /* A2 */
    (void)state;
    for (int is_given = 0; is_given < 2; is_given++) {
        begin();
        for (uint32_t i = 0; is_given && i < HAK_KNOB_COUNT; i++) hak_knob_give(i, hak_knob_get(i));
        bool has_moved = false;
        for (int i = 0; i < 1000; i++) {
            period(0.5, 100);
            has_moved |= !is_at_start();
            if (is_given) assert_non_null(strstr(json(), "\"tried\": []"));
        }
        assert_true(has_moved == !is_given);
        hak_ace_after_fork();
    }
}

static void second_visit(void **state) {
    (void)state;
    begin();
    for (int visit = 0; visit < 30; visit++)
        for (int i = 0; i < 40; i++) period(visit % 2 == 0 ? faulty() : 0.01, visit % 2 == 0 ? 0 : 100000);
    assert_int_equal(hak_knob(decay_ms), 1000); /* of the other phase */
    period(faulty(), 0);
    assert_true(hak_knob(decay_ms) >= 4000); /* at once */
    period(0.01, 100000);
    assert_int_equal(hak_knob(decay_ms), 1000);
    assert_non_null(strstr(json(), "\"phase\": 1, \"phases\": 2"));
}

static uint32_t class_of(size_t bytes) {
    uint32_t size_class = 0;
    while (hak_size_classes[++size_class].block_bytes != bytes) {
    }
    return size_class;
}

/* Nor does rest end what is being learned: work of ten seconds at a time is enough. */
static void learns_between_rests(void **state) {
    (void)state;
    begin();
    bool is_kept = false;
    for (int i = 0; i < 3000 && !is_kept; i++) {
        if (i % 23 < 20) period(faulty(), 0);
        else low_period(0.03);
        is_kept = strstr(json(), "\"why\": \"keep\", \"knob\": \"decay_ms\"") != NULL;
    }
    assert_true(is_kept && hak_knob(decay_ms) >= 4000);
}

/* Heaps count the misses of a class in 32 bits. */
static void a_wrap_is_no_flood(void **state) {
    (void)state;
    begin();
    uint32_t size_class = class_of(4096);
    hak_atomic_store(&heap->class_misses[size_class], UINT32_MAX - 2, relaxed);
    period(0, 0);
    for (int i = 0; i < 5; i++) {
        hak_counter_add(&heap->class_misses[size_class], 1);
        add_misses(4, 1000, 0.3);
        period(0, 0);
        assert_null(strstr(json(), "\"block_bytes\": 4096"));
    }
    assert_null(strstr(json(), "\"prospects\": []")); /* but the other class */
}

/* Bins of the class miss, less the larger they are. */
static void missing_period(uint32_t size_class) {
    double slots = (double)hak_heap_most_slots(size_class);
    add_misses(size_class, (uint64_t)(4000000 / slots), 0.05 + 0.4 / slots);
    period(0, 0);
    expect_bounds();
}

static void classes(void **state) {
    (void)state;
    begin();
    uint32_t size_class = class_of(4096);
    for (int i = 0; i < 1500; i++) missing_period(size_class);
    assert_true(hak_heap_most_slots(size_class) >= 24);
    assert_non_null(strstr(json(), "{\"knob\": \"class_slots\", \"block_bytes\": 4096, \"gain_ppm\": "));
}

static bool has_verdict(const char *block_bytes) {
    char row[80];
    snprintf(row, sizeof row, "{\"knob\": \"class_slots\", \"block_bytes\": %s, \"gain_ppm\":", block_bytes);
    const char *found = strstr(json(), row);
    if (found == NULL) return false;
    const char *end = strchr(found, '}'), *untried = strstr(found, "\"untried\"");
    return untried == NULL || untried > end;
}

/* Until it is tried, in vain. */
static void try_class_of_4096(void) {
    begin();
    uint32_t tried = class_of(4096);
    size_t slots = hak_heap_most_slots(tried);
    for (int i = 0; i < 1500 && !has_verdict("4096"); i++) {
        add_misses(tried, 4000, hak_heap_most_slots(tried) == slots ? 0.2 : 0.4); /* nothing else is better */
        period(0, 0);
    }
    assert_int_equal(hak_heap_most_slots(tried), slots);
    assert_true(has_verdict("4096") && !has_verdict("2048"));
}

/* What came of a class says nothing of another one that misses more later: that one is tried, too. */
static void a_verdict_stays_with_its_class(void **state) {
    (void)state;
    try_class_of_4096();
    uint32_t tried = class_of(4096), other = class_of(2048);
    for (int i = 0; i < 5; i++) {
        hak_counter_add(&heap->class_misses[tried], 4000);
        add_misses(other, 8000, 0.2);
        period(0, 0);
        assert_false(has_verdict("2048"));
    }
    bool is_tried = false;
    for (int i = 0; i < 3000 && !is_tried; i++) {
        hak_counter_add(&heap->class_misses[tried], 4000);
        add_misses(other, 8000, 0.2);
        period(0, 0);
        is_tried = hak_atomic_load(&hak_class_slots[other], relaxed) != 0;
    }
    assert_true(is_tried);
}

/* Whoever gives `bin_bytes` has all bins: those on trial, and those that were kept before, in any phase. */
static void expect_given_bins(const char *why) { /* A2 */
    begin();
    uint32_t size_class = class_of(4096);
    char event[64];
    snprintf(event, sizeof event, "\"why\": \"%s\", \"knob\": \"class_slots\"", why);
    for (int i = 0; i < 1500; i++) {
        missing_period(size_class);
        if (hak_atomic_load(&hak_class_slots[size_class], relaxed) != 0 && strstr(json(), event) != NULL) break;
    }
    assert_int_not_equal(hak_atomic_load(&hak_class_slots[size_class], relaxed), 0);
    hak_knob_give(HAK_KNOB_bin_bytes, 4096);
    bool is_in_trial = strcmp(why, "keep") != 0, has_ended = false;
    for (int i = 0; i < 200; i++) {
        if (i / 50 % 2 == 0) missing_period(size_class);
        else period(0.01, 100000); /* another phase */
        has_ended |= strstr(json(), "\"why\": \"end\", \"knob\": \"class_slots\", \"block_bytes\": 4096") != NULL;
        assert_int_equal(hak_atomic_load(&hak_class_slots[size_class], relaxed), 0);
        assert_null(strstr(json(), "\"tried\": [{\"knob\": \"class_slots\""));
    }
    assert_true(has_ended || !is_in_trial);
}

static void bins_are_given_in_mid_trial(void **state) {
    (void)state;
    expect_given_bins("explore");
}

static void bins_are_given_after_some_were_kept(void **state) {
    (void)state;
    expect_given_bins("keep");
}

/* Whoever writes a policy must know what is on trial only. */
static void tells_what_is_tried(void **state) {
    (void)state;
    begin();
    bool was_tried = false;
    for (int i = 0; i < 300; i++) {
        period(faulty(), 0);
        bool is_tried = strstr(json(), "\"tried\": [{\"knob\": \"decay_ms\", \"block_bytes\": 0, \"chosen\": 1000}]");
        if (is_tried) assert_true(hak_knob(decay_ms) != 1000 && hak_ace_chosen(HAK_KNOB_decay_ms) == 1000);
        else if (strstr(json(), "\"tried\": []"))
            assert_int_equal(hak_ace_chosen(HAK_KNOB_decay_ms), hak_knob(decay_ms));
        if (!is_tried && strstr(json(), "\"why\": \"keep\", \"knob\": \"decay_ms\"") == NULL)
            assert_int_equal(hak_knob(decay_ms), 1000);
        was_tried |= is_tried;
    }
    assert_true(was_tried);
    hak_ace_rest();
    assert_non_null(strstr(json(), "\"tried\": []"));
    hak_ace_after_fork();
    assert_int_equal(hak_ace_chosen(HAK_KNOB_decay_ms), 1000);
    hak_knob_give(HAK_KNOB_decay_ms, 1234);
    assert_int_equal(hak_ace_chosen(HAK_KNOB_decay_ms), 1234);
}

/* A heap that fills and empties: looked at, it is of any size. */
static void sawtooth(void **state) {
    (void)state;
    begin();
    hak_atomic_store(&hak_mapping_bytes, UINT64_C(256) << 20, relaxed);
    for (int i = 0; i < 2000 && !is_in_state("frozen"); i++) {
        period(faulty(), 0);
        hak_atomic_store(&hak_mapping_bytes, unit_random(&random_state) % (UINT64_C(256) << 20), relaxed);
    }
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 1"));
    assert_true(hak_knob(decay_ms) >= 4000);
    hak_atomic_store(&hak_mapping_bytes, 0, relaxed); /* for good */
    for (int i = 0; i < 20; i++) period(faulty(), 0);
    assert_non_null(strstr(json(), "\"phase\": 1, \"phases\": 2"));
}

static void period_of_misses(void) {
    add_misses(4, 1000, 0.3);
    period(0, 0);
}

/* The budget of all bins comes before the bins of a class, which it bounds. */
static void budget_comes_first(void **state) {
    (void)state;
    begin_with(HAK_GOAL_SPEED);
    bool has_moved = false;
    for (int i = 0; i < 300; i++) {
        period_of_misses();
        has_moved |= hak_knob(bin_budget_share) != 8;
        if (!has_moved) assert_int_equal(hak_atomic_load(&hak_class_slots[4], relaxed), 0);
    }
    assert_true(has_moved);
}

/* A larger share of the heap is memory for time: no trial of it where memory counts. */
static void budget_stays_where_memory_counts(void **state) {
    static const enum hak_goal goals[] = {HAK_GOAL_BALANCED, HAK_GOAL_MEMORY};
    (void)state;
    begin();
    for (size_t goal = 0; goal < sizeof goals / sizeof goals[0]; goal++) {
        configure(true, false, goals[goal]);
        bool has_moved = false;
        for (int i = 0; i < 300; i++) {
            period_of_misses();
            assert_int_equal(hak_knob(bin_budget_share), 8);
            has_moved |= hak_atomic_load(&hak_class_slots[4], relaxed) != 0;
        }
        assert_true(has_moved || goal > 0); /* the bins of the class were turned */
        hak_ace_after_fork();
    }
}

/* While the program rests nothing is tried: before anything was decided, all is as at the start. */
static void rests(void **state) {
    (void)state;
    begin();
    int times = 0;
    for (int i = 0; i < 100; i++) {
        period(0.3, 100);
        if (is_at_start()) continue;
        times++;
        hak_ace_rest();
        expect_start();
        assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), UINT64_MAX);
    }
    assert_true(times > 2);
}

static void fork_begins_anew(void **state) { /* A3 */
    (void)state;
    begin();
    for (int i = 0; i < 2000; i++) {
        period(faulty(), 100);
        if (i % 97 != 0) continue;
        hak_ace_after_fork();
        expect_start();
        assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), UINT64_MAX);
    }
    period(faulty(), 100);
    assert_null(strstr(json(), "\"course\": []"));
    hak_atomic_store(&hak_class_slots[5], 64, relaxed);
    hak_ace_after_fork();
    expect_start();
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 0, \"kept\": 0, \"rolled_back\": 0, \"settled_ms\": 0,"));
    assert_non_null(strstr(json(), "\"prospects\": []"));
    assert_non_null(strstr(json(), "\"events\": []"));
    assert_non_null(strstr(json(), "\"course\": []"));
    hak_knob_give(HAK_KNOB_run_limit_bytes, 3 << 20); /* mallopt, */
    hak_knob_give(HAK_KNOB_decay_ms, 250);            /* to one of its arms */
    period(0.5, 100);
    hak_ace_after_fork();
    assert_int_equal(hak_knob(run_limit_bytes), 3 << 20);
    assert_int_equal(hak_knob(decay_ms), 250);
}

/* Also where the parent's controller had not begun. */
static void a_child_tries_nothing_that_was_asked_of_its_parent(void **state) { /* A3 */
    (void)state;
    begin();
    assert_true(hak_ace_try(HAK_KNOB_decay_ms, 4000));
    hak_ace_after_fork();
    for (int i = 0; i < 100; i++) {
        period(0.01, 0);
        expect_start();
    }
}

/* Statistics are written, and asked for, in threads of the program's. */
static void leaves_floating_alone(void **state) {
    (void)state;
    uint64_t values[HAK_ACE_ARMS];
    begin();
    for (int i = 0; i < 20; i++) period(faulty(), 100000);
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    unit_trap_floating();
    hak_report_write_json(&text);
    hak_report_write_text(&text);
    hak_ace_arms(HAK_KNOB_run_limit_bytes, values);
    hak_ace_after_fork();
    unit_expect_trapped_floating();
}

static void tight_memory(void **state) { /* A3 */
    (void)state;
    begin();
    uint32_t interrupted = 0;
    for (int i = 0; i < 300; i++) {
        period(0.5, 100);
        if (i % 7 != 0) continue;
        interrupted += strstr(json(), "\"tried\": []") == NULL;
        hak_atomic_store(&hak_memory_is_tight, true, relaxed);
        for (int k = 0; k < 3; k++) {
            period(0.5, 100);
            assert_non_null(strstr(json(), "\"tried\": []"));
            assert_true(is_at_start() || strstr(json(), "\"why\": \"keep\"") != NULL);
            assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), UINT64_MAX);
        }
        hak_atomic_store(&hak_memory_is_tight, false, relaxed);
    }
    assert_true(interrupted > 3);
}

/* ---- What is tried, and that it ends ---------------------------------------------------------------------------------- */

enum { MINUTE = 60000 / FAST_MS };

/* Everything stands still but what the counters blame: pages that go back too soon. */
static void only_what_matters(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 10 * MINUTE; i++) {
        period(faulty(), 0);
        for (uint32_t knob = 0; knob < HAK_KNOB_COUNT; knob++)
            assert_true(knob == HAK_KNOB_decay_ms || hak_knob_get(knob) == hak_knob_table[knob].initial);
        expect_bounds();
    }
    assert_true(hak_knob(decay_ms) >= 4000);
    assert_null(strstr(json(), "{\"knob\": \"run_limit_bytes\", \"block_bytes\": 0, \"gain_ppm\""));
}

static uint32_t matches(void) {
    uint32_t sum = 0;
    for (const char *at = strstr(json(), "\"strategies\""); (at = strstr(at, "\"matches\": ")) != NULL; at++)
        sum += (uint32_t)strtoul(at + strlen("\"matches\": "), NULL, 10);
    return sum / 2;
}

/* A program of objects of 2 to 4 MiB, for which mappings, or runs, cost so much of the kernel's time. Where they are slow, it makes a
 * tenth of the objects in a period. */
static void period_of_large(double mapped_share, double run_share) {
    bool is_mapped = hak_knob(run_limit_bytes) < 4 << 20;
    double share = is_mapped ? mapped_share : run_share;
    period(share, share > 0.2 ? 10000 : 100000);
}

/* Until the controller has come to an end; returns the periods that took. */
static int conclude_limits(double mapped_share, double run_share) {
    int periods = 0;
    begin();
    pages_come_back = false;
    for (bool is_frozen = false; !is_frozen && periods < 10 * MINUTE; periods++) {
        period_of_large(mapped_share, run_share);
        is_frozen = is_in_state("frozen");
    }
    assert_non_null(strstr(json(), "\"phases\": 1"));
    return periods;
}

/* The limits of page runs are rated, and there is a verdict, within a minute at the default intervals. */
static void limits_are_decided_in_a_minute(void **state) {
    (void)state;
    assert_in_range(conclude_limits(0.3, 0.05), 10, MINUTE + 1);
    assert_true(hak_knob(run_limit_bytes) == 32 << 20);
    assert_true(matches() >= 4);
    hak_ace_after_fork();
    assert_in_range(conclude_limits(0.05, 0.3), 10, MINUTE + 1);
    assert_true(hak_knob(run_limit_bytes) < 4 << 20);
    assert_true(matches() >= 4);
    assert_non_null(strstr(json(), "{\"knob\": \"run_limit_bytes\", \"block_bytes\": 0, \"gain_ppm\": "));
    assert_non_null(strstr(json(), "\"outcome\": \"kept\""));
}

/* Matches outlive visits to another phase, as does what is being learned. */
static void limits_are_decided_in_short_visits(void **state) {
    (void)state;
    begin();
    pages_come_back = false;
    uint32_t before = 0;
    for (int visit = 0; visit < 20; visit++) {
        for (int i = 0; i < 12; i++) period_of_large(0.05, 0.3);
        assert_true(matches() >= before);
        before = matches();
        for (int i = 0; i < 6; i++) period(0.01, 0);
        assert_int_equal(matches(), before);
    }
    period_of_large(0.05, 0.3);
    assert_true(hak_knob(run_limit_bytes) < 4 << 20);
    assert_non_null(strstr(json(), "\"phases\": 2"));
}

/* When a trial of a knob first came to an end; 0 where none did. */
static uint64_t decided_ms(const char *knob) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\n   {\"knob\": \"%s\"", knob);
    const char *row = strstr(json(), wanted), *at = row == NULL ? NULL : strstr(row, "\"decided_ms\": ");
    return at == NULL ? 0 : strtoull(at + strlen("\"decided_ms\": "), NULL, 10);
}

static uint64_t settled_ms(void) {
    const char *at = strstr(json(), "\"settled_ms\": ");
    assert_non_null(at);
    return strtoull(at + strlen("\"settled_ms\": "), NULL, 10);
}

/* As hakmem's thread waits, which adds no wake-up where nothing is tried. Looks take a sixth of a slow period; and what promises
 * something at the last of them is decided within two. */
static void rounds_end_in_time(void **state) {
    (void)state;
    for (int is_late = 0; is_late < 2; is_late++) {
        begin();
        for (int i = 0; settled_ms() == 0; i++) {
            assert_true(i < 10 * MINUTE);
            period(is_late && i >= 5 ? faulty() : 0.01, 0);
            period_ms = hak_ace_wait_ms(1000);
        }
        assert_in_range(settled_ms(), 1000, is_late ? 2 * SLOW_MS : SLOW_MS / 6 + 2000);
        assert_true((decided_ms("decay_ms") != 0) == is_late);
        hak_ace_after_fork();
        hak_knob_set(HAK_KNOB_decay_ms, 1000);
    }
}

/* The first time counts, whatever comes later; a child begins anew. */
static void tells_when_it_was_decided(void **state) {
    (void)state;
    begin();
    period_of_large(0.05, 0.3);
    assert_true(settled_ms() == 0 && decided_ms("run_limit_bytes") == 0);
    uint64_t most = (uint64_t)conclude_limits(0.05, 0.3) * FAST_MS, settled = settled_ms(),
             decided = decided_ms("run_limit_bytes");
    assert_in_range(decided, 10 * FAST_MS, most);
    assert_in_range(settled, decided, most);
    for (int i = 0; i < 10 * MINUTE; i++) period_of_large(0.3, 0.05 + 0.3 * (i / MINUTE % 2));
    assert_int_equal(decided_ms("run_limit_bytes"), decided);
    assert_int_equal(settled_ms(), settled);
    hak_ace_after_fork();
    begin();
    period_of_large(0.05, 0.3);
    assert_true(settled_ms() == 0 && decided_ms("run_limit_bytes") == 0);
}

/* Phases with large objects, of which each has much more memory in use than the one before: they share the matches, and the canary. */
static void limits_are_decided_in_a_minute_of_phases(void **state) {
    (void)state;
    begin();
    pages_come_back = false;
    for (int i = 0; i < MINUTE; i++) {
        hak_atomic_store(&hak_mapping_bytes, UINT64_C(256) << (20 + 3 * (i / 20 % 4)), relaxed);
        period_of_large(0.05, 0.3);
    }
    assert_non_null(strstr(json(), "\"phases\": 4"));
    assert_in_range(decided_ms("run_limit_bytes"), 10 * FAST_MS, 60000);
    assert_non_null(strstr(json(), "\"why\": \"keep\", \"knob\": \"run_limit_bytes\""));
    hak_atomic_store(&hak_mapping_bytes, 0, relaxed);
}

/* A program that makes some large objects now and then, and none in between, is in one phase; one that had made them all the time, and
 * has stopped, is in another at once. */
static void now_and_then_is_no_phase(void **state) {
    (void)state;
    begin();
    for (int i = 0; i < 2 * MINUTE; i++) period(0.01, i % 7 < 2 ? 40 : 0);
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 1"));
    for (int i = 0; i < 20; i++) period(0.01, 40);
    for (int i = 0; i < 2; i++) period(0.01, 0);
    assert_non_null(strstr(json(), "\"phase\": 1, \"phases\": 2"));
    for (int i = 0; i < 20; i++) period(0.01, i < 5 ? 40 : 0); /* for long */
    assert_non_null(strstr(json(), "\"phase\": 1, \"phases\": 2"));
    period(0.01, 40);
    assert_non_null(strstr(json(), "\"phase\": 0, \"phases\": 2"));
}

/* Of a program without large objects there is no match, whatever the kernel does. */
static void no_limits_without_objects(void **state) {
    (void)state;
    begin();
    pages_come_back = false;
    for (int i = 0; i < MINUTE; i++) period(0.3, 0);
    assert_true(is_in_state("frozen"));
    assert_int_equal(matches(), 0);
}

static void any_program(void **state) { /* A1 */
    (void)state;
    begin();
    for (int i = 0; i < 20000; i++) {
        uint64_t draw = unit_random(&random_state);
        hak_counter_add(&heap->class_misses[1 + draw % HAK_SMALL_CLASS_COUNT], (uint32_t)(draw >> 40));
        hak_counter_add(&heap->sampled_ticks, draw >> (draw & 63));
        hak_counter_add(&heap->sample_count, draw >> 60);
        period((double)(draw >> 32 & 255) / 256, draw % 50 < 25 ? 0 : (uint32_t)(draw >> 44));
        if (draw % 97 == 0) fake_os.clock_ms += draw >> 50;
        if (draw % 101 == 0) hak_ace_rest();
        expect_bounds();
    }
    json();
}

UNIT_MAIN(cmocka_unit_test(nothing_when_off), cmocka_unit_test(nothing_to_gain),
          cmocka_unit_test(timed_more_often_while_trying), cmocka_unit_test(asleep_with_the_program),
          cmocka_unit_test(nothing_stays_on_trial_in_an_idle_program), cmocka_unit_test(learns_between_rests),
          cmocka_unit_test(bins_are_given_in_mid_trial), cmocka_unit_test(bins_are_given_after_some_were_kept),
          cmocka_unit_test(learns), cmocka_unit_test(liar_is_rolled_back), cmocka_unit_test(tries_what_is_asked),
          cmocka_unit_test(flushes_are_no_phase), cmocka_unit_test(a_candidate_is_no_phase),
          cmocka_unit_test(does_not_try), cmocka_unit_test(somebody_elses_knob), cmocka_unit_test(given_while_on_trial),
          cmocka_unit_test(given_where_it_stood), cmocka_unit_test(second_visit), cmocka_unit_test(a_wrap_is_no_flood),
          cmocka_unit_test(classes), cmocka_unit_test(a_verdict_stays_with_its_class),
          cmocka_unit_test(tells_what_is_tried), cmocka_unit_test(sawtooth), cmocka_unit_test(budget_comes_first),
          cmocka_unit_test(budget_stays_where_memory_counts), cmocka_unit_test(rests),
          cmocka_unit_test(fork_begins_anew), cmocka_unit_test(a_child_tries_nothing_that_was_asked_of_its_parent),
          cmocka_unit_test(leaves_floating_alone), cmocka_unit_test(tight_memory), cmocka_unit_test(only_what_matters),
          cmocka_unit_test(limits_are_decided_in_a_minute), cmocka_unit_test(limits_are_decided_in_short_visits),
          cmocka_unit_test(rounds_end_in_time), cmocka_unit_test(tells_when_it_was_decided),
          cmocka_unit_test(limits_are_decided_in_a_minute_of_phases), cmocka_unit_test(now_and_then_is_no_phase),
          cmocka_unit_test(no_limits_without_objects), cmocka_unit_test(any_program))

/* front/meter.h: when malloc is metered, with a background thread that the test is, in a time that the test makes. Every moment must
 * have had the same chance (M1), and what is sampled in windows must add up to what was allocated. */
#include "heap_fixture.h"

#include <errno.h>
#include <math.h>

#include "front/meter.h"
#include "front/routes.h"

enum { RARITY = 16, CELL_US = 32000, FIRST_LOOK_US = 4000, BUSY_PER_MS = 1000, CALM_PER_MS = 100 };

#define ORIGIN_US UINT64_C(1000000) /* the kernel's clock begins long before */

static uint64_t now_us = ORIGIN_US, next_us;

static bool is_metered(void) { return hak_routes_bin_of(16) > HAK_SMALL_CLASS_COUNT; }
static uint32_t rarity(void) {
    return (hak_atomic_load(&hak_meter_rarity, relaxed) + HAK_RARITY_ONE / 2) / HAK_RARITY_ONE;
}

static void step(void) {
    uint64_t wait_us = hak_meter_step(now_us);
    next_us = wait_us == UINT64_MAX ? UINT64_MAX : now_us + wait_us;
}

static void start(uint64_t seed) {
    hak_profile_seed(seed);
    assert_true(hak_meter_start((uint64_t)1 << 40)); /* no sample is due */
    step();
}

/* Time goes on, and the program runs and calls malloc. */
static void run(uint64_t until_us, uint32_t calls_per_ms) {
    static void *block;
    uint32_t pause_us = 1000 / calls_per_ms;
    for (; now_us < until_us; now_us += pause_us, fake_os.cpu_us += pause_us) {
        if (now_us >= next_us) step();
        hak_free(block);
        block = hak_malloc(16);
    }
}

static void all_the_time_while_calm(void **state) {
    (void)state;
    start(1);
    for (; now_us < ORIGIN_US + 3000000; run(now_us + 1000, CALM_PER_MS)) {
        assert_true(is_metered() && rarity() == 1);
        assert_true(next_us - now_us <= CELL_US);
    }
}

static void windows_while_busy(void **state) {
    (void)state;
    start(1);
    run(ORIGIN_US + FIRST_LOOK_US, BUSY_PER_MS);
    assert_int_equal(rarity(), 1);
    for (uint64_t ms = 1; ms <= 1000; ms++) {
        run(ORIGIN_US + FIRST_LOOK_US + 1000 * ms, BUSY_PER_MS);
        assert_in_range(rarity(), RARITY - 1, RARITY + 1);
    }
    run(now_us + 18 * CELL_US, CALM_PER_MS);
    assert_true(is_metered() && rarity() == 1);
    run(now_us + 2 * CELL_US, BUSY_PER_MS);
    assert_int_equal(rarity(), RARITY);
    now_us += UINT64_C(10000000); /* it did nothing, and the thread goes to sleep */
    hak_meter_rest();
    assert_true(is_metered() && rarity() == 1);
}

/* Moments right after the first look, in the middle of a cell, and much later: each is in a window of one program of sixteen. */
static void each_moment_has_its_chance(void **state) {
    (void)state;
    enum { PROGRAMS = 8000, MOMENTS = 8 };
    static const uint32_t moments_us[MOMENTS] = {10, 700, 5000, 16000, 31000, 33000, 100000, 101100};
    uint32_t in_window[MOMENTS] = {0};
    for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
        now_us = seed * 1000000007;
        uint64_t busy_from_us = now_us + FIRST_LOOK_US;
        start(seed);
        for (int i = 0; i < 3000; i++) hak_free(hak_malloc(16)); /* the first look finds it busy */
        for (int i = 0; i < MOMENTS; i++) {
            while (next_us <= busy_from_us + moments_us[i]) {
                fake_os.cpu_us += next_us - now_us;
                now_us = next_us;
                step();
                for (int call = 0; call < 1500; call++) hak_free(hak_malloc(16));
            }
            assert_in_range(rarity(), RARITY - 1, RARITY + 1);
            in_window[i] += is_metered();
        }
        hak_meter_stop();
    }
    double expected = (double)PROGRAMS / RARITY, deviation = sqrt(expected * (1 - 1.0 / RARITY));
    for (int i = 0; i < MOMENTS; i++)
        if (fabs(in_window[i] - expected) > 4 * deviation)
            fail_msg("%u us: in a window %u times of %d", moments_us[i], in_window[i], PROGRAMS);
}

/* A thread that wakes up late, as on a busy machine, does not change the share of time. */
static void late_wake_ups(void **state) {
    (void)state;
    start(3);
    run(ORIGIN_US + FIRST_LOOK_US * 2, BUSY_PER_MS);
    uint64_t random = 1, metered_us = 0, all_us = 0;
    while (all_us < 20000000) {
        now_us += 100;
        fake_os.cpu_us += 100;
        all_us += 100;
        metered_us += is_metered() ? 100 : 0;
        for (int call = 0; call < 100; call++) hak_free(hak_malloc(16));
        if (now_us >= next_us && unit_random(&random) % 40 == 0) step(); /* 4 ms late on average */
    }
    double share = (double)metered_us / (double)all_us;
    assert_true(fabs(share * RARITY - 1) < 0.05);
}

/* Processors are busy: when the thread wakes up, the others have to wait for most of the window. What they do in the rest counts for as
 * much more. */
static void pushed_aside(void **state) {
    (void)state;
    start(4);
    run(ORIGIN_US + FIRST_LOOK_US * 2, BUSY_PER_MS);
    uint64_t random = 1;
    double truth_us = 0, estimate_us = 0;
    for (int i = 0; i < 2000000; i++) {
        now_us += 10;
        if (now_us >= next_us) step();
        if (is_metered() && unit_random(&random) % 4 != 0) continue;
        fake_os.cpu_us += 10;
        for (int call = 0; call < 40; call++) hak_free(hak_malloc(16));
        if (i < 200000) continue; /* until it knows */
        truth_us += 10;
        if (is_metered()) estimate_us += 10.0 * hak_atomic_load(&hak_meter_rarity, relaxed) / HAK_RARITY_ONE;
    }
    if (fabs(estimate_us / truth_us - 1) > 0.1) fail_msg("%.0f ms of %.0f", estimate_us / 1000, truth_us / 1000);
}

/* Calls take so much of a window that it is worth a third less than its time: whether the kernel counts that in ticks twice as long as a
 * window, but for threads that it is asked for, or exactly. */
static void metering_takes_time(void **state) {
    (void)state;
    enum {
        CALLS_PER_US = 48,
        CALL_NS = 7,
        WINDOW_US = CELL_US / RARITY,
        TAKEN_US = WINDOW_US * CALLS_PER_US * CALL_NS / 1000
    };
    double expected = (double)(CELL_US - TAKEN_US) / (WINDOW_US - TAKEN_US);
    for (uint64_t tick_us = 0; tick_us <= 4000; tick_us += 4000) {
        fake_os.cpu_tick_us = tick_us;
        start(5 + tick_us);
        for (uint64_t end_us = now_us + 600000; now_us < end_us; now_us += 10, fake_os.cpu_us += 10) {
            if (now_us >= next_us) step();
            for (int call = 0; is_metered() && call < 10 * CALLS_PER_US; call++) hak_free(hak_malloc(16));
        }
        double found = (double)hak_atomic_load(&hak_meter_rarity, relaxed) / HAK_RARITY_ONE;
        if (fabs(found / expected - 1) > 0.05) fail_msg("ticks of %lu us: %.2f, truth %.2f", tick_us, found, expected);
        hak_meter_stop();
        step();
    }
}

/* The process is stopped for an hour, in a window: it is not without one for the next day. */
static void stopped(void **state) {
    (void)state;
    start(1);
    run(ORIGIN_US + 1000000, BUSY_PER_MS);
    while (!is_metered()) run(now_us + 100, BUSY_PER_MS);
    now_us += UINT64_C(3600) * 1000000;
    uint64_t woken_us = now_us;
    step();
    while (!is_metered()) run(now_us + 100, BUSY_PER_MS);
    assert_true(now_us - woken_us < 20 * CELL_US);
}

static void on_and_off(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    assert_true(hak_meter_step(0) == UINT64_MAX);
    start(1);
    run(ORIGIN_US + 1000000, BUSY_PER_MS);
    while (is_metered()) run(now_us + 100, BUSY_PER_MS);
    hak_meter_without_thread();
    assert_true(is_metered() && rarity() == 1);
    hak_meter_stop();
    assert_false(is_metered());
    step();
    assert_true(next_us == UINT64_MAX);
    start(2); /* from the beginning, whatever was before */
    assert_true(is_metered() && rarity() == 1 && next_us == now_us + FIRST_LOOK_US);
    hak_routes_meter(false);
    hak_meter_stop();
    hak_routes_meter(true); /* by a step that came too late */
    step();
    assert_false(is_metered());
    hak_meter_without_thread();
    assert_false(is_metered());
}

static void starts_the_thread(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    assert_null(fake_os.thread);
    hak_free(hak_malloc(100)); /* the program is small */
    assert_null(fake_os.thread);
    start(1);
    hak_free(hak_malloc(200));
    assert_null(fake_os.thread); /* calls are few */
    for (int i = 0; i < FIRST_LOOK_US / 1000 * BUSY_PER_MS; i++) hak_free(hak_malloc(200));
    hak_free(hak_malloc(300));
    assert_non_null(fake_os.thread);
}

/* ---- Estimates ---------------------------------------------------------------------------------------------------------- */

enum { SITES = 2 };
static const size_t site_sizes[SITES] = {100, 3000};

__attribute__((noinline)) static void *at_first_site(void) {
    void *block = hak_malloc(site_sizes[0]);
    __asm__ volatile("" : "+r"(block));
    return block;
}
__attribute__((noinline)) static void *at_second_site(void) {
    void *block = hak_malloc(site_sizes[1]);
    __asm__ volatile("" : "+r"(block));
    return block;
}

/* Bytes that live blocks of a site have, as the profile tells; sites are told by their sizes. */
static double live_bytes_of(size_t size) {
    double bytes = 0;
    fake_os_forget();
    assert_int_equal(hak_profile_write(1), 0);
    for (char *line = strtok(fake_os.output, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        uint64_t figure[10];
        if (strncmp(line, "site ", 5) != 0) continue;
        char *at = line + 5;
        for (int i = 0; i < 10; i++) figure[i] = strtoull(at, &at, 10);
        if (figure[8] == size && figure[9] == size) bytes += (double)(figure[4] - figure[5]);
    }
    return bytes;
}

/* A busy program that keeps a part of what it gets, and frees the rest later. There are some
 * 10^4 live samples per site. */
static void live_bytes_by_windows(void **state) {
    (void)state;
    enum { KEPT = 400000, IN_FLIGHT = 64, MOST_BYTES = 4096 };
    static void *kept[SITES][KEPT], *in_flight[IN_FLIGHT];
    static uint32_t counts[SITES];
    uint64_t random = 5;
    hak_profile_seed(9);
    assert_true(hak_meter_start(MOST_BYTES));
    step();
    double live[SITES] = {0};
    for (uint64_t call = 0; counts[0] < KEPT; call++) {
        uint64_t pick = unit_random(&random);
        int site = pick % 31 == 0;
        if (call % 2 == 0) now_us++, fake_os.cpu_us++;
        if (now_us >= next_us) step();
        void *block = site == 0 ? at_first_site() : at_second_site();
        if ((pick >> 32 & 3) == 0) {
            kept[site][counts[site]++] = block;
            live[site] += (double)site_sizes[site];
        } else {
            hak_free(in_flight[pick >> 40 & (IN_FLIGHT - 1)]);
            in_flight[pick >> 40 & (IN_FLIGHT - 1)] = block;
        }
    }
    assert_int_equal(rarity(), RARITY);
    for (int i = 0; i < IN_FLIGHT; i++) hak_free(in_flight[i]);
    for (int site = 0; site < SITES; site++) {
        double estimate = live_bytes_of(site_sizes[site]);
        if (fabs(estimate / live[site] - 1) > 0.05) fail_msg("site %d: %.0f, truth %.0f", site, estimate, live[site]);
        for (uint32_t i = 0; i < counts[site]; i++) hak_free(kept[site][i]);
        assert_true(live_bytes_of(site_sizes[site]) == 0);
    }
    static struct hak_snapshot snapshot;
    check_equations(&snapshot);
}

/* A step takes no longer in a program of very many threads. */
static void many_threads(void **state) {
    (void)state;
    start(1);
    uint64_t few = fake_os.thread_clocks_read;
    run(now_us + 10 * CELL_US, BUSY_PER_MS);
    few = fake_os.thread_clocks_read - few;
    for (int i = 0; i < 500; i++) assert_non_null(hak_heap_acquire());
    uint64_t many = fake_os.thread_clocks_read;
    run(now_us + 10 * CELL_US, BUSY_PER_MS);
    many = fake_os.thread_clocks_read - many;
    assert_in_range(few, 20, 100);
    assert_in_range(many, few * 32, few * 80);
}

/* A tracer attaches and detaches: the profile goes with it, but for one that somebody has switched on. */
static void tracers(void **state) {
    (void)state;
    static void *blocks[4000];
    hak_free(hak_malloc(16));
    for (int round = 0; round < 6; round++) {
        bool has_tracer = round % 2 == 0, is_asked = round >= 2;
        if (round == 3) hak_atomic_store(&hak_probe_alloc_semaphore, 2, relaxed); /* one of two leaves */
        hak_atomic_store(&hak_probe_alloc_semaphore, has_tracer, relaxed);
        if (round == 2) assert_true(hak_meter_start(4096));
        for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
        for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
        assert_int_equal(hak_profile_is_on(), has_tracer || is_asked);
        assert_int_equal(is_metered(), has_tracer || is_asked);
        if (round == 5) hak_meter_stop();
    }
    assert_false(hak_profile_is_on());
    hak_atomic_store(&hak_probe_alloc_semaphore, 1, relaxed);
    for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
    assert_true(hak_profile_is_on());
    hak_meter_stop(); /* the tracer is still there */
    for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
    for (int i = 0; i < 4000; i++) blocks[i] = hak_malloc(100);
    assert_true(hak_profile_is_on());
    hak_atomic_store(&hak_probe_alloc_semaphore, 0, relaxed);
    for (int i = 0; i < 4000; i++) hak_free(blocks[i]);
    hak_free(hak_malloc(1 << 20)); /* a large one looks as well */
    assert_false(hak_profile_is_on());
}

UNIT_MAIN(cmocka_unit_test(many_threads), cmocka_unit_test(all_the_time_while_calm),
          cmocka_unit_test(windows_while_busy), cmocka_unit_test(each_moment_has_its_chance),
          cmocka_unit_test(late_wake_ups), cmocka_unit_test(pushed_aside), cmocka_unit_test(metering_takes_time),
          cmocka_unit_test(stopped), cmocka_unit_test(on_and_off), cmocka_unit_test(starts_the_thread),
          cmocka_unit_test(live_bytes_by_windows), cmocka_unit_test(tracers))

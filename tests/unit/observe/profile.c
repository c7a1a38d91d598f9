/* observe/profile.h: estimates against programs whose truth is known, seeded; that blocks and counts stay right while samples are
 * taken; what becomes of samples when blocks move, tables fill, and the profile goes on and off. */
#include "floating.h"
#include "heap_fixture.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "front/meter.h"
#include "front/routes.h"
#include "observe/profile.h"
#include "observe/stack.h"

static struct hak_snapshot snapshot;

/* ---- Reading what is written ---------------------------------------------------------------------------------------- */

struct figures {
    uint64_t samples, freed_samples, weight, freed_weight, bytes, freed_bytes, block_bytes, freed_block_bytes;
    uint64_t temporary_weight, temporary_bytes, peak_weight, peak_bytes, variance, freed_variance, peak_variance;
};

enum { FIGURES = 24 };

/* Sums of the sites whose allocations asked for `least` to `largest` bytes. */
static struct figures figures_of(uint64_t least, uint64_t largest) {
    struct figures sum = {.samples = 0};
    fake_os_forget();
    assert_int_equal(hak_profile_write(1), 0);
    assert_true(fake_os.output_length < FAKE_OUTPUT_BYTES - 1);
    for (char *line = strtok(fake_os.output, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        uint64_t figure[FIGURES];
        if (strncmp(line, "site ", 5) != 0) continue;
        char *at = line + 5;
        for (int i = 0; i < FIGURES; i++) figure[i] = strtoull(at, &at, 10);
        assert_memory_equal(at, " :", 2);
        if (figure[8] < least || figure[9] > largest) continue;
        uint64_t *sums = (uint64_t *)(void *)&sum;
        for (int i = 0; i < 8; i++) sums[i] += figure[i];
        sum.temporary_weight += figure[FIGURES - 7];
        sum.temporary_bytes += figure[FIGURES - 6];
        sum.peak_weight += figure[FIGURES - 5];
        sum.peak_bytes += figure[FIGURES - 4];
        sum.variance += figure[FIGURES - 3];
        sum.freed_variance += figure[FIGURES - 2];
        sum.peak_variance += figure[FIGURES - 1];
    }
    return sum;
}

static void expect_share(double estimate, double truth, double share) {
    if (fabs(estimate - truth) <= share * truth) return;
    fail_msg("estimate %.0f, truth %.0f: off by %+.2f %%", estimate, truth, 100 * (estimate / truth - 1));
}

/* ---- Chance ----------------------------------------------------------------------------------------------------------- */

/* The distance to the next sample is exponential: its mean is the interval, and it is within b bytes with probability
 * 1 - exp(-b / interval), for which the weight of a sample makes up. */
static void draws(void **state) {
    (void)state;
    enum { DRAWS = 200000, INTERVAL = 65536 };
    static const uint64_t sizes[] = {16, 1000, 32768, 65536, 200000, 1 << 20};
    hak_profile_seed(1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double p = -expm1(-(double)sizes[i] / INTERVAL), sum = 0, reached = 0;
        for (int n = 0; n < DRAWS; n++) {
            int64_t drawn = hak_profile_draw(INTERVAL);
            assert_true(drawn >= 1);
            sum += (double)drawn - 0.5; /* it is rounded up */
            reached += (uint64_t)drawn <= sizes[i];
        }
        assert_true(fabs(sum / DRAWS - INTERVAL) < 4 * INTERVAL / sqrt(DRAWS));
        assert_true(fabs(reached / DRAWS - p) < 4 * sqrt(p * (1 - p) / DRAWS) + 1e-9);
        assert_true(fabs((double)hak_profile_weight(sizes[i], INTERVAL) / 1024 * p - 1) < 1e-3);
    }
    assert_true(hak_profile_draw(UINT64_MAX) >= 1);
}

static void start(uint64_t interval_bytes, uint64_t seed) {
    hak_profile_seed(seed);
    assert_true(hak_meter_start(interval_bytes));
}

/* ---- Estimates -------------------------------------------------------------------------------------------------------- */

enum { LIVE_LIMIT = 1 << 20 };
static void *live[LIVE_LIMIT];

__attribute__((noinline)) static void *at_one_site(size_t size) {
    void *block = hak_malloc(size);
    __asm__ volatile("" : "+r"(block));
    return block;
}

/* Blocks that stay, allocated among pairs that come from bins and go back at once: without what hits take, and blocks that are
 * handed out again, the live bytes would be wrong. */
static void live_among_pairs(void **state) {
    (void)state;
    static const size_t sizes[] = {24, 500, 4000, 30000};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        start(4096, seed);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            size_t size = sizes[i], count = 0;
            struct figures before = figures_of(0, SIZE_MAX);
            double all = 0;
            while ((double)count * (double)size < 4096 * 10000.0) {
                for (int pairs = 0; pairs < (size < 1000 ? 2 : 1); pairs++, all += (double)size)
                    hak_free(at_one_site(size));
                live[count++] = at_one_site(size);
                all += (double)size;
                if (count == LIVE_LIMIT) break;
            }
            struct figures now = figures_of(0, SIZE_MAX);
            double bytes = (double)count * (double)size;
            expect_share((double)(now.bytes - now.freed_bytes), bytes, 0.05);
            expect_share((double)(now.weight - now.freed_weight) / 1024, (double)count, 0.05);
            expect_share((double)(now.block_bytes - now.freed_block_bytes),
                         (double)(count * hak_malloc_usable_size(live[0])), 0.05);
            expect_share((double)(now.bytes - before.bytes), all, 0.05);
            while (count > 0) hak_free(live[--count]);
            now = figures_of(0, SIZE_MAX);
            assert_int_equal(now.samples, now.freed_samples);
            assert_true(now.bytes == now.freed_bytes && now.weight == now.freed_weight);
        }
    }
}

/* Two sites share sizes, bins and slabs: one frees what it gets, in any order, the other keeps some. */
static void random_mixed(void **state) {
    (void)state;
    enum { SLOTS = 40000, ROUNDS = 2000000 };
    static size_t sizes[SLOTS];
    uint64_t random = 7;
    double bytes = 0, all = 0;
    start(2048, 5);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t pick = unit_random(&random);
        uint32_t slot = pick % SLOTS;
        if (live[slot] != NULL) {
            hak_free(live[slot]);
            live[slot] = NULL;
            bytes -= (double)sizes[slot];
        } else {
            sizes[slot] = 16 + (pick >> 32) % 1000;
            live[slot] = at_one_site(sizes[slot]);
            bytes += (double)sizes[slot];
            all += (double)sizes[slot];
        }
        if (round % 500000 == 499999) {
            struct figures now = figures_of(0, SIZE_MAX);
            expect_share((double)(now.bytes - now.freed_bytes), bytes, 0.05);
            expect_share((double)now.bytes, all, 0.05);
            check_equations(&snapshot);
        }
        if (round % 300000 == 0) hak_purge(); /* bins are emptied */
    }
}

/* Every few blocks the bins are drained: a sample that is due must not come earlier for it. */
static void drained_all_the_time(void **state) {
    (void)state;
    start(4096, 3);
    double bytes = 0;
    for (int round = 0; round < 50000; round++) {
        live[round] = at_one_site(1000);
        bytes += 1000;
        if (round % 10 == 0) hak_purge();
    }
    struct figures now = figures_of(0, SIZE_MAX);
    expect_share((double)now.bytes, bytes, 0.05);
}

static void large_objects(void **state) {
    (void)state;
    static const size_t sizes[] = {40000, 300000, 3 << 20};
    start(1 << 20, 11);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int rounds = (int)(((size_t)1 << 32) / sizes[i]);
        struct figures before = figures_of(0, SIZE_MAX);
        for (int round = 0; round < rounds; round++) hak_free(at_one_site(sizes[i]));
        struct figures now = figures_of(0, SIZE_MAX);
        expect_share((double)(now.bytes - before.bytes), (double)rounds * (double)sizes[i], 0.06);
        assert_true(now.samples > 0 && now.samples == now.freed_samples);
    }
}

/* What is told of the error is the error: over many programs, estimates scatter as much as their variances say. */
static void errors_are_told(void **state) {
    (void)state;
    enum { PROGRAMS = 200, INTERVAL = 64 << 10, BLOCKS = 1000 };
    double square = 0, told = 0, live_told = 0;
    for (int program = 0; program < PROGRAMS; program++) {
        start(INTERVAL, 1 + (uint64_t)program);
        struct figures before = figures_of(3000, 3000);
        for (int i = 0; i < BLOCKS; i++) live[i] = at_one_site(3000);
        struct figures now = figures_of(3000, 3000);
        double off = ((double)(now.bytes - before.bytes) - BLOCKS * 3000.0) / 64;
        square += off * off;
        told += (double)(now.variance - before.variance);
        if (program == 0) assert_int_equal(now.peak_variance, now.variance - now.freed_variance);
        for (int i = 0; i < BLOCKS; i++) hak_free(live[i]);
        now = figures_of(3000, 3000);
        assert_int_equal(now.variance, now.freed_variance);
        live_told += (double)now.variance;
        hak_meter_stop();
    }
    assert_true(live_told > 0);
    expect_share(told, square, 0.3);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------------- */

/* With a sample at every byte or so, each block is sampled. */
static void every_block(void **state) {
    (void)state;
    start(1, 1);
    for (size_t size = 1; size < 200000; size += 1 + size / 3) {
        unsigned char *block = hak_malloc(size);
        assert_int_equal((uintptr_t)block % 16, 0);
        assert_true(hak_malloc_usable_size(block) >= size);
        memset(block, 7, size);
        block = hak_realloc(block, 2 * size);
        for (size_t i = 0; i < size; i++) assert_int_equal(block[i], 7);
        block = hak_realloc(block, size / 2 + 1);
        check_equations(&snapshot);
        assert_int_equal(snapshot.total.live_blocks, 1);
        hak_free(block);
        block = hak_calloc(1, size);
        for (size_t i = 0; i < size; i++) assert_int_equal(block[i], 0);
        hak_free_sized(block, size);
        block = hak_aligned_alloc(256, size);
        assert_int_equal((uintptr_t)block % 256, 0);
        hak_free(block);
    }
    struct figures now = figures_of(0, SIZE_MAX);
    assert_true(now.samples > 100);
    assert_int_equal(now.samples, now.freed_samples);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* A realloc that fails leaves the block as it was; one that copies counts once. */
static void refused_moves(void **state) {
    (void)state;
    static const size_t sizes[] = {100000, 3 << 20, 40 << 20};
    start(1, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *block = hak_malloc(sizes[i]);
        struct figures before = figures_of(0, SIZE_MAX);
        fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
        assert_null(hak_realloc(block, (size_t)1 << 32));
        fake_os_refuse_nothing();
        struct figures now = figures_of(0, SIZE_MAX);
        assert_memory_equal(&now, &before, sizeof now);
        check_equations(&snapshot);
        assert_int_equal(snapshot.total.live_blocks, 1);
        hak_free(block);
        now = figures_of(0, SIZE_MAX);
        assert_int_equal(now.freed_samples, before.freed_samples + 1);
        assert_int_equal(now.samples, now.freed_samples);
        assert_int_equal(now.bytes, now.freed_bytes);
    }
}

static void free_twice(void *block) {
    hak_free(block);
    hak_free(block);
}

static void misuse(void **state) {
    (void)state;
    start(1, 1);
    char *kept = hak_malloc(100), *block = hak_malloc(100);
    const struct fake_report *report = fake_os_catch(free_twice, block);
    assert_non_null(report);
    assert_int_equal(report->kind, HAK_MISUSE_DOUBLE_FREE);
    report = fake_os_catch(hak_free, kept + 16);
    assert_non_null(report);
    assert_int_equal(report->kind, HAK_MISUSE_INTERIOR_POINTER);
}

static void on_and_off(void **state) {
    (void)state;
    assert_int_equal(hak_profile_write(1), ENODATA);
    for (int i = 0; i < 100; i++) live[i] = hak_malloc(100);
    for (int i = 0; i < 100; i++) hak_free(live[i]); /* in ordinary bins when the profile begins */
    start(100, 1);
    for (int i = 0; i < 1000; i++) live[i] = at_one_site(100);
    struct figures on = figures_of(100, 100);
    assert_true(on.samples > 500 && on.freed_samples == 0);
    hak_meter_stop();
    for (int i = 1000; i < 2000; i++) live[i] = at_one_site(100);
    struct figures off = figures_of(100, 100);
    assert_int_equal(on.samples, off.samples);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 2000);
    for (int i = 0; i < 2000; i++) hak_free(live[i]);
    start(200, 1); /* another interval: drawn anew */
    for (int i = 0; i < 1000; i++) hak_free(at_one_site(100));
    off = figures_of(100, 100);
    assert_true(off.samples > on.samples && off.samples == off.freed_samples);
    check_equations(&snapshot);
    assert_int_equal(snapshot.total.live_blocks, 0);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* Of each stratum one slot, which may be any: each block is sampled with the same probability, wherever it lies. */
static void slots_of_strata(void **state) {
    (void)state;
    enum { SLOTS = 8, RUN = 1000, STRATA = 40, PROGRAMS = 4000 };
    struct hak_profile_runs runs = {true, SLOTS * RUN, RUN, SLOTS};
    static uint32_t sampled[SLOTS * STRATA];
    memset(sampled, 0, sizeof sampled);
    hak_profile_seed(1);
    for (int program = 0; program < PROGRAMS; program++) {
        uint16_t slot;
        int64_t to_run = hak_profile_begin_runs(&runs, &slot);
        uint32_t in_stratum = 0;
        for (uint32_t i = 0; i < SLOTS * STRATA; i++) {
            bool is_due = to_run <= 0;
            sampled[i] += is_due;
            in_stratum += is_due;
            if (i % SLOTS == SLOTS - 1) {
                assert_int_equal(in_stratum, 1);
                in_stratum = 0;
            }
            to_run = hak_profile_next_run(&runs, to_run - RUN, &slot);
        }
    }
    double expected = (double)PROGRAMS / SLOTS, deviation = sqrt(expected * (1 - 1.0 / SLOTS));
    for (uint32_t i = 0; i < SLOTS * STRATA; i++) assert_true(fabs(sampled[i] - expected) < 4.5 * deviation);
}

static void start_runs(uint64_t interval_bytes, uint64_t seed) {
    hak_profile_seed(seed);
    assert_true(hak_meter_start_runs(interval_bytes));
}

/* Live blocks of each size are estimated right; samples lie side by side, without a gap between those of a run. */
static void runs_of_samples(void **state) {
    (void)state;
    enum { INTERVAL = 128 << 10, RUN = 16 << 10, COUNT = 40000 };
    static const size_t sizes[] = {16, 100, 1000, 20000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i], count = size == 20000 ? COUNT / 20 : COUNT, neighbours = 0, sampled = 0;
        start_runs(INTERVAL, 1 + i);
        struct figures before = figures_of(0, SIZE_MAX);
        uintptr_t last = 0;
        for (size_t n = 0; n < count; n++) {
            struct hak_profile_origin origin;
            live[n] = at_one_site(size);
            if (!hak_profile_find(live[n], &origin) || origin.is_freed) continue;
            sampled++;
            neighbours += (uintptr_t)live[n] - last == hak_malloc_usable_size(live[n]);
            last = (uintptr_t)live[n];
        }
        struct figures now = figures_of(0, SIZE_MAX);
        expect_share((double)(now.weight - now.freed_weight) / 1024, (double)count, 0.2);
        expect_share((double)(now.bytes - before.bytes), (double)(count * size), 0.2);
        assert_true(size == 20000 || neighbours > sampled * 9 / 10);
        while (count > 0) hak_free(live[--count]);
        now = figures_of(0, SIZE_MAX);
        assert_int_equal(now.samples, now.freed_samples);
        hak_meter_stop();
    }
    check_equations(&snapshot);
}

/* Single samples and runs share the tables: each block is found where its kind is, before and after the change. */
static void single_then_runs(void **state) {
    (void)state;
    start(1, 1);
    void *single = at_one_site(100);
    start_runs(1, 1);
    void *in_run = at_one_site(100);
    start(1, 1);
    struct figures now = figures_of(100, 100);
    assert_true(now.samples == 2 && now.freed_samples == 0);
    hak_free(in_run);
    hak_free(single);
    now = figures_of(100, 100);
    assert_true(now.samples == 2 && now.freed_samples == 2);
}

/* More live samples than there is room for: they are lost, and said to be. */
static void full_table(void **state) {
    (void)state;
    start(1, 1);
    for (int i = 0; i < 60000; i++) live[i] = hak_malloc(16);
    for (int i = 0; i < 60000; i++) hak_free(live[i]);
    struct figures now = figures_of(0, SIZE_MAX);
    assert_int_equal(now.samples, now.freed_samples);
    assert_true(now.samples > 20000 && now.samples <= 32768);
    fake_os_forget();
    assert_int_equal(hak_profile_write(1), 0);
    const char *lost = strstr(fake_os.output, "lost_samples ");
    assert_non_null(lost);
    assert_int_equal(now.samples + strtoull(lost + 13, NULL, 10), 60000);
    check_equations(&snapshot);
}

static void no_memory(void **state) {
    (void)state;
    hak_free(hak_malloc(1));
    fake_os_refuse(FAKE_MAP, 1, 1);
    assert_false(hak_meter_start(4096));
    assert_false(hak_profile_is_on());
    hak_free(hak_malloc(1));
    start(4096, 1);
}

/* ---- Origins and the peak ------------------------------------------------------------------------------------------ */

/* The innermost addresses may be the library's own, where no call became a jump. */
static bool is_from(const struct hak_profile_origin *origin, uintptr_t function) {
    enum { MOST_BYTES = 200 };
    for (uint64_t i = 0; i < origin->depth; i++)
        if (origin->addresses[i] - function < MOST_BYTES) return true;
    return false;
}

/* Where a block came from, also when it is gone. */
static void origins(void **state) {
    (void)state;
    enum { COUNT = 100 };
    struct hak_profile_origin origin;
    uintptr_t own[HAK_STACK_MOST] = {0};
    assert_false(hak_profile_find(own, &origin)); /* there are no tables */
    start(1, 1);
    for (int i = 0; i < COUNT; i++) live[i] = at_one_site((size_t)i + 50);
    assert_false(hak_profile_find(NULL, &origin));
    assert_false(hak_profile_find((char *)live[0] + 1, &origin));
    for (int i = 0; i < COUNT; i += 2) hak_free(live[i]);
    uint32_t depth = hak_stack_walk(__builtin_frame_address(0), own);
    for (int i = 0; i < COUNT; i++) {
        assert_true(hak_profile_find(live[i], &origin));
        assert_int_equal(origin.size, i + 50);
        assert_int_equal(origin.is_freed, i % 2 == 0);
        assert_true(is_from(&origin, (uintptr_t)at_one_site));
        assert_true(origin.depth > depth && origin.addresses[origin.depth - 1] == own[depth - 1]);
    }
    hak_meter_stop();
    void *other = hak_malloc(1); /* has the place of one that is gone, and is not sampled */
    assert_true(!hak_profile_find(other, &origin) || origin.is_freed);
    for (int i = 1; i < COUNT; i += 2) hak_free(live[i]);
    for (int i = 0; i < COUNT; i++) assert_true(hak_profile_find(live[i], &origin) && origin.is_freed);
}

/* What was live when most was (P5): neither what is now, nor what came afterwards. */
static void peak(void **state) {
    (void)state;
    enum { BLOCKS = 2000 };
    static void *blocks[BLOCKS];
    start(16, 7);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = hak_malloc(1000);
    struct figures now = figures_of(1000, 1000);
    assert_int_equal(now.peak_bytes, now.bytes); /* when it is written, the peak is noted to the byte */
    for (int i = 0; i < BLOCKS; i++) hak_free(blocks[i]);
    for (int i = 0; i < BLOCKS / 4; i++) blocks[i] = hak_malloc(3000);
    struct figures gone = figures_of(1000, 1000), later = figures_of(3000, 3000);
    assert_int_equal(gone.peak_bytes, now.bytes);
    assert_int_equal(gone.peak_weight, now.weight);
    assert_int_equal(gone.freed_bytes, gone.bytes);
    assert_int_equal(later.peak_bytes, 0);
    for (int i = BLOCKS / 4; i < BLOCKS; i++) blocks[i] = hak_malloc(3000);
    later = figures_of(3000, 3000);
    assert_int_equal(later.peak_bytes, later.bytes);
    assert_int_equal(figures_of(1000, 1000).peak_bytes, 0);
    for (int i = 0; i < BLOCKS; i++) hak_free(blocks[i]);
}

/* ---- Temporaries ------------------------------------------------------------------------------------------------- */

/* Allocates a block of `size`, then `between` others that stay, and frees it. Returns how many temporaries that made:
 * with a sample at each byte, figures are exact. */
static double temporaries_of(size_t size, int between, uint64_t *bytes) {
    static uint32_t live_count;
    struct figures before = figures_of(0, SIZE_MAX);
    void *block = at_one_site(size);
    for (int i = 0; i < between; i++) live[live_count++] = at_one_site(i % 2 == 0 ? 200 : 200000);
    hak_free(block);
    struct figures now = figures_of(0, SIZE_MAX);
    assert_int_equal(now.samples - before.samples, between + 1);
    *bytes = now.temporary_bytes - before.temporary_bytes;
    return (double)(now.temporary_weight - before.temporary_weight) / 1024;
}

/* P7, with eight, as the documentation says. */
static void temporaries(void **state) {
    (void)state;
    static const size_t sizes[] = {100, 30000, 100000};
    start(1, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int between = 0; between < 16; between++) {
            uint64_t bytes;
            assert_true(temporaries_of(sizes[i], between, &bytes) == (between < 8 ? 1 : 0));
            assert_int_equal(bytes, between < 8 ? sizes[i] : 0);
        }
    }
}

static void *free_elsewhere(void *block) {
    for (int i = 0; i < 10; i++) hak_free(at_one_site(60));
    hak_free(block);
    return NULL;
}

static void *free_after_one(void *block) {
    hak_free(at_one_site(60));
    hak_free(block);
    return NULL;
}

/* Another thread's count says nothing of a block, even if it is near. */
static void freed_elsewhere(void **state) {
    (void)state;
    pthread_t thread;
    start(1, 1);
    for (int i = 0; i < 5; i++) hak_free(at_one_site(60));
    assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, at_one_site(400)), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    struct figures now = figures_of(0, SIZE_MAX);
    assert_int_equal(now.freed_samples, 16);
    assert_int_equal(now.temporary_weight, 15 * 1024);
    assert_int_equal(now.temporary_bytes, 15 * 60);
}

static void *allocate_elsewhere(void *size) { return at_one_site(*(size_t *)size); }

/* Nor does that of a thread before, whose heap the thread has. */
static void freed_by_the_next_thread(void **state) {
    (void)state;
    static size_t sizes[] = {400, 100000};
    start(1, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        pthread_t thread;
        void *block;
        assert_int_equal(pthread_create(&thread, NULL, allocate_elsewhere, &sizes[i]), 0);
        assert_int_equal(pthread_join(thread, &block), 0);
        assert_int_equal(pthread_create(&thread, NULL, free_after_one, block), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    struct figures now = figures_of(0, SIZE_MAX);
    assert_int_equal(now.freed_samples, 4);
    assert_int_equal(now.temporary_bytes, 2 * 60);
}

/* Grows a block, and frees it. Returns how often it moved. */
static int grow(size_t first, size_t last, size_t step) {
    int moves = 0;
    uint8_t *block = at_one_site(first), *before = block;
    for (size_t size = first + step; size <= last; size += step, before = block) {
        block = hak_realloc(block, size);
        assert_non_null(block);
        moves += block != before;
    }
    for (int i = 0; i < 10; i++) at_one_site(200);
    hak_free(block);
    return moves;
}

/* A block that grows where it is was not freed; one that moves was. */
static void resized(void **state) {
    (void)state;
    start(1, 1);
    assert_int_equal(grow(100000, 1000000, 1000), 0);
    assert_int_equal(figures_of(0, SIZE_MAX).temporary_weight, 0);
    int moves = grow(40 << 20, 400 << 20, 40 << 20);
    assert_true(moves > 0);
    assert_int_equal(figures_of(0, SIZE_MAX).temporary_weight, moves * 1024);
}

/* A thread that allocates little may be at the same count when the profile was off and on any number of times. */
static void off_and_on_later(void **state) {
    (void)state;
    start(1, 1);
    void *block = at_one_site(100);
    for (int i = 0; i < 2 * 256; i++) hak_routes_meter(i % 2 != 0);
    hak_free(block);
    assert_int_equal(figures_of(0, SIZE_MAX).freed_samples, 1);
    assert_int_equal(figures_of(0, SIZE_MAX).temporary_weight, 0);
}

static void leaves_floating_alone(void **state) {
    (void)state;
    unit_trap_floating();
    int64_t drawn = hak_profile_draw(1 << 19);
    uint64_t weight = hak_profile_weight(100, 1 << 19);
    unit_expect_trapped_floating();
    assert_true(drawn > 0 && weight > 0);
}

UNIT_MAIN(cmocka_unit_test(peak), cmocka_unit_test(temporaries), cmocka_unit_test(freed_elsewhere),
          cmocka_unit_test(freed_by_the_next_thread), cmocka_unit_test(resized), cmocka_unit_test(off_and_on_later),
          cmocka_unit_test(draws), cmocka_unit_test(leaves_floating_alone), cmocka_unit_test(origins),
          cmocka_unit_test(live_among_pairs), cmocka_unit_test(random_mixed), cmocka_unit_test(drained_all_the_time),
          cmocka_unit_test(large_objects), cmocka_unit_test(errors_are_told), cmocka_unit_test(every_block),
          cmocka_unit_test(refused_moves), cmocka_unit_test(misuse), cmocka_unit_test(on_and_off),
          cmocka_unit_test(full_table), cmocka_unit_test(slots_of_strata), cmocka_unit_test(runs_of_samples),
          cmocka_unit_test(single_then_runs), cmocka_unit_test(no_memory))

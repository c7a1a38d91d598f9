/* No call of a program with one thread gives much more back to the kernel than it frees, whatever is free: later calls give back the
 * rest. */
#include "heap_fixture.h"

#include "allowance.h"

#include "base/knobs.h"
#include "front/front.h"
#include "front/process.h"
#include "region/decay.h"
#include "region/mapping_cache.h"

enum { MOST_BYTES = 4 << 20, RUN_BYTES = 1 << 20, RUNS = 2048, MANY_CALLS = 4000 };

static void free_within_bound(void *block) {
    size_t first = fake_os.call_count[FAKE_ANY], bytes = hak_malloc_usable_size(block);
    hak_free(block);
    assert_in_range(fake_os_given_back_since(first), 0, bytes < MOST_BYTES ? MOST_BYTES : bytes + HAK_MIB);
}

static void *alloc_within_bound(size_t bytes) {
    size_t first = fake_os.call_count[FAKE_ANY];
    void *block = hak_malloc(bytes);
    assert_in_range(fake_os_given_back_since(first), 0, MOST_BYTES);
    return block;
}

/* What a program does that needs nothing of what is free. */
static void go_on(void) {
    for (int i = 0; i < MANY_CALLS; i++) free_within_bound(alloc_within_bound(100000));
}

static void start_with_free_runs(uint32_t count, size_t bytes) {
    allow_free_memory_of_programs();
    static void *runs[RUNS];
    fake_os.clock_ms = 1000;
    assert_true(hak_process_initialize());
    for (uint32_t i = 0; i < count; i++) assert_non_null(runs[i] = hak_malloc(bytes));
    for (uint32_t i = 0; i < count; i++) free_within_bound(runs[i]);
}

static uint64_t dirty_bytes(void) { return hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES; }

static void beyond_the_limit(void **state) {
    (void)state;
    start_with_free_runs(RUNS, RUN_BYTES);
    go_on();
    assert_in_range(dirty_bytes(), 0, hak_knob(dirty_limit_bytes));
}

static void after_a_period(void **state) {
    (void)state;
    start_with_free_runs(RUNS / 4, RUN_BYTES);
    assert_int_equal(dirty_bytes(), RUNS / 4 * (uint64_t)RUN_BYTES);
    for (int i = 0; i < 4; i++) {
        fake_os.clock_ms += 2 * hak_knob(decay_ms);
        go_on();
    }
    assert_in_range(dirty_bytes(), 0, RUNS / 4 * (uint64_t)RUN_BYTES / 8);
}

static void kept_mappings(void **state) {
    (void)state;
    start_with_free_runs(1, RUN_BYTES);
    free_within_bound(hak_malloc(60 * HAK_MIB));
    assert_int_equal(hak_mapping_cache_bytes(), 60 * HAK_MIB);
    for (int i = 0; i < 3; i++) {
        fake_os.clock_ms += 2 * hak_knob(decay_ms);
        go_on();
    }
    assert_int_equal(hak_mapping_cache_bytes(), 0);
}

/* A miss of a small size pays as well. */
static void by_small_blocks(void **state) {
    (void)state;
    static void *small[200000];
    start_with_free_runs(RUNS / 8, 8 * RUN_BYTES);
    uint64_t before = dirty_bytes();
    for (int i = 0; i < 200000; i++) small[i] = alloc_within_bound(16);
    for (int i = 0; i < 200000; i++) free_within_bound(small[i]);
    assert_true(dirty_bytes() + 64 * HAK_MIB < before);
}

/* Whoever has wrapped the kernel's calls allocates in them: each such call begins none itself. */
static int depth, deepest;
static void allocate_meanwhile(void) {
    if (++depth > deepest) deepest = depth;
    if (depth < 10) hak_free(hak_malloc(40000));
    depth--;
}

static void in_the_midst(void **state) {
    (void)state;
    start_with_free_runs(RUNS, RUN_BYTES);
    fake_os.at_purge = allocate_meanwhile;
    hak_decay_owe_all();
    for (int i = 0; i < 100; i++) hak_free(hak_malloc(100000));
    fake_os.at_purge = NULL;
    assert_int_equal(deepest, 1);
}

UNIT_MAIN(cmocka_unit_test(beyond_the_limit), cmocka_unit_test(after_a_period), cmocka_unit_test(kept_mappings),
          cmocka_unit_test(by_small_blocks), cmocka_unit_test(in_the_midst))

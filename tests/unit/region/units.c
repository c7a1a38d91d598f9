/* region/units.c: where units come from, in which order, and how they and their memory go back. */
#include "unit.h"

#include <string.h>

#include "base/counters.h"
#include "base/knobs.h"
#include "fake_os.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/page_policy.h"
#include "region/region.h"

enum { SCANNED_SUPER_SLABS = 64 };

static void start(void) {
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
}

static struct hak_slab *acquire(uint32_t units, uint32_t alignment, enum hak_unit_source source) {
    return hak_region_acquire(units, alignment, source, false);
}

static uint32_t unit_of(const struct hak_slab *slab) { return hak_region_unit_of(hak_region_range(0), slab); }

static char *memory_of(const struct hak_slab *slab) { return (char *)hak_region_start_of(hak_region_range(0), slab); }

static uint64_t dirty(void) { return hak_atomic_load(&hak_dirty_units, relaxed); }

static void sources(void **state) {
    (void)state;
    start();
    assert_null(acquire(1, 1, HAK_UNITS_DIRTY));
    assert_null(acquire(1, 1, HAK_UNITS_FREE));
    assert_null(acquire(1, 1, HAK_UNITS_LAST_RESORT));
    struct hak_slab *first = acquire(1, 1, HAK_UNITS_NEW_SUPER);
    assert_int_equal(unit_of(first), 0);
    assert_null(acquire(1, 1, HAK_UNITS_DIRTY));
    for (uint32_t i = 1; i < 32; i++) assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_FREE)), i);
    assert_null(acquire(1, 1, HAK_UNITS_FREE));
    assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_NEW_SUPER)), 32);
    hak_region_release(first, 1);
    assert_int_equal(dirty(), 1);
    assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_DIRTY)), 0);
    assert_int_equal(dirty(), 0);
    assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_FREE)), 33);
}

static void counts_and_alignments(void **state) {
    (void)state;
    start();
    for (uint32_t count = 1; count <= 32; count++) {
        struct hak_slab *slab = acquire(count, 1, HAK_UNITS_NEW_SUPER);
        assert_int_equal(unit_of(slab) % 32, 0);
        struct hak_slab *rest = count < 32 ? acquire(32 - count, 1, HAK_UNITS_FREE) : NULL;
        assert_true(count == 32 || rest == slab + count); /* no others are left */
    }
    assert_null(acquire(1, 1, HAK_UNITS_FREE));
    assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_NEW_SUPER)), 32 * 32);
    assert_int_equal(unit_of(acquire(2, 2, HAK_UNITS_FREE)), 32 * 32 + 2);
    assert_int_equal(unit_of(acquire(4, 4, HAK_UNITS_FREE)), 32 * 32 + 4);
    assert_int_equal(unit_of(acquire(1, 16, HAK_UNITS_FREE)), 32 * 32 + 16);
    assert_int_equal(unit_of(acquire(1, 1, HAK_UNITS_FREE)), 32 * 32 + 1);
    assert_null(acquire(1, 32, HAK_UNITS_FREE));
}

static void release_former(struct hak_slab *slab, uint32_t units, uint32_t size_class) {
    hak_atomic_store(&slab->size_class, (uint8_t)size_class, relaxed);
    hak_region_release(slab, units);
}

/* Units that were a slab of the class: all of them, and none that was used as something else since. */
static void former_slabs(void **state) {
    (void)state;
    enum { ONE = 4, OTHER = 5 };
    uint32_t four = hak_size_class_of(HAK_BLOCK_MAX - HAK_CANARY_BYTES);
    start();
    assert_int_equal(hak_size_classes[four].unit_count, 4);
    struct hak_slab *first = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    assert_null(hak_region_acquire_former(ONE, false));
    release_former(first + 1, 1, OTHER);
    release_former(first + 2, 1, ONE);
    release_former(first + 9, 1, ONE);
    release_former(first + 4, 4, four);
    assert_ptr_equal(hak_region_acquire_former(ONE, false), first + 2);
    assert_ptr_equal(hak_region_acquire_former(ONE, false), first + 9);
    assert_null(hak_region_acquire_former(ONE, false));
    assert_int_equal(dirty(), 5);
    assert_ptr_equal(hak_region_acquire_former(four, false), first + 4);

    hak_region_release(first + 4, 4);
    assert_true(hak_region_purge_units(UINT64_MAX, true) > 0);
    assert_null(hak_region_acquire_former(four, false)); /* what it had touched is gone */
    assert_ptr_equal(acquire(4, 4, HAK_UNITS_FRESH), first + 4);
    release_former(first + 4, 3, four); /* the last unit is another's */
    assert_null(hak_region_acquire_former(four, false));
    hak_region_release(first + 7, 1);
    memory_of(first + 4)[1] = 1;
    assert_ptr_equal(hak_region_acquire_former(four, true), first + 4);
    assert_int_equal(memory_of(first + 4)[1], 0);
}

/* Runs are found across the border of dirty and fresh units. What is to be zero is written to only where it is dirty. */
static void zero_memory(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_acquire(4, 1, HAK_UNITS_NEW_SUPER, true);
    memory_of(slab)[0] = memory_of(slab)[3 * HAK_UNIT_BYTES] = memory_of(slab)[4 * HAK_UNIT_BYTES - 1] = 1;
    hak_region_release(slab, 4);
    assert_ptr_equal(hak_region_acquire(2, 1, HAK_UNITS_FREE, false), slab);
    assert_int_equal(memory_of(slab)[0], 1);
    memory_of(slab)[5 * HAK_UNIT_BYTES] = 2; /* known to be fresh: believed to be zero */
    assert_ptr_equal(hak_region_acquire(4, 1, HAK_UNITS_FREE, true), slab + 2); /* two of each kind */
    assert_int_equal(memory_of(slab)[3 * HAK_UNIT_BYTES], 0);
    assert_int_equal(memory_of(slab)[4 * HAK_UNIT_BYTES - 1], 0);
    assert_int_equal(memory_of(slab)[5 * HAK_UNIT_BYTES], 2);
    memory_of(slab)[4 * HAK_UNIT_BYTES - 1] = 1;
    hak_region_release(slab + 2, 4);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 4 * HAK_UNIT_BYTES);
    assert_ptr_equal(hak_region_acquire(4, 1, HAK_UNITS_FREE, false), slab + 2);
    assert_int_equal(memory_of(slab)[4 * HAK_UNIT_BYTES - 1], 0);
}

/* A system call for each run of neighbours, and for nothing else. */
static void purging_exactly(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    for (uint32_t i = 0; i < 32; i++) memory_of(slab)[i * HAK_UNIT_BYTES] = 1;
    hak_region_release(slab + 2, 3);
    hak_region_release(slab + 9, 1);
    hak_region_release(slab + 31, 1);
    assert_int_equal(dirty(), 5);
    fake_os_forget();
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 5 * HAK_UNIT_BYTES);
    assert_int_equal(dirty(), 0);
    static const uint32_t runs[3][2] = {{2, 3}, {9, 1}, {31, 1}};
    assert_int_equal(fake_os.call_count[FAKE_ANY], 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fake_os.calls[i].kind, FAKE_PURGE);
        assert_int_equal(fake_os.calls[i].start, (uintptr_t)memory_of(slab + runs[i][0]));
        assert_int_equal(fake_os.calls[i].bytes, runs[i][1] * HAK_UNIT_BYTES);
    }
    for (uint32_t i = 0; i < 32; i++) {
        bool released = (i >= 2 && i < 5) || i == 9 || i == 31;
        assert_int_equal(memory_of(slab)[i * HAK_UNIT_BYTES], !released);
    }
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 0);
    assert_null(acquire(1, 1, HAK_UNITS_DIRTY)); /* they are fresh now */
    assert_ptr_equal(acquire(3, 1, HAK_UNITS_FREE), slab + 2);
}

static void refused_purge(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    hak_region_release(slab + 1, 1);
    hak_region_release(slab + 3, 1);
    fake_os_refuse(FAKE_PURGE, 1, 1);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), HAK_UNIT_BYTES);
    assert_int_equal(dirty(), 1);
    assert_ptr_equal(acquire(1, 1, HAK_UNITS_DIRTY), slab + 1);
    assert_ptr_equal(acquire(1, 1, HAK_UNITS_FREE), slab + 3);
    assert_null(acquire(1, 1, HAK_UNITS_FREE));
}

static void extending(void **state) {
    (void)state;
    start();
    struct hak_slab *run = acquire(4, 1, HAK_UNITS_NEW_SUPER);
    assert_true(hak_region_extend(run, 4, 2));
    struct hak_slab *next = acquire(1, 1, HAK_UNITS_FREE);
    assert_ptr_equal(next, run + 6);
    assert_false(hak_region_extend(run, 6, 1));
    hak_region_release(next, 1);
    assert_true(hak_region_extend(run, 6, 26));
    assert_int_equal(dirty(), 0);
    struct hak_slab *second = acquire(1, 1, HAK_UNITS_NEW_SUPER);
    assert_ptr_equal(second, run + 32);
    assert_false(hak_region_extend(run, 32, 1));
    assert_true(hak_region_extend(run, 33, 31)); /* over the border */
}

/* The last run of a range grows as long as the range does. */
static void extending_into_new_super_slabs(void **state) {
    (void)state;
    start();
    struct hak_slab *run = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    fake_os_forget();
    assert_true(hak_region_extend(run, 32, 40)); /* all of it new */
    assert_int_equal(hak_region_sums().super_slabs, 3);
    assert_int_equal(fake_os.call_count[FAKE_MAP_AT], 1);
    assert_true(hak_region_extend(run, 72, 100)); /* a part is there */
    assert_int_equal(hak_region_sums().super_slabs, 6);
    assert_ptr_equal(acquire(20, 1, HAK_UNITS_FREE), run + 172);
    assert_false(hak_region_extend(run, 172, 1));
    enum { LIMIT = 1 << 20 };
    hak_atomic_store(&hak_region_range(0)->super_slab_limit, LIMIT / HAK_UNITS_PER_SUPER_SLAB, relaxed);
    assert_false(hak_region_extend(run, 172, LIMIT));
    assert_false(hak_region_extend(run, 0, LIMIT + 1));
    assert_true(hak_region_extend(run + 172, 20, LIMIT - 192)); /* to the very end */
    assert_false(hak_region_extend(run, LIMIT, 1));
}

/* A failed extension gives back what it had already taken in the SuperSlabs before. */
static void extending_all_or_nothing(void **state) {
    (void)state;
    start();
    struct hak_slab *run = acquire(1, 1, HAK_UNITS_NEW_SUPER), *second = acquire(1, 1, HAK_UNITS_NEW_SUPER);
    assert_ptr_equal(second, run + 32);
    assert_false(hak_region_extend(run, 1, 32));
    assert_ptr_equal(acquire(31, 1, HAK_UNITS_FREE), run + 1);
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    assert_false(hak_region_extend(second, 1, 100));
    assert_int_equal(hak_region_sums().super_slabs, 2);
    assert_ptr_equal(acquire(31, 1, HAK_UNITS_FREE), second + 1);
}

/* What can't be had because somebody has units in the way costs nothing: no SuperSlab is made, no unit mapped. */
static void extending_in_vain(void **state) {
    (void)state;
    start();
    struct hak_slab *run = acquire(1, 1, HAK_UNITS_NEW_SUPER), *next = acquire(1, 1, HAK_UNITS_FREE);
    assert_ptr_equal(next, run + 1);
    assert_true(hak_region_unmap_units(SIZE_MAX) > 0);
    fake_os_forget();
    assert_false(hak_region_extend(run, 1, 20));
    assert_false(hak_region_extend(run, 1, 100));
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    assert_int_equal(hak_region_sums().super_slabs, 1);
    assert_true(hak_region_extend(next, 1, 100));
}

/* Another thread takes a unit at the end while the kernel is asked for more behind it. */
static const struct hak_slab *taken_meanwhile;
static void take_one_meanwhile(void) {
    fake_os.at_map_at = NULL;
    taken_meanwhile = acquire(1, 1, HAK_UNITS_FREE);
}

static void growing_in_a_race(void **state) {
    (void)state;
    start();
    struct hak_slab *run = acquire(10, 1, HAK_UNITS_NEW_SUPER);
    fake_os.at_map_at = take_one_meanwhile;
    struct hak_slab *span = hak_region_acquire_span(60, 1, false);
    assert_ptr_equal(taken_meanwhile, run + 10);
    assert_ptr_equal(span, run + 32); /* in what was made */
    fake_os.at_map_at = take_one_meanwhile;
    assert_true(hak_region_extend(span, 60, 30));
    assert_ptr_equal(taken_meanwhile, run + 11);
    hak_region_release(run, 10);
    hak_region_release(run + 10, 1);
    hak_region_release(run + 11, 1);
    hak_region_release(span, 90);
    assert_int_equal(dirty(), 102); /* none is lost, */
    uint32_t super_slabs = (uint32_t)hak_region_sums().super_slabs;
    assert_ptr_equal(hak_region_acquire_span(super_slabs * HAK_UNITS_PER_SUPER_SLAB, 1, false), run);
}

static struct hak_slab *span(uint32_t count) { return hak_region_acquire_span(count, 1, false); }

static void spans(void **state) {
    (void)state;
    start();
    struct hak_slab *one = acquire(1, 1, HAK_UNITS_NEW_SUPER);
    struct hak_slab *first = span(70);
    assert_ptr_equal(first, one + 1); /* the free end of the range, and SuperSlabs for the rest */
    assert_int_equal(hak_region_sums().super_slabs, 3);
    memory_of(first)[70 * HAK_UNIT_BYTES - 1] = 1;
    assert_ptr_equal(acquire(25, 1, HAK_UNITS_FREE), first + 70); /* the rest of its last SuperSlab */
    hak_region_release(first, 70);
    assert_int_equal(dirty(), 70);
    assert_ptr_equal(span(64), first);
    assert_int_equal(dirty(), 6);
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    assert_null(span(33));
    fake_os_refuse_nothing();
    assert_ptr_equal(acquire(6, 1, HAK_UNITS_DIRTY), first + 64);
}

/* The lowest free units that are adjacent, whatever SuperSlabs they are in. */
static void spans_in_address_order(void **state) {
    (void)state;
    start();
    struct hak_slab *all = span(70 * 64 * 32); /* several words of hints */
    hak_region_release(all + 5, 40);
    hak_region_release(all + 100, 39);
    hak_region_release(all + 1000, 200);
    hak_region_release(all + 66 * 64 * 32 + 7, 300);
    assert_ptr_equal(span(41), all + 1000);
    assert_ptr_equal(span(40), all + 5);
    assert_ptr_equal(span(35), all + 100);
    assert_ptr_equal(span(160), all + 66 * 64 * 32 + 7);
    assert_ptr_equal(span(159), all + 1041);
    assert_ptr_equal(span(141), all + 70 * 64 * 32);
    assert_ptr_equal(span(140), all + 66 * 64 * 32 + 167);
}

/* The lowest `count` adjacent units of a plain map that are free; UINT32_MAX when there are none. */
static uint32_t lowest_in(const bool *taken, uint32_t units, uint32_t count) {
    uint32_t run = 0;
    for (uint32_t i = 0; i < units; i++) {
        run = taken[i] ? 0 : run + 1;
        if (run == count) return i + 1 - count;
    }
    return UINT32_MAX;
}

/* Whatever is given back and taken, in whatever order: a span is found if there is one, and it is the lowest. */
static void spans_at_random(void **state) {
    (void)state;
    enum { UNITS = 45 * 32, ROUNDS = 40000, LONGEST = 700 };
    static bool taken[UNITS];
    uint64_t random = 5;
    start();
    struct hak_slab *all = span(UNITS);
    memset(taken, true, sizeof taken);
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t pick = unit_random(&random);
        uint32_t at = pick % UNITS, most = 1u << (pick >> 16) % 10, count = 1 + (uint32_t)(pick >> 32) % most;
        for (uint32_t i = at, end; i < at + count && i < UNITS; i = end + 1) { /* each stretch that is taken */
            for (end = i; end < at + count && end < UNITS && taken[end]; end++) taken[end] = false;
            if (end > i) hak_region_release(all + i, end - i);
        }
        if ((pick >> 20 & 3) != 0) {
            struct hak_slab *slab = acquire(1 + (pick >> 24) % 4, 1, HAK_UNITS_LAST_RESORT);
            if (slab != NULL) memset(&taken[slab - all], true, 1 + (pick >> 24) % 4);
        }
        count = 33 + (uint32_t)(unit_random(&random) % (LONGEST - 33));
        if ((pick >> 40 & 3) != 0) count = 33 + count % 40;
        uint32_t expected = lowest_in(taken, UNITS, count);
        struct hak_slab *found = span(count);
        assert_ptr_equal(found, expected == UINT32_MAX ? NULL : all + expected);
        if (found != NULL) memset(&taken[expected], true, count);
    }
}

static void aligned_spans(void **state) {
    (void)state;
    start();
    acquire(3, 1, HAK_UNITS_NEW_SUPER);
    for (uint32_t alignment = 1; alignment <= 1024; alignment *= 2) {
        struct hak_slab *slab = hak_region_acquire_span(40, alignment, false);
        assert_int_equal((uintptr_t)memory_of(slab) % (alignment * HAK_UNIT_BYTES), 0);
        memory_of(slab)[40 * HAK_UNIT_BYTES - 1] = 1;
        struct hak_slab *second = hak_region_acquire_span(1, alignment, false);
        assert_int_equal((uintptr_t)memory_of(second) % (alignment * HAK_UNIT_BYTES), 0);
        hak_region_release(slab, 40);
        assert_ptr_equal(hak_region_acquire_span(40, alignment, false), slab);
    }
}

static void moved_units_are_fresh(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    hak_region_release_fresh(slab + 4, 3);
    assert_int_equal(dirty(), 0);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 0);
    assert_ptr_equal(acquire(3, 1, HAK_UNITS_FREE), slab + 4);
}

static uint64_t reused_units(void) {
    return hak_atomic_exchange(&hak_pages_reused, 0, relaxed) * fake_os.page_bytes / HAK_UNIT_BYTES;
}

/* What went back and is used counts as used again, once; what was never used, or moved elsewhere, does not. */
static void used_again(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    assert_int_equal(reused_units(), 0);
    hak_region_release(slab + 8, 4);
    assert_ptr_equal(acquire(4, 1, HAK_UNITS_DIRTY), slab + 8);
    assert_int_equal(reused_units(), 0);
    hak_region_release(slab + 8, 4);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 4 * HAK_UNIT_BYTES);
    assert_int_equal(reused_units(), 0);
    assert_ptr_equal(acquire(3, 1, HAK_UNITS_FREE), slab + 8);
    assert_int_equal(reused_units(), 3);
    assert_ptr_equal(acquire(1, 1, HAK_UNITS_FREE), slab + 11);
    assert_int_equal(reused_units(), 1);
    hak_region_release_fresh(slab + 8, 4);
    assert_ptr_equal(acquire(4, 1, HAK_UNITS_FREE), slab + 8);
    assert_int_equal(reused_units(), 0);
    hak_region_note_given(slab + 30, 2);
    hak_region_release_fresh(slab + 30, 2);
    assert_ptr_equal(acquire(2, 1, HAK_UNITS_FREE), slab + 30);
    assert_int_equal(reused_units(), 2);
}

/* What gets memory with a neighbour (all of a SuperSlab, here) counts when it is used, and not before. */
static void used_again_with_others(void **state) {
    (void)state;
    hak_atomic_store(&hak_knobs.prefault_mode, 1, relaxed);
    start();
    struct hak_slab *slab = acquire(1, 1, HAK_UNITS_NEW_SUPER);
    assert_int_equal(dirty(), 31);
    assert_ptr_equal(acquire(31, 1, HAK_UNITS_DIRTY), slab + 1);
    assert_int_equal(reused_units(), 0);
    hak_region_release(slab, 32);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 32 * HAK_UNIT_BYTES);
    assert_ptr_equal(acquire(1, 1, HAK_UNITS_FREE), slab);
    assert_int_equal(dirty(), 31);
    assert_int_equal(reused_units(), 1);
    assert_ptr_equal(acquire(4, 1, HAK_UNITS_DIRTY), slab + 1);
    assert_int_equal(reused_units(), 4);
    assert_ptr_equal(hak_region_acquire_span(24, 1, false), slab + 5);
    assert_int_equal(reused_units(), 24);
    hak_region_release(slab + 5, 24);
    assert_ptr_equal(hak_region_acquire_span(24, 1, false), slab + 5);
    assert_int_equal(reused_units(), 0);
}

static void spans_used_again(void **state) {
    (void)state;
    start();
    struct hak_slab *span = hak_region_acquire_span(40, 1, false);
    hak_region_release(span, 40);
    assert_in_range(hak_region_purge_units(UINT64_MAX, true), 40 * HAK_UNIT_BYTES, SIZE_MAX);
    assert_int_equal(reused_units(), 0);
    assert_ptr_equal(hak_region_acquire_span(40, 1, false), span);
    assert_int_equal(reused_units(), 40);
}

/* While a span is made huge, or zero, nobody waits for it: it isn't in hand (I1 of region/in_hand.h). */
static uint32_t calls_in_use;
static void look_at_hands(void) {
    assert_false(hak_in_hand_is_some());
    calls_in_use++;
}

static void spans_are_prepared_later(void **state) {
    (void)state;
    static struct hak_hand hand;
    fake_os.has_huge_pages = true;
    start();
    hak_own_hand = &hand;
    for (int i = 0; i < 40; i++) {
        struct hak_slab *span = hak_region_acquire_span(64, 1, true);
        for (size_t at = 0; at < 64 * HAK_UNIT_BYTES; at += 4096) memory_of(span)[at] = 1;
        hak_region_release(span, 64);
        if (i == 0) fake_os.at_call = look_at_hands; /* there is nothing to map any more */
    }
    fake_os.at_call = NULL;
    assert_true(calls_in_use > 0);
}

/* The search for a run is bounded where there may be one, but none is aligned as wanted; the last resort is not. */
static uint64_t word_of(uint32_t super_slab) {
    return hak_atomic_load(&hak_region_range(0)->super_slabs[super_slab].free_units, relaxed);
}

/* Near a limit free units are unmapped; who takes them maps them again, and reads zero. */
static void absent(void **state) {
    (void)state;
    start();
    struct hak_slab *all = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    memset(memory_of(all), 1, HAK_SUPER_SLAB_BYTES);
    hak_region_release(all + 4, 8);
    hak_region_release(all + 20, 4);
    assert_non_null(acquire(32, 1, HAK_UNITS_NEW_SUPER));
    size_t mapped = fake_os.mapped_bytes;
    fake_os_refuse(FAKE_UNMAP, 2, 2);
    hak_region_unmap_units(SIZE_MAX);
    assert_int_equal(fake_os.mapped_bytes, mapped - 8 * HAK_UNIT_BYTES);
    assert_int_equal(dirty(), 4);
    hak_region_unmap_units(SIZE_MAX);
    assert_int_equal(fake_os.mapped_bytes, mapped - 12 * HAK_UNIT_BYTES);
    assert_int_equal(dirty(), 0);
    assert_int_equal(hak_units_absent(word_of(0)), 0x00f00ff0);
    assert_false(hak_region_covers((uintptr_t)memory_of(all + 4)));
    assert_true(hak_region_covers((uintptr_t)memory_of(all + 3)));
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 0);
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    for (enum hak_unit_source source = HAK_UNITS_FRESH; source <= HAK_UNITS_LAST_RESORT; source++)
        assert_null(acquire(1, 1, source));
    assert_int_equal(hak_units_absent(word_of(0)), 0x00f00ff0);
    assert_false(hak_in_hand_is_some());
    fake_os_refuse_nothing();
    assert_null(acquire(1, 1, HAK_UNITS_DIRTY));
    assert_null(acquire(1, 1, HAK_UNITS_LAST_RESORT));
    assert_int_equal(unit_of(acquire(8, 1, HAK_UNITS_FREE)), 4);
    hak_region_release(all + 18, 2);
    assert_int_equal(unit_of(acquire(6, 1, HAK_UNITS_FREE)), 18); /* dirty and absent ones */
    assert_int_equal(fake_os.mapped_bytes, mapped);
    for (size_t i = 0; i < 8 * HAK_UNIT_BYTES; i++) assert_int_equal(memory_of(all + 4)[i], 0);
    for (size_t i = 0; i < 4 * HAK_UNIT_BYTES; i++) assert_int_equal(memory_of(all + 20)[i], 0);
    assert_int_equal(memory_of(all + 19)[0], 1);
    assert_int_equal(word_of(0), 0);
    assert_int_equal(dirty(), 0);
}

/* A unit in the middle of a gap makes one more of it, unless mappings are short: then the gap is closed from its
 * beginning. */
static void middle_of_a_gap(void **state) {
    (void)state;
    start();
    struct hak_slab *all = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    hak_region_release(all + 4, 8);
    hak_region_release(all + 20, 8);
    hak_region_unmap_units(SIZE_MAX);
    assert_int_equal(hak_units_absent(word_of(0)), 0x0ff00ff0);
    assert_int_equal(unit_of(acquire(1, 8, HAK_UNITS_FREE)), 8);
    assert_int_equal(hak_units_absent(word_of(0)), 0x0ff00ef0);
    for (uintptr_t i = 0; hak_page_policy_may_map(); i++)
        hak_directory_set(((uintptr_t)1 << 41) + i * HAK_GRANULE_BYTES, hak_entry_for_mapping(4096));
    assert_int_equal(unit_of(acquire(1, 8, HAK_UNITS_FREE)), 24);
    assert_int_equal(hak_units_absent(word_of(0)), 0x0e000ef0);
    assert_int_equal(hak_units_fresh(word_of(0)), 0x00f00000);
}

/* The same for units across the borders of SuperSlabs. */
static void absent_spans(void **state) {
    (void)state;
    start();
    struct hak_slab *span = hak_region_acquire_span(80, 1, false);
    hak_region_release(span + 10, 60);
    size_t mapped = fake_os.mapped_bytes;
    hak_region_unmap_units(SIZE_MAX);
    uint64_t unmapped = (mapped - fake_os.mapped_bytes) / HAK_UNIT_BYTES;
    assert_int_equal(unmapped, 60 + 16);
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    assert_null(hak_region_acquire_span(50, 1, false));
    fake_os_refuse(FAKE_MAP_AT, 2, SIZE_MAX);
    assert_null(hak_region_acquire_span(50, 1, false));
    fake_os_refuse_nothing();
    assert_false(hak_in_hand_is_some());
    struct hak_slab *again = hak_region_acquire_span(50, 1, true);
    assert_ptr_equal(again, span + 10);
    for (size_t i = 0; i < 50 * HAK_UNIT_BYTES; i += 512) assert_int_equal(memory_of(again)[i], 0);
    hak_region_mark(again, 50, HAK_CLASS_NONE);
    assert_true(hak_region_extend(again, 50, 10));
    memset(memory_of(again), 1, 60 * HAK_UNIT_BYTES);
}

static void last_resort(void **state) {
    (void)state;
    start();
    struct hak_slab *first = acquire(32, 1, HAK_UNITS_NEW_SUPER);
    for (uint32_t i = 1; i <= SCANNED_SUPER_SLABS; i++) acquire(32, 1, HAK_UNITS_NEW_SUPER);
    for (uint32_t i = 0; i < SCANNED_SUPER_SLABS; i++) hak_region_release(first + i * 32 + 1, 4);
    struct hak_slab *aligned = first + SCANNED_SUPER_SLABS * 32 + 4;
    hak_region_release(aligned, 4);
    assert_null(acquire(4, 4, HAK_UNITS_FREE));
    assert_ptr_equal(acquire(4, 4, HAK_UNITS_LAST_RESORT), aligned);
    assert_ptr_equal(acquire(4, 1, HAK_UNITS_FREE), first + 1);
}

/* Random takes and gives against a plain map. */
static void at_random(void **state) {
    (void)state;
    static struct {
        struct hak_slab *slab;
        uint32_t count;
    } held[200];
    static bool taken[1 << 14];
    uint64_t random = 3, total_held = 0;
    start();
    for (int round = 0; round < 20000; round++) {
        uint64_t pick = unit_random(&random);
        uint32_t at = pick % 200;
        if (held[at].slab != NULL) {
            for (uint32_t i = 0; i < held[at].count; i++) taken[unit_of(held[at].slab) + i] = false;
            hak_region_release(held[at].slab, held[at].count);
            total_held -= held[at].count;
            held[at].slab = NULL;
            continue;
        }
        uint32_t count = 1 + (uint32_t)(pick >> 10) % 32, alignment = 1u << (pick >> 20) % 6;
        if (pick >> 30 & 1) count = 1;
        struct hak_slab *slab = acquire(count, alignment, HAK_UNITS_FREE);
        if (slab == NULL) slab = acquire(count, alignment, HAK_UNITS_NEW_SUPER);
        assert_non_null(slab);
        assert_int_equal(unit_of(slab) % alignment, 0);
        assert_true(unit_of(slab) % 32 + count <= 32);
        for (uint32_t i = 0; i < count; i++) {
            assert_false(taken[unit_of(slab) + i]);
            taken[unit_of(slab) + i] = true;
        }
        held[at].slab = slab;
        held[at].count = count;
        total_held += count;
        if (round % 500 == 0) hak_region_purge_units(UINT64_MAX, true);
    }
    uint64_t free_units = 0;
    for (uint32_t i = 0; i < hak_region_sums().super_slabs; i++) {
        uint64_t word = hak_atomic_load(&hak_region_range(0)->super_slabs[i].free_units, relaxed);
        assert_int_equal(word & word >> 32 & 0xffffffff, 0); /* dirty or fresh, not both */
        free_units += hak_bit_count(word);
    }
    assert_int_equal(free_units + total_held, hak_region_sums().super_slabs * 32);
}

UNIT_MAIN(cmocka_unit_test(sources), cmocka_unit_test(counts_and_alignments), cmocka_unit_test(former_slabs),
          cmocka_unit_test(zero_memory), cmocka_unit_test(purging_exactly), cmocka_unit_test(refused_purge),
          cmocka_unit_test(extending), cmocka_unit_test(extending_into_new_super_slabs),
          cmocka_unit_test(extending_all_or_nothing), cmocka_unit_test(extending_in_vain),
          cmocka_unit_test(growing_in_a_race), cmocka_unit_test(spans_are_prepared_later), cmocka_unit_test(spans),
          cmocka_unit_test(spans_in_address_order), cmocka_unit_test(spans_at_random), cmocka_unit_test(aligned_spans),
          cmocka_unit_test(moved_units_are_fresh), cmocka_unit_test(used_again),
          cmocka_unit_test(used_again_with_others), cmocka_unit_test(spans_used_again), cmocka_unit_test(absent),
          cmocka_unit_test(absent_spans), cmocka_unit_test(middle_of_a_gap), cmocka_unit_test(last_resort),
          cmocka_unit_test(at_random))

/* region/large.h: page runs and mappings: where each begins, how they grow, shrink, move and end. */
#include "large_fixture.h"

#include "allowance.h"

#include <string.h>
#include <sys/mman.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/mapping_cache.h"

/* Runs up to 2 MiB, mappings above. */
static void start(void) {
    allow_free_memory();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 2 * HAK_MIB, relaxed);
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
}

static void pass_time(void) { fake_os.clock_ms += 100; }

static void fill(char *block, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 4096) block[i] = (char)(i / 4096 + 1);
    block[bytes - 1] = 99;
}

static void check(const char *block, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 4096) assert_int_equal(block[i], (char)(i / 4096 + 1));
}

static void kinds(void **state) {
    (void)state;
    start();
    size_t limit = hak_knob(run_limit_bytes);
    const size_t sizes[] = {1, HAK_SMALL_MAX + 1, HAK_UNIT_BYTES, HAK_UNIT_BYTES + 1, limit};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct hak_place place = place_of(alloc(sizes[i]));
        assert_int_equal(place.kind, HAK_PLACE_RUN);
        assert_int_equal(place.bytes, hak_align_up(sizes[i], 4096));
    }
    struct hak_place place = place_of(alloc(limit + 1));
    assert_int_equal(place.kind, HAK_PLACE_MAPPING);
    assert_int_equal(place.bytes, limit + 4096);
    assert_int_equal(place.start % HAK_GRANULE_BYTES, 0);
    hak_atomic_store(&hak_knobs.run_limit_bytes, 32 * HAK_MIB, relaxed);
    assert_int_equal(place_of(alloc(32 * HAK_MIB)).kind, HAK_PLACE_RUN);
    assert_int_equal(place_of(alloc(32 * HAK_MIB + 1)).kind, HAK_PLACE_MAPPING);
    hak_atomic_store(&hak_knobs.run_limit_bytes, HAK_MIB / 2, relaxed);
    assert_int_equal(place_of(alloc(HAK_MIB / 2)).kind, HAK_PLACE_RUN);
    assert_int_equal(place_of(alloc(HAK_MIB / 2 + 1)).kind, HAK_PLACE_MAPPING);
}

/* While others have memory in hand for ever, a request that none of it could help is refused at once; another one waits. */
static void never_to_be_met(void **state) {
    (void)state;
    start();
    char *kept = alloc(40 * HAK_MIB);
    fake_os.address_space_room = fake_os.mapped_bytes + 10 * HAK_MIB;
    hak_atomic_fetch_add(&hak_in_hand, 1, relaxed);
    fake_os.at_wait = pass_time;
    size_t mapped = fake_os.mapped_bytes;
    assert_null(alloc(mapped + 20 * HAK_MIB));
    assert_int_equal(fake_os.waits, 0);
    assert_null(alloc(mapped + 5 * HAK_MIB)); /* if all went back */
    assert_in_range(fake_os.waits, 1, 20);
    assert_int_equal(fake_os.mapped_bytes, mapped);
    fake_os.at_wait = NULL;
    hak_in_hand_recover_after_fork();
    fake_os.address_space_room = SIZE_MAX;
    assert_true(free_block(kept));
}

/* By size, up to the largest that may be a run or a mapping, whichever they are. */
static void counted_by_octaves(void **state) {
    (void)state;
    static const size_t sizes[] = {HAK_MIB / 2,      HAK_MIB / 2 + 1, HAK_MIB,          HAK_MIB + 1,
                                   16 * HAK_MIB + 1, 32 * HAK_MIB,    32 * HAK_MIB + 1, 100000};
    static const uint64_t wanted[HAK_LARGE_BANDS] = {2, 1, 0, 0, 0, 2};
    start();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) alloc(sizes[i]);
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++)
        assert_int_equal(hak_atomic_load(&hak_large_counts[i], relaxed), wanted[i]);
}

static void check_alignments(void) {
    for (size_t alignment = 16; alignment <= HAK_GIB; alignment *= 2) {
        char *small = hak_large_alloc(100, alignment, true), *large = hak_large_alloc(3 * HAK_MIB, alignment, true);
        assert_non_null(small);
        assert_non_null(large);
        assert_int_equal((uintptr_t)small % alignment, 0);
        assert_int_equal((uintptr_t)large % alignment, 0);
        assert_int_equal(small[99], 0);
        assert_int_equal(large[3 * HAK_MIB - 1], 0);
        fill(small, 100);
        fill(large, 3 * HAK_MIB);
        assert_true(free_block(small));
        assert_true(free_block(large));
    }
    assert_null(hak_large_alloc(100, (size_t)1 << 62, false));
    assert_null(hak_large_alloc(PTRDIFF_MAX, 16, false));
}

static void alignments(void **state) {
    (void)state;
    start();
    check_alignments();
}
static void alignments_of_spans(void **state) {
    (void)state;
    start();
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    check_alignments();
}

/* What is asked to be zero is zero; what the kernel gave so is not touched for it. */
static void cleared(void **state) {
    (void)state;
    start();
    for (size_t bytes = 100000; bytes < 10 * HAK_MIB; bytes *= 4) {
        char *block = hak_large_alloc(bytes, 16, true);
        for (size_t i = 0; i < bytes; i += 999) assert_int_equal(block[i], 0);
        fill(block, bytes);
        assert_true(free_block(block));
        assert_ptr_equal(alloc(bytes), block);
        check(block, bytes);
        assert_true(free_block(block));
        assert_ptr_equal(hak_large_alloc(bytes, 16, true), block);
        for (size_t i = 0; i < bytes; i += 4096) assert_int_equal(block[i], 0);
        fill(block, bytes);
        assert_true(free_block(block));
    }
    /* A kept mapping that can't be purged is written to. */
    char *mapping = alloc(5 * HAK_MIB);
    fill(mapping, 5 * HAK_MIB);
    assert_true(free_block(mapping));
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    assert_ptr_equal(hak_large_alloc(5 * HAK_MIB, 16, true), mapping);
    for (size_t i = 0; i < 5 * HAK_MIB; i += 4096) assert_int_equal(mapping[i], 0);
}

/* Frees a block of which all, or little, was touched, and asks for zeros in its place. Returns what goes back for it. */
static size_t purged_for_zeros(size_t bytes, bool is_filled) {
    char *block = alloc(bytes);
    if (is_filled) fill(block, bytes);
    else memset(block, 1, 10), memset(block + bytes / 2, 1, 10);
    assert_true(free_block(block));
    fake_os_forget();
    assert_ptr_equal(hak_large_alloc(bytes, 16, true), block);
    size_t purged = 0;
    for (size_t call = 0; call < fake_os.call_count[FAKE_ANY]; call++)
        if (fake_os.calls[call].kind == FAKE_PURGE) purged += fake_os.calls[call].bytes;
    for (size_t at = 0; at < bytes; at += 5) assert_int_equal(block[at], 0);
    assert_true(free_block(block));
    hak_region_purge_units(UINT64_MAX, true);
    return purged;
}

/* Much that is to be zero, and was hardly touched before, goes back to the kernel for that. Little, and what was touched
 * all over or zero of late, is written to; and so is all where the program keeps what it has used once. */
static void cleared_by_the_kernel(void **state) {
    (void)state;
    start();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 32 * HAK_MIB, relaxed);
    assert_int_equal(purged_for_zeros(HAK_MIB - HAK_UNIT_BYTES, false), 0);
    for (size_t bytes = HAK_MIB; bytes <= 7 * HAK_MIB; bytes += 6 * HAK_MIB) {
        assert_int_equal(purged_for_zeros(bytes, true), 0);
        alloc(8 * HAK_MIB); /* what comes next lies in other SuperSlabs */
        assert_int_equal(purged_for_zeros(bytes, false), bytes);
        assert_int_equal(purged_for_zeros(bytes, false), 0); /* these were zero of late */
        alloc(8 * HAK_MIB);
    }
    hak_atomic_store(&hak_knobs.dirty_limit_bytes, hak_knob_table[HAK_KNOB_dirty_limit_bytes].highest, relaxed);
    assert_int_equal(purged_for_zeros(7 * HAK_MIB, false), 0);
}

/* One that is too large to be written to, and can't be purged, stays kept, though it is larger than what is asked for. */
static void not_cleared(void **state) {
    (void)state;
    start();
    hak_atomic_store(&hak_knobs.mapping_cache_bytes, 256 * HAK_MIB, relaxed);
    assert_non_null(alloc(600 * HAK_MIB)); /* a quarter of what there is may be kept */
    char *kept = alloc(110 * HAK_MIB);
    assert_true(free_block(kept));
    assert_int_equal(hak_mapping_cache_bytes(), 110 * HAK_MIB);
    uint64_t before = hak_atomic_load(&hak_mapping_bytes, relaxed);
    fake_os_refuse(FAKE_PURGE, 1, SIZE_MAX);
    for (int i = 0; i < 3; i++) {
        char *block = hak_large_alloc(100 * HAK_MIB, 16, true);
        assert_non_null(block);
        assert_ptr_not_equal(block, kept);
        assert_int_equal(block[0], 0);
        assert_int_equal(hak_region_find((uintptr_t)kept).kind, HAK_PLACE_FOREIGN);
        assert_true(free_block(block));
        assert_int_equal(hak_atomic_load(&hak_mapping_bytes, relaxed), before);
    }
}

static void freeing_twice(void **state) {
    (void)state;
    start();
    struct hak_place run = place_of(alloc(100000)), mapping = place_of(alloc(3 * HAK_MIB));
    assert_true(hak_large_free(&run));
    assert_false(hak_large_free(&run));
    assert_true(hak_large_free(&mapping));
    assert_false(hak_large_free(&mapping));
    assert_int_equal(hak_region_find(run.start).kind, HAK_PLACE_FOREIGN);
    assert_int_equal(hak_region_find(mapping.start).kind, HAK_PLACE_FOREIGN);
    assert_false(hak_region_covers(mapping.start));
}

static void steady_state_makes_no_calls(void **state) {
    (void)state;
    start();
    hak_atomic_store(&hak_knobs.run_limit_bytes, 32 * HAK_MIB, relaxed);
    for (size_t bytes = 2 * HAK_MIB; bytes <= 64 * HAK_MIB; bytes *= 2) {
        char *first = alloc(bytes);
        assert_true(free_block(first));
        fake_os_forget();
        for (int i = 0; i < 100; i++) {
            char *block = alloc(bytes);
            assert_ptr_equal(block, first);
            assert_true(free_block(block));
        }
        assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
    }
}

static void resizing_runs(void **state) {
    (void)state;
    start();
    char *run = alloc(2 * HAK_UNIT_BYTES);
    fill(run, 2 * HAK_UNIT_BYTES);
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES - 1), run);
    assert_ptr_equal(resize(run, 5 * HAK_UNIT_BYTES), run);
    check(run, 2 * HAK_UNIT_BYTES);
    assert_int_equal(place_of(run).bytes, 5 * HAK_UNIT_BYTES);
    char *next = alloc(HAK_UNIT_BYTES);
    assert_ptr_equal(next, run + 5 * HAK_UNIT_BYTES);
    assert_null(resize(run, 6 * HAK_UNIT_BYTES)); /* in the way */
    assert_ptr_equal(resize(run, HAK_UNIT_BYTES + 1), run);
    check(run, HAK_UNIT_BYTES + 1);
    assert_int_equal(place_of(run).bytes, HAK_UNIT_BYTES + 4096);
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES - 4096), run); /* within its units */
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES), run);
    assert_int_equal(place_of(run).bytes, 2 * HAK_UNIT_BYTES);
    assert_int_equal(hak_region_find((uintptr_t)run + 2 * HAK_UNIT_BYTES).kind, HAK_PLACE_FOREIGN);
    assert_ptr_equal(alloc(3 * HAK_UNIT_BYTES), run + 2 * HAK_UNIT_BYTES);
    assert_null(resize(run, HAK_SMALL_MAX)); /* better copied */
    assert_null(resize(run, PTRDIFF_MAX));
    assert_int_equal(place_of(run).bytes, 2 * HAK_UNIT_BYTES);
    /* Into SuperSlabs made for it. */
    char *last = alloc(HAK_UNIT_BYTES);
    assert_ptr_equal(resize(last, 40 * HAK_UNIT_BYTES), last);
    assert_int_equal(place_of(last).bytes, 40 * HAK_UNIT_BYTES);
    fill(last, 40 * HAK_UNIT_BYTES);
}

/* What lies behind the last page of a run goes back on request, once, and is there again when the run grows. */
static void tails(void **state) {
    (void)state;
    start();
    char *run = alloc(2 * HAK_UNIT_BYTES);
    memset(run, 7, 2 * HAK_UNIT_BYTES);
    assert_true(free_block(run));
    assert_ptr_equal(alloc(HAK_UNIT_BYTES + 5000), run);
    struct hak_range *range = hak_region_range(0);
    fake_os_refuse(FAKE_PURGE, 1, 1);
    assert_int_equal(hak_large_purge_tail(range, 0), 0);
    assert_int_equal(hak_large_purge_tail(range, 0), HAK_UNIT_BYTES - 8192);
    assert_int_equal(hak_large_purge_tail(range, 0), 0);
    assert_int_equal(hak_large_purge_tail(range, 1), 0);
    for (size_t i = 0; i < 2 * HAK_UNIT_BYTES; i += 512) assert_int_equal(run[i], i < HAK_UNIT_BYTES + 8192 ? 7 : 0);
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES - 1), run);
    run[2 * HAK_UNIT_BYTES - 1] = 1;
    assert_int_equal(hak_large_purge_tail(range, 0), 0); /* there is none */
    assert_int_equal(run[2 * HAK_UNIT_BYTES - 1], 1);
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES - 4096), run);
    assert_int_equal(hak_large_purge_tail(range, 0), 4096);
    assert_int_equal(run[2 * HAK_UNIT_BYTES - 1], 0);
    assert_true(free_block(run));
    assert_int_equal(hak_large_purge_tail(range, 0), 0);
}

static void refuse_to_map(void) { fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX); }

/* What lies behind the last page of a run is unmapped near a limit, and mapped again when the run is resized. */
static void cut_tails(void **state) {
    (void)state;
    start();
    enum { BYTES = HAK_UNIT_BYTES + 5000, PAGES_BYTES = HAK_UNIT_BYTES + 8192 };
    char *run = alloc(BYTES);
    alloc(HAK_UNIT_BYTES);
    fill(run, BYTES);
    struct hak_range *range = hak_region_range(0);
    size_t mapped = fake_os.mapped_bytes;
    fake_os_refuse(FAKE_UNMAP, 1, 1);
    assert_int_equal(hak_large_cut_tail(range, 0), 0);
    assert_int_equal(hak_large_cut_tail(range, 0), HAK_UNIT_BYTES - 8192);
    assert_int_equal(fake_os.mapped_bytes, mapped - (HAK_UNIT_BYTES - 8192));
    assert_int_equal(hak_large_cut_tail(range, 0), 0);
    assert_int_equal(hak_large_cut_tail(range, 1), 0); /* no run begins there */
    assert_int_equal(hak_large_cut_tail(range, 2), 0); /* a run of whole units */
    assert_int_equal(hak_large_purge_tail(range, 0), 0);
    refuse_to_map();
    assert_null(resize(run, 2 * HAK_UNIT_BYTES));
    assert_ptr_equal(resize(run, HAK_UNIT_BYTES), run); /* stays as large as it is */
    assert_int_equal(place_of(run).bytes, PAGES_BYTES);
    fake_os_refuse_nothing();
    assert_ptr_equal(resize(run, 2 * HAK_UNIT_BYTES), run);
    assert_int_equal(fake_os.mapped_bytes, mapped);
    check(run, BYTES);
    for (size_t i = PAGES_BYTES; i < 2 * HAK_UNIT_BYTES; i++) assert_int_equal(run[i], 0);
    assert_ptr_equal(resize(run, BYTES), run);
    assert_int_equal(hak_large_purge_tail(range, 0), HAK_UNIT_BYTES - 8192);
    assert_int_equal(hak_large_cut_tail(range, 0), HAK_UNIT_BYTES - 8192); /* purged, and mapped until now */
    assert_true(free_block(run));
    assert_int_equal(fake_os.mapped_bytes, mapped);
    assert_ptr_equal(alloc(2 * HAK_UNIT_BYTES), run);
}

/* A run is freed whose tail the kernel doesn't map again, or somebody else has taken: all but its last unit is free, and
 * that one when it can be mapped. */
static void freed_with_a_cut_tail(void **state) {
    (void)state;
    start();
    for (int is_taken = 0; is_taken < 2; is_taken++) {
        char *run = alloc(HAK_UNIT_BYTES + 5000), *tail = run + HAK_UNIT_BYTES + 8192, *last = run + HAK_UNIT_BYTES;
        assert_int_equal(hak_large_cut_tail(hak_region_range(0), 0), HAK_UNIT_BYTES - 8192);
        size_t mapped = fake_os.mapped_bytes;
        char *foreign = !is_taken ? NULL
                                  : mmap(tail, 4096, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        assert_ptr_equal(foreign, is_taken ? tail : NULL);
        if (is_taken) memset(foreign, 5, 4096);
        else refuse_to_map();
        assert_true(free_block(run));
        assert_int_equal(fake_os.mapped_bytes, mapped - 8192);
        assert_true(hak_region_covers((uintptr_t)run));
        assert_false(hak_region_covers((uintptr_t)last));
        assert_int_equal(hak_region_find((uintptr_t)tail).kind, HAK_PLACE_FOREIGN);
        assert_ptr_equal(alloc(HAK_UNIT_BYTES), run);
        char *other = alloc(HAK_UNIT_BYTES); /* LAST_RESORT, or another unit */
        assert_ptr_not_equal(other, last);
        if (is_taken) {
            for (size_t i = 0; i < 4096; i++) assert_int_equal(foreign[i], 5);
            munmap(foreign, 4096);
        }
        fake_os_refuse_nothing();
        char *again = alloc(HAK_UNIT_BYTES);
        assert_ptr_equal(again, last);
        for (size_t i = 0; i < HAK_UNIT_BYTES; i++) assert_int_equal(again[i], 0);
        assert_true(free_block(run) && free_block(other) && free_block(again));
    }
}

/* A run of one unit is given up to whoever keeps units only if its tail is there. */
static void a_unit_with_a_cut_tail(void **state) {
    (void)state;
    start();
    char *run = alloc(5000);
    struct hak_place place = place_of(run);
    assert_int_not_equal(hak_large_cut_tail(hak_region_range(0), 0), 0);
    refuse_to_map();
    assert_null(hak_large_free_unit(&place));
    assert_int_equal(place_of(run).bytes, 8192);
    fake_os_refuse_nothing();
    struct hak_slab *unit = hak_large_free_unit(&place);
    assert_ptr_equal(unit, place.slab);
    assert_ptr_equal(hak_large_use_unit(unit, HAK_UNIT_BYTES, true), run);
}

static char *mapping_met;
static void look_at_mapping(void) {
    fake_os.at_map_at = NULL;
    assert_int_equal(place_of(mapping_met).kind, HAK_PLACE_MAPPING);
}

/* The kernel puts a large object's own mapping where units were unmapped. Who is about to try whether they can be mapped
 * again hides it from nobody; and where it was met, units are nobody's from then on (R4). */
static void mapped_where_units_are_absent(void **state) {
    (void)state;
    start();
    char *run = hak_large_alloc(2 * HAK_MIB, HAK_SUPER_SLAB_BYTES, false), *next = alloc(2 * HAK_MIB);
    assert_ptr_equal(next, run + 2 * HAK_MIB);
    assert_true(free_block(run) && free_block(next));
    hak_region_unmap_units(SIZE_MAX);
    fake_os.next_start = run;
    char *mapping = alloc(3 * HAK_MIB);
    assert_ptr_equal(mapping, run);
    assert_int_equal(place_of(mapping).kind, HAK_PLACE_MAPPING);
    struct hak_place inside = hak_region_find((uintptr_t)mapping + 3 * HAK_MIB - 1);
    assert_int_equal(inside.kind, HAK_PLACE_MAPPING);
    assert_ptr_equal(inside.start, mapping);
    fill(mapping, 3 * HAK_MIB);
    mapping_met = mapping;
    fake_os.at_map_at = look_at_mapping;
    char *other = alloc(HAK_MIB), *span = alloc(2 * HAK_MIB);
    assert_null(fake_os.at_map_at);
    assert_true(other >= mapping + 3 * HAK_MIB && span != NULL);
    fill(other, HAK_MIB);
    fill(span, 2 * HAK_MIB);
    check(mapping, 3 * HAK_MIB);
    assert_true(free_block(mapping) && free_block(other) && free_block(span));
    hak_mapping_cache_purge();
    hak_region_unmap_units(SIZE_MAX);
    char *again = alloc(2 * HAK_MIB);
    assert_true(again >= mapping + 3 * HAK_MIB && free_block(again));
    hak_region_unmap_units(SIZE_MAX);
    size_t calls = fake_os.call_count[FAKE_MAP_AT];
    assert_ptr_equal(alloc(2 * HAK_MIB), again);
    assert_true(fake_os.call_count[FAKE_MAP_AT] - calls <= 2); /* nobody tries there again */
}

/* A long run that can't grow where it is becomes a mapping: its pages move, its units are free and zero. */
static void runs_become_mappings(void **state) {
    (void)state;
    start();
    char *run = alloc(HAK_MIB), *next = alloc(HAK_MIB / 4);
    assert_ptr_equal(next, run + HAK_MIB);
    fill(run, HAK_MIB);
    assert_ptr_equal(resize(run, HAK_MIB - 4097), run); /* a page behind it is dirty */
    char *moved = resize(run, 3 * HAK_MIB / 2 + 1);
    assert_non_null(moved);
    struct hak_place place = place_of(moved);
    assert_int_equal(place.kind, HAK_PLACE_MAPPING);
    assert_int_equal(place.bytes, 3 * HAK_MIB / 2 + 4096);
    check(moved, HAK_MIB - 4097);
    assert_int_equal(moved[place.bytes - 1], 0);
    assert_int_equal(hak_region_find((uintptr_t)run).kind, HAK_PLACE_FOREIGN);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_ptr_equal(hak_large_alloc(HAK_MIB, 16, true), run);
    for (size_t i = 0; i < HAK_MIB; i += 4096) assert_int_equal(run[i], 0);
    assert_true(free_block(moved));
    assert_true(free_block(run));
    assert_true(free_block(next));
}

/* Where free memory abounds, a run that grows by much is to be copied into it; in small steps, or where little is free,
 * its pages move. */
static void runs_to_be_copied(void **state) {
    (void)state;
    start();
    char *run = alloc(HAK_MIB), *next = alloc(HAK_MIB / 4), *others[3];
    assert_ptr_equal(next, run + HAK_MIB);
    for (int i = 0; i < 3; i++) others[i] = alloc(HAK_MIB);
    for (int i = 0; i < 3; i++) assert_true(free_block(others[i]));
    fill(run, HAK_MIB);
    assert_null(resize(run, 3 * HAK_MIB / 2));
    assert_int_equal(place_of(run).bytes, HAK_MIB);
    check(run, HAK_MIB);
    char *moved = resize(run, HAK_MIB * 5 / 4 - 4096);
    assert_int_equal(place_of(moved).kind, HAK_PLACE_MAPPING);
    check(moved, HAK_MIB);
}

static void runs_to_be_moved(void **state) {
    (void)state;
    start();
    char *large = alloc(3 * HAK_MIB / 2), *behind = alloc(HAK_MIB / 4), *free_runs[8];
    for (int i = 0; i < 8; i++) free_runs[i] = alloc(2 * HAK_MIB);
    for (int i = 0; i < 8; i++) assert_true(free_block(free_runs[i]));
    assert_int_equal(place_of(resize(large, 3 * HAK_MIB)).kind, HAK_PLACE_MAPPING); /* which it would be anyway */
    assert_true(free_block(behind));
    hak_region_purge_units(UINT64_MAX, true);
    char *run = alloc(HAK_MIB), *next = alloc(HAK_MIB / 4);
    assert_ptr_equal(next, run + HAK_MIB);
    char *other = alloc(2 * HAK_MIB);
    assert_true(free_block(other)); /* a third less would do for twice as much */
    assert_int_equal(place_of(resize(run, 3 * HAK_MIB / 2)).kind, HAK_PLACE_MAPPING);
}

/* Whichever of its calls is refused, the run keeps its contents, and no mapping is left over. */
static void refused_moves_of_runs(void **state) {
    (void)state;
    start();
    char *run = alloc(HAK_MIB), *next = alloc(HAK_MIB / 4), *other = alloc(5 * HAK_MIB);
    assert_ptr_equal(next, run + HAK_MIB);
    fill(run, HAK_MIB);
    assert_true(free_block(other)); /* the leaf is there */
    hak_mapping_cache_purge();
    size_t mapped = fake_os.mapped_bytes;
    static const enum fake_call_kind kinds[] = {FAKE_RESERVE, FAKE_MOVE_PAGES, FAKE_MOVE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fake_os_refuse(kinds[i], 1, SIZE_MAX);
        assert_null(resize(run, 2 * HAK_MIB));
        fake_os_refuse_nothing();
        check(run, HAK_MIB);
        assert_int_equal(place_of(run).bytes, HAK_MIB);
        assert_int_equal(fake_os.mapped_bytes, mapped);
        assert_int_equal(hak_atomic_load(&hak_mapping_count, relaxed), 0);
    }
    assert_non_null(resize(run, 2 * HAK_MIB));
}

static void resizing_mappings(void **state) {
    (void)state;
    start();
    char *block = alloc(4 * HAK_MIB);
    fill(block, 4 * HAK_MIB);
    assert_ptr_equal(resize(block, 4 * HAK_MIB - 1), block);
    assert_ptr_equal(resize(block, 3 * HAK_MIB), block);
    assert_int_equal(place_of(block).bytes, 3 * HAK_MIB);
    assert_ptr_equal(resize(block, 4 * HAK_MIB), block); /* its old room is free */
    check(block, 3 * HAK_MIB);
    assert_int_equal(block[4 * HAK_MIB - 1], 0);

    fake_os.grows_in_place = false;
    char *moved = resize(block, 9 * HAK_MIB);
    assert_non_null(moved);
    assert_ptr_not_equal(moved, block);
    check(moved, 3 * HAK_MIB);
    fill(moved, 9 * HAK_MIB);
    assert_false(hak_region_covers((uintptr_t)block));
    assert_int_equal(place_of(moved).bytes, 9 * HAK_MIB);
    assert_true(hak_region_covers((uintptr_t)moved + 9 * HAK_MIB - 1));
    assert_null(resize(moved, 100)); /* better copied */
    assert_int_equal(place_of(moved).bytes, 9 * HAK_MIB);
    assert_ptr_equal(resize(moved, 100000), moved); /* never copied */
    assert_int_equal(place_of(moved).bytes, 102400);
    assert_true(free_block(moved));
}

/* Growth that is refused at any of its calls changes nothing. Shrinking that is refused still succeeds. */
static void refused_resizes(void **state) {
    (void)state;
    start();
    char *block = alloc(4 * HAK_MIB);
    fill(block, 4 * HAK_MIB);
    fake_os.grows_in_place = false;
    size_t mapped = fake_os.mapped_bytes, refused = 0;
    for (size_t call = 1; call <= 3; call++) {
        fake_os_refuse(FAKE_ANY, call, SIZE_MAX);
        char *moved = resize(block, 5 * HAK_MIB);
        fake_os_refuse_nothing();
        assert_null(moved);
        refused++;
        check(block, 4 * HAK_MIB);
        assert_int_equal(place_of(block).bytes, 4 * HAK_MIB);
        assert_int_equal(fake_os.mapped_bytes, mapped);
    }
    assert_int_equal(refused, 3);
    fake_os_refuse(FAKE_REMAP, 1, SIZE_MAX);
    assert_ptr_equal(resize(block, 2 * HAK_MIB), block);
    assert_int_equal(place_of(block).bytes, 4 * HAK_MIB);
    check(block, 4 * HAK_MIB);
}

/* When nothing can be mapped, units serve, also more of them than a SuperSlab has. */
static void runs_in_place_of_mappings(void **state) {
    (void)state;
    start();
    fake_os_refuse(FAKE_MAP, 1, SIZE_MAX);
    char *block = alloc(5 * HAK_MIB);
    assert_non_null(block);
    assert_int_equal(place_of(block).kind, HAK_PLACE_RUN);
    fill(block, 5 * HAK_MIB);
    assert_int_equal(hak_region_find((uintptr_t)block + 5 * HAK_MIB - 1).start, (uintptr_t)block);
    assert_ptr_equal(resize(block, 6 * HAK_MIB), block);
    assert_ptr_equal(resize(block, HAK_MIB), block);
    check(block, HAK_MIB);
    assert_true(free_block(block));
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    assert_ptr_equal(alloc(6 * HAK_MIB), block);
    assert_null(alloc(6 * HAK_MIB));
}

/* And mappings where there is no room for a run. */
static void mappings_in_place_of_runs(void **state) {
    (void)state;
    start();
    fake_os_refuse(FAKE_MAP_AT, 1, SIZE_MAX);
    char *block = alloc(HAK_MIB);
    assert_int_equal(place_of(block).kind, HAK_PLACE_MAPPING);
    fill(block, HAK_MIB);
    assert_true(free_block(block));
}

/* Without memory for the directory's leaf a mapping could not be found again. */
static void no_leaf(void **state) {
    (void)state;
    start();
    fake_os_refuse(FAKE_MAP, 2, 2);
    char *block = alloc(5 * HAK_MIB);
    assert_int_equal(place_of(block).kind, HAK_PLACE_RUN);
    assert_int_equal(fake_os.call_count[FAKE_UNMAP], 1);
    assert_int_equal(place_of(alloc(5 * HAK_MIB)).kind, HAK_PLACE_MAPPING);
}

UNIT_MAIN(cmocka_unit_test(kinds), cmocka_unit_test(never_to_be_met), cmocka_unit_test(counted_by_octaves),
          cmocka_unit_test(alignments), cmocka_unit_test(alignments_of_spans), cmocka_unit_test(cleared),
          cmocka_unit_test(cleared_by_the_kernel), cmocka_unit_test(not_cleared), cmocka_unit_test(freeing_twice),
          cmocka_unit_test(steady_state_makes_no_calls), cmocka_unit_test(resizing_runs), cmocka_unit_test(tails),
          cmocka_unit_test(cut_tails), cmocka_unit_test(freed_with_a_cut_tail),
          cmocka_unit_test(a_unit_with_a_cut_tail), cmocka_unit_test(mapped_where_units_are_absent),
          cmocka_unit_test(runs_become_mappings), cmocka_unit_test(runs_to_be_copied),
          cmocka_unit_test(runs_to_be_moved), cmocka_unit_test(refused_moves_of_runs),
          cmocka_unit_test(resizing_mappings), cmocka_unit_test(refused_resizes),
          cmocka_unit_test(runs_in_place_of_mappings), cmocka_unit_test(mappings_in_place_of_runs),
          cmocka_unit_test(no_leaf))

/* region/page_policy.h: which memory is asked for ahead, as huge pages or populated; how many mappings that may cost. */
#include "unit.h"

#include <string.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "base/memory.h"
#include "region/decay.h"
#include "region/directory.h"
#include "region/heap_count.h"
#include "region/page_policy.h"
#include "region/region.h"

static uint64_t dirty(void) { return hak_atomic_load(&hak_dirty_units, relaxed); }

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static bool is_handed_out; /* what the samples among SuperSlabs have is in use: a slab of large blocks in each unit */

static void hand_out(struct hak_slab *slab) {
    uint32_t super_slab = hak_region_unit_of(hak_region_range(0), slab) / HAK_UNITS_PER_SUPER_SLAB;
    if (!is_handed_out || super_slab % 16 != 4) return;
    struct hak_range *range = hak_region_range(0);
    void *blocks[2 * 8];
    uint32_t size_class = hak_size_class_of(8192);
    hak_slab_initialize(slab, hak_region_start_of(range, slab), size_class,
                        range->bit_rows[hak_region_unit_of(range, slab)], hak_slab_state(HAK_SLAB_HELD, 1));
    hak_region_mark(slab, 1, size_class);
    assert_int_equal(hak_slab_take(slab, blocks + 8, 8), 8);
}

/* A heap of so many SuperSlabs, all taken by slabs. */
static struct hak_slab *grow(uint32_t super_slabs) {
    struct hak_slab *first = NULL;
    for (uint32_t i = 0; i < super_slabs * 32; i++) {
        struct hak_slab *slab = hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false);
        if (slab == NULL) slab = hak_region_acquire(1, 1, HAK_UNITS_FREE, false);
        if (slab == NULL) slab = hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
        assert_non_null(slab);
        hand_out(slab);
        if (i == 0) first = slab;
    }
    return first;
}

static void start_growing(void) {
    fake_os.has_huge_pages = true;
    is_handed_out = true;
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    fake_os_forget();
}

static uint64_t count_of(enum fake_call_kind kind) { return fake_os.call_count[kind]; }

/* Huge pages that are to be none any more: what is mapped anew is told so, too. */
static uint64_t revoked(void) { return count_of(FAKE_NO_HUGE) - count_of(FAKE_MAP_AT); }

static void huge_pages_for_dense_growth(void **state) {
    (void)state;
    start_growing();
    grow(8);
    assert_int_equal(count_of(FAKE_HUGE), 0); /* the heap is small */
    grow(12);
    assert_int_equal(count_of(FAKE_HUGE), 12);
    grow(1);
    assert_int_equal(count_of(FAKE_HUGE), 12); /* the sample */
    grow(64 - 21);
    assert_int_equal(count_of(FAKE_HUGE), 12 + 43 - 2);
    grow(3 * 64);
    assert_int_equal(count_of(FAKE_HUGE), 12 + 43 - 2 + 3 * 63);
    assert_int_equal(count_of(FAKE_POPULATE), 0);
    assert_int_equal(dirty(), 0);
}

/* Of an eighth of the limit of memory at most is taken what nobody may touch. */
static void dense_growth_within_a_limit(void **state) {
    (void)state;
    start_growing();
    hak_atomic_store(&hak_memory_limit_bytes, 8 * 16 * HAK_SUPER_SLAB_BYTES, relaxed);
    grow(100);
    assert_int_equal(count_of(FAKE_HUGE), 16 - 8);
    assert_int_equal(count_of(FAKE_POPULATE), 0);
}

/* Where threads are many, their bins have most of what slabs have handed out: it says nothing of what is touched. */
static void many_heaps(void **state) {
    (void)state;
    start_growing();
    hak_atomic_store(&hak_few_heaps, 4, relaxed);
    hak_atomic_store(&hak_heaps_about, 5, relaxed);
    grow(100);
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_POPULATE), 0);
    hak_atomic_store(&hak_heaps_about, 4, relaxed);
    grow(1);
    assert_int_equal(count_of(FAKE_HUGE), 1);
}

/* What a huge page takes is seen when it is first touched: that is at once. Small pages serve for a while when it took
 * too long, as where there are none. */
static void slow_huge_pages(void **state) {
    (void)state;
    start_growing();
    grow(8);
    assert_int_equal(fake_os.touches, 0);
    fake_os.touch_ms = 1000;
    grow(1);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(fake_os.touches, 1);
    grow(8);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(count_of(FAKE_POPULATE), 8);
    grow(1000);
    assert_int_equal(count_of(FAKE_HUGE), 2);
}

/* Who wants them everywhere has them, whatever they take. */
static void slow_huge_pages_that_are_wanted(void **state) {
    (void)state;
    start_growing();
    hak_atomic_store(&hak_knobs.huge_page_mode, HAK_HUGE_ON, relaxed);
    fake_os.touch_ms = 1000;
    grow(100);
    assert_int_equal(count_of(FAKE_HUGE), 100);
    assert_int_equal(count_of(FAKE_POPULATE), 0);
}

/* What is left of a huge page is dirty, and goes back when it is not used; then it is a huge page no more. */
static void rest_of_a_huge_page(void **state) {
    (void)state;
    start_growing();
    grow(8);
    struct hak_slab *slab = hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(dirty(), 31);
    assert_ptr_equal(hak_region_acquire(28, 1, HAK_UNITS_DIRTY, false), slab + 1);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, false), 0); /* too little to give the huge page up for */
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), 3 * HAK_UNIT_BYTES);
    assert_int_equal(revoked(), 1);
    assert_int_equal(count_of(FAKE_BREAK), 1);
    hak_region_release(slab, 29);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, false), 29 * HAK_UNIT_BYTES);
    assert_int_equal(revoked(), 1); /* known */
    assert_int_equal(count_of(FAKE_BREAK), 1);
    assert_ptr_equal(hak_region_acquire(1, 1, HAK_UNITS_FREE, false), slab); /* growth once more */
    assert_int_equal(count_of(FAKE_HUGE), 2);
    hak_region_release(slab, 1);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, false), HAK_SUPER_SLAB_BYTES);
    assert_int_equal(count_of(FAKE_BREAK), 1); /* a whole one needn't be broken */
}

static void holes_break_huge_pages(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *slab = grow(9) + 8 * 32;
    uintptr_t page = hak_region_start_of(hak_region_range(0), slab) + 4096;
    assert_true(hak_region_purge_pages(page, 4096));
    assert_int_equal(revoked(), 1);
    assert_int_equal(count_of(FAKE_BREAK), 1);
    assert_true(hak_region_purge_pages(page, 4096));
    assert_int_equal(count_of(FAKE_BREAK), 1);
}

/* Every sample decides for the SuperSlabs that follow it. */
static void no_huge_pages_for_sparse_heaps(void **state) {
    (void)state;
    start_growing();
    is_handed_out = false;
    grow(40);
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_POPULATE), 0);
    is_handed_out = true;
    grow(16);
    assert_int_equal(count_of(FAKE_HUGE), 0); /* the sample before was sparse */
    struct hak_slab *slab = grow(1);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    struct hak_slab *sample = hak_region_range(0)->slabs + 52 * 32;
    hak_region_mark(sample, 32, HAK_CLASS_NONE);
    hak_region_release(slab, 32);
    hak_region_purge_units(UINT64_MAX, true);
    assert_ptr_equal(grow(1), slab);
    assert_int_equal(revoked(), 1);                       /* it was dense once */
    hak_region_acquire(8, 1, HAK_UNITS_NEW_SUPER, false); /* not for slabs */
    assert_int_equal(count_of(FAKE_HUGE), 1);
}

static void none_when_memory_is_tight(void **state) {
    (void)state;
    start_growing();
    hak_atomic_store(&hak_memory_is_tight, true, relaxed);
    hak_atomic_store(&hak_knobs.lazy_purge_mode, 1, relaxed);
    hak_region_release(grow(20), 32);
    hak_region_purge_units(UINT64_MAX, true);
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_POPULATE) + count_of(FAKE_LAZY_PURGE), 0);
    assert_int_equal(count_of(FAKE_PURGE), 1);
}

/* Without huge pages: windows of one part in 32 of the heap. */
static void fault_ahead(void **state) {
    (void)state;
    start_growing();
    fake_os.has_huge_pages = false;
    grow(8);
    assert_int_equal(count_of(FAKE_POPULATE), 0);
    fake_os_forget();
    struct hak_slab *slab = hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    const struct fake_call *call = &fake_os.calls[fake_os.call_count[FAKE_ANY] - 1];
    assert_int_equal(call->kind, FAKE_POPULATE);
    assert_int_equal(call->bytes, 8 * HAK_UNIT_BYTES);
    assert_int_equal(call->start, hak_region_start_of(hak_region_range(0), slab));
    assert_int_equal(dirty(), 7);
    grow(56);
    fake_os_forget();
    hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    assert_int_equal(fake_os.calls[fake_os.call_count[FAKE_ANY] - 1].bytes, HAK_SUPER_SLAB_BYTES);
    fake_os_refuse(FAKE_POPULATE, 1, 1);
    uint64_t before = dirty();
    hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    assert_int_equal(dirty(), before);
    hak_atomic_store(&hak_knobs.fault_ahead_share, 0, relaxed);
    fake_os_forget();
    hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    assert_int_equal(count_of(FAKE_POPULATE), 0);
}

/* ---- Using again ------------------------------------------------------------------------------------------------- */

enum { FIRST_LOOK = 8 };

/* Gives the first `super_slabs` contents in all of their pages. */
static void touch(uint32_t super_slabs) {
    char *memory = (char *)hak_region_range(0)->start;
    for (size_t at = 0; at < super_slabs * HAK_SUPER_SLAB_BYTES; at += fake_os.page_bytes) memory[at + at % 4093] = 1;
}

/* `count` runs of a whole SuperSlab, one after the other. */
static void use_again(uint32_t count, bool clear) {
    for (uint32_t i = 0; i < count; i++) hak_region_release(hak_region_acquire(32, 1, HAK_UNITS_DIRTY, clear), 32);
}

static void huge_pages_for_what_is_used_again(void **state) {
    (void)state;
    start_growing();
    hak_region_release(grow(2), 32);
    uint64_t *memory = (uint64_t *)hak_region_start_of(hak_region_range(0), hak_region_range(0)->slabs);
    touch(1);
    use_again(FIRST_LOOK - 1, false);
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_PURGE), 0);
    use_again(1, true);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(count_of(FAKE_PURGE), 1);
    assert_int_equal(memory[0], 0);
    assert_int_equal(dirty(), 32);
    memory[HAK_SUPER_SLAB_BYTES / sizeof *memory - 1] = 1;
    use_again(3 * FIRST_LOOK, false); /* it is one */
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_PURGE), 2);
    use_again(1, true);
    assert_int_equal(memory[HAK_SUPER_SLAB_BYTES / sizeof *memory - 1], 0);
}

static void slow_when_used_again(void **state) {
    (void)state;
    start_growing();
    hak_region_release(grow(2), 64);
    touch(2);
    fake_os.touch_ms = 1000;
    use_again(FIRST_LOOK, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    struct hak_slab *first = hak_region_acquire(32, 1, HAK_UNITS_DIRTY, false);
    for (uint32_t i = 0; i < FIRST_LOOK; i++) use_again(1, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    hak_region_release(first, 32);
}

/* Slabs use it, a unit at a time: the rest of it is free as before. */
static void slabs_use_it_again(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(2);
    hak_region_release(first, 64);
    touch(1);
    use_again(FIRST_LOOK - 1, false);
    uint64_t *memory = (uint64_t *)hak_region_start_of(hak_region_range(0), first);
    assert_ptr_equal(hak_region_acquire(1, 1, HAK_UNITS_DIRTY, true), first);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(count_of(FAKE_PURGE), 1);
    assert_int_equal(memory[0], 0);
    assert_int_equal(dirty(), 63);
    assert_ptr_equal(hak_region_acquire(31, 1, HAK_UNITS_DIRTY, false), first + 1);
}

/* Meanwhile others would find nothing. */
static void slabs_leave_something(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(2);
    hak_region_release(first, 63);
    touch(1);
    for (uint32_t i = 0; i < 2 * FIRST_LOOK; i++)
        hak_region_release(hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false), 1);
    assert_int_equal(count_of(FAKE_HUGE), 0);
    hak_region_release(first + 63, 1);
    for (uint32_t i = 0; i < 2 * FIRST_LOOK; i++)
        hak_region_release(hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false), 1);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(count_of(FAKE_PURGE), 1);
}

static void half_of_it_is_used_again(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(3);
    hak_region_release(first, 16);
    hak_region_release(first + 32, 64);
    touch(3);
    for (uint32_t i = 0; i < 2 * FIRST_LOOK; i++) {
        assert_ptr_equal(hak_region_acquire(16, 1, HAK_UNITS_DIRTY, false), first);
        hak_region_release(first, 16);
    }
    assert_int_equal(count_of(FAKE_HUGE), 0);
}

/* A run grows into it, and keeps what it had. */
static void a_run_grows_into_it(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(3);
    uint64_t *memory = (uint64_t *)hak_region_start_of(hak_region_range(0), first);
    touch(3);
    for (uint32_t i = 0; i < FIRST_LOOK; i++) {
        hak_region_release(first + 32, 64);
        assert_true(hak_region_extend(first, 32, 64));
    }
    assert_int_equal(count_of(FAKE_PURGE), 2);
    assert_int_equal(memory[0], 1);
}

/* Purged it is as any other: who touches a page of a long run gets a page, and its uses are counted anew. */
static void purged_after_it_was_huge(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(1);
    hak_region_release(first, 32);
    touch(1);
    use_again(FIRST_LOOK, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, false), HAK_SUPER_SLAB_BYTES);
    assert_int_equal(revoked(), 1);
    assert_int_equal(count_of(FAKE_BREAK), 0);
    assert_ptr_equal(hak_region_acquire(32, 1, HAK_UNITS_FREE, false), first);
    touch(1);
    hak_region_release(first, 32);
    use_again(FIRST_LOOK - 1, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    use_again(1, false);
    assert_int_equal(count_of(FAKE_HUGE), 2);
}

static void spans_are_used_again(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *span = hak_region_acquire_span(64, 1, false);
    hak_region_release(span, 64);
    uint64_t *last = (uint64_t *)hak_region_start_of(hak_region_range(0), span + 63);
    for (uint32_t i = 0; i < FIRST_LOOK; i++) {
        assert_int_equal(count_of(FAKE_HUGE), 0);
        touch(2);
        last[0] = 1;
        if (i == FIRST_LOOK - 1) fake_os_refuse(FAKE_PURGE, 2, 1); /* of the second one */
        assert_ptr_equal(hak_region_acquire_span(64, 1, i == FIRST_LOOK - 1), span);
        if (i == FIRST_LOOK - 1) assert_int_equal(last[0], 0);
        hak_region_release(span, 64);
    }
    assert_int_equal(count_of(FAKE_HUGE), 2);
    assert_int_equal(count_of(FAKE_PURGE), 2);
}

static void none_for_what_is_sparse(void **state) {
    (void)state;
    start_growing();
    hak_region_release(grow(1), 32);
    touch(1);
    memset((char *)hak_region_range(0)->start + HAK_SUPER_SLAB_BYTES / 8 * 7, 0, HAK_SUPER_SLAB_BYTES / 8);
    use_again(300, false);
    touch(1);
    use_again(1000, false); /* nobody looks any more */
    assert_int_equal(count_of(FAKE_HUGE), 0);
    hak_region_purge_units(UINT64_MAX, false);
    fake_os_forget();
    hak_region_release(hak_region_acquire(32, 1, HAK_UNITS_FREE, false), 32);
    touch(1);
    hak_atomic_store(&hak_memory_is_tight, true, relaxed);
    use_again(2 * FIRST_LOOK, false);
    hak_atomic_store(&hak_memory_is_tight, false, relaxed);
    hak_page_policy_configure(HAK_HUGE_OFF, 0, 0);
    use_again(2 * FIRST_LOOK, false);
    hak_page_policy_configure(HAK_HUGE_AUTO, 0, 0);
    fake_os.has_huge_pages = false;
    use_again(2 * FIRST_LOOK, false);
    assert_int_equal(count_of(FAKE_HUGE) + count_of(FAKE_PURGE), 0);
}

/* The kernel asked in vain leaves things as they are. */
static void refused_when_used_again(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *first = grow(1);
    uint64_t *memory = (uint64_t *)hak_region_start_of(hak_region_range(0), first);
    hak_region_release(first, 32);
    use_again(FIRST_LOOK - 1, false);
    fake_os_refuse(FAKE_HUGE, 1, 1);
    touch(1);
    use_again(1, true);
    assert_int_equal(memory[0], 0);
    assert_int_equal(count_of(FAKE_PURGE), 0);
    use_again(FIRST_LOOK - 1, false);
    assert_int_equal(count_of(FAKE_HUGE), 1);
    fake_os_refuse(FAKE_PURGE, 1, 1);
    touch(1);
    use_again(1, true);
    assert_int_equal(count_of(FAKE_HUGE), 2);
    assert_int_equal(count_of(FAKE_PURGE), 1);
    assert_int_equal(memory[0], 0);
    assert_int_equal(dirty(), 32);
}

static void modes(void **state) {
    (void)state;
    start_growing();
    hak_page_policy_configure(HAK_HUGE_ON, 0, 0);
    grow(6);
    assert_int_equal(count_of(FAKE_HUGE), 6);
    hak_page_policy_configure(HAK_HUGE_OFF, 1, 0);
    grow(2);
    assert_int_equal(count_of(FAKE_HUGE), 6);
    assert_int_equal(count_of(FAKE_POPULATE), 2);
    hak_page_policy_configure(HAK_HUGE_OFF, 0, 0);
    grow(20);
    assert_int_equal(count_of(FAKE_HUGE), 6);
}

/* Purged lazily, units count as fresh; but what is to be zero is made so. */
static void lazy_purges(void **state) {
    (void)state;
    start_growing();
    struct hak_slab *slab = grow(1);
    char *memory = (char *)hak_region_start_of(hak_region_range(0), slab);
    memory[100] = 1;
    hak_atomic_store(&hak_knobs.lazy_purge_mode, 1, relaxed);
    hak_region_release(slab, 32);
    assert_int_equal(hak_region_purge_units(UINT64_MAX, true), HAK_SUPER_SLAB_BYTES);
    assert_int_equal(count_of(FAKE_LAZY_PURGE), 1);
    assert_int_equal(dirty(), 0);
    assert_ptr_equal(hak_region_acquire(32, 1, HAK_UNITS_FREE, true), slab);
    assert_int_equal(memory[100], 0);
    assert_int_equal(count_of(FAKE_PURGE), 1);
    assert_true(hak_region_purge_pages((uintptr_t)memory, 4096)); /* holes read as zero: at once */
    assert_int_equal(count_of(FAKE_PURGE), 2);
}

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

/* Half of what kernels allow, less what the policy sets aside, and `left`. */
static void use_mappings(uintptr_t left) {
    for (uintptr_t i = 0; i < 65530 / 2 - 256 - left; i++)
        hak_directory_set(((uintptr_t)1 << 41) + i * HAK_GRANULE_BYTES, hak_entry_for_mapping(4096));
}

static void borders_within_the_budget(void **state) {
    (void)state;
    start_growing();
    use_mappings(4);
    struct hak_slab *first = grow(100);
    uint64_t asked = count_of(FAKE_HUGE);
    assert_int_equal(asked, 12 + 15);      /* two stretches, two borders each; then no more of them */
    for (uint32_t i = 9; i < 19; i += 2) { /* holes inside of a stretch: all of it is given up at once */
        hak_region_release(first + i * 32, 4);
        hak_region_purge_units(UINT64_MAX, true);
    }
    assert_int_equal(revoked(), 1);
    assert_int_equal(count_of(FAKE_BREAK),
                     5); /* each is broken when something of it goes back: the others' advice broke none */
    hak_region_release(first + 9 * 32 + 8, 4);
    hak_region_purge_units(UINT64_MAX, true);
    assert_int_equal(count_of(FAKE_BREAK), 5); /* once */
}

static void large_objects_within_the_budget(void **state) {
    (void)state;
    start_growing();
    use_mappings(3);
    uintptr_t at = (uintptr_t)1 << 40;
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(hak_page_policy_may_map());
        hak_directory_set(at + i * HAK_GRANULE_BYTES, hak_entry_for_mapping(4096));
    }
    assert_false(hak_page_policy_may_map());
    hak_directory_set(at, HAK_ENTRY_NONE);
    assert_true(hak_page_policy_may_map());
}

/* As absent, or in use. */
static void mark(const struct hak_slab *unit, bool absent) {
    struct hak_range *range = hak_region_range(0);
    uint32_t number = hak_region_unit_of(range, unit);
    uint64_t bit = (uint64_t)1 << number % 32, both = bit | bit << 32;
    HAK_ATOMIC(uint64_t) *word = &range->super_slabs[number / 32].free_units;
    if (absent) hak_atomic_fetch_or(word, both, relaxed);
    else hak_atomic_fetch_and(word, ~both, relaxed);
}

/* So many parts of SuperSlabs can be unmapped, every second unit of those that a slab has. */
static uint32_t unmap_all(const struct hak_slab *first, uint32_t units) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < units; i += 2) {
        struct hak_range *range = hak_region_range(0);
        if (!hak_page_policy_unmap(range, hak_region_start_of(range, first + i), HAK_UNIT_BYTES)) break;
        mark(first + i, true);
        count++;
    }
    return count;
}

static void map_all(const struct hak_slab *first, uint32_t count, bool in_the_middle) {
    for (uint32_t i = 0; i < count; i++) {
        uintptr_t start = hak_region_start_of(hak_region_range(0), first + 2 * i);
        assert_int_equal(hak_page_policy_map_again(start, HAK_UNIT_BYTES, in_the_middle), HAK_OS_MAPPED);
        mark(first + 2 * i, false);
    }
}

/* A heap of units that are in use, without borders, when `left` mappings more may be made. */
static struct hak_slab *start_with_units(uint32_t units, uintptr_t left) {
    start_growing();
    is_handed_out = false;
    struct hak_slab *first = grow(units / 32);
    use_mappings(left);
    return first;
}

static void gaps_within_the_budget(void **state) {
    enum { UNITS = 20 * 32, LEFT = 100 };
    (void)state;
    struct hak_slab *first = start_with_units(UNITS, LEFT);
    assert_int_equal(unmap_all(first, UNITS), LEFT);
    assert_false(hak_page_policy_may_cut());
    map_all(first, LEFT / 4, true);
    hak_directory_set(((uintptr_t)1 << 41), HAK_ENTRY_NONE); /* one mapping less changes nothing */
    assert_false(hak_page_policy_may_map());
}

/* In a child each part that is mapped again may be three mappings where there was one. */
static void gaps_of_a_child(void **state) {
    enum { UNITS = 20 * 32, LEFT = 100 };
    (void)state;
    struct hak_slab *first = start_with_units(UNITS, LEFT);
    hak_page_policy_after_fork();
    assert_int_equal(unmap_all(first, UNITS), LEFT / 2);
    map_all(first, LEFT / 2, false);
    assert_int_equal(unmap_all(first, UNITS), 0);
}

/* What is unmapped again is a gap, and no mapping of its own any more: a child may go on so for ever. */
static void gaps_come_and_go(void **state) {
    enum { UNITS = 80 * 32, LEFT = 4000, ROUNDS = 20 };
    (void)state;
    struct hak_slab *first = start_with_units(UNITS, LEFT);
    hak_page_policy_after_fork();
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(unmap_all(first, UNITS), UNITS / 2);
        map_all(first, UNITS / 2, false);
        if (round % 2 != 0) continue;
        assert_int_equal(unmap_all(first, UNITS / 4), UNITS / 8);
        map_all(first, UNITS / 8, false);
    }
}

/* The kernel has no mapping left for a SuperSlab beside huge ones: they are given up. */
static void merging(void **state) {
    (void)state;
    start_growing();
    assert_false(hak_page_policy_merge_mappings());
    grow(30);
    fake_os_forget();
    fake_os_refuse(FAKE_MAP_AT, 1, 1);
    grow(1);
    assert_int_equal(count_of(FAKE_MAP_AT), 2);
    const struct hak_super_slab_group *group = &hak_region_range(0)->groups[0];
    assert_int_equal(hak_bit_count(hak_atomic_load(&group->huge, relaxed)), 1); /* the new one */
    assert_int_equal(count_of(FAKE_HUGE), 1);
    fake_os_refuse(FAKE_NO_HUGE, 1, 1);
    assert_false(hak_page_policy_merge_mappings());
    assert_true(hak_page_policy_merge_mappings());
    assert_false(hak_page_policy_merge_mappings());
    /* They have their huge pages still, which are broken when a part is to go back, and not for a small part. */
    struct hak_range *range = hak_region_range(0);
    fake_os_forget();
    assert_false(hak_page_policy_may_break(range, 10, HAK_UNIT_BYTES));
    for (uintptr_t i = 0; i < 3; i++)
        assert_true(hak_page_policy_purge(range, range->start + 10 * HAK_SUPER_SLAB_BYTES + i * HAK_UNIT_BYTES,
                                          HAK_UNIT_BYTES, false));
    assert_int_equal(count_of(FAKE_BREAK), 1);
    assert_int_equal(count_of(FAKE_NO_HUGE), 0);
    assert_true(hak_page_policy_may_break(range, 10, HAK_UNIT_BYTES));
    assert_true(hak_page_policy_purge(range, range->start + 11 * HAK_SUPER_SLAB_BYTES, HAK_SUPER_SLAB_BYTES, false));
    assert_true(hak_page_policy_purge(range, range->start + 11 * HAK_SUPER_SLAB_BYTES, HAK_UNIT_BYTES, false));
    assert_int_equal(count_of(FAKE_BREAK), 1); /* all of it was gone */
}

/* A part of a range whose page tables are moved is one mapping. */
static void one_mapping(void **state) {
    (void)state;
    start_growing();
    grow(12);
    struct hak_range *range = hak_region_range(0);
    fake_os_forget();
    hak_page_policy_make_one_mapping(range, range->start, 8 * HAK_SUPER_SLAB_BYTES);
    hak_page_policy_make_one_mapping(range, range->start + 8 * HAK_SUPER_SLAB_BYTES, 4 * HAK_SUPER_SLAB_BYTES);
    assert_int_equal(revoked(), 0);
    hak_page_policy_make_one_mapping(range, range->start + 7 * HAK_SUPER_SLAB_BYTES, HAK_SUPER_SLAB_BYTES + 1);
    assert_int_equal(revoked(), 1);
    assert_int_equal(fake_os.calls[0].bytes, 2 * HAK_SUPER_SLAB_BYTES);
    hak_page_policy_make_one_mapping(range, range->start + 7 * HAK_SUPER_SLAB_BYTES, HAK_SUPER_SLAB_BYTES + 1);
    assert_int_equal(revoked(), 1);
    assert_true(hak_page_policy_purge(range, range->start + 8 * HAK_SUPER_SLAB_BYTES, HAK_UNIT_BYTES, false));
    assert_int_equal(count_of(FAKE_BREAK), 1);
}

UNIT_MAIN(cmocka_unit_test(huge_pages_for_dense_growth), cmocka_unit_test(dense_growth_within_a_limit),
          cmocka_unit_test(rest_of_a_huge_page), cmocka_unit_test(many_heaps), cmocka_unit_test(slow_huge_pages),
          cmocka_unit_test(slow_huge_pages_that_are_wanted), cmocka_unit_test(slow_when_used_again),
          cmocka_unit_test(holes_break_huge_pages), cmocka_unit_test(no_huge_pages_for_sparse_heaps),
          cmocka_unit_test(none_when_memory_is_tight), cmocka_unit_test(fault_ahead),
          cmocka_unit_test(huge_pages_for_what_is_used_again), cmocka_unit_test(slabs_use_it_again),
          cmocka_unit_test(slabs_leave_something), cmocka_unit_test(half_of_it_is_used_again),
          cmocka_unit_test(a_run_grows_into_it), cmocka_unit_test(purged_after_it_was_huge),
          cmocka_unit_test(spans_are_used_again), cmocka_unit_test(none_for_what_is_sparse),
          cmocka_unit_test(refused_when_used_again), cmocka_unit_test(modes), cmocka_unit_test(lazy_purges),
          cmocka_unit_test(borders_within_the_budget), cmocka_unit_test(large_objects_within_the_budget),
          cmocka_unit_test(gaps_within_the_budget), cmocka_unit_test(gaps_of_a_child),
          cmocka_unit_test(gaps_come_and_go), cmocka_unit_test(merging), cmocka_unit_test(one_mapping))

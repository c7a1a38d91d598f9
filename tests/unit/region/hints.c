/* region/hints.h: bits per SuperSlab found from both sides, whatever the size of the range. */
#include "unit.h"

#include "fake_os.h"
#include "region/hints.h"

enum { SUPER_SLABS = 3 * 64 * 64 + 100, HINT = HAK_PARTIAL_HINT + 5 };

/* A range with tables for so many SuperSlabs, of which none is there. */
static struct hak_range *start(void) {
    hak_size_class_initialize(0);
    assert_true(hak_region_initialize());
    struct hak_range *range = hak_region_range(0);
    fake_os.address_space_room = fake_os.mapped_bytes + 512 * HAK_MIB; /* for tables, not for the heap */
    assert_null(hak_region_acquire_span(SUPER_SLABS * HAK_UNITS_PER_SUPER_SLAB, 1, false));
    assert_true(hak_atomic_load(&range->table_super_slabs, relaxed) >= SUPER_SLABS);
    hak_atomic_store(&range->super_slab_count, SUPER_SLABS, relaxed);
    return range;
}

static void none(void **state) {
    (void)state;
    struct hak_range *range = start();
    assert_int_equal(hak_hint_next(range, HINT, 0), HAK_NO_SUPER_SLAB);
    assert_int_equal(hak_hint_next(range, HINT, SUPER_SLABS), HAK_NO_SUPER_SLAB);
    assert_int_equal(hak_hint_previous(range, HINT, SUPER_SLABS), HAK_NO_SUPER_SLAB);
    assert_int_equal(hak_hint_previous(range, HINT, 0), HAK_NO_SUPER_SLAB);
}

/* Against a plain array: set and cleared at random, near the borders of words and words of words too. */
static void at_random(void **state) {
    (void)state;
    static bool set[SUPER_SLABS];
    uint64_t random = 11;
    struct hak_range *range = start();
    for (int round = 0; round < 3000; round++) {
        uint64_t pick = unit_random(&random);
        uint32_t at = (uint32_t)(pick % SUPER_SLABS);
        if (pick >> 20 & 1) at = (uint32_t)(pick % (SUPER_SLABS / 64)) * 64 + (pick >> 21 & 1 ? 63 : 0);
        if (pick >> 22 & 1) at = (uint32_t)(pick % 4) * 4096;
        if (pick >> 23 & 3) hak_hint_clear(range, HINT, at);
        else hak_hint_set(range, HINT, at);
        set[at] = (pick >> 23 & 3) == 0;
        hak_hint_set(range, HINT + 1, at); /* others are nobody's business */
        uint32_t from = (uint32_t)(unit_random(&random) % SUPER_SLABS), next = from, previous = from;
        while (next < SUPER_SLABS && !set[next]) next++;
        while (previous > 0 && !set[previous - 1]) previous--;
        assert_int_equal(hak_hint_next(range, HINT, from), next == SUPER_SLABS ? HAK_NO_SUPER_SLAB : next);
        assert_int_equal(hak_hint_previous(range, HINT, from), previous == 0 ? HAK_NO_SUPER_SLAB : previous - 1);
    }
}

/* A thread that is not in the child had set the first hint of a group, and not yet what is above it. */
static void forked_in_between(void **state) {
    (void)state;
    struct hak_range *range = start();
    hak_atomic_store(&range->groups[100].hints[HINT], 1u << 7, relaxed);
    assert_int_equal(hak_hint_next(range, HINT, 0), HAK_NO_SUPER_SLAB);
    hak_hints_recover_after_fork(range, 6407);
    assert_int_equal(hak_hint_next(range, HINT, 0), 6407);
    assert_int_equal(hak_hint_previous(range, HINT, SUPER_SLABS), 6407);
}

UNIT_MAIN(cmocka_unit_test(none), cmocka_unit_test(at_random), cmocka_unit_test(forked_in_between))

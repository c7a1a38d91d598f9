/* region/heap_count.h: how many heaps are many, and who hears of births and ends. */
#include "../pool/pool_fixture.h"

#include "region/heap_count.h"

static void few_heaps(void **state) {
    (void)state;
    fake_os.processors = 3;
    pool_start(SIZE_MAX);
    for (int i = 0; i < 6; i++) hak_heap_acquire();
    assert_false(hak_heaps_are_many());
    hak_heap_acquire();
    assert_true(hak_heaps_are_many());
}

enum { VERY_MANY_HEAPS = 8000 };

/* What every miss reads is not written by each birth and end; and is not wrong by more than an eighth. */
static void births_seldom_write_what_misses_read(void **state) {
    (void)state;
    struct hak_heap *first_heaps[10];
    pool_start_with_heaps(VERY_MANY_HEAPS, first_heaps, 10);
    uint32_t about = hak_atomic_load(&hak_heaps_about, relaxed), in_use = VERY_MANY_HEAPS, changes = 0;
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < 10; i++) hak_heap_release(first_heaps[i]);
        for (uint32_t i = 0; i < 10; i++) first_heaps[i] = hak_heap_acquire();
        assert_int_equal(hak_atomic_load(&hak_heaps_about, relaxed), about);
    }
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        hak_heap_release(heap);
        in_use--;
        uint32_t now = hak_atomic_load(&hak_heaps_about, relaxed);
        changes += now != about;
        about = now;
        assert_in_range(now, in_use - in_use / 8, in_use + in_use / 8);
    }
    assert_in_range(changes, 10, 100);
    hak_heap_set_resting(0);
    assert_int_equal(hak_atomic_load(&hak_heaps_about, relaxed), 0);
}

UNIT_MAIN(cmocka_unit_test(few_heaps), cmocka_unit_test(births_seldom_write_what_misses_read))

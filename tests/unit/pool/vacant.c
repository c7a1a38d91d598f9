/* pool/vacant.h: where heaps that no thread has are found, and that nobody looks at others for it. */
#include "pool_fixture.h"
#include "pool/vacant.h"
#include "region/heap_count.h"
#include "touched_heaps.h"

enum { VERY_MANY_HEAPS = 8000 };

static struct hak_heap *first_heaps[10]; /* the last ones of the list */
static struct hak_heap *born;

static void acquire(void) { born = hak_heap_acquire(); }
static void release(void) { hak_heap_release(born); }
static void leave(void) { hak_heap_leave(born); }

/* Whichever is free: a thread's birth looks at the heap that it gets, and its end at the one that it leaves. */
static void births_and_ends_look_at_one_heap(void **state) {
    (void)state;
    pool_start_with_heaps(VERY_MANY_HEAPS, first_heaps, 10);
    for (uint32_t i = 0; i < 10; i++) hak_heap_release(first_heaps[i]);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(touched_by(acquire), 1);
        assert_int_equal(touched_by(i % 2 == 0 ? release : leave), 1);
    }
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(touched_by(acquire), 1);
    assert_int_equal(touched_by(acquire), 0); /* one made now */
    assert_int_equal(touched_by(acquire), 0);
}

/* Who wants what kept heaps have looks at these. */
static void kept_heaps_are_found_at_once(void **state) {
    (void)state;
    pool_start_with_heaps(VERY_MANY_HEAPS, first_heaps, 10);
    assert_int_equal(touched_by(hak_heap_take_kept_apart), 0);
    hak_heap_leave(first_heaps[0]);
    hak_heap_leave(first_heaps[1]);
    assert_int_equal(pool_in_use_of(first_heaps[1]), HAK_HEAP_KEPT);
    assert_int_equal(touched_by(hak_heap_take_kept_apart), 2);
    assert_int_equal(pool_in_use_of(first_heaps[0]), HAK_HEAP_UNUSED);
    assert_int_equal(pool_in_use_of(first_heaps[1]), HAK_HEAP_UNUSED);
}

/* Two stacks, each for itself. */
static void the_last_one_first(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heaps[3];
    for (int i = 0; i < 3; i++) heaps[i] = hak_heap_acquire();
    assert_null(hak_vacant_take_unused());
    assert_false(hak_vacant_has_orphaned());
    hak_vacant_put_unused(heaps[0]);
    hak_vacant_put_unused(heaps[1]);
    hak_vacant_put_orphaned(heaps[2]);
    assert_true(hak_vacant_has_orphaned());
    assert_ptr_equal(hak_vacant_take_unused(), heaps[1]);
    assert_ptr_equal(hak_vacant_take_unused(), heaps[0]);
    assert_null(hak_vacant_take_unused());
    assert_ptr_equal(hak_vacant_take_orphaned(), heaps[2]);
    assert_null(hak_vacant_take_orphaned());
    hak_vacant_put_unused(heaps[0]);
    hak_vacant_put_orphaned(heaps[1]);
    assert_true(hak_vacant_put_kept(heaps[2]));
    hak_vacant_forget_all();
    assert_null(hak_vacant_take_unused());
    assert_null(hak_vacant_take_orphaned());
    assert_int_equal(hak_vacant_count_kept(), 0);
}

/* As many as there are, and one that is removed makes room. */
static void places(void **state) {
    (void)state;
    pool_start(SIZE_MAX);
    struct hak_heap *heap = NULL;
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) {
        heap = hak_heap_acquire();
        assert_true(hak_vacant_put_kept(heap));
        assert_ptr_equal(hak_vacant_kept(i), heap);
    }
    assert_int_equal(hak_vacant_count_kept(), HAK_MOST_KEPT_HEAPS);
    struct hak_heap *other = hak_heap_acquire();
    assert_false(hak_vacant_put_kept(other));
    hak_vacant_remove_kept(other); /* in no place */
    hak_vacant_remove_kept(heap);
    assert_int_equal(hak_vacant_count_kept(), HAK_MOST_KEPT_HEAPS - 1);
    assert_true(hak_vacant_put_kept(other));
}

UNIT_MAIN(cmocka_unit_test(the_last_one_first), cmocka_unit_test(places),
          cmocka_unit_test(births_and_ends_look_at_one_heap), cmocka_unit_test(kept_heaps_are_found_at_once))

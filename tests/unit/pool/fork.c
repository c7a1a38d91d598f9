/* pool/fork.h: what a child does for heaps, slabs, runs and units of threads that it does not have. */
#include "pool_fixture.h"

#include <string.h>

#include "pool/fork.h"
#include "pool/partial_set.h"
#include "pool/purge.h"
#include "region/decay.h"
#include "region/generation.h"
#include "region/heap_count.h"
#include "region/in_hand.h"
#include "region/large.h"

enum { CLASS = 4, RUN_BYTES = 3 * HAK_UNIT_BYTES };

static struct hak_heap *own, *other;

/* A slab that the other heap holds, one that is full, and one in the pool. */
static struct hak_slab *held, *full, *pooled;

static struct hak_slab *slab_of_block(const void *block) { return hak_region_find((uintptr_t)block).slab; }

static void start(void) {
    static void *blocks[HAK_SLAB_MAX_BLOCKS];
    pool_start(SIZE_MAX);
    own = hak_heap_acquire();
    other = hak_heap_acquire();
    uint32_t count = hak_size_classes[CLASS].block_count;
    pool_take(other, CLASS, blocks, count);
    full = slab_of_block(blocks[0]);
    held = slab_of_block(pool_take_one(other, CLASS));
    hak_heap_recheck_full(other);
    pooled = slab_of_block(pool_take_one(NULL, CLASS));
    assert_ptr_not_equal(full, held);
    assert_ptr_not_equal(held, pooled);
}

static uint32_t state_of(const struct hak_slab *slab) { return hak_atomic_load(&slab->state, relaxed); }

static bool is_in_set(const struct hak_slab *slab) {
    const struct hak_range *range = hak_region_range_of_record(slab);
    uint32_t unit = hak_region_unit_of(range, slab);
    return (hak_atomic_load(&range->super_slabs[unit / HAK_UNITS_PER_SUPER_SLAB].partial[CLASS], relaxed) >>
                unit % HAK_UNITS_PER_SUPER_SLAB &
            1) != 0;
}

/* A child that recovers what `in_hand` others had writes no table of the region. */
static void expect_nothing_written(uint64_t in_hand) {
    struct hak_range *range = hak_region_range(0);
    static char records[sizeof(struct hak_slab) * 32], super_slab[sizeof(struct hak_super_slab)];
    memcpy(records, range->slabs, sizeof records);
    memcpy(super_slab, range->super_slabs, sizeof super_slab);
    hak_fork_recover(own, in_hand);
    assert_memory_equal(records, range->slabs, sizeof records);
    assert_memory_equal(super_slab, range->super_slabs, sizeof super_slab);
}

/* Nobody was in the middle of anything: no table of the region is written. */
static void idle(void **state) {
    (void)state;
    start();
    expect_nothing_written(0);
    assert_int_equal(hak_atomic_load(&other->in_use, relaxed), HAK_HEAP_ORPHANED);
    hak_heap_take_kept_apart();
    assert_int_equal(state_of(held), HAK_SLAB_POOLED);
}

/* What the others' threads had not told counts in the child, once, whenever their heaps are taken apart. */
static void untold(void **state) {
    (void)state;
    start();
    for (int i = 0; i < 100; i++) pool_take_one(other, CLASS);
    int64_t bytes = (int64_t)hak_atomic_load(&hak_out_bytes, relaxed) + own->out_bytes + other->out_bytes;
    assert_int_not_equal(other->out_bytes, 0);
    for (int generation = 0; generation < 2; generation++) {
        hak_fork_recover(own, 0);
        assert_int_equal(hak_atomic_load(&hak_out_bytes, relaxed) + (uint64_t)own->out_bytes, bytes);
    }
    hak_heap_take_kept_apart();
    assert_int_equal(hak_atomic_load(&hak_out_bytes, relaxed) + (uint64_t)own->out_bytes, bytes);
}

/* The same where a thread of the child takes the heap. */
static void untold_and_taken(void **state) {
    (void)state;
    start();
    int64_t bytes = (int64_t)hak_atomic_load(&hak_out_bytes, relaxed) + own->out_bytes + other->out_bytes;
    assert_int_not_equal(other->out_bytes, 0);
    hak_fork_recover(own, 0);
    assert_ptr_equal(hak_heap_acquire(), other);
    hak_heap_release(other);
    assert_int_equal(hak_atomic_load(&hak_out_bytes, relaxed) + (uint64_t)own->out_bytes, bytes);
}

/* What kept heaps have is there for who finds no memory, of whatever size. */
static void reclaimed(void **state) {
    (void)state;
    start();
    hak_fork_recover(own, 0);
    hak_purge_reclaim(own, false, false, SIZE_MAX / 2);
    assert_int_equal(hak_atomic_load(&other->in_use, relaxed), HAK_HEAP_UNUSED);
    assert_int_equal(state_of(held), HAK_SLAB_POOLED);
}

/* A signal handler that purges amid a slow path leaves the notes of that. */
static void expect_noted(const struct hak_slab *unit) {
    assert_ptr_equal(hak_atomic_load(&own->hand.unit, relaxed), unit);
    assert_int_equal(hak_atomic_load(&own->hand.in_hand, relaxed), 0);
}

static void purged_in_a_handler(void **state) {
    (void)state;
    start();
    hak_region_release(hak_region_acquire(4, 1, HAK_UNITS_FREE, false), 4);
    assert_true(hak_heap_begin_slow_path(own));
    struct hak_slab *unit = full + 20; /* of which there is nothing to purge */
    hak_hand_note(unit);
    hak_purge_begin_round(NULL);
    expect_noted(unit);
    size_t given_bytes = 0;
    while (!hak_purge_turn(&given_bytes)) continue;
    expect_noted(unit);
    hak_decay_pay();
    assert_int_equal(hak_atomic_load(&hak_owed_units, relaxed), 0);
    expect_noted(unit);
    hak_purge_all(NULL);
    expect_noted(unit);
    hak_purge_reclaim(NULL, false, false, SIZE_MAX / 2);
    expect_noted(unit);
    hak_heap_end_slow_path(own);
}

/* Somebody was: what is as it should be stays so, to the byte. */
static void nothing_to_repair(void **state) {
    (void)state;
    start();
    expect_nothing_written(1);
}

/* Slabs of a heap that was given up are the pool's. */
static void torn(void **state) {
    (void)state;
    start();
    hak_atomic_store(&other->busy, 1, relaxed);
    hak_fork_recover(own, 0);
    assert_int_equal(hak_atomic_load(&other->in_use, relaxed), HAK_HEAP_GIVEN_UP);
    assert_int_equal(state_of(held), HAK_SLAB_POOLED);
    assert_true(is_in_set(held));
    assert_int_equal(state_of(full), hak_slab_state(HAK_SLAB_FULL, other->number));
    assert_true(is_in_set(pooled));
}

/* And one that it has just got, and that is in no list of its. */
static void torn_with_a_slab_in_no_list(void **state) {
    (void)state;
    start();
    assert_true(hak_partial_set_remove(pooled, CLASS));
    hak_atomic_store(&pooled->state, hak_slab_state(HAK_SLAB_HELD, other->number), relaxed);
    hak_atomic_store(&other->hand.unit, pooled, relaxed);
    hak_atomic_store(&other->busy, 1, relaxed);
    hak_fork_recover(own, 0);
    assert_int_equal(state_of(pooled), HAK_SLAB_POOLED);
    assert_true(is_in_set(pooled));
}

/* A slab that a thread without a heap had taken out of the set is there again. */
static void in_hand(void **state) {
    (void)state;
    start();
    assert_true(hak_partial_set_remove(pooled, CLASS));
    hak_fork_recover(own, 1);
    assert_true(is_in_set(pooled));
    assert_int_equal(state_of(held), hak_slab_state(HAK_SLAB_HELD, other->number));
}

/* A block was freed into a full slab, and who freed it had not looked yet. */
static void freed_into_full(void **state) {
    (void)state;
    start();
    hak_slab_set_bits(full, 0, 1);
    hak_fork_recover(own, 1);
    assert_int_equal(state_of(full), HAK_SLAB_POOLED);
    assert_true(is_in_set(full));
}

/* A change of a large object is told by the heap of its thread. */
static void run_in_change(void **state) {
    (void)state;
    start();
    hak_large_hand = &other->large_hand;
    void *block = hak_large_alloc(RUN_BYTES, HAK_ALIGNMENT, false);
    assert_int_equal(hak_atomic_load(&other->large_hand.is_in_use, relaxed), 0);
    assert_non_null(block);
    struct hak_slab *run = slab_of_block(block);
    uint32_t live = state_of(run);
    hak_atomic_store(&run->state, live - 4, relaxed); /* somebody is at it */
    hak_fork_recover(own, 0);
    assert_int_equal(state_of(run), live - 4); /* nobody has said so */
    struct hak_change change = hak_change_begin();
    assert_ptr_equal(change.hand, &other->large_hand);
    assert_ptr_equal(hak_own_hand, &other->large_hand);
    hak_hand_note_run(run);
    hak_fork_recover(own, 0);
    assert_int_equal(state_of(run), live);
    assert_int_equal(hak_atomic_load(&other->large_hand.is_in_use, relaxed), 0);
    hak_change_end(change, true);
    assert_null(hak_own_hand);
}

/* Without a heap, or in a handler that interrupted another change, it is memory in hand. */
static void change_without_a_hand(void **state) {
    (void)state;
    start();
    assert_null(hak_large_hand);
    struct hak_change change = hak_change_begin();
    assert_int_equal(hak_in_hand_count(), 1);
    hak_change_end(change, false);
    assert_int_equal(hak_in_hand_count(), 0);
    hak_large_hand = &other->large_hand;
    change = hak_change_begin();
    struct hak_change second = hak_change_begin();
    assert_null(hak_own_hand);
    assert_int_equal(hak_in_hand_count(), 1);
    hak_change_end(second, true);
    assert_ptr_equal(hak_own_hand, &other->large_hand);
    hak_change_end(change, true);
    assert_int_equal(hak_in_hand_count(), 0);
}

/* Where a hand was, all of the SuperSlab is looked at, and no other one. */
static void noted(void **state) {
    (void)state;
    start();
    struct hak_range *range = hak_region_range(0);
    struct hak_slab *elsewhere = hak_region_acquire(1, 1, HAK_UNITS_NEW_SUPER, false);
    hak_slab_initialize(elsewhere, hak_region_start_of(range, elsewhere), CLASS,
                        range->bit_rows[hak_region_unit_of(range, elsewhere)], HAK_SLAB_POOLED);
    hak_slab_unclaim(elsewhere);
    hak_region_mark(elsewhere, 1, CLASS); /* in the pool, but not in the set */
    assert_true(hak_heap_begin_slow_path(other));
    assert_true(hak_partial_set_remove(pooled, CLASS)); /* notes it */
    assert_non_null(hak_atomic_load(&other->hand.unit, relaxed));
    hak_fork_recover(own, 0);
    assert_int_equal(hak_atomic_load(&other->in_use, relaxed), HAK_HEAP_GIVEN_UP);
    assert_true(is_in_set(pooled));
    assert_true(is_in_set(held));
    assert_false(is_in_set(elsewhere));
    hak_hand_take_up(NULL);
    hak_fork_recover(own, 1); /* somebody without a hand */
    assert_int_equal(state_of(elsewhere), HAK_SLAB_NONE);
}

/* A handler's slow path that interrupts a change of a large object leaves that one's notes. */
static void two_hands(void **state) {
    (void)state;
    start();
    hak_large_hand = &other->large_hand;
    struct hak_change change = hak_change_begin();
    hak_hand_note(full);
    assert_true(hak_heap_begin_slow_path(other));
    hak_hand_note(held);
    assert_ptr_equal(hak_atomic_load(&other->large_hand.unit, relaxed), full);
    assert_ptr_equal(hak_atomic_load(&other->hand.unit, relaxed), held);
    hak_heap_end_slow_path(other);
    assert_ptr_equal(hak_own_hand, &other->large_hand);
    hak_change_end(change, true);
}

/* A child of a child. */
static void twice(void **state) {
    (void)state;
    start();
    hak_atomic_store(&other->busy, 1, relaxed);
    hak_fork_recover(own, 0);
    struct hak_heap *third = hak_heap_acquire();
    struct hak_slab *taken = slab_of_block(pool_take_one(third, CLASS));
    hak_fork_recover(own, 0);
    assert_int_equal(hak_atomic_load(&other->in_use, relaxed), HAK_HEAP_GIVEN_UP);
    assert_int_equal(hak_atomic_load(&third->in_use, relaxed), HAK_HEAP_ORPHANED);
    assert_int_equal(state_of(taken), hak_slab_state(HAK_SLAB_HELD, third->number));
    hak_atomic_store(&third->drained, 1, relaxed);
    hak_fork_recover(own, 0);
    assert_int_equal(state_of(taken), HAK_SLAB_POOLED);
}

/* What a fork empties: the tests do. */
static _Alignas(8) HAK_ATOMIC(uint32_t) wiped[4];

static void start_watched(void) {
    fake_os.wiped = wiped;
    start();
    hak_generation_watch();
}

/* Another thread of the child's has a heap already, and takes from everything: only those of dead threads are left. */
static void beside_another_thread(void **state) {
    (void)state;
    start_watched();
    struct hak_heap *torn = hak_heap_acquire(), *amid = hak_heap_acquire();
    assert_int_equal(wiped[0], 1);
    hak_atomic_store(&torn->busy, 1, relaxed);
    hak_atomic_store(&amid->large_hand.in_hand, 2, relaxed);
    hak_atomic_store(&hak_in_hand, 3, relaxed); /* one is the new thread's */
    memset(wiped, 0, sizeof wiped);             /* the fork */
    hak_atomic_store(&hak_region_range(0)->table_maker, hak_generation, relaxed);
    hak_atomic_store(&hak_region_range(0)->grower, hak_generation + 1, relaxed); /* the new thread */
    struct hak_heap *born = hak_heap_acquire();
    assert_int_equal(born->generation, hak_generation + 1);
    assert_false(hak_generation_begin());
    hak_fork_leave_dead(own);
    hak_generation_end();
    assert_int_equal(own->in_use, HAK_HEAP_IN_USE);
    assert_int_equal(born->in_use, HAK_HEAP_IN_USE);
    assert_int_equal(other->in_use, HAK_HEAP_ORPHANED);
    assert_int_equal(own->is_copied + born->is_copied, 0);
    assert_int_equal(other->is_copied + torn->is_copied, 2);
    assert_int_equal(torn->in_use, HAK_HEAP_GIVEN_UP);
    assert_int_equal(amid->in_use, HAK_HEAP_GIVEN_UP);
    assert_int_equal(hak_in_hand_count(), 1);
    assert_int_equal(hak_heaps_in_use, 2);
    assert_int_equal(hak_region_range(0)->table_maker, 0);
    assert_int_equal(hak_region_range(0)->grower, hak_generation);
    assert_ptr_equal(hak_heap_acquire(), other);
    /* The next child has no such thread. */
    memset(wiped, 0, sizeof wiped);
    assert_true(hak_generation_begin());
    hak_fork_recover(own, 0);
    hak_generation_end();
    assert_int_equal(born->in_use, HAK_HEAP_ORPHANED);
}

/* A thread of the child forks while the handler runs: the grandchild's threads wait for no handler, which isn't there. */
static void forked_in_the_handler(void **state) {
    (void)state;
    start_watched();
    memset(wiped, 0, sizeof wiped);
    assert_true(hak_generation_begin());
    memset(wiped, 0, sizeof wiped);
    assert_non_null(hak_heap_acquire());
    assert_false(hak_generation_begin());
    hak_generation_end();
}

/* The thread that runs the handler has got its heap in this process: it can't be told from another one. */
static void born_in_the_child(void **state) {
    (void)state;
    start_watched();
    memset(wiped, 0, sizeof wiped);
    struct hak_heap *born = hak_heap_acquire();
    assert_false(hak_generation_begin());
    assert_null(hak_heap_acquire()); /* in a signal handler of the same thread */
    hak_generation_end();
    assert_int_equal(born->generation, hak_generation);
    assert_int_equal(hak_heap_acquire()->generation, hak_generation);
}

UNIT_MAIN(cmocka_unit_test(idle), cmocka_unit_test(untold), cmocka_unit_test(untold_and_taken),
          cmocka_unit_test(reclaimed), cmocka_unit_test(purged_in_a_handler), cmocka_unit_test(nothing_to_repair),
          cmocka_unit_test(torn), cmocka_unit_test(torn_with_a_slab_in_no_list), cmocka_unit_test(in_hand),
          cmocka_unit_test(freed_into_full), cmocka_unit_test(run_in_change), cmocka_unit_test(change_without_a_hand),
          cmocka_unit_test(noted), cmocka_unit_test(two_hands), cmocka_unit_test(twice),
          cmocka_unit_test(beside_another_thread), cmocka_unit_test(forked_in_the_handler),
          cmocka_unit_test(born_in_the_child))

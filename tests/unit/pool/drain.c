/* pool/drain.h: what is left in a heap that another thread drained, wherever its owner was; and who does it when the
 * drainer can't. Other threads act where the fake kernel's fences are. */
#include "pool_fixture.h"

#include "base/memory.h"
#include "front/front.h"
#include "pool/drain.h"

enum { CLASS = 8, CACHED = 6 };

static struct hak_heap *heap;
static void *blocks[16];

static void **base(void) { return hak_atomic_load(&heap->bins[CLASS].base, relaxed); }
static void **limit(void) { return hak_atomic_load(&heap->bins[CLASS].limit, relaxed); }
static void **top(void) { return heap->bins[CLASS].top; }

/* One heap, drained as the background thread does it. */
static void drain_heap(struct hak_heap *one) {
    struct hak_drain drain = {.first_taken = NULL};
    if (!hak_heap_begin_drain(one, &drain)) return;
    hak_heap_drain_taken(&drain);
    hak_heap_end_drains(&drain);
}

/* A hit, as far as front.h goes: false for a miss. */
static bool pop(void) {
    if (top() <= base()) return false;
    hak_bin_set_top(&heap->bins[CLASS], top() - 1);
    return true;
}
static bool push(void *block) {
    if (top() >= limit()) return false;
    *top() = block;
    hak_bin_set_top(&heap->bins[CLASS], top() + 1);
    return true;
}

/* A heap with six blocks in a bin of eight, and claimed blocks in a slab it holds. */
static void start(void) {
    pool_start(SIZE_MAX);
    heap = hak_heap_acquire();
    assert_true(pool_grow_bin(heap, CLASS));
    pool_take(heap, CLASS, blocks, 16);
    for (int i = 0; i < CACHED; i++) assert_true(push(blocks[i]));
}

static uint32_t free_blocks(void) {
    const struct hak_slab *slab = hak_region_find((uintptr_t)blocks[0]).slab;
    return hak_slab_count_bits(slab->bits, slab->block_count) + hak_slab_count_claimed(slab, slab->block_count);
}
static uint32_t slab_blocks(void) { return hak_size_classes[CLASS].block_count; }

static void asleep(void **state) {
    (void)state;
    start();
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1); /* D1 */
    assert_ptr_equal(top()[-1], blocks[CACHED - 1]);   /* the newest */
    assert_int_equal(free_blocks(), slab_blocks() - (16 - CACHED) - 1);
    assert_null(heap->partial[CLASS].first);
    assert_int_equal(heap->empty_count, 0);
    assert_false(push(blocks[6])); /* a free comes to a miss, */
    assert_true(pop());
    assert_false(pop());
    assert_true(hak_heap_begin_slow_path(heap));
    pool_open_bin(heap, CLASS); /* which opens the bin */
    hak_heap_end_slow_path(heap);
    assert_ptr_equal(base(), heap->slots[CLASS].start);
    assert_true(push(blocks[6]));
    assert_ptr_equal(base()[0], blocks[6]);
    drain_heap(heap); /* of one block nothing goes */
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
}

static void opened_with_blocks(void **state) {
    (void)state;
    start();
    drain_heap(heap);
    assert_true(hak_heap_begin_slow_path(heap));
    pool_open_bin(heap, CLASS);
    hak_heap_end_slow_path(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_ptr_equal(heap->slots[CLASS].start[0], blocks[CACHED - 1]);
    assert_ptr_equal(limit(), heap->slots[CLASS].end);
}

/* What the owner does at the n-th fence. */
static int fence, act_at;
static void (*act)(void);
static void at_fence(void) {
    if (fence++ == act_at) act();
}
static void drain_while(int at, void (*what)(void)) {
    start();
    size_t not_live = free_blocks() + CACHED;
    fence = 0;
    act_at = at;
    act = what;
    fake_os.between_fences = at_fence;
    drain_heap(heap);
    fake_os.between_fences = NULL;
    assert_int_equal(free_blocks() + hak_heap_cached(heap, CLASS), not_live);
}

static int popped;
/* Hits that began before the fence, and do not know of a new base. */
static void pop_three(void) {
    for (popped = 0; popped < 3; popped++) hak_bin_set_top(&heap->bins[CLASS], top() - 1);
    for (int i = 0; i < 3; i++) *top() = blocks[3 + i], hak_bin_set_top(&heap->bins[CLASS], top() + 1);
}
static void push_one(void) {
    hak_bin_set_top(&heap->bins[CLASS], top() - 1);
    *top() = blocks[CACHED - 1];
    hak_bin_set_top(&heap->bins[CLASS], top() + 1);
}

static void meanwhile(void **state) {
    (void)state;
    drain_while(0, pop_three);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    drain_while(1, pop_three);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    drain_while(1, push_one);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
}

static void start_for_frees(void) {
    start();
    hak_heap_keep_for_frees(heap, CLASS);
}
static void push_late(void) { assert_true(push(blocks[CACHED])); }
/* By a hit that knows of the old limit. */
static void put_late(void) {
    *top() = blocks[CACHED];
    hak_bin_set_top(&heap->bins[CLASS], top() + 1);
}

/* Of a bin that is for frees only nothing stays, but what a free puts on top meanwhile. */
static void for_frees(void **state) {
    (void)state;
    start_for_frees();
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);
    assert_false(pop());
    assert_true(push(blocks[CACHED]));
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 0);
    assert_int_equal(free_blocks(), slab_blocks() - (16 - CACHED - 1));
    assert_false(push(blocks[CACHED + 1]));
    put_late();
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_true(pop());
    assert_false(pop());

    start_for_frees();
    fence = 0, act_at = 0, act = push_late;
    fake_os.between_fences = at_fence;
    drain_heap(heap);
    fake_os.between_fences = NULL;
    assert_int_equal(hak_heap_cached(heap, CLASS), 0);
    start_for_frees();
    fence = 0, act_at = 1, act = put_late;
    fake_os.between_fences = at_fence;
    drain_heap(heap);
    fake_os.between_fences = NULL;
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_ptr_equal(top()[-1], blocks[CACHED]);

    start_for_frees();
    hak_bin_set_top(&heap->bins[CLASS], heap->slots[CLASS].start); /* an empty one */
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 0);
    assert_false(pop());

    start_for_frees();
    pool_open_bin(heap, CLASS);
    assert_ptr_equal(base(), heap->slots[CLASS].start);
    assert_true(pop());
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED - 1);

    start_for_frees(); /* refused: all stay */
    fake_os.fences_left = 1;
    drain_heap(heap);
    fake_os.fences_left = SIZE_MAX;
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);

    start_for_frees(); /* its owner flushes it */
    hak_heap_flush(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 0);
    assert_int_equal(free_blocks(), slab_blocks() - (16 - CACHED));
}

static void pop_below(void) {
    for (popped = 0; popped < 3; popped++) hak_bin_set_top(&heap->bins[CLASS], top() - 1);
}
static void pop_all(void) { hak_bin_set_top(&heap->bins[CLASS], heap->slots[CLASS].start); }

/* The owner took some between the look at the bin and the fence: what a hit may be on its way to stays. */
static void popped_below(void **state) {
    (void)state;
    start();
    fence = 0, act_at = 1, act = pop_below;
    fake_os.between_fences = at_fence;
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_ptr_equal(top()[-1], blocks[2]);
    start();
    fence = 0, act = pop_all;
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), 0);
    assert_ptr_equal(base(), heap->slots[CLASS].start);
    fake_os.between_fences = NULL;
}

static void owner_in_slow_path(void **state) {
    (void)state;
    start();
    assert_true(hak_heap_begin_slow_path(heap));
    drain_heap(heap);
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);
    assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 1);
    assert_int_equal(hak_atomic_load(&heap->drained, relaxed), 0);
    hak_heap_end_slow_path(heap);
}

/* The first or the second fence is refused: nothing is taken, and the owner is asked. */
static void no_fence(void **state) {
    (void)state;
    for (size_t granted = 0; granted < 2; granted++) {
        start();
        fake_os.fences_left = granted;
        drain_heap(heap);
        fake_os.fences_left = SIZE_MAX;
        assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);
        assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 1);
        assert_non_null(heap->partial[CLASS].first);
    }
}

/* A drainer has the heap: its thread goes without, and may leave it to him. */
static void drained_meanwhile(void **state) {
    (void)state;
    start();
    assert_true(hak_heap_try_drain(heap));
    assert_false(hak_heap_try_drain(heap));
    assert_false(hak_heap_begin_slow_path(heap));
    assert_int_equal(hak_atomic_load(&heap->busy, relaxed), 0);
    hak_heap_release(heap);
    assert_int_equal(hak_atomic_load(&heap->in_use, relaxed), HAK_HEAP_LEFT);
    assert_ptr_not_equal(hak_heap_acquire(), heap);
    hak_heap_end_drain(heap);
    assert_int_equal(hak_atomic_load(&heap->in_use, relaxed), HAK_HEAP_UNUSED);
    assert_int_equal(free_blocks(), slab_blocks() - (16 - CACHED));
    assert_ptr_equal(hak_heap_acquire(), heap);
}

static void all_but_own(void **state) {
    (void)state;
    start();
    struct hak_heap *other = hak_heap_acquire();
    struct hak_drain drainer = {.first_taken = NULL};
    assert_true(hak_heap_drain_others(heap, &drainer));
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);
    assert_false(hak_heap_begin_slow_path(other));
    hak_heap_end_drains(&drainer);
    assert_true(hak_heap_drain_others(other, &drainer));
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_false(hak_heap_begin_slow_path(heap)); /* until it is given back */
    hak_heap_end_drains(&drainer);
    assert_true(hak_heap_begin_slow_path(heap));
    assert_true(hak_heap_begin_slow_path(other));
}

/* An owner in a slow path keeps his heap until its end, and goes without it from then on. */
static void later(void **state) {
    (void)state;
    struct hak_drain drainer = {.first_taken = NULL}, another = {.first_taken = NULL};
    start();
    assert_true(hak_heap_begin_slow_path(heap));
    assert_false(hak_heap_drain_others(NULL, &drainer));
    assert_int_equal(hak_heap_cached(heap, CLASS), CACHED);
    assert_true(hak_heap_drain_others(NULL, &another)); /* has nothing to drain, */
    hak_heap_end_drains(&another);                      /* and nothing to give back */
    hak_heap_end_slow_path(heap);
    assert_false(hak_heap_begin_slow_path(heap));
    assert_true(hak_heap_drain_others(NULL, &drainer));
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_true(hak_heap_drain_others(NULL, &drainer)); /* drained already */
    hak_heap_end_drains(&drainer);
    assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 0);
    assert_true(hak_heap_begin_slow_path(heap));
    assert_false(hak_heap_drain_others(NULL, &drainer));
    hak_heap_end_drains(&drainer);
    assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 1); /* he is asked */
    assert_int_equal(hak_atomic_load(&heap->drained, relaxed), 0);
}

/* What a thread has left in its bins goes back by the same calls. */
static void kept(void **state) {
    (void)state;
    struct hak_drain drainer = {.first_taken = NULL};
    start();
    hak_heap_leave(heap);
    assert_int_equal(free_blocks(), slab_blocks() - 16);
    drain_heap(heap);
    assert_int_equal(hak_atomic_load(&heap->in_use, relaxed), HAK_HEAP_UNUSED);
    assert_int_equal(free_blocks(), slab_blocks() - (16 - CACHED));
    start();
    hak_heap_leave(heap);
    assert_true(hak_heap_drain_others(NULL, &drainer));
    hak_heap_end_drains(&drainer);
    assert_int_equal(free_blocks(), slab_blocks() - 2 * (16 - CACHED)); /* the same slab once more */
}

static int fences;
static void count_fence(void) { fences++; }
static int fences_to_drain_others(void) {
    struct hak_drain drainer = {.first_taken = NULL};
    fences = 0;
    fake_os.between_fences = count_fence;
    assert_true(hak_heap_drain_others(NULL, &drainer));
    hak_heap_end_drains(&drainer);
    fake_os.between_fences = NULL;
    return fences;
}

/* Two fences serve all heaps; what was drained and has not missed since needs none. */
static void one_pair_of_fences(void **state) {
    (void)state;
    start();
    assert_int_equal(fences_to_drain_others(), 2);
    for (int i = 0; i < 1000; i++) assert_non_null(hak_heap_acquire());
    assert_int_equal(fences_to_drain_others(), 2);
    assert_int_equal(fences_to_drain_others(), 0);
    assert_true(hak_heap_begin_slow_path(heap));
    pool_open_bin(heap, CLASS);
    hak_heap_end_slow_path(heap);
    assert_true(push(blocks[6]));
    assert_int_equal(hak_heap_cached(heap, CLASS), 2);
    assert_int_equal(fences_to_drain_others(), 2);
    assert_int_equal(hak_heap_cached(heap, CLASS), 1);
    assert_int_equal(fences_to_drain_others(), 0);
    /* While memory is tight its owner is asked, each time. */
    hak_atomic_store(&hak_memory_is_tight, true, relaxed);
    assert_int_equal(fences_to_drain_others(), 2);
    assert_int_equal(hak_atomic_load(&heap->drain_wanted, relaxed), 1);
}

UNIT_MAIN(cmocka_unit_test(asleep), cmocka_unit_test(opened_with_blocks), cmocka_unit_test(meanwhile),
          cmocka_unit_test(popped_below), cmocka_unit_test(for_frees), cmocka_unit_test(owner_in_slow_path),
          cmocka_unit_test(no_fence), cmocka_unit_test(drained_meanwhile), cmocka_unit_test(all_but_own),
          cmocka_unit_test(later), cmocka_unit_test(kept), cmocka_unit_test(one_pair_of_fences))

/* pool/holder.h: what is found in another heap's bin, and what isn't, whatever its owner does meanwhile: he acts where the fake
 * kernel's fences are. */
#include "pool_fixture.h"

#include <string.h>

#include "pool/holder.h"
#include "region/generation.h"

static struct hak_heap *holder, *own;
static void *block;

static struct hak_bin *bin(void) { return &holder->bins[POOL_CLASS]; }

static void push(void *other) {
    *bin()->top = other;
    hak_bin_set_top(bin(), bin()->top + 1);
}

/* Two heaps, one of which has a block of its slab in its bin. */
static void start(void) {
    pool_start(SIZE_MAX);
    holder = pool_heap_with_block(&block);
    own = hak_heap_acquire();
}

/* What the other threads do at each fence. */
static void (*at_fences[2])(void);
static int fence_count;

static void at_fence(void) {
    assert_in_range(fence_count, 0, 1);
    if (at_fences[fence_count] != NULL) at_fences[fence_count]();
    fence_count++;
}

/* A look with so many fences; afterwards the heap is whoever's it was. */
static bool finds_after(int fences) {
    uint32_t drained = hak_atomic_load(&holder->drained, relaxed);
    fake_os.between_fences = at_fence;
    fence_count = 0;
    assert_true(hak_heap_begin_slow_path(own));
    bool found = hak_holder_has(own, POOL_CLASS, block);
    hak_heap_end_slow_path(own);
    fake_os.between_fences = NULL;
    memset(at_fences, 0, sizeof at_fences);
    assert_int_equal(fence_count, fences);
    assert_int_equal(hak_in_hand_count(), 0);
    assert_int_equal(hak_atomic_load(&holder->drained, relaxed), drained);
    return found;
}

static void among_the_newest(void **state) {
    (void)state;
    start();
    assert_true(finds_after(2));
    assert_ptr_equal(bin()->top[-1], block);
    while (pool_slots_of(holder, POOL_CLASS) < 33) assert_int_equal(pool_grow_bin(holder, POOL_CLASS), HAK_BIN_GREW);
    for (int i = 0; i < 31; i++) push(pool_take_one(holder, POOL_CLASS));
    assert_true(finds_after(2));
    push(pool_take_one(holder, POOL_CLASS));
    assert_false(finds_after(0));
}

static void of_a_full_slab(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_find((uintptr_t)block).slab;
    while (slab->state != hak_slab_state(HAK_SLAB_FULL, holder->number)) pool_take_one(holder, POOL_CLASS);
    assert_true(finds_after(2));
}

static void in_other_places(void **state) {
    (void)state;
    start();
    struct hak_slab *slab = hak_region_find((uintptr_t)block).slab;
    assert_int_equal(slab->state, hak_slab_state(HAK_SLAB_HELD, holder->number));
    const uint32_t others[] = {HAK_SLAB_POOLED, hak_slab_state(HAK_SLAB_FULL, HAK_NO_HEAP),
                               hak_slab_state(HAK_SLAB_HELD, own->number), hak_slab_state(HAK_SLAB_HELD, 77)};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        slab->state = others[i];
        assert_false(finds_after(0));
    }
    slab->state = hak_slab_state(HAK_SLAB_HELD, holder->number);
    hak_bin_set_top(bin(), bin()->top - 1); /* popped: it stays in the slot */
    assert_false(finds_after(0));
    hak_heap_blank_bins(holder);
    assert_false(finds_after(0));
}

/* A bin of which a drainer has taken the block, or is just about to. */
static void drained(void **state) {
    (void)state;
    start();
    hak_atomic_store(&bin()->base, bin()->top, relaxed);
    assert_false(finds_after(0));
    hak_atomic_store(&bin()->base, holder->slots[POOL_CLASS].start, relaxed);
    assert_true(hak_heap_try_drain(holder));
    assert_false(finds_after(0));
    hak_heap_end_drain(holder);
    assert_true(finds_after(2));
}

static void for_frees(void **state) {
    (void)state;
    start();
    hak_heap_keep_for_frees(holder, POOL_CLASS);
    assert_true(finds_after(2));
}

/* Blocks are on their way: out of the slab into the bin, or back, and to be seen in both places. */
static void leave_slow_path(void) { hak_heap_end_slow_path(holder); }
static void enter_slow_path(void) { assert_false(hak_heap_begin_slow_path(holder)); }
static void begin_slow_path(void) { hak_atomic_store(&holder->busy, 1, relaxed); }

static void in_a_slow_path(void **state) {
    (void)state;
    start();
    assert_true(hak_heap_begin_slow_path(holder));
    assert_false(finds_after(0));
    hak_heap_end_slow_path(holder);
    at_fences[0] = begin_slow_path; /* he had begun before, and it wasn't seen */
    assert_false(finds_after(1));
    leave_slow_path();
    at_fences[0] = enter_slow_path; /* he can't */
    assert_true(finds_after(2));
}

/* The slot was older than `top`. */
static void overwrite(void) { bin()->top[-1] = (char *)block + 64; }
static void pop(void) { hak_bin_set_top(bin(), bin()->top - 1); }

static void stale(void **state) {
    (void)state;
    start();
    at_fences[1] = overwrite;
    assert_false(finds_after(2));
    bin()->top[-1] = block;
    at_fences[0] = overwrite;
    assert_false(finds_after(1));
    bin()->top[-1] = block;
    at_fences[0] = pop;
    assert_false(finds_after(1));
}

static void refused(void **state) {
    (void)state;
    start();
    fake_os.fences_left = 0;
    assert_false(finds_after(1));
    fake_os.fences_left = 1;
    assert_false(finds_after(2));
    fake_os.fences_left = SIZE_MAX;
    assert_true(finds_after(2));
}

/* Its thread has left it, with its bins for the next one, or while it is looked at. */
static void kept(void **state) {
    (void)state;
    start();
    hak_heap_leave(holder);
    assert_int_equal(pool_in_use_of(holder), HAK_HEAP_KEPT);
    hak_atomic_store(&hak_region_find((uintptr_t)block).slab->state, hak_slab_state(HAK_SLAB_FULL, holder->number),
                     relaxed);
    assert_true(finds_after(2));
}

static void leave(void) { hak_heap_release(holder); }

static void left(void **state) {
    (void)state;
    start();
    at_fences[0] = leave;
    assert_false(finds_after(1));
    assert_int_equal(pool_in_use_of(holder), HAK_HEAP_UNUSED);
    assert_int_equal(hak_heap_cached(holder, POOL_CLASS), 0);
}

/* What a fork has copied of another thread's heap is not believed; nor is any before the handler has run. */
static _Alignas(8) HAK_ATOMIC(uint32_t) wiped[4];

static void copied(void **state) {
    (void)state;
    fake_os.wiped = wiped;
    start();
    hak_generation_watch();
    assert_true(finds_after(2));
    memset(wiped, 0, sizeof wiped);
    assert_false(finds_after(0));
    assert_true(hak_generation_begin());
    hak_heap_leave_others_after_fork(own);
    hak_generation_end();
    assert_false(finds_after(1));
    assert_ptr_equal(hak_heap_acquire(), holder);
    assert_false(finds_after(1));
}

UNIT_MAIN(cmocka_unit_test(among_the_newest), cmocka_unit_test(of_a_full_slab), cmocka_unit_test(in_other_places),
          cmocka_unit_test(drained), cmocka_unit_test(for_frees), cmocka_unit_test(in_a_slow_path),
          cmocka_unit_test(stale), cmocka_unit_test(refused), cmocka_unit_test(kept), cmocka_unit_test(left),
          cmocka_unit_test(copied))

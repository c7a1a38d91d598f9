/* A fork at any moment of any operation: thread 1 operates, thread 0 forks when thread 1 is before any of its atomic
 * operations or any of its writes to plain data, and what follows is the child: recovery, all walks, the contents of
 * what the program has, a purge, all classes used again, the end of the thread. What the child can't find any more is
 * counted, and has a bound that each row states.
 *
 * Each FORK_AT is a row: an operation in a state. README.md has the table of them, and says when one is missing.
 */
#include "library.h"

#include <string.h>

#include "base/memory.h"
#include "front/front.h"
#include "front/thread.h"
#include "pool/drain.h"
#include "pool/partial_set.h"
#include "region/guard.h"
#include "region/in_hand.h"
#include "region/run_quarantine.h"

enum { MOST = 160, UNITS = 14, ZERO_UNITS = 16, RUN_BYTES = 2 * HAK_UNIT_BYTES - 4096, MAPPING_BYTES = 4 << 20 };

/* ---- What the program has ---------------------------------------------------------------------------------------- */

/* Entered once it is had, and crossed out before it is given back. */
static void *had[MOST];
static uint32_t had_count;

static uint32_t own(void *block) {
    if (block == NULL) return MOST;
    library_touch_new(block);
    model_assert(had_count < MOST, "there is room");
    had[had_count] = block;
    return had_count++;
}
static uint32_t alloc(uint32_t size_class) { return own(hak_front_alloc(size_class * HAK_ALIGNMENT, NULL)); }
static uint32_t alloc_large(size_t bytes, size_t alignment) {
    return own(hak_front_alloc_large(bytes, alignment, false, NULL));
}
static void give(uint32_t index) {
    if (index >= MOST || had[index] == NULL) return;
    void *block = had[index];
    library_touch(block);
    had[index] = NULL;
    hak_front_free(block, HAK_FROM_MALLOC);
}

/* Checks all of it. */
static void count(uint32_t *blocks, uint32_t *units) {
    *blocks = *units = 0;
    for (uint32_t i = 0; i < had_count; i++) {
        if (had[i] == NULL) continue;
        library_touch(had[i]);
        struct hak_place place = hak_region_find((uintptr_t)had[i]);
        model_assert(place.kind != HAK_PLACE_FOREIGN && place.start == (uintptr_t)had[i],
                     "what the program has is there");
        *blocks += place.kind == HAK_PLACE_SMALL;
        if (place.kind == HAK_PLACE_RUN) {
            library_check_run(&place);
            *units += (uint32_t)((place.bytes - 1) / HAK_UNIT_BYTES) + 1;
        }
        for (uint32_t j = 0; j < i; j++) model_assert(had[j] != had[i], "a block is handed out once");
    }
}

/* ---- The child --------------------------------------------------------------------------------------------------- */

static struct {
    uint32_t most_blocks, most_units; /* that may be lost */
    uint32_t no_units;                /* that were never there */
    bool has_heap;                    /* the thread that forks */
    bool forks_again;                 /* the child does */
} row;

static void fork_now(void) { model_fork(); }

static void check(const char *when) {
    uint32_t lost_blocks, lost_units;
    count(&lost_blocks, &lost_units);
    lost_blocks = library_check() - lost_blocks;
    lost_units = library_count_lone_units() - lost_units - row.no_units;
    if (lost_blocks > row.most_blocks || lost_units > row.most_units)
        model_fail("%s: %u blocks are lost of at most %u, %u units of at most %u", when, lost_blocks, row.most_blocks,
                   lost_units, row.most_units);
}

static void use_all_classes(void) {
    for (uint32_t c = CLASSES - 1; c >= PAIR; c--) {
        uint32_t first = had_count;
        while (had_count < first + 6 && alloc(c) != MOST) {
        }
        check("in use");
        while (had_count > first) give(--had_count);
    }
}

/* The child forks again before it has used a heap that is nobody's; and once more in a thread that has got one. */
static void fork_again(void) {
    library_in_child();
    check("after another fork");
    for (uint32_t i = 0; i < 2; i++) {
        struct hak_heap *heap = hak_heap_acquire();
        if (heap == NULL) return;
        library_be(heap);
        for (uint32_t j = 0; j < 6; j++) give(alloc(PAIR));
        check("in another heap");
    }
    library_in_child();
    check("after a fork by another thread");
    use_all_classes();
}

static void child(void) {
    model_stops_anywhere = false;
    if (row.has_heap) library_be(library_heaps[0]);
    library_in_child();
    check("after the fork");
    if (row.forks_again) fork_again();
    hak_front_purge();
    check("after a purge");
    fake_os.maps_at_left = 0;
    use_all_classes();
    uint32_t run = alloc_large(RUN_BYTES, HAK_ALIGNMENT);
    check("after use");
    give(run);
    for (uint32_t i = 0; i < had_count; i++) give(i);
    check("after all was freed");
    struct hak_heap *heap = hak_thread_heap;
    hak_thread_abandon_heap();
    if (heap->number != 0) hak_heap_leave(heap);
    if ((heap = hak_heap_acquire()) != NULL) library_be(heap);
    use_all_classes();
    hak_front_purge();
    check("at the end");
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

/* The heaps of threads 0 and 1 have each a slab of pairs with a free block, and one in a bin; the program has a pair
 * of each, 0 and 1. Heap 2 is nobody's. */
static void state_of_used(uint32_t super_slabs, uint32_t used, uint32_t units) {
    library_start(super_slabs, used, units, 3);
    had_count = 0;
    for (uint32_t t = 0; t < 2; t++) {
        struct hak_heap *heap = hak_thread_heap = library_heaps[t];
        void *spare[3];
        for (uint32_t i = 0; i < 3; i++) spare[i] = library_take(heap, PAIR);
        own(library_take(heap, PAIR));
        library_put(heap, PAIR, spare[0]);
        library_cache(heap, PAIR, spare[1]);
        library_put(heap, PAIR, spare[2]);
    }
    hak_thread_abandon_heap();
    hak_heap_release(library_heaps[2]);
    row.no_units = used * (HAK_UNITS_PER_SUPER_SLAB - units);
    row.has_heap = true;
}
static void state_of(uint32_t super_slabs, uint32_t units) { state_of_used(super_slabs, 1, units); }
static void usual(void) { state_of(1, UNITS); }
static void forker_without_heap(void) {
    usual();
    hak_heap_release(library_heaps[0]);
    row.has_heap = false;
}
static void kept(void) { /* blocks in the bins of a heap that is nobody's */
    usual();
    struct hak_heap *heap = hak_heap_acquire();
    library_cache(heap, TRIPLE, library_take(heap, TRIPLE));
    hak_heap_leave(heap);
}
static void orphaned(void) { /* a heap whose thread a fork has lost */
    usual();
    hak_heap_leave_others_after_fork(library_heaps[0]);
}
static void growing(void) { /* there are no units but what is made now */
    state_of(2, 5);
    fake_os.maps_at_left = fake_os.reserves_left = -1;
}
static void below_other(void) { /* and somebody who is not hakmem has addresses of the next step of the tables */
    growing();
    uintptr_t rows = (uintptr_t)hak_ranges[0]->bit_rows[HAK_UNITS_PER_SUPER_SLAB];
    hak_os_map_at((void *)hak_align_up(rows, fake_os.page_bytes), fake_os.page_bytes);
}
static void nearly_refused(void) { /* there is room for that step, but not for a SuperSlab */
    growing();
    fake_os.maps_at_left = 2;
}
static void in_turns(void) { /* the kernel has refused a SuperSlab before (R6) */
    growing();
    hak_ranges[0]->was_refused = 1;
}
static void pooled(void) { /* a slab of triples in the pool, of which the program has 2 */
    usual();
    uint32_t first = had_count;
    for (uint32_t i = 0; i < 3; i++) own(library_take(NULL, TRIPLE));
    library_put(NULL, TRIPLE, had[first + 1]);
    had[first + 1] = NULL;
}
static void full(void) { /* a slab of triples that is full and nobody's, 2 to 4, and one of another: 5 */
    usual();
    for (uint32_t i = 0; i < 4; i++) own(library_take(NULL, TRIPLE));
}
static void many_words(void) { /* a slab of 128 blocks that is FULL: 2 .. 129 */
    static void *blocks[128];
    usual();
    hak_pool_take(NULL, MANY, blocks + 128, 128);
    for (uint32_t i = 0; i < 128; i++) own(blocks[i]);
}
static void holes(void) { /* small pages, of which a block is one */
    pooled();
    fake_os.page_bytes = HAK_UNIT_BYTES / 2;
}
static void purged_holes(void) { /* one more is free, and the hole that both leave has gone back */
    holes();
    library_put(NULL, TRIPLE, had[--had_count]);
    for (uint32_t i = 0; i < 3; i++) hak_purge_sweep(0, UINT32_MAX);
    model_assert(hak_atomic_load(&hak_region_find((uintptr_t)had[had_count - 2]).slab->purged_pages, relaxed) != 0,
                 "there was a hole");
}
/* The program has one thread; what else goes on has no heap. */
static void alone(void) {
    holes();
    hak_heap_release(library_heaps[1]);
    uint32_t large = alloc_large(3 * HAK_UNIT_BYTES, HAK_ALIGNMENT);
    alloc_large(HAK_UNIT_BYTES, HAK_ALIGNMENT);
    give(large);
}
static void alone_full(void) {
    full();
    hak_heap_release(library_heaps[1]);
}
static void dirty(void) { /* three units that were used, and a run: 2 */
    usual();
    hak_thread_abandon_heap();
    uint32_t large = alloc_large(3 * HAK_UNIT_BYTES, HAK_ALIGNMENT);
    alloc_large(RUN_BYTES, HAK_ALIGNMENT);
    give(large);
    had[2] = had[3];
    had_count = 3;
    library_heaps[1]->has_acquired[TRIPLE] = true;
}
static void sparse(void) { /* units that were used, and hardly touched: as many as zeros come from the kernel for */
    state_of(1, UNITS + ZERO_UNITS);
    hak_thread_abandon_heap();
    uint32_t large = alloc_large(ZERO_UNITS * HAK_UNIT_BYTES, HAK_ALIGNMENT);
    memset(had[large], 0, ZERO_UNITS * HAK_UNIT_BYTES);
    library_touch_new(had[large]);
    hak_background_pay(true); /* or it went back at once */
    give(large);
    had_count = 2;
}
static void limited(void) { /* three units that were used, and a run; the kernel has no more */
    dirty();
    fake_os.maps_left = 0;
}
static void limited_and_refused(void) { /* nor takes any */
    limited();
    fake_os.refuses_unmap = true;
}
static void
spread(void) { /* two SuperSlabs of four units, of which three are slabs in the first, and one in the second */
    state_of_used(2, 2, 4);
    for (uint32_t i = 0; i < 4; i++) own(library_take(NULL, TRIPLE));
    library_heaps[1]->has_acquired[TRIPLE] = true;
}
static void spread_dirty(void) { /* a dirty unit in each of them */
    spread();
    hak_thread_abandon_heap();
    uint32_t first = had_count;
    for (uint32_t i = 0; i < 4; i++) alloc_large(HAK_UNIT_BYTES, HAK_ALIGNMENT);
    model_assert(had[first + 3] != NULL, "there are units");
    give(first), give(first + 1);
}
/* A thread without a heap has taken a slab of triples out of the pool, in the second SuperSlab. */
static void beside(void) {
    spread();
    struct hak_slab *slab = hak_region_find((uintptr_t)had[had_count - 1]).slab;
    model_assert(hak_partial_set_remove(slab, TRIPLE), "it is in the pool");
    hak_atomic_fetch_add(&hak_in_hand, 1, relaxed);
}
static void mapped(void) { /* a mapping: 2, and one that is kept, as where hakmem's thread gives memory back */
    usual();
    hak_background_pay(true);
    uint32_t first = alloc_large(MAPPING_BYTES, HAK_ALIGNMENT), second = alloc_large(MAPPING_BYTES, HAK_ALIGNMENT);
    model_assert(second != MOST, "there is memory");
    (void)first;
    give(second);
}
static void mapped_to_the_bound(void) { /* no more may be kept */
    mapped();
    hak_atomic_store(&hak_knobs.mapping_cache_bytes, MAPPING_BYTES, relaxed);
}
static void given_back(void) { /* a mapping, as there is no thread of hakmem's */
    usual();
    give(alloc_large(MAPPING_BYTES, HAK_ALIGNMENT));
}
static struct hak_place places_shared[2]; /* what two threads are at; crossed out before */
static void shared_run(void) {
    dirty();
    places_shared[0] = hak_region_find((uintptr_t)had[2]);
    had_count = 2;
}
static void shared_mappings(void) {
    usual();
    hak_background_pay(true);
    for (uint32_t i = 0; i < 2; i++)
        places_shared[i] = hak_region_find((uintptr_t)had[alloc_large(MAPPING_BYTES, HAK_ALIGNMENT)]);
    had_count = 2;
}
static void swept(void) { /* slabs that were looked at since they were used */
    pooled();
    for (uint32_t i = 0; i < 2; i++) hak_purge_sweep(UINT64_MAX, UINT32_MAX);
}
static void movable(void) { /* there are addresses for a larger mapping */
    mapped();
    fake_os.reserves_left = -1;
}
static void many_heaps(void) {
    pooled();
    hak_atomic_store(&hak_few_heaps, 0, relaxed);
    library_heaps[1]->recent_classes[0] = PAIR;
    library_heaps[1]->recent_next = HAK_RECENT_CLASSES;
}
static void tight(void) {
    pooled();
    hak_memory_is_tight = true;
}
static void looking(void) {
    usual();
    library_let_look();
}
static void sampling(void) {
    usual();
    hak_profile_seed(1);
    hak_profile_begin(1);
    library_change_routes(0, true, 0, 8);
}
static void unguarded(void) {
    usual();
    fake_os.reserves_left = 1;
}
static void guards_refused(void) {
    usual();
    fake_os.reserves_left = 0;
}
static _Alignas(HAK_ALIGNMENT) uint64_t with_canary[2];
static void quarantined(void) {
    usual();
    memset(with_canary, 0, sizeof with_canary);
    hak_canary_hand_out(with_canary, sizeof with_canary[0], sizeof with_canary[0], HAK_FROM_MALLOC);
    fake_os.maps_left = 1;
    hak_quarantine_begin();
    hak_thread_heap = library_heaps[1];
    alloc(PAIR);
    hak_thread_abandon_heap();
}
static void for_frees(void) {
    usual();
    hak_heap_keep_for_frees(library_heaps[0], PAIR);
}
static void two_words(void) { /* a heap holds a slab of 128 blocks, half of which it has taken */
    static void *blocks[64];
    usual();
    hak_pool_take(library_heaps[1], MANY, blocks + 64, 64);
    for (uint32_t i = 0; i < 64; i++) own(blocks[i]);
}
static void word_and_a_half(void) { /* the same, three quarters: it has begun the second word */
    static void *blocks[96];
    usual();
    hak_pool_take(library_heaps[1], MANY, blocks + 96, 96);
    for (uint32_t i = 0; i < 96; i++) own(blocks[i]);
}
static void own_unit(void) { /* a heap keeps a unit */
    usual();
    hak_thread_heap = library_heaps[1];
    give(alloc_large(HAK_UNIT_BYTES, HAK_ALIGNMENT));
    model_assert(library_heaps[1]->empty_count == 1, "it is kept");
    library_heaps[1]->has_acquired[TRIPLE] = true;
    hak_thread_abandon_heap();
}
static void nearly_used_up(void) { /* addresses of the first range */
    state_of(1, 5);
    fake_os.maps_at_left = fake_os.reserves_left = -1;
}
static void untouched(void) { /* a SuperSlab of which no unit has memory, and that may be huge */
    library_start(1, 1, HAK_UNITS_PER_SUPER_SLAB, 3);
    had_count = 0;
    hak_knobs.huge_page_mode = HAK_HUGE_ON;
    row.no_units = 0;
    row.has_heap = true;
}
static void touched(void) { /* two of them, used often, that lie free */
    library_start(2, 2, HAK_UNITS_PER_SUPER_SLAB, 3);
    had_count = 0;
    row.no_units = 0;
    row.has_heap = true;
    struct hak_slab *all = hak_region_acquire_span(2 * HAK_UNITS_PER_SUPER_SLAB, 1, false);
    for (uint32_t i = 0; i < 2 * HAK_UNITS_PER_SUPER_SLAB; i++)
        *(uint64_t *)(hak_region_start_of(hak_ranges[0], all) + i * HAK_UNIT_BYTES) = 1;
    hak_region_release(all, 2 * HAK_UNITS_PER_SUPER_SLAB);
    fake_os.page_bytes = HAK_UNIT_BYTES;    /* of which the first word says that it has contents */
    hak_ranges[0]->super_slabs[0].uses = 7; /* the next look is at the next use */
}
static void wanted(void) {
    usual();
    hak_atomic_store(&hak_miss_sample_mask, 0, relaxed);
}
static void metered(void) {
    usual();
    library_change_routes(0, true, 0, 8);
}
static void woken(void) {
    usual();
    fake_os.clock_ms = 100000;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void be(uint32_t number) { library_be(library_heaps[number]); }
static void be_nobody(void) { hak_thread_abandon_heap(); }

static void alloc_hit(void) { be(1), alloc(PAIR); }
static void alloc_held(void) { be(1), alloc(PAIR), alloc(PAIR), alloc(PAIR); }
static void alloc_triple(void) { be(1), alloc(TRIPLE); }
static void alloc_wide(void) { be(1), alloc(WIDE); }
static void alloc_many(void) { be(1), alloc(MANY), alloc(FEWER); }
static void alloc_without_heap(void) { be_nobody(), alloc(PAIR), alloc(TRIPLE), alloc(MANY); }
static void alloc_till_full_without_heap(void) {
    be_nobody(), alloc(TRIPLE), alloc(TRIPLE), alloc(TRIPLE), alloc(TRIPLE);
}
static void alloc_till_full(void) {
    be(1);
    for (uint32_t i = 0; i < 5; i++) alloc(TRIPLE);
}
static void prewarm(void) { be(1), hak_front_refill(TRIPLE), hak_front_refill(MANY), hak_front_refill(WIDE); }

static void free_hit(void) { be(1), give(1); }
static void free_remote(void) { be(1), give(0), hak_front_purge(); }
static void free_flush(void) {
    be(1);
    for (uint32_t i = 2; i < had_count; i++) give(i);
}
static void free_and_flush(void) { free_flush(), hak_front_purge(); }
static void free_without_heap(void) {
    be_nobody();
    for (uint32_t i = 1; i < had_count; i++) give(i);
}
static void free_batch_without_heap(void) {
    void *blocks[128];
    for (uint32_t i = 0; i < 128; i++) {
        blocks[i] = had[2 + i];
        had[2 + i] = NULL;
    }
    hak_pool_put(NULL, MANY, blocks, 128);
}
static void free_wide(void) { be(1), give(alloc(WIDE)), hak_front_purge(); }
static void free_and_alloc(void) { be(1), give(1), alloc(PAIR), alloc(PAIR), alloc(TRIPLE); }

static void use_aligned(void) { be(1), give(alloc_large(2 * HAK_UNIT_BYTES, 2 * HAK_UNIT_BYTES)); }
static void use_aligned_mapping(void) { be(1), give(alloc_large(MAPPING_BYTES, HAK_GRANULE_BYTES)); }
static void use_kept_unit(void) {
    be(1);
    give(alloc_large(HAK_UNIT_BYTES, HAK_ALIGNMENT));
    give(alloc_large(HAK_UNIT_BYTES - 4096, HAK_ALIGNMENT));
}
static void use_run(void) { be(1), give(alloc_large(RUN_BYTES, HAK_ALIGNMENT)); }
static void use_zeros(void) {
    be(1);
    void *zeros = hak_front_alloc_large(ZERO_UNITS * HAK_UNIT_BYTES, HAK_ALIGNMENT, true, NULL);
    model_assert(zeros != NULL && *(uint64_t *)zeros == 0, "it is zero");
    give(own(zeros));
}
static void use_run_without_heap(void) { be_nobody(), give(alloc_large(RUN_BYTES, HAK_ALIGNMENT)); }
static void use_span(void) { be(1), give(alloc_large(HAK_SUPER_SLAB_BYTES / 2 * 3, HAK_ALIGNMENT)); }
static void free_run(void) { be(1), give(2); }
static void use_mapping(void) {
    be(1), give(alloc_large(MAPPING_BYTES, HAK_ALIGNMENT)), alloc_large(MAPPING_BYTES, HAK_ALIGNMENT);
}
static void resize(size_t bytes) {
    be(1);
    void *block = had[2], *resized;
    struct hak_place place = hak_region_find((uintptr_t)block);
    if (place.kind == HAK_PLACE_MAPPING) had[2] = NULL; /* it is neither here nor there for a while */
    resized = hak_front_resize_large(&place, bytes, NULL);
    if (resized != NULL && resized != block) library_touch_new(resized); /* contents don't move here */
    had[2] = resized != NULL ? resized : block;
}
static void shorten(void) { resize(HAK_UNIT_BYTES - 4096); }
static void lengthen_mapping(void) { resize(MAPPING_BYTES + HAK_UNIT_BYTES); }
static void lengthen(void) { resize(3 * HAK_UNIT_BYTES); }

static void purge(void) { be(1), hak_front_purge(); }
static void reclaim(void) { /* more than there is; then what is unmapped is used */
    be(1);
    model_assert(alloc_large(20 * HAK_UNIT_BYTES, HAK_ALIGNMENT) == MOST, "there is not so much");
    give(alloc_large(RUN_BYTES, HAK_ALIGNMENT));
}
static void purge_without_heap(void) { be_nobody(), hak_front_purge(); }
static void sweep(void) {
    be_nobody();
    for (uint32_t i = 0; i < 3; i++) hak_purge_sweep(0, UINT32_MAX);
    hak_region_purge_units(UINT64_MAX, true);
    hak_mapping_cache_age();
    hak_mapping_cache_purge();
}
static void drain_forker(void) { be_nobody(), library_drain(library_heaps[0]); }
static void end_periods(void) {
    be_nobody();
    for (uint32_t i = 0; i < 4; i++) library_background_period();
}

static void end_thread(void) {
    struct hak_heap *heap = library_heaps[1];
    be_nobody(), hak_heap_leave(heap);
}
static void release_heap(void) { be_nobody(), hak_heap_release(library_heaps[1]); }
static void come(void) {
    struct hak_heap *heap = hak_heap_acquire();
    if (heap != NULL) library_be(heap);
    alloc(TRIPLE);
}
static void come_and_leave(void) {
    come();
    struct hak_heap *heap = hak_thread_heap;
    be_nobody(), hak_heap_leave(heap), come();
}
static void come_twice(void) { come(), come(); }
static void take_apart(void) { be_nobody(), hak_heap_take_kept_apart(); }

static void sample(void) {
    be(1);
    uint32_t block = alloc(PAIR), large = alloc_large(HAK_UNIT_BYTES, HAK_ALIGNMENT);
    give(block), give(large);
}
static void use_guards(void) {
    static const uintptr_t stack[] = {0x1000};
    be(1), hak_guard_begin();
    give(own(hak_guard_alloc(16, stack, 1))), own(hak_guard_alloc(32, stack, 1));
}
static void begin_guards(void) { be(1), hak_guard_begin(); }
/* A page that is refused, and a block that was written beyond. */
static void fail_guards(void) {
    static const uintptr_t stack[] = {0x1000};
    be(1), hak_guard_begin();
    fake_os.refuses_commit = true;
    hak_guard_alloc(16, stack, 1);
    fake_os.refuses_commit = false;
    char *block = hak_guard_alloc(32, stack, 1);
    ptrdiff_t offset;
    if (block == NULL) return;
    block[32] ^= 1;
    hak_guard_free(block, stack, 1, &offset);
    block[32] ^= 1;
}
static void exchange_in_quarantine(void) {
    uint64_t found;
    hak_canary_take(with_canary, sizeof with_canary[0], HAK_FROM_MALLOC, &found);
    be(1);
    for (uint32_t i = 0; i < 3 && i < had_count; i++) {
        void *block = had[i];
        had[i] = NULL;
        library_free_to_wait(PAIR, block);
    }
    hak_heap_begin_slow_path(library_heaps[1]);
    hak_quarantine_empty(library_heaps[1]);
    hak_heap_end_slow_path(library_heaps[1]);
}
static void begin_and_end_profile(void) { be(1), hak_profile_begin(1), hak_profile_end(); }
static void alloc_many_more(void) { be(1), alloc(MANY), hak_front_refill(MANY); }
static void alloc_till_used_up(void) {
    be(1);
    for (uint32_t i = 0; i < 9; i++) alloc(WIDE);
}
static void alloc_till_used_up_without_heap(void) {
    be_nobody();
    for (uint32_t i = 0; i < 16; i++) alloc(WIDE);
}
static void free_two(void) { be(1), give(0), give(1), hak_front_purge(); }
static void alloc_and_purge(void) { be(1), alloc(TRIPLE), hak_front_purge(); }
static void stop_metering(void) { library_change_routes(0, false, 0, 8); }
static void purge_tail(void) {
    hak_in_hand_begin();
    hak_large_purge_tail(hak_ranges[0], hak_region_unit_of(hak_ranges[0], places_shared[0].slab));
    hak_in_hand_end();
}
static void free_place(void) { hak_large_free(&places_shared[0]); }
static void free_other_place(void) { hak_large_free(&places_shared[1]); }
/* As the secure build does with a run that was freed. */
static void wait_and_come_out(void) {
    hak_in_hand_begin();
    hak_atomic_store(&places_shared[0].slab->state, HAK_SLAB_NONE, relaxed);
    hak_run_quarantine_put(places_shared[0].slab);
    hak_run_quarantine_end();
    hak_in_hand_end();
}
static void take_units(void) {
    hak_in_hand_begin();
    hak_region_acquire(1, 1, HAK_UNITS_DIRTY, false), hak_region_acquire(2, 1, HAK_UNITS_DIRTY, false);
    hak_in_hand_keep();
}
static void use_units(void) {
    hak_in_hand_begin();
    struct hak_slab *units = hak_region_acquire(1, 1, HAK_UNITS_FRESH, false);
    if (units != NULL) hak_region_release(units, 1);
    hak_in_hand_end();
}
static void look(void) { be(1), alloc(TRIPLE); }
static void have_in_hand(void) {
    be(1);
    if (!hak_heap_begin_slow_path(library_heaps[1])) return;
    hak_in_hand_begin(), hak_in_hand_keep();
    hak_in_hand_begin(), hak_in_hand_end();
    hak_heap_end_slow_path(library_heaps[1]);
}

/* ---- Rows: the blocks and units that may be lost ----------------------------------------------------------------- */

/* Of a heap that somebody had: what is in its bins, and a word that it has claimed; the units that it keeps, and those
 * of the slab that it is about to make or to give up. Of who uses a run: its units. Of a purger: the dirty units of a
 * SuperSlab. */
enum { HEAP_BLOCKS = 2 * 2 + 3, HEAP_UNITS = HAK_EMPTY_SLABS + 2, RUN_UNITS = 3, PURGED_UNITS = 4 };

#define FORK_AT(name, state, operation, blocks, units) FORK_AT_BOTH(name, 1, state, blocks, units, operation)

/* The same with two threads that operate, for what one does only when it meets another. */
#define FORK_AT_BOTH(name, preemptions, state, blocks, units, ...)                                                     \
    FORKS_AT(name, preemptions, state, false, blocks, units, __VA_ARGS__)

/* The same, and the child forks, too. */
#define FORK_AT_AGAIN(name, state, operation, blocks, units) FORKS_AT(name, 1, state, true, blocks, units, operation)

#define FORKS_AT(name, preemptions, state, again, blocks, units, ...)                                                  \
    static void setup_##name(void) {                                                                                   \
        state();                                                                                                       \
        row.forks_again = again;                                                                                       \
        row.most_blocks = blocks;                                                                                      \
        row.most_units = units;                                                                                        \
        model_stops_anywhere = true;                                                                                   \
    }                                                                                                                  \
    MODEL_HARNESS_BOUNDED(fork_at_##name, preemptions, 0, setup_##name, child, fork_now, __VA_ARGS__)

FORK_AT(alloc_hit, usual, alloc_hit, HEAP_BLOCKS, 0);
FORK_AT(alloc_held, usual, alloc_held, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_pooled, pooled, alloc_triple, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_new_slab, usual, alloc_triple, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_wide, usual, alloc_wide, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_many, usual, alloc_many, HEAP_BLOCKS + 128, HEAP_UNITS);
FORK_AT(alloc_new_super_slab, growing, alloc_wide, HEAP_BLOCKS, HEAP_UNITS + HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(alloc_without_heap, usual, alloc_without_heap, 128, 1);
FORK_AT(alloc_full, pooled, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_full_without_heap, pooled, alloc_till_full_without_heap, 3, 1);
FORK_AT(alloc_kept_apart, kept, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(prewarm, usual, prewarm, HEAP_BLOCKS + 128, HEAP_UNITS);
FORK_AT(free_hit, usual, free_hit, HEAP_BLOCKS, 0);
FORK_AT(free_remote, usual, free_remote, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(free_flush, pooled, free_flush, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(free_full, full, free_and_flush, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(free_many, many_words, free_flush, HEAP_BLOCKS + 128, HEAP_UNITS);
FORK_AT(free_first_word, word_and_a_half, free_flush, HEAP_BLOCKS + 128, HEAP_UNITS);
FORK_AT(free_without_heap, full, free_without_heap, 3, 1);
FORK_AT(free_many_without_heap, many_words, free_batch_without_heap, 128, 1);
FORK_AT(free_wide, usual, free_wide, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(free_and_alloc, usual, free_and_alloc, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(other_without_heap, forker_without_heap, free_and_alloc, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(aligned, usual, use_aligned, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(aligned_mapping, usual, use_aligned_mapping, 1, 0);
FORK_AT(kept_unit, usual, use_kept_unit, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(run, usual, use_run, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(run_without_heap, usual, use_run_without_heap, 0, RUN_UNITS);
FORK_AT(run_zeros, sparse, use_zeros, HEAP_BLOCKS, HEAP_UNITS + ZERO_UNITS);
FORK_AT(run_free, dirty, free_run, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(run_shorter, dirty, shorten, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(run_longer, dirty, lengthen, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(span, growing, use_span, 1, 2 * HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(mapping, mapped, use_mapping, 1, 0);
FORK_AT(mapping_longer, movable, lengthen_mapping, 1, 0);
FORK_AT(mapping_free, mapped, free_run, 1, 0);
FORK_AT(mapping_free_for, mapped_to_the_bound, free_run, 1, 0);
FORK_AT(mapping_again, given_back, use_mapping, 1, 0);
FORK_AT(purge, dirty, purge, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(purge_holes, holes, purge, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(purge_without_heap, dirty, purge_without_heap, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(purge_other_without_heap, forker_without_heap, purge, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(reclaim, limited, reclaim, HEAP_BLOCKS, HEAP_UNITS + HAK_UNITS_PER_SUPER_SLAB + PURGED_UNITS);
FORK_AT(reclaim_refused, limited_and_refused, reclaim, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS + RUN_UNITS);
FORK_AT(sweep, holes, sweep, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(sweep_alone, alone, sweep, HEAP_BLOCKS, PURGED_UNITS);
FORK_AT(sweep_units, dirty, sweep, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(sweep_mapping, mapped, sweep, 1, 0);
FORK_AT(drain, usual, drain_forker, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(period, pooled, end_periods, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(exit, pooled, end_thread, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(exit_released, pooled, release_heap, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(start, usual, come, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(start_kept, kept, come, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(start_orphaned, orphaned, come, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(orphans_apart, orphaned, take_apart, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(start_new, kept, come_twice, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(start_and_exit, kept, come_and_leave, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(kept_apart, kept, take_apart, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(sample, sampling, sample, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(guards, unguarded, use_guards, 0, 0);
FORK_AT(guards_refused, guards_refused, begin_guards, 0, 0);
FORK_AT(guards_failed, unguarded, fail_guards, 0, 0);
FORK_AT(quarantine, quarantined, exchange_in_quarantine, 2 + HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(profile, usual, begin_and_end_profile, 0, 0);
FORK_AT(many_heaps, many_heaps, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(many_heaps_free, many_heaps, free_flush, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(tight, tight, purge, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(tight_alloc, tight, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(look, looking, look, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_swept, swept, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_purged, purged_holes, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_two_words, two_words, alloc_many_more, HEAP_BLOCKS + 128, HEAP_UNITS);
FORK_AT(alloc_own_unit, own_unit, alloc_triple, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_dirty, dirty, alloc_triple, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(alloc_dirty_without_heap, dirty, alloc_without_heap, 128, 1);
FORK_AT(alloc_all_without_heap, growing, alloc_till_used_up_without_heap, 3, HAK_UNITS_PER_SUPER_SLAB + 2);
FORK_AT(alloc_none_without_heap, usual, alloc_till_used_up_without_heap, 3, 2);
FORK_AT(alloc_new_range, nearly_used_up, alloc_till_used_up, HEAP_BLOCKS, HEAP_UNITS + 2 * HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(alloc_huge, untouched, alloc_and_purge, HEAP_BLOCKS, HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(alloc_huge_again, touched, alloc_triple, HEAP_BLOCKS, HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(alloc_timed, wanted, alloc_held, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(free_two, for_frees, free_two, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(period_alone, alone, end_periods, HEAP_BLOCKS, PURGED_UNITS);
FORK_AT(free_alone, alone_full, free_without_heap, 3, 1);
FORK_AT(alloc_alone, alone, alloc_without_heap, 128, 1);
FORK_AT(drain_for_frees, for_frees, drain_forker, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(metered_no_more, metered, stop_metering, 0, 0);
FORK_AT(look_late, woken, look, HEAP_BLOCKS, HEAP_UNITS);

FORK_AT(spread_alloc, spread, alloc_till_full, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(spread_wide, spread, alloc_wide, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(spread_free, spread, free_and_flush, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(spread_remote, spread, free_two, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(spread_run, spread, use_run, HEAP_BLOCKS, HEAP_UNITS + RUN_UNITS);
FORK_AT(spread_purge, spread_dirty, free_and_flush, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(spread_dirty, spread_dirty, alloc_and_purge, HEAP_BLOCKS, HEAP_UNITS + PURGED_UNITS);
FORK_AT(spread_drain, spread_dirty, drain_forker, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(spread_exit, spread_dirty, come_and_leave, HEAP_BLOCKS, HEAP_UNITS);
FORK_AT(spread_many, spread_dirty, alloc_many, HEAP_BLOCKS + 128, HEAP_UNITS);

FORK_AT(in_hand_beside, beside, have_in_hand, HEAP_BLOCKS, HEAP_UNITS);

FORK_AT_AGAIN(again_idle, pooled, free_hit, HEAP_BLOCKS, 0);
FORK_AT_AGAIN(again_alloc, pooled, alloc_till_full, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS);
FORK_AT_AGAIN(again_free, full, free_and_flush, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS + PURGED_UNITS);
FORK_AT_AGAIN(again_run, dirty, use_run, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS + RUN_UNITS);
FORK_AT_AGAIN(again_drain, usual, drain_forker, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS);
FORK_AT_AGAIN(again_exit, kept, come_and_leave, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS);
FORK_AT_AGAIN(again_start, usual, come_twice, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS);
FORK_AT_AGAIN(again_without_heap, forker_without_heap, free_and_alloc, 2 * HEAP_BLOCKS, 2 * HEAP_UNITS);

FORK_AT_BOTH(run_purged_and_freed, 2, shared_run, 1, RUN_UNITS, purge_tail, free_place);
FORK_AT(run_waits, shared_run, wait_and_come_out, 1, RUN_UNITS);
FORK_AT_BOTH(mappings_freed, 2, shared_mappings, 0, 0, free_place, free_other_place);
/* Both need the next step of the tables. */
static void make_super_slab(void) {
    hak_in_hand_begin();
    hak_region_acquire(HAK_UNITS_PER_SUPER_SLAB, 1, HAK_UNITS_NEW_SUPER, false);
    hak_in_hand_keep();
}
FORK_AT_BOTH(step_of_tables, 2, growing, 0, 2 * HAK_UNITS_PER_SUPER_SLAB, make_super_slab, make_super_slab);
FORK_AT(step_foreign, below_other, make_super_slab, 0, HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(super_slab_refused, nearly_refused, make_super_slab, 0, HAK_UNITS_PER_SUPER_SLAB);
FORK_AT(super_slab_in_turn, in_turns, make_super_slab, 0, HAK_UNITS_PER_SUPER_SLAB);
FORK_AT_BOTH(units_taken_and_given, 2, dirty, 0, 2 * RUN_UNITS, take_units, use_units);

/* The start of a process: the child begins anew, or has what was made. */
static void start_process(void) { hak_process_initialize(); }
static void start_in_child(void) {
    model_stops_anywhere = false;
    library_in_child();
    model_assert(hak_process_initialize(), "there is memory");
    had_count = 0;
    library_be(hak_heap_acquire());
    model_assert(alloc(1) != MOST, "a process that has begun has memory");
    give(0);
}
static void no_process(void) {
    library_reset();
    model_stops_anywhere = true;
}
MODEL_HARNESS_BOUNDED(fork_at_process, 1, 0, no_process, start_in_child, fork_now, start_process);

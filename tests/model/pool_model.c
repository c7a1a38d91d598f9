/* Blocks between bins and slabs, slabs between heaps, the pool and the region. Threads call what misses call; a heap is that
 * of the thread of its number.
 */
#include "library.h"

enum { BLOCKS = 6 };

static void *blocks[BLOCKS]; /* what the program has, from setup on; each is one thread's */
static uint32_t taken;       /* blocks that threads have taken and kept */
static uint32_t taken_by[MODEL_THREADS];

static void start(uint32_t units, uint32_t heaps) {
    library_start(1, 1, units, heaps);
    for (uint32_t i = 0; i < MODEL_THREADS; i++) taken_by[i] = 0;
}

static struct hak_heap *own_heap(void) { return library_heaps[model_thread()]; }

static void take(uint32_t size_class) {
    if (library_take(own_heap(), size_class) != NULL) taken_by[model_thread()]++;
}
static void put_pair(uint32_t index) { library_put(own_heap(), PAIR, blocks[index]); }

/* `live`: of setup, and not given back. */
static void check_live(uint32_t live) {
    taken = 0;
    for (uint32_t i = 0; i < MODEL_THREADS; i++) taken += taken_by[i];
    model_assert(library_check() == live + taken, "every block is free, in a bin, or the program's");
}
static void check_taken(void) { check_live(0); }
static void check_taken_and_one(void) { check_live(1); }

static void take_pair(void) { take(PAIR); }
static void put_first(void) { put_pair(0); }
static void put_second(void) { put_pair(1); }

/* ---- FULL -------------------------------------------------------------------------------------------------------- */

/* Heap 0 holds a slab of which the program has all blocks: a refill finds it empty and declares it full. */
static void setup_full(void) {
    start(2, 2);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[0], PAIR);
}

static void put_both_and_take_other(void) {
    put_pair(0);
    put_pair(1);
    take(TRIPLE);
}

static void put_first_and_take_other(void) {
    put_pair(0);
    take(TRIPLE);
}

MODEL_HARNESS(pool_full, setup_full, check_taken_and_one, take_pair, put_first);
MODEL_HARNESS(pool_full_retired, setup_full, check_taken, take_pair, put_both_and_take_other);
MODEL_HARNESS_DEEP(pool_full_late, setup_full, check_taken, take_pair, put_first_and_take_other, put_second);

/* Without heaps: all of them declare slabs full in the name of heap 0. */
static void setup_full_shared(void) {
    start(2, 0);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(NULL, PAIR);
}

MODEL_HARNESS(pool_full_shared, setup_full_shared, check_taken_and_one, take_pair, put_first);
MODEL_HARNESS_DEEP(pool_full_shared_late, setup_full_shared, check_taken, take_pair, put_first_and_take_other,
                   put_second);

/* ---- remote frees against refills ------------------------------------------------------------------------------ */

/* Heap 0 holds two slabs, each with one free block. */
static void setup_partial(void) {
    start(3, 2);
    void *spare[2];
    for (uint32_t i = 0; i < 4; i++) {
        void *block = library_take(library_heaps[0], PAIR);
        if (i % 2 == 0) blocks[i / 2] = block;
        else spare[i / 2] = block;
    }
    for (uint32_t i = 0; i < 2; i++) library_put(library_heaps[0], PAIR, spare[i]);
}

static void take_pairs(void) {
    take(PAIR);
    take(PAIR);
}

static void flush(void) { hak_heap_flush(own_heap()); }

MODEL_HARNESS(pool_drain, setup_partial, check_taken_and_one, take_pairs, put_first);
MODEL_HARNESS(pool_flush, setup_partial, check_taken, flush, put_first, put_second);

/* Heaps are many: a refill of heap 0 gives up its slab of another class, of which a block is free and the program has the other. */
static void setup_many(void) {
    start(3, 3);
    blocks[0] = library_take(library_heaps[0], PAIR);
    hak_atomic_store(&hak_few_heaps, 0, relaxed);
    library_heaps[0]->recent_classes[0] = PAIR;
}

static void take_triple(void) { take(TRIPLE); }

/* A full slab goes into the pool by its own heap's free, comes to its end, and its units are another slab before its heap looks
 * at it once more. */
static void setup_full_many(void) {
    setup_full();
    hak_atomic_store(&hak_few_heaps, 0, relaxed);
}

static void declare_put_recheck(void) {
    take(PAIR);
    put_pair(0);
    take(TRIPLE);
    hak_heap_recheck_full(own_heap());
}

MODEL_HARNESS(pool_full_many, setup_full_many, check_taken, declare_put_recheck, put_second);
MODEL_HARNESS(pool_many, setup_many, check_taken, take_triple, put_first, take_pair);

/* ---- the partial set ------------------------------------------------------------------------------------------- */

/* Two full slabs that nobody holds, of which the program has all blocks. */
static void setup_pooled(void) {
    start(2, 4);
    for (uint32_t i = 0; i < 4; i++) blocks[i] = library_take(library_heaps[3], PAIR);
    model_assert(library_take(library_heaps[3], PAIR) == NULL, "there are no more");
}

static void put_first_take(void) {
    put_pair(0);
    take(PAIR);
}
static void put_third_take(void) {
    put_pair(2);
    take(PAIR);
}
static void put_third(void) { put_pair(2); }

static void check_taken_and_two(void) { check_live(2); }

MODEL_HARNESS(pool_set, setup_pooled, check_taken_and_two, put_first_take, put_third_take);
MODEL_HARNESS(pool_set_three, setup_pooled, check_taken_and_two, put_first, put_third, take_pair);

/* The blocks of one slab come back from two threads while a third takes: empty slabs leave the set from its middle. */
MODEL_HARNESS_DEEP(pool_set_retire, setup_pooled, check_taken_and_two, put_first, put_second, take_pair);

/* ---- thread exit and adoption --------------------------------------------------------------------------------- */

/* Heap 0 has a block in a bin and holds a slab with a free block; the program has a block of each slab there is. */
static void setup_exit(void) {
    start(2, 1);
    for (uint32_t i = 0; i < 3; i++) blocks[i] = library_take(library_heaps[0], PAIR);
    library_put(library_heaps[0], PAIR, blocks[1]);
    library_cache(library_heaps[0], PAIR, library_take(library_heaps[0], PAIR));
}

static void leave(void) { hak_heap_release(library_heaps[0]); }

static void adopt_and_take(void) {
    struct hak_heap *heap = hak_heap_acquire();
    taken_by[model_thread()] += library_take(heap, PAIR) != NULL;
}

MODEL_HARNESS(pool_exit, setup_exit, check_taken_and_two, leave, adopt_and_take);
MODEL_HARNESS_DEEP(pool_exit_late, setup_exit, check_taken_and_one, leave, adopt_and_take, put_third);

/* Heaps are made and left while others look for one. */
static void setup_heaps(void) {
    start(1, 1);
    hak_heap_release(library_heaps[0]);
    library_heaps[0] = NULL;
}

static void come_and_go(void) {
    struct hak_heap *heap = hak_heap_acquire();
    heap->acquired_count++;
    hak_heap_release(heap);
}

static void come(void) {
    struct hak_heap *heap = hak_heap_acquire();
    heap->acquired_count++;
    model_assert(hak_heap_is_known(heap), "a heap that is had is known");
}

static void check_heaps(void) {
    uint32_t in_use = 0, heaps = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next, heaps++) in_use += heap->in_use;
    model_assert(in_use == 2 && heaps <= 3, "two heaps are in use");
}

MODEL_HARNESS_BOUNDED(heap_list, 1, 2, setup_heaps, check_heaps, come_and_go, come, come);

/* While one thread takes the topmost of three, another takes all, and puts the topmost one back. */
static void setup_unused(void) {
    start(1, 3);
    for (uint32_t i = 0; i < 3; i++) hak_heap_release(library_heaps[i]);
}

static void come_twice_and_go(void) {
    struct hak_heap *first = hak_heap_acquire(), *second = hak_heap_acquire();
    first->acquired_count++, second->acquired_count++;
    hak_heap_release(first);
}

static void check_unused(void) {
    uint32_t in_use = 0, heaps = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next, heaps++) in_use += heap->in_use;
    model_assert(in_use == 2 && heaps == 3, "two heaps are in use");
    library_check();
}

MODEL_HARNESS(heap_unused, setup_unused, check_unused, come, come_twice_and_go);

/* One is unused; two more are put on top of it while a thread takes the topmost. */
static void setup_two_in_use(void) {
    start(1, 3);
    hak_heap_release(library_heaps[2]);
}

static void go_twice(void) {
    hak_heap_release(library_heaps[0]);
    hak_heap_release(library_heaps[1]);
}

static void check_one_in_use(void) {
    uint32_t in_use = 0;
    for (struct hak_heap *heap = hak_heaps; heap != NULL; heap = heap->next) in_use += heap->in_use;
    model_assert(in_use == HAK_HEAP_IN_USE, "one heap is in use");
    library_check();
}

MODEL_HARNESS(heap_put, setup_two_in_use, check_one_in_use, come, go_twice);

/* A heap that was made a moment ago is kept, and taken by the next thread. */
static void setup_one_in_use(void) { start(1, 1); }

static void come_and_keep(void) { hak_heap_leave(hak_heap_acquire()); }

static void come_any(void) { hak_heap_acquire()->acquired_count++; }

static void check_kept(void) { library_check(); }

MODEL_HARNESS(heap_kept, setup_one_in_use, check_kept, come_any, come_and_keep);

/* ---- kept empty slabs ------------------------------------------------------------------------------------------ */

/* Heap 0 holds two slabs, each with one block out. The last of a class stays, the other is kept. */
static void setup_kept(void) { setup_partial(); }

static void put_both_own(void) {
    put_pair(0);
    put_pair(1);
    take(TRIPLE);
}

static void purge_and_take(void) {
    hak_purge_all(NULL);
    take(TRIPLE);
}

MODEL_HARNESS_BOUNDED(pool_kept, 1, 2, setup_kept, check_taken, put_both_own, purge_and_take);

/* ---- S8: no empty slab is overlooked in the pool ----------------------------------------------------------------- */

/* Two words of a pooled slab, of each of which the program has a block; or of a slab of a heap. */
static void *many[128];

static void setup_words(void) {
    start(1, 2);
    hak_pool_take(NULL, MANY, many + 128, 128);
    for (uint32_t i = 0; i < 128; i += 64) hak_pool_put(NULL, MANY, many + i, 63);
}
static void setup_full_words(void) {
    start(1, 2);
    hak_pool_take(NULL, MANY, many + 128, 128);
}
static void setup_held_words(void) {
    start(1, 2);
    hak_pool_take(library_heaps[0], MANY, many + 128, 128);
    for (uint32_t i = 0; i < 128; i += 64) hak_pool_put(library_heaps[0], MANY, many + i, 63);
}
static void put_low(void) { hak_pool_put(NULL, MANY, many + 63, 1); }
static void put_high(void) { hak_pool_put(NULL, MANY, many + 127, 1); }
static void put_all_low(void) { hak_pool_put(library_heaps[0], MANY, many, 64); }
static void put_all_high(void) { hak_pool_put(library_heaps[1], MANY, many + 64, 64); }
static void give_up(void) { hak_heap_flush(library_heaps[0]); }
static void take_many(void) { taken_by[model_thread()] += hak_pool_take(NULL, MANY, many + 1, 1); }

MODEL_HARNESS(empty_two_words, setup_words, check_taken, put_low, put_high);
MODEL_HARNESS(empty_full, setup_full_words, check_taken, put_all_low, put_all_high);
MODEL_HARNESS(empty_given_up, setup_held_words, check_taken, give_up, put_low, put_high);
MODEL_HARNESS_BOUNDED(empty_taken, 1, 2, setup_words, check_taken, put_low, put_high, take_many);

/* ---- What another thread has in hand is found (region/in_hand.h) ------------------------------------------------- */

static void *found;
static void check_found(void) { model_assert(found != NULL, "memory that is free all the time is found"); }
static void no_more(void) { fake_os.reserves_left = fake_os.maps_at_left = fake_os.maps_left = 0; }

/* A pooled slab of triples, one of which the program has: two threads without a heap take one each. */
static void setup_triples(void) {
    start(1, 1);
    for (uint32_t i = 0; i < 3; i++) blocks[i] = library_take(NULL, TRIPLE);
    for (uint32_t i = 0; i < 2; i++) library_put(NULL, TRIPLE, blocks[i]);
    no_more();
}
static void take_one(void) { library_take(NULL, TRIPLE); }
static void find_triple(void) { found = library_take(NULL, TRIPLE); }
MODEL_HARNESS(in_hand_slab, setup_triples, check_found, find_triple, take_one);

/* A heap has a SuperSlab made for a unit. Who sees that it is there finds what is left over. */
static void setup_no_super_slab(void) {
    library_start(1, 0, 0, 1);
    fake_os.maps_at_left = -1;
}
static void take_in_heap(void) { library_take(own_heap(), TRIPLE); }
static void find_left_over(void) {
    found = &found;
    if (hak_region_super_slabs(hak_ranges[0]) == 0) return;
    struct hak_search search = hak_search_begin();
    do found = hak_region_acquire(1, 1, HAK_UNITS_LAST_RESORT, false);
    while (found == NULL && hak_search_again(&search));
}
MODEL_HARNESS(in_hand_growth, setup_no_super_slab, check_found, take_in_heap, find_left_over);

/* The last block of a slab comes back, the other one is free already. */
static void setup_one_pair(void) {
    start(1, 1);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(NULL, PAIR);
    library_put(NULL, PAIR, blocks[0]);
    no_more();
}
static void put_last(void) { library_put(NULL, PAIR, blocks[1]); }
static void find_pair(void) { found = library_take(NULL, PAIR); }
MODEL_HARNESS(in_hand_retired, setup_one_pair, check_found, find_pair, put_last);

/* A heap has declared its only slab full, a block of it is freed, and the heap wants one. */
static void setup_declared(void) {
    start(1, 1);
    for (uint32_t i = 0; i < 2; i++) blocks[i] = library_take(library_heaps[0], PAIR);
    no_more();
}
static HAK_ATOMIC(uint32_t) is_put;
static void put_and_say(void) {
    library_put(NULL, PAIR, blocks[1]);
    hak_atomic_store(&is_put, 1, release);
}
static void take_until_put(void) {
    found = library_take(library_heaps[0], PAIR);
    model_await(hak_atomic_load(&is_put, acquire) != 0);
    if (found == NULL) found = library_take(library_heaps[0], PAIR);
}
static void setup_declared_waiting(void) {
    setup_declared();
    is_put = 0;
}
MODEL_HARNESS(in_hand_declared, setup_declared_waiting, check_found, take_until_put, put_and_say);

/* The heap of a thread that has left is taken apart by two at once. */
static void setup_kept_block(void) {
    start(1, 2);
    struct hak_heap *heap = library_heaps[0];
    library_cache(heap, PAIR, library_take(heap, PAIR));
    hak_heap_leave(heap);
    no_more();
}
static void take_apart(void) { hak_heap_take_apart(library_heaps[0]); }
static void find_cached_pair(void) { found = library_take(library_heaps[1], PAIR); }
MODEL_HARNESS_DEEP(in_hand_kept, setup_kept_block, check_found, find_cached_pair, take_apart);
